//! CLIENT: about this connection and the others.

use super::arguments::{SYNTAX, help as help_of, integer, integer_or, is, repeated, text, wrong_form};
use super::state::{OK, Replies, Session};
use crate::call::{Failure, Outcome};
use crate::reply::Reply;
use crate::server::{Client, Paused};
use bytes::Bytes;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The longest pause the clock can hold.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
const NO_TRACKING: &str = "ERR client-side caching isn't supported by this server";

pub fn id(session: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Integer(session.client.id as i64))
}

pub fn name(session: &mut Session, _: &[Bytes]) -> Outcome {
    let name = session.client.name.borrow().clone();
    Ok(if name.is_empty() { Reply::Null } else { Reply::Bulk(name) })
}

pub fn set_name(session: &mut Session, args: &[Bytes]) -> Outcome {
    session.client.rename(&args[2])?;
    OK
}

pub fn info(session: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::verbatim(session.client.line() + "\n"))
}

pub fn list(session: &mut Session, args: &[Bytes]) -> Outcome {
    let clients = session.server.clients.borrow();
    let chosen: Vec<&Rc<Client>> = match &args[2..] {
        [] => clients.values().collect(),
        [option, kind] if is(option, "type") => match Kind::parse(kind)? {
            Kind::Normal => clients.values().collect(),
            Kind::Other => Vec::new(),
        },
        [option, ids @ ..] if is(option, "id") && !ids.is_empty() => {
            let ids: Result<Vec<_>, _> = ids.iter().map(|id| integer_or(id, "ERR Invalid client ID")).collect();
            ids?.iter().filter_map(|id| clients.get(&u64::try_from(*id).ok()?)).collect()
        }
        _ => return Err(SYNTAX.into()),
    };
    Ok(Reply::verbatim(chosen.iter().map(|client| client.line() + "\n").collect::<String>()))
}

/// Of which there is one kind here.
#[derive(PartialEq)]
enum Kind {
    Normal,
    Other,
}

impl Kind {
    fn parse(name: &[u8]) -> Result<Kind, Failure> {
        match text(name).to_ascii_lowercase().as_str() {
            "normal" => Ok(Kind::Normal),
            "master" | "replica" | "slave" | "pubsub" => Ok(Kind::Other),
            _ => Err(Failure(format!("ERR Unknown client type '{}'", repeated(name)).into())),
        }
    }
}

/// Whom CLIENT KILL is about.
#[derive(Default)]
struct Victims {
    id: Option<i64>,
    peer: Option<String>,
    local: Option<String>,
    kind: Option<Kind>,
    spares_itself: bool,
}

impl Victims {
    fn parse(mut options: &[Bytes]) -> Result<Victims, Failure> {
        let mut victims = Victims { spares_itself: true, ..Victims::default() };
        while !options.is_empty() {
            let [option, value, rest @ ..] = options else { return Err(SYNTAX.into()) };
            if is(option, "id") {
                let wrong = "ERR client-id should be greater than 0";
                let id = integer_or(value, wrong)?;
                victims.id = Some(Some(id).filter(|id| *id > 0).ok_or(wrong)?);
            } else if is(option, "type") {
                victims.kind = Some(Kind::parse(value)?);
            } else if is(option, "addr") {
                victims.peer = Some(text(value));
            } else if is(option, "laddr") {
                victims.local = Some(text(value));
            } else if is(option, "user") {
                if &value[..] != b"default" {
                    return Err(Failure(format!("ERR No such user '{}'", text(value)).into()));
                }
            } else if is(option, "skipme") && (is(value, "yes") || is(value, "no")) {
                victims.spares_itself = is(value, "yes");
            } else {
                return Err(SYNTAX.into());
            }
            options = rest;
        }
        Ok(victims)
    }

    fn include(&self, client: &Client) -> bool {
        self.id.is_none_or(|id| id == client.id as i64)
            && self.peer.as_ref().is_none_or(|peer| *peer == client.peer.to_string())
            && self.local.as_ref().is_none_or(|local| *local == client.local.to_string())
            && self.kind != Some(Kind::Other)
    }
}

pub fn kill(session: &mut Session, args: &[Bytes]) -> Outcome {
    let is_old_form = args.len() == 3;
    let victims = if is_old_form {
        Victims { peer: Some(text(&args[2])), ..Victims::default() }
    } else {
        Victims::parse(&args[2..])?
    };
    let clients: Vec<Rc<Client>> = session.server.clients.borrow().values().cloned().collect();
    let mut killed = 0;
    for client in clients.iter().filter(|client| victims.include(client) && !client.is_killed()) {
        let is_itself = client.id == session.client.id;
        if is_itself && victims.spares_itself {
            continue;
        }
        killed += 1;
        if is_itself {
            client.closing.set(true);
        } else {
            client.kill();
        }
    }
    match (is_old_form, killed) {
        (true, 0) => Err("ERR No such client".into()),
        (true, _) => OK,
        (false, killed) => Ok(Reply::Integer(killed)),
    }
}

pub fn pause(session: &mut Session, args: &[Bytes]) -> Outcome {
    let what = match &args[3..] {
        [] => Paused::All,
        [mode] if is(mode, "all") => Paused::All,
        [mode] if is(mode, "write") => Paused::Writes,
        [_] => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
        _ => return Err(wrong_form(args)),
    };
    let timeout = integer_or(&args[2], "ERR timeout is not an integer or out of range")?;
    let timeout = u64::try_from(timeout).map_err(|_| "ERR timeout is negative")?;
    session.server.pause.begin(Instant::now() + Duration::from_millis(timeout).min(LONGEST), what);
    OK
}

pub fn unpause(session: &mut Session, _: &[Bytes]) -> Outcome {
    session.server.pause.end();
    OK
}

pub fn reply(session: &mut Session, args: &[Bytes]) -> Outcome {
    match &args[2] {
        mode if is(mode, "on") => {
            session.replies = Replies::On;
            return OK;
        }
        mode if is(mode, "off") => session.replies = Replies::Off,
        mode if is(mode, "skip") => {
            if session.replies == Replies::On {
                session.replies = Replies::SkipNext;
            }
        }
        _ => return Err(SYNTAX.into()),
    }
    Ok(Reply::Silence)
}

pub fn no_evict(session: &mut Session, args: &[Bytes]) -> Outcome {
    match &args[2] {
        mode if is(mode, "on") => session.client.is_never_evicted.set(true),
        mode if is(mode, "off") => session.client.is_never_evicted.set(false),
        _ => return Err(SYNTAX.into()),
    }
    OK
}

/// Turning off what is never on is no error.
pub fn tracking(_: &mut Session, args: &[Bytes]) -> Outcome {
    match &args[2..] {
        [mode] if is(mode, "off") => OK,
        [mode, ..] if is(mode, "on") => Err(NO_TRACKING.into()),
        _ => Err(SYNTAX.into()),
    }
}

pub fn caching(_: &mut Session, _: &[Bytes]) -> Outcome {
    Err("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
        .into())
}

pub fn tracking_info(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Map(vec![
        (Reply::word("flags"), Reply::Set(vec![Reply::word("off")])),
        (Reply::word("redirect"), Reply::Integer(-1)),
        (Reply::word("prefixes"), Reply::Array(Vec::new())),
    ]))
}

pub fn redirection(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Integer(-1))
}

/// No command here blocks in a way that could be ended.
pub fn unblock(_: &mut Session, args: &[Bytes]) -> Outcome {
    match &args[3..] {
        [] => {}
        [reason] if is(reason, "timeout") || is(reason, "error") => {}
        [_] => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
        _ => return Err(wrong_form(args)),
    }
    integer(&args[2])?;
    Ok(Reply::Integer(0))
}

pub fn help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &HELP))
}

const HELP: [&str; 45] = [
    "CACHING (YES|NO)",
    "    Enable/disable tracking of the keys for next command in OPTIN/OPTOUT modes.",
    "GETREDIR",
    "    Return the client ID we are redirecting to when tracking is enabled.",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current client connection.",
    "KILL <ip:port>",
    "    Kill connection made from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Kill connections. Options are:",
    "    * ADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made from the specified address",
    "    * LADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made to specified local address",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Kill connections by type.",
    "    * USER <username>",
    "      Kill connections authenticated by <username>.",
    "    * SKIPME (YES|NO)",
    "      Skip killing current connection (default: yes).",
    "LIST [options ...]",
    "    Return information about client connections. Options:",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Return clients of specified type.",
    "UNPAUSE",
    "    Stop the current client pause, resuming traffic.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Suspend all, or just write, clients for <timeout> milliseconds.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "UNBLOCK <clientid> [TIMEOUT|ERROR]",
    "    Unblock the specified blocked client.",
    "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
    "         [OPTIN] [OPTOUT] [NOLOOP]",
    "    Control server assisted client side caching.",
    "TRACKINGINFO",
    "    Report tracking status for the current connection.",
    "NO-EVICT (ON|OFF)",
    "    Protect current client connection from eviction.",
];
