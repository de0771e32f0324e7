//! COMMAND: what this server can do, for clients that route or complete by it.

use super::arguments::{SYNTAX, help as help_of, is};
use super::state::Session;
use crate::call::{Failure, Outcome};
use crate::commands::fields;
use crate::reply::Reply;
use crate::server::{Command, Commands};
use crate::spec::Spec;
use crate::text::glob;
use bytes::Bytes;

pub fn all(session: &mut Session, _: &[Bytes]) -> Outcome {
    let commands = &session.server.commands;
    Ok(Reply::Array(commands.top().map(|command| describe(commands, command)).collect()))
}

pub fn count(session: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Integer(session.server.commands.top().count() as i64))
}

pub fn info(session: &mut Session, args: &[Bytes]) -> Outcome {
    if args.len() == 2 {
        return all(session, args);
    }
    let commands = &session.server.commands;
    let one = |name: &Bytes| commands.by_full_name(name).map_or(Reply::Null, |id| describe(commands, commands.get(id)));
    Ok(Reply::Array(args[2..].iter().map(one).collect()))
}

pub fn docs(session: &mut Session, args: &[Bytes]) -> Outcome {
    let commands = &session.server.commands;
    let document = |command| (name_of(command), documentation(commands, command));
    Ok(Reply::Map(match &args[2..] {
        [] => commands.top().map(document).collect(),
        names => {
            let known = names.iter().filter_map(|name| commands.by_full_name(name));
            known.map(|id| document(commands.get(id))).collect()
        }
    }))
}

pub fn list(session: &mut Session, args: &[Bytes]) -> Outcome {
    let commands = session.server.commands.iter();
    Ok(Reply::Array(match &args[2..] {
        [] => commands.map(name_of).collect(),
        [filter, kind, _] if is(filter, "filterby") && is(kind, "module") => Vec::new(),
        [filter, kind, category] if is(filter, "filterby") && is(kind, "aclcat") => {
            let category = [b"@", &category.to_ascii_lowercase()[..]].concat();
            let has = |command: &&Command| categories(command.spec).iter().any(|known| known.as_bytes() == category);
            commands.filter(has).map(name_of).collect()
        }
        [filter, kind, pattern] if is(filter, "filterby") && is(kind, "pattern") => {
            let pattern = pattern.to_ascii_lowercase();
            commands.filter(|command| glob::matches(&pattern, command.spec.name.as_bytes())).map(name_of).collect()
        }
        _ => return Err(SYNTAX.into()),
    }))
}

pub fn keys(session: &mut Session, args: &[Bytes]) -> Outcome {
    let found = keys_of(session, &args[2..])?;
    Ok(Reply::Array(found.1.into_iter().map(Reply::Bulk).collect()))
}

pub fn keys_and_flags(session: &mut Session, args: &[Bytes]) -> Outcome {
    let (spec, keys) = keys_of(session, &args[2..])?;
    let call = &args[2..];
    let is_set_get = || call.iter().skip(3).any(|option| is(option, "get"));
    let with_flags = |(nth, key)| {
        let flags = match spec.name {
            "bitfield" if !fields::may_write(call) => &["RO", "access"][..],
            "bitfield" => &["RW", "access", "update"],
            "set" if is_set_get() => &["RW", "access", "update"],
            "set" => &["OW", "update"],
            _ => access(spec, nth),
        };
        Reply::Array(vec![Reply::Bulk(key), words(flags)])
    };
    Ok(Reply::Array(keys.into_iter().enumerate().map(with_flags).collect()))
}

fn keys_of(session: &Session, call: &[Bytes]) -> Result<(&'static Spec, Vec<Bytes>), Failure> {
    let commands = &session.server.commands;
    let spec = commands.get(commands.find(call).ok_or("ERR Invalid command specified")?).spec;
    if !spec.has_keys() {
        return Err("ERR The command has no key arguments".into());
    }
    if !spec.takes(call.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let keys: Vec<Bytes> = spec.key_positions(call.len()).filter_map(|at| call.get(at).cloned()).collect();
    if keys.is_empty() {
        return Err("ERR Invalid arguments specified for command".into());
    }
    Ok((spec, keys))
}

pub fn help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &COMMAND_HELP))
}

fn name_of(command: &Command) -> Reply {
    Reply::word(command.spec.name)
}

/// One command's ten fields.
fn describe(commands: &Commands, command: &Command) -> Reply {
    let spec = command.spec;
    Reply::Array(vec![
        name_of(command),
        Reply::Integer(spec.arity.into()),
        words(&spec.flags.names()),
        Reply::Integer(spec.keys.first.into()),
        Reply::Integer(spec.keys.last.into()),
        Reply::Integer(spec.keys.step.into()),
        words(&categories(spec)),
        Reply::Set(Vec::new()),
        Reply::Set(key_specification(spec).into_iter().collect()),
        Reply::Array(commands.children(command).map(|child| describe(commands, child)).collect()),
    ])
}

fn documentation(commands: &Commands, command: &Command) -> Reply {
    let spec = command.spec;
    let mut fields = vec![
        (Reply::word("summary"), Reply::word(spec.summary)),
        (Reply::word("since"), Reply::word(spec.since)),
        (Reply::word("group"), Reply::word(spec.group)),
    ];
    if !spec.complexity.is_empty() {
        fields.push((Reply::word("complexity"), Reply::word(spec.complexity)));
    }
    if !command.children.is_empty() {
        let children = commands.children(command).map(|child| (name_of(child), documentation(commands, child)));
        fields.push((Reply::word("subcommands"), Reply::Map(children.collect())));
    }
    Reply::Map(fields)
}

/// As ACL rules would name them.
fn categories(spec: &Spec) -> Vec<&'static str> {
    let group = match spec.group {
        "generic" => Some("@keyspace"),
        "string" => Some("@string"),
        "bitmap" => Some("@bitmap"),
        "connection" => Some("@connection"),
        "transactions" => Some("@transaction"),
        _ => None,
    };
    let flags = &spec.flags;
    let all = [
        (flags.write, "@write"),
        (flags.readonly, "@read"),
        (flags.admin, "@admin"),
        (flags.admin, "@dangerous"),
        (flags.fast, "@fast"),
        (!flags.fast, "@slow"),
    ];
    group.into_iter().chain(all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name)).collect()
}

/// The category names that [`categories`] can give.
pub const CATEGORIES: [&str; 11] = [
    "keyspace",
    "read",
    "write",
    "string",
    "bitmap",
    "admin",
    "fast",
    "slow",
    "dangerous",
    "connection",
    "transaction",
];

/// What a command does with its nth key.
fn access(spec: &Spec, nth: usize) -> &'static [&'static str] {
    match (spec.name, nth) {
        ("object|encoding" | "object|refcount" | "object|idletime" | "object|freq" | "memory|usage", _) => &["RO"],
        ("strlen" | "exists" | "type" | "touch" | "watch", _) => &["RO"],
        ("set", _) => &["RW", "access", "update", "variable_flags"],
        ("bitfield", _) => &["RW", "update", "access", "variable_flags"],
        ("setnx" | "msetnx", _) | ("renamenx", 1) => &["OW", "insert"],
        ("setex" | "psetex" | "mset", _) | ("bitop", 0) | ("rename" | "copy", 1) => &["OW", "update"],
        ("getdel", _) | ("rename" | "renamenx", _) => &["RW", "access", "delete"],
        ("append", _) => &["RW", "insert"],
        ("setrange" | "expire" | "pexpire" | "expireat" | "pexpireat" | "persist", _) => &["RW", "update"],
        ("del" | "unlink", _) => &["RM", "delete"],
        ("bitop" | "copy", _) => &["RO", "access"],
        _ if spec.flags.write => &["RW", "access", "update"],
        _ => &["RO", "access"],
    }
}

fn words(words: &[&'static str]) -> Reply {
    Reply::Set(words.iter().map(|word| Reply::Simple((*word).into())).collect())
}

/// Where a command's keys are. Commands whose keys are not used alike have one specification here,
/// that of the first.
fn key_specification(spec: &Spec) -> Option<Reply> {
    let keys = spec.keys;
    let map = |kind: &'static str, spec: Vec<(Reply, Reply)>| {
        Reply::Map(vec![(Reply::word("type"), Reply::word(kind)), (Reply::word("spec"), Reply::Map(spec))])
    };
    let last = if keys.last < 0 { keys.last } else { keys.last - keys.first };
    (keys.first > 0).then(|| {
        Reply::Map(vec![
            (Reply::word("flags"), words(access(spec, 0))),
            (
                Reply::word("begin_search"),
                map("index", vec![(Reply::word("index"), Reply::Integer(keys.first.into()))]),
            ),
            (
                Reply::word("find_keys"),
                map(
                    "range",
                    vec![
                        (Reply::word("lastkey"), Reply::Integer(last.into())),
                        (Reply::word("keystep"), Reply::Integer(keys.step.into())),
                        (Reply::word("limit"), Reply::Integer(0)),
                    ],
                ),
            ),
        ])
    })
}

const COMMAND_HELP: [&str; 18] = [
    "(no subcommand)",
    "    Return details about all Redis commands.",
    "COUNT",
    "    Return the total number of commands in this Redis server.",
    "LIST",
    "    Return a list of all commands in this Redis server.",
    "INFO [<command-name> ...]",
    "    Return details about multiple Redis commands.",
    "    If no command names are given, documentation details for all",
    "    commands are returned.",
    "DOCS [<command-name> ...]",
    "    Return documentation details about multiple Redis commands.",
    "    If no command names are given, documentation details for all",
    "    commands are returned.",
    "GETKEYS <full-command>",
    "    Return the keys from a full Redis command.",
    "GETKEYSANDFLAGS <full-command>",
    "    Return the keys and the access flags from a full Redis command.",
];
