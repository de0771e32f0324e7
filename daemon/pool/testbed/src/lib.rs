//! Scripted donors: agents and their fabric in memory, that do what a test tells them to.

mod agent;
mod dial;
mod endpoint;
mod slab;

pub use agent::{Agent, Fate};
use annex_pool::{Buf, Done, Lane, Part, Pool, PoolState, SlotRun, Spill, SpillConfig};
use annex_pool::{DonorConfig, PoolConfig};
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::page::PAGE_SIZE;
pub use dial::{Donors, index_of};
pub use slab::SLOTS;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use slab::SLAB;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pool over scripted donors.
pub struct Bed {
    pub pool: Arc<Pool>,
    pub agents: Vec<Arc<Agent>>,
    pub config: PoolConfig,
    pub spill: Option<SpillBed>,
}

/// A real spill file, on a disk.
pub struct SpillBed {
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
            last_copy_lost_after: TimeSpan(Duration::from_millis(400)),
            idle_return: TimeSpan(Duration::from_millis(100)),
            scrub_rate: ByteSize(0),
            rebalance: false,
            seal: seals(),
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

/// Whether pages are sealed: in test programs whose names begin so.
pub fn seals() -> bool {
    let program = std::env::current_exe().unwrap();
    program.file_name().unwrap().to_string_lossy().starts_with("sealed")
}

/// Waits for something to become true, for a minute at most.
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < until, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Drives the lane, asleep in between, until `n` jobs are done.
pub fn finish(lane: &mut Lane, n: usize) -> Vec<Done> {
    let until = Instant::now() + Duration::from_secs(60);
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
pub fn fill(page: &mut [u8], slot: u32, generation: u32) {
    for (i, word) in page.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(slot.wrapping_mul(2_654_435_761) ^ generation << 12 ^ i as u32).to_le_bytes());
    }
}

pub fn is_filled(page: &[u8], slot: u32, generation: u32) -> bool {
    let mut wanted = [0; PAGE_SIZE];
    fill(&mut wanted, slot, generation);
    page == wanted
}

/// Puts known content into the slots of the runs; the job's result.
pub fn write(lane: &mut Lane, runs: &[SlotRun], generation: u32) -> Result<(), annex_pool::IoError> {
    post_write(lane, runs, generation, 1);
    take(lane, finish_one)
}

pub fn post_write(lane: &mut Lane, runs: &[SlotRun], generation: u32, token: u64) {
    let pages: u32 = runs.iter().map(|r| r.count).sum();
    let mut buf = lane.alloc(pages as usize).unwrap();
    let slots = runs.iter().flat_map(|r| r.slots());
    slots.zip(lane.bytes_mut(&mut buf).chunks_exact_mut(PAGE_SIZE)).for_each(|(s, p)| fill(p, s.0, generation));
    lane.write(&Part::in_order(runs), buf, token).unwrap();
}

/// Reads a run; true if every byte is the expected one.
pub fn read(lane: &mut Lane, run: SlotRun, generation: u32) -> Result<bool, annex_pool::IoError> {
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

fn take(lane: &mut Lane, one: impl FnOnce(&mut Lane) -> Done) -> Result<(), annex_pool::IoError> {
    let done = one(lane);
    let Done { buf, result, .. } = done;
    let buf: Buf = buf;
    lane.free(buf);
    result
}
