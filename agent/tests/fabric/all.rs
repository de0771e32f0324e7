//! What holds on every provider.

use crate::rig::*;
use annex_fabric::{Connector, ErrorKind, MAX_OP_LEN, Op, OpKind, QueueFull, Transport};
use annex_shared::ids::{RemoteAddr, Rkey};

/// Runs a test on `tcp` and on `shm`, and on `verbs` where there is a device.
macro_rules! on_all {
    ($($name:ident => $check:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $name() { let d = super::Donor::start(); super::$check(&d.tcp(), &d); })* }
        mod shm { $(#[test] fn $name() { let d = super::Donor::start(); super::$check(&d.shm(), &d); })* }
        mod verbs {
            $(#[test] fn $name() {
                if super::has_verbs() {
                    let d = super::Donor::start();
                    super::$check(&d.verbs(), &d);
                }
            })*
        }
    };
}

on_all! {
    bytes_of_every_size_come_back => round_trips,
    a_pipeline_deeper_than_the_queue_completes => pipeline,
    out_of_bounds_gives_an_error_and_no_bytes => bounds,
    a_foreign_or_unknown_key_gives_an_error_and_no_bytes => keys,
    an_ended_lease_gives_an_error_and_no_bytes => revoked,
    a_local_range_outside_the_arena_is_refused_in_place => local_range,
    compare_swap_swaps_only_what_it_expects => compare_swap,
    compare_swap_is_atomic_between_endpoints => counters,
    connections_of_a_finished_session_are_closed => session_over,
}

fn round_trips(connector: &dyn Connector, donor: &Donor) {
    let max = MAX_OP_LEN as usize;
    let mut lane = Lane::open(connector, 2 * max);
    for (i, len) in [0, 1, 7, 8, 4095, 4096, 4097, 65536, 131_072, 1_000_003, max].into_iter().enumerate() {
        let (data, addr) = (pattern(i as u64 + 1, len), 8191 * i);
        lane.fill(0, &data);
        assert_eq!(lane.run(OpKind::Write, 0, len as u32, KEY, addr as u64).result, Ok(()), "{len} bytes");
        assert_eq!(donor.table.peek(KEY, addr, len), data);
        assert_eq!(lane.run(OpKind::Read, max, len as u32, KEY, addr as u64).result, Ok(()), "{len} bytes");
        assert_eq!(lane.bytes(max, len), data, "{len} bytes");
    }
}

fn pipeline(connector: &dyn Connector, donor: &Donor) {
    const PAGE: usize = 4096;
    let mut lane = Lane::open(connector, 512 * PAGE);
    let depth = lane.endpoint.depth();
    let data: Vec<u8> = pattern(5, 2000 * PAGE);
    donor.table.poke(KEY, 0, &data);
    let (mut posted, mut tags, mut done) = (0, Vec::new(), Vec::new());
    while tags.len() < 2000 {
        while posted < 2000 {
            let op = Op {
                tag: posted,
                kind: OpKind::Read,
                local: posted as usize % depth * PAGE,
                len: PAGE as u32,
                rkey: KEY,
                addr: RemoteAddr(posted * PAGE as u64),
            };
            match lane.endpoint.post(op) {
                Ok(()) => posted += 1,
                Err(QueueFull) => break,
            }
        }
        lane.endpoint.ring();
        lane.endpoint.poll(&mut done);
        if done.is_empty() && !lane.endpoint.arm() {
            assert!(sleep_on(&*lane.endpoint, PATIENCE), "a completion wakes the sleeper");
        }
        for c in done.drain(..) {
            assert_eq!(c.result, Ok(()));
            let (page, at) = (c.tag as usize, c.tag as usize % depth * PAGE);
            assert!(lane.bytes(at, PAGE) == data[page * PAGE..][..PAGE], "page {page}");
            tags.push(c.tag);
        }
    }
    tags.sort_unstable();
    assert_eq!(tags, (0..2000).collect::<Vec<_>>());
}

/// A READ, a WRITE and a COMPARE_SWAP there are all refused and move nothing; the endpoint lives
/// on.
fn is_refused(lane: &mut Lane, rkey: Rkey, addr: u64, len: u32) {
    let before = pattern(9, 64);
    lane.fill(0, &before);
    for kind in [OpKind::Read, OpKind::Write] {
        assert_eq!(
            lane.run(kind, 0, len, rkey, addr).result,
            Err(ErrorKind::RemoteAccess),
            "{kind} {len} at {addr:#x}"
        );
    }
    assert_eq!(lane.bytes(0, 64), before, "no byte came");
    assert!(!lane.endpoint.is_broken());
}

fn swap_is_refused(lane: &mut Lane, rkey: Rkey, addr: u64) {
    let done = lane.run(OpKind::CompareSwap { expect: 0, swap: 1 }, 0, 8, rkey, addr);
    assert_eq!((done.result, done.value), (Err(ErrorKind::RemoteAccess), 0), "at {addr:#x}");
}

fn bounds(connector: &dyn Connector, donor: &Donor) {
    let mut lane = Lane::open(connector, 8192);
    let slab = SLAB as u64;
    for (addr, len) in [(slab, 1), (slab - 4095, 4096), (slab + 4096, 4096), (u64::MAX, 64), (u64::MAX - 63, 64)] {
        is_refused(&mut lane, KEY, addr, len);
    }
    for addr in [slab, slab - 7, u64::MAX - 7, 4] {
        swap_is_refused(&mut lane, KEY, addr);
    }
    assert_eq!(donor.table.peek(KEY, 0, SLAB), vec![0; SLAB]);
    assert_eq!(lane.run(OpKind::Read, 0, 4096, KEY, slab - 4096).result, Ok(()), "the last page is in bounds");
}

fn keys(connector: &dyn Connector, donor: &Donor) {
    let mut lane = Lane::open(connector, 8192);
    let secret = pattern(3, 64);
    donor.table.poke(OTHERS_KEY, 0, &secret);
    for rkey in [OTHERS_KEY, Rkey(0), Rkey(u64::MAX)] {
        is_refused(&mut lane, rkey, 0, 64);
        swap_is_refused(&mut lane, rkey, 0);
    }
    assert_eq!(donor.table.peek(OTHERS_KEY, 0, 64), secret);
}

fn revoked(connector: &dyn Connector, donor: &Donor) {
    let mut lane = Lane::open(connector, 8192);
    assert_eq!(lane.run(OpKind::Write, 0, 64, KEY, 0).result, Ok(()));
    donor.table.revoke(KEY);
    // A device that refuses ends the endpoint.
    let is_device = connector.transport() == Transport::Verbs;
    let before = pattern(9, 64);
    for kind in [OpKind::Read, OpKind::Write, OpKind::CompareSwap { expect: 0, swap: 1 }] {
        lane.fill(0, &before);
        let len = if let OpKind::CompareSwap { .. } = kind { 8 } else { 64 };
        let done = lane.run(kind, 0, len, KEY, 0);
        assert_eq!((done.result, done.value), (Err(ErrorKind::RemoteAccess), 0), "{kind}");
        assert_eq!(lane.bytes(0, 64), before, "no byte came");
        assert_eq!(lane.endpoint.is_broken(), is_device);
        if is_device {
            lane = Lane::open(connector, 8192);
        }
    }
    assert_eq!(lane.run(OpKind::Write, 0, 64, SECOND_KEY, 0).result, Ok(()), "the other lease still holds");
}

fn local_range(connector: &dyn Connector, _donor: &Donor) {
    let mut lane = Lane::open(connector, 8192);
    let op = |tag, kind, local, len| Op { tag, kind, local, len, rkey: KEY, addr: RemoteAddr(0) };
    let swap = OpKind::CompareSwap { expect: 0, swap: 0 };
    let ops = [
        op(0, OpKind::Read, 8192, 1),
        op(1, OpKind::Read, 4096, 4096),
        op(2, OpKind::Write, usize::MAX, 2),
        op(3, OpKind::Write, 0, MAX_OP_LEN + 1),
        op(4, swap, 0, 4),
        op(5, OpKind::Write, 0, 8192),
        op(6, OpKind::Read, 8000, 193),
    ];
    // Twice, so that places in the queue are used again.
    for _ in 0..2 {
        ops.iter().for_each(|op| lane.endpoint.post(*op).unwrap());
        lane.endpoint.ring();
        let mut done = lane.finish(ops.len());
        done.sort_by_key(|c| c.tag);
        for c in done {
            let expected = if c.tag == 1 || c.tag == 5 { Ok(()) } else { Err(ErrorKind::LocalProtection) };
            assert_eq!(c.result, expected, "operation {}", c.tag);
        }
    }
}

fn compare_swap(connector: &dyn Connector, donor: &Donor) {
    let mut lane = Lane::open(connector, 8192);
    donor.table.poke(KEY, 16, &7u64.to_le_bytes());
    let missed = lane.run(OpKind::CompareSwap { expect: 8, swap: 9 }, 0, 8, KEY, 16);
    assert_eq!((missed.result, missed.value), (Ok(()), 7));
    let hit = lane.run(OpKind::CompareSwap { expect: 7, swap: 9 }, 0, 8, KEY, 16);
    assert_eq!((hit.result, hit.value), (Ok(()), 7));
    assert_eq!(donor.table.peek(KEY, 8, 24), [&[0; 8][..], &9u64.to_le_bytes(), &[0; 8]].concat());
}

fn counters(connector: &dyn Connector, donor: &Donor) {
    const EACH: u64 = 300;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut lane = Lane::open(connector, 4096);
                let (mut seen, mut added) = (0, 0);
                while added < EACH {
                    let done = lane.run(OpKind::CompareSwap { expect: seen, swap: seen + 1 }, 0, 8, KEY, 64);
                    assert_eq!(done.result, Ok(()));
                    let hit = done.value == seen;
                    added += u64::from(hit);
                    seen = if hit { seen + 1 } else { done.value };
                }
            });
        }
    });
    assert_eq!(donor.table.peek(KEY, 64, 8), (2 * EACH).to_le_bytes());
}

fn session_over(connector: &dyn Connector, donor: &Donor) {
    let mut lane = Lane::open(connector, 4096);
    assert_eq!(lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
    donor.connections.close_client(OTHER);
    assert_eq!(lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()), "another client's end is not ours");
    donor.connections.close_client(CLIENT);
    assert!(donor.connections.wait_empty(PATIENCE));
    let start = std::time::Instant::now();
    let failed = loop {
        // shm notices through its watcher, a moment later.
        let result = lane.run(OpKind::Write, 0, 8, KEY, 0).result;
        assert!(start.elapsed() < PATIENCE, "still {result:?}");
        if result.is_err() {
            break result;
        }
    };
    assert!(failed == Err(ErrorKind::RetryExceeded) || failed == Err(ErrorKind::Flushed), "{failed:?}");
    assert!(lane.endpoint.is_broken());
    assert_eq!(lane.run(OpKind::Write, 0, 8, KEY, 0).result, Err(ErrorKind::Flushed));
}
