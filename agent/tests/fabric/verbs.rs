//! What is particular to verbs: keys of a device, deregistration, fences, the choice of the device.
//! Over a real device, or skipped loudly.

use crate::rig::*;
use annex_fabric::verbs::{Device, DeviceChoice, DeviceError, PrepareError, VerbsError};
use annex_fabric::{ConnectError, ErrorKind, Op, OpKind};
use annex_shared::ids::{Incarnation, RemoteAddr, Rkey, SessionKey};
use std::time::{Duration, Instant};

#[test]
fn a_stolen_device_key_of_another_client_gives_an_error_and_no_bytes() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let secret = pattern(3, 64);
    donor.table.poke(OTHERS_KEY, 0, &secret);
    let owner = donor.verbs_with(OTHER, INCARNATION, SESSION).unwrap();
    owner.prepare(OTHERS_KEY).unwrap();
    let thief = donor.verbs();
    thief.pretend(OTHERS_KEY, owner.window(OTHERS_KEY).unwrap());
    for kind in [OpKind::Read, OpKind::Write, OpKind::CompareSwap { expect: 0, swap: 1 }] {
        let mut lane = Lane::open(&thief, 4096);
        lane.fill(0, &[7; 64]);
        let len = if let OpKind::CompareSwap { .. } = kind { 8 } else { 64 };
        let done = lane.run(kind, 0, len, OTHERS_KEY, 0);
        assert_eq!((done.result, done.value), (Err(ErrorKind::RemoteAccess), 0), "{kind}");
        assert!(lane.endpoint.is_broken());
        assert_eq!(lane.bytes(0, 64), [7; 64]);
    }
    assert_eq!(donor.table.peek(OTHERS_KEY, 0, 64), secret);
    assert_eq!(thief.counts().happened(), [("IBV_WC_REM_ACCESS_ERR", 3)]);
    let mut theirs = Lane::open(&owner, 4096);
    assert_eq!(theirs.run(OpKind::Read, 0, 64, OTHERS_KEY, 0).result, Ok(()), "the owner's goes on");
    assert_eq!(theirs.bytes(0, 64), secret);
}

#[test]
fn an_error_flushes_what_was_posted_behind_it() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let connector = donor.verbs();
    let mut lane = Lane::open(&connector, 64 * 4096);
    donor.table.revoke(SECOND_KEY);
    for tag in 0..40 {
        let rkey = if tag == 20 { SECOND_KEY } else { KEY };
        let op = Op { tag, kind: OpKind::Write, local: 0, len: 4096, rkey, addr: RemoteAddr(tag * 4096) };
        lane.endpoint.post(op).unwrap();
    }
    lane.endpoint.ring();
    let mut done = lane.finish(40);
    done.sort_by_key(|c| c.tag);
    for c in done {
        let expected = match c.tag {
            0..20 => Ok(()),
            20 => Err(ErrorKind::RemoteAccess),
            _ => Err(ErrorKind::Flushed),
        };
        assert_eq!(c.result, expected, "operation {}", c.tag);
    }
    assert_eq!(Lane::open(&connector, 4096).run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()), "a fresh endpoint works");
}

#[test]
fn no_write_lands_once_its_lease_is_over() {
    if !has_verbs() {
        return;
    }
    const LEN: usize = 256 << 10;
    let donor = Donor::start();
    let connector = donor.verbs();
    let (ours, theirs) = (vec![0x11; LEN], vec![0xee; LEN]);
    let mut key = KEY;
    for round in 0..15 {
        let mut lane = Lane::open(&connector, LEN);
        lane.fill(0, &ours);
        let next = Rkey(0x1000 + round);
        std::thread::scope(|scope| {
            let donor = &donor;
            let revoker = scope.spawn(move || {
                // Somewhere among the writer's WRITEs, at another place each round.
                std::thread::sleep(Duration::from_micros(500 + 1700 * round));
                donor.table.lend_anew(key, next);
                donor.table.poke(next, 0, &vec![0xee; LEN]);
            });
            let start = Instant::now();
            while lane.run(OpKind::Write, 0, LEN as u32, key, 0).result.is_ok() {
                assert!(start.elapsed() < PATIENCE, "the key is never refused");
            }
            revoker.join().unwrap();
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(donor.table.peek(next, 0, LEN) == theirs, "round {round}: a WRITE landed after its lease's end");
        connector.forget(key);
        connector.prepare(next).unwrap();
        key = next;
    }
}

#[test]
fn no_write_of_a_dropped_endpoint_lands_after_the_next_one_is_open() {
    if !has_verbs() {
        return;
    }
    const LEN: usize = 256 << 10;
    let donor = Donor::start();
    let connector = donor.verbs();
    for round in 0..10u8 {
        let mut lane = Lane::open(&connector, LEN);
        lane.fill(0, &vec![0x10 + round; LEN]);
        for tag in 0..8 {
            let addr = RemoteAddr(tag * LEN as u64);
            lane.endpoint.post(Op { tag, kind: OpKind::Write, local: 0, len: LEN as u32, rkey: KEY, addr }).unwrap();
        }
        lane.endpoint.ring();
        drop(lane);
        let next = Lane::open(&connector, 4096);
        let mark = vec![0xee; 8 * LEN];
        donor.table.poke(KEY, 0, &mark);
        std::thread::sleep(Duration::from_millis(20));
        assert!(donor.table.peek(KEY, 0, 8 * LEN) == mark, "round {round}: a late WRITE landed");
        drop(next);
    }
}

/// It allows a connection 256 queue pairs, so those of endpoints that are over have to go.
#[test]
fn the_agent_destroys_its_end_of_every_dropped_endpoint() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let connector = donor.verbs().with_depth(4);
    (0..270).for_each(|_| drop(Lane::open(&connector, 4096)));
    assert_eq!(Lane::open(&connector, 4096).run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
}

#[test]
fn another_clients_slab_is_not_registered_for_us() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let connector = donor.verbs();
    let error = connector.prepare(OTHERS_KEY).unwrap_err();
    assert!(matches!(error, PrepareError::Refused { kind: ErrorKind::RemoteAccess, .. }), "{error}");
    assert!(connector.prepare(KEY).is_ok(), "the connection is still of use");
}

#[test]
fn a_slab_that_is_forgotten_is_refused() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let connector = donor.verbs();
    let mut lane = Lane::open(&connector, 4096);
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Ok(()));
    connector.forget(KEY);
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Err(ErrorKind::RemoteAccess));
    assert!(!lane.endpoint.is_broken());
    connector.prepare(KEY).unwrap();
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Ok(()), "open endpoints see it");
}

#[test]
fn a_new_session_ends_the_queue_pairs_of_the_one_before() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let (old, tcp) = (donor.verbs(), donor.tcp());
    let (mut old_lane, mut tcp_lane) = (Lane::open(&old, 4096), Lane::open(&tcp, 4096));
    assert_eq!(old_lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
    assert_eq!(tcp_lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
    let new = donor.verbs_with(CLIENT, INCARNATION, NEXT_SESSION).unwrap();
    new.prepare(KEY).unwrap();
    assert_eq!(old_lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()), "not before it has to");
    assert_eq!(tcp_lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
    let mut new_lane = Lane::open(&new, 4096);
    assert_eq!(donor.connections.count(), 1, "the first endpoint is there when the old connections are gone");
    assert!(old_lane.run(OpKind::Write, 0, 8, KEY, 0).result.is_err());
    assert!(tcp_lane.run(OpKind::Write, 0, 8, KEY, 0).result.is_err());
    assert_eq!(new_lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
}

#[test]
fn a_wrong_session_or_incarnation_is_refused_with_the_reason() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let refused = |incarnation, session| match donor.verbs_with(CLIENT, incarnation, session) {
        Err(VerbsError::Connect(ConnectError::Refused { reason, .. })) => reason,
        other => panic!("not refused: {other:?}"),
    };
    assert!(refused(INCARNATION, SessionKey(1)).contains("session key"));
    assert!(refused(Incarnation(1), SESSION).contains("restarted"));
}

/// Of READs that are slept for and READs that are polled for, in turns: whoever sleeps for one is
/// woken, and at the end nothing wakes it any more.
#[test]
fn whoever_sleeps_for_a_read_is_woken_and_nobody_else() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let connector = donor.verbs();
    let mut lane = Lane::open(&connector, 4096);
    let mut done = Vec::new();
    let mut sleeps = 0;
    for i in 0..300u64 {
        let addr = RemoteAddr(i % 64 * 4096);
        lane.endpoint.post(Op { tag: i, kind: OpKind::Read, local: 0, len: 4096, rkey: KEY, addr }).unwrap();
        lane.endpoint.ring();
        // Now and then it lets go before the READ is back, as a worker does that has got something
        // else to do.
        let mut looks = if i % 7 == 0 { 1 } else { u32::MAX };
        while done.is_empty() {
            if i % 3 > 0 && looks > 0 && !lane.endpoint.arm() {
                assert!(sleep_on(&*lane.endpoint, PATIENCE), "READ {i} is slept through");
                sleeps += 1;
            }
            looks = looks.saturating_sub(1);
            lane.endpoint.poll(&mut done);
        }
        assert_eq!((done.len(), done[0].tag, done[0].result), (1, i, Ok(())));
        done.clear();
    }
    assert!(sleeps >= 50, "it hardly ever slept: {sleeps} times");
    // The event of a completion that was polled for may come late, once.
    let wakes = (0..5).filter(|_| !lane.endpoint.arm() && sleep_on(&*lane.endpoint, Duration::from_millis(20))).count();
    assert!(wakes <= 1, "woken {wakes} times with nothing under way");
}

#[test]
fn a_queue_deeper_than_the_device_s_is_clamped() {
    if !has_verbs() {
        return;
    }
    let donor = Donor::start();
    let connector = donor.verbs().with_depth(1 << 30);
    let limits = *connector.device().limits();
    let mut lane = Lane::open(&connector, 4096);
    assert_eq!(lane.endpoint.depth() as u32, limits.queue.min(limits.completions));
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Ok(()));
}

#[test]
fn a_device_port_or_gid_that_is_not_there_is_named_with_what_is() {
    if !has_verbs() {
        return;
    }
    let device = Device::open(&DeviceChoice::default()).unwrap();
    let fail = |choice: DeviceChoice| Device::open(&choice).unwrap_err();
    let unknown = fail(DeviceChoice { device: Some("mlx9_9".into()), ..DeviceChoice::default() });
    assert!(
        matches!(&unknown, DeviceError::Unknown { .. }) && unknown.to_string().contains(device.name()),
        "{unknown}"
    );
    let port = fail(DeviceChoice { port: Some(9), ..DeviceChoice::default() });
    assert!(matches!(port, DeviceError::NoPort { port: 9, .. }), "{port}");
    let gid = fail(DeviceChoice { gid_index: Some(200), ..DeviceChoice::default() });
    assert!(gid.to_string().contains("gid_index = 200; it has "), "{gid}");
    let named = DeviceChoice { device: Some(device.name().into()), port: Some(1), gid_index: Some(device.gid().index) };
    assert_eq!(Device::open(&named).unwrap().gid(), device.gid());
}

/// `--ignored --nocapture`: to be held against `ib_read_lat -s 4096` and `ib_write_bw -s 65536` on
/// the same machine.
#[test]
#[ignore = "measures, checks nothing"]
fn how_long_a_read_takes_and_how_much_is_written_per_second() {
    if !has_verbs() {
        return;
    }
    const COUNT: usize = 1000;
    const CHUNK: u32 = 64 << 10;
    let donor = Donor::start();
    let connector = donor.verbs();
    let mut lane = Lane::open(&connector, 64 * CHUNK as usize);
    let mut done = Vec::with_capacity(lane.endpoint.depth());
    let mut times: Vec<Duration> = (0..COUNT)
        .map(|i| {
            let start = Instant::now();
            let addr = RemoteAddr(i as u64 * 4096);
            lane.endpoint.post(Op { tag: 0, kind: OpKind::Read, local: 0, len: 4096, rkey: KEY, addr }).unwrap();
            lane.endpoint.ring();
            while done.is_empty() {
                lane.endpoint.poll(&mut done);
            }
            done.clear();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("READ of 4096: p50 {:?}, p99 {:?}", times[COUNT / 2], times[COUNT * 99 / 100]);
    let start = Instant::now();
    for _ in 0..COUNT / 64 {
        for i in 0..64 {
            let (local, addr) = (i * CHUNK as usize, RemoteAddr(i as u64 * u64::from(CHUNK)));
            lane.endpoint.post(Op { tag: 0, kind: OpKind::Write, local, len: CHUNK, rkey: KEY, addr }).unwrap();
        }
        lane.endpoint.ring();
        while done.len() < 64 {
            lane.endpoint.poll(&mut done);
        }
        done.clear();
    }
    let bytes = (COUNT / 64 * 64) as f64 * f64::from(CHUNK);
    println!("WRITE of {CHUNK}: {:.1} MB/s", bytes / start.elapsed().as_secs_f64() / 1e6);
}
