//! Nothing is allocated per operation, on either side.
//!
//! A test binary of its own, since it replaces the allocator. One test, so that no other one's
//! allocations are counted.

#[path = "fabric/rig.rs"]
mod rig;

use annex_fabric::{Connector, Op, OpKind};
use annex_shared::ids::RemoteAddr;
use rig::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of the whole process, the donor's threads included, during `rounds` batches.
fn allocations_during(lane: &mut Lane, rounds: u64) -> u64 {
    let mut done = Vec::with_capacity(lane.endpoint.depth());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for round in 0..rounds {
        for tag in 0..48 {
            let kind = match tag % 3 {
                0 => OpKind::Read,
                1 => OpKind::Write,
                _ => OpKind::CompareSwap { expect: round, swap: round + 1 },
            };
            let len = if tag % 3 == 2 { 8 } else { 4096 };
            let (local, addr) = (tag as usize * 4096, RemoteAddr(tag * 4096));
            lane.endpoint.post(Op { tag, kind, local, len, rkey: KEY, addr }).unwrap();
        }
        lane.endpoint.ring();
        let mut finished = 0;
        while finished < 48 {
            lane.endpoint.poll(&mut done);
            assert!(done.iter().all(|c| c.result.is_ok()));
            finished += done.len();
            done.clear();
            if finished < 48 && !lane.endpoint.arm() {
                sleep_on(&*lane.endpoint, PATIENCE);
            }
        }
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn no_operation_allocates() {
    let donor = Donor::start();
    let mut connectors: Vec<Box<dyn Connector>> = vec![Box::new(donor.tcp()), Box::new(donor.shm())];
    if has_verbs() {
        connectors.push(Box::new(donor.verbs()));
    }
    for connector in connectors {
        let connector = &*connector;
        let mut lane = Lane::open(connector, 64 * 4096);
        allocations_during(&mut lane, 2);
        let counted = allocations_during(&mut lane, 200);
        assert_eq!(counted, 0, "{}", connector.transport());
    }
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the counter counts");
}
