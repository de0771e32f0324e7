//! The lender: the lease book joined to real slabs, keys and the lease board.
//!
//! The book decides under one lock; what it decides about keys is carried out before the lock is
//! let go, so that the next event finds it done. What takes time (making, zeroing and freeing
//! memory) is done outside it: making by the thread of the client that asked, all else by the
//! janitor.
//!
//! A slab that changes hands goes through these steps, in this order:
//! 1. its key is removed and its expiry is cleared, on the board too, and RDMA devices are made to
//!    forget it: no operation starts any more, and none that a device does is under way;
//! 2. the janitor takes the slab's memory under its write guard: operations that had started are
//!    over;
//! 3. the memory is zeroed or, if a client ever had its descriptor, thrown away for good;
//! 4. only then does the book lend the slab again, under a new key.
//!
//! What has to outlive the agent is in its [`Store`] at every moment, in an order that
//! [`crate::store::saved`] tells.
//!
//! An agent that is restarted draws a new incarnation and new keys. Over TCP an old key is unknown
//! to it. A client on this host may have slabs mapped, and reads and writes them by itself as long
//! as the lease board allows it:
//! - while the agent is away, until the lease's time is up, and rightly so: what it writes is in
//!   the memory that the next agent takes over;
//! - the next agent revokes every entry of the old board before anything else. An operation that is
//!   acknowledged was complete before that;
//! - a write that began before and ends after it (its thread was stopped in the middle, say) is not
//!   acknowledged, and it can't do harm either: before such a slab is used under its new key, it is
//!   copied to memory that the old mapping does not reach ([`Lender::freshen`]). The same goes for
//!   programs that ignore the board.

use crate::config::Terms;
use crate::controls::Controls;
use crate::lease::{
    Action, Book, ConnectionId, Grant, Greeting, LeaseError, Machine, Moment, SavedLease, Superseded, View,
};
use crate::pressure::Room;
use crate::recall::{self, Candidate, Verdict, Watch};
use crate::slab::SlabError;
use crate::store::saved::{LeaseState, SavedMemory};
use crate::store::{BOARD, Found, LEASES, Store};
use crate::targets::{Connections, RegistrationError, Registrations, SlabAccess, SlabMemfd};
use annex_fabric::ErrorKind;
use annex_fabric::shm::{Board, monotonic_ns};
use annex_fabric::verbs::{Device, MemoryRegion, ProtectionDomain, Rights, Window};
use annex_host::failpoint::failpoint;
use annex_host::repeated;
use annex_shared::ids::{ClientId, Incarnation, LeaseNumber, RemoteAddr, Rkey, SlabId};
use annex_shared::preamble::{AdmitError, Proof};
use annex_shared::wire::{Event, Lease, Refusal, VerbsOffer};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{debug, error, warn};

mod chores;
mod memory;
mod pressed;
mod reload;
mod resume;

use memory::{Chore, Making, Slot};
pub use resume::ResumeError;

/// How long a lease request waits for slabs that are being cleaned before it is told that there are
/// none.
const CLEANING_PATIENCE: Duration = Duration::from_secs(1);

/// How long a lease request makes new memory before it is answered with what there is; the client
/// asks again.
const FILL_BUDGET: Duration = Duration::from_millis(500);

/// How long clients get to return what they have when the donor is drained. It is extended over and
/// over, so that a drain loses nobody's pages.
const DRAIN_SPAN: Duration = Duration::from_secs(600);

/// How often that is done.
const DRAIN_AGAIN: Duration = Duration::from_secs(60);

/// How often the janitor looks whether the host needs memory back.
const PRESSURE_PERIOD: Duration = Duration::from_secs(1);

struct Books {
    book: Book,
    chores: VecDeque<Chore>,
    /// What clients are to be told; not under the lock, since one may be slow to listen.
    notices: VecDeque<(ConnectionId, Event)>,
    watch: Watch,
    /// The janitor was here; cleared by who wants to know.
    has_come_by: bool,
    /// When a drain is renewed.
    drain_again: Instant,
    is_stopping: bool,
}

/// Lends slabs; the heart of an agent.
pub struct Lender {
    /// Replaced whole when the configuration is read again.
    terms: RwLock<Arc<Terms>>,
    incarnation: Incarnation,
    books: Mutex<Books>,
    /// Signalled after every event.
    changed: Condvar,
    /// Before the slots: what is registered is forgotten before its memory goes.
    registrations: Registrations,
    slots: Vec<Slot>,
    keys: RwLock<HashMap<Rkey, SlabId>>,
    board: Board,
    store: Store,
    state: LeaseState,
    offers_shm: bool,
    connections: Connections,
    controls: Controls,
    making: Making,
}

impl Lender {
    /// A lender that goes on with what an earlier one left in `store` (`found`).
    pub fn open(
        terms: Terms,
        incarnation: Incarnation,
        offers_shm: bool,
        store: Store,
        found: Found,
    ) -> Result<Lender, ResumeError> {
        let limits = terms.limits();
        let inherited = resume::take_over(&terms, &store, found)?;
        let now = Moment(monotonic_ns());
        let connections = Connections::new();
        for claim in &inherited.saved.claims {
            claim.machine.holder.iter().for_each(|holder| connections.lane_keys().expect(claim.client, holder.key));
        }
        let book = Book::resume(limits, incarnation, Box::new(rand::random), inherited.saved, now);
        let lender = Lender {
            incarnation,
            books: Mutex::new(Books {
                book,
                chores: VecDeque::new(),
                notices: VecDeque::new(),
                watch: Watch::new(terms.headroom, terms.slab_size),
                has_come_by: false,
                drain_again: Instant::now(),
                is_stopping: false,
            }),
            changed: Condvar::new(),
            registrations: Registrations::default(),
            slots: (0..inherited.slots).map(|_| Slot::default()).collect(),
            keys: RwLock::new(HashMap::with_capacity(terms.capacity_slabs as usize)),
            board: inherited.board,
            store,
            state: inherited.state,
            offers_shm,
            connections,
            controls: Controls::default(),
            making: Making::default(),
            terms: RwLock::new(Arc::new(terms)),
        };
        for (slab, memory) in inherited.memory {
            lender.install(slab, memory);
        }
        // Opens the keys of what goes on.
        lender.with_book(|_, _| ());
        Ok(lender)
    }

    pub fn terms(&self) -> Arc<Terms> {
        self.terms.read().clone()
    }

    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether RDMA is offered, as far as can be told now.
    pub fn verbs_offer(&self) -> VerbsOffer {
        let terms = self.terms();
        let Some(choice) = &terms.verbs else {
            return VerbsOffer::No("it is switched off there (enabled = false in [verbs])".to_owned());
        };
        match Device::open(choice) {
            Ok(device) => VerbsOffer::Over(device.to_string()),
            Err(e) => VerbsOffer::No(e.to_string()),
        }
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
        for slab in (0..self.terms().capacity_slabs).map(SlabId) {
            let books = self.books.lock();
            let (is_vacant, is_enough) = (books.book.is_vacant(slab), books.book.with_memory() >= slabs);
            drop(books);
            if is_enough {
                break;
            }
            if is_vacant {
                self.fill(slab)?;
                self.with_book(|book, _| book.stocked(slab));
            }
        }
        Ok(())
    }

    pub fn hello(&self, client: ClientId, machine: Machine, connection: ConnectionId) -> Result<Greeting, Refusal> {
        let hello = if self.terms().tls.is_some() { Book::hello_beside_tls } else { Book::hello };
        let greeting = self.with_book(|book, now| hello(book, client, machine.clone(), connection, now))?;
        // After what the hello ended, an older claim under this id included.
        let books = self.books.lock();
        self.state.claim(client, &machine, greeting.seen, greeting.until);
        drop(books);
        failpoint("claim-saved");
        Ok(greeting)
    }

    /// Lends up to `count` slabs, making memory for them where there is none. `name` is that of the
    /// client's certificate.
    pub fn lease(
        &self,
        client: ClientId,
        connection: ConnectionId,
        name: Option<&str>,
        count: u32,
    ) -> Result<Vec<Lease>, LeaseError> {
        let started = Instant::now();
        let share = self.terms().share_of(name).map_err(LeaseError::Refused)?;
        let (Grant { mut leased, to_fill }, room) = loop {
            let room = self.room();
            match self.with_book(|book, now| book.lease(client, connection, count, share, room, now)) {
                Err(LeaseError::Cleaning) if started.elapsed() < CLEANING_PATIENCE => {
                    self.wait_while(CLEANING_PATIENCE, Book::is_cleaning);
                }
                Err(LeaseError::Cleaning) => {
                    return Err(LeaseError::Refused(Refusal::Full { capacity: self.terms().capacity_slabs }));
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

    /// All slabs that there are or may be, in whatever state: the capacity can be raised to that.
    pub fn slabs(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slabs that could be lent now.
    pub fn free(&self) -> u32 {
        let room = self.room();
        self.books.lock().book.free(room)
    }

    /// Slabs lent now.
    pub fn lent(&self) -> u32 {
        self.books.lock().book.lent()
    }

    /// Lends nothing any more.
    pub fn close(&self) {
        self.with_book(|book, _| book.close());
    }

    pub fn is_closing(&self) -> bool {
        self.books.lock().book.is_closing()
    }

    /// Lends nothing any more, and asks for everything back, for as long as it takes.
    pub fn drain(&self) {
        self.books.lock().drain_again = Instant::now() + DRAIN_AGAIN;
        self.with_book(|book, now| book.drain(DRAIN_SPAN, now));
    }

    /// Lends again.
    pub fn stop_draining(&self) {
        self.with_book(|book, _| book.stop_draining());
    }

    /// The book, for a listing.
    pub fn view(&self) -> View {
        self.books.lock().book.view()
    }

    /// The clients that hold leases.
    pub fn holders(&self) -> HashSet<ClientId> {
        self.books.lock().book.holders()
    }

    /// True if the janitor comes by within `patience`.
    pub fn is_alive(&self, patience: Duration) -> bool {
        self.books.lock().has_come_by = false;
        self.changed.notify_all();
        let deadline = Instant::now() + patience;
        loop {
            if self.books.lock().has_come_by {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// True while the host is short of memory.
    pub fn is_pressed(&self) -> bool {
        self.books.lock().watch.is_pressed()
    }

    /// Waits until nothing is lent. False if something still is after `patience`.
    pub fn wait_returned(&self, patience: Duration) -> bool {
        self.wait_while(patience, |book| book.lent() > 0)
    }

    /// Ends all leases now.
    pub fn revoke_all(&self) {
        self.with_book(|book, _| book.revoke_all());
    }

    /// Lets go of everything in the store: this is the end for good.
    pub fn forget(&self) {
        // Without it nothing else in there means anything.
        self.store.forget(LEASES);
        self.store.forget(BOARD);
        for slot in &self.slots {
            let memory = slot.memory.read();
            memory.iter().for_each(|m| self.store.forget(&m.name.to_string()));
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Makes [`Lender::clean_up`] return.
    pub fn stop(&self) {
        self.books.lock().is_stopping = true;
        self.changed.notify_all();
    }

    /// The janitor's life: ends leases when they expire, cleans slabs, watches the host's memory.
    pub fn clean_up(&self) {
        let mut next_look = Instant::now() + PRESSURE_PERIOD;
        let mut books = self.books.lock();
        while !books.is_stopping {
            books.has_come_by = true;
            if let Some((connection, event)) = books.notices.pop_front() {
                drop(books);
                self.controls.tell(connection, &event);
                books = self.books.lock();
                continue;
            }
            if let Some(chore) = books.chores.pop_front() {
                drop(books);
                let has_memory = self.clean(chore);
                self.with_book(|book, _| book.cleaned(chore.slab, has_memory));
                books = self.books.lock();
                continue;
            }
            let now = Moment(monotonic_ns());
            let deadline = books.book.next_deadline();
            if deadline.is_some_and(|d| d <= now) {
                drop(books);
                self.with_book(|book, now| book.tick(now));
                books = self.books.lock();
                continue;
            }
            let until_drain = (books.book.is_draining() && books.book.lent() > 0)
                .then(|| books.drain_again.saturating_duration_since(Instant::now()));
            if until_drain.is_some_and(|d| d.is_zero()) {
                drop(books);
                self.drain();
                books = self.books.lock();
                continue;
            }
            let until_look = self.must_look(&books).then(|| next_look.saturating_duration_since(Instant::now()));
            if until_look.is_some_and(|d| d.is_zero()) {
                drop(books);
                self.relieve_pressure();
                next_look = Instant::now() + PRESSURE_PERIOD;
                books = self.books.lock();
                continue;
            }
            let sleep = deadline.map(|d| now.until(d)).into_iter().chain(until_look).chain(until_drain).min();
            match sleep {
                Some(span) => drop(self.changed.wait_for(&mut books, span)),
                None => self.changed.wait(&mut books),
            }
        }
    }

    /// Brings an event before the book and carries out what follows from it.
    fn with_book<T>(&self, event: impl FnOnce(&mut Book, Moment) -> T) -> T {
        let mut books = self.books.lock();
        let answer = event(&mut books.book, Moment(monotonic_ns()));
        for action in books.book.take_actions() {
            self.carry_out(action, &mut books);
        }
        drop(books);
        self.changed.notify_all();
        answer
    }

    fn carry_out(&self, action: Action, books: &mut Books) {
        match action {
            Action::Open { slab, client, rkey, until } => {
                let slot = self.slot(slab);
                self.save(slab, client, rkey.lease());
                failpoint("lease-saved");
                slot.client.store(client.0, Ordering::Relaxed);
                slot.leased.store(monotonic_ns(), Ordering::Relaxed);
                slot.used.store(monotonic_ns(), Ordering::Relaxed);
                slot.rkey.store(rkey.0, Ordering::Relaxed);
                slot.until.store(until.0, Ordering::Release);
                self.keys.write().insert(rkey, slab);
                self.board.grant(slab.0, rkey, self.incarnation, until.0);
                failpoint("lease-opened");
                debug!("{slab} is lent to client {client}");
            }
            Action::Until { client, until } => self.state.until(client, until),
            Action::Seen { client } => {
                self.state.seen(client, self.incarnation);
                failpoint("incarnation-seen");
            }
            Action::Extend { slab, until } => {
                self.slot(slab).until.store(until.0, Ordering::Release);
                self.board.renew(slab.0, until.0);
            }
            Action::Close { slab, rkey, keep } => {
                self.board.revoke(slab.0);
                self.keys.write().remove(&rkey);
                let slot = self.slot(slab);
                slot.until.store(0, Ordering::SeqCst);
                slot.rkey.store(0, Ordering::SeqCst);
                self.registrations.end(rkey);
                failpoint("key-dead");
                // Before a byte of it is changed.
                self.state.end(slab);
                failpoint("lease-ended");
                books.chores.push_back(Chore { slab, keep });
                debug!("{slab} is no longer lent");
            }
            Action::Trim { slab } => books.chores.push_back(Chore { slab, keep: false }),
            Action::Recall { connection, slabs, until } => {
                let deadline_ms = Moment(monotonic_ns()).until(until).as_millis() as u64;
                debug!("{slabs:?} are wanted back within {deadline_ms} ms");
                books.notices.push_back((connection, Event::Recall { slabs, deadline_ms }));
            }
            Action::Revoke { client, slabs } => {
                warn!("client {client} did not return {slabs} slabs in time: they are revoked")
            }
            Action::Lapse { client, slabs } => warn!(
                "client {client} renewed nothing for {} ms: its {slabs} slabs are taken back",
                self.terms().lease_ttl.as_millis()
            ),
            Action::Forget { client } => {
                repeated!(INFO, "a client is gone" of "", "client {client} is gone");
                self.state.forget(client);
                self.connections.close_client(client);
            }
            Action::Supersede { connection } => self.controls.close(connection),
        }
    }

    /// Notes that the slab is lent. A lease that goes on is noted already, with what else there is
    /// to it.
    fn save(&self, slab: SlabId, client: ClientId, number: LeaseNumber) {
        if self.state.has(slab) || !self.store.lasts() {
            return;
        }
        let inode = self.slot(slab).inode.load(Ordering::Relaxed);
        let lease = SavedLease { slab, client, number };
        self.state.lend(lease, SavedMemory { inode, is_shared: false });
    }

    /// Waits while `is_so`, for `patience` at most; false if it still is.
    fn wait_while(&self, patience: Duration, is_so: impl Fn(&Book) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut books = self.books.lock();
        while is_so(&books.book) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut books, left);
        }
        true
    }
}

impl SlabAccess for Lender {
    fn admit(&self, proof: &Proof) -> Result<(), AdmitError> {
        self.with_book(|book, _| book.admit(proof))
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
            // In bounds by the check above, so that this pointer and len bytes from it lie in the
            // slab.
            f(memory.slab.base().wrapping_add(at));
            Some(())
        })
    }

    fn memfd(&self, who: ClientId, rkey: Rkey) -> Result<SlabMemfd, ErrorKind> {
        self.with_memory(who, rkey, |slab, memory| {
            // Before the descriptor exists, so that no path hands it out and forgets to say so.
            if !memory.is_shared.load(Ordering::Relaxed) {
                self.state.shared(slab);
                memory.is_shared.store(true, Ordering::Relaxed);
            }
            let fd = memory.slab.fd().try_clone_to_owned();
            Some(fd.map(|fd| SlabMemfd { fd, offset: 0, len: memory.slab.len() as u64, board_slot: slab.0 }))
        })?
        .map_err(|e| {
            error!("failed to duplicate a slab's descriptor: {e}");
            ErrorKind::RemoteOperation
        })
    }

    fn register(
        &self,
        who: ClientId,
        rkey: Rkey,
        connection: u64,
        domain: &Arc<ProtectionDomain>,
    ) -> Result<Window, RegistrationError> {
        let registered = self.with_memory(who, rkey, |slab, memory| {
            let slot = self.slot(slab);
            // A lease that ends meanwhile clears the key first, and ends its registrations
            // afterwards.
            let holds = || slot.rkey.load(Ordering::SeqCst) == rkey.0;
            let (base, len) = (memory.slab.base(), memory.slab.len());
            Some(self.registrations.register(rkey, connection, holds, || {
                // SAFETY: the slab stays mapped until it is cleaned, which comes after the lease's
                // end and so after the registration's; it is only ever reached through raw
                // pointers.
                unsafe { MemoryRegion::new(domain, base, len, Rights::RemoteAll) }
            }))
        })?;
        Ok(registered?.ok_or(ErrorKind::RemoteAccess)?)
    }

    fn unregister(&self, connection: u64) {
        self.registrations.leave(connection);
    }

    fn board(&self) -> Option<BorrowedFd<'_>> {
        self.offers_shm.then(|| self.board.fd())
    }
}

#[cfg(test)]
mod tests;
