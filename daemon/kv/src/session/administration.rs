//! Commands about things that are not there, or hardly: replicas, scripts, modules, users, an
//! allocator to be purged. They answer so that a tool that asks goes on.

use super::arguments::{SYNTAX, help as help_of, integer, integer_or, is, repeated, text, wrong_form};
use super::introspection::CATEGORIES;
use super::state::{OK, Session};
use crate::call::{Failure, Outcome};
use crate::reply::Reply;
use crate::store::Settings;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub fn time(_: &mut Session, _: &[Bytes]) -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let parts = [now.as_secs().to_string(), now.subsec_micros().to_string()];
    Ok(Reply::Array(parts.into_iter().map(Reply::bulk).collect()))
}

/// When the server was started, as of one that has not been told to save since.
pub fn last_save(session: &mut Session, _: &[Bytes]) -> Outcome {
    let started = SystemTime::now().checked_sub(session.server.started.elapsed());
    let since = started.and_then(|started| started.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Ok(Reply::Integer(since.as_secs() as i64))
}

pub fn lolwut(_: &mut Session, args: &[Bytes]) -> Outcome {
    if let [_, option, version, ..] = args
        && is(option, "version")
    {
        integer(version)?;
    }
    Ok(Reply::verbatim(format!("annex {}\nRedis ver. {}\n", env!("CARGO_PKG_VERSION"), crate::server::REDIS_VERSION)))
}

pub fn role(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Array(vec![Reply::word("master"), Reply::Integer(0), Reply::Array(Vec::new())]))
}

/// There are no replicas of Redis' kind. A write is on all donors that hold it before it is
/// answered.
pub fn wait(_: &mut Session, args: &[Bytes]) -> Outcome {
    integer(&args[1])?;
    if integer_or(&args[2], "ERR timeout is not an integer or out of range")? < 0 {
        return Err("ERR timeout is negative".into());
    }
    Ok(Reply::Integer(0))
}

pub fn shutdown(session: &mut Session, args: &[Bytes]) -> Outcome {
    let known = ["nosave", "save", "now", "force", "abort"];
    let options: Option<Vec<&str>> =
        args[1..].iter().map(|option| known.into_iter().find(|known| is(option, known))).collect();
    let options = options.ok_or(SYNTAX)?;
    let has = |option| options.contains(&option);
    if (has("abort") && options.len() > 1) || (has("save") && has("nosave")) {
        return Err(SYNTAX.into());
    }
    if has("abort") {
        return Err("ERR No shutdown in progress.".into());
    }
    if !session.server.hooks.may_shut_down {
        return Err("ERR SHUTDOWN isn't allowed by the configuration of this server".into());
    }
    session.server.shut_down.notify_one();
    session.client.closing.set(true);
    Ok(Reply::Silence)
}

/// What tests of clients use.
pub fn debug<'a>(session: &'a mut Session, args: &'a [Bytes]) -> LocalBoxFuture<'a, Outcome> {
    async move {
        match &args[1..] {
            [sub, seconds] if is(sub, "sleep") => {
                let wrong = || Failure::from("ERR value is not a valid float");
                let seconds = text(seconds).parse::<f64>().map_err(|_| wrong())?;
                let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
                // Within EXEC the locks are held already.
                let mut ticket = None;
                if !session.runs_transaction {
                    ticket.insert(session.server.locks.everything_soon().await).granted().await;
                }
                tokio::time::sleep(time).await;
                drop(ticket);
                OK
            }
            [sub, flag] if is(sub, "set-active-expire") => {
                let store = &session.server.store;
                store.set(Settings { expires_actively: &flag[..] != b"0", ..store.settings() });
                OK
            }
            [sub, _] if is(sub, "set-disable-deny-scripts") => OK,
            [sub, _] if is(sub, "log") => OK,
            [sub, text_of] if is(sub, "error") => Err(Failure(repeated(text_of).into())),
            [sub, kind] if is(sub, "protocol") => protocol(&text(kind)),
            _ => Err(wrong_form(args)),
        }
    }
    .boxed_local()
}

/// The number that Redis' own answers with.
const PROTOCOL_DOUBLE: f64 = 3141.0 / 1000.0;

/// One reply of each kind.
fn protocol(kind: &str) -> Outcome {
    let numbers = || (0..3).map(Reply::Integer);
    Ok(match kind.to_ascii_lowercase().as_str() {
        "string" => Reply::word("Hello World"),
        "integer" => Reply::Integer(12345),
        "double" => Reply::Double(PROTOCOL_DOUBLE),
        "null" => Reply::Null,
        "array" => Reply::Array(numbers().collect()),
        "set" => Reply::Set(numbers().collect()),
        "map" => Reply::Map((0..3).map(|at| (Reply::Integer(at), Reply::Boolean(at == 1))).collect()),
        "verbatim" => Reply::verbatim("This is a verbatim\nstring"),
        "true" => Reply::Boolean(true),
        "false" => Reply::Boolean(false),
        _ => {
            return Err("ERR Wrong protocol type name. Please use one of the following: \
                        string|integer|double|null|array|set|map|attrib|push|verbatim|true|false"
                .into());
        }
    })
}

pub fn memory_doctor(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::verbatim(
        "Hi Sam, I can't find any memory issue in your instance. I can only account for what occurs on this base.\n",
    ))
}

pub fn memory_purge(_: &mut Session, _: &[Bytes]) -> Outcome {
    OK
}

pub fn memory_malloc_stats(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::word("Stats not supported for the current allocator"))
}

pub fn memory_stats(session: &mut Session, _: &[Bytes]) -> Outcome {
    let facts = (session.server.hooks.facts)();
    let keys: u64 = (0..crate::store::DATABASES).map(|db| session.server.store.len(crate::store::Db(db)).0).sum();
    let dataset = facts.used_memory.saturating_sub(facts.overhead);
    let number = |value: u64| Reply::Integer(value as i64);
    let percent =
        |part: u64, whole: u64| Reply::Double(if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 });
    Ok(Reply::Map(vec![
        (Reply::word("peak.allocated"), number(facts.peak_memory)),
        (Reply::word("total.allocated"), number(facts.used_memory)),
        (Reply::word("startup.allocated"), number(0)),
        (Reply::word("replication.backlog"), number(0)),
        (Reply::word("clients.slaves"), number(0)),
        (Reply::word("clients.normal"), number(session.server.memory.held() as u64)),
        (Reply::word("cluster.links"), number(0)),
        (Reply::word("aof.buffer"), number(0)),
        (Reply::word("lua.caches"), number(0)),
        (Reply::word("functions.caches"), number(0)),
        (Reply::word("overhead.total"), number(facts.overhead)),
        (Reply::word("keys.count"), number(keys)),
        (Reply::word("keys.bytes-per-key"), number(dataset.checked_div(keys).unwrap_or(0))),
        (Reply::word("dataset.bytes"), number(dataset)),
        (Reply::word("dataset.percentage"), percent(dataset, facts.used_memory)),
        (Reply::word("peak.percentage"), percent(facts.used_memory, facts.peak_memory)),
        (Reply::word("fragmentation"), Reply::Double(1.0)),
        (Reply::word("fragmentation.bytes"), number(0)),
    ]))
}

pub fn memory_help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &MEMORY_HELP))
}

pub fn whoami(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::word("default"))
}

pub fn users(_: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Array(vec![Reply::word("default")]))
}

pub fn cat(session: &mut Session, args: &[Bytes]) -> Outcome {
    match &args[2..] {
        [] => Ok(Reply::Array(CATEGORIES.into_iter().map(Reply::word).collect())),
        [category] if CATEGORIES.iter().any(|known| is(category, known)) => {
            let filter = ["command", "list", "filterby", "aclcat"].map(|word| Bytes::from_static(word.as_bytes()));
            let args: Vec<Bytes> = filter.into_iter().chain([category.clone()]).collect();
            super::introspection::list(session, &args)
        }
        [category] => Err(Failure(format!("ERR Unknown category '{:.128}'", repeated(category)).into())),
        _ => Err(wrong_form(args)),
    }
}

pub fn acl_help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &ACL_HELP))
}

const ACL_HELP: [&str; 7] = [
    "CAT [<category>]",
    "    List all commands that belong to <category>, or all command categories",
    "    when no category is specified.",
    "USERS",
    "    List all the registered usernames.",
    "WHOAMI",
    "    Return the current connection username.",
];

const MEMORY_HELP: [&str; 11] = [
    "DOCTOR",
    "    Return memory problems reports.",
    "MALLOC-STATS",
    "    Return internal statistics report from the memory allocator.",
    "PURGE",
    "    Attempt to purge dirty pages for reclamation by the allocator.",
    "STATS",
    "    Return information about the memory usage of the server.",
    "USAGE <key> [SAMPLES <count>]",
    "    Return memory in bytes used by <key> and its value. Nested values are",
    "    sampled up to <count> times (default: 5, 0 means sample all).",
];
