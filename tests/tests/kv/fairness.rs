//! One client's request does not stop the others: not by keeping the thread, nor by holding what
//! they need.

use super::support::TestServer;
use annex_tests::kv::wire::{Wire, text};
use annex_tests::testbed::{Donor, Testbed, wait_for};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Keys of a large request, commands of a large transaction.
const MANY: usize = 50_000;
/// Answers that others get at least while one such is under way.
const ENOUGH: usize = 10;
/// Commands that are sent together: their answers fit in the socket.
const TOGETHER: usize = 1000;

fn key(nth: usize) -> String {
    format!("key:{nth}")
}

/// MULTI and the commands, for which EXEC is all that is missing.
fn queue(wire: &mut Wire, commands: impl Iterator<Item = Vec<String>>) {
    wire.talk("MULTI", "+OK\r\n");
    let commands: Vec<Vec<String>> = commands.collect();
    for some in commands.chunks(TOGETHER) {
        let answers = wire.ask_all(some).expect("the server answers");
        assert!(answers.iter().all(|answer| answer == b"+QUEUED\r\n"));
    }
}

/// How many answers another client gets between the sending of a request and the beginning of its
/// answer, or so many bytes more of it.
fn answers_beside(wire: &mut Wire, other: &mut Wire, request: &str, answer: &str, more: usize) -> usize {
    let (is_over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                other.talk("GET small", "$5\r\nvalue\r\n");
                answers.fetch_add(1, SeqCst);
            }
        });
        // However it ends: the other would go on for ever.
        let _ends = OnDrop(&is_over);
        wait_for("the other to be answered", MINUTE, || answers.load(SeqCst) > 0);
        let before = answers.load(SeqCst);
        wire.send(request);
        wire.expect(answer);
        let mut buffer = vec![0; 1 << 20];
        for from in (0..more).step_by(buffer.len()) {
            let next = (more - from).min(buffer.len());
            wire.read_exact(&mut buffer[..next]).expect("the answer comes");
        }
        answers.load(SeqCst) - before
    })
}

/// On a busy machine nobody may have run in the time that a request took: five such in a row are no
/// accident. An attempt says what stopped the others.
fn one_of_five(attempt: impl Fn() -> Result<(), String>) {
    let failed: Vec<String> = (0..5).map_while(|_| attempt().err()).collect();
    assert!(failed.len() < 5, "{failed:?}");
}

fn enough(answers: usize, beside: &str) -> Result<(), String> {
    if answers >= ENOUGH { Ok(()) } else { Err(format!("{answers} answers beside {beside}")) }
}

#[test]
fn others_are_answered_while_a_long_transaction_or_one_with_many_keys_is_under_way() {
    let server = TestServer::start();
    one_of_five(|| transactions_of_all_kinds(&server));
}

fn transactions_of_all_kinds(server: &TestServer) -> Result<(), String> {
    let mut other = server.connect();
    other.talk("SET small value", "+OK\r\n");
    let each = |name: &'static str, and: &'static str| {
        (0..MANY).map(move |nth| [name, &key(nth), and].iter().filter(|w| !w.is_empty()).map(|w| (*w).into()).collect())
    };
    // They are as quick as some of the others are slow.
    let all = |name: &str, and: &str| {
        let words = (0..4 * MANY).flat_map(|nth| [key(nth), and.to_owned()]).filter(|word| !word.is_empty());
        std::iter::once(std::iter::once(name.to_owned()).chain(words).collect::<Vec<String>>())
    };
    let commands: [(&str, Vec<Vec<String>>); 8] = [
        ("SETs", each("SET", "v").collect()),
        ("GETs", each("GET", "").collect()),
        ("MSET", all("MSET", "w").collect()),
        ("MGET", all("MGET", "").collect()),
        ("EXISTS", all("EXISTS", "").collect()),
        ("TOUCH", all("TOUCH", "").collect()),
        ("KEYS", vec![vec!["KEYS".into(), "nothing*".into()]]),
        ("DEL", all("DEL", "").collect()),
    ];
    for (name, commands) in commands {
        let mut wire = server.connect();
        // One that is about all keys stops the others as long as it holds all of them: it runs by
        // itself.
        let (request, answer) = match name {
            "KEYS" => ("KEYS nothing*\r\n", "*0\r\n"),
            _ => {
                queue(&mut wire, commands.into_iter());
                ("EXEC\r\n", "*")
            }
        };
        enough(answers_beside(&mut wire, &mut other, request, answer, 0), name)?;
    }
    Ok(())
}

#[test]
fn others_are_answered_while_a_request_with_very_many_keys_is_under_way() {
    let server = TestServer::start();
    one_of_five(|| requests_with_very_many_keys(&server));
}

fn requests_with_very_many_keys(server: &TestServer) -> Result<(), String> {
    let (mut wire, mut other) = (server.connect(), server.connect());
    other.talk("SET small value", "+OK\r\n");
    for name in ["MSET", "MGET", "EXISTS", "TOUCH", "DEL"] {
        let values = if name == "MSET" { 2 } else { 1 };
        let words = (0..4 * MANY).flat_map(|nth| std::iter::repeat_n(key(nth), values));
        let words: String = words.map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let request = format!("*{}\r\n${}\r\n{name}\r\n{words}", 4 * MANY * values + 1, name.len());
        // The last byte, behind which it can begin.
        let (rest, last) = request.split_at(request.len() - 1);
        wire.send(rest);
        let answer = match name {
            "MSET" => "+OK\r\n".to_owned(),
            "MGET" => format!("*{}\r\n", 4 * MANY),
            _ => format!(":{}\r\n", 4 * MANY),
        };
        let answers = answers_beside(&mut wire, &mut other, last, &answer, 0);
        if name == "MGET" {
            (0..4 * MANY).for_each(|nth| wire.expect(&format!("${}\r\n{}\r\n", key(nth).len(), key(nth))));
        }
        enough(answers, name)?;
    }
    Ok(())
}

#[test]
fn others_are_answered_while_a_large_value_is_written_read_and_looked_at() {
    const LARGE: usize = 256 << 20;
    let donor = || Donor::shm().capacity("1GiB");
    let bed = Testbed::builder().alone().donor(donor()).donor(donor()).kv("").start();
    let address = bed.kv_address.clone().expect("there is a KV API");
    let [mut wire, mut other] = [(); 2].map(|()| Wire::tcp(&address).expect("the server listens"));
    other.talk("SET small value", "+OK\r\n");
    let requests = [
        (format!("SETRANGE large {} x\r\n", LARGE - 1), format!(":{LARGE}\r\n")),
        ("SETRANGE large 10 y\r\n".into(), format!(":{LARGE}\r\n")),
        ("SETBIT large 7 1\r\n".into(), ":0\r\n".into()),
        ("APPEND large z\r\n".into(), format!(":{}\r\n", LARGE + 1)),
        ("BITCOUNT large\r\n".into(), ":".into()),
        ("BITPOS large 1 1000\r\n".into(), ":".into()),
        ("GETRANGE large 0 -1\r\n".into(), format!("${}\r\n", LARGE + 1)),
        // This one's answer begins before it has been read.
        ("GET large\r\n".into(), format!("${}\r\n", LARGE + 1)),
    ];
    for (request, answer) in requests {
        let more = if answer.starts_with('$') { LARGE + 3 } else { 0 };
        let answers = answers_beside(&mut wire, &mut other, &request, &answer, more);
        assert!(answers >= ENOUGH, "{answers} answers beside {request}");
        if answer.ends_with(':') {
            wire.line();
        }
    }
}

/// Keys of a transaction that is small, and of one that is not.
const SIZES: [usize; 2] = [10, 600];

fn exec(wire: &mut Wire, commands: &[Vec<String>]) -> Vec<u8> {
    let one = |name: &str| vec![name.to_owned()];
    let all: Vec<Vec<String>> =
        std::iter::once(one("MULTI")).chain(commands.iter().cloned()).chain([one("EXEC")]).collect();
    wire.ask_all(&all).expect("the server answers").pop().expect("an answer")
}

/// What several clients do at a time, until one has done with it.
fn until_done(done: impl FnOnce(), others: Vec<Box<dyn FnMut() + Send + '_>>) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for mut each in others {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    each();
                }
            });
        }
        // However it ends: the others would go on for ever.
        let _ends = OnDrop(&is_over);
        done();
    });
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn of_two_transactions_over_the_same_keys_others_see_all_or_nothing() {
    let server = TestServer::start();
    for size in SIZES {
        let all = |name: &str, value: &str| -> Vec<Vec<String>> {
            let words = |nth| [name.to_owned(), key(nth), value.to_owned()].into_iter().filter(|w| !w.is_empty());
            (0..size).map(|nth| words(nth).collect()).collect()
        };
        let mget = |keys: &[usize]| -> Vec<String> {
            std::iter::once("MGET".to_owned()).chain(keys.iter().map(|nth| key(*nth))).collect()
        };
        let everything: Vec<usize> = (0..size).collect();
        let mut first = server.connect();
        exec(&mut first, &all("SET", "0"));
        let writer = |value: &'static str| -> Box<dyn FnMut() + Send> {
            let (mut wire, commands) = (server.connect(), all("SET", value));
            Box::new(move || assert!(exec(&mut wire, &commands).starts_with(b"*")))
        };
        let reader = |ask: Vec<Vec<String>>| {
            let mut wire = server.connect();
            move || {
                for _ in 0..60 {
                    let answer =
                        if ask.len() == 1 { wire.ask(&ask[0]).expect("an answer") } else { exec(&mut wire, &ask) };
                    let mut values: Vec<&[u8]> = answer.split(|byte| *byte == b'\n').skip(2).step_by(2).collect();
                    assert!(values.len() > 1 && values.iter().all(|value| value.len() == 2), "{values:?}");
                    values.dedup();
                    assert_eq!(values.len(), 1, "{}", String::from_utf8_lossy(&answer));
                }
            }
        };
        let (mut few, mut many, mut transaction) =
            (reader(vec![mget(&[0, size / 2, size - 1])]), reader(vec![mget(&everything)]), reader(all("GET", "")));
        until_done(
            || {
                few();
                many();
                transaction();
            },
            vec![writer("1"), writer("2")],
        );
    }
}

#[test]
fn who_looks_at_all_keys_never_sees_what_was_only_within_a_transaction() {
    let server = TestServer::start();
    for size in SIZES {
        let mut wire = server.connect();
        wire.talk("FLUSHALL", "+OK\r\n");
        wire.talk("SET lasting v", "+OK\r\n");
        // Each key is there for a moment.
        let pass = |nth: usize| [vec!["SET".into(), key(nth), "v".into()], vec!["DEL".into(), key(nth)]];
        let commands: Vec<Vec<String>> = (0..size).flat_map(pass).collect();
        let mut writing = server.connect();
        let writer: Box<dyn FnMut() + Send> =
            Box::new(move || assert!(exec(&mut writing, &commands).starts_with(b"*")));
        until_done(
            || {
                for _ in 0..100 {
                    wire.talk("DBSIZE", ":1\r\n");
                    wire.talk("RANDOMKEY", "$7\r\nlasting\r\n");
                    wire.talk("KEYS *", "*1\r\n$7\r\nlasting\r\n");
                    wire.talk("SCAN 0 COUNT 1000", "*2\r\n$1\r\n0\r\n*1\r\n$7\r\nlasting\r\n");
                }
            },
            vec![writer],
        );
    }
}

#[test]
fn what_was_watched_is_not_changed_between_the_look_and_the_end_of_a_long_transaction() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.talk("SET count 0", "+OK\r\n");
    let each = 15;
    thread::scope(|scope| {
        for client in 0..4 {
            let mut wire = server.connect();
            scope.spawn(move || {
                let mut done = 0;
                while done < each {
                    wire.talk("WATCH count", "+OK\r\n");
                    let count = wire.ask(&["GET", "count"]).expect("an answer");
                    let count = text(&count).expect("a text").expect("a value");
                    let count: usize = String::from_utf8_lossy(&count).parse().expect("a number");
                    let mut commands = vec![vec!["SET".into(), "count".into(), (count + 1).to_string()]];
                    commands.extend((0..400).map(|nth| vec!["SET".into(), format!("{client}:{nth}"), "v".into()]));
                    done += usize::from(exec(&mut wire, &commands).starts_with(b"*401"));
                }
            });
        }
    });
    wire.talk("GET count", "$2\r\n60\r\n");
}

#[test]
fn a_connections_answers_keep_their_order_around_long_requests() {
    let server = TestServer::start();
    let mut wire = server.connect();
    let count = 3000;
    let pairs: String = (0..count).map(|nth| format!(" {} {nth}", key(nth))).collect();
    let keys: String = (0..count).map(|nth| format!(" {}", key(nth))).collect();
    let sets: String = (0..count).map(|nth| format!("SET {} new\r\n", key(nth))).collect();
    let last = key(count - 1);
    let number = count - 1;
    let mut writer = wire.sender().expect("a handle");
    let requests = format!(
        "SET {last} before\r\nMSET{pairs}\r\nGET {last}\r\nMULTI\r\n{sets}EXEC\r\nGET {last}\r\nEXISTS{keys}\r\n\
         SET {last} after\r\nGET {last}\r\nDEL{keys}\r\nGET {last}\r\nPING\r\n"
    );
    let answers = format!(
        "+OK\r\n+OK\r\n$4\r\n{number}\r\n+OK\r\n{}*{count}\r\n{}$3\r\nnew\r\n:{count}\r\n+OK\r\n$5\r\nafter\r\n:{count}\r\n\
         $-1\r\n+PONG\r\n",
        "+QUEUED\r\n".repeat(count),
        "+OK\r\n".repeat(count)
    );
    let writing = thread::spawn(move || std::io::Write::write_all(&mut writer, requests.as_bytes()));
    wire.expect(&answers);
    writing.join().expect("no panic").expect("the server reads");
}

#[test]
fn a_long_transaction_is_brought_to_its_end_though_its_client_is_gone() {
    let server = TestServer::start();
    let mut wire = server.connect();
    for round in ["1", "2", "3"] {
        let mut gone = server.connect();
        queue(&mut gone, (0..5000).map(|nth| vec!["SET".into(), key(nth), round.into()]));
        gone.send("EXEC\r\n");
        drop(gone);
        let began = std::time::Instant::now();
        let keys: Vec<String> = std::iter::once("MGET".into()).chain((0..5000).map(key)).collect();
        loop {
            let answer = String::from_utf8(wire.ask(&keys).expect("an answer")).expect("text");
            let new = answer.matches(&format!("$1\r\n{round}\r\n")).count();
            assert!(new == 0 || new == 5000, "{new} keys of round {round}");
            if new == 5000 {
                break;
            }
            assert!(began.elapsed().as_secs() < 60, "round {round} never ran");
        }
    }
}

#[test]
fn a_flush_comes_before_or_after_a_long_transaction_and_others_go_on() {
    let server = TestServer::start();
    let (mut long, mut wire, mut flush) = (server.connect(), server.connect(), server.connect());
    for _ in 0..5 {
        queue(&mut long, (0..5000).map(|nth| vec!["SET".into(), key(nth), "v".into()]));
        long.send("EXEC\r\n");
        flush.send("FLUSHALL\r\n");
        flush.expect("+OK\r\n");
        long.expect("*5000\r\n");
        long.expect(&"+OK\r\n".repeat(5000));
        let size = wire.ask(&["DBSIZE"]).expect("an answer");
        assert!(size == b":0\r\n" || size == b":5000\r\n", "{}", String::from_utf8_lossy(&size));
    }
}

#[test]
fn keys_expire_and_are_evicted_in_the_midst_of_a_long_transaction() {
    let server = TestServer::start();
    let mut wire = server.connect();
    let moment = |nth: usize| ["SET".into(), format!("moment:{nth}"), "v".into(), "PX".into(), "1".into()];
    let last = |nth: usize| vec!["SET".into(), key(nth), "v".repeat(200)];
    queue(&mut wire, (0..5000).flat_map(|nth| [moment(nth).to_vec(), last(nth)]));
    wire.send("EXEC\r\n");
    wire.expect("*10000\r\n");
    wire.expect(&"+OK\r\n".repeat(10_000));
    thread::sleep(std::time::Duration::from_millis(2));
    let moments: Vec<String> =
        std::iter::once("EXISTS".into()).chain((0..5000).map(|nth| format!("moment:{nth}"))).collect();
    assert_eq!(wire.ask(&moments).expect("an answer"), b":0\r\n");
    let lasting: Vec<String> = std::iter::once("EXISTS".into()).chain((0..5000).map(key)).collect();
    assert_eq!(wire.ask(&lasting).expect("an answer"), b":5000\r\n");
    // Room for an eighth of what is there and of what comes.
    wire.talk("CONFIG SET maxmemory-policy allkeys-lru", "+OK\r\n");
    wire.talk("CONFIG SET maxmemory 160000", "+OK\r\n");
    queue(&mut wire, (0..5000).map(|nth| vec!["SET".into(), format!("new:{nth}"), "v".repeat(200)]));
    wire.send("EXEC\r\n");
    wire.expect("*5000\r\n");
    wire.expect(&"+OK\r\n".repeat(5000));
    let size = String::from_utf8(wire.ask(&["DBSIZE"]).expect("an answer")).expect("text");
    let size: usize = size[1..].trim_end().parse().expect("a number");
    // A record takes 256 bytes.
    assert!((100..=160_000 / 256).contains(&size), "{size} keys");
}
