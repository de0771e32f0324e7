//! SLOWLOG's memory: the commands that took longest lately. A command on keys counts from when it
//! has their locks.

use super::client::Client;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Of an entry, as in Redis.
const MAX_ARGS: usize = 32;
const MAX_ARGUMENT: usize = 128;

#[derive(Clone)]
pub struct SlowEntry {
    pub id: i64,
    /// Seconds since 1970.
    pub time: i64,
    pub took: Duration,
    pub args: Vec<Bytes>,
    pub peer: String,
    pub name: Bytes,
}

#[derive(Default)]
pub struct SlowLog {
    /// The latest first.
    entries: RefCell<VecDeque<SlowEntry>>,
    next: Cell<i64>,
}

impl SlowLog {
    pub fn push(&self, command: &str, args: &[Bytes], took: Duration, client: &Client, keep: usize) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let (args, peer) = (shorten(command, args), client.peer.to_string());
        let entry = SlowEntry { id: self.next.get(), time, took, args, peer, name: client.name.borrow().clone() };
        self.next.set(entry.id + 1);
        let mut entries = self.entries.borrow_mut();
        entries.push_front(entry);
        entries.truncate(keep);
    }

    pub fn latest(&self, count: usize) -> Vec<SlowEntry> {
        self.entries.borrow().iter().take(count).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&self) {
        self.entries.borrow_mut().clear();
    }
}

/// Long arguments and many of them are cut, secrets are not kept at all.
fn shorten(command: &str, args: &[Bytes]) -> Vec<Bytes> {
    let is_secret = |at: usize| match command {
        "auth" => at > 0,
        "hello" => args[..at].iter().rev().take(2).any(|before| before.eq_ignore_ascii_case(b"auth")),
        "config|set" => at > 2 && args[at - 1].eq_ignore_ascii_case(b"requirepass"),
        _ => false,
    };
    let kept = if args.len() > MAX_ARGS { MAX_ARGS - 1 } else { args.len() };
    let mut short: Vec<Bytes> = (0..kept)
        .map(|at| {
            let argument = &args[at];
            if is_secret(at) {
                Bytes::from_static(b"(redacted)")
            } else if argument.len() > MAX_ARGUMENT {
                let mut cut = argument[..MAX_ARGUMENT].to_vec();
                cut.extend_from_slice(format!("... ({} more bytes)", argument.len() - MAX_ARGUMENT).as_bytes());
                cut.into()
            } else {
                Bytes::copy_from_slice(argument)
            }
        })
        .collect();
    if kept < args.len() {
        short.push(format!("... ({} more arguments)", args.len() - kept).into());
    }
    short
}
