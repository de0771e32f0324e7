//! Scripted donors: agents and their fabric in memory, that do what a test tells them to.

use super::config::{DonorConfig, PoolConfig};
use super::dial::{DataPath, DialError, Dialed, Dialer, Fabric, Link, Welcomed};
use super::{Buf, Done, Lane, Part, Pool, PoolState, SlotRun, Spill, SpillConfig};
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::fabric::{Arena, Completion, ConnectError, Endpoint, ErrorKind, Op, OpKind, QueueFull, Transport};
use annex_shared::ids::{ClientId, Incarnation, Rkey, SessionKey, SlabId};
use annex_shared::page::PAGE_SIZE;
use annex_shared::wire::{Event, Lease, Refusal, Request, VERSION, VerbsOffer, Welcome};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Slots per extent of the scripted donors.
pub(crate) const SLOTS: u32 = 64;
const SLAB: usize = SLOTS as usize * PAGE_SIZE;

/// What becomes of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Do,
    /// Completed with an error, not done.
    Fail(ErrorKind),
    /// Done, with one bit changed on the way (either way).
    Corrupt,
    /// The connection breaks: this one and all others outstanding are flushed. The operation is done.
    Break,
}

type Script = Box<dyn FnMut(&Op) -> Fate + Send>;

/// One scripted donor.
pub(crate) struct Agent(Mutex<State>);

struct State {
    reachable: bool,
    incarnation: u64,
    /// Grows when connections break.
    epoch: u64,
    capacity: u32,
    next_key: u64,
    slabs: BTreeMap<SlabId, (Rkey, Vec<u8>)>,
    closing: Option<u64>,
    recall: Option<u64>,
    /// It wants its memory for itself, and lends no more.
    is_pressed: bool,
    resumed: Option<Incarnation>,
    /// Whether RDMA works; `None`: nobody wants it.
    rdma: Option<bool>,
    held: bool,
    /// Its memory is this host's: what is read there is read at once.
    near: bool,
    mute: bool,
    script: Script,
    hears: Vec<Arc<EventFd>>,
    endpoints: Vec<Arc<EventFd>>,
    hellos: u32,
}

impl State {
    fn free(&self) -> u32 {
        if self.is_pressed { 0 } else { self.capacity - self.slabs.len() as u32 }
    }
}

impl Agent {
    fn new(capacity: u32) -> Arc<Agent> {
        Arc::new(Agent(Mutex::new(State {
            reachable: true,
            incarnation: 1,
            epoch: 0,
            capacity,
            next_key: 1,
            slabs: BTreeMap::new(),
            closing: None,
            recall: None,
            is_pressed: false,
            resumed: None,
            rdma: None,
            held: false,
            near: false,
            mute: false,
            script: Box::new(|_| Fate::Do),
            hears: Vec::new(),
            endpoints: Vec::new(),
            hellos: 0,
        })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.lock().unwrap();
        let result = f(&mut state);
        state.hears.iter().chain(&state.endpoints).for_each(|e| {
            let _ = e.write(1);
        });
        result
    }

    /// Decides over every operation from now on.
    pub fn script(&self, script: impl FnMut(&Op) -> Fate + Send + 'static) {
        self.with(|s| s.script = Box::new(script));
    }

    /// Gone: connections break, none can be made. What it holds stays.
    pub fn cut(&self) {
        self.with(|s| (s.reachable, s.epoch) = (false, s.epoch + 1));
    }

    /// Back, with what it held.
    pub fn mend(&self) {
        self.with(|s| s.reachable = true);
    }

    /// Breaks the connections; new ones can be made at once.
    pub fn hang_up(&self) {
        self.with(|s| s.epoch += 1);
    }

    /// Another incarnation: everything it held is gone.
    pub fn restart(&self) {
        self.with(|s| {
            s.incarnation += 1;
            s.epoch += 1;
            s.reachable = true;
            s.resumed = None;
            s.slabs.clear();
        });
    }

    /// Another incarnation with the same bytes, under new keys.
    pub fn restart_with_bytes(&self) {
        self.with(|s| {
            s.resumed = Some(Incarnation(s.incarnation));
            s.incarnation += 1;
            s.epoch += 1;
            s.reachable = true;
            let mut key = s.next_key;
            for (rkey, _) in s.slabs.values_mut() {
                *rkey = Rkey::of(rkey.lease(), key as u32);
                key += 1;
            }
            s.next_key = key;
        });
    }

    /// Asks for all slabs back, and lends no more.
    pub fn recall(&self, deadline_ms: u64) {
        self.with(|s| (s.recall, s.is_pressed) = (Some(deadline_ms), true));
    }

    pub fn say_goodbye(&self, grace_ms: u64) {
        self.with(|s| (s.closing, s.is_pressed) = (Some(grace_ms), true));
    }

    /// While mute, its agent answers nothing that it is asked.
    pub fn mute(&self, mute: bool) {
        self.with(|s| s.mute = mute);
    }

    /// While near, a READ can be done on the spot.
    pub fn near(&self, near: bool) {
        self.with(|s| s.near = near);
    }

    /// While held, no operation is done or completed.
    pub fn hold(&self, held: bool) {
        self.with(|s| s.held = held);
    }

    pub fn drop_slabs(&self) {
        self.with(|s| s.slabs.clear());
    }

    pub fn lent(&self) -> usize {
        self.with(|s| s.slabs.len())
    }

    /// From now on connections to it are a fallback until RDMA works.
    pub fn rdma(&self, works: bool) {
        self.with(|s| s.rdma = Some(works));
    }

    pub fn hellos(&self) -> u32 {
        self.with(|s| s.hellos)
    }

    /// Changes a byte of every page it holds.
    pub fn rot(&self) {
        self.with(|s| s.slabs.values_mut().for_each(|(_, b)| b.iter_mut().step_by(PAGE_SIZE).for_each(|x| *x ^= 0x40)));
    }
}

/// Dials scripted donors: the address `dN:1` is the donor with that index.
pub(crate) struct Donors {
    pub agents: Vec<Arc<Agent>>,
}

impl Donors {
    fn agent(&self, donor: &DonorConfig) -> Arc<Agent> {
        let n: usize = donor.address.trim_start_matches('d').trim_end_matches(":1").parse().unwrap();
        self.agents[n].clone()
    }
}

fn unreachable(address: &str) -> DialError {
    DialError::Connect { address: address.to_owned(), source: std::io::ErrorKind::ConnectionRefused.into() }
}

impl Dialer for Donors {
    fn dial(&self, donor: &DonorConfig, _: ClientId, _: u64) -> Result<Dialed, DialError> {
        let agent = self.agent(donor);
        let heard = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        let mut state = agent.0.lock().unwrap();
        if !state.reachable {
            return Err(unreachable(&donor.address));
        }
        state.hellos += 1;
        state.closing = None;
        state.hears.push(heard.clone());
        let welcome = Welcome {
            version: VERSION as u16,
            name: donor.address.clone(),
            incarnation: Incarnation(state.incarnation),
            session: SessionKey(1),
            slab_size: SLAB as u64,
            capacity_slabs: state.capacity,
            free_slabs: state.free(),
            lease_ttl_ms: 600,
            labels: BTreeMap::new(),
            shm_socket: None,
            verbs: VerbsOffer::No("scripted".to_owned()),
            held: state.slabs.iter().map(|(slab, (rkey, _))| Lease { slab: *slab, rkey: *rkey }).collect(),
            resumed: state.resumed,
        };
        let epoch = state.epoch;
        drop(state);
        let link = ScriptedLink { agent, epoch, heard, address: donor.address.clone() };
        Ok(Dialed { link: Box::new(link), welcome })
    }

    fn fabric(&self, to: &Welcomed<'_>) -> Result<Fabric, DialError> {
        let agent = self.agent(to.donor);
        let has_rdma = agent.with(|s| s.rdma);
        let (path, is_fallback) = (Arc::new(Path(agent)), has_rdma == Some(false));
        Ok(Fabric { path, why: "scripted".to_owned(), is_fallback, regions: Vec::new() })
    }

    fn try_rdma(&self, to: &Welcomed<'_>) -> Result<(), DialError> {
        let works = self.agent(to.donor).with(|s| s.rdma == Some(true));
        works.then_some(()).ok_or_else(|| unreachable("its device"))
    }
}

struct ScriptedLink {
    agent: Arc<Agent>,
    epoch: u64,
    heard: Arc<EventFd>,
    address: String,
}

impl Link for ScriptedLink {
    fn ask(&mut self, request: &Request) -> Result<Event, DialError> {
        while self.agent.with(|s| s.mute) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut state = self.agent.0.lock().unwrap();
        if !state.reachable || state.epoch != self.epoch {
            return Err(unreachable(&self.address));
        }
        let free = state.free();
        Ok(match request {
            Request::Lease { .. } if free == 0 => Event::Refused(Refusal::Full { capacity: state.capacity }),
            Request::Lease { .. } => {
                let slab = (0..).map(SlabId).find(|s| !state.slabs.contains_key(s)).unwrap();
                let rkey = Rkey(state.next_key << 32 | state.next_key);
                state.next_key += 1;
                state.slabs.insert(slab, (rkey, vec![0; SLAB]));
                Event::Leased { slabs: vec![Lease { slab, rkey }] }
            }
            Request::Renew => Event::Renewed {
                held: state.slabs.keys().copied().collect(),
                free_slabs: free,
                capacity_slabs: state.capacity,
            },
            Request::Return { slabs } => {
                // As the real agent, it does not mind a slab that it has taken back meanwhile.
                slabs.iter().for_each(|s| drop(state.slabs.remove(s)));
                Event::Returned
            }
            Request::Hello { .. } => return Err(DialError::Confused),
        })
    }

    fn hear(&mut self) -> Result<Option<Event>, DialError> {
        let _ = self.heard.read();
        let mut state = self.agent.0.lock().unwrap();
        if !state.reachable || state.epoch != self.epoch {
            return Err(unreachable(&self.address));
        }
        if let Some(deadline_ms) = state.recall.take() {
            return Ok(Some(Event::Recall { slabs: state.slabs.keys().copied().collect(), deadline_ms }));
        }
        Ok(state.closing.take().map(|grace_ms| Event::Closing { grace_ms }))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }
}

struct Path(Arc<Agent>);

impl DataPath for Path {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        let mut state = self.0.0.lock().unwrap();
        if !state.reachable {
            let source = std::io::ErrorKind::ConnectionRefused.into();
            return Err(ConnectError::Unreachable { peer: "scripted".to_owned(), source });
        }
        let event = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        state.endpoints.push(event.clone());
        let (agent, arena) = (self.0.clone(), arena.clone());
        Ok(Box::new(ScriptedEndpoint {
            agent,
            arena,
            epoch: state.epoch,
            event,
            posted: VecDeque::new(),
            broken: false,
        }))
    }

    fn prepare(&self, _: Rkey) -> Result<(), DialError> {
        Ok(())
    }

    fn forget(&self, _: Rkey) {}
}

struct ScriptedEndpoint {
    agent: Arc<Agent>,
    arena: Arc<Arena>,
    epoch: u64,
    event: Arc<EventFd>,
    posted: VecDeque<Op>,
    broken: bool,
}

impl Endpoint for ScriptedEndpoint {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn depth(&self) -> usize {
        8
    }

    fn post(&mut self, op: Op) -> Result<(), QueueFull> {
        if self.posted.len() == self.depth() {
            return Err(QueueFull);
        }
        self.posted.push_back(op);
        Ok(())
    }

    fn ring(&mut self) {
        self.event.write(1).unwrap();
    }

    fn read_now(&mut self, op: &Op) -> Option<Result<(), ErrorKind>> {
        let agent = self.agent.clone();
        let mut state = agent.0.lock().unwrap();
        if !state.near || !state.reachable || state.epoch != self.epoch {
            return None;
        }
        Some(match (state.script)(op) {
            Fate::Fail(kind) => Err(kind),
            fate => self.execute(&mut state, op, fate == Fate::Corrupt),
        })
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let _ = self.event.read();
        let agent = self.agent.clone();
        let mut state = agent.0.lock().unwrap();
        self.broken |= !state.reachable || state.epoch != self.epoch;
        let complete = |op: &Op, result| Completion { tag: op.tag, result, value: 0 };
        while !state.held
            && !self.broken
            && let Some(op) = self.posted.pop_front()
        {
            let fate = (state.script)(&op);
            let result = match fate {
                Fate::Fail(kind) => {
                    self.broken |= kind.is_fatal();
                    Err(kind)
                }
                Fate::Do => self.execute(&mut state, &op, false),
                Fate::Corrupt => self.execute(&mut state, &op, true),
                Fate::Break => {
                    self.broken = true;
                    self.execute(&mut state, &op, false).and(Err(ErrorKind::RetryExceeded))
                }
            };
            done.push(complete(&op, result));
        }
        if self.broken {
            done.extend(self.posted.drain(..).map(|op| complete(&op, Err(ErrorKind::Flushed))));
        }
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn give_up(&mut self) {
        self.broken = true;
    }

    fn is_broken(&self) -> bool {
        self.broken
    }
}

impl ScriptedEndpoint {
    fn execute(&self, state: &mut State, op: &Op, corrupt: bool) -> Result<(), ErrorKind> {
        let slab = state.slabs.values_mut().find(|(rkey, _)| *rkey == op.rkey).ok_or(ErrorKind::RemoteAccess)?;
        let (at, len) = (op.addr.0 as usize, op.len as usize);
        let remote = slab.1.get_mut(at..at + len).ok_or(ErrorKind::RemoteAccess)?;
        // SAFETY: the lane keeps the range for this operation alone until its completion, which comes after this.
        let local = unsafe { self.arena.bytes_mut(op.local, len) };
        let (from, to): (&[u8], &mut [u8]) = match op.kind {
            OpKind::Read => (remote, local),
            OpKind::Write => (local, remote),
            OpKind::CompareSwap { .. } => return Err(ErrorKind::RemoteOperation),
        };
        to.copy_from_slice(from);
        if corrupt {
            to[len / 2] ^= 1;
        }
        Ok(())
    }
}

/// A pool over scripted donors.
pub(crate) struct Bed {
    pub pool: Arc<Pool>,
    pub agents: Vec<Arc<Agent>>,
    pub config: PoolConfig,
    pub spill: Option<SpillBed>,
}

/// A real spill file, on a disk.
pub(crate) struct SpillBed {
    pub config: SpillConfig,
    pub file: Arc<Spill>,
    _dir: tempfile::TempDir,
}

impl SpillBed {
    /// Room for so many slabs.
    pub fn new(slabs: u32) -> SpillBed {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let config = SpillConfig { path: dir.path().join("spill"), size: ByteSize(u64::from(slabs) * SLAB as u64) };
        let file = Spill::open(&config, None, false, Duration::from_secs(3)).unwrap().unwrap();
        SpillBed { config, file, _dir: dir }
    }
}

impl Bed {
    /// `capacities` are the donors' slabs.
    pub fn new(capacities: &[u32], replicas: u8) -> Bed {
        Self::with(capacities, replicas, |_| ())
    }

    pub fn with(capacities: &[u32], replicas: u8, change: impl FnOnce(&mut PoolConfig)) -> Bed {
        let donor = |i| DonorConfig { address: format!("d{i}:1"), ..DonorConfig::default() };
        let mut config = PoolConfig {
            donors: (0..capacities.len()).map(donor).collect(),
            replicas,
            lost_after: TimeSpan(Duration::from_millis(400)),
            idle_return: TimeSpan(Duration::from_millis(100)),
            scrub_rate: ByteSize(0),
            rebalance: false,
            ..PoolConfig::default()
        };
        change(&mut config);
        let agents: Vec<_> = capacities.iter().map(|c| Agent::new(*c)).collect();
        let dialer = Arc::new(Donors { agents: agents.clone() });
        let pool = Pool::start_with(config.clone(), None, PoolState::Fresh, dialer).unwrap();
        Bed { pool, agents, config, spill: None }
    }

    /// With a spill file of so many slabs.
    pub fn spilling(capacities: &[u32], replicas: u8, slabs: u32, change: impl FnOnce(&mut PoolConfig)) -> Bed {
        let mut bed = Self::with(capacities, replicas, change);
        bed.pool.shutdown();
        let spill = SpillBed::new(slabs);
        let (config, file) = (bed.config.clone(), Some(spill.file.clone()));
        bed.pool = Pool::start_with(config, file, PoolState::Fresh, bed.dialer()).unwrap();
        eventually("the spill file is up", || bed.pool.spill_is_up());
        bed.spill = Some(spill);
        bed
    }

    pub fn dialer(&self) -> Arc<Donors> {
        Arc::new(Donors { agents: self.agents.clone() })
    }

    /// Reserves exactly `pages` slots.
    pub fn reserve(&self, pages: usize) -> Vec<SlotRun> {
        let mut runs = Vec::new();
        assert_eq!(self.pool.reserve(pages, &mut runs), pages, "the pool is full: {runs:?}");
        runs
    }

    pub fn lane(&self) -> Lane {
        self.pool.lane("test", 256).unwrap()
    }
}

/// Waits for something to become true, for ten seconds at most.
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_true() {
        assert!(Instant::now() < until, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Drives the lane, asleep in between, until `n` jobs are done.
pub(crate) fn finish(lane: &mut Lane, n: usize) -> Vec<Done> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut done = Vec::new();
    lane.submit();
    loop {
        lane.poll(&mut done);
        if done.len() >= n {
            return done;
        }
        assert!(Instant::now() < until, "{} of {n} jobs done, {} in flight", done.len(), lane.in_flight());
        if !lane.arm() {
            let mut fds = [PollFd::new(lane.event_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(100u8)).unwrap();
        }
    }
}

/// A page's content, known from its slot and a generation.
pub(crate) fn fill(page: &mut [u8], slot: u32, generation: u32) {
    for (i, word) in page.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(slot.wrapping_mul(2_654_435_761) ^ generation << 12 ^ i as u32).to_le_bytes());
    }
}

pub(crate) fn is_filled(page: &[u8], slot: u32, generation: u32) -> bool {
    let mut wanted = [0; PAGE_SIZE];
    fill(&mut wanted, slot, generation);
    page == wanted
}

/// Puts known content into the slots of the runs; the job's result.
pub(crate) fn write(lane: &mut Lane, runs: &[SlotRun], generation: u32) -> Result<(), super::IoError> {
    post_write(lane, runs, generation, 1);
    take(lane, finish_one)
}

pub(crate) fn post_write(lane: &mut Lane, runs: &[SlotRun], generation: u32, token: u64) {
    let pages: u32 = runs.iter().map(|r| r.count).sum();
    let mut buf = lane.alloc(pages as usize).unwrap();
    let slots = runs.iter().flat_map(|r| r.slots());
    slots.zip(lane.bytes_mut(&mut buf).chunks_exact_mut(PAGE_SIZE)).for_each(|(s, p)| fill(p, s.0, generation));
    lane.write(&Part::in_order(runs), buf, token).unwrap();
}

/// Reads a run; true if every byte is the expected one.
pub(crate) fn read(lane: &mut Lane, run: SlotRun, generation: u32) -> Result<bool, super::IoError> {
    let buf = lane.alloc(run.count as usize).unwrap();
    lane.read(run, buf, 2).unwrap();
    let done = finish_one(lane);
    let pages = run.slots().zip(lane.bytes(&done.buf).chunks_exact(PAGE_SIZE));
    let right = pages.fold(true, |ok, (slot, page)| ok & is_filled(page, slot.0, generation));
    lane.free(done.buf);
    done.result.map(|()| right)
}

fn finish_one(lane: &mut Lane) -> Done {
    finish(lane, 1).remove(0)
}

fn take(lane: &mut Lane, one: impl FnOnce(&mut Lane) -> Done) -> Result<(), super::IoError> {
    let done = one(lane);
    let Done { buf, result, .. } = done;
    let buf: Buf = buf;
    lane.free(buf);
    result
}
