//! The faulty fabric does what its plan says, on every provider underneath.

use crate::rig::*;
use annex_fabric::faulty::{Faults, FaultyConnector};
use annex_fabric::{Completion, Connector, ErrorKind, Op, OpKind};
use annex_shared::ids::RemoteAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Rig {
    donor: Donor,
    faults: Arc<Faults>,
    lane: Lane,
    connector: FaultyConnector,
}

/// Runs a check over `tcp` and over `shm`.
fn on_both(plan: &str, check: impl Fn(&mut Rig)) {
    for is_tcp in [true, false] {
        let donor = Donor::start();
        let inner: Arc<dyn Connector> = if is_tcp { Arc::new(donor.tcp()) } else { Arc::new(donor.shm()) };
        let connector = FaultyConnector::new(inner, plan.parse().unwrap());
        let lane = Lane::open(&connector, 64 * 4096);
        check(&mut Rig { donor, faults: connector.faults().clone(), lane, connector });
    }
}

fn post(lane: &mut Lane, tag: u64, kind: OpKind, page: usize) {
    let (local, addr) = (page * 4096, RemoteAddr(page as u64 * 4096));
    lane.endpoint.post(Op { tag, kind, local, len: 4096, rkey: KEY, addr }).unwrap();
}

fn by_tag(mut done: Vec<Completion>) -> Vec<Result<(), ErrorKind>> {
    done.sort_by_key(|c| c.tag);
    done.iter().map(|c| c.result).collect()
}

#[test]
fn every_nth_operation_fails_undone_and_done_by_turns() {
    on_both("fail=1/2", |rig| {
        rig.lane.fill(0, &pattern(1, 4 * 4096));
        (0..4).for_each(|page| post(&mut rig.lane, page as u64, OpKind::Write, page));
        rig.lane.endpoint.ring();
        let failed = Err(ErrorKind::RemoteOperation);
        assert_eq!(by_tag(rig.lane.finish(4)), [Ok(()), failed, Ok(()), failed]);
        let is_written =
            |page: usize| rig.donor.table.peek(KEY, page * 4096, 4096) == rig.lane.bytes(page * 4096, 4096);
        assert_eq!([0, 1, 2, 3].map(is_written), [true, false, true, true]);
        assert_eq!((rig.faults.operations(), rig.faults.failed()), (4, 2));
        assert!(!rig.lane.endpoint.is_broken());
    });
}

#[test]
fn a_corrupted_read_brings_wrong_bytes_and_leaves_the_donors_right() {
    on_both("corrupt=1/3", |rig| {
        let data = pattern(1, 3 * 4096);
        rig.donor.table.poke(KEY, 0, &data);
        (0..3).for_each(|page| post(&mut rig.lane, page as u64, OpKind::Read, page));
        rig.lane.endpoint.ring();
        assert_eq!(by_tag(rig.lane.finish(3)), [Ok(()); 3]);
        let is_right = |page: usize| rig.lane.bytes(page * 4096, 4096) == data[page * 4096..][..4096];
        assert_eq!([0, 1, 2].map(is_right), [true, true, false]);
        assert_eq!(rig.donor.table.peek(KEY, 0, data.len()), data);
        assert_eq!((rig.faults.corrupted_reads(), rig.faults.corrupted_writes()), (1, 0));
    });
}

#[test]
fn a_corrupted_write_leaves_wrong_bytes_and_the_source_right() {
    on_both("corrupt=1/3", |rig| {
        let data = pattern(1, 3 * 4096);
        rig.lane.fill(0, &data);
        (0..3).for_each(|page| post(&mut rig.lane, page as u64, OpKind::Write, page));
        rig.lane.endpoint.ring();
        assert_eq!(by_tag(rig.lane.finish(3)), [Ok(()); 3]);
        let is_right = |page: usize| rig.donor.table.peek(KEY, page * 4096, 4096) == data[page * 4096..][..4096];
        assert_eq!([0, 1, 2].map(is_right), [true, true, false]);
        assert_eq!(rig.lane.bytes(0, data.len()), data);
        assert_eq!(rig.donor.table.peek(KEY, data.len(), 4096), [0; 4096], "nothing beside it was touched");
        assert_eq!((rig.faults.corrupted_reads(), rig.faults.corrupted_writes()), (0, 1));
    });
}

#[test]
fn a_delayed_completion_comes_late_and_wakes_the_sleeper() {
    on_both("delay=1/2:400ms", |rig| {
        let start = Instant::now();
        (0..2).for_each(|page| post(&mut rig.lane, page as u64, OpKind::Read, page));
        rig.lane.endpoint.ring();
        let first = rig.lane.finish(1);
        assert_eq!((first.len(), first[0].tag), (1, 0), "the other one is held back");
        while rig.lane.endpoint.arm() {
            rig.lane.endpoint.poll(&mut Vec::new());
        }
        assert!(sleep_on(&*rig.lane.endpoint, PATIENCE), "the event descriptor wakes");
        let second = rig.lane.finish(1);
        assert_eq!((second[0].tag, second[0].result), (1, Ok(())));
        assert!(start.elapsed() >= Duration::from_millis(400));
        assert_eq!(rig.faults.delayed(), 1);
    });
}

#[test]
fn a_dropped_operation_breaks_the_endpoint_after_the_time_out() {
    on_both("drop=1/2,timeout=400ms", |rig| {
        let start = Instant::now();
        (0..3).for_each(|page| post(&mut rig.lane, page as u64, OpKind::Write, page));
        rig.lane.endpoint.ring();
        let done = by_tag(rig.lane.finish(3));
        assert_eq!(done, [Ok(()), Err(ErrorKind::RetryExceeded), Ok(())]);
        assert!(start.elapsed() >= Duration::from_millis(400));
        assert!(rig.lane.endpoint.is_broken());
        assert_eq!(rig.lane.run(OpKind::Read, 0, 8, KEY, 0).result, Err(ErrorKind::Flushed));
        assert_eq!(rig.faults.dropped(), 1);
        let mut fresh = Lane::open(&rig.connector, 4096);
        assert_eq!(fresh.run(OpKind::Read, 0, 8, KEY, 0).result, Ok(()), "a new endpoint works");
    });
}

#[test]
fn a_dropped_operation_is_sometimes_done_at_the_donor() {
    on_both("drop=1/1,timeout=400ms", |rig| {
        rig.lane.fill(0, &[5; 2 * 4096]);
        (0..2).for_each(|page| post(&mut rig.lane, page as u64, OpKind::Write, page));
        rig.lane.endpoint.ring();
        let done = by_tag(rig.lane.finish(2));
        assert_eq!(done, [Err(ErrorKind::RetryExceeded), Err(ErrorKind::Flushed)]);
        assert_eq!(rig.donor.table.peek(KEY, 0, 2 * 4096), [[0; 4096], [5; 4096]].concat());
    });
}

#[test]
fn under_all_faults_every_operation_completes_once_and_honest_successes_are_right() {
    on_both("fail=1/7,corrupt=1/13,delay=1/5:1ms,drop=1/97,timeout=20ms,seed=3", |rig| {
        let data = pattern(6, 64 * 4096);
        rig.donor.table.poke(KEY, 0, &data);
        let mut wrong = 0;
        for _ in 0..40 {
            if rig.lane.endpoint.is_broken() {
                rig.lane = Lane::open(&rig.connector, 64 * 4096);
            }
            (0..32).for_each(|page| post(&mut rig.lane, page as u64, OpKind::Read, page));
            rig.lane.endpoint.ring();
            let mut done = rig.lane.finish(32);
            done.sort_by_key(|c| c.tag);
            assert!(done.iter().map(|c| c.tag).eq(0..32));
            let right =
                |c: &&Completion| rig.lane.bytes(c.tag as usize * 4096, 4096) == data[c.tag as usize * 4096..][..4096];
            wrong += done.iter().filter(|c| c.result.is_ok()).filter(|c| !right(c)).count() as u64;
        }
        let faults = &rig.faults;
        assert!(wrong > 0 && wrong <= faults.corrupted_reads(), "{wrong} wrong; {faults}");
        assert!(faults.failed() > 0 && faults.dropped() > 0 && faults.delayed() > 0, "{faults}");
    });
}
