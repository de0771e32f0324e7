//! The pool with real agents in this process, one over tcp and one over shared memory: pages
//! survive the sudden end of either, under load, and come back byte for byte.

#[path = "../../../tests/src/testbed/claim.rs"]
mod claim;
#[path = "../../../tests/src/testbed/port.rs"]
mod port;

use annex_agent::{Agent, Config};
use annex_fabric::Transport;
use annex_pool::{DonorConfig, Lane, Part, Pool, PoolConfig, PoolState, SlotRun, TransportChoice};
use annex_pool_testbed::finish;
use annex_shared::api::DonorState;
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SLAB: u64 = 1 << 20;

struct Bed {
    dir: tempfile::TempDir,
    agents: Vec<Option<Agent>>,
    pool: Arc<Pool>,
}

fn agent(dir: &tempfile::TempDir, name: &str) -> Agent {
    Agent::start(agent_config(dir.path(), name)).unwrap()
}

fn agent_config(dir: &std::path::Path, name: &str) -> Config {
    Config {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        name: Some(name.to_owned()),
        capacity: Some(ByteSize(64 * SLAB)),
        slab_size: ByteSize(SLAB),
        headroom: Some(ByteSize(SLAB)),
        lease_ttl: TimeSpan(Duration::from_secs(5)),
        grace: TimeSpan(Duration::from_millis(300)),
        shm_socket: dir.join(format!("{name}.sock")),
        ..Config::default()
    }
}

/// One agent per entry of `transports`.
fn bed(transports: &[(TransportChoice, Option<&str>)]) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let agents: Vec<_> = (0..transports.len()).map(|i| Some(agent(&dir, &format!("agent{i}")))).collect();
    let donor = |(agent, (transport, faults)): (&Option<Agent>, &(TransportChoice, Option<&str>))| DonorConfig {
        address: agent.as_ref().unwrap().addr().to_string(),
        transport: *transport,
        faults: faults.map(str::to_owned),
        ..DonorConfig::default()
    };
    let config = PoolConfig {
        donors: agents.iter().zip(transports).map(donor).collect(),
        lost_after: TimeSpan(Duration::from_secs(1)),
        last_copy_lost_after: TimeSpan(Duration::from_secs(1)),
        op_timeout: TimeSpan(Duration::from_secs(1)),
        idle_return: TimeSpan(Duration::from_millis(200)),
        ..PoolConfig::default()
    };
    let pool = Pool::start(config, None, PoolState::Fresh).unwrap();
    Bed { dir, agents, pool }
}

fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < until, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn content(slot: u32, generation: u32) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    for (i, word) in page.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(slot.wrapping_mul(2_654_435_761) ^ (generation << 11) ^ i as u32).to_le_bytes());
    }
    page
}

fn write(lane: &mut Lane, runs: &[SlotRun], generation: u32) {
    let pages: usize = runs.iter().map(|r| r.count as usize).sum();
    let mut buf = lane.alloc(pages).unwrap();
    let slots = runs.iter().flat_map(|r| r.slots());
    for (slot, page) in slots.zip(lane.bytes_mut(&mut buf).chunks_exact_mut(PAGE_SIZE)) {
        page.copy_from_slice(&content(slot.0, generation));
    }
    let mut parts = Vec::new();
    let mut at = 0;
    for run in runs {
        parts.push(Part { run: *run, at });
        at += run.count as usize;
    }
    lane.write(&parts, buf, 0).unwrap();
    let done = finish(lane, 1).remove(0);
    done.result.unwrap();
    lane.free(done.buf);
}

fn verify(lane: &mut Lane, run: SlotRun, generation: u32) {
    let buf = lane.alloc(run.count as usize).unwrap();
    lane.read(run, buf, 0).unwrap();
    let done = finish(lane, 1).remove(0);
    done.result.unwrap_or_else(|e| panic!("reading {run:?}: {e}"));
    for (slot, page) in run.slots().zip(lane.bytes(&done.buf).chunks_exact(PAGE_SIZE)) {
        assert!(*page == content(slot.0, generation), "wrong bytes in {slot}");
    }
    lane.free(done.buf);
}

/// Writes, reads and releases pages until told to stop; the number of pages verified.
fn load(pool: &Arc<Pool>, stop: &AtomicBool, verified: &AtomicU64) {
    let mut lane = pool.lane("load", 512).unwrap();
    let mut held: Vec<(SlotRun, u32)> = Vec::new();
    let mut generation = 0u32;
    while !stop.load(Ordering::Relaxed) {
        generation += 1;
        let mut runs = Vec::new();
        // Counted, not held: an extent's worth at most.
        let n = pool.reserve(1 + generation as usize % 64, &mut runs);
        if n > 0 {
            write(&mut lane, &runs, generation);
            held.extend(runs.iter().map(|r| (*r, generation)));
        }
        for i in 0..4usize.min(held.len()) {
            let (run, generation) = held[(generation as usize * 7 + i * 13) % held.len()];
            verify(&mut lane, run, generation);
            verified.fetch_add(run.count.into(), Ordering::Relaxed);
        }
        while held.len() > 100 {
            let (run, _) = held.swap_remove(generation as usize % 100);
            run.slots().for_each(|s| pool.release(s));
        }
    }
    for (run, generation) in held {
        verify(&mut lane, run, generation);
        run.slots().for_each(|s| pool.release(s));
    }
}

/// Two threads of load; `victim` ends without a word in the middle.
fn survives_the_end_of(victim: usize) {
    let mut bed = bed(&[(TransportChoice::Tcp, None), (TransportChoice::Shm, None)]);
    bed.pool.is_usable().unwrap();
    let (stop, verified) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let loads: Vec<_> = (0..2).map(|_| s.spawn(|| load(&bed.pool, &stop, &verified))).collect();
        eventually("both threads verify pages", || verified.load(Ordering::Relaxed) > 2000);
        bed.agents[victim].take().unwrap().kill();
        eventually("the donor is lost", || bed.pool.donors()[victim].state == DonorState::Lost);
        let then = verified.load(Ordering::Relaxed);
        eventually("pages go on being verified", || {
            loads.iter().any(|l| l.is_finished()) || verified.load(Ordering::Relaxed) > then + 2000
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(bed.pool.is_usable().is_err(), "one donor is not enough for two replicas");
    assert_eq!(bed.pool.info().lost_extents, 0);
    assert!(bed.dir.path().exists());
}

#[test]
fn a_tcp_donor_that_dies_under_load_loses_no_page() {
    survives_the_end_of(0);
}

#[test]
fn a_shm_donor_that_dies_under_load_loses_no_page() {
    survives_the_end_of(1);
}

#[test]
fn the_transport_and_its_reason_are_told() {
    let bed = bed(&[(TransportChoice::Tcp, None), (TransportChoice::Auto, None)]);
    let donors = bed.pool.donors();
    assert_eq!((donors[0].transport, &donors[0].why[..]), (Some(Transport::Tcp), "configured: tcp"));
    assert_eq!((donors[1].transport, &donors[1].why[..]), (Some(Transport::Shm), "same host: shared memory"));
    assert_eq!(donors[0].name, "agent0");
    assert!(donors.iter().all(|d| d.slabs_capacity == 64));
    assert!(bed.pool.available_pages() > 60 * SLAB / PAGE_SIZE as u64);
}

#[test]
fn injected_faults_on_both_donors_spoil_no_page() {
    let bed = bed(&[
        (TransportChoice::Tcp, Some("fail=1/97,drop=1/1009,corrupt=1/61:even,delay=1/53:1ms,timeout=100ms,seed=3")),
        (TransportChoice::Shm, Some("fail=1/101,drop=1/1511,corrupt=1/10007:odd,delay=1/59:1ms,timeout=100ms,seed=5")),
    ]);
    let (stop, verified) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let load = s.spawn(|| load(&bed.pool, &stop, &verified));
        let spoilt = || {
            let donors = bed.pool.donors();
            donors.iter().all(|d| d.errors > 20) && donors[0].checksum_errors > 3
        };
        eventually("every kind of fault was met", || load.is_finished() || spoilt());
        stop.store(true, Ordering::Relaxed);
    });
    assert!(verified.load(Ordering::Relaxed) > 10_000);
    assert!(bed.pool.warnings().iter().any(|w| w.contains("injected faults")));
}

/// Not a test: an agent in a process of its own, which the tests below start, stop and kill.
#[test]
fn an_agent_of_its_own() {
    let Some(terms) = std::env::var_os("ANNEX_TEST_AGENT") else { return };
    let terms = terms.into_string().unwrap();
    let (listen, dir) = terms.split_once(' ').unwrap();
    // Two of three have room for all that the load holds.
    let capacity = Some(ByteSize(100 * SLAB));
    let listen = listen.parse().unwrap();
    let config = Config { listen, capacity, ..agent_config(std::path::Path::new(dir), "own") };
    let _agent = Agent::start(config).unwrap();
    loop {
        std::thread::park();
    }
}

struct Donor {
    dir: tempfile::TempDir,
    addr: SocketAddr,
    process: Child,
}

impl Donor {
    fn start() -> Donor {
        let addr = port::free();
        let dir = tempfile::tempdir().unwrap();
        let process = Self::spawn(addr, &dir);
        Donor { dir, addr, process }
    }

    fn spawn(addr: SocketAddr, dir: &tempfile::TempDir) -> Child {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["an_agent_of_its_own", "--exact", "--nocapture"])
            .env("ANNEX_TEST_AGENT", format!("{addr} {}", dir.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the agent answers", || std::net::TcpStream::connect(addr).is_ok());
        process
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    fn die(&mut self) {
        self.signal(Signal::SIGKILL);
        self.process.wait().unwrap();
    }

    fn come_back(&mut self) {
        self.process = Self::spawn(self.addr, &self.dir);
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pool_of(donors: &[Donor], transports: &[TransportChoice]) -> Arc<Pool> {
    let donor = |(donor, transport): (&Donor, &TransportChoice)| DonorConfig {
        name: Some(donor.addr.to_string()),
        address: donor.addr.to_string(),
        transport: *transport,
        ..DonorConfig::default()
    };
    let config = PoolConfig {
        donors: donors.iter().zip(transports).map(donor).collect(),
        lost_after: TimeSpan(Duration::from_secs(1)),
        last_copy_lost_after: TimeSpan(Duration::from_secs(1)),
        op_timeout: TimeSpan(Duration::from_secs(1)),
        control_timeout: TimeSpan(Duration::from_secs(1)),
        ..PoolConfig::default()
    };
    let pool = Pool::start(config, None, PoolState::Fresh).unwrap();
    pool.is_usable().unwrap();
    pool
}

fn whole(pool: &Pool) -> bool {
    let info = pool.info();
    info.degraded_extents == 0 && info.lost_extents == 0 && info.syncing_replicas + info.stale_replicas == 0
}

#[test]
fn donors_that_are_killed_one_after_the_other_and_come_back_lose_no_page() {
    let mut donors: Vec<Donor> = (0..3).map(|_| Donor::start()).collect();
    let pool = pool_of(&donors, &[TransportChoice::Tcp, TransportChoice::Shm, TransportChoice::Tcp]);
    let (stop, verified) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let loads: Vec<_> = (0..2).map(|_| s.spawn(|| load(&pool, &stop, &verified))).collect();
        eventually("both threads verify pages", || verified.load(Ordering::Relaxed) > 2000);
        for victim in [0, 1, 2, 1] {
            donors[victim].die();
            eventually("the donor is lost", || pool.donors()[victim].state == DonorState::Lost);
            // Every page is on two donors again, under load.
            eventually("repair is done", || loads.iter().any(|l| l.is_finished()) || whole(&pool));
            donors[victim].come_back();
            eventually("it is back", || pool.donors()[victim].state == DonorState::Up);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let info = pool.info();
    assert!(info.repaired > 0 && info.lost_pages == 0, "{info:?}");
}

fn survives_a_hang(transport: TransportChoice) {
    let donors: Vec<Donor> = (0..3).map(|_| Donor::start()).collect();
    let pool = pool_of(&donors, &[transport, transport, transport]);
    let (stop, verified) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let loads: Vec<_> = (0..2).map(|_| s.spawn(|| load(&pool, &stop, &verified))).collect();
        eventually("both threads verify pages", || verified.load(Ordering::Relaxed) > 2000);
        for donor in &donors[..2] {
            donor.signal(Signal::SIGSTOP);
            // Past every time-out, the load goes on without it.
            std::thread::sleep(Duration::from_secs(3));
            let then = verified.load(Ordering::Relaxed);
            eventually("pages go on being verified", || {
                loads.iter().any(|l| l.is_finished()) || verified.load(Ordering::Relaxed) > then + 1000
            });
            donor.signal(Signal::SIGCONT);
            eventually("every page is on two donors", || loads.iter().any(|l| l.is_finished()) || whole(&pool));
            eventually("all are up", || pool.donors().iter().all(|d| d.state == DonorState::Up));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((pool.info().lost_extents, pool.info().lost_pages), (0, 0));
}

#[test]
fn a_tcp_donor_that_hangs_and_goes_on_loses_no_page() {
    survives_a_hang(TransportChoice::Tcp);
}

#[test]
fn a_shm_donor_that_hangs_and_goes_on_loses_no_page() {
    survives_a_hang(TransportChoice::Shm);
}

#[test]
fn what_is_released_goes_back_to_the_agents() {
    let bed = bed(&[(TransportChoice::Tcp, None), (TransportChoice::Shm, None)]);
    let mut runs = Vec::new();
    assert_eq!(bed.pool.reserve(2000, &mut runs), 2000);
    let lent = |bed: &Bed| bed.agents.iter().flatten().map(Agent::lent).max().unwrap();
    assert!(lent(&bed) >= 8);
    runs.iter().flat_map(|r| r.slots()).for_each(|s: SlotIdx| bed.pool.release(s));
    eventually("all but the spare extent went back", || lent(&bed) == 1);
    bed.pool.shutdown();
    assert_eq!(lent(&bed), 0);
}

#[test]
fn an_agent_that_stops_in_order_takes_no_page_along() {
    let mut bed = bed(&[(TransportChoice::Tcp, None), (TransportChoice::Shm, None)]);
    let mut lane = bed.pool.lane("test", 256).unwrap();
    let mut runs = Vec::new();
    assert_eq!(bed.pool.reserve(200, &mut runs), 200);
    write(&mut lane, &runs, 1);
    bed.agents[1].take().unwrap().shutdown();
    runs.iter().for_each(|run| verify(&mut lane, *run, 1));
    eventually("its replicas count as lost", || bed.pool.info().degraded_extents > 0);
    runs.iter().for_each(|run| verify(&mut lane, *run, 1));
}
