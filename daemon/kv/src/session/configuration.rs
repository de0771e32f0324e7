//! CONFIG.

use super::arguments::{SYNTAX, help as help_of, repeated, text};
use super::state::{OK, Session};
use crate::call::{Failure, Outcome};
use crate::reply::Reply;
use crate::server::SetError;
use crate::text::glob;
use bytes::Bytes;
use std::collections::BTreeMap;

pub fn get(session: &mut Session, args: &[Bytes]) -> Outcome {
    let config = &session.server.config;
    // By their names in lower case, under the name that was asked for first.
    let mut found = BTreeMap::new();
    for asked in &args[2..] {
        let lower = asked.to_ascii_lowercase();
        if asked.iter().any(|byte| b"[*?".contains(byte)) {
            let names = config.names().filter(|name| glob::matches(&lower, name.as_bytes()));
            for name in names {
                found.entry(name.as_bytes().to_vec()).or_insert_with(|| name.into());
            }
        } else {
            found.entry(lower).or_insert_with(|| text(asked));
        }
    }
    let pairs = found.into_values().filter_map(|name| Some((config.get(&name)?, name)));
    Ok(Reply::Map(pairs.map(|(value, name)| (Reply::bulk(name), Reply::bulk(value))).collect()))
}

pub fn set(session: &mut Session, args: &[Bytes]) -> Outcome {
    if !args.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    let pairs: Vec<(String, String)> = args[2..].chunks(2).map(|pair| (repeated(&pair[0]), text(&pair[1]))).collect();
    let text = match session.server.config.set(&pairs) {
        Ok(()) => return OK,
        Err(SetError::Unknown(name)) => {
            format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
        }
        Err(SetError::Refused { parameter, why }) => {
            format!("ERR CONFIG SET failed (possibly related to argument '{parameter}') - {why}")
        }
    };
    Err(Failure(text.into()))
}

pub fn reset_statistics(session: &mut Session, _: &[Bytes]) -> Outcome {
    session.server.reset_statistics();
    OK
}

pub fn rewrite(_: &mut Session, _: &[Bytes]) -> Outcome {
    Err("ERR The server is running without a config file".into())
}

pub fn help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &CONFIG_HELP))
}

const CONFIG_HELP: [&str; 8] = [
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Set the configuration <directive> to <value>.",
    "RESETSTAT",
    "    Reset statistics reported by the INFO command.",
    "REWRITE",
    "    Rewrite the configuration file.",
];
