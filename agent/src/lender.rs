//! The lender: the lease book joined to real slabs, keys and the lease board.
//!
//! The book decides under one lock; what it decides about keys is carried out before the lock is let go, so that
//! the next event finds it done. What takes time (making, zeroing and freeing memory) is done outside it:
//! making by the thread of the client that asked, all else by the janitor.
//!
//! A slab that changes hands goes through these steps, in this order:
//! 1. its key is removed and its expiry is cleared, on the board too: no operation starts any more;
//! 2. the janitor takes the slab's memory under its write guard: operations that had started are over;
//! 3. the memory is zeroed or, if a client ever had its descriptor, thrown away for good;
//! 4. only then does the book lend the slab again, under a new key.

use crate::config::{Hugepages, Terms};
use crate::control::Controls;
use crate::lease::{Action, Book, ConnectionId, Grant, Greeting, LeaseError, Limits, Machine, Moment, Superseded};
use crate::pressure::{HostMemory, Room};
use crate::slab::{Pages, Slab, SlabError};
use crate::targets::{Connections, SlabAccess, SlabMemfd};
use annex_shared::fabric::ErrorKind;
use annex_shared::fabric::shm::{Board, monotonic_ns};
use annex_shared::ids::{ClientId, Incarnation, RemoteAddr, Rkey, SlabId};
use annex_shared::preamble::{AdmitError, Proof};
use annex_shared::wire::{Lease, Refusal};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};

/// How long a lease request waits for slabs that are being cleaned before it is told that there are none.
const CLEANING_PATIENCE: Duration = Duration::from_secs(1);

/// How long a lease request makes new memory before it is answered with what there is; the client asks again.
const FILL_BUDGET: Duration = Duration::from_millis(500);

/// How often the janitor looks whether the host needs the memory of spare slabs back.
const PRESSURE_PERIOD: Duration = Duration::from_secs(5);

/// One place for a slab, for the agent's life.
#[derive(Debug, Default)]
struct Slot {
    /// Read-held for each operation, write-held to bring in and take out memory.
    memory: RwLock<Option<Memory>>,
    /// The lease: written under the book's lock, `until` last for a new one and first for an ended one. 0 = none.
    until: AtomicU64,
    client: AtomicU64,
    rkey: AtomicU64,
}

#[derive(Debug)]
struct Memory {
    slab: Slab,
    /// A client has had the descriptor: it may keep the memory mapped for ever.
    is_shared: AtomicBool,
}

/// A slab to clean, off every hot path.
#[derive(Clone, Copy, Debug)]
struct Chore {
    slab: SlabId,
    /// Zero the memory and keep it, or give it back to the host.
    keep: bool,
}

struct Books {
    book: Book,
    chores: VecDeque<Chore>,
    is_stopping: bool,
}

/// Lends slabs; the heart of an agent.
pub struct Lender {
    terms: Terms,
    incarnation: Incarnation,
    books: Mutex<Books>,
    /// Signalled after every event.
    changed: Condvar,
    slots: Vec<Slot>,
    keys: RwLock<HashMap<Rkey, SlabId>>,
    board: Board,
    offers_shm: bool,
    connections: Connections,
    controls: Controls,
    warned_small: AtomicBool,
}

impl Lender {
    pub fn new(terms: Terms, incarnation: Incarnation, offers_shm: bool) -> io::Result<Lender> {
        let limits = Limits {
            capacity: terms.capacity_slabs,
            per_client: terms.per_client_slabs,
            ttl: terms.lease_ttl,
            keep: terms.keep_slabs,
        };
        let book = Book::new(limits, incarnation, Box::new(rand::random));
        let board = Board::create(terms.capacity_slabs)?;
        Ok(Lender {
            incarnation,
            books: Mutex::new(Books { book, chores: VecDeque::new(), is_stopping: false }),
            changed: Condvar::new(),
            slots: (0..terms.capacity_slabs).map(|_| Slot::default()).collect(),
            keys: RwLock::new(HashMap::with_capacity(terms.capacity_slabs as usize)),
            board,
            offers_shm,
            connections: Connections::new(),
            controls: Controls::default(),
            warned_small: AtomicBool::new(false),
            terms,
        })
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub fn offers_shm(&self) -> bool {
        self.offers_shm
    }

    /// The open data and shm connections.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The open control connections.
    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    /// Allocates `slabs` slabs before anyone asks.
    pub fn stock(&self, slabs: u32) -> Result<(), SlabError> {
        for index in 0..slabs.min(self.terms.capacity_slabs) {
            self.fill(SlabId(index))?;
            self.with_book(|book, _| book.stocked(SlabId(index)));
        }
        Ok(())
    }

    pub fn hello(&self, client: ClientId, machine: Machine, connection: ConnectionId) -> Result<Greeting, Refusal> {
        self.with_book(|book, now| book.hello(client, machine, connection, now))
    }

    /// Lends up to `count` slabs, making memory for them where there is none.
    pub fn lease(&self, client: ClientId, connection: ConnectionId, count: u32) -> Result<Vec<Lease>, LeaseError> {
        let started = Instant::now();
        let (Grant { mut leased, to_fill }, room) = loop {
            let room = self.room();
            match self.with_book(|book, now| book.lease(client, connection, count, room, now)) {
                Err(LeaseError::Cleaning) if started.elapsed() < CLEANING_PATIENCE => {
                    self.wait_while(CLEANING_PATIENCE, Book::is_cleaning);
                }
                Err(LeaseError::Cleaning) => {
                    return Err(LeaseError::Refused(Refusal::Full { capacity: self.terms.capacity_slabs }));
                }
                Err(e) => return Err(e),
                Ok(grant) => break (grant, room),
            }
        };
        for slab in to_fill {
            let is_due = leased.is_empty() || started.elapsed() < FILL_BUDGET;
            let is_filled = is_due && self.fill_or_log(slab);
            leased.extend(self.with_book(|book, now| book.filled(slab, is_filled, now)));
        }
        if leased.is_empty() {
            let Room { available_mib, headroom_mib, .. } = room;
            return Err(LeaseError::Refused(Refusal::HostPressure { available_mib, headroom_mib }));
        }
        Ok(leased)
    }

    pub fn renew(&self, client: ClientId, connection: ConnectionId) -> Result<Vec<SlabId>, Superseded> {
        self.with_book(|book, now| book.renew(client, connection, now))
    }

    pub fn give_back(&self, client: ClientId, connection: ConnectionId, slabs: &[SlabId]) -> Result<(), Superseded> {
        self.with_book(|book, now| book.give_back(client, connection, slabs, now))
    }

    pub fn disconnected(&self, client: ClientId, connection: ConnectionId) {
        self.with_book(|book, now| book.disconnected(client, connection, now));
    }

    /// Slabs that could be lent now.
    pub fn free(&self) -> u32 {
        let room = self.room();
        self.lock().book.free(room)
    }

    /// Slabs lent now.
    pub fn lent(&self) -> u32 {
        self.lock().book.lent()
    }

    /// Lends nothing any more.
    pub fn close(&self) {
        self.with_book(|book, _| book.close());
    }

    pub fn is_closing(&self) -> bool {
        self.lock().book.is_closing()
    }

    /// Waits until nothing is lent. False if something still is after `patience`.
    pub fn wait_returned(&self, patience: Duration) -> bool {
        self.wait_while(patience, |book| book.lent() > 0)
    }

    /// Ends all leases now.
    pub fn revoke_all(&self) {
        self.with_book(|book, _| book.revoke_all());
    }

    /// Makes [`Lender::clean_up`] return.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
    }

    /// The janitor's life: ends leases when they expire, cleans slabs, watches the host's memory.
    pub fn clean_up(&self) {
        let mut next_look = Instant::now() + PRESSURE_PERIOD;
        let mut books = self.lock();
        while !books.is_stopping {
            if let Some(chore) = books.chores.pop_front() {
                drop(books);
                let has_memory = self.clean(chore);
                self.with_book(|book, _| book.cleaned(chore.slab, has_memory));
                books = self.lock();
                continue;
            }
            let now = Moment(monotonic_ns());
            let deadline = books.book.next_deadline();
            if deadline.is_some_and(|d| d <= now) {
                drop(books);
                self.with_book(|book, now| book.tick(now));
                books = self.lock();
                continue;
            }
            let may_trim = books.book.spare() > 0 && !self.terms.prefault;
            let until_look = may_trim.then(|| next_look.saturating_duration_since(Instant::now()));
            if until_look.is_some_and(|d| d.is_zero()) {
                drop(books);
                self.relieve_pressure();
                next_look = Instant::now() + PRESSURE_PERIOD;
                books = self.lock();
                continue;
            }
            let sleep = deadline.map(|d| now.until(d)).into_iter().chain(until_look).min();
            books = match sleep {
                Some(span) => self.changed.wait_timeout(books, span).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(books).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn relieve_pressure(&self) {
        if HostMemory::now().is_ok_and(|host| host.available < self.terms.headroom) {
            info!("the host is short of memory: giving free slabs back to it");
            self.with_book(|book, _| book.trim(0));
        }
    }

    /// True if the slab has memory afterwards, all of it zero.
    fn clean(&self, chore: Chore) -> bool {
        // Waits for the operations that are still in the slab. Its key is dead: no new ones come.
        let memory = self.write(chore.slab).take();
        let Some(Memory { mut slab, is_shared }) = memory else { return false };
        if is_shared.into_inner() {
            slab.discard();
            return chore.keep && self.fill_or_log(chore.slab);
        }
        if !chore.keep {
            return false;
        }
        slab.zero();
        *self.write(chore.slab) = Some(Memory { slab, is_shared: AtomicBool::new(false) });
        true
    }

    fn fill_or_log(&self, slab: SlabId) -> bool {
        self.fill(slab).inspect_err(|e| error!("{slab} gets no memory: {e}")).is_ok()
    }

    fn fill(&self, id: SlabId) -> Result<(), SlabError> {
        // Fits: a slab is at most 1 GiB.
        let slab = Slab::create(self.terms.slab_size as usize, self.terms.hugepages)?;
        if self.terms.hugepages == Hugepages::Auto
            && slab.pages() == Pages::Small
            && !self.warned_small.swap(true, Ordering::Relaxed)
        {
            warn!("no 2 MiB pages are free for {id}: it is made of 4 KiB pages (raise vm.nr_hugepages to change that)");
        }
        *self.write(id) = Some(Memory { slab, is_shared: AtomicBool::new(false) });
        Ok(())
    }

    fn room(&self) -> Room {
        match HostMemory::now() {
            Ok(host) => host.room(self.terms.slab_size, self.terms.headroom, self.terms.hugepages),
            Err(e) => {
                error!("failed to see how much memory is free, so no new slab is lent: {e}");
                Room { slabs: 0, available_mib: 0, headroom_mib: self.terms.headroom >> 20 }
            }
        }
    }

    /// Brings an event before the book and carries out what follows from it.
    fn with_book<T>(&self, event: impl FnOnce(&mut Book, Moment) -> T) -> T {
        let mut books = self.lock();
        let answer = event(&mut books.book, Moment(monotonic_ns()));
        for action in books.book.take_actions() {
            self.carry_out(action, &mut books.chores);
        }
        drop(books);
        self.changed.notify_all();
        answer
    }

    fn carry_out(&self, action: Action, chores: &mut VecDeque<Chore>) {
        match action {
            Action::Open { slab, client, rkey, until } => {
                let slot = &self.slots[slab.0 as usize];
                slot.client.store(client.0, Ordering::Relaxed);
                slot.rkey.store(rkey.0, Ordering::Relaxed);
                slot.until.store(until.0, Ordering::Release);
                self.keys.write().unwrap_or_else(PoisonError::into_inner).insert(rkey, slab);
                self.board.grant(slab.0, rkey, self.incarnation, until.0);
                debug!("{slab} is lent to client {client}");
            }
            Action::Extend { slab, until } => {
                self.slots[slab.0 as usize].until.store(until.0, Ordering::Release);
                self.board.renew(slab.0, until.0);
            }
            Action::Close { slab, rkey, keep } => {
                self.board.revoke(slab.0);
                self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(&rkey);
                let slot = &self.slots[slab.0 as usize];
                slot.until.store(0, Ordering::SeqCst);
                slot.rkey.store(0, Ordering::SeqCst);
                chores.push_back(Chore { slab, keep });
                debug!("{slab} is no longer lent");
            }
            Action::Trim { slab } => chores.push_back(Chore { slab, keep: false }),
            Action::Lapse { client, slabs } => warn!(
                "client {client} renewed nothing for {} ms: its {slabs} slabs are taken back",
                self.terms.lease_ttl.as_millis()
            ),
            Action::Forget { client } => {
                info!("client {client} is gone");
                self.connections.close_client(client);
            }
            Action::Supersede { connection } => self.controls.close(connection),
        }
    }

    /// Waits while `is_so`, for `patience` at most; false if it still is.
    fn wait_while(&self, patience: Duration, is_so: impl Fn(&Book) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut books = self.lock();
        while is_so(&books.book) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            books = self.changed.wait_timeout(books, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, slab: SlabId) -> std::sync::RwLockWriteGuard<'_, Option<Memory>> {
        self.slots[slab.0 as usize].memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on the memory of the slab that this client holds under this key.
    fn with_memory<T>(&self, who: ClientId, rkey: Rkey, f: impl FnOnce(SlabId, &Memory) -> Option<T>) -> Option<T> {
        let id = *self.keys.read().unwrap_or_else(PoisonError::into_inner).get(&rkey)?;
        let slot = &self.slots[id.0 as usize];
        let memory = slot.memory.read().unwrap_or_else(PoisonError::into_inner);
        // Checked under the guard: from here on the janitor waits for us, so what holds now holds until `f` is done. The slab may
        // have changed hands since the key was looked up, but keys never come back.
        let holds = slot.until.load(Ordering::Acquire) > monotonic_ns()
            && slot.rkey.load(Ordering::Acquire) == rkey.0
            && slot.client.load(Ordering::Acquire) == who.0;
        if holds { f(id, memory.as_ref()?) } else { None }
    }
}

impl SlabAccess for Lender {
    fn admit(&self, proof: &Proof) -> Result<(), AdmitError> {
        self.lock().book.admit(proof)
    }

    fn with_slab(
        &self,
        who: ClientId,
        rkey: Rkey,
        addr: RemoteAddr,
        len: usize,
        f: &mut dyn FnMut(*mut u8),
    ) -> Result<(), ErrorKind> {
        self.with_memory(who, rkey, |_, memory| {
            let at = usize::try_from(addr.0).ok()?;
            if at.checked_add(len)? > memory.slab.len() {
                return None;
            }
            // In bounds by the check above, so that this pointer and len bytes from it lie in the slab.
            f(memory.slab.base().wrapping_add(at));
            Some(())
        })
        .ok_or(ErrorKind::RemoteAccess)
    }

    fn memfd(&self, who: ClientId, rkey: Rkey) -> Result<SlabMemfd, ErrorKind> {
        self.with_memory(who, rkey, |slab, memory| {
            // Before the descriptor exists, so that no path hands it out and forgets to say so.
            memory.is_shared.store(true, Ordering::Relaxed);
            let fd = memory.slab.fd().try_clone_to_owned();
            Some(fd.map(|fd| SlabMemfd { fd, offset: 0, len: memory.slab.len() as u64, board_slot: slab.0 }))
        })
        .ok_or(ErrorKind::RemoteAccess)?
        .map_err(|e| {
            error!("failed to duplicate a slab's descriptor: {e}");
            ErrorKind::RemoteOperation
        })
    }

    fn board(&self) -> Option<BorrowedFd<'_>> {
        self.offers_shm.then(|| self.board.fd())
    }
}

#[cfg(test)]
mod tests;
