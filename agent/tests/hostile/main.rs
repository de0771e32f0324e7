//! Peers that mean harm, and an honest client beside them that gets in and is served.
//!
//! One test at a time: some look at the whole process.

#[allow(dead_code)] // this binary uses its part
#[path = "../lending/client.rs"]
mod client;

use annex_agent::Agent;
use annex_agent::control::HELLO_TIMEOUT;
use annex_fabric::MAX_OP_LEN;
use annex_fabric::tcp::frame::{ANSWER_LEN, Answer, REQUEST_LEN, Request as Operation, Status, Verb};
use annex_host::priority::Precedence;
use annex_shared::config::ByteSize;
use annex_shared::ids::{ClientId, RemoteAddr, Rkey};
use annex_shared::preamble::{AnswerError, Preamble, Proof, read_answer};
use annex_shared::wire::{FrameError, Lease, Welcome};
use client::{ANNA, BERT, Client, Data, PATIENCE, SLAB, agent, wait_until};
use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an honest client waits for at most until it is in, and served: less than the agent gives
/// those who say nothing.
const AT_ONCE: Duration = HELLO_TIMEOUT;

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says hello, leases a slab, writes and reads it.
fn is_served(agent: &Agent, client: ClientId) -> (Client, Data, Lease) {
    let began = Instant::now();
    let (mut control, welcome) = Client::greet(agent.addr(), client);
    let lease = control.lease(1)[0];
    let mut data = Data::tcp(agent.addr(), client, &welcome);
    data.write(lease.rkey, 7).expect("it is leased");
    assert!(data.read(lease.rkey).expect("it is leased").iter().all(|byte| *byte == 7));
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    (control, data, lease)
}

/// A data connection that speaks frames by hand.
fn data(agent: &Agent, client: ClientId, welcome: &Welcome) -> TcpStream {
    try_data(agent, client, welcome).expect("it is admitted")
}

fn try_data(agent: &Agent, client: ClientId, welcome: &Welcome) -> Result<TcpStream, AnswerError> {
    let mut stream = TcpStream::connect(agent.addr()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    let proof = Proof { client, incarnation: welcome.incarnation, session: welcome.session };
    Preamble::Data(proof).write_to(&mut stream).expect("it reads");
    read_answer(&mut stream).map(|_| stream)
}

fn ask(stream: &mut TcpStream, verb: Verb, rkey: Rkey, len: u32) {
    let mut bytes = [0; REQUEST_LEN];
    Operation { verb, len, rkey, addr: RemoteAddr(0), seq: 0, expect: 0, swap: 0 }.encode(&mut bytes);
    stream.write_all(&bytes).expect("it reads");
}

fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = [0; ANSWER_LEN];
    stream.read_exact(&mut bytes).expect("it answers");
    Answer::parse(&bytes).expect("an answer")
}

/// Bytes of this process that are resident.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("it is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has it");
    line.split_whitespace().next().and_then(|kib| kib.parse::<usize>().ok()).expect("a number") << 10
}

/// They took all places until their time was up.
#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let _alone = alone();
    let (agent, _dir) = agent(4, |_| {});
    let (is_over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Always more than there are places for, and one after the other comes anew.
            let mut silent = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                silent.extend(TcpStream::connect_timeout(&agent.addr(), Duration::from_millis(100)));
                opened.fetch_add(1, Ordering::Relaxed);
                if silent.len() > 1300 {
                    silent.pop_front();
                }
            }
        });
        wait_until("all places to be asked for", || opened.load(Ordering::Relaxed) > 1160);
        // Whose hello comes later than a thousand other connections connects anew, as annexd does.
        let served = |_| std::panic::catch_unwind(AssertUnwindSafe(|| is_served(&agent, ANNA))).is_ok();
        let is_in = (0..5).any(served);
        is_over.store(true, Ordering::Relaxed);
        assert!(is_in, "it does not get in");
    });
}

/// They took all places for as long as they liked.
#[test]
fn hellos_without_a_lease_keep_nobody_out() {
    let _alone = alone();
    let (agent, _dir) = agent(4, |_| {});
    let (mut anna, mut data, lease) = is_served(&agent, ANNA);
    let idle: Vec<_> = (100..1200).map(|nth| Client::greet(agent.addr(), ClientId(nth))).collect();
    is_served(&agent, BERT);
    assert_eq!(anna.renew(), [lease.slab]);
    data.read(lease.rkey).expect("it goes on");
    wait_until("some to be ended", || agent.connections().0 <= 520);
    drop(idle);
}

/// Clients with a lease each, which took all places with data connections.
#[test]
fn data_connections_that_say_nothing_keep_nobody_out() {
    let _alone = alone();
    let (agent, _dir) = agent(16, |_| {});
    let mut greedy = Vec::new();
    for nth in 100..106 {
        let (mut control, welcome) = Client::greet(agent.addr(), ClientId(nth));
        control.lease(1);
        // The last ones find all places taken, and nobody who has far more.
        let silent: Vec<_> = (0..250).filter_map(|_| try_data(&agent, ClientId(nth), &welcome).ok()).collect();
        greedy.push((control, silent));
    }
    is_served(&agent, ANNA);
    // Who holds leases can still say so.
    greedy.iter_mut().for_each(|(control, _)| assert_eq!(control.renew().len(), 1));
}

/// 200 connections of one client made the agent 1.6 GiB larger, and much of it stayed so.
#[test]
fn buffers_are_bounded_and_given_back() {
    let _alone = alone();
    let (agent, _dir) = agent(64, |c| c.slab_size = ByteSize(u64::from(MAX_OP_LEN)));
    let (mut control, welcome) = Client::greet(agent.addr(), BERT);
    let lease = control.lease(1)[0];
    let before = resident();
    let mut lanes: Vec<_> = (0..200).map(|_| data(&agent, BERT, &welcome)).collect();
    let payload = vec![5; MAX_OP_LEN as usize];
    let half = payload.len() / 2;
    let (writers, readers) = lanes.split_at_mut(100);
    for writer in &mut *writers {
        ask(writer, Verb::Write, lease.rkey, MAX_OP_LEN);
        writer.write_all(&payload[..half]).expect("it reads");
    }
    for writer in &mut *writers {
        writer.write_all(&payload[half..]).expect("it reads");
        assert_eq!(answer(writer).status, Status::Done);
    }
    // Nobody reads the answers for now.
    readers.iter_mut().for_each(|reader| ask(reader, Verb::Read, lease.rkey, MAX_OP_LEN));
    writers.iter_mut().for_each(|writer| ask(writer, Verb::Write, lease.rkey, MAX_OP_LEN));
    writers.iter_mut().for_each(|writer| writer.write_all(&payload[..half]).expect("it reads"));
    let grown = resident().saturating_sub(before);
    println!("{} MiB larger, of which {} MiB are buffers", grown >> 20, agent.buffers() >> 20);
    assert!(grown < 128 << 20, "{} MiB larger", grown >> 20);
    // Its slabs are larger than those of the other tests.
    let began = Instant::now();
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let own = anna.lease(1)[0];
    let mut honest = Data::tcp(agent.addr(), ANNA, &welcome);
    honest.write(own.rkey, 3).expect("it is leased");
    assert_eq!(honest.read(own.rkey).expect("it is leased"), vec![3; SLAB as usize]);
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    // What was done in parts is right.
    let mut found = vec![0; payload.len()];
    for reader in readers {
        let answer = answer(reader);
        assert_eq!((answer.status, answer.len), (Status::Done, MAX_OP_LEN));
        reader.read_exact(&mut found).expect("all of it");
        assert!(found == payload, "a READ brought other bytes");
    }
    for writer in writers {
        writer.write_all(&payload[half..]).expect("it reads");
        assert_eq!(answer(writer).status, Status::Done);
    }
    wait_until("the buffers to be given back", || agent.buffers() == 0);
    drop(found);
    let kept = resident().saturating_sub(before);
    assert!(kept < 64 << 20, "{} MiB are kept", kept >> 20);
}

/// What is written in parts is refused as a whole.
#[test]
fn a_long_write_without_a_lease_moves_no_byte() {
    let _alone = alone();
    let (agent, _dir) = agent(64, |c| c.slab_size = ByteSize(u64::from(MAX_OP_LEN)));
    let (mut control, welcome) = Client::greet(agent.addr(), BERT);
    let lease = control.lease(1)[0];
    let mut lanes: Vec<_> = (0..40).map(|_| data(&agent, BERT, &welcome)).collect();
    let payload = vec![5; MAX_OP_LEN as usize];
    for lane in &mut lanes {
        ask(lane, Verb::Write, Rkey(lease.rkey.0 ^ 1), MAX_OP_LEN);
        lane.write_all(&payload[1..]).expect("it reads");
    }
    for lane in &mut lanes {
        lane.write_all(&payload[..1]).expect("it reads");
        assert_eq!(answer(lane).status, Status::RemoteAccess);
        ask(lane, Verb::Read, Rkey(lease.rkey.0 ^ 1), MAX_OP_LEN);
        assert_eq!((answer(lane).status, answer_is_empty(lane, lease.rkey)), (Status::RemoteAccess, true));
    }
}

/// The slab has zeros, as at first.
fn answer_is_empty(lane: &mut TcpStream, rkey: Rkey) -> bool {
    ask(lane, Verb::Read, rkey, MAX_OP_LEN);
    assert_eq!(answer(lane).status, Status::Done);
    let mut found = vec![1; MAX_OP_LEN as usize];
    lane.read_exact(&mut found).expect("all of it");
    found.iter().all(|byte| *byte == 0)
}

/// Each could have the agent keep a megabyte for it.
#[test]
fn a_hello_is_short() {
    let _alone = alone();
    let (agent, _dir) = agent(1, |_| {});
    let mut peer = Client::connect(agent.addr());
    let began = Instant::now();
    peer.stream.write_all(&(1u32 << 20).to_le_bytes()).expect("it reads");
    assert!(matches!(peer.next(), Err(FrameError::Closed | FrameError::Io(_))));
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
}

fn policies() -> Vec<i32> {
    let tasks = fs::read_dir("/proc/self/task").expect("it is mounted").flatten();
    let serving = tasks.filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c == "agent-tcp\n"));
    let numbers = serving.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    // SAFETY: it takes a number, and answers one.
    numbers.map(|thread| unsafe { libc::sched_getscheduler(thread) } & !libc::SCHED_RESET_ON_FORK).collect()
}

/// Whoever had a session had threads before all others of the host.
#[test]
fn only_clients_with_leases_have_real_time_threads() {
    let _alone = alone();
    let may = std::thread::spawn(|| {
        Precedence::OfAll.give(0);
        // SAFETY: it takes a number, and answers one.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR }
    });
    if !may.join().expect("no panic") || std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("SKIPPED: real-time priority takes CAP_SYS_NICE and two CPUs");
        assert!(std::env::var_os("CI").is_none(), "CI has both");
        return;
    }
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let mut lane = data(&agent, ANNA, &welcome);
    let mut read = |rkey| {
        ask(&mut lane, Verb::Read, rkey, 8);
        let answer = answer(&mut lane);
        lane.read_exact(&mut vec![0; answer.len as usize]).expect("what it said");
        answer.status
    };
    assert_eq!(read(Rkey(1)), Status::RemoteAccess);
    let real_time = || policies().into_iter().filter(|policy| *policy == libc::SCHED_RR).count();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(real_time(), 0, "{:?}", policies());
    let lease = anna.lease(1)[0];
    assert_eq!(read(lease.rkey), Status::Done);
    wait_until("its thread to come before others", || real_time() == 1);
    anna.give_back(vec![lease.slab]);
    assert_eq!(read(lease.rkey), Status::RemoteAccess);
    wait_until("its thread to be as all others", || real_time() == 0);
}
