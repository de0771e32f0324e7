//! The pool: other machines' memory as one store of 4 KiB slots, replicated, checked, placed.
//!
//! The pager and the KV see [`Pool`] (reserve, retain, release slots; how full, how well) and
//! [`Lane`]s (read and write them). They never see a donor, a fabric or an rkey; the pool never
//! sees a process.
//!
//! # Threads
//! - A **lane** belongs to the thread that uses it: reads and writes, over its own endpoints. It
//!   takes no lock and waits for nobody.
//! - One **donor thread** per donor keeps the control connection: hello, leases, renewal,
//!   reconnection with back-off; it opens endpoints for lanes. It may block on the network.
//! - The **coordinator** is the one who decides: which donors a new extent goes to, when one is
//!   given back, when a donor's replicas are away or lost and where others are made. It never
//!   blocks on the network; its decisions are made by `book`, which is pure.
//! - The **spill file**, if there is one, is a donor that nobody prefers (`spill`).
//! - The **repair thread** copies what joining replicas lack, rewrites pages that decayed, and
//!   looks for such pages. It has a lane of its own.
//!
//! # State
//! Where the replicas lie (`extents`) and what each slot holds (`slots`) is in two memfds with
//! documented layouts, so that the next annexd can take them over. Everything else can be made anew
//! from them and from what the agents say.
//!
//! # What holds
//! - A replica that is *live* has every write that was reported done. One that missed a write is
//!   not read before it got it. (`replicas`)
//! - No byte reaches the owner of a lane that does not have the checksum of what was last written
//!   to its slot, unless it asks for a piece of a slot, which it verifies itself.
//! - A slot is not reused before every operation on it is over, nor within a lease's time after a
//!   write to it whose end was never seen.

mod book;
mod buffer;
mod config;
mod coordinator;
mod core;
pub mod dial;
mod donor;
mod error;
mod extents;
mod fills;
mod hedging;
mod inflight;
mod lack;
mod lane;
mod mailbox;
mod members;
mod migrate;
mod placement;
mod recount;
mod repair;
mod replica;
mod replicas;
mod report;
mod session;
mod shares;
#[cfg(test)]
mod sim;
mod slots;
mod spill;
mod traffic;
mod transport;

use self::core::{Core, Donor, DonorView, lock};
use annex_host::mapped;
use annex_shared::api::{DonorInfo, DonorState, PoolInfo, SlabInfo};
use annex_shared::ids::{ClientId, SlotIdx};
use annex_shared::page::PAGE_SIZE;
use book::Grade;
use extents::{ExtentTable, SPILL};
use slots::SlotTable;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use annex_fabric::ErrorKind;
pub use buffer::Buf;
pub use config::{ConfigError, DonorConfig, MAX_REPLICAS, PoolConfig, TransportChoice};
pub use error::{DonorError, IoError, LaneError, PoolError};
pub use lane::Lane;
pub use shares::Terms;
pub use slots::SlotRun;
pub use spill::{Spill, SpillConfig, SpillError};

/// An extent is worth filling on while a quarter of it is free.
const ROOMY: u32 = 4;
/// How long `reserve` waits for an extent that is on its way.
const RESERVE_WAIT: Duration = Duration::from_secs(1);

/// The lane has too much under way: submit, poll and try again. Holds the buffer.
#[derive(Debug, thiserror::Error)]
#[error("the lane has too much under way")]
pub struct Busy(pub Buf);

/// One piece of a write: `run.count` pages of the buffer from page `at` go to the slots of `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub run: SlotRun,
    pub at: usize,
}

impl Part {
    /// The buffer's pages, from the first on, to the slots of these runs in their order.
    pub fn in_order(runs: &[SlotRun]) -> Vec<Part> {
        let mut at = 0;
        let part = |run: &SlotRun| {
            let part = Part { run: *run, at };
            at += run.count as usize;
            part
        };
        runs.iter().map(part).collect()
    }
}

/// A read or write that is over.
#[derive(Debug)]
pub struct Done {
    pub token: u64,
    pub buf: Buf,
    pub result: Result<(), IoError>,
}

/// Tells each reference to a slot to whom it is given.
pub type References<'a> = &'a dyn Fn(&mut dyn FnMut(SlotIdx));

/// The pool's tables: fresh, or those of the annexd before.
pub enum PoolState<'a> {
    Fresh,
    /// Descriptors of an extent table and a slot table, as [`Pool::state_fds`] gave them.
    Saved {
        extents: OwnedFd,
        slots: OwnedFd,
        /// Tells every reference there is, once for each: what nobody refers to is free.
        references: References<'a>,
    },
}

/// See the module's header.
pub struct Pool {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    taken_over: bool,
    shares: shares::Shares,
}

impl Pool {
    /// Starts the pool: connects to the donors in the background and waits for them a moment
    /// (`start_wait`), not for ever.
    pub fn start(config: PoolConfig, spill: Option<Arc<Spill>>, state: PoolState<'_>) -> Result<Arc<Pool>, PoolError> {
        let dialer = Arc::new(dial::NetDialer::new(&config));
        Self::start_with(config, spill, state, dialer)
    }

    /// As [`Pool::start`], reaching donors through another dialer.
    pub fn start_with(
        config: PoolConfig,
        spill: Option<Arc<Spill>>,
        state: PoolState<'_>,
        mut dialer: Arc<dyn dial::Dialer>,
    ) -> Result<Arc<Pool>, PoolError> {
        config.check()?;
        let taken_over = matches!(state, PoolState::Saved { .. });
        let (extents, slots, unsettled) = match state {
            PoolState::Fresh => (ExtentTable::create(ClientId(rand::random()))?, SlotTable::create()?, Vec::new()),
            PoolState::Saved { extents, slots, references } => {
                let extents = ExtentTable::open(extents)?;
                let slots = SlotTable::open(slots)?.ok_or(PoolError::SlotTable)?;
                let unsettled = recount::recount(&extents, &slots, references)?;
                (extents, slots, unsettled)
            }
        };
        let donors = Self::name_donors(&config, &extents, spill.is_some())?;
        let mut spill_id = None;
        if let Some(spill) = spill {
            let id = extents.spill().ok_or(ConfigError::TooManyDonors(config.donors.len() + 1))?;
            spill.inherit(extents.leases(id));
            spill_id = Some(id);
            dialer = Arc::new(spill::WithSpill { donors: dialer, spill });
        }
        let (coordinator, news) = mpsc::channel();
        let (repair, tasks) = mpsc::channel();
        let core = Arc::new(Core::new(config, extents, slots, spill_id, coordinator, repair));
        donors.into_iter().for_each(|donor| {
            core.add_donor(donor);
        });
        if let Some(slots) = core.extents.slots_per_extent() {
            core.extents.live().for_each(|(extent, _)| core.slots.adopt(extent, slots));
        }
        let threads = coordinator::start(&core, dialer, news, tasks)?;
        // A write that was under way when the annexd before ended may arrive yet.
        unsettled.into_iter().for_each(|run| core.tell(coordinator::News::Discard(run)));
        let pool = Arc::new(Pool { core, threads: Mutex::new(threads), taken_over, shares: shares::Shares::default() });
        if !taken_over {
            // Programs stand still meanwhile if there are any already; what they need waits for its
            // donor alone.
            pool.wait_for_donors();
        }
        Ok(pool)
    }

    /// A lane with an arena of `pages` page buffers. `name` is for logs.
    pub fn lane(self: &Arc<Self>, name: &str, pages: usize) -> Result<Lane, LaneError> {
        let mut lane = Lane::new(self.core.clone(), pages)?;
        // Endpoints come by mail. Those of donors that are up come at once, so a lane is ready to
        // use when its owner gets it.
        let up = self.donors().iter().filter(|d| d.state == DonorState::Up).count();
        let until = Instant::now() + self.core.config.control_timeout.0;
        let mut nothing = Vec::new();
        while lane.connected() < up && Instant::now() < until {
            lane.poll(&mut nothing);
            std::thread::sleep(Duration::from_millis(1));
        }
        tracing::debug!("lane {name}: {} of {up} donors connected", lane.connected());
        Ok(lane)
    }

    /// Takes up to `pages` slots, as contiguous as can be, each with one reference, and appends
    /// their runs. Less than asked for means that the pool is full now. May wait up to about a
    /// second when extents are on their way.
    fn take_slots(&self, pages: usize, runs: &mut Vec<SlotRun>) -> usize {
        let until = Instant::now() + RESERVE_WAIT;
        let mut got = 0;
        let mut allocatable = lock(&self.core.allocatable);
        let mut good_only = true;
        // What the shelf says may be from before the first donor was there: only a fresh word
        // counts.
        let looks = allocatable.looks;
        while got < pages {
            if let Some(run) = self.take_best(&allocatable, (pages - got).min(u32::MAX as usize) as u32, good_only) {
                got += run.count as usize;
                allocatable.taken += u64::from(run.count);
                runs.push(run);
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            let dry = allocatable.dry && allocatable.looks > looks + 1;
            if good_only && (dry || left.is_zero()) {
                // Degraded extents take pages only when there is nothing better.
                good_only = false;
                continue;
            }
            if dry || left.is_zero() || self.core.stopping.load(Acquire) {
                break;
            }
            allocatable.wanted = (pages - got) as u64;
            self.core.tell(coordinator::News::Wanted);
            let waited = self.core.shelf_changed.wait_timeout(allocatable, left);
            allocatable = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        if got < pages {
            allocatable.wanted = (pages - got) as u64;
        }
        // The coordinator takes the next extent before this one is used up.
        let slots = u64::from(self.core.extents.slots_per_extent().unwrap_or(0));
        if got < pages || allocatable.taken >= slots / 8 {
            self.core.tell(coordinator::News::Taken);
        }
        drop(allocatable);
        got
    }

    /// Reserved slots that are not written soon: what is in them is worth nothing to anybody.
    pub fn put_aside(&self, run: SlotRun) {
        self.core.discarded.add(run);
    }

    /// Slots that were put aside are going to be written.
    pub fn will_write(&self, run: SlotRun) {
        self.core.discarded.remove(run);
    }

    /// One more reference to a slot that has at least one.
    pub fn retain(&self, slot: SlotIdx) {
        if !self.core.retain(slot) {
            tracing::error!("{slot} was retained while free");
        }
    }

    /// How many references there are to a slot.
    pub fn references(&self, slot: SlotIdx) -> u32 {
        self.core.slots.references(slot)
    }

    /// One reference less; the last one frees the slot.
    pub fn release(&self, slot: SlotIdx) {
        if !self.core.release(slot) {
            tracing::error!("{slot} was released more often than retained");
        }
    }

    /// Slots are numbered extent after extent: this many to each (0 before the first donor has said
    /// how large its slabs are).
    pub fn slots_per_extent(&self) -> u32 {
        self.core.extents.slots_per_extent().unwrap_or(0)
    }

    /// CRC32C of what was last written to the slot.
    pub fn checksum(&self, slot: SlotIdx) -> u32 {
        self.core.slots.checksum(slot)
    }

    /// Whether a slot that is freed now can be taken again: some extent has a replica that takes
    /// writes.
    pub fn takes_writes(&self) -> bool {
        lock(&self.core.allocatable).extents.iter().any(|entry| self.core.is_writable(entry.extent))
    }

    /// More room is wanted than there is, and none is on its way, as far as is known. What donors
    /// have told of their room may be older: one that has begun to drain lends nothing.
    pub fn is_dry(&self) -> bool {
        lock(&self.core.allocatable).dry
    }

    /// Grows whenever a replica is away, back, lost, or made anew: what was said of the pool's room
    /// before may not hold.
    pub fn replica_changes(&self) -> u64 {
        self.core.changes()
    }

    /// Whether a replica of the slot takes writes now.
    pub fn takes_writes_to(&self, slot: SlotIdx) -> bool {
        self.core.extents.locate(slot).is_some_and(|(extent, _)| self.core.is_writable(extent))
    }

    /// How many more pages the pool could take: free in the extents held, and what donors say is
    /// free.
    pub fn available_pages(&self) -> u64 {
        let Some(slots) = self.core.extents.slots_per_extent() else { return 0 };
        let allocatable = lock(&self.core.allocatable);
        let held = allocatable.extents.len() as u64;
        // Degraded ones are taken too, when there is nothing better.
        let usable =
            allocatable.extents.iter().filter(|s| s.grade != Grade::Degraded || self.core.is_writable(s.extent));
        let free: u64 = usable.map(|s| u64::from(self.core.slots.free_count(s.extent))).sum();
        let degrades = allocatable.degrades;
        drop(allocatable);
        let real = self.core.donors().filter(|d| self.is_real(d) && !d.silent.load(Relaxed));
        let views = real.map(|d| lock(&d.view).clone());
        let donors: Vec<u64> = views.filter(|v| v.state == DonorState::Up).map(|v| u64::from(v.free)).collect();
        let replicas = usize::from(self.core.config.replicas);
        let on_donors = match degrades {
            // Each of them may be the only one that a new extent has.
            true => donors.into_iter().max().unwrap_or(0),
            false => placement::extents_possible(&donors, replicas),
        };
        let more = match self.spill_room() {
            // The donors' extents will have their backups, or their second replicas, there.
            room if replicas == 1 || degrades => on_donors.max(room),
            room => on_donors + room,
        };
        let allowed = match self.core.config.max_bytes.0 {
            0 => more,
            max => more.min((max / (u64::from(slots) * PAGE_SIZE as u64)).saturating_sub(held)),
        };
        free + allowed * u64::from(slots)
    }

    /// Whether enough donors are up to place R replicas, or else a spill file. The error says which
    /// are missing and why.
    pub fn is_usable(&self) -> Result<(), PoolError> {
        if self.spill_is_up() { Ok(()) } else { self.has_enough_donors() }
    }

    fn has_enough_donors(&self) -> Result<(), PoolError> {
        let replicas = self.core.config.replicas;
        let used = self.core.donors().filter(|d| self.is_real(d) && lock(&d.config).is_some());
        let views: Vec<DonorView> = used.map(|d| lock(&d.view).clone()).collect();
        if views.is_empty() {
            return Err(PoolError::NoDonors);
        }
        let up = views.iter().filter(|v| v.state == DonorState::Up).count();
        if up >= usize::from(replicas) {
            return Ok(());
        }
        let down = views.iter().filter(|v| v.state != DonorState::Up);
        let mut missing: Vec<String> = down.map(|v| format!("donor {}: {}", v.name, v.why)).collect();
        if views.len() < usize::from(replicas) {
            missing.push(format!("only {} configured: add donors or lower replicas", views.len()));
        }
        Err(PoolError::TooFewDonors { up, needed: replicas.into(), replicas, missing: missing.join("; ") })
    }

    pub fn donors(&self) -> Vec<DonorInfo> {
        let mut used = BTreeMap::new();
        for (extent, replicas) in self.core.extents.live() {
            let bytes = self.used_bytes(extent);
            for (_, replica) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                *used.entry(replica.donor).or_insert(0) += bytes;
            }
        }
        let info = |donor: &Donor| {
            let view = lock(&donor.view).clone();
            DonorInfo {
                name: view.name,
                address: donor.address.clone(),
                state: view.state,
                transport: view.transport,
                why: view.why,
                slabs_held: view.held,
                slabs_free: view.free,
                slabs_capacity: view.capacity,
                used: used.get(&donor.id).copied().unwrap_or(0),
                reads: donor.stats.reads.load(Relaxed),
                writes: donor.stats.writes.load(Relaxed),
                errors: donor.stats.errors.load(Relaxed),
                checksum_errors: donor.stats.checksum_errors.load(Relaxed),
                healed: donor.stats.healed.load(Relaxed),
                draining: view.draining,
                traffic: donor.traffic.info(),
            }
        };
        // One that was removed is shown as long as something of it is left.
        let shown = |d: &&Donor| lock(&d.config).is_some() || used.contains_key(&d.id);
        self.core.donors().filter(shown).map(info).collect()
    }

    /// Bytes that slots take on each donor, by its name.
    pub fn bytes_by_donor(&self, slots: impl Iterator<Item = SlotIdx>) -> BTreeMap<String, u64> {
        let mut extents = BTreeMap::new();
        for (extent, _) in slots.filter_map(|slot| self.core.extents.locate(slot)) {
            *extents.entry(extent).or_insert(0) += PAGE_SIZE as u64;
        }
        let mut donors = BTreeMap::new();
        for (extent, bytes) in extents {
            let Some(replicas) = self.core.extents.replicas(extent) else { continue };
            for (_, replica) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                let name = self.core.donor(replica.donor).map(|donor| lock(&donor.view).name.clone());
                *donors.entry(name.unwrap_or_default()).or_insert(0) += bytes;
            }
        }
        donors
    }

    pub fn slabs(&self) -> Vec<SlabInfo> {
        let size = u64::from(self.core.extents.slots_per_extent().unwrap_or(0)) * PAGE_SIZE as u64;
        let mut slabs = Vec::new();
        for (extent, replicas) in self.core.extents.live() {
            let used = self.used_bytes(extent);
            for (n, replica) in replicas.iter() {
                let Some(donor) = self.core.donor(replica.donor) else { continue };
                let view = lock(&donor.view);
                slabs.push(SlabInfo {
                    donor: view.name.clone(),
                    slab: replica.slab.0,
                    extent: extent.0,
                    replica: n,
                    size,
                    used,
                    transport: view.transport,
                    state: replica.state.name().to_owned(),
                });
            }
        }
        slabs
    }

    pub fn info(&self) -> PoolInfo {
        let mut info = PoolInfo::default();
        let extent_bytes = u64::from(self.core.extents.slots_per_extent().unwrap_or(0)) * PAGE_SIZE as u64;
        for (extent, replicas) in self.core.extents.live() {
            info.extents += 1;
            info.capacity += extent_bytes;
            let used = self.used_bytes(extent);
            info.used += used;
            match replicas.live() {
                0 if !replicas.is_kept() => info.lost_extents += 1,
                n if n < usize::from(self.core.config.replicas) => {
                    info.degraded_extents += 1;
                    info.waiting_extents += u32::from(n == 0);
                    info.last_copy_extents += u32::from(n == 1 && used > 0);
                }
                _ => {}
            }
        }
        self.tell_repair(&mut info);
        let allocatable = lock(&self.core.allocatable);
        info.full = (allocatable.dry || allocatable.full)
            && allocatable.extents.iter().all(|s| self.core.slots.free_count(s.extent) == 0);
        drop(allocatable);
        if info.full {
            info.lack = self.lack();
        }
        info
    }

    /// Memory that the pool's tables really take, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        self.core.extents.resident() + self.core.slots.resident()
    }

    /// Gives up a reference to each of the run's slots, whose bytes nobody needs, once no operation
    /// that was under way at the last annexd's end can reach them any more.
    pub fn rest(&self, run: SlotRun) {
        self.core.tell(coordinator::News::Discard(run));
    }

    /// The tables' descriptors, to be kept where they outlive this process: (extents, slots).
    pub fn state_fds(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.core.extents.fd(), self.core.slots.fd())
    }

    /// True if the tables came from the annexd before.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// Gives everything back to the donors and ends the pool's threads. What is in the pool is
    /// gone.
    pub fn shutdown(&self) {
        self.core.stopping.store(true, Release);
        self.core.tell(coordinator::News::Stop { give_back: true });
        self.join();
    }

    /// Ends the pool's threads and leaves the leases as they are, for the next annexd to take over
    /// with [`Pool::state_fds`].
    pub fn leave(&self) {
        self.core.stopping.store(true, Release);
        self.core.tell(coordinator::News::Stop { give_back: false });
        self.join();
    }

    fn join(&self) {
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the pool panicked");
            }
        }
    }

    /// Where donors have it, else in the last tier if donors have no room, else wherever it can be.
    fn take_best(&self, allocatable: &core::AllocatableExtents, want: u32, good_only: bool) -> Option<SlotRun> {
        let spilled =
            || (allocatable.spills || !good_only).then(|| self.take(allocatable, want, Grade::LastTier)).flatten();
        let degraded =
            || (allocatable.degrades || !good_only).then(|| self.take(allocatable, want, Grade::Degraded)).flatten();
        self.take(allocatable, want, Grade::Whole).or_else(spilled).or_else(degraded)
    }

    /// A run of slots from the fullest extent that still has a good part free, else from the
    /// emptiest: extents stay dense, so that few are held, and yet a batch finds its slots near
    /// each other.
    fn take(&self, allocatable: &core::AllocatableExtents, want: u32, grade: Grade) -> Option<SlotRun> {
        let slots = self.core.extents.slots_per_extent()?;
        let free = |s: &&core::Allocatable| self.core.slots.free_count(s.extent);
        // Nothing can be written where no replica is left.
        let alive = |s: &&core::Allocatable| grade != Grade::Degraded || self.core.is_writable(s.extent);
        let candidates = || allocatable.extents.iter().filter(|s| s.grade == grade).filter(alive);
        let roomy = candidates().filter(|s| free(s) >= slots / ROOMY).min_by_key(free);
        let best = roomy.or_else(|| candidates().filter(|s| free(s) > 0).max_by_key(free))?;
        self.core.slots.take(best.extent, slots, want)
    }

    fn used_bytes(&self, extent: annex_shared::ids::ExtentId) -> u64 {
        let slots = self.core.extents.slots_per_extent().unwrap_or(0);
        u64::from(slots.saturating_sub(self.core.slots.free_count(extent))) * PAGE_SIZE as u64
    }

    fn wait_for_donors(&self) {
        let until = Instant::now() + self.core.config.start_wait.0;
        let settled = |p: &Pool| p.core.donors().all(|d| lock(&d.view).state == DonorState::Up);
        while !settled(self) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Gives every configured donor its number, the one it had before if there are saved tables.
    fn name_donors(config: &PoolConfig, extents: &ExtentTable, has_spill: bool) -> Result<Vec<Donor>, PoolError> {
        for donor in &config.donors {
            extents.donor(&donor.address, false).ok_or(ConfigError::TooManyDonors(config.donors.len()))?;
        }
        // Numbered, and listed, after those that were there first.
        let spill = if has_spill { extents.spill() } else { None };
        let mut donors = Vec::new();
        for (id, address) in extents.donors() {
            let configured = config.donors.iter().find(|d| d.address == address).cloned();
            let added = || DonorConfig { address: address.clone(), ..DonorConfig::default() };
            let known = configured.or_else(|| extents.is_added_at_run_time(id).then(added));
            let known = if spill == Some(id) { Some(spill::as_donor()) } else { known };
            if known.is_none() && !extents.leases(id).is_empty() {
                return Err(if address == SPILL { PoolError::SpillMissing } else { PoolError::DonorMissing(address) });
            }
            donors.push(Donor::new(id, address, known));
        }
        Ok(donors)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core.stopping.store(true, Release);
        self.core.tell(coordinator::News::Stop { give_back: false });
        self.join();
    }
}
