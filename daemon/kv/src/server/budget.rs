//! What clients make annexd hold: an account of each, their sum, and what becomes of it when that
//! is too much.
//!
//! annexd's memory is locked, so all of this has one limit, `maxmemory-clients`. It counts what
//! clients have sent and is not done (query buffers, arguments, MULTI), what they were answered and
//! have not read, and values on the way to them.
//!
//! - A large value is brought here only when there is room for it. Until then its connection waits,
//!   behind those that asked before. While somebody waits, clients that hold much and have neither
//!   sent nor read anything for [`STUCK`] are closed, the largest first; if that does not help
//!   within [`LAST_PATIENCE`], any that hold much.
//! - If the sum is above the limit all the same, the largest clients are closed, as Redis evicts
//!   clients. CLIENT NO-EVICT spares one. If those that have not authenticated hold more than a
//!   [`STRANGERS`]th, they go first.

use super::memory::MemoryGrant;
use super::{Client, CommandId, Server, Statistics};
use crate::arguments::{integer, is};
use crate::call::Failure;
use crate::store::Db;
use crate::turn;
use annex_host::repeated;
use bytes::Bytes;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Values of fewer bytes don't wait: a connection has few of them under way, see `connection`.
const LARGE: usize = 64 << 10;
/// The part of the limit that clients may hold together that have not authenticated.
const STRANGERS: usize = 16;
/// How long somebody waits for room before those have to go who are [`STUCK`].
const PATIENCE: Duration = Duration::from_secs(1);
/// A client that has neither taken anything of what it is owed nor sent anything for so long is
/// stuck, unless it waits for us.
const STUCK: Duration = Duration::from_secs(2);
/// When nobody has got room for so long, some have to go who are not stuck.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

impl Server {
    /// Brings the sum up to date with a client's account. May close clients, this one too.
    pub fn weigh(&self, client: &Client) {
        let (before, now) = (client.held.get(), client.memory());
        if before == now {
            return;
        }
        client.held.set(now);
        let memory = &self.memory;
        memory.held.set(memory.held() - before + now);
        if now < before {
            memory.waiting.borrow().front().inspect(|first| first.client.wake());
        } else if let limit @ 1.. = self.config.live.client_memory.get()
            && memory.held() > limit
        {
            self.evict_clients(limit, |_| true);
        }
    }

    /// A client is gone, and all that it held.
    pub fn forget(&self, client: &Client) {
        self.memory.held.set(self.memory.held() - client.held.take());
        self.memory.leave(client);
    }

    /// Whether a client may have values of so many bytes brought here. An error: it never may.
    pub fn room_for(&self, client: &Rc<Client>, bytes: usize) -> Result<MemoryGrant, Failure> {
        if bytes < LARGE || self.config.live.client_memory.get() == 0 {
            return Ok(MemoryGrant::Granted);
        }
        if let Some(failure) = self.never_has_room_for(bytes) {
            return Err(failure);
        }
        if self.has_room_for(client, bytes) {
            self.memory.leave(client);
            return Ok(MemoryGrant::Granted);
        }
        self.memory.wait(client, bytes);
        Ok(MemoryGrant::Later)
    }

    /// Whether a client that waits may go on.
    pub fn has_room_for(&self, client: &Client, bytes: usize) -> bool {
        let (memory, limit) = (&self.memory, self.config.live.client_memory.get());
        let is_first = memory.waiting.borrow().front().is_none_or(|first| first.client.id == client.id);
        limit == 0 || (is_first && memory.held() + bytes <= limit)
    }

    /// What to say if values of so many bytes are too many for all clients together.
    pub fn never_has_room_for(&self, bytes: usize) -> Option<Failure> {
        let limit = self.config.live.client_memory.get();
        (limit > 0 && bytes > limit).then(|| {
            Failure(format!("OOM this command's values take {bytes} bytes, and maxmemory-clients is {limit}").into())
        })
    }

    /// Closes clients that are stuck while others wait for room.
    pub fn make_room(&self, now: Instant) {
        let waiting = self.memory.waiting.borrow();
        let Some(first) = waiting.front() else { return };
        let waited = now.duration_since(first.since);
        if waited < PATIENCE {
            return;
        }
        let may_go = |client: &Client| {
            client.held.get() >= LARGE
                && (waited >= LAST_PATIENCE || client.stuck_for(now) >= STUCK)
                // Who is owed nothing and waits is not to blame.
                && (client.output.get() >= LARGE || !waiting.iter().any(|waiting| waiting.client.id == client.id))
        };
        // Room for all of them: what one of them gets may be stuck next.
        let wanted = waiting.iter().map(|waiting| waiting.bytes).sum();
        self.evict_clients(self.config.live.client_memory.get().saturating_sub(wanted), may_go);
    }

    /// Closes some of those that `may` be closed, until the others hold no more than `most`.
    fn evict_clients(&self, most: usize, may: impl Fn(&Client) -> bool) {
        let clients = self.clients.borrow();
        let mut staying: Vec<&Rc<Client>> = clients.values().filter(|client| !client.is_killed()).collect();
        let sum = |of: &[&Rc<Client>]| of.iter().map(|client| client.held.get()).sum::<usize>();
        let mut held = sum(&staying);
        if held <= most {
            return;
        }
        let is_stranger = |client: &Client| self.config.needs_password() && !client.authenticated.get();
        let strangers = staying.iter().filter(|client| is_stranger(client)).map(|client| client.held.get());
        let strangers_first = strangers.sum::<usize>() > most / STRANGERS;
        let now = Instant::now();
        staying.retain(|client| !client.is_never_evicted.get() && may(client));
        staying.sort_by_cached_key(|client| {
            // Sizes by powers of two, as in Redis; among equals who is stuck for longest.
            (strangers_first && is_stranger(client), client.held.get().max(1).ilog2(), client.stuck_for(now))
        });
        while held > most
            && let Some(victim) = staying.pop()
        {
            held -= victim.held.get();
            repeated!(
                WARN, "a client was closed: it held too much memory" of "",
                "client {} at {} was closed: it held {} bytes, and all clients may hold {} together (maxmemory-clients)",
                victim.id, victim.peer, victim.held.get(), self.config.live.client_memory.get()
            );
            Statistics::add(&self.stats.evicted_clients, 1);
            victim.kill();
        }
    }

    /// Bytes of the values that a command brings here: to look at them, to change them or to answer
    /// with them.
    pub async fn expected(&self, id: CommandId, db: Db, args: &[Bytes]) -> usize {
        let command = self.commands.get(id);
        if !command.brings_values || (command.spec.name == "set" && !args.iter().skip(3).any(|word| is(word, "get"))) {
            return 0;
        }
        let keys = command.spec.key_positions(args.len()).filter_map(|at| args.get(at));
        let mut there = 0;
        for (nth, key) in keys.enumerate() {
            there += self.store.bytes(db, key);
            if nth % turn::STEP == turn::STEP - 1 {
                turn::pause().await;
            }
        }
        let there = there.min(part(command.spec.name, args));
        // What would be longer than a value may be is refused.
        let longest = self.config.live.max_bulk.get() as usize;
        there.max(Some(grown(command.spec.name, args)).filter(|grown| *grown <= longest).unwrap_or(0))
    }
}

/// The most that a command brings here of a value.
fn part(name: &str, args: &[Bytes]) -> usize {
    match (name, args) {
        ("getrange" | "substr", [_, _, first, last]) => match (integer(first), integer(last)) {
            (Ok(first @ 0..), Ok(last @ 0..)) => {
                usize::try_from(last.saturating_sub(first).saturating_add(1)).unwrap_or(0)
            }
            _ => usize::MAX,
        },
        _ => usize::MAX,
    }
}

/// How long a value becomes at least that is written to behind its end.
fn grown(name: &str, args: &[Bytes]) -> usize {
    let number = |word: &[u8]| integer(word).ok().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    match (name, args) {
        ("setrange", [_, _, offset, value]) => number(offset).saturating_add(value.len()),
        ("setbit", [_, _, offset, _]) => number(offset) / 8 + 1,
        ("bitfield", [_, _, operations @ ..]) => {
            let end = |words: &[Bytes]| match words {
                [what, kind, offset] if is(what, "set") || is(what, "incrby") => match offset.strip_prefix(b"#") {
                    Some(nth) => number(nth).saturating_mul(number(kind.get(1..).unwrap_or_default())) / 8 + 1,
                    None => number(offset) / 8 + 1,
                },
                _ => 0,
            };
            operations.windows(3).map(end).max().unwrap_or(0)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown_by(call: &str) -> usize {
        let args: Vec<Bytes> = call.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        grown(&args[0].clone().escape_ascii().to_string(), &args)
    }

    #[test]
    fn what_is_written_far_behind_the_end_is_counted() {
        assert_eq!(grown_by("setrange k 1000 abc"), 1003);
        assert_eq!(grown_by("setbit k 800 1"), 101);
        assert_eq!(grown_by("bitfield k get u8 8000 set u8 1600 7 incrby i16 #600 1"), 1201);
        let part_of = |call: &str| {
            let args: Vec<Bytes> = call.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
            part("getrange", &args)
        };
        assert_eq!((part_of("getrange k 10 19"), part_of("getrange k 5 1")), (10, 0));
        assert_eq!((part_of("getrange k 0 -1"), part_of("getrange k 0 x")), (usize::MAX, usize::MAX));
        assert_eq!((grown_by("setrange k -1 x"), grown_by("setbit k x 1"), grown_by("get k")), (1, 1, 0));
    }
}
