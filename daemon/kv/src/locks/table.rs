//! All locks: those of keys that somebody holds or waits for, and those that stand for more than a
//! key.

use super::lock::{Lock, Mode, State};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::cell::RefCell;
use std::rc::Rc;

/// Tables that the keys' locks are spread over, so that none of them takes long to grow.
const SHARDS: usize = 256;
/// A table that has grown beyond this is given back when it is empty.
const KEPT: usize = 64;

/// Which lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    Everything,
    /// Those who look at all keys, and those who write several: neither is to see half of the
    /// other.
    Survey,
    /// Those who ask for a crowd of keys: one at a time.
    Crowd,
    /// By the key's hash. Keys that have the same one share a lock.
    Key(u64),
}

pub struct Table {
    everything: Lock,
    survey: Lock,
    crowd: Lock,
    keys: Vec<HashTable<KeyLock>>,
    /// In the order in which they asked.
    crowds: Vec<Rc<Crowd>>,
}

struct KeyLock {
    hash: u64,
    lock: Lock,
}

/// Many keys, for which one ticket has asked. Their locks are made only when somebody else asks
/// for one.
pub struct Crowd {
    keys: HashTable<u64>,
    pub mode: Mode,
    pub state: Rc<State>,
    /// Those whose locks were made.
    met: RefCell<Vec<u64>>,
}

impl Crowd {
    pub fn new(most: usize, mode: Mode) -> Crowd {
        Crowd { keys: HashTable::with_capacity(most), mode, state: Rc::default(), met: RefCell::default() }
    }

    pub fn add(&mut self, hash: u64) {
        let _ = self.keys.entry(hash, |known| *known == hash, |known| *known).or_insert(hash);
    }

    fn has(&self, hash: u64) -> bool {
        self.keys.find(hash, |known| *known == hash).is_some()
    }

    /// Asks for one of its keys' locks.
    fn meet(&self, hash: u64, lock: &mut Lock) {
        lock.ask(self.mode, || self.state.clone());
        self.met.borrow_mut().push(hash);
    }
}

impl Default for Table {
    fn default() -> Table {
        Table {
            everything: Lock::default(),
            survey: Lock::default(),
            crowd: Lock::default(),
            keys: (0..SHARDS).map(|_| HashTable::new()).collect(),
            crowds: Vec::new(),
        }
    }
}

fn shard_of(hash: u64) -> usize {
    // Neither the first bits nor the last ones: within a shard these tell its keys apart.
    (hash >> 40) as usize % SHARDS
}

impl Table {
    pub fn ask(&mut self, spot: Spot, mode: Mode, ticket: impl FnOnce() -> Rc<State>) {
        match spot {
            Spot::Everything => self.everything.ask(mode, ticket),
            Spot::Survey => self.survey.ask(mode, ticket),
            Spot::Crowd => self.crowd.ask(mode, ticket),
            Spot::Key(hash) => {
                let shard = &mut self.keys[shard_of(hash)];
                match shard.entry(hash, |known| known.hash == hash, |known| known.hash) {
                    Entry::Occupied(mut known) => known.get_mut().lock.ask(mode, ticket),
                    Entry::Vacant(vacant) => {
                        let mut lock = Lock::default();
                        for crowd in self.crowds.iter().filter(|crowd| crowd.has(hash)) {
                            crowd.meet(hash, &mut lock);
                        }
                        lock.ask(mode, ticket);
                        vacant.insert(KeyLock { hash, lock });
                    }
                }
            }
        }
    }

    /// Asks for all of a crowd's keys.
    pub fn ask_crowd(&mut self, crowd: &Rc<Crowd>) {
        let locks = self.keys.iter_mut().flat_map(|shard| shard.iter_mut());
        for KeyLock { hash, lock } in locks.filter(|known| crowd.has(known.hash)) {
            crowd.meet(*hash, lock);
        }
        self.crowds.push(crowd.clone());
    }

    /// The same when the ticket goes.
    pub fn leave_crowd(&mut self, crowd: &Rc<Crowd>) {
        self.crowds.retain(|known| !Rc::ptr_eq(known, crowd));
        for hash in crowd.met.take() {
            self.leave(Spot::Key(hash), crowd.mode, false, Some(&crowd.state));
        }
    }

    pub fn leave(&mut self, spot: Spot, mode: Mode, appended: bool, ticket: Option<&Rc<State>>) {
        self.with(spot, |lock| lock.leave(mode, appended, ticket));
    }

    pub fn appended(&mut self, spot: Spot) {
        self.with(spot, Lock::appended);
    }

    /// A lock that somebody holds or waits for. A key's goes when nobody does any more.
    fn with(&mut self, spot: Spot, change: impl FnOnce(&mut Lock)) {
        match spot {
            Spot::Everything => change(&mut self.everything),
            Spot::Survey => change(&mut self.survey),
            Spot::Crowd => change(&mut self.crowd),
            Spot::Key(hash) => {
                let shard = &mut self.keys[shard_of(hash)];
                let Ok(mut known) = shard.find_entry(hash, |known| known.hash == hash) else { return };
                change(&mut known.get_mut().lock);
                if known.get().lock.is_idle() {
                    known.remove();
                    if shard.is_empty() && shard.capacity() > KEPT {
                        *shard = HashTable::new();
                    }
                }
            }
        }
    }

    /// Whether one who asked to read this would be let in at once.
    pub fn may_read(&self, spot: Spot) -> bool {
        match spot {
            Spot::Everything => self.everything.lets_in(Mode::Read),
            Spot::Survey => self.survey.lets_in(Mode::Read),
            Spot::Crowd => self.crowd.lets_in(Mode::Read),
            Spot::Key(hash) => match self.keys[shard_of(hash)].find(hash, |known| known.hash == hash) {
                Some(known) => known.lock.lets_in(Mode::Read),
                None => !self.crowds.iter().any(|crowd| crowd.mode != Mode::Read && crowd.has(hash)),
            },
        }
    }

    /// Locks of keys that there are.
    #[cfg(test)]
    pub fn keys(&self) -> usize {
        self.keys.iter().map(HashTable::len).sum()
    }
}
