//! OBJECT and MEMORY USAGE: how a value is kept.

use super::super::call::{Call, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::store::{Encoding, Known, Value};
use super::super::text::integer;
use super::arguments::{SYNTAX, integer, is};
use super::describe::*;
use bytes::Bytes;
use futures::future::{LocalBoxFuture, ready};

pub const OBJECT: Spec = container("object").about(
    "generic",
    "2.2.3",
    "Depends on subcommand.",
    "A container for object introspection commands",
);
pub const OBJECT_ENCODING: Spec = command("object|encoding", 3, READ, SECOND, encoding).about(
    "generic",
    "2.2.3",
    "O(1)",
    "Inspect the internal encoding of a Redis object",
);
pub const OBJECT_REFCOUNT: Spec = command("object|refcount", 3, READ, SECOND, refcount).about(
    "generic",
    "2.2.3",
    "O(1)",
    "Get the number of references to the value of the key",
);
pub const OBJECT_IDLETIME: Spec = command("object|idletime", 3, READ, SECOND, idletime).about(
    "generic",
    "2.2.3",
    "O(1)",
    "Get the time since a Redis object was last accessed",
);
pub const OBJECT_FREQ: Spec = command("object|freq", 3, READ, SECOND, freq).about(
    "generic",
    "4.0.0",
    "O(1)",
    "Get the logarithmic access frequency counter of a Redis object",
);
pub const OBJECT_HELP: Spec = command("object|help", 2, ANYTIME, NO_KEY, help).about(
    "generic",
    "6.2.0",
    "O(1)",
    "Show helpful text about the different subcommands",
);
pub const MEMORY_USAGE: Spec = command("memory|usage", -3, READ, SECOND, usage).about(
    "server",
    "4.0.0",
    "O(N) where N is the number of samples.",
    "Estimate the memory usage of a key",
);

/// Values up to this many bytes are `embstr`.
const LONGEST_EMBEDDED: u64 = 44;

const COUNTS: &str = "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching \
    between policies at runtime LRU and LFU data will take some time to adjust.";
const COUNTS_NOT: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
    switching between policies at runtime LRU and LFU data will take some time to adjust.";

/// What the index tells of the key, or null.
fn tell(call: Call<'_>, answer: fn(Known) -> i64) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let known = call.store.known(call.db, &call.args[2]);
        Ok(known.map_or(Reply::Null, |known| Reply::Integer(answer(known))))
    })
}

/// Whether Redis would keep it as a string that has memory of its own.
pub fn tells_raw(value: &Value) -> bool {
    value.encoding == Encoding::Raw || value.bytes.len() as u64 > LONGEST_EMBEDDED
}

/// As Redis would keep the value: it is kept as bytes here, and what was done to it besides.
fn encoding(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[2];
        let encoding = |name: &'static str| Ok(Reply::Bulk(Bytes::from_static(name.as_bytes())));
        // No integer is as long.
        if call.store.known(call.db, key).is_some_and(|known| known.length > LONGEST_EMBEDDED) {
            return encoding("raw");
        }
        match call.store.read(call.db, key).await? {
            None => Ok(Reply::Null),
            Some(value) if tells_raw(&value) => encoding("raw"),
            Some(value) if value.encoding == Encoding::Plain && integer::parse(&value.bytes).is_some() => {
                encoding("int")
            }
            Some(_) => encoding("embstr"),
        }
    })
}

fn refcount(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    tell(call, |_| 1)
}

fn idletime(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    match call.store.settings().policy.counts() {
        true => Box::pin(ready(known_or(call, Err(COUNTS.into())))),
        false => tell(call, |known| known.idle.as_secs() as i64),
    }
}

fn freq(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    match call.store.settings().policy.counts() {
        true => tell(call, |known| i64::from(known.frequency)),
        false => Box::pin(ready(known_or(call, Err(COUNTS_NOT.into())))),
    }
}

/// The outcome, if there is such a key.
fn known_or(call: Call<'_>, outcome: Outcome) -> Outcome {
    if call.store.known(call.db, &call.args[2]).is_some() { outcome } else { Ok(Reply::Null) }
}

fn usage(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let mut options = call.args[3..].iter();
        while let Some(option) = options.next() {
            match options.next() {
                Some(samples) if is(option, "SAMPLES") && integer(samples)? >= 0 => {}
                _ => return Err(SYNTAX.into()),
            }
        }
        tell(call, |known| known.size as i64).await
    })
}

fn help(_: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    const LINES: &[&str] = &[
        "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "ENCODING <key>",
        "    The representation that Redis would choose for the value of <key>.",
        "FREQ <key>",
        "    How often <key> was accessed of late, as a logarithmic counter.",
        "IDLETIME <key>",
        "    Seconds since the last access to <key>.",
        "REFCOUNT <key>",
        "    References to the value of <key>: one.",
        "HELP",
        "    This text.",
    ];
    Box::pin(async { Ok(Reply::Array(LINES.iter().map(|line| Reply::Simple((*line).into())).collect())) })
}
