//! A connection to a server over a pool of scripted donors.

use super::task;
use crate::server::{Address, Client, Config, Hooks, IoThreads, Origin, Server, Stream};
use crate::session;
use crate::store::Db;
use crate::store::testbed::Alone;
use crate::turn;
use bytes::Bytes;
use std::cell::Cell;
use std::io::ErrorKind::WouldBlock;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

struct Wire {
    stream: UnixStream,
    /// The server stops when this goes.
    _stop: watch::Sender<bool>,
}

impl Wire {
    fn new(server: &Rc<Server>) -> Wire {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let address = || Address::Unix("pair".into());
        let client = Rc::new(Client::new(server.next_client(), address(), address(), Origin::User(0)));
        server.clients.borrow_mut().insert(client.id, client.clone());
        let (stop, stopping) = watch::channel(false);
        let run = task::run(Stream::Unix(theirs), server.clone(), client, stopping);
        tokio::task::spawn_local(turn::in_turns(run));
        Wire { stream: ours, _stop: stop }
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn expect(&mut self, text: &str) {
        let mut read = vec![0; text.len()];
        let whole = tokio::time::timeout(Duration::from_secs(20), self.stream.read_exact(&mut read)).await;
        whole.expect("an answer in time").unwrap();
        assert_eq!(String::from_utf8_lossy(&read), text);
    }

    fn is_silent(&self) -> bool {
        self.stream.try_read(&mut [0]).is_err_and(|error| error.kind() == WouldBlock)
    }

    /// Reads what there is, and says how much that was.
    fn drain(&self) -> usize {
        let mut answers = vec![0; 1 << 20];
        std::iter::from_fn(|| self.stream.try_read(&mut answers).ok()).sum()
    }
}

fn server(alone: &Alone) -> Rc<Server> {
    server_with(alone, IoThreads::start(0).unwrap())
}

fn server_with(alone: &Alone, io_threads: IoThreads) -> Rc<Server> {
    Server::new(alone.store.clone(), session::commands(), Config::default(), Hooks::default(), io_threads)
}

#[test]
fn a_read_behind_a_write_of_its_key_waits_for_it_however_near_the_value_is() {
    let alone = Alone::new();
    alone.bed.agents.iter().for_each(|agent| agent.near(true));
    alone.block_on(async {
        let server = server(&alone);
        let (mut wire, mut other) = (Wire::new(&server), Wire::new(&server));
        wire.send("SET k old\r\nSET far away\r\nGET k\r\n").await;
        wire.expect("+OK\r\n+OK\r\n$3\r\nold\r\n").await;
        alone.bed.agents.iter().for_each(|agent| agent.hold(true));
        wire.send("SET k new\r\nGET k\r\n").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Others wait for that key too, and for that one only.
        other.send("GET far\r\n").await;
        other.expect("$4\r\naway\r\n").await;
        other.send("GET k\r\n").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(wire.is_silent() && other.is_silent());
        alone.bed.agents.iter().for_each(|agent| agent.hold(false));
        wire.expect("+OK\r\n$3\r\nnew\r\n").await;
        other.expect("$3\r\nnew\r\n").await;
    });
}

#[test]
fn a_pipeline_of_slow_requests_gives_way_to_others() {
    const MANY: u64 = 60;
    let alone = Alone::new();
    alone.block_on(async {
        let server = server(&alone);
        let mut wire = Wire::new(&server);
        wire.send(&"INFO everything\r\n".repeat(MANY as usize)).await;
        let begun = || server.stats.commands.get();
        let (mut before, mut most) = (0, 0);
        while before < MANY {
            tokio::task::yield_now().await;
            most = most.max(begun() - before);
            before = begun();
        }
        assert!(most <= MANY / 2, "{most} of {MANY} in one turn");
    });
}

#[test]
fn a_small_request_waits_for_one_pipeline_not_for_all() {
    const PIPELINES: usize = 8;
    let alone = Alone::new();
    alone.block_on(async {
        let server = server(&alone);
        let mut small = Wire::new(&server);
        small.send("SET key value\r\n").await;
        small.expect("+OK\r\n").await;
        let pipelines: Vec<Wire> = (0..PIPELINES).map(|_| Wire::new(&server)).collect();
        let requests = "GET key\r\n".repeat(1000);
        for wire in &pipelines {
            wire.stream.writable().await.unwrap();
            while wire.stream.try_write(requests.as_bytes()).is_ok() {}
        }
        while server.stats.commands.get() < 1000 * PIPELINES as u64 {
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            for wire in &pipelines {
                wire.drain();
            }
            small.send("GET key\r\n").await;
            small.expect("$5\r\nvalue\r\n").await;
            let went_first = pipelines.iter().filter(|wire| wire.drain() > 0).count();
            assert!(went_first <= 2, "{went_first} of {PIPELINES} pipelines went first");
        }
    });
}

/// As clients send it: an array of bulk strings.
fn request(words: &[&str]) -> String {
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", words.matches('$').count())
}

#[test]
fn a_pipeline_is_looked_at_ahead_and_answered_as_if_it_was_not() {
    let alone = Alone::new();
    alone.bed.agents.iter().for_each(|agent| agent.near(true));
    alone.block_on(async {
        let server = server(&alone);
        let mut wire = Wire::new(&server);
        let large = "x".repeat(3000);
        for nth in 0..40 {
            wire.send(&request(&["SET", &format!("key{nth}"), &format!("{nth}:{large}")])).await;
            wire.expect("+OK\r\n").await;
        }
        let hinted = || alone.bed.agents.iter().map(|agent| agent.hinted().len()).sum::<usize>();
        wire.send(&request(&["GET", "key1"])).await;
        wire.expect(&format!("$3002\r\n1:{large}\r\n")).await;
        assert_eq!(hinted(), 0, "one request is none to look for ahead");
        // Unless another connection may have one too.
        let mut other = Wire::new(&server);
        for wire in [&mut wire, &mut other] {
            wire.send(&request(&["GET", "key2"])).await;
        }
        for wire in [&mut wire, &mut other] {
            wire.expect(&format!("$3002\r\n2:{large}\r\n")).await;
        }
        assert_eq!(hinted(), 2);
        // The last log page, in which the last key lies, is here.
        let gets: String = (0..39).map(|nth| request(&["get", &format!("key{nth}")])).collect();
        wire.send(&gets).await;
        for nth in 0..39 {
            let value = format!("{nth}:{large}");
            wire.expect(&format!("${}\r\n{value}\r\n", value.len())).await;
        }
        assert_eq!(hinted(), 39);
        // A value that is replaced after it was looked for, and another database.
        let [set, get, select, get2] =
            [&["SET", "key5", "new"][..], &["GET", "key5"], &["SELECT", "1"], &["GET", "key6"]].map(request);
        wire.send(&[&*get, &set, &get, &select, &get2, &get2].concat()).await;
        wire.expect(&format!("$3002\r\n5:{large}\r\n+OK\r\n$3\r\nnew\r\n+OK\r\n$-1\r\n$-1\r\n")).await;
    });
}

#[test]
fn what_is_answered_on_the_spot_is_counted_and_logged_as_any_other_command() {
    let alone = Alone::new();
    alone.block_on(async {
        let server = server(&alone);
        let mut wire = Wire::new(&server);
        wire.send("CONFIG SET slowlog-log-slower-than 0\r\nSET k v\r\n").await;
        wire.expect("+OK\r\n+OK\r\n").await;
        server.slow.clear();
        // What lies in the last log page takes no READ.
        wire.send("GET k\r\nGET none\r\nMULTI\r\nGET k\r\nEXEC\r\nCLIENT REPLY SKIP\r\nGET k\r\nGET k\r\n").await;
        wire.expect("$1\r\nv\r\n$-1\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\nv\r\n$1\r\nv\r\n").await;
        let get = server.commands.by_full_name(b"get").unwrap();
        let stats = &server.commands.get(get).stats;
        assert_eq!((stats.calls.get(), stats.failed.get()), (5, 0));
        assert!(stats.time.get() > Duration::ZERO && stats.latency.borrow().is_some());
        let logged = server.slow.latest(100).into_iter().filter(|entry| entry.args[0].eq_ignore_ascii_case(b"get"));
        assert_eq!(logged.count(), 5);
        let stats = server.store.stats();
        assert_eq!((stats.hits, stats.misses, stats.reads), (4, 1, 0));
    });
}

fn with_io_threads(alone: &Alone) -> Rc<Server> {
    let io_threads = IoThreads::start(2).unwrap();
    // In a test's runtime no round ends: from now on each reply is handed over.
    while !io_threads.is_wanted() {}
    server_with(alone, io_threads)
}

#[test]
fn replies_keep_their_order_whoever_sends_them() {
    let alone = Alone::new();
    alone.bed.agents.iter().for_each(|agent| agent.near(true));
    alone.block_on(async {
        let server = with_io_threads(&alone);
        let mut wires: Vec<Wire> = (0..16).map(|_| Wire::new(&server)).collect();
        for round in 0..100 {
            for (nth, wire) in wires.iter_mut().enumerate() {
                let value = format!("{nth}-{round}");
                let set = request(&["SET", &format!("key{nth}"), &value]);
                let get = request(&["GET", &format!("key{nth}")]);
                wire.send(&[&*set, &get, &request(&["ECHO", &value]), &get].concat()).await;
            }
            for (nth, wire) in wires.iter_mut().enumerate() {
                let value = format!("{nth}-{round}");
                let bulk = format!("${}\r\n{value}\r\n", value.len());
                wire.expect(&format!("+OK\r\n{bulk}{bulk}{bulk}")).await;
            }
        }
        let (all, theirs) = (server.stats.writes.get(), server.stats.io_threaded_writes.get());
        assert!(theirs >= 1600 && all >= theirs, "{theirs} of {all} writes by I/O threads");
    });
}

#[test]
fn what_a_socket_does_not_take_from_an_io_thread_is_sent_when_the_client_reads() {
    let alone = Alone::new();
    alone.block_on(async {
        let server = with_io_threads(&alone);
        let mut wire = Wire::new(&server);
        // More than the socket holds, in a piece of its own and gathered, and what becomes due
        // while that waits.
        let (large, small) = ("x".repeat(700 << 10), "y".repeat(9000));
        let mut expected = String::new();
        for nth in 0..20 {
            let value = format!("{nth}:{}", if nth == 0 { &large } else { &small });
            wire.send(&request(&["ECHO", &value])).await;
            expected += &format!("${}\r\n{value}\r\n", value.len());
            if nth == 0 {
                // The first goes to an I/O thread alone.
                while server.stats.io_threaded_writes.get() == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let client = server.clients.borrow().values().next().unwrap().clone();
        assert!(client.output.get() > 100_000, "{} bytes wait", client.output.get());
        wire.expect(&expected).await;
        // And then an I/O thread sends again.
        let before = server.stats.io_threaded_writes.get();
        wire.send("PING\r\n").await;
        wire.expect("+PONG\r\n").await;
        assert_eq!(server.stats.io_threaded_writes.get(), before + 1);
        assert_eq!(server.stats.output.get(), expected.len() as u64 + 7);
    });
}

#[test]
fn a_connection_whose_client_is_gone_ends_though_an_io_thread_found_out() {
    let alone = Alone::new();
    alone.block_on(async {
        let server = with_io_threads(&alone);
        let Wire { mut stream, _stop } = Wire::new(&server);
        stream.write_all(request(&["ECHO", &"x".repeat(1 << 20)]).as_bytes()).await.unwrap();
        // The end of what it sends is seen by the task only once all is sent.
        while server.stats.io_threaded_writes.get() == 0 {
            tokio::task::yield_now().await;
        }
        drop(stream);
        let ended = async {
            while !server.clients.borrow().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the connection ends");
    });
}

#[test]
fn who_reads_a_large_value_keeps_nobody_waiting_though_its_donors_are_silent() {
    let alone = Alone::new();
    alone.block_on(async {
        let server = server(&alone);
        let (mut wire, mut other) = (Wire::new(&server), Wire::new(&server));
        let large = "x".repeat(5 << 20);
        wire.send(&request(&["SET", "k", &large])).await;
        wire.expect("+OK\r\n").await;
        alone.bed.agents.iter().for_each(|agent| agent.hold(true));
        wire.send("GET k\r\n").await;
        let asked = async {
            while server.memory.held() < 1 << 20 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it begins");
        // Takes the key's lock, and no donor.
        other.send("DEL k\r\n").await;
        other.expect(":1\r\n").await;
        assert!(wire.is_silent());
        alone.bed.agents.iter().for_each(|agent| agent.hold(false));
        wire.expect(&format!("${}\r\n{large}\r\n", large.len())).await;
        wire.send("GET k\r\n").await;
        wire.expect("$-1\r\n").await;
    });
}

#[test]
fn the_values_that_a_command_brings_are_counted_in_turns() {
    let alone = Alone::new();
    alone.block_on(async {
        let server = server(&alone);
        let turns = Rc::new(Cell::new(0));
        let counting = turns.clone();
        let others = tokio::task::spawn_local(async move {
            loop {
                counting.set(counting.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let mget = server.commands.by_full_name(b"mget").unwrap();
        let keys = vec![Bytes::from_static(b"k"); 500_000];
        assert_eq!(turn::in_turns(server.expected(mget, Db(0), &keys)).await, 0);
        assert!(turns.get() >= 10, "{} turns of the others", turns.get());
        others.abort();
    });
}
