//! One address space: its userfaultfd, its page table, and the one order in which things happen to
//! it.
//!
//! Everything that decides where a page is happens under the space's lock: reading messages and
//! applying them, checking a record and installing its page, and between the moves of an eviction,
//! which are made without it ([`hold`](crate::space::hold)). The lock is never held across a fabric
//! operation that has to be waited for. The rules that make this right (FORK, REMAP, REMOVE and
//! UNMAP are called *changes*):
//!
//! - All changes that were read are applied before any fault that was read is served: once a change
//!   is read the app goes on, and a fault served first would alter the records that, say, a fork's
//!   child must inherit.
//! - While a change is unread, COPY, WRITEPROTECT and MOVE answer EAGAIN. So an install or an
//!   eviction that succeeds under the lock has met the address space that the records describe.
//! - REMOVE comes *before* the kernel drops the pages. Until the app touches such a page anew it
//!   may be about to vanish, so its record is *gone* and it is not evicted: evicting it would bring
//!   back what the app threw away.
//!
//! Lock order: [`Space::evicting`] before [`Space::core`]; a parent's core before its new child's.

use crate::app::application::App;
use crate::events::window::Window;
use crate::evict::move_batch::MoveBatch;
use crate::evict::policy;
use crate::fault::fetch::Stretch;
use crate::fault::next::Next;
use crate::fault::page_fault::{Fault, Why};
use crate::fault::prefetch::Prefetcher;
use crate::inject::stub::{Gate, Stub};
use crate::kernel::mm::{Mark, Mm};
use crate::kernel::scan::Pagemap;
use crate::kernel::uffd::{Event, Installed, Message, Uffd};
use crate::page::PageIdx;
use crate::sched::cpu_affinity::CpuAffinity;
use crate::sched::watchdog::Watchdog;
use crate::space::guard_regions::GuardRegions;
use crate::space::hold::Hold;
use crate::space::inflight::InFlight;
use crate::space::region::Regions;
use crate::space::registry::Registry;
use crate::space::table::{JOURNAL_MESSAGES, Record, StubTraces, Table};
use annex_host::failpoint::failpoint;
use annex_host::repeated;
use annex_pool::Pool;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Names a space among all that this annexd has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u64);

/// Has somebody watch a space.
pub type Watch = Box<dyn Fn(&Arc<Space>) + Send + Sync>;

/// What the space needs of the rest of the pager.
pub struct Shared {
    pub pool: Arc<Pool>,
    pub in_flight: InFlight,
    pub registry: Arc<Registry>,
    pub watchdog: Watchdog,
    /// Has a fork's child watched.
    pub watch: Watch,
    pub ids: AtomicU64,
}

pub struct Core {
    pub table: Table,
    pub regions: Regions,
    pub(crate) prefetcher: Prefetcher,
    pub home: CpuAffinity,
    /// The clock's lap, modulo `policy::LAPS`.
    pub lap: u8,
    /// Pages that the kernel touches where it can't wait for them (see `thread_exit`), never to be
    /// evicted; forgotten when they are unmapped.
    pub pins: BTreeSet<PageIdx>,
    /// Pages that are to stay resident, and were evicted before that was known.
    pub wanted: Vec<PageIdx>,
    /// Changes of which it is not known yet whether all that happened with them have been read.
    pub window: Window,
    /// The moves that are being made, see [`hold`](crate::space::hold).
    pub(crate) moves: Option<Box<MoveBatch>>,
    /// To be rung for: staging is to be emptied.
    pub(crate) release: Option<Gate>,
    /// There was a fault since the last moves began.
    pub(crate) faulted: bool,
    /// Something went wrong that makes further eviction unsafe, but what is evicted can still be
    /// brought back.
    pub frozen: bool,
    /// Pages that are evicted by their records, and may be there all the same: their install was
    /// cut short by the end of an annexd.
    pub suspects: BTreeSet<PageIdx>,
    /// Once the program has put guards over evicted pages.
    pub(crate) guards: Option<GuardRegions>,
    /// Slots that the change under way lets go of.
    pub(crate) released: Vec<SlotIdx>,
    /// The child that the change under way brings.
    pub(crate) born: Vec<Arc<Space>>,
    faults: Vec<Fault>,
}

/// What the evictor keeps of a space. Held by whoever evicts, restores or detaches.
pub struct Evicting {
    pub stub: Option<Stub>,
    pub clock: crate::evict::clock::Clock,
    pub exits: crate::evict::thread_exit::ThreadExits,
}

pub struct Space {
    pub id: SpaceId,
    pub app: Arc<App>,
    pub uffd: Uffd,
    pub evicting: Mutex<Evicting>,
    pub(crate) core: Mutex<Core>,
    /// 0 while it is not known which process this is (a fork's child).
    pid: AtomicI32,
    stub_pid: AtomicI32,
    /// The address space itself, once something of it could be opened.
    mm: Mutex<Option<Arc<Mm>>>,
    /// What tells it from others, once it had a stub.
    mark: Mutex<Option<Mark>>,
    /// The stub has the CPU that the faults come from.
    pub stub_is_at_home: AtomicBool,
    /// What is evicted lies in short spans.
    pub is_scattered: AtomicBool,
    /// The staging area, whose REMOVE events are our own: the annexd before may have had it emptied
    /// while it was registered.
    pub(crate) staging: Mutex<(u64, u64)>,
    dead: AtomicBool,
    /// The parent that a young child (see `young`) waits for, and since when it does.
    pub(crate) elder: Mutex<Option<(Weak<Space>, Instant)>>,
    last_evicted: AtomicU64,
    last_overhead: AtomicU64,
    /// The thread that faulted last, until somebody has looked.
    faulted: AtomicI32,
}

/// How many pages a zero-filled fault brings along, aligned.
const ZERO_AROUND: u64 = 16;
static ZEROS: [u8; ZERO_AROUND as usize * PAGE_SIZE] = [0; ZERO_AROUND as usize * PAGE_SIZE];

impl Space {
    pub fn new(id: SpaceId, app: Arc<App>, uffd: Uffd, table: Table) -> Space {
        let table_is_frozen = table.is_frozen();
        uffd.hold();
        let core = Core {
            table,
            regions: Regions::default(),
            prefetcher: Prefetcher::default(),
            home: CpuAffinity::default(),
            lap: 0,
            pins: BTreeSet::new(),
            wanted: Vec::new(),
            window: Window::default(),
            moves: None,
            release: None,
            faulted: false,
            frozen: table_is_frozen,
            suspects: BTreeSet::new(),
            guards: None,
            released: Vec::new(),
            born: Vec::new(),
            faults: Vec::with_capacity(JOURNAL_MESSAGES),
        };
        Space {
            id,
            app,
            uffd,
            evicting: Mutex::new(Evicting { stub: None, clock: Default::default(), exits: Default::default() }),
            core: Mutex::new(core),
            pid: AtomicI32::new(0),
            stub_pid: AtomicI32::new(0),
            mm: Mutex::default(),
            mark: Mutex::default(),
            stub_is_at_home: AtomicBool::new(false),
            is_scattered: AtomicBool::new(false),
            staging: Mutex::new((0, 0)),
            dead: AtomicBool::new(false),
            elder: Mutex::default(),
            last_evicted: AtomicU64::new(0),
            last_overhead: AtomicU64::new(0),
            faulted: AtomicI32::new(0),
        }
    }

    pub fn pid(&self) -> Option<i32> {
        Some(self.pid.load(Relaxed)).filter(|p| *p != 0)
    }

    /// The stub's PID, without waiting for whoever is using it.
    pub fn stub_pid(&self) -> Option<i32> {
        Some(self.stub_pid.load(Relaxed)).filter(|p| *p != 0)
    }

    /// Writes down the stub that the space is to have, the process it turned out to be, and the
    /// address space that both live in.
    pub fn describe(&self, pid: i32, stub: &Stub, mm: Mm) {
        self.pid.store(pid, Relaxed);
        self.stub_pid.store(stub.pid(), Relaxed);
        let traces = stub.traces();
        *self.staging.lock() = traces.staging;
        *self.mark.lock() = Some(stub.mark());
        *self.mm.lock() = Some(Arc::new(mm));
        self.core().table.describe(pid, &traces);
    }

    /// Says which process this is, as the annexd before knew it, and gives it what that one had of
    /// it, as far as it is of use.
    pub fn resume(&self, pid: i32, stub: Option<Stub>, traces: Option<StubTraces>, mm: Option<Mm>) {
        self.pid.store(pid, Relaxed);
        self.stub_pid.store(stub.as_ref().map_or(0, Stub::pid), Relaxed);
        *self.staging.lock() = traces.map(|traces| traces.staging).unwrap_or_default();
        let mark = stub.as_ref().map(Stub::mark);
        *self.mark.lock() = mark.or(traces.map(|traces| traces.mark()));
        *self.mm.lock() = mm.map(Arc::new);
        self.evicting.lock().stub = stub;
    }

    /// Another process lives in the address space, which outlives the one that was known.
    pub fn move_in(&self, pid: i32) {
        self.pid.store(pid, Relaxed);
        let core = self.core();
        if let Some(traces) = core.table.stub() {
            core.table.describe(pid, &traces);
        }
    }

    /// The address space itself.
    pub fn mm(&self) -> Option<Arc<Mm>> {
        self.mm.lock().clone()
    }

    /// What tells the address space from all others.
    pub fn mark(&self) -> Option<Mark> {
        *self.mark.lock()
    }

    /// A task that lives in the address space, to look at its mappings: the stub, or else a thread
    /// of its process.
    pub fn task(&self) -> Option<i32> {
        let mark = self.mark()?;
        let stub = self.stub_pid().filter(|stub| mark.is_in(*stub) == Some(true));
        stub.or_else(|| mark.task_of(self.pid()?))
    }

    /// The page map of the address space.
    pub fn pagemap(&self) -> io::Result<Pagemap> {
        self.mm().ok_or(io::ErrorKind::NotFound)?.pagemap()
    }

    /// Whether a process, which lives, has become another program and left this address space.
    pub fn was_left_by(&self, pid: i32) -> bool {
        self.mark().is_some_and(|mark| mark.was_left_by(pid))
    }

    /// A thread has faulted; its ID in its own PID namespace.
    pub fn faulted(&self, thread: i32) {
        self.faulted.store(thread, Relaxed);
    }

    /// The thread that faulted last, if there was a fault since the last call.
    pub fn last_faulted(&self) -> Option<i32> {
        Some(self.faulted.swap(0, Relaxed)).filter(|thread| *thread != 0)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    pub fn set_dead(&self) {
        self.dead.store(true, Relaxed);
    }

    pub fn evicted(&self) -> u64 {
        let evicted = self.core().table.evicted();
        self.last_evicted.store(evicted, Relaxed);
        evicted
    }

    /// [`Space::evicted`], or what it was when it was last asked for if somebody holds the core:
    /// whoever looks after all apps must not wait for one of them.
    pub fn evicted_about(&self) -> u64 {
        let evicted = self.core_within(Duration::from_millis(1)).map(|core| core.table.evicted());
        evicted.inspect(|n| self.last_evicted.store(*n, Relaxed)).unwrap_or_else(|| self.last_evicted.load(Relaxed))
    }

    /// Bytes of its table; what they were when last asked for if somebody holds the core.
    pub fn overhead_about(&self) -> u64 {
        let bytes = self.core_within(Duration::from_millis(1)).map(|core| core.table.bytes());
        bytes.inspect(|n| self.last_overhead.store(*n, Relaxed)).unwrap_or_else(|| self.last_overhead.load(Relaxed))
    }

    /// Reads all messages (beside a stub that moves pages: only faults), applies the changes among
    /// them, and appends the faults to `faults`; they have waited at least since `since`. A young
    /// child's messages wait.
    pub fn drain(self: &Arc<Self>, core: &mut Hold<'_>, shared: &Shared, since: Instant, faults: &mut Vec<Fault>) {
        if !self.is_young() {
            self.read_messages(core, shared, since, faults);
            self.settle_changes(core, shared);
        }
    }

    /// Reads as [`Space::drain`] does, and settles nothing.
    pub(crate) fn read_messages(
        self: &Arc<Self>,
        core: &mut Hold<'_>,
        shared: &Shared,
        since: Instant,
        faults: &mut Vec<Fault>,
    ) {
        // Small reads keep two workers busy on one space; a change makes it read on to the end.
        const FEW: usize = 8;
        let mut most = core.readable();
        while most > 0 {
            let few = FEW.min(most);
            let journal = core.table.journal();
            // SAFETY: the journal has room for JOURNAL_MESSAGES.
            let read = unsafe { self.uffd.read(journal, few) };
            let count = match read {
                Ok(0) => break,
                Ok(count) => count,
                Err(errno) => {
                    tracing::debug!(%errno, space = self.id.0, "the userfaultfd ended");
                    self.set_dead();
                    break;
                }
            };
            most -= count;
            for i in 0..count {
                // SAFETY: `count` messages were just read into the journal.
                let message = unsafe { journal.add(i).read() };
                match message.event() {
                    Event::Fault { addr, write, thread } => {
                        let evictors = shared.watchdog.are_evictors(thread);
                        core.faults.push(Fault { page: PageIdx::of(addr), write, thread, since, evictors });
                    }
                    change => {
                        core.startle();
                        most = core.readable();
                        self.change(core, i, change, shared);
                    }
                }
            }
            core.table.clear_journal(count);
            if count < few {
                break;
            }
        }
        faults.append(&mut core.faults);
    }

    /// Looks at one fault. The caller holds the core and has applied every change read so far.
    pub fn serve(self: &Arc<Self>, core: &mut Hold<'_>, fault: Fault, shared: &Shared) -> Next {
        let page = fault.page;
        let block = PageIdx(page.0 / ZERO_AROUND * ZERO_AROUND);
        if !core.has_to_itself((block, block.plus(ZERO_AROUND))) || !self.settle_changes(core, shared) {
            return Next::Again;
        }
        let record = core.table.record(page);
        if !matches!(record, Record::Evicted(_)) {
            core.clear_suspect(page);
        }
        let adds_memory = matches!(record, Record::Evicted(_) | Record::None | Record::Gone);
        if adds_memory && !fault.evictors && self.app.hold(self, fault) {
            shared.registry.wake_evictor();
            return Next::Held;
        }
        match record {
            Record::Evicted(slot) => {
                if shared.in_flight.park(slot, self, fault) {
                    return Next::Served;
                }
                Next::Read(core.fetch(page, slot, &self.app, shared))
            }
            Record::Poisoned => match self.uffd.poison(page.addr()) {
                Installed::TryAgain => Next::Again,
                _ => {
                    self.uffd.ring().iter().for_each(|ring| ring.lose(page));
                    self.uffd.wake(page.addr(), PAGE_SIZE as u64);
                    Next::Served
                }
            },
            Record::None | Record::Gone => self.zero_fill(core, page, shared),
            // Resident by its record: nearly always the fault is an old one. A page that is truly
            // absent has been lost to us, and must not read as zeros until the app is stopped. (One
            // that MADV_FREE gave away is *gone*: that was announced.)
            Record::Clean(_) => match self.uffd.poison(page.addr()) {
                Installed::TryAgain => Next::Again,
                Installed::Done | Installed::Partly(_) => {
                    self.app.stop(&format!("page {:#x} vanished while it was resident", page.addr()));
                    Next::Served
                }
                Installed::Exists | Installed::Gone => {
                    self.uffd.wake(page.addr(), PAGE_SIZE as u64);
                    Next::Served
                }
                Installed::Dead => {
                    self.set_dead();
                    Next::Served
                }
            },
        }
    }

    /// A page that was never evicted (or was dropped since): zeros, with neighbours that are absent
    /// too.
    fn zero_fill(&self, core: &mut Core, page: PageIdx, shared: &Shared) -> Next {
        let limit = (page.0 / ZERO_AROUND + 1) * ZERO_AROUND;
        let end = core.regions.containing(page.addr()).map_or(page.0 + 1, |r| r.end / PAGE_SIZE as u64);
        let mut pages = 1;
        while page.0 + pages < limit.min(end)
            && matches!(core.table.record(page.plus(pages)), Record::None | Record::Gone)
        {
            pages += 1;
        }
        // UFFDIO_COPY would replace a guard. The page itself is none: its touch would have been a
        // SIGSEGV.
        if pages > 1 {
            let guard = |mm: Arc<Mm>| mm.first_guard(page.plus(1).addr(), page.plus(pages).addr());
            pages = match self.mm().map(guard) {
                // A forked child that is not known yet.
                None => 1,
                Some(None) => pages,
                Some(Some(at)) => PageIdx::of(at).0 - page.0,
            };
        }
        core.make_way(page, pages);
        let installed = loop {
            let len = pages * PAGE_SIZE as u64;
            // SAFETY: ZEROS is as long as the longest run.
            match unsafe { self.uffd.copy(page.addr(), ZEROS.as_ptr(), len, false, true) } {
                Installed::Done => break pages,
                Installed::Partly(bytes) => break bytes / PAGE_SIZE as u64,
                Installed::TryAgain => return Next::Again,
                // The run may reach past the mapping.
                Installed::Gone if pages > 1 => pages = 1,
                Installed::Exists | Installed::Gone => {
                    self.uffd.wake(page.addr(), PAGE_SIZE as u64);
                    return Next::Served;
                }
                Installed::Dead => {
                    self.set_dead();
                    return Next::Served;
                }
            }
        };
        for i in 0..installed {
            let before = core.table.set(page.plus(i), Record::None).unwrap_or(Record::None);
            before.slot().into_iter().for_each(|slot| shared.pool.release(slot));
        }
        self.app.counters.zero.fetch_add(1, Relaxed);
        self.app.add_resident(installed as i64);
        Next::Served
    }

    /// Installs pages that were read from the pool, `bytes` holding verified copies of them. Pages
    /// whose record has changed since are skipped. False: the app is changing its mappings, try
    /// again later.
    pub fn install(&self, core: &mut Core, read: Stretch, bytes: &[u8], why: Why, shared: &Shared) -> bool {
        if !self.settle_changes(core, shared) {
            return false;
        }
        let Stretch { first, slot, .. } = read;
        let pages = (bytes.len() / PAGE_SIZE) as u64;
        if !self.heed_guards(core, (first, first.plus(pages)), shared) {
            return false;
        }
        let asked = match why {
            Why::Read(page) | Why::Write(page) => Some(page),
            Why::Ahead | Why::Restore => None,
        };
        let is_current =
            |core: &Core, i: u64| core.table.record(first.plus(i)) == Record::Evicted(SlotIdx(slot.0 + i as u32));
        // The page that is being written goes in unprotected, alone.
        let is_written = |i: u64| why == Why::Write(first.plus(i));
        let (mut i, mut most) = (0, pages);
        while i < pages {
            if !is_current(core, i) {
                if asked == Some(first.plus(i)) {
                    self.uffd.wake(first.plus(i).addr(), PAGE_SIZE as u64);
                }
                i += 1;
                continue;
            }
            let keep_copy = !is_written(i) && why != Why::Restore;
            let mut n = 1;
            while n < most && !is_written(i) && i + n < pages && !is_written(i + n) && is_current(core, i + n) {
                n += 1;
            }
            let addr = first.plus(i).addr();
            let from = &bytes[i as usize * PAGE_SIZE..(i + n) as usize * PAGE_SIZE];
            core.installing(first.plus(i), n);
            // SAFETY: `from` is readable for its length.
            let done = match unsafe { self.uffd.copy(addr, from.as_ptr(), from.len() as u64, keep_copy, true) } {
                Installed::Done => n,
                Installed::Partly(bytes) => bytes / PAGE_SIZE as u64,
                Installed::TryAgain => return false,
                Installed::Exists if core.suspects.contains(&first.plus(i)) => {
                    core.is_there(first.plus(i), shared);
                    self.uffd.wake(addr, PAGE_SIZE as u64);
                    i += 1;
                    continue;
                }
                Installed::Exists => {
                    // The record says the page is in the pool only, and yet there is one: whose
                    // bytes are right can't be told.
                    self.app.stop(&format!("page {addr:#x} is both evicted and present"));
                    return true;
                }
                // The kernel copies within one mapping only.
                Installed::Gone if n > 1 => {
                    most = 1;
                    continue;
                }
                Installed::Gone => {
                    tracing::debug!(space = self.id.0, "page {addr:#x} has no mapping to go to");
                    self.uffd.wake(addr, PAGE_SIZE as u64);
                    i += 1;
                    continue;
                }
                Installed::Dead => {
                    self.set_dead();
                    return true;
                }
            };
            failpoint("page-copied");
            for k in i..i + done {
                let page = first.plus(k);
                let asked_alone = asked == Some(page) && pages == 1;
                core.installed(page, SlotIdx(slot.0 + k as u32), keep_copy, asked_alone, shared);
                core.clear_suspect(page);
            }
            core.table.installed();
            self.app.add_resident(done as i64);
            self.app.counters.brought_in.fetch_add(done, Relaxed);
            if why != Why::Restore {
                let wanted = asked.is_some_and(|page| (first.plus(i)..first.plus(i + done)).contains(&page));
                self.app.counters.prefetched.fetch_add(done - u64::from(wanted), Relaxed);
            }
            i += done;
        }
        true
    }

    /// Installs a page that was evicted to `slot` from bytes at hand. False: not now, or not any
    /// more.
    pub fn put_back(&self, core: &mut Core, page: PageIdx, bytes: &[u8], slot: SlotIdx, shared: &Shared) -> bool {
        core.installing(page, 1);
        // SAFETY: `bytes` is readable for its length.
        let installed = unsafe { self.uffd.copy(page.addr(), bytes.as_ptr(), PAGE_SIZE as u64, false, true) };
        failpoint("page-put-back");
        match installed {
            Installed::Done => {
                let _ = core.table.set(page, Record::None);
                core.table.installed();
                core.clear_suspect(page);
                shared.pool.release(slot);
                self.app.add_resident(1);
            }
            Installed::Exists if core.suspects.contains(&page) => {
                core.is_there(page, shared);
                return true;
            }
            Installed::Exists => self.app.stop(&format!("page {:#x} is both evicted and present", page.addr())),
            Installed::Dead => self.set_dead(),
            Installed::TryAgain | Installed::Partly(_) | Installed::Gone => {}
        }
        installed == Installed::Done
    }

    /// No replica could give the page: its next touch raises SIGBUS. Never zeros, never stale
    /// bytes.
    pub fn lose(&self, core: &mut Core, page: PageIdx, slot: SlotIdx, shared: &Shared) -> bool {
        if !self.settle_changes(core, shared) {
            return false;
        }
        if core.table.record(page) != Record::Evicted(slot) {
            self.uffd.wake(page.addr(), PAGE_SIZE as u64);
            return true;
        }
        core.installing(page, 1);
        let poisoned = match self.uffd.poison(page.addr()) {
            Installed::TryAgain => return false,
            Installed::Exists if core.suspects.contains(&page) => Installed::Done,
            other => other,
        };
        let name = &self.app.name;
        repeated!(ERROR, "page lost" of name, app = name, "page {:#x} is lost: no replica has its bytes", page.addr());
        self.app.note(format!("lost page {:#x}: no replica has its bytes", page.addr()));
        let _ = core.table.set(page, Record::Poisoned);
        core.table.installed();
        core.clear_suspect(page);
        shared.pool.release(slot);
        self.uffd.ring().iter().for_each(|ring| ring.lose(page));
        if poisoned != Installed::Done {
            self.app.stop(&format!("page {:#x} is lost and could not be poisoned", page.addr()));
        }
        true
    }

    /// The space is over: gives back every slot it refers to.
    pub fn release_all(&self, shared: &Shared) {
        self.set_dead();
        self.forget_records(shared);
    }

    /// Nothing is known of any page from here on, and every slot that was is given back.
    pub fn forget_records(&self, shared: &Shared) {
        let (start, end) = Table::everything();
        let mut core = self.core();
        core.table.clear(start, end, |slot| shared.pool.release(slot));
        // What an eviction under way had moved is nobody's any more.
        core.table.conclude();
    }

    /// The stub's staging area is no more.
    pub fn forget_staging(&self) {
        *self.staging.lock() = (0, 0);
    }
}

impl Core {
    /// Writes down who is suspected; call it when that has changed.
    pub fn note_suspects(&self) {
        let mut ranges: Vec<(PageIdx, u32)> = Vec::new();
        for page in &self.suspects {
            match ranges.last_mut() {
                Some((first, n)) if first.plus(u64::from(*n)) == *page => *n += 1,
                _ => ranges.push((*page, 1)),
            }
        }
        if !self.table.note_suspects(&ranges) {
            tracing::error!("more pages are half installed than can be noted");
        }
    }

    /// Pages that were absent are about to be there: no span may take them along unseen.
    fn make_way(&mut self, first: PageIdx, pages: u64) {
        self.moves.iter_mut().for_each(|moves| moves.make_way((first, first.plus(pages))));
    }

    /// Evicted pages are about to be installed, or poisoned: noted until [`Table::installed`].
    fn installing(&mut self, first: PageIdx, pages: u64) {
        self.make_way(first, pages);
        self.table.installing(first, pages);
    }

    /// No longer in doubt. True if it was.
    fn clear_suspect(&mut self, page: PageIdx) -> bool {
        let was = !self.suspects.is_empty() && self.suspects.remove(&page);
        if was {
            self.note_suspects();
        }
        was
    }

    /// A suspect turned out to have been installed: what the app has is the page.
    fn is_there(&mut self, page: PageIdx, shared: &Shared) {
        let before = self.table.set(page, Record::None).unwrap_or(Record::None);
        self.clear_suspect(page);
        before.slot().into_iter().for_each(|slot| shared.pool.release(slot));
    }

    fn installed(&mut self, page: PageIdx, slot: SlotIdx, clean: bool, asked_alone: bool, shared: &Shared) {
        let heat = if asked_alone { policy::heat_after_refault(self.lap, self.table.policy(page)) } else { 0 };
        if clean {
            // The reference passes from one record to the other.
            let _ = self.table.set(page, Record::Clean(slot));
        } else {
            let _ = self.table.set(page, Record::None);
            shared.pool.release(slot);
        }
        self.table.set_policy(page, heat);
    }
}

const _: () = assert!(size_of::<Message>() == 32);
