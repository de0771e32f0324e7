//! What is particular to shm: mappings, the lease board, the watcher.

use crate::rig::*;
use annex_fabric::shm::protocol::{Region, Request, send_answer};
use annex_fabric::shm::{PrepareError, ShmConnector};
use annex_fabric::{ConnectError, Connector, ErrorKind, MAX_OP_LEN, OpKind};
use annex_shared::ids::{ClientId, Incarnation, SessionKey};
use annex_shared::memfd;
use annex_shared::preamble::{Preamble, write_answer};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Barrier;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[test]
fn a_slab_that_is_not_prepared_or_forgotten_is_refused() {
    let donor = Donor::start();
    let connector = donor.shm_with(INCARNATION, SESSION).unwrap();
    let mut lane = Lane::open(&connector, 4096);
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Err(ErrorKind::RemoteAccess));
    connector.prepare(KEY).unwrap();
    connector.prepare(KEY).unwrap();
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Ok(()), "open endpoints see it");
    connector.forget(KEY);
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Err(ErrorKind::RemoteAccess));
}

#[test]
fn a_forgotten_slab_is_unmapped() {
    let donor = Donor::start();
    let connector = donor.shm_with(INCARNATION, SESSION).unwrap();
    let mut lane = Lane::open(&connector, 4096);
    let mapped = || {
        let inode = donor.table.inode(KEY);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|l| l.split_whitespace().nth(4) == Some(&inode)).count()
    };
    let without = mapped();
    connector.prepare(KEY).unwrap();
    assert_eq!(lane.run(OpKind::Read, 0, 8, KEY, 0).result, Ok(()));
    assert_eq!(mapped(), without + 1);
    connector.forget(KEY);
    lane.endpoint.poll(&mut Vec::new());
    // Swept at the next change of the table (or by the watcher, later).
    connector.prepare(SECOND_KEY).unwrap();
    assert_eq!(mapped(), without);
}

/// Each page's first WRITE used to fault, in the evictor: the mapping was populated for reading.
#[test]
fn the_first_write_to_a_page_takes_no_fault() {
    let donor = Donor::start();
    let connector = donor.shm();
    connector.prepare(KEY).unwrap();
    let mut lane = Lane::open(&connector, 4096);
    let faults =
        || nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD).unwrap().minor_page_faults();
    assert_eq!(lane.run(OpKind::Write, 0, 4096, KEY, 0).result, Ok(()));
    let before = faults();
    let pages = SLAB as u64 / 4096;
    for page in 1..pages {
        assert_eq!(lane.run(OpKind::Write, 0, 4096, KEY, page * 4096).result, Ok(()));
    }
    let taken = faults() - before;
    assert!(taken < pages as i64 / 16, "{taken} faults in {pages} pages");
}

#[test]
fn another_clients_slab_is_not_handed_out() {
    let donor = Donor::start();
    let connector = donor.shm();
    let error = connector.prepare(OTHERS_KEY).unwrap_err();
    assert!(matches!(error, PrepareError::Refused { source: ErrorKind::RemoteAccess, .. }), "{error}");
    assert!(connector.prepare(KEY).is_ok(), "the connection is still of use");
}

#[test]
fn a_lease_revoked_or_run_out_on_the_board_gives_an_error_and_no_bytes() {
    let donor = Donor::start();
    let connector = donor.shm();
    let mut lane = Lane::open(&connector, 4096);
    donor.table.poke(KEY, 0, &[7; 8]);
    donor.table.poke(SECOND_KEY, 0, &[7; 8]);
    donor.table.revoke_on_board(KEY);
    donor.table.expire_on_board(SECOND_KEY);
    for rkey in [KEY, SECOND_KEY] {
        assert_eq!(lane.run(OpKind::Read, 0, 8, rkey, 0).result, Err(ErrorKind::RemoteAccess));
        assert_eq!(lane.run(OpKind::Write, 0, 8, rkey, 0).result, Err(ErrorKind::RemoteAccess));
        assert_eq!(donor.table.peek(rkey, 0, 8), [7; 8]);
    }
    assert_eq!(lane.bytes(0, 8), [0; 8]);
}

#[test]
fn a_read_during_which_the_lease_ends_never_brings_later_bytes_as_a_success() {
    const LEN: usize = MAX_OP_LEN as usize;
    let donor = Donor::start();
    let connector = donor.shm();
    let mut lane = Lane::open(&connector, LEN);
    let started = Barrier::new(2);
    let (ours, later) = (vec![0x11; LEN], vec![0xee; LEN]);
    let mut wrong = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..40u64 {
                started.wait();
                // Somewhere in the reader's second or third READ, at another place each round.
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(1000 + 97 * round) {
                    std::hint::spin_loop();
                }
                donor.table.revoke_on_board(KEY);
                donor.table.poke(KEY, 0, &later);
            }
        });
        for _ in 0..40 {
            donor.table.poke(KEY, 0, &ours);
            donor.table.grant_on_board(KEY);
            started.wait();
            while lane.run(OpKind::Read, 0, MAX_OP_LEN, KEY, 0).result.is_ok() {
                wrong += u32::from(lane.bytes(0, LEN) != ours);
            }
            // The other thread has revoked, and may still be writing.
            while donor.table.peek(KEY, LEN - 1, 1) != [0xee] {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(wrong, 0, "READs that succeeded with bytes of after the lease");
}

#[test]
fn a_wrong_session_or_incarnation_is_refused_with_the_reason() {
    let donor = Donor::start();
    let refused = |incarnation, session| match donor.shm_with(incarnation, session) {
        Err(ConnectError::Refused { reason, .. }) => reason,
        other => panic!("not refused: {other:?}"),
    };
    assert!(refused(INCARNATION, SessionKey(1)).contains("session key"));
    assert!(refused(Incarnation(1), SESSION).contains("restarted"));
}

#[test]
fn a_dead_agent_leaves_no_endpoint_to_open() {
    let donor = Donor::start();
    let connector = donor.shm();
    donor.connections.shutdown();
    assert!(donor.connections.wait_empty(PATIENCE));
    let start = Instant::now();
    while connector.is_alive() {
        assert!(start.elapsed() < PATIENCE, "the watcher did not notice");
        std::thread::yield_now();
    }
    let arena = std::sync::Arc::new(annex_fabric::Arena::new(4096).unwrap());
    assert!(matches!(connector.open(&arena), Err(ConnectError::Unreachable { .. })));
    assert!(connector.prepare(OTHERS_KEY).is_err());
}

/// An agent that hands out this for a board and for each slab, whatever it is asked.
fn scripted(path: &Path, board: usize, slab: (Region, usize)) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        Preamble::read_from(&mut stream).unwrap();
        write_answer(&mut stream, Ok(1)).unwrap();
        while let Ok(Some(request)) = Request::read_from(&mut stream) {
            let (region, len) = match request {
                Request::Board => (Region { board_slot: 0, offset: 0, len: 0 }, board),
                Request::Slab(_) => slab,
            };
            let memory = memfd::create(c"a lie", len).unwrap();
            if send_answer(&stream, Ok((region, memory.as_fd()))).is_err() {
                return;
            }
        }
    })
}

/// All of it was made present: a donor on this host had annexd take as much memory as it liked.
#[test]
fn no_agent_makes_its_client_map_more_than_a_slab() {
    let folder = tempfile::tempdir().unwrap();
    let attempt = |nth: usize, board: usize, (offset, len, size): (u64, u64, usize)| {
        let path = folder.path().join(nth.to_string());
        let agent = scripted(&path, board, (Region { board_slot: u32::MAX, offset, len }, size));
        let connector = ShmConnector::connect(&path, ClientId(1), INCARNATION, SESSION, Duration::from_secs(60));
        let prepared = connector.map(|connector| connector.with_slab_size(SLAB as u64)).map(|c| c.prepare(KEY));
        agent.join().unwrap();
        prepared
    };
    let slab = SLAB as u64;
    let odd = [
        (0, 64 * slab, 64 * SLAB),
        (0, slab / 2, SLAB),
        (0, 0, SLAB),
        (4096, slab, SLAB),
        (1, slab, 2 * SLAB),
        (u64::MAX - 4095, slab, SLAB),
        (0, u64::MAX, SLAB),
    ];
    for (nth, lie) in odd.into_iter().enumerate() {
        let refused = attempt(nth, 4096, lie).unwrap();
        assert!(matches!(refused, Err(PrepareError::Map { .. })), "{lie:?}: {refused:?}");
    }
    attempt(100, 4096, (0, slab, SLAB)).unwrap().unwrap();
    for (nth, board) in [0, 300 << 20].into_iter().enumerate() {
        let refused = attempt(200 + nth, board, (0, slab, SLAB)).unwrap_err();
        assert!(matches!(refused, ConnectError::Local { .. }), "{board}: {refused}");
    }
}

/// Connecting to it took until it accepted: a donor can name any socket on its client's host.
#[test]
fn a_socket_where_nobody_accepts_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    let (gave_up, has_given_up) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let timeout = Duration::from_millis(100);
        let refused = ShmConnector::connect(&path, ClientId(1), INCARNATION, SESSION, timeout).unwrap_err();
        gave_up.send(refused).unwrap();
    });
    let refused = has_given_up.recv_timeout(Duration::from_secs(10)).expect("it gives up");
    assert!(matches!(refused, ConnectError::Unreachable { .. }), "{refused}");
}
