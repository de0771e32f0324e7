//! A lane allocates nothing once it is warm: a fault must not wait for the allocator, whose memory
//! may be paged.

use annex_agent::{Agent, Config};
use annex_pool::{Done, DonorConfig, Lane, Part, Pool, PoolConfig, PoolState};
use annex_shared::config::ByteSize;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no allocated
// memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promises are the callee's preconditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn finish(lane: &mut Lane, n: usize, done: &mut Vec<Done>) {
    lane.submit();
    while done.len() < n {
        lane.poll(done);
        lane.arm();
    }
}

#[test]
fn reads_and_writes_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let agent = |name: &str| {
        let slab_size = ByteSize(1 << 20);
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (capacity, headroom) = (Some(ByteSize(8 << 20)), Some(ByteSize(1 << 20)));
        let shm_socket = dir.path().join(name);
        Agent::start(Config { listen, capacity, headroom, slab_size, shm_socket, ..Config::default() }).unwrap()
    };
    let agents = [agent("a"), agent("b")];
    let transports = [annex_pool::TransportChoice::Tcp, annex_pool::TransportChoice::Shm];
    let donor = |(agent, transport): (&Agent, _)| DonorConfig {
        address: agent.addr().to_string(),
        transport,
        ..DonorConfig::default()
    };
    let config =
        PoolConfig { donors: agents.iter().zip(transports).map(donor).collect(), seal: true, ..PoolConfig::default() };
    let pool = Pool::start(config, None, PoolState::Fresh).unwrap();
    let mut lane = pool.lane("test", 256).unwrap();
    let mut runs = Vec::with_capacity(64);
    assert_eq!(pool.reserve(64, &mut runs), 64);
    let (run, mut done) = (runs[0], Vec::with_capacity(512));
    let mut round = |lane: &mut Lane| {
        let buf = lane.alloc(run.count as usize).unwrap();
        lane.write(&[Part { run, at: 0 }], buf, 0).unwrap();
        finish(lane, 1, &mut done);
        done.drain(..).for_each(|d| lane.free(d.buf));
        for token in 0..64 {
            let buf = lane.alloc(1).unwrap();
            let one = annex_pool::SlotRun { count: 1, ..run };
            lane.read(one, buf, token).unwrap();
        }
        finish(lane, 64, &mut done);
        done.drain(..).for_each(|d| lane.free(d.buf));
    };
    (0..20).for_each(|_| round(&mut lane));
    let before = COUNT.get();
    (0..200).for_each(|_| round(&mut lane));
    assert_eq!(COUNT.get() - before, 0, "allocations on the data path");
}
