//! Who watches which space, and the thread that looks where the faults come from
//! ([`cpu_affinity`](crate::sched::CpuAffinity) decides).
//!
//! While faults are served it looks every [`LOOK`]: on which CPU is the thread of each space that
//! faulted last? /proc tells, in about ten microseconds. Else it sleeps until a worker rings.
//! While one space alone has faults, it also keeps the evictor, other stubs and itself off its
//! CPU: when they take that CPU for the length of a batch, the kernel moves the program to another
//! one. With more of them there is no CPU to spare, and eviction must get its share of each. The
//! space's own stub is kept there if it has many calls to make for few pages: a MOVE made where
//! the program runs interrupts no other CPU, and it is made in chunks, each after a fault
//! ([`move_batch`](crate::evict::MoveBatch)). Few calls for many pages are better made elsewhere.
//! And it sees whether workers get their CPUs at once ([`contention`](crate::sched::contention)).

use crate::kernel::process;
use crate::sched::cpu_affinity::Watch;
use crate::sched::sched_class::WorkerClasses;
use crate::space::{Shared, Space, SpaceId};
use annex_host::priority::Precedence;
use annex_host::sentinel::Sentinel;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Above this many workers, a fault must not wake them all.
pub const HERD: usize = 4;
/// How often it looks, and how many times as long as a look takes it sleeps at least, up to a
/// limit: a look takes some twenty microseconds on a machine, and half a millisecond where one is
/// emulated; the CPU it would use there is one the faults need.
const LOOK: Duration = Duration::from_millis(2);
const REST: u32 = 32;
const MOST: Duration = Duration::from_millis(20);
/// Looks without a fault, then it sleeps.
const QUIET: u32 = 25;
/// How long a space's lock may be held by somebody else before it is passed over.
const PATIENCE: Duration = Duration::from_micros(200);

/// What workers ring.
pub struct Bell {
    event: EventFd,
    is_asleep: AtomicBool,
    stop: AtomicBool,
}

impl Bell {
    pub fn new() -> io::Result<Bell> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Bell { event, is_asleep: AtomicBool::new(false), stop: AtomicBool::new(false) })
    }

    /// There are faults.
    pub fn ring(&self) {
        if self.is_asleep.load(SeqCst) && self.is_asleep.swap(false, SeqCst) {
            // Only a full counter could fail; it is rung then.
            let _ = self.event.write(1);
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, SeqCst);
        let _ = self.event.write(1);
    }

    fn sleep(&self) {
        self.is_asleep.store(true, SeqCst);
        let _ = poll(&mut [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        self.is_asleep.store(false, SeqCst);
        let _ = self.event.read();
    }
}

/// Starts the thread. Worker n is pinned to CPU n and has the nth epoll set.
pub fn start(
    shared: Arc<Shared>,
    epolls: Arc<[Arc<Epoll>]>,
    bell: Arc<Bell>,
    mut classes: WorkerClasses,
) -> io::Result<JoinHandle<()>> {
    let body = move || {
        let _sentinel = Sentinel("the thread that looks where faults come from");
        // Patient workers that have to wait depend on it.
        Precedence::OfAll.give(0);
        let (mut quiet, mut kept_clear) = (0, Kept::default());
        while !bell.stop.load(SeqCst) {
            let began = Instant::now();
            let own_cpu = look(&shared, &epolls);
            quiet = if own_cpu.is_some() { 0 } else { quiet + 1 };
            if quiet == QUIET {
                kept_clear.renew(&shared, None);
                classes.rest();
                bell.sleep();
                quiet = 0;
            } else {
                if let Some(own_cpu) = own_cpu {
                    kept_clear.renew(&shared, own_cpu);
                    classes.look();
                }
                std::thread::sleep((began.elapsed() * REST).clamp(LOOK, MOST));
            }
        }
    };
    std::thread::Builder::new().name("annex-affinity".into()).spawn(body)
}

/// The CPU of the one space that had faults since the last look, if it has one; `None` if none had
/// faults.
fn look(shared: &Shared, epolls: &[Arc<Epoll>]) -> Option<Option<(usize, SpaceId)>> {
    let mut only = None;
    for space in shared.registry.all() {
        let (Some(thread), Some(pid)) = (space.last_faulted(), space.pid()) else { continue };
        let is_first = only.replace(None).is_none();
        // A thread that another PID namespace numbers is not found, or is another one: then all
        // watch, or not the best one does.
        let stat = process::Stat::read_thread(pid, thread);
        let worker = stat.map(|stat| stat.cpu as usize).filter(|cpu| *cpu < epolls.len());
        let Some(mut core) = space.core_within(PATIENCE) else { continue };
        if let Some(change) = core.affinity.look(thread, worker) {
            rearrange(epolls, &space, change);
        }
        only = Some(core.affinity.worker().filter(|_| is_first).map(|own_cpu| (own_cpu, space.id)));
    }
    only
}

/// Which CPU is kept clear of whom.
#[derive(Default)]
struct Kept {
    own_cpu: Option<usize>,
    /// The stub that is kept on that CPU.
    stub: Option<i32>,
    threads: Vec<i32>,
}

impl Kept {
    /// Keeps those who evict, and this thread, off this CPU. A stub may use annexd's CPUs,
    /// whichever its program is confined to: else it would have to share one with the program and
    /// its fault worker, and hardly ever get it.
    fn renew(&mut self, shared: &Shared, own_cpu: Option<(usize, SpaceId)>) {
        let spaces = shared.registry.all();
        let stubs = spaces.iter().filter_map(|space| space.stub_pid());
        let itself = std::iter::once(nix::unistd::gettid().as_raw());
        let mut threads: Vec<i32> = stubs.chain(shared.watchdog.evictor_threads()).chain(itself).collect();
        threads.sort_unstable();
        let is_its =
            |space: &&Arc<Space>| own_cpu.is_some_and(|(_, id)| id == space.id) && space.is_scattered.load(Relaxed);
        let stub = spaces.iter().find(is_its).and_then(|space| space.stub_pid());
        let own_cpu = own_cpu.map(|(cpu, _)| cpu);
        if (own_cpu, stub, &threads) == (self.own_cpu, self.stub, &self.threads) {
            return;
        }
        threads.iter().for_each(|thread| process::keep_off(*thread, own_cpu));
        let kept = own_cpu.zip(stub).filter(|(cpu, stub)| process::keep_on(*stub, *cpu)).map(|(_, stub)| stub);
        for space in spaces {
            space.stub_shares_cpu.store(kept.is_some() && space.stub_pid() == kept, Relaxed);
        }
        *self = Kept { own_cpu, stub, threads };
    }
}

/// Has those watch a space who are to. Under the space's lock, so that the latest change is the
/// last to be made.
pub fn rearrange(epolls: &[Arc<Epoll>], space: &Space, change: Watch) {
    for (n, epoll) in epolls.iter().enumerate() {
        let done = match change {
            Watch::Worker(own_cpu) if own_cpu != n => epoll.delete(space.uffd.as_fd()).map_err(io::Error::from),
            _ => watch(epoll, space, epolls.len()),
        };
        if let Err(error) = done {
            // Somebody else watches, or it has ended.
            tracing::debug!(worker = n, space = space.id.0, ?change, %error, "a watch could not be changed");
        }
    }
}

/// Puts the space into the epoll set of one of so many workers.
pub fn watch(epoll: &Epoll, space: &Space, workers: usize) -> io::Result<()> {
    let exclusive = if workers > HERD { EpollFlags::EPOLLEXCLUSIVE } else { EpollFlags::empty() };
    match epoll.add(space.uffd.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN | exclusive, space.id.0)) {
        // A take-over meets children that were watched as they were made.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
