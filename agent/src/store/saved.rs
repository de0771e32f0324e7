//! The lease state: who holds which slab, in a memfd that outlives the agent.
//!
//! # Layout, version 1 (little-endian, offsets in bytes)
//! ```text
//! 0        magic "annexlea"                       8
//! 8        version = 1                            u32
//! 12       zeros                                  4
//! 16       bytes per slab                         u64
//! 4096     client entries, 1024 of 1024 bytes each:
//!            +0  state: 0 free, 1 used             u32
//!            +4  bytes of the host name, at most 255   u16
//!            +6  bytes of the boot id, at most 255     u16
//!            +8  client id                         u64
//!            +16 the incarnation it took part in last  u64
//!            +24 its leases' deadline, CLOCK_MONOTONIC in nanoseconds   u64
//!            +32 host name                         256
//!            +288 boot id                          256
//!            +544 bytes of the certificate's name, at most 255; 0 without TLS   u16
//!            +546 zeros                            6
//!            +552 SHA-256 of the certificate's public key   32
//!            +584 the certificate's name           256
//! 1052672  slab entries, 65536 of 32 bytes each:
//!            +0  state: 0 free, 1 lent             u32
//!            +4  1 if a client had its descriptor  u32
//!            +8  client id                         u64
//!            +16 inode of its memfd                u64
//!            +24 the lease's number, 0 from an agent that did not know it   u32
//!            +28 zeros                             4
//! ```
//! Each entry lies in one page and is written whole, by one `pwrite` of less than a page, which no
//! signal interrupts: a kill leaves it old or new. A memfd's pages are given at the start, so that
//! no write fails for want of memory.
//!
//! # Order of updates
//! - *A client* is written before any slab that names it, and freed after the last one.
//! - *A lease begins*: the slab's memory is zero and in the store, then its entry says lent, then
//!   its key is opened, then the client is told. Killed before: nobody knows of the lease, and the
//!   memory is thrown away at the next start.
//! - *A lease ends*: its key dies, on the board too; then its entry says free; only then is a byte
//!   of the slab changed. So an entry that says lent vouches for the slab's bytes, whenever the
//!   kill came.
//! - *A client gets a slab's descriptor*: first the entry says so.
//! - *A slab moves* to fresh memory (see [`crate::lender`]): the copy is complete and in the store,
//!   then its entry names the new inode, then the old memory is forgotten. What the store has and
//!   no entry names is thrown away.
//! - *A client takes part in an incarnation* (its first word after a hello): until this is written,
//!   a restarted agent tells it the earlier one.
//!
//! The agent alone writes, under the book's lock but for descriptors and moves, which are the
//! slab's own.

use crate::lease::{Holder, Machine, Moment, Saved, SavedClaim, SavedLease};
use annex_host::repeated;
use annex_shared::api::format_bytes;
use annex_shared::ids::{ClientId, Incarnation, LeaseNumber, SlabId};
use annex_shared::memfd;
use annex_shared::printable::printable;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::uio::{pread, pwrite};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::error;

const MAGIC: [u8; 8] = *b"annexlea";
const VERSION: u32 = 1;
const CLIENT_AT: usize = 4096;
const CLIENT_LEN: usize = 1024;
const CLIENTS: usize = 1024;
const SLAB_AT: usize = CLIENT_AT + CLIENTS * CLIENT_LEN;
const SLAB_LEN: usize = 32;
const LEN: usize = SLAB_AT + SLABS * SLAB_LEN;
const NAME_LEN: usize = 255;

/// Slabs whose leases can be saved.
pub const SLABS: usize = 65536;

/// What an earlier agent saved can't be taken over. It is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    #[error("failed to {what} the lease state: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error(
        "what is kept as the lease state is none ({0}): stop the agent's unit, or end its keeper, to start without it"
    )]
    Damaged(&'static str),
    #[error(
        "the saved leases have layout version {0}, this agent knows {VERSION}: start the version that wrote them, or stop the agent's \
         unit (end its keeper) to start without them"
    )]
    Newer(u32),
    #[error(
        "the saved leases are of slabs of {}, but slab_size is now {}: set it back, and change it after `annex-agent drain`",
        format_bytes(*.saved), format_bytes(*.now)
    )]
    SlabSize { saved: u64, now: u64 },
}

/// Where a lent slab's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedMemory {
    pub inode: u64,
    /// A client has had its descriptor.
    pub is_shared: bool,
}

/// The lease state. Its methods never fail: what can't be saved is said once, and is lost if the
/// agent is restarted.
pub struct LeaseState {
    fd: OwnedFd,
    clients: Mutex<Clients>,
    is_failing: AtomicBool,
}

#[derive(Default)]
struct Clients {
    entries: HashMap<ClientId, Entry>,
    free: Vec<usize>,
    /// Slabs whose entry says lent.
    lent: HashSet<SlabId>,
}

struct Entry {
    index: usize,
    machine: Machine,
    seen: Incarnation,
    until: Moment,
}

impl LeaseState {
    /// A state without leases.
    pub fn create(slab_size: u64) -> Result<LeaseState, SavedError> {
        let fail = |what| move |e: Errno| SavedError::Io { what, source: e.into() };
        let fd = memfd::create(c"annex-leases", LEN).map_err(fail("create"))?;
        fallocate(&fd, FallocateFlags::empty(), 0, LEN as i64).map_err(fail("allocate"))?;
        let mut head = [0; 24];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[16..24].copy_from_slice(&slab_size.to_le_bytes());
        write(&fd, 0, &head).map_err(|source| SavedError::Io { what: "write", source })?;
        Ok(LeaseState::of(fd))
    }

    fn of(fd: OwnedFd) -> LeaseState {
        let clients = Clients { free: (0..CLIENTS).rev().collect(), ..Clients::default() };
        LeaseState { fd, clients: Mutex::new(clients), is_failing: AtomicBool::new(false) }
    }

    /// Takes over what an earlier agent saved: its leases, and where each slab's memory is.
    pub fn open(fd: OwnedFd, slab_size: u64) -> Result<(LeaseState, Saved, HashMap<SlabId, SavedMemory>), SavedError> {
        let mut all = vec![0; LEN];
        let len = pread(&fd, &mut all, 0).map_err(|e| SavedError::Io { what: "read", source: e.into() })?;
        if len < 24 || all[..8] != MAGIC {
            return Err(SavedError::Damaged("wrong magic"));
        }
        // Version 1 is the first: there is nothing older to migrate.
        match u32_at(&all, 8) {
            VERSION => {}
            0 => return Err(SavedError::Damaged("version 0")),
            newer => return Err(SavedError::Newer(newer)),
        }
        if len != LEN {
            return Err(SavedError::Damaged("wrong length"));
        }
        let saved_size = u64_at(&all, 16);
        let (mut saved, mut memory) = (Saved::default(), HashMap::new());
        for (index, entry) in all[SLAB_AT..].chunks_exact(SLAB_LEN).enumerate() {
            if u32_at(entry, 0) == 1 {
                let slab = SlabId(index as u32);
                let (client, number) = (ClientId(u64_at(entry, 8)), LeaseNumber(u32_at(entry, 24)));
                saved.leases.push(SavedLease { slab, client, number });
                memory.insert(slab, SavedMemory { inode: u64_at(entry, 16), is_shared: u32_at(entry, 4) != 0 });
            }
        }
        if !saved.leases.is_empty() && saved_size != slab_size {
            return Err(SavedError::SlabSize { saved: saved_size, now: slab_size });
        }
        let state = LeaseState::of(fd);
        if saved_size != slab_size {
            state.write(16, &slab_size.to_le_bytes());
        }
        let mut clients = state.clients.lock();
        for (index, entry) in all[CLIENT_AT..SLAB_AT].chunks_exact(CLIENT_LEN).enumerate() {
            if u32_at(entry, 0) != 1 {
                continue;
            }
            let text = |at: usize, len: usize| {
                let bytes = entry.get(at..at + u16_at(entry, len).min(NAME_LEN as u16) as usize);
                // An agent before may have saved it as it came.
                printable(&String::from_utf8_lossy(bytes.unwrap_or_default())).into_owned()
            };
            let name = Some(text(584, 544)).filter(|name| !name.is_empty());
            let mut key = [0; 32];
            key.copy_from_slice(&entry[552..584]);
            let holder = name.map(|name| Holder { name, key: key.into() });
            let machine = Machine { host: text(32, 4), boot_id: text(288, 6), holder };
            let client = ClientId(u64_at(entry, 8));
            let (seen, until) = (Incarnation(u64_at(entry, 16)), Moment(u64_at(entry, 24)));
            saved.claims.push(SavedClaim { client, machine: machine.clone(), seen, until });
            clients.entries.insert(client, Entry { index, machine, seen, until });
        }
        let used: Vec<usize> = clients.entries.values().map(|e| e.index).collect();
        clients.free.retain(|index| !used.contains(index));
        clients.lent.extend(memory.keys());
        drop(clients);
        Ok((state, saved, memory))
    }

    /// For the store.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A client's claim is new, or is of another machine now.
    pub fn claim(&self, client: ClientId, machine: &Machine, seen: Incarnation, until: Moment) {
        let mut clients = self.clients.lock();
        let index = match clients.entries.get(&client) {
            Some(entry) if entry.machine == *machine && entry.seen == seen => return,
            Some(entry) => entry.index,
            None => match clients.free.pop() {
                Some(index) => index,
                None => {
                    repeated!(WARN, "a client is one too many to be remembered over a restart" of "",
                        "client {client} is one too many to be remembered over a restart: {CLIENTS} are");
                    return;
                }
            },
        };
        let entry = Entry { index, machine: machine.clone(), seen, until };
        self.write_client(client, &entry);
        clients.entries.insert(client, entry);
    }

    /// The client takes part in this incarnation.
    pub fn seen(&self, client: ClientId, seen: Incarnation) {
        self.change(client, |entry| entry.seen = seen);
    }

    /// The client's leases end then.
    pub fn until(&self, client: ClientId, until: Moment) {
        self.change(client, |entry| entry.until = until);
    }

    /// The client's claim is over, and with it all its leases.
    pub fn forget(&self, client: ClientId) {
        let mut clients = self.clients.lock();
        if let Some(entry) = clients.entries.remove(&client) {
            self.write(CLIENT_AT + entry.index * CLIENT_LEN, &[0; 32]);
            clients.free.push(entry.index);
        }
    }

    /// A slab is lent. False if that can't be saved.
    pub fn lend(&self, lease: SavedLease, memory: SavedMemory) -> bool {
        let SavedLease { slab, client, number } = lease;
        let mut clients = self.clients.lock();
        if !clients.entries.contains_key(&client) {
            return false;
        }
        clients.lent.insert(slab);
        drop(clients);
        let mut entry = [0; SLAB_LEN];
        entry[..4].copy_from_slice(&1u32.to_le_bytes());
        entry[4..8].copy_from_slice(&u32::from(memory.is_shared).to_le_bytes());
        entry[8..16].copy_from_slice(&client.0.to_le_bytes());
        entry[16..24].copy_from_slice(&memory.inode.to_le_bytes());
        entry[24..28].copy_from_slice(&number.0.to_le_bytes());
        slab_at(slab).is_some_and(|at| self.write(at, &entry))
    }

    /// A client is about to get the slab's descriptor.
    pub fn shared(&self, slab: SlabId) {
        slab_at(slab).map(|at| self.write(at + 4, &1u32.to_le_bytes()));
    }

    /// The slab is no longer lent.
    pub fn end(&self, slab: SlabId) {
        if self.clients.lock().lent.remove(&slab) {
            slab_at(slab).map(|at| self.write(at, &[0; SLAB_LEN]));
        }
    }

    /// True if the slab's entry says lent.
    pub fn has(&self, slab: SlabId) -> bool {
        self.clients.lock().lent.contains(&slab)
    }

    fn change(&self, client: ClientId, change: impl FnOnce(&mut Entry)) {
        let mut clients = self.clients.lock();
        if let Some(entry) = clients.entries.get_mut(&client) {
            change(entry);
            self.write_client(client, entry);
        }
    }

    fn write_client(&self, client: ClientId, entry: &Entry) {
        let mut bytes = [0; 840];
        let mut put = |at: usize, b: &[u8]| bytes[at..at + b.len()].copy_from_slice(b);
        let (host, boot_id) = (cut(&entry.machine.host), cut(&entry.machine.boot_id));
        put(0, &1u32.to_le_bytes());
        put(4, &(host.len() as u16).to_le_bytes());
        put(6, &(boot_id.len() as u16).to_le_bytes());
        put(8, &client.0.to_le_bytes());
        put(16, &entry.seen.0.to_le_bytes());
        put(24, &entry.until.0.to_le_bytes());
        put(32, host);
        put(288, boot_id);
        if let Some(Holder { name, key }) = &entry.machine.holder {
            let name = cut(name);
            put(544, &(name.len() as u16).to_le_bytes());
            put(552, key.as_ref());
            put(584, name);
        }
        self.write(CLIENT_AT + entry.index * CLIENT_LEN, &bytes);
    }

    fn write(&self, at: usize, bytes: &[u8]) -> bool {
        match write(&self.fd, at, bytes) {
            Ok(()) => true,
            Err(e) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    error!("failed to save the leases: {e}; a restart of this agent would lose some");
                }
                false
            }
        }
    }
}

/// Names longer than that are not let in (`control`).
fn cut(name: &str) -> &[u8] {
    &name.as_bytes()[..name.len().min(NAME_LEN)]
}

fn slab_at(slab: SlabId) -> Option<usize> {
    ((slab.0 as usize) < SLABS).then(|| SLAB_AT + slab.0 as usize * SLAB_LEN)
}

fn write(fd: &OwnedFd, at: usize, bytes: &[u8]) -> io::Result<()> {
    match pwrite(fd, bytes, at as i64) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(e) => Err(e.into()),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_identity::certificate::KeyId;

    const SIZE: u64 = 1 << 20;
    const ANNA: ClientId = ClientId(1);
    const BERT: ClientId = ClientId(2);

    fn lease(slab: u32, client: ClientId) -> SavedLease {
        SavedLease { slab: SlabId(slab), client, number: LeaseNumber(slab + 7) }
    }

    fn machine(host: &str) -> Machine {
        let name = format!("annex://c/client/{}", &host[..host.len().min(63)]);
        let holder = Holder { name, key: KeyId::of(host.as_bytes()) };
        Machine { host: host.into(), boot_id: "b".into(), holder: Some(holder).filter(|_| host != "c") }
    }

    fn reopen(state: LeaseState) -> (LeaseState, Saved, HashMap<SlabId, SavedMemory>) {
        LeaseState::open(state.fd, SIZE).unwrap()
    }

    #[test]
    fn what_was_saved_is_found_again() {
        let state = LeaseState::create(SIZE).unwrap();
        let memory = SavedMemory { inode: 77, is_shared: false };
        state.claim(ANNA, &machine("home"), Incarnation(5), Moment(9));
        state.claim(BERT, &machine(&"x".repeat(255)), Incarnation(5), Moment(9));
        for (slab, client) in [(0, ANNA), (3, BERT), (65535, ANNA)] {
            assert!(state.lend(lease(slab, client), memory));
        }
        state.end(SlabId(0));
        state.shared(SlabId(3));
        state.seen(BERT, Incarnation(6));
        state.until(BERT, Moment(10));
        let (state, saved, places) = reopen(state);
        let claims = [
            SavedClaim { client: ANNA, machine: machine("home"), seen: Incarnation(5), until: Moment(9) },
            SavedClaim { client: BERT, machine: machine(&"x".repeat(255)), seen: Incarnation(6), until: Moment(10) },
        ];
        assert_eq!(saved.claims, claims);
        assert_eq!(saved.leases, [lease(3, BERT), lease(65535, ANNA)]);
        assert_eq!(places[&SlabId(3)], SavedMemory { inode: 77, is_shared: true });
        assert_eq!(places[&SlabId(65535)], memory);
        state.end(SlabId(3));
        state.forget(BERT);
        state.claim(ClientId(3), &machine("c"), Incarnation(6), Moment(1));
        let (_, saved, _) = reopen(state);
        assert_eq!(saved.claims.iter().map(|c| c.client).collect::<Vec<_>>(), [ANNA, ClientId(3)]);
        assert_eq!(saved.leases, [lease(65535, ANNA)]);
    }

    #[test]
    fn what_can_not_be_saved_is_said_to_be_so() {
        let state = LeaseState::create(SIZE).unwrap();
        let memory = SavedMemory { inode: 77, is_shared: false };
        assert!(!state.lend(lease(0, ANNA), memory), "nobody's lease");
        state.claim(ANNA, &machine("home"), Incarnation(5), Moment(9));
        assert!(!state.lend(lease(65536, ANNA), memory), "beyond the table");
        for n in 0..2000 {
            state.claim(ClientId(100 + n), &machine("home"), Incarnation(5), Moment(9));
        }
        assert!(!state.lend(lease(0, ClientId(2099)), memory), "beyond the clients");
        assert_eq!(reopen(state).1.claims.len(), CLIENTS);
    }

    #[test]
    fn a_newer_layout_and_nonsense_are_refused_and_left_alone() {
        let refused = |at: usize, bytes: &[u8]| {
            let state = LeaseState::create(SIZE).unwrap();
            write(&state.fd, at, bytes).unwrap();
            let kept = state.fd.try_clone().unwrap();
            let before = nix::sys::stat::fstat(&kept).unwrap().st_mtime_nsec;
            let error = LeaseState::open(state.fd, SIZE).err().unwrap().to_string();
            assert_eq!(nix::sys::stat::fstat(&kept).unwrap().st_mtime_nsec, before);
            error
        };
        assert!(refused(8, &2u32.to_le_bytes()).contains("layout version 2, this agent knows 1: start the version"));
        assert!(refused(8, &0u32.to_le_bytes()).contains("version 0"));
        assert!(refused(0, b"x").contains("wrong magic"));
    }

    #[test]
    fn another_slab_size_is_refused_while_anything_is_lent() {
        let state = LeaseState::create(SIZE).unwrap();
        let (state, ..) = LeaseState::open(state.fd, 2 * SIZE).unwrap();
        state.claim(ANNA, &machine("home"), Incarnation(5), Moment(9));
        state.lend(lease(1, ANNA), SavedMemory { inode: 1, is_shared: false });
        let error = LeaseState::open(state.fd, SIZE).err().unwrap().to_string();
        assert_eq!(
            error,
            "the saved leases are of slabs of 2 MiB, but slab_size is now 1 MiB: set it back, and change it after `annex-agent drain`"
        );
    }
}
