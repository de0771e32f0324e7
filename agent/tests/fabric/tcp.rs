//! What is particular to tcp: broken and slow connections, fences, strangers.

use crate::rig::*;
use annex_fabric::tcp::TcpConnector;
use annex_fabric::tcp::frame::{ANSWER_LEN, Answer, REQUEST_LEN, Request, Status, Verb};
use annex_fabric::{Completion, ConnectError, Connector, ErrorKind, MAX_OP_LEN, Op, OpKind};
use annex_shared::ids::{ClientId, Incarnation, RemoteAddr, SessionKey};
use annex_shared::preamble::{Preamble, Proof, read_answer};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn to(addr: SocketAddr, timeout: Duration) -> TcpConnector {
    TcpConnector::new(addr, CLIENT, INCARNATION, SESSION, timeout)
}

fn read_of(tag: u64, len: u32) -> Op {
    Op { tag, kind: OpKind::Read, local: 0, len, rkey: KEY, addr: RemoteAddr(0) }
}

fn errors(done: &[Completion]) -> Vec<Result<(), ErrorKind>> {
    done.iter().map(|c| c.result).collect()
}

/// Posts three operations to a donor that takes the connection and is then left to `act`.
fn three_lost_operations(timeout: Duration, act: impl FnOnce(TcpStream)) {
    let (addr, accepted) = scripted_donor();
    let mut lane = Lane::open(&to(addr, timeout), 8192);
    (0..3).for_each(|tag| lane.endpoint.post(read_of(tag, 64)).unwrap());
    lane.endpoint.ring();
    act(accepted.recv().unwrap());
    let done = lane.finish(3);
    let expected = [Err(ErrorKind::RetryExceeded), Err(ErrorKind::Flushed), Err(ErrorKind::Flushed)];
    assert_eq!(errors(&done), expected);
    assert!(lane.endpoint.is_broken());
    lane.endpoint.post(read_of(9, 64)).unwrap();
    lane.endpoint.ring();
    assert_eq!(errors(&lane.finish(1)), [Err(ErrorKind::Flushed)]);
    assert_eq!(lane.bytes(0, 64), [0; 64]);
}

#[test]
fn a_donor_that_hangs_up_fails_everything_outstanding() {
    three_lost_operations(PATIENCE, drop);
}

#[test]
fn a_donor_that_is_silent_fails_everything_outstanding_after_the_time_out() {
    let mut kept = None;
    let start = Instant::now();
    three_lost_operations(Duration::from_millis(300), |stream| kept = Some(stream));
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn an_answer_to_something_else_ends_the_connection() {
    three_lost_operations(PATIENCE, |mut stream| {
        let mut bytes = [0; ANSWER_LEN];
        Answer { status: Status::Done, verb: Verb::Read, len: 64, seq: 1, value: 0 }.encode(&mut bytes);
        stream.write_all(&[&bytes[..], &[7; 64]].concat()).unwrap();
        let mut requests = [0; 3 * REQUEST_LEN];
        stream.read_exact(&mut requests).unwrap();
    });
}

#[test]
fn bytes_that_are_no_answer_end_the_connection() {
    three_lost_operations(PATIENCE, |mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap());
}

#[test]
fn an_answer_nobody_asked_for_breaks_an_idle_endpoint_that_sleeps() {
    let (addr, accepted) = scripted_donor();
    let mut lane = Lane::open(&to(addr, PATIENCE), 4096);
    let mut donor = accepted.recv().unwrap();
    assert!(!lane.endpoint.arm());
    donor.write_all(&[0; ANSWER_LEN]).unwrap();
    assert!(sleep_on(&*lane.endpoint, PATIENCE), "the event descriptor wakes");
    let mut done = Vec::new();
    lane.endpoint.poll(&mut done);
    assert!(lane.endpoint.is_broken() && done.is_empty());
}

#[test]
fn a_payload_in_single_bytes_arrives_whole() {
    let (addr, accepted) = scripted_donor();
    let mut lane = Lane::open(&to(addr, PATIENCE), 4096);
    let mut donor = accepted.recv().unwrap();
    donor.set_nodelay(true).unwrap();
    lane.endpoint.post(read_of(0, 64)).unwrap();
    lane.endpoint.post(read_of(1, 8)).unwrap();
    lane.endpoint.ring();
    let data = pattern(4, 72);
    let mut answers = Vec::new();
    for (seq, payload) in [&data[..64], &data[..8]].into_iter().enumerate() {
        let mut head = [0; ANSWER_LEN];
        let len = payload.len() as u32;
        Answer { status: Status::Done, verb: Verb::Read, len, seq: seq as u64, value: 0 }.encode(&mut head);
        answers.extend_from_slice(&head);
        answers.extend_from_slice(payload);
    }
    let mut done = Vec::new();
    for byte in answers {
        donor.write_all(&[byte]).unwrap();
        lane.endpoint.poll(&mut done);
    }
    done.extend(lane.finish(2 - done.len()));
    assert_eq!(errors(&done), [Ok(()), Ok(())]);
    assert_eq!(lane.bytes(0, 64), [&data[..8], &data[8..64]].concat());
}

#[test]
fn large_writes_to_a_slow_donor_neither_block_nor_get_lost() {
    // The donor does not read until everything was posted and rung: far more than both sockets
    // hold.
    let (addr, accepted) = scripted_donor();
    let len = MAX_OP_LEN as usize;
    let mut lane = Lane::open(&to(addr, PATIENCE), len);
    lane.fill(0, &pattern(8, len));
    let start = Instant::now();
    for tag in 0..8 {
        let op = Op { tag, kind: OpKind::Write, local: 0, len: MAX_OP_LEN, rkey: KEY, addr: RemoteAddr(0) };
        lane.endpoint.post(op).unwrap();
        lane.endpoint.ring();
        lane.endpoint.poll(&mut Vec::new());
    }
    assert!(start.elapsed() < PATIENCE / 2, "nothing blocked");
    let donor = std::thread::spawn(move || {
        let mut stream = accepted.recv().unwrap();
        let (mut head, mut payload) = ([0; REQUEST_LEN], vec![0; len]);
        for seq in 0..8 {
            stream.read_exact(&mut head).unwrap();
            let request = Request::parse(&head).unwrap();
            assert_eq!((request.seq, request.verb, request.len), (seq, Verb::Write, MAX_OP_LEN));
            stream.read_exact(&mut payload).unwrap();
            assert!(payload == pattern(8, len), "write {seq} arrived whole");
        }
        // Answered only now: what wakes the client until then is room in its socket.
        for seq in 0..8 {
            let mut answer = [0; ANSWER_LEN];
            Answer { status: Status::Done, verb: Verb::Write, len: 0, seq, value: 0 }.encode(&mut answer);
            stream.write_all(&answer).unwrap();
        }
    });
    let mut done = Vec::new();
    while done.len() < 8 {
        assert!(lane.endpoint.arm() || sleep_on(&*lane.endpoint, PATIENCE), "room or an answer wakes the sleeper");
        lane.endpoint.poll(&mut done);
    }
    assert!(done.iter().all(|c| c.result.is_ok()));
    donor.join().unwrap();
}

#[test]
fn many_large_operations_in_both_directions_do_not_jam() {
    let donor = Donor::start();
    let len = MAX_OP_LEN as usize;
    let mut lane = Lane::open(&donor.tcp(), 3 * len);
    let data = pattern(2, len);
    lane.fill(0, &data);
    for tag in 0..40 {
        let (kind, local) = if tag % 2 == 0 { (OpKind::Write, 0) } else { (OpKind::Read, len * (1 + tag % 4 / 2)) };
        let addr = RemoteAddr(len as u64 * (tag as u64 % 4 / 2));
        lane.endpoint.post(Op { tag: tag as u64, kind, local, len: MAX_OP_LEN, rkey: KEY, addr }).unwrap();
        lane.endpoint.ring();
    }
    assert!(lane.finish(40).iter().all(|c| c.result.is_ok()));
    assert!(lane.bytes(len, len) == data && lane.bytes(2 * len, len) == data);
}

#[test]
fn a_bad_write_between_good_ones_is_dropped_alone() {
    let donor = Donor::start();
    let mut lane = Lane::open(&donor.tcp(), 65536);
    lane.fill(0, &[1; 65536]);
    for (tag, rkey) in [(0, KEY), (1, OTHERS_KEY), (2, KEY)] {
        let addr = RemoteAddr(tag * 65536);
        lane.endpoint.post(Op { tag, kind: OpKind::Write, local: 0, len: 65536, rkey, addr }).unwrap();
    }
    lane.endpoint.ring();
    assert_eq!(errors(&lane.finish(3)), [Ok(()), Err(ErrorKind::RemoteAccess), Ok(())]);
    assert_eq!(donor.table.peek(KEY, 2 * 65536, 65536), [1; 65536]);
    assert_eq!(donor.table.peek(OTHERS_KEY, 65536, 65536), [0; 65536]);
}

/// A connection that speaks frames by hand.
fn by_hand(donor: &Donor) -> (TcpStream, u64) {
    let mut stream = TcpStream::connect(donor.addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let proof = Proof { client: CLIENT, incarnation: INCARNATION, session: SESSION };
    Preamble::Data(proof).write_to(&mut stream).unwrap();
    let number = read_answer(&mut stream).unwrap();
    (stream, number)
}

fn ask(stream: &mut TcpStream, request: Request, payload: &[u8]) {
    let mut bytes = [0; REQUEST_LEN];
    request.encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
    stream.write_all(payload).unwrap();
}

fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = [0; ANSWER_LEN];
    stream.read_exact(&mut bytes).unwrap();
    Answer::parse(&bytes).unwrap()
}

fn request(verb: Verb, len: u32, addr: u64) -> Request {
    Request { verb, len, rkey: KEY, addr: RemoteAddr(addr), seq: 5, expect: 0, swap: 0 }
}

#[test]
fn an_operation_longer_than_allowed_is_refused_and_its_payload_skipped() {
    let donor = Donor::start();
    let (mut stream, _) = by_hand(&donor);
    ask(&mut stream, request(Verb::Read, MAX_OP_LEN + 1, 0), &[]);
    let refused = answer(&mut stream);
    assert_eq!((refused.status, refused.len), (Status::RemoteAccess, 0));
    ask(&mut stream, request(Verb::Write, MAX_OP_LEN + 1, 0), &vec![1; MAX_OP_LEN as usize + 1]);
    assert_eq!(answer(&mut stream).status, Status::RemoteAccess);
    ask(&mut stream, request(Verb::Write, 4, 0), &[2; 4]);
    assert_eq!(answer(&mut stream).status, Status::Done);
    assert_eq!(donor.table.peek(KEY, 0, 5), [2, 2, 2, 2, 0]);
}

#[test]
fn a_client_that_sends_garbage_loses_its_connection_only() {
    let donor = Donor::start();
    let mut lane = Lane::open(&donor.tcp(), 4096);
    let (mut stream, _) = by_hand(&donor);
    stream.write_all(&[0xff; 4096]).unwrap();
    let mut rest = Vec::new();
    // Closed with our bytes unread, so a reset is as good as an end.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert_eq!(lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
}

#[test]
fn a_fence_ends_the_other_connection_and_spares_those_of_others() {
    let donor = Donor::start();
    let (mut old, old_number) = by_hand(&donor);
    let (mut new, new_number) = by_hand(&donor);
    assert_ne!(old_number, new_number);
    let mut other = Lane::open(&donor.tcp_as(OTHER), 4096);
    // Half a WRITE lies there when the fence comes; its rest comes too late.
    ask(&mut old, request(Verb::Write, 8, 0), &[1; 4]);
    for number in 1..=new_number + 1 {
        ask(&mut new, request(Verb::Fence, 0, number), &[]);
        let own = if number == new_number { Status::RemoteAccess } else { Status::Done };
        assert_eq!(answer(&mut new).status, own, "fence {number}");
    }
    let _ = old.write_all(&[1; 4]);
    let mut rest = Vec::new();
    let _ = old.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert_eq!(donor.table.peek(KEY, 0, 8), [0; 8]);
    assert_eq!(other.run(OpKind::Write, 0, 8, OTHERS_KEY, 0).result, Ok(()));
}

#[test]
fn a_write_that_lies_unexecuted_at_the_donor_is_never_executed_after_a_fence() {
    let donor = Donor::start();
    let (mut old, old_number) = by_hand(&donor);
    let (mut new, _) = by_hand(&donor);
    let frozen = donor.table.freeze();
    let mut two_writes = Vec::new();
    for (addr, byte) in [(0, 1), (8, 2)] {
        let mut head = [0; REQUEST_LEN];
        request(Verb::Write, 8, addr).encode(&mut head);
        two_writes.extend_from_slice(&[&head[..], &[byte; 8]].concat());
    }
    old.write_all(&two_writes).unwrap();
    ask(&mut new, request(Verb::Fence, 0, old_number), &[]);
    // The end of the old connection shows that the fence stands; only now may the first write go
    // on.
    old.read_to_end(&mut Vec::new()).unwrap();
    drop(frozen);
    assert_eq!(answer(&mut new).status, Status::Done);
    assert_eq!(donor.table.peek(KEY, 8, 8), [0; 8]);
}

#[test]
fn an_endpoint_is_not_open_before_the_fences_are_answered() {
    // What this guards against: a WRITE that a dropped connection left unexecuted overwrites what
    // its successor wrote.
    let (addr, accepted) = scripted_donor();
    let connector = to(addr, PATIENCE);
    drop(Lane::open(&connector, 4096));
    let open = std::thread::spawn(move || Lane::open(&connector, 4096));
    let (_first, mut second) = (accepted.recv().unwrap(), accepted.recv().unwrap());
    second.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(!open.is_finished());
    answer_fence(&mut second, 1);
    open.join().unwrap();
}

#[test]
fn a_new_endpoint_ends_those_that_are_over_and_spares_the_living() {
    let donor = Donor::start();
    let connector = donor.tcp();
    let mut lanes: Vec<_> = (0..3).map(|_| Lane::open(&connector, 4096)).collect();
    lanes.iter_mut().for_each(|lane| assert!(lane.run(OpKind::Write, 0, 8, KEY, 0).result.is_ok()));
    lanes.truncate(1);
    let mut fresh = Lane::open(&connector, 4096);
    assert_eq!(donor.connections.count(), 2, "the two that are over are gone when open returns");
    assert_eq!(lanes[0].run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()), "the live one was spared");
    assert_eq!(fresh.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(()));
}

#[test]
fn a_new_session_ends_the_connections_of_the_earlier_one() {
    let donor = Donor::start();
    let (mut earlier, mut other) = (Lane::open(&donor.tcp(), 4096), Lane::open(&donor.tcp_as(OTHER), 4096));
    let connector = TcpConnector::new(donor.addr, CLIENT, INCARNATION, NEXT_SESSION, PATIENCE);
    let mut lanes = [Lane::open(&connector, 4096), Lane::open(&connector, 4096)];
    assert_eq!(donor.connections.count(), 3, "the earlier one is gone when open returns");
    assert_eq!(earlier.run(OpKind::Write, 0, 8, KEY, 0).result, Err(ErrorKind::RetryExceeded));
    lanes.iter_mut().for_each(|lane| assert_eq!(lane.run(OpKind::Write, 0, 8, KEY, 0).result, Ok(())));
    assert_eq!(other.run(OpKind::Write, 0, 8, OTHERS_KEY, 0).result, Ok(()));
}

#[test]
fn a_refused_connection_says_why() {
    let donor = Donor::start();
    let refused = |client, incarnation, session| {
        let arena = std::sync::Arc::new(annex_fabric::Arena::new(4096).unwrap());
        match TcpConnector::new(donor.addr, client, incarnation, session, PATIENCE).open(&arena) {
            Err(ConnectError::Refused { reason, .. }) => reason,
            Err(other) => panic!("not refused: {other}"),
            Ok(_) => panic!("admitted"),
        }
    };
    assert!(refused(ClientId(1), INCARNATION, SESSION).contains("no session"));
    assert!(refused(CLIENT, Incarnation(1), SESSION).contains("restarted"));
    assert!(refused(CLIENT, INCARNATION, SessionKey(1)).contains("session key"));
    donor.connections.shutdown();
    assert!(refused(CLIENT, INCARNATION, SESSION).contains("shutting down"));
}

#[test]
fn no_donor_at_the_address_is_said_with_the_address() {
    let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let arena = std::sync::Arc::new(annex_fabric::Arena::new(4096).unwrap());
    let error = to(addr, PATIENCE).open(&arena).err().unwrap();
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
}
