//! Large values, which are sent in pieces as their readers take them.

use super::support::TestServer;
use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed, wait_for};
use nix::sys::signal::Signal;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// Three times what the sockets take between annexd and one who does not read.
const LARGE: usize = 32 * MIB;
/// Of that, what is not sent to one who does not read, at least.
const LEFT: usize = 16 * MIB;
/// What clients hold that hold next to nothing.
const LITTLE: usize = 4 * MIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// A value of which every eight bytes tell whose they are, and where they belong.
fn value(of: char, bytes: usize) -> String {
    (0..bytes / 8).map(|nth| format!("{of}{nth:07}")).collect()
}

fn bulk(value: &str) -> Vec<u8> {
    format!("${}\r\n{value}\r\n", value.len()).into_bytes()
}

/// One that has begun to read an answer, and then does not read on.
fn half_a_reader(server: &TestServer, key: &str) -> Wire {
    let mut reader = server.connect();
    reader.talk(&format!("GET {key}"), &format!("${LARGE}\r\n"));
    reader
}

/// The rest of the answer.
fn read_on(reader: &mut Wire, value: &str) {
    let mut read = vec![0; value.len() + 2];
    reader.read_exact(&mut read).expect("all of it comes");
    assert!(read[..value.len()] == *value.as_bytes() && read.ends_with(b"\r\n"), "another value, or a mixture");
}

fn info(wire: &mut Wire, field: &str) -> usize {
    let info = String::from_utf8_lossy(&wire.ask(&["INFO", "everything"]).expect("a text")).into_owned();
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::parse);
    line.unwrap_or_else(|| panic!("no {field} in {info}")).expect("a number")
}

fn held(wire: &mut Wire) -> usize {
    info(wire, "mem_clients_normal")
}

#[test]
fn a_value_that_changes_while_it_is_sent_is_delivered_as_it_was() {
    let server = TestServer::start();
    let mut other = server.connect();
    let (old, new) = (value('a', LARGE), value('b', LARGE));
    let changes: [(&[&str], &str, Option<String>); 7] = [
        (&["SET", "k", &new], "+OK\r\n", Some(new.clone())),
        (&["DEL", "k"], ":1\r\n", None),
        (&["SETRANGE", "k", "8", "changed"], ":33554432\r\n", Some(format!("{}changed{}", &old[..8], &old[15..]))),
        (&["APPEND", "k", "more"], ":33554436\r\n", Some(format!("{old}more"))),
        (&["RENAME", "new", "k"], "+OK\r\n", Some(new.clone())),
        (&["PEXPIREAT", "k", "1"], ":1\r\n", None),
        (&["FLUSHALL"], "+OK\r\n", None),
    ];
    for (change, answer, after) in changes {
        other.ask(&["SET", "new", &new]).expect("it is taken");
        other.ask(&["SET", "k", &old]).expect("it is taken");
        let mut reader = half_a_reader(&server, "k");
        wait_for("what the pool has for others too is nobody's", PATIENCE, || held(&mut other) < LITTLE);
        let told = other.ask(change).expect("nobody waits for a reader");
        assert_eq!(String::from_utf8_lossy(&told), answer);
        wait_for("what is kept for the reader is counted", PATIENCE, || held(&mut other) > LEFT);
        // Whatever became free is used again.
        (0..3).for_each(|nth| assert_eq!(other.ask(&["SET", &format!("k{nth}"), &new]).expect("room"), b"+OK\r\n"));
        read_on(&mut reader, &old);
        let now = reader.ask(&["GET", "k"]).expect("an answer");
        assert!(now == after.map_or(b"$-1\r\n".to_vec(), |after| bulk(&after)), "after {}", change[0]);
        wait_for("nothing is kept any more", PATIENCE, || held(&mut other) < LITTLE);
        other.talk("FLUSHALL", "+OK\r\n");
    }
}

#[test]
fn each_answer_is_one_of_the_values_that_are_written_in_turns() {
    let server = TestServer::start();
    let values = ['a', 'b', 'c'].map(|of| value(of, 5 * MIB));
    let answers: Vec<Vec<u8>> = values.iter().map(|value| bulk(value)).collect();
    let mut first = server.connect();
    first.ask(&["SET", "k", &values[0]]).expect("it is taken");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for value in &values[1..] {
            let (mut writer, is_over) = (server.connect(), &is_over);
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    assert_eq!(writer.ask(&["SET", "k", value]).expect("an answer"), b"+OK\r\n");
                }
            });
        }
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (mut reader, answers) = (server.connect(), &answers);
                scope.spawn(move || {
                    (0..40).all(|_| reader.ask(&["GET", "k"]).is_ok_and(|answer| answers.contains(&answer)))
                })
            })
            .collect();
        let are_right: Vec<bool> = readers.into_iter().map(|reader| reader.join().expect("no panic")).collect();
        is_over.store(true, SeqCst);
        assert_eq!(are_right, [true; 4]);
    });
}

/// Readers of a value each that is overwritten before the next one asks.
fn readers_of_what_was(server: &TestServer, count: usize) -> Vec<Wire> {
    let (mut writer, value) = (server.connect(), value('a', LARGE));
    writer.talk("CLIENT NO-EVICT on", "+OK\r\n");
    let read = |_| {
        writer.ask(&["SET", "k", &value]).expect("it is taken");
        half_a_reader(server, "k")
    };
    let readers = (0..count).map(read).collect();
    writer.ask(&["SET", "k", &value]).expect("it is taken");
    readers
}

#[test]
fn what_is_kept_for_a_reader_goes_with_it() {
    let server = TestServer::start();
    let mut other = server.connect();
    let mut readers = readers_of_what_was(&server, 8);
    let used = || server.bed.status().pool.used as usize;
    wait_for("all of it is counted", PATIENCE, || held(&mut other) > 8 * LEFT);
    assert!(used() > LARGE + 8 * LEFT, "{} bytes of the pool", used());
    drop(readers.split_off(4));
    wait_for("that of those who hung up goes", PATIENCE, || held(&mut other) < 4 * LARGE);
    let killed = other.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect("a number");
    assert_eq!(killed, b":4\r\n");
    for reader in &mut readers {
        assert!(reader.rest().len() < LARGE, "it was cut off");
    }
    wait_for("that of those who were closed goes", PATIENCE, || held(&mut other) < LITTLE);
    // One value, and what the store has in stock.
    wait_for("the pool has it back", PATIENCE, || used() < LARGE + 32 * MIB);
}

#[test]
fn what_is_kept_for_readers_is_within_what_clients_may_hold() {
    let server = TestServer::with(&[("maxmemory-clients", "128mb")]);
    let mut other = server.connect();
    let readers = readers_of_what_was(&server, 12);
    wait_for("some are closed", PATIENCE, || info(&mut other, "evicted_clients") > 0);
    wait_for("the others hold little enough", PATIENCE, || held(&mut other) <= 128 * MIB);
    assert!(held(&mut other) > LEFT, "and are not closed");
    drop(readers);
}

#[test]
fn around_a_large_answer_others_keep_their_places() {
    let server = TestServer::start();
    let mut wire = server.connect();
    let large = value('a', 5 * MIB);
    wire.ask(&["SET", "k", &large]).expect("it is taken");
    wire.send(
        "HELLO 3\r\nSET small v\r\nGET k\r\nGET small\r\nMULTI\r\nGET k\r\nGET small\r\nEXEC\r\nDEL small\r\nGET k\r\n\
         CLIENT REPLY SKIP\r\nGET k\r\nGET small\r\nGET k\r\nSELECT 1\r\nGET k\r\nQUIT\r\n",
    );
    assert!(wire.reply().expect("a map").starts_with(b"%7"));
    let text = format!("${}\r\n{large}\r\n", large.len());
    let (queued, small) = ("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n", "$1\r\nv\r\n");
    wire.expect(&format!("+OK\r\n{text}{small}{queued}{text}{small}:1\r\n{text}_\r\n{text}+OK\r\n_\r\n+OK\r\n"));
    assert_eq!(wire.rest(), "");
}

#[test]
fn a_reader_who_has_sent_all_that_it_wants_gets_all_of_it() {
    let server = TestServer::start();
    let large = value('a', LARGE);
    let (plain, long) = ("k".to_owned(), "k".repeat(5000));
    for key in [plain, long] {
        server.connect().ask(&["SET", &key, &large]).expect("it is taken");
        let mut wire = server.connect();
        wire.send(&format!("GET {key}\r\n"));
        wire.sends_no_more().expect("it is connected");
        assert!(wire.rest().into_bytes() == bulk(&large));
    }
}

#[test]
fn a_large_value_that_is_small_when_its_reader_has_its_turn_is_given_to_it_all_the_same() {
    let slow = || Donor::tcp().faults("delay=1/1:500ms,timeout=20s");
    let bed = Testbed::builder().donor(slow()).donor(slow()).kv("").start();
    let address = bed.kv_address.clone().expect("there is a KV API");
    let [mut writer, mut reader, mut other] = [(); 3].map(|()| Wire::tcp(&address).expect("it listens"));
    writer.ask(&["SET", "k", &value('a', 5 * MIB)]).expect("it is taken");
    writer.send("SET k small\r\nPING\r\n");
    other.talk("PING", "+PONG\r\n");
    // It waits for that write, and has nothing else to say.
    reader.send("GET k\r\n");
    reader.sends_no_more().expect("it is connected");
    writer.expect("+OK\r\n+PONG\r\n");
    assert_eq!(reader.rest(), "$5\r\nsmall\r\n");
}

#[test]
fn annexd_stops_though_somebody_reads_a_large_value_and_goes_on() {
    let mut server = TestServer::start();
    let _readers = readers_of_what_was(&server, 3);
    server.bed.annexd.signal(Signal::SIGTERM);
    assert!(server.bed.annexd.wait(PATIENCE).expect("it ends").success());
}
