//! Pipelines that are sent whole before any of their answers is read, as client libraries do it.

use super::support::TestServer;
use annex_tests::kv::wire::Wire;
use annex_tests::testbed::bins;
use std::process::Command;

const TCP: fn(&TestServer) -> Wire = TestServer::connect;
const UNIX: fn(&TestServer) -> Wire = |server| Wire::unix(&server.socket()).expect("it listens");

/// So many GETs of a value of so many bytes, and the most that annexd held for it, as CLIENT LIST
/// tells.
fn send_whole(server: &TestServer, connect: fn(&TestServer) -> Wire, count: usize, bytes: usize) -> usize {
    let (mut wire, mut other) = (connect(server), server.connect());
    let value = "x".repeat(bytes);
    wire.ask(&["SET", "k", &value]).expect("it is taken");
    wire.send(&"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(count));
    // Only now is anything read.
    let list = String::from_utf8_lossy(&other.ask(&["CLIENT", "LIST"]).expect("the list")).into_owned();
    let answer = format!("${bytes}\r\n{value}\r\n");
    (0..count).for_each(|_| wire.expect(&answer));
    wire.talk("PING", "+PONG\r\n");
    let totals = list.split("tot-mem=").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    totals.max().expect("there are clients")
}

#[test]
fn a_million_requests_sent_whole_are_answered_over_tcp() {
    let held = send_whole(&TestServer::start(), TCP, 1_000_000, 100);
    assert!(held < 128 << 20, "{held} bytes for 22 MB of requests");
}

#[test]
fn a_million_requests_sent_whole_are_answered_over_a_unix_socket() {
    let held = send_whole(&TestServer::start(), UNIX, 1_000_000, 100);
    assert!(held < 128 << 20, "{held} bytes for 22 MB of requests");
}

#[test]
fn thousands_of_kilobytes_sent_for_whole_are_answered_over_a_unix_socket() {
    for count in [2000, 5000, 50_000] {
        send_whole(&TestServer::start(), UNIX, count, 1000);
    }
}

/// What does not fit into memory waits as requests, which are small.
#[test]
fn gigabytes_asked_for_at_once_are_answered_and_never_held() {
    for connect in [TCP, UNIX] {
        for (count, bytes) in [(200_000, 10_000), (20_000, 100_000), (2000, 1 << 20), (50, 40 << 20)] {
            let held = send_whole(&TestServer::start(), connect, count, bytes);
            assert!(held < 16 << 20, "{held} bytes for 2 GB of answers of {bytes}");
        }
    }
}

/// Many small answers, and more than a gigabyte of larger ones, over TCP and a Unix socket.
/// `client` has a client library ask for them: it is told where, how many, and of how many bytes.
fn answers_all_of(client: impl Fn(&TestServer) -> Command) {
    for (count, bytes) in [(100_000, 100), (120_000, 10_000)] {
        let server = TestServer::start();
        let most = server.watch_memory();
        let before = server.memory();
        for place in [format!("127.0.0.1:{}", server.port), server.socket().display().to_string()] {
            let output = client(&server).arg(&place).args([count, bytes].map(|n| n.to_string())).output();
            let output = output.expect("the client starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{count} answers of {bytes} bytes from {place}: {said}");
        }
        let grown = most() - before;
        assert!(grown < 128 << 20, "annexd took {grown} bytes more for {count} answers of {bytes}");
    }
}

#[test]
fn what_hiredis_sends_whole_is_answered() {
    answers_all_of(|server| {
        let program = server.bed.path().join("sent_whole");
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"]).arg(&program).arg(bins::script("sent_whole.c"));
        let compiled = cc.arg("-lhiredis").status().expect("there is a C compiler");
        assert!(compiled.success(), "libhiredis-dev is installed by `make setup`");
        Command::new(program)
    });
}

#[test]
fn what_redis_py_sends_whole_is_answered() {
    answers_all_of(|_| {
        // Debian's, which has Debian's python3-redis.
        let mut python = Command::new("/usr/bin/python3");
        python.arg(bins::script("sent_whole.py"));
        python
    });
}
