//! Clients that would make annexd hold more than it may, with one beside them that wants little:
//! annexd's memory stays within `maxmemory-clients` and some slack, and that one is served.

use super::support::TestServer;
use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed, wait_for};
use std::io::Write;
use std::thread::JoinHandle;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// What the clients of a test may hold.
const BUDGET: usize = 128 * MIB;
/// What annexd takes beside it for the same: the heap's fragments, values that are read in pieces,
/// caches.
const SLACK: usize = 96 * MIB;
const LARGE: usize = 16 * MIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// A server, an honest client, and what annexd took when there was nobody else.
struct Scene {
    server: TestServer,
    honest: Wire,
    budget: usize,
    before: usize,
    most: Option<Most>,
}

/// The most memory that annexd had since the scene began.
type Most = Box<dyn FnOnce() -> usize>;

impl Scene {
    fn new() -> Scene {
        Scene::with(BUDGET)
    }

    fn with(budget: usize) -> Scene {
        let server = TestServer::with(&[("maxmemory-clients", &budget.to_string())]);
        let mut honest = server.connect();
        honest.ask(&["SET", "large", &"x".repeat(LARGE)]).expect("it is taken");
        honest.talk("SET small value", "+OK\r\n");
        let (before, most) = (server.memory(), Some(server.watch_memory()));
        Scene { server, honest, budget, before, most: most.map(|most| Box::new(most) as Most) }
    }

    /// Each answer comes within [`PATIENCE`], or this panics.
    fn serves_the_honest(&mut self, times: usize) {
        for _ in 0..times {
            self.honest.talk("SET small value", "+OK\r\n");
            self.honest.talk("GET small", "$5\r\nvalue\r\n");
        }
    }

    fn stays_within_its_budget(&mut self) {
        let (peak, before) = (self.most.take().expect("asked once")(), self.before);
        assert!(peak < before + self.budget + SLACK, "{} MiB before and {} MiB at most", before / MIB, peak / MIB);
    }

    /// Its other clients are gone.
    fn has_its_memory_back(&self) {
        wait_for("the memory is given back", PATIENCE, || self.server.memory() < self.before + 32 * MIB);
    }

    fn info(&mut self, field: &str) -> usize {
        let info = String::from_utf8_lossy(&self.honest.ask(&["INFO", "everything"]).expect("a text")).into_owned();
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::parse);
        line.unwrap_or_else(|| panic!("no {field} in {info}")).expect("a number")
    }
}

/// Sends until all is sent or the server closes the connection.
fn send_all(wire: &Wire, what: Vec<u8>) -> JoinHandle<bool> {
    let mut sender = wire.sender().expect("a handle");
    std::thread::spawn(move || sender.write_all(&what).is_ok())
}

fn request(words: &[&str]) -> String {
    words.iter().fold(format!("*{}\r\n", words.len()), |all, word| format!("{all}${}\r\n{word}\r\n", word.len()))
}

/// 40 of them made annexd hold 4.3 GB. They are sent pieces, as they take them.
#[test]
fn readers_of_large_values_who_do_not_read_cost_little_and_stay() {
    let mut scene = Scene::new();
    let mut slow: Vec<Wire> = (0..40).map(|_| scene.server.connect()).collect();
    slow.iter_mut().for_each(|wire| wire.send(&request(&["GET", "large"]).repeat(4)));
    scene.serves_the_honest(200);
    let answer = scene.honest.ask(&["GET", "large"]).expect("the answer comes");
    assert_eq!(answer.len(), LARGE + "$16777216\r\n\r\n".len());
    let held = scene.info("mem_clients_normal");
    assert!((MIB..64 * MIB).contains(&held), "{held} bytes for 40 readers");
    scene.stays_within_its_budget();
    assert_eq!(scene.info("evicted_clients"), 0);
    let head = format!("${LARGE}\r\n");
    for wire in &mut slow {
        (0..4).for_each(|_| assert_eq!(wire.reply().expect("an answer").len(), head.len() + LARGE + 2));
    }
}

/// Where such a key ends in the record's second log page, the value is read whole.
#[test]
fn readers_of_large_values_under_very_long_names_wait_for_room() {
    let mut scene = Scene::new();
    let name = "n".repeat(5000);
    scene.honest.ask(&["SET", &name, &"x".repeat(LARGE)]).expect("it is taken");
    let mut slow: Vec<Wire> = (0..20).map(|_| scene.server.connect()).collect();
    slow.iter_mut().for_each(|wire| wire.send(&request(&["GET", &name])));
    scene.serves_the_honest(200);
    let answer = scene.honest.ask(&["GET", &name]).expect("the answer comes");
    assert_eq!(answer.len(), LARGE + "$16777216\r\n\r\n".len());
    scene.stays_within_its_budget();
}

/// Of what is not sent in pieces.
#[test]
fn readers_of_large_parts_who_do_not_read_leave_room_for_one_who_does() {
    let mut scene = Scene::with(2 * BUDGET);
    let mut slow: Vec<Wire> = (0..40).map(|_| scene.server.connect()).collect();
    slow.iter_mut().for_each(|wire| wire.send(&request(&["GETRANGE", "large", "0", "-1"]).repeat(4)));
    scene.serves_the_honest(200);
    // There is no room for one more, until some of those go.
    let answer = scene.honest.ask(&["GETRANGE", "large", "0", "-1"]).expect("the answer comes");
    assert_eq!(answer.len(), LARGE + "$16777216\r\n\r\n".len());
    scene.serves_the_honest(200);
    scene.stays_within_its_budget();
    assert!(scene.info("evicted_clients") > 0);
}

/// So many that read a large value at once, whole: whether all of them got it.
fn all_read(count: usize, connect: impl Fn() -> Wire) -> JoinHandle<bool> {
    let read =
        |mut wire: Wire| move || wire.ask(&["GETRANGE", "large", "0", "-1"]).is_ok_and(|answer| answer.len() > LARGE);
    let readers: Vec<_> = (0..count).map(|_| std::thread::spawn(read(connect()))).collect();
    std::thread::spawn(move || readers.into_iter().all(|reader| reader.join().expect("no panic")))
}

/// More than fit at a time.
#[test]
fn readers_of_large_values_wait_for_one_another() {
    let mut scene = Scene::new();
    let readers = all_read(20, || scene.server.connect());
    scene.serves_the_honest(200);
    assert!(readers.join().expect("no panic"));
    scene.stays_within_its_budget();
    assert_eq!(scene.info("evicted_clients"), 0);
}

/// They were closed as soon as they had room, since they had sent nothing for long; with quick
/// donors that was a matter of chance.
#[test]
fn readers_who_wait_for_room_and_then_for_donors_are_not_stuck() {
    // A value takes more than two seconds, and one of them has room at a time.
    let slow = || Donor::tcp().faults("delay=1/1:1100ms,timeout=20s");
    let bed = Testbed::builder().donor(slow()).donor(slow()).kv("").start();
    let address = bed.kv_address.clone().expect("there is a KV API");
    let connect = || Wire::tcp(&address).expect("it listens");
    let mut wire = connect();
    wire.ask(&["SET", "large", &"x".repeat(LARGE)]).expect("it is taken");
    wire.talk(&format!("CONFIG SET maxmemory-clients {}", LARGE + 8 * MIB), "+OK\r\n");
    assert!(all_read(3, connect).join().expect("no panic"));
    let stats = String::from_utf8(wire.ask(&["INFO", "stats"]).expect("a text")).expect("text");
    assert!(stats.contains("\r\nevicted_clients:0\r\n"), "{stats}");
}

#[test]
fn writers_of_half_values_are_closed_when_they_hold_too_much() {
    let mut scene = Scene::new();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${LARGE}\r\n");
    let slow: Vec<Wire> = (0..40).map(|_| scene.server.connect()).collect();
    let half = [head.as_bytes(), &vec![b'x'; LARGE / 2]].concat();
    let sending: Vec<_> = slow.iter().map(|wire| send_all(wire, half.clone())).collect();
    scene.serves_the_honest(200);
    sending.into_iter().for_each(|sending| _ = sending.join());
    scene.serves_the_honest(200);
    scene.stays_within_its_budget();
    assert!(scene.info("evicted_clients") > 0);
    assert!(scene.info("mem_clients_normal") <= BUDGET);
    drop(slow);
    scene.has_its_memory_back();
}

/// It took 646 MiB, which are 32 bytes each.
#[test]
fn a_request_of_twenty_million_empty_arguments_is_too_much() {
    let mut scene = Scene::new();
    let mut wire = scene.server.connect();
    let sending = send_all(&wire, ["*20000000\r\n".as_bytes(), &b"$0\r\n\r\n".repeat(20_000_000)].concat());
    scene.serves_the_honest(200);
    assert_eq!(wire.rest(), "");
    _ = sending.join();
    scene.stays_within_its_budget();
    assert_eq!(scene.info("evicted_clients"), 1);
    scene.has_its_memory_back();
}

#[test]
fn pipelines_without_an_end_that_nobody_reads_are_closed() {
    let mut scene = Scene::new();
    scene.honest.talk(&format!("SET hundred {}", "x".repeat(100)), "+OK\r\n");
    let mut deep: Vec<Wire> = (0..8).map(|_| scene.server.connect()).collect();
    // 1.7 GB of answers: far more than may be held, whatever the sockets themselves take.
    let requests = request(&["GET", "hundred"]).repeat(2_000_000).into_bytes();
    let sending: Vec<_> = deep.iter().map(|wire| send_all(wire, requests.clone())).collect();
    scene.serves_the_honest(200);
    let sent = sending.into_iter().filter_map(|sending| sending.join().ok()).filter(|sent| *sent).count();
    assert!(sent < deep.len(), "all of them could send 400 MB");
    scene.serves_the_honest(200);
    scene.stays_within_its_budget();
    assert!(scene.info("evicted_clients") > 0);
    deep.clear();
    scene.has_its_memory_back();
}

#[test]
fn a_transaction_without_an_end_is_closed() {
    let mut scene = Scene::new();
    let mut wire = scene.server.connect();
    wire.talk("MULTI", "+OK\r\n");
    let sending = send_all(&wire, request(&["SET", "k", "v"]).repeat(5_000_000).into_bytes());
    scene.serves_the_honest(200);
    let answers = wire.rest();
    assert!(answers.starts_with("+QUEUED\r\n") && !answers.contains("-"), "{answers:.100}");
    _ = sending.join();
    scene.stays_within_its_budget();
    assert_eq!(scene.info("evicted_clients"), 1);
    scene.has_its_memory_back();
}

#[test]
fn a_transaction_whose_answers_are_too_much_runs_to_its_end_and_is_not_answered() {
    let mut scene = Scene::new();
    let mut wire = scene.server.connect();
    let gets = request(&["GET", "large"]).repeat(40);
    wire.send(&format!("MULTI\r\n{gets}{}", request(&["SET", "done", "yes"])));
    wire.expect(&format!("+OK\r\n{}", "+QUEUED\r\n".repeat(41)));
    wire.send("EXEC\r\n");
    assert_eq!(wire.rest(), "");
    scene.honest.talk("GET done", "$3\r\nyes\r\n");
    scene.stays_within_its_budget();
}

#[test]
fn a_command_whose_values_are_too_much_is_refused() {
    let mut scene = Scene::new();
    let keys: Vec<&str> = std::iter::once("MGET").chain(std::iter::repeat_n("large", 100)).collect();
    let answer = String::from_utf8(scene.honest.ask(&keys).expect("an answer")).expect("text");
    assert!(
        answer.starts_with("-OOM this command's values take 16") && answer.contains("maxmemory-clients"),
        "{answer}"
    );
    scene.honest.talk("SETRANGE far 536870000 x", &{
        let whole = 536_870_001;
        format!("-OOM this command's values take {whole} bytes, and maxmemory-clients is {BUDGET}\r\n")
    });
    scene.honest.talk("EXISTS far", ":0\r\n");
    scene.honest.talk("CONFIG SET maxmemory-clients 0", "+OK\r\n");
    scene.honest.talk("SETBIT far 1100000000 1", ":0\r\n");
}

#[test]
fn who_may_not_be_evicted_stays() {
    let mut scene = Scene::new();
    scene.honest.talk("CLIENT NO-EVICT on", "+OK\r\n");
    let (first, second) = (scene.server.connect(), scene.server.connect());
    let half = [format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", 100 * MIB).as_bytes(), &vec![b'x'; 80 * MIB]].concat();
    let mut sender = scene.honest.sender().expect("a handle");
    let honest = std::thread::spawn({
        let half = half.clone();
        move || sender.write_all(&half).is_ok()
    });
    let others = [&first, &second].map(|wire| send_all(wire, half.clone()));
    assert!(honest.join().expect("no panic"));
    others.into_iter().for_each(|other| _ = other.join());
    let mut rest = scene.honest.sender().expect("a handle");
    rest.write_all(&[&vec![b'x'; 20 * MIB][..], b"\r\n"].concat()).expect("it is read");
    scene.honest.expect("+OK\r\n");
    assert!(scene.info("evicted_clients") > 0);
}

/// What an idle connection was given is not kept for it: the next ones get it.
#[test]
fn idle_clients_hold_next_to_nothing() {
    let mut scene = Scene::new();
    let ping = request(&["PING", &"x".repeat(60_000)]);
    let mut many = Vec::new();
    let mut memory = Vec::new();
    for _ in 0..3 {
        for _ in 0..300 {
            let mut wire = scene.server.connect();
            wire.send(&ping);
            assert_eq!(wire.reply().expect("an answer").len(), 60_010);
            many.push(wire);
        }
        wait_for("buffers are given back", PATIENCE, || scene.info("mem_clients_normal") < many.len() * 6000);
        memory.push(scene.server.memory());
    }
    wait_for("they have what others had", PATIENCE, || scene.server.memory() < memory[0] + 16 * MIB);
}
