//! What others may know of a connection: CLIENT LIST shows it, CLIENT KILL and the limits act on
//! it.

use super::address::{Address, Origin};
use crate::call::Failure;
use crate::reply::Protocol;
use crate::store::Db;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// What each connection takes besides what it is sent and sends.
const CONNECTION: usize = 4096;

/// A connection as the rest of the server sees it.
pub struct Client {
    pub id: u64,
    pub peer: Address,
    pub local: Address,
    pub origin: Origin,
    pub created: Instant,
    pub last_active: Cell<Instant>,
    pub name: RefCell<Bytes>,
    pub db: Cell<Db>,
    pub protocol: Cell<Protocol>,
    /// Commands queued by MULTI; `None` outside of one.
    pub queued: Cell<Option<usize>>,
    pub queued_bytes: Cell<usize>,
    pub blocked: Cell<bool>,
    /// Commands on keys under way, but for deferred SETs whose records are in the log.
    pub running: Cell<usize>,
    /// When the last of them was over.
    pub served: Cell<Instant>,
    /// One of them has given its locks back: none begins before it is over.
    pub lags: Cell<bool>,
    pub is_never_evicted: Cell<bool>,
    pub closing: Cell<bool>,
    pub last_command: Cell<&'static str>,
    /// It has given the password, or came when there was none.
    pub authenticated: Cell<bool>,
    /// Since when it is connected, or must authenticate again.
    pub stranger_since: Cell<Instant>,
    /// What it has sent and is not parsed, the room behind that, and all memory of its read buffer.
    pub input: Cell<usize>,
    pub input_room: Cell<usize>,
    pub input_memory: Cell<usize>,
    /// Arguments of commands that have not begun or are under way.
    pub arguments: Cell<usize>,
    /// Answers that are not sent, and values on the way to be.
    pub output: Cell<usize>,
    pub output_pieces: Cell<usize>,
    /// It is sent a large value, piece by piece.
    pub is_streamed_to: Cell<bool>,
    /// Answers of a transaction under way.
    pub exec_output: Cell<usize>,
    /// What it has in [`Memory`](super::Memory).
    pub held: Cell<usize>,
    /// Since when it has taken nothing of what it is owed; `None`: it is owed nothing.
    pub stuck_since: Cell<Option<Instant>>,
    /// The answer to a wrong password waits for so long.
    pub penalty: Cell<Duration>,
    /// Since when the output is above the soft limit.
    pub over_limit: Cell<Option<Instant>>,
    /// The connection has been quiet, and need not keep room for its next request.
    pub is_quiet: Cell<bool>,
    killed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Client {
    pub fn new(id: u64, peer: Address, local: Address, origin: Origin) -> Client {
        let now = Instant::now();
        Client {
            id,
            peer,
            local,
            origin,
            created: now,
            last_active: Cell::new(now),
            name: RefCell::default(),
            db: Cell::new(Db(0)),
            protocol: Cell::default(),
            queued: Cell::default(),
            queued_bytes: Cell::default(),
            blocked: Cell::default(),
            running: Cell::default(),
            served: Cell::new(now),
            lags: Cell::default(),
            is_never_evicted: Cell::default(),
            closing: Cell::default(),
            last_command: Cell::new("NULL"),
            authenticated: Cell::default(),
            stranger_since: Cell::new(now),
            input: Cell::default(),
            input_room: Cell::default(),
            input_memory: Cell::default(),
            arguments: Cell::default(),
            output: Cell::default(),
            output_pieces: Cell::default(),
            is_streamed_to: Cell::default(),
            exec_output: Cell::default(),
            held: Cell::default(),
            stuck_since: Cell::default(),
            penalty: Cell::default(),
            over_limit: Cell::default(),
            is_quiet: Cell::default(),
            killed: Cell::default(),
            waker: RefCell::default(),
        }
    }

    /// Closes the connection: what is under way comes to its end, what is not sent is not sent any
    /// more.
    pub fn kill(&self) {
        self.killed.set(true);
        self.wake();
    }

    /// Lets the connection look at what has been set here.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub fn is_killed(&self) -> bool {
        self.killed.get()
    }

    /// Who is woken by [`Client::wake`].
    pub fn watch(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(known) if known.will_wake(context.waker()) => {}
            known => *known = Some(context.waker().clone()),
        }
    }

    /// The memory that it makes annexd hold.
    pub fn memory(&self) -> usize {
        CONNECTION
            + self.name.borrow().len()
            + self.input_memory.get()
            + self.arguments.get()
            + self.queued_bytes.get()
            + self.output.get()
            + self.exec_output.get()
    }

    /// Whether it keeps memory for its next request or answer.
    pub fn has_idle_memory(&self) -> bool {
        self.input_memory.get() + self.input_room.get() + self.output.get() > self.input.get()
            || self.held.get() != self.memory()
    }

    /// For how long it has taken nothing of what it is owed or, if it is owed nothing, sent
    /// nothing. While its commands are under way it is not for the client to do anything, however
    /// long they have waited or take.
    pub fn stuck_for(&self, now: Instant) -> Duration {
        match self.stuck_since.get() {
            Some(since) => now.duration_since(since),
            None if self.running.get() > 0 => Duration::ZERO,
            None => now.duration_since(self.last_active.get().max(self.served.get())),
        }
    }

    /// Names are shown in CLIENT LIST, whose fields blanks separate.
    pub fn rename(&self, name: &Bytes) -> Result<(), Failure> {
        if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
            return Err("ERR Client names cannot contain spaces, newlines or special characters.".into());
        }
        self.name.replace(name.clone());
        Ok(())
    }

    /// The client's line of CLIENT LIST, without its end.
    pub fn line(&self) -> String {
        let mut flags = String::new();
        let states = [
            (self.queued.get().is_some(), 'x'),
            (self.blocked.get(), 'b'),
            (self.closing.get(), 'c'),
            (self.killed.get(), 'A'),
            (matches!(self.peer, Address::Unix(_)), 'U'),
            (self.is_never_evicted.get(), 'e'),
        ];
        flags.extend(states.iter().filter(|(is, _)| *is).map(|(_, flag)| flag));
        if flags.is_empty() {
            flags.push('N');
        }
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 multi={} qbuf={} \
             qbuf-free={} argv-mem={} multi-mem={} rbs=0 rbp=0 obl={} oll={} omem={} tot-mem={} events=r cmd={} \
             user=default redir=-1 resp={}",
            self.id,
            self.peer,
            self.local,
            String::from_utf8_lossy(&self.name.borrow()),
            self.created.elapsed().as_secs(),
            self.last_active.get().elapsed().as_secs(),
            flags,
            self.db.get().0,
            self.queued.get().map_or(-1, |count| count as i64),
            self.input.get(),
            self.input_room.get(),
            self.arguments.get(),
            self.queued_bytes.get(),
            self.output.get(),
            self.output_pieces.get(),
            self.output.get(),
            self.memory(),
            self.last_command.get(),
            match self.protocol.get() {
                Protocol::Resp2 => 2,
                Protocol::Resp3 => 3,
            },
        )
    }
}
