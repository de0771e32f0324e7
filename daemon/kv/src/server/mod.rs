//! The server: what all connections share, and how a command on keys is run.
//!
//! - [`Server`]: what all connections share.
//! - [`Client`], `address`: what each of them shows to the others.
//! - [`Hooks`]: what the rest of the program tells about itself.
//! - `commands`: the table of commands.
//! - `reading`: reads that are answered at once. `patience`: reads that take long do not keep
//!   writers waiting.
//! - [`Memory`]: what clients make annexd hold, and what becomes of it when that is too much.
//! - [`Guesses`]: wrong passwords.
//! - `parcel`, `io_threads`: replies that another thread sends. `stream`: a socket.
//! - [`Config`], `parameters`: CONFIG.
//! - `statistics`, `histogram`, `slow`, `latency`: what INFO, SLOWLOG and LATENCY tell.
//! - `pause`: CLIENT PAUSE.
//!
//! Everything but the sending of replies on a busy server runs on one thread, within a `LocalSet`
//! of a current-thread runtime, and so is `Rc` and `RefCell`. A value is a round trip to another
//! machine: a pipeline is fast only if its commands are on their way together. What must not be
//! together is kept apart by [`locks`](crate::locks) on keys, which are asked for in the order of
//! the requests.

mod address;
mod budget;
mod client;
mod commands;
mod config;
mod guesses;
mod histogram;
mod hooks;
mod io_threads;
mod latency;
mod memory;
mod parameters;
mod parcel;
mod patience;
mod pause;
mod reading;
mod slow;
mod statistics;
mod stream;

pub use address::{Address, Origin};
pub use client::Client;
pub use commands::{Command, CommandId, Commands};
pub use config::{Config, OnChange, SetError};
pub use guesses::Guesses;
pub use hooks::{Facts, Hooks};
pub use io_threads::IoThreads;
pub use latency::Latency;
pub use memory::{Memory, MemoryGrant};
pub use parcel::{Parcel, Socket, write};
pub use patience::Running;
pub use pause::{Pause, Paused};
pub use slow::SlowLog;
pub use statistics::Statistics;
pub use stream::Stream;

use crate::call::{Call, Failure, Outcome};
use crate::locks::{Locks, Mode, Ticket};
use crate::store::{Db, Store};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The Redis whose behaviour this is.
pub const REDIS_VERSION: &str = "7.0.15";

/// What all connections share.
pub struct Server {
    pub store: Store,
    pub hooks: Hooks,
    pub commands: Commands,
    pub config: Config,
    pub locks: Locks,
    pub stats: Statistics,
    pub slow: SlowLog,
    pub latency: Latency,
    pub pause: Pause,
    pub io_threads: IoThreads,
    pub memory: Memory,
    pub guesses: Guesses,
    pub clients: RefCell<BTreeMap<u64, Rc<Client>>>,
    pub run_id: String,
    pub started: Instant,
    /// SHUTDOWN was called.
    pub shut_down: Notify,
    next_client: Cell<u64>,
}

impl Server {
    pub fn new(store: Store, commands: Commands, config: Config, hooks: Hooks, io_threads: IoThreads) -> Rc<Server> {
        Rc::new(Server {
            store,
            hooks,
            commands,
            config,
            locks: Locks::default(),
            stats: Statistics::default(),
            slow: SlowLog::default(),
            latency: Latency::default(),
            pause: Pause::default(),
            io_threads,
            memory: Memory::default(),
            guesses: Guesses::default(),
            clients: RefCell::default(),
            run_id: format!("{:032x}{:08x}", rand::random::<u128>(), rand::random::<u32>()),
            started: Instant::now(),
            shut_down: Notify::new(),
            next_client: Cell::new(1),
        })
    }

    /// The number of a new client.
    pub fn next_client(&self) -> u64 {
        self.next_client.replace(self.next_client.get() + 1)
    }

    /// Asks for the locks a command needs. It has its place among the others when this returns.
    pub fn lock(&self, id: CommandId, args: &[Bytes]) -> Ticket {
        let spec = self.commands.get(id).spec;
        let mode = match (spec.flags.write, spec.is_deferred(args.len())) {
            (true, true) => Mode::Deferred,
            (true, false) => Mode::Write,
            (false, _) => Mode::Read,
        };
        self.locks.keys(spec.keys_of(args), mode)
    }

    /// The same for one that has many keys or runs alone, which is not asked for in one step.
    pub async fn lock_slowly(&self, id: CommandId, args: &[Bytes]) -> Ticket {
        let spec = self.commands.get(id).spec;
        if spec.alone {
            return self.locks.everything_soon().await;
        }
        let mode = if spec.flags.write { Mode::Write } else { Mode::Read };
        self.locks.together(spec.keys_of(args), mode, true).await
    }

    /// Runs a command on keys, whose locks are held: the ticket's, or else everything.
    pub async fn run(
        &self,
        id: CommandId,
        client: &Client,
        db: Db,
        args: &[Bytes],
        ticket: Option<&Ticket>,
    ) -> Outcome {
        let Some(handler) = self.commands.get(id).handler() else {
            return Err(Failure("ERR this command can't be run here".into()));
        };
        let begun = Instant::now();
        let outcome = match ticket.filter(|ticket| ticket.is_read()) {
            Some(ticket) => self.read((id, handler), client, db, args, ticket).await,
            None => handler(Call { ticket, ..self.call(db, args) }).await,
        };
        self.account(id, client, args, begun.elapsed(), &outcome);
        outcome
    }

    fn call<'a>(&'a self, db: Db, args: &'a [Bytes]) -> Call<'a> {
        Call { store: &self.store, db, args, longest: self.config.live.max_bulk.get(), ticket: None }
    }

    /// Counts a command that has run.
    pub fn account(&self, id: CommandId, client: &Client, args: &[Bytes], took: Duration, outcome: &Outcome) {
        let command = self.commands.get(id);
        let stats = &command.stats;
        stats.calls.set(stats.calls.get() + 1);
        stats.time.set(stats.time.get() + took);
        self.stats.commands.set(self.stats.commands.get() + 1);
        if let Err(failure) = outcome {
            stats.failed.set(stats.failed.get() + 1);
            self.stats.count_error(failure);
        }
        let live = &self.config.live;
        if live.tracks_latency.get() {
            stats.latency.borrow_mut().get_or_insert_default().record(took);
        }
        if live.slow.get().is_some_and(|slow| took >= slow) && !matches!(command.spec.name, "exec") {
            self.slow.push(command.spec.name, args, took, client, live.slow_entries.get());
        }
        if live.latency.get().is_some_and(|latency| took >= latency) {
            self.latency.record(if command.spec.flags.fast { "fast-command" } else { "command" }, took);
        }
    }

    /// Forgets what INFO, but not the logs, has counted.
    pub fn reset_statistics(&self) {
        self.stats.reset();
        self.store.reset_statistics();
        self.commands.iter().for_each(|command| command.stats.reset());
    }
}
