//! Who has not given the password: how little that one may take, and what guessing is like.

use super::support::TestServer;
use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed, wait_for};
use std::time::{Duration, Instant};

const PASSWORD: &[(&str, &str)] = &[("requirepass", "secret")];
const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn guesses_are_slowed_and_logged_and_who_knows_the_password_is_not() {
    let server = TestServer::with(PASSWORD);
    let mut guesser = server.connect();
    // A few are answered at once, and one more each second. An answer takes two seconds from then
    // on.
    let guesses = 16;
    let begun = Instant::now();
    guesser.send(&"AUTH guess\r\n".repeat(guesses));
    let mut honest = Vec::new();
    let mut others = Vec::new();
    for _ in 0..guesses {
        guesser.expect(WRONG);
        let asked = Instant::now();
        let mut wire = server.connect();
        wire.talk("AUTH secret", "+OK\r\n");
        wire.talk("PING", "+PONG\r\n");
        others.push(wire);
        honest.push(asked.elapsed());
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "{guesses} guesses in {:?}", begun.elapsed());
    // Nobody's answer waited for another's penalty.
    let (all, honest_took) = (begun.elapsed(), honest.iter().sum::<Duration>());
    assert!(honest_took < all / 2, "{honest:?} of {all:?}");
    let log = server.bed.annexd.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("wrong password")).collect();
    assert!(!lines.is_empty() && lines.len() < guesses, "{lines:?}");
    assert!(lines[0].contains("127.0.0.1") && !log.contains("secret"), "{lines:?}");
}

/// Who hung up before the answer had as many guesses as there was time for.
#[test]
fn hanging_up_early_gives_no_more_guesses_and_keeps_nobody_out_who_comes_from_elsewhere() {
    let server = TestServer::with(PASSWORD);
    let mut honest = Wire::unix(&server.socket()).expect("it listens");
    honest.talk("AUTH secret", "+OK\r\n");
    let begun = Instant::now();
    let guesses = 400;
    for _ in 0..guesses {
        server.connect().send("AUTH guess\r\n");
    }
    // Those that were waiting are closed: nobody looks at what they sent.
    let looked_at = |honest: &mut Wire| {
        let errors = honest.ask(&["INFO", "errorstats"]).expect("a text");
        let errors = String::from_utf8_lossy(&errors).into_owned();
        let count = errors.lines().find_map(|line| line.strip_prefix("errorstat_WRONGPASS:count=")).map(str::to_owned);
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    std::thread::sleep(Duration::from_secs(3));
    let looked = looked_at(&mut honest);
    let seconds = begun.elapsed().as_secs() + 1;
    // Eight are free, and one a second; eight may be waited for in any two seconds.
    assert!(looked > 0 && looked <= 8 + seconds + 8 * (seconds / 2 + 1), "{looked} guesses in {seconds} s");
    // Who comes from there waits as well, and nobody else does: the answer over the other socket is
    // there first.
    let mut near = server.connect();
    near.send("AUTH secret\r\n");
    let mut elsewhere = Wire::unix(&server.socket()).expect("it listens");
    elsewhere.talk("AUTH secret", "+OK\r\n");
    near.expect("+OK\r\n");
    near.talk("PING", "+PONG\r\n");
}

#[test]
fn those_who_do_not_give_the_password_make_way_for_others() {
    let server = TestServer::with(&[PASSWORD[0], ("maxclients", "50")]);
    let mut honest = server.connect();
    honest.talk("AUTH secret", "+OK\r\n");
    let mut idle: Vec<Wire> = (0..60).map(|_| server.connect()).collect();
    let mut late = server.connect();
    late.talk("AUTH secret", "+OK\r\n");
    honest.talk("PING", "+PONG\r\n");
    // Those that came first went.
    assert_eq!(idle[0].rest(), "");
    let mut last = idle.pop().expect("there are some");
    last.talk("AUTH secret", "+OK\r\n");
    late.talk("PING", "+PONG\r\n");
}

#[test]
fn places_of_those_who_gave_the_password_are_theirs() {
    let server = TestServer::with(&[PASSWORD[0], ("maxclients", "2")]);
    let mut all = [server.connect(), server.connect()];
    all.iter_mut().for_each(|wire| wire.talk("AUTH secret", "+OK\r\n"));
    assert_eq!(server.connect().rest(), "-ERR max number of clients reached\r\n");
    all.iter_mut().for_each(|wire| wire.talk("PING", "+PONG\r\n"));
}

#[test]
fn who_does_not_give_the_password_in_time_is_closed() {
    let server = TestServer::with(PASSWORD);
    let (mut idle, mut honest) = (server.connect(), server.connect());
    honest.talk("AUTH secret", "+OK\r\n");
    let begun = Instant::now();
    assert_eq!(idle.rest(), "");
    assert!((9..19).contains(&begun.elapsed().as_secs()), "after {:?}", begun.elapsed());
    honest.talk("PING", "+PONG\r\n");
    // From when it has to be given anew.
    honest.talk("RESET", "+RESET\r\n");
    honest.talk("AUTH secret", "+OK\r\n");
}

fn command_line(pid: i32) -> String {
    std::fs::read(format!("/proc/{pid}/cmdline")).map_or(String::new(), |line| String::from_utf8_lossy(&line).into())
}

#[test]
fn a_password_stands_on_no_command_line() {
    let bed = Testbed::builder().donor(Donor::shm()).kv(",password=secret,debug=true").start();
    let address = bed.kv_address.as_deref().expect("there is a KV API");
    let mut wire = Wire::tcp(address).expect("it listens");
    wire.talk("GET k", "-NOAUTH Authentication required.\r\n");
    wire.talk("AUTH secret", "+OK\r\n");
    for pid in [bed.annexd.pid(), bed.keeper()] {
        let line = command_line(pid);
        assert!(line.contains(",password=xxxxxx,debug=true") && !line.contains("secret"), "{line}");
    }
    let log = bed.annexd.log();
    assert!(log.contains("password_file=PATH") && !log.contains("secret"), "{log}");
}

#[test]
fn a_password_can_stand_in_a_file() {
    let file = annex_tests::testbed::directory().join(format!("password-{}", std::process::id()));
    std::fs::write(&file, "se,cret\n").expect("a file");
    let bed = Testbed::builder().donor(Donor::shm()).kv(&format!(",password_file={}", file.display())).start();
    let address = bed.kv_address.as_deref().expect("there is a KV API");
    let mut wire = Wire::tcp(address).expect("it listens");
    wire.talk("GET k", "-NOAUTH Authentication required.\r\n");
    wire.talk("AUTH se,cret", "+OK\r\n");
    wire.talk("GET k", "$-1\r\n");
    std::fs::remove_file(&file).expect("it was there");
}

/// 2,000 such connections made annexd hold 390 MiB, and keep them when they had gone.
#[test]
fn half_requests_without_the_password_take_little_and_leave_nothing() {
    let server = TestServer::with(PASSWORD);
    let mut honest = server.connect();
    honest.talk("AUTH secret", "+OK\r\n");
    let (before, most) = (server.memory(), server.watch_memory());
    let half = format!("*10\r\n{}$16384\r\n", format!("$16384\r\n{}\r\n", "x".repeat(16384)).repeat(8));
    let strangers: Vec<Wire> = (0..1000)
        .map(|_| {
            let wire = server.connect();
            // It may be closed before all is sent.
            _ = wire.sender().map(|mut sender| std::io::Write::write_all(&mut sender, half.as_bytes()));
            honest.talk("PING", "+PONG\r\n");
            wire
        })
        .collect();
    let most = most();
    assert!(most < before + (64 << 20), "{before} bytes before and {most} with 1000 strangers");
    drop(strangers);
    wait_for("the memory is given back", PATIENCE, || server.memory() < before + (16 << 20));
    honest.talk("PING", "+PONG\r\n");
}
