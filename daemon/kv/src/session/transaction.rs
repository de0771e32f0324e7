//! What a connection gathers within MULTI, and the keys that it watches.

use crate::arguments::{weight, weight_of_all};
use crate::blocking;
use crate::server::CommandId;
use crate::store::{Db, Watch};
use bytes::Bytes;

/// What a watched key takes besides its name.
const WATCH: usize = 128;

#[derive(Default)]
pub struct Transaction {
    /// `None`: not within MULTI.
    pub(super) commands: Option<Vec<(CommandId, Vec<Bytes>)>>,
    /// Which commands are among them.
    kinds: Vec<CommandId>,
    bytes: usize,
    /// A command could not be queued, so EXEC won't run the others either.
    pub(super) refused: bool,
    pub(super) watched: Vec<(Db, Bytes, Watch)>,
}

impl Transaction {
    pub fn is_open(&self) -> bool {
        self.commands.is_some()
    }

    pub fn queued(&self) -> Option<usize> {
        self.commands.as_ref().map(Vec::len)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What was refused can't be part of it.
    pub fn refuse(&mut self) {
        self.refused |= self.is_open();
    }

    /// Takes a command, unless it is clear already that it won't run.
    pub fn queue(&mut self, id: CommandId, args: Vec<Bytes>) {
        let refused = self.refused;
        if let Some(commands) = self.commands.as_mut().filter(|_| !refused) {
            // Arguments of their own: one may keep a larger read buffer alive.
            let args: Vec<Bytes> = args.iter().map(|argument| Bytes::copy_from_slice(argument)).collect();
            self.bytes += weight_of_all(&args) + size_of::<(CommandId, Vec<Bytes>)>();
            commands.push((id, args));
            if !self.kinds.contains(&id) {
                self.kinds.push(id);
            }
        }
    }

    /// Watches a key, if it is not watched already.
    pub fn watch(&mut self, db: Db, key: &[u8], watch: impl FnOnce() -> Watch) {
        if !self.watched.iter().any(|(known_db, known, _)| *known_db == db && known == key) {
            self.watched.push((db, Bytes::copy_from_slice(key), watch()));
            self.bytes += WATCH + weight(key);
        }
    }

    pub fn unwatch(&mut self) {
        let watched = self.watched.drain(..).map(|(_, key, _)| WATCH + weight(&key));
        self.bytes -= watched.sum::<usize>();
    }

    /// Whether a queued command is such a one.
    pub fn has(&self, which: impl Fn(CommandId) -> bool) -> bool {
        self.kinds.iter().any(|id| which(*id))
    }

    /// Gives back what it holds.
    pub fn let_go(self) {
        blocking::let_go(self.bytes, self.commands);
    }
}
