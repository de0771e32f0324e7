//! PING, ECHO, SELECT, HELLO, AUTH, RESET, QUIT.

use super::arguments::{SYNTAX, database, integer_or, is, repeated, text};
use super::state::{OK, Session, wrong_arity};
use crate::call::{Failure, Outcome};
use crate::reply::{Protocol, Reply};
use crate::server::REDIS_VERSION;
use annex_host::repeated;
use bytes::Bytes;
use std::time::Instant;

/// So much of a user's name is logged.
const LONGEST_USER: usize = 64;
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub fn ping(_: &mut Session, args: &[Bytes]) -> Outcome {
    match args {
        [_] => Ok(Reply::Simple("PONG".into())),
        // Not the argument itself, which may keep a larger read buffer alive.
        [_, text] => Ok(Reply::Bulk(Bytes::copy_from_slice(text))),
        _ => Err(wrong_arity("ping")),
    }
}

pub fn echo(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(Reply::Bulk(Bytes::copy_from_slice(&args[1])))
}

pub fn quit(session: &mut Session, _: &[Bytes]) -> Outcome {
    session.client.closing.set(true);
    OK
}

pub fn select(session: &mut Session, args: &[Bytes]) -> Outcome {
    session.client.db.set(database(&args[1], None)?);
    OK
}

pub fn reset(session: &mut Session, _: &[Bytes]) -> Outcome {
    session.reset();
    Ok(Reply::Simple("RESET".into()))
}

pub fn auth(session: &mut Session, args: &[Bytes]) -> Outcome {
    let (user, password): (&[u8], _) = match args {
        [_, _] if !session.server.config.needs_password() => {
            return Err(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                        your configuration is correct?"
                    .into(),
            );
        }
        [_, password] => (b"default", password),
        [_, user, password] => (user, password),
        _ => return Err(SYNTAX.into()),
    };
    session.authenticate(user, password)?;
    OK
}

pub fn hello(session: &mut Session, args: &[Bytes]) -> Outcome {
    let version = args.get(1).map(|version| {
        match integer_or(version, "ERR Protocol version is not an integer or out of range")? {
            2 => Ok(Protocol::Resp2),
            3 => Ok(Protocol::Resp3),
            _ => Err(Failure::from("NOPROTO unsupported protocol version")),
        }
    });
    let version = version.transpose()?;
    let mut options = args.get(2..).unwrap_or_default();
    while let [option, rest @ ..] = options {
        options = match rest {
            [user, password, rest @ ..] if is(option, "auth") => {
                session.authenticate(user, password)?;
                rest
            }
            [name, rest @ ..] if is(option, "setname") => {
                session.client.rename(name)?;
                rest
            }
            _ => return Err(Failure(format!("ERR Syntax error in HELLO option '{}'", repeated(option)).into())),
        };
    }
    if session.must_authenticate() {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> \
                    <pass> option can be used to authenticate the client and select the RESP protocol version at the \
                    same time"
                .into(),
        );
    }
    if let Some(version) = version {
        session.client.protocol.set(version);
    }
    let protocol = if session.client.protocol.get() == Protocol::Resp3 { 3 } else { 2 };
    Ok(Reply::Map(vec![
        (Reply::word("server"), Reply::word("redis")),
        (Reply::word("version"), Reply::word(REDIS_VERSION)),
        (Reply::word("proto"), Reply::Integer(protocol)),
        (Reply::word("id"), Reply::Integer(session.client.id as i64)),
        (Reply::word("mode"), Reply::word("standalone")),
        (Reply::word("role"), Reply::word("master")),
        (Reply::word("modules"), Reply::Array(Vec::new())),
    ]))
}

impl Session {
    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Result<(), Failure> {
        if !self.server.config.authenticates(user, password) {
            repeated!(
                WARN, "a client gave a wrong password" of "",
                "client {} at {} gave a wrong password for user '{}'",
                self.client.id, self.client.peer, text(&user[..user.len().min(LONGEST_USER)]).escape_debug()
            );
            self.client.penalty.set(self.server.guesses.wrong(self.client.origin, Instant::now()));
            return Err(WRONG_PASSWORD.into());
        }
        self.client.authenticated.set(true);
        Ok(())
    }
}
