//! A fault worker: one thread that reads userfaultfd messages and installs pages, its own lane to
//! the pool beside it.
//!
//! Every worker watches the userfaultfds of all spaces through an epoll set of its own. With few
//! workers (one per CPU, pinned) each of them is woken by a fault, and the one on the faulting CPU
//! gets there first, which is the cheapest place to serve it from: no inter-processor interrupt.
//! With many, the watches are exclusive, so that a fault wakes one of them and not all. A space
//! whose faults come from one CPU is watched by the worker there alone
//! ([`home`](crate::sched::cpu_affinity)).
//!
//! A worker never waits for anything but its epoll set. What can't be done at once goes to `again`
//! and is tried on the next turn. A space whose lock somebody keeps (an evictor, with a stub that
//! stands still because its program is frozen) is taken out of the epoll set until it can be had:
//! its messages would wake the worker without end, and all other programs would wait for that.

use crate::app::application::{App, LONGEST_HOLD};
use crate::config::PagerConfig;
use crate::events::settle::drain;
use crate::events::settle::grows_up;
use crate::fault::busy_poll::BusyPoll;
use crate::fault::next::Next;
use crate::fault::page_fault::Fault;
use crate::fault::reading::Pending;
use crate::fault::rings;
use crate::fault::serve::serve;
use crate::kernel::process;
use crate::page::PageIdx;
use crate::sched::affinity::{self, Bell, HERD};
use crate::sched::sched_class::{Patience, Standing};
use crate::sched::waiting::Waiting;
use crate::space::address_space::Space;
use crate::space::guard::Hold;
use crate::space::identity::SpaceId;
use crate::space::registry::Registry;
use crate::space::shared::Shared;
use annex_host::priority::Precedence;
use annex_host::sentinel::Sentinel;
use annex_pool::{Buf, Done, Lane};
use annex_shared::ids::SlotIdx;
use crossbeam::channel::{Receiver, Sender};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pages of transfer buffers a worker has: 1 MiB.
const BUFFERS: usize = 256;
/// Times that faults were read after which a worker rings for the thread that looks where those
/// come from, if that sleeps.
pub(super) const RING_EVERY: u32 = 16;
/// How long a space's lock may be held by somebody else before the worker turns to other spaces.
pub(super) const PATIENCE: Duration = Duration::from_millis(2);

const LANE: u64 = u64::MAX;
const INBOX: u64 = u64::MAX - 1;

/// The handle the rest of the pager has of a worker.
struct Handle {
    epoll: Arc<Epoll>,
    inbox: Sender<(Arc<Space>, Fault)>,
    bell: Arc<EventFd>,
    /// When its present turn began, in ms since `EPOCH`, plus 1; 0 while it sleeps.
    busy_since: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

static EPOCH: OnceLock<Instant> = OnceLock::new();
/// A turn takes microseconds; one that takes this long has stalled.
const STALLED: Duration = Duration::from_secs(2);

fn millis(at: Instant) -> u64 {
    at.saturating_duration_since(*EPOCH.get_or_init(Instant::now)).as_millis() as u64 + 1
}

pub struct Workers {
    handles: Vec<Handle>,
    stop: Arc<AtomicBool>,
    pub waiting: Waiting,
    /// The thread that looks where faults come from.
    looking: Option<(Arc<Bell>, JoinHandle<()>)>,
}

impl Workers {
    /// Starts `count` workers (0: one per CPU, four at most), pinned to CPUs in turn if there are
    /// enough of those.
    pub fn start(config: &PagerConfig, shared: &Arc<Shared>, registry: &Arc<Registry>) -> io::Result<Workers> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let count = if config.fault_workers == 0 { cpus.min(HERD) } else { config.fault_workers as usize };
        let waiting = Waiting::settle(config.wait, count);
        tracing::info!("{count} workers wait for faults: {waiting}");
        let stop = Arc::new(AtomicBool::new(false));
        let looking = Arc::new(Bell::new()?);
        let epolls: Arc<[Arc<Epoll>]> = (0..count)
            .map(|_| Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?
            .into();
        let standings: Vec<Arc<Standing>> = (0..count).map(|_| Arc::default()).collect();
        let mut handles = Vec::new();
        for n in 0..count {
            let lane = shared.pool.lane(&format!("fault-{n}"), BUFFERS).map_err(io::Error::other)?;
            let epoll = epolls[n].clone();
            let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
            epoll.add(lane.event_fd(), EpollEvent::new(EpollFlags::EPOLLIN, LANE))?;
            epoll.add(&*bell, EpollEvent::new(EpollFlags::EPOLLIN, INBOX))?;
            let (inbox, mail) = crossbeam::channel::unbounded();
            let busy_since = Arc::new(AtomicU64::new(0));
            let worker = Worker {
                number: n,
                epolls: epolls.clone(),
                standing: standings[n].clone(),
                looking: looking.clone(),
                since_ring: 0,
                epoll: epoll.clone(),
                bell: bell.clone(),
                mail,
                busy_since: busy_since.clone(),
                lane,
                polls_for: waiting.polls_for,
                last_woken: Instant::now(),
                busy_poll: BusyPoll::new(Duration::from_micros(config.busy_poll_us.into()), config.adaptive_polling),
                shared: shared.clone(),
                registry: registry.clone(),
                stop: stop.clone(),
                pending: Vec::new(),
                free: Vec::new(),
                again: Vec::new(),
                held_up: Vec::new(),
                done: Vec::with_capacity(BUFFERS),
                faults: Vec::with_capacity(64),
                holding: Vec::new(),
                faulted: None,
                rings: Vec::new(),
                polls_rings: count <= cpus && config.busy_poll_us > 0,
            };
            let pin = (count <= cpus).then_some(n);
            let name = format!("annex-fault-{n}");
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run(pin))?;
            handles.push(Handle { epoll, inbox, bell, busy_since, thread: Some(thread) });
        }
        let homes = (2..=cpus).contains(&count) && waiting.sleeps_at_once();
        let looking = match homes {
            true => Some((looking.clone(), affinity::start(shared.clone(), epolls, looking, Patience::of(standings))?)),
            false => None,
        };
        Ok(Workers { handles, stop, waiting, looking })
    }

    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// A worker that has not come to the end of its turn for long, in words.
    pub fn stalled(&self) -> Option<String> {
        let now = millis(Instant::now());
        let turns = self.handles.iter().map(|h| h.busy_since.load(Ordering::Relaxed)).enumerate();
        let mut long = turns.filter(|(_, since)| *since != 0 && now - since.min(&now) > STALLED.as_millis() as u64);
        long.next().map(|(n, since)| format!("fault worker {n} has made no progress for {} s", (now - since) / 1000))
    }

    /// Has every worker watch the space.
    pub fn watch(&self, space: &Space) -> io::Result<()> {
        for handle in &self.handles {
            affinity::watch(&handle.epoll, space, self.handles.len())?;
            if let Some(ring) = space.uffd.ring() {
                let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
                handle.epoll.add(ring.bell(), EpollEvent::new(edges, rings::BELL | space.id.0))?;
            }
        }
        Ok(())
    }

    pub fn unwatch(&self, space: &Space) {
        space.core().home.close();
        for handle in &self.handles {
            // Not watched any more is what is wanted.
            let _ = handle.epoll.delete(space.uffd.as_fd());
            let _ = space.uffd.ring().map(|ring| handle.epoll.delete(ring.bell()));
        }
    }

    /// Hands faults that had to wait to a worker.
    pub fn serve(&self, faults: Vec<(Arc<Space>, Fault)>) {
        let Some(handle) = self.handles.first() else { return };
        if !faults.is_empty() {
            for fault in faults {
                // The channel's other end lives as long as the worker.
                let _ = handle.inbox.send(fault);
            }
            let _ = handle.bell.write(1);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some((bell, thread)) = self.looking.take() {
            bell.stop();
            let _ = thread.join();
        }
        self.stop.store(true, Ordering::Release);
        for handle in &mut self.handles {
            let _ = handle.bell.write(1);
            if let Some(thread) = handle.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// What could not be done at once.
pub(super) enum Again {
    /// Since when somebody may be waiting.
    Drain(SpaceId, Instant),
    Fault(Arc<Space>, Fault),
    Install(Pending, Buf),
    Lose(Arc<Space>, PageIdx, SlotIdx),
}

pub(super) struct Worker {
    pub(super) number: usize,
    /// All workers', by number.
    pub(super) epolls: Arc<[Arc<Epoll>]>,
    pub(super) standing: Arc<Standing>,
    pub(super) looking: Arc<Bell>,
    pub(super) since_ring: u32,
    pub(super) epoll: Arc<Epoll>,
    pub(super) bell: Arc<EventFd>,
    pub(super) mail: Receiver<(Arc<Space>, Fault)>,
    pub(super) busy_since: Arc<AtomicU64>,
    pub(super) lane: Lane,
    /// See [`Waiting`].
    pub(super) polls_for: Duration,
    pub(super) last_woken: Instant,
    pub(super) busy_poll: BusyPoll,
    pub(super) shared: Arc<Shared>,
    pub(super) registry: Arc<Registry>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) pending: Vec<Option<Pending>>,
    pub(super) free: Vec<usize>,
    pub(super) again: Vec<Again>,
    /// Spaces that somebody keeps: not watched, and tried again with what is in `again`.
    pub(super) held_up: Vec<SpaceId>,
    pub(super) done: Vec<Done>,
    pub(super) faults: Vec<Fault>,
    /// Apps that hold faults of ours, and when those have waited long enough.
    pub(super) holding: Vec<(Arc<App>, Instant)>,
    /// A space that had faults in this turn, and whose stub is to have this CPU after it.
    pub(super) faulted: Option<Arc<Space>>,
    /// Rings that it polls, if it does such things.
    pub(super) rings: Vec<rings::Polled>,
    pub(super) polls_rings: bool,
}

impl Worker {
    pub(super) fn run(mut self, pin: Option<usize>) {
        pin.into_iter().for_each(process::stay_on);
        let _sentinel = Sentinel("a fault worker");
        let mut precedence = None;
        let mut events = [EpollEvent::empty(); 32];
        let mut stalled_since = None;
        let mut found = 0;
        while !self.stop.load(Ordering::Acquire) {
            self.give_precedence(&mut precedence);
            if self.look_at_rings() && found < rings::MOST_FOUND {
                found += 1;
                self.turn();
                continue;
            }
            found = 0;
            let timeout = self.timeout(&mut stalled_since);
            self.busy_since.store(0, Ordering::Relaxed);
            let ready = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => {
                    // Without its epoll set the worker is deaf; the others go on.
                    tracing::error!(%error, "a fault worker lost its epoll set");
                    return;
                }
            };
            let woken = Instant::now();
            self.busy_since.store(millis(woken), Ordering::Relaxed);
            if ready > 0 {
                self.last_woken = woken;
            }
            for event in &events[..ready] {
                match event.data() {
                    LANE => {}
                    INBOX => self.take_mail(),
                    bell if bell & rings::BELL != 0 => self.answer_bell(SpaceId(bell & !rings::BELL)),
                    id => self.visit(SpaceId(id), woken),
                }
            }
            self.turn();
        }
    }

    /// One that polls must leave ordinary threads this CPU: those of its group come first if it
    /// waits for faults, nobody does if it looks at rings. A donor's thread on this host is to run
    /// right here once it has been asked: the kernel sends it to another CPU if a thread of real
    /// time asks that stays on its own.
    pub(super) fn give_precedence(&self, has: &mut Option<Precedence>) {
        let may = match (self.polls_rings(), self.polls_for.is_zero() && !self.lane.is_served_here()) {
            (true, _) => Precedence::Ordinary,
            (_, false) => Precedence::OfItsGroup,
            (_, true) => Precedence::OfAll,
        };
        if *has != Some(may) {
            *has = Some(may);
            self.standing.deserve(may);
        }
    }

    /// How long to sleep: not at all with work that only needs another try, at most 50 ms with
    /// reads under way.
    pub(super) fn timeout(&mut self, stalled_since: &mut Option<Instant>) -> EpollTimeout {
        if !self.again.is_empty() {
            // The app is in the middle of a system call that changes its mappings. Most take
            // microseconds; a fork of much memory takes longer.
            let since = *stalled_since.get_or_insert_with(Instant::now);
            if since.elapsed() < Duration::from_micros(200) {
                std::thread::yield_now();
                return EpollTimeout::ZERO;
            }
            return EpollTimeout::from(1u8);
        }
        *stalled_since = None;
        let now = Instant::now();
        let polls = now - self.last_woken < self.polls_for || self.busy_poll.goes_on(self.lane.usual_wait(), now);
        if polls || self.polls_rings() || self.lane.arm() {
            return EpollTimeout::ZERO;
        }
        let held =
            self.holding.iter().map(|(_, until)| until.saturating_duration_since(Instant::now()).as_millis() as u8 + 1);
        let under_way = (self.lane.in_flight() > 0).then_some(50);
        held.chain(under_way).min().map_or(EpollTimeout::NONE, EpollTimeout::from)
    }

    pub(super) fn take_mail(&mut self) {
        let _ = self.bell.read();
        while let Ok((space, fault)) = self.mail.try_recv() {
            self.face(&space, fault);
        }
    }

    /// Reads what a space has to say and acts on it.
    pub(super) fn visit(&mut self, id: SpaceId, since: Instant) {
        let Some(space) = self.registry.space(id) else { return };
        if space.is_dead() {
            let _ = self.epoll.delete(space.uffd.as_fd());
        } else if !self.attend(&space, since, None) {
            self.again.push(Again::Drain(id, since));
        }
    }

    /// One fault, apart from its space's other messages.
    pub(super) fn face(&mut self, space: &Arc<Space>, fault: Fault) {
        if !space.is_dead() && !self.attend(space, Instant::now(), Some(fault)) {
            self.again.push(Again::Fault(space.clone(), fault));
        }
    }

    /// Applies every change that can be read, then serves the faults that came with them (they have
    /// waited since `since`), and `also`. False: the space is busy.
    pub(super) fn attend(&mut self, space: &Arc<Space>, since: Instant, also: Option<Fault>) -> bool {
        let shared = self.shared.clone();
        if !grows_up(space, &shared) {
            return false;
        }
        let Some(mut core) = self.core_of(space, |limit| space.core_for_messages(limit)) else { return false };
        let mut faults = std::mem::take(&mut self.faults);
        drain(space, &mut core, &shared, since, &mut faults);
        self.note_threads(space, &mut core, &faults);
        faults.extend(also);
        let any = !faults.is_empty();
        faults.drain(..).for_each(|fault| self.serve(space, &mut core, fault));
        self.faults = faults;
        if any && space.stub_is_at_home.load(Ordering::Relaxed) {
            core.faulted = true;
            self.faulted = Some(space.clone());
        }
        true
    }

    pub(super) fn serve(&mut self, space: &Arc<Space>, core: &mut Hold<'_>, fault: Fault) {
        if self.joins(space, fault) {
            return;
        }
        match serve(space, core, fault, &self.shared) {
            Next::Served => {}
            Next::Held => self.hold(&space.app),
            Next::Again => self.again.push(Again::Fault(space.clone(), fault)),
            Next::Read(fetch) if self.install_at_once(space, core, fault, &fetch) => {}
            Next::Read(fetch) => self.fetch(space, fault, &fetch),
        }
    }

    /// The space's core, if it can be had soon by the way that is wanted; if not, whoever asks must
    /// try `again`.
    pub(super) fn core_of<'a>(
        &mut self,
        space: &Space,
        take: impl Fn(Duration) -> Option<Hold<'a>>,
    ) -> Option<Hold<'a>> {
        let held_up = self.held_up.iter().position(|id| *id == space.id);
        let core = take(if held_up.is_some() { Duration::ZERO } else { PATIENCE });
        match (held_up, &core) {
            (None, None) => {
                self.held_up.push(space.id);
                // The home's worker alone may have been watching.
                let _ = self.epoll.delete(space.uffd.as_fd());
            }
            (Some(at), Some(core)) => {
                self.held_up.swap_remove(at);
                if core.home.is_watched_by(self.number)
                    && let Err(error) = affinity::watch(&self.epoll, space, self.epolls.len())
                {
                    space.app.stop(&format!("a userfaultfd can't be watched any more: {error}"));
                }
            }
            _ => {}
        }
        core
    }

    /// A fault waits for the evictor, but not for longer than it may.
    pub(super) fn hold(&mut self, app: &Arc<App>) {
        if !self.holding.iter().any(|(held, _)| Arc::ptr_eq(held, app)) {
            self.holding.push((app.clone(), Instant::now() + LONGEST_HOLD));
        }
    }

    /// What has waited long enough is served, whatever the evictor is at.
    pub(super) fn end_holds(&mut self) {
        let now = Instant::now();
        for i in (0..self.holding.len()).rev() {
            if self.holding[i].1 <= now {
                let (app, _) = self.holding.swap_remove(i);
                self.registry.take_held(&app).into_iter().for_each(|(space, fault)| self.face(&space, fault));
            }
        }
    }

    /// MoveBatch everything that can move: doorbells, completions, second tries.
    pub(super) fn turn(&mut self) {
        self.end_holds();
        for again in std::mem::take(&mut self.again) {
            match again {
                Again::Drain(id, since) => self.visit(id, since),
                Again::Fault(space, fault) => self.face(&space, fault),
                Again::Install(pending, buf) => self.install(pending, buf),
                Again::Lose(space, page, slot) => self.lose(space, page, slot),
            }
        }
        self.lane.submit();
        let mut done = std::mem::take(&mut self.done);
        self.lane.poll(&mut done);
        if !done.is_empty() {
            self.busy_poll.restart();
        }
        for Done { token, buf, result } in done.drain(..) {
            let Some(pending) = self.pending.get_mut(token as usize).and_then(Option::take) else { continue };
            self.free.push(token as usize);
            match result {
                Ok(()) => self.install(pending, buf),
                Err(error) => {
                    self.lane.free(buf);
                    self.fail(pending, error);
                }
            }
        }
        self.done = done;
        self.lane.submit();
        if let Some(space) = self.faulted.take() {
            space.move_some();
        }
    }
}
