//! Clients that come from another host: a network namespace at the end of a wire.

use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed, port};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

struct Far {
    bed: Testbed,
    /// This host's end of the wire.
    here: String,
    port: u16,
}

impl Far {
    /// annexd whose KV API listens on all of this host's addresses, and so on the wire too.
    fn start(options: &str) -> Far {
        let port = port::free().port();
        let bed = Testbed::builder()
            .donor(Donor::tcp().wired())
            .donor(Donor::shm())
            .kv("")
            .daemon_arg("--kv")
            .daemon_arg(format!("0.0.0.0:{port}{options}"))
            .start();
        let here = bed.places[0].wire.as_ref().expect("the donor is wired").here();
        connect(&here, port);
        Far { bed, here, port }
    }

    /// What redis-cli says at the other end of the wire.
    fn cli(&self, words: &[&str]) -> String {
        let wire = self.bed.places[0].wire.as_ref().expect("the donor is wired");
        let mut cli = wire.inside("redis-cli");
        cli.args(["-h", &self.here, "-p", &self.port.to_string()]).args(words);
        let output = cli.output().expect("redis-cli is installed");
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    }

    fn near(&self) -> Wire {
        Wire::tcp(self.bed.kv_address.as_deref().expect("there is a KV API")).expect("it listens on loopback too")
    }
}

/// As soon as somebody listens there.
fn connect(host: &str, port: u16) -> Wire {
    let began = Instant::now();
    loop {
        match Wire::tcp(&format!("{host}:{port}")) {
            Ok(wire) => return wire,
            Err(error) => assert!(began.elapsed() < PATIENCE, "nobody listens on {host}:{port}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_a_password_who_comes_from_elsewhere_is_denied_in_redis_words() {
    let far = Far::start("");
    let port = port::free().port();
    let mut redis = Command::new("redis-server");
    redis.args(["--port", &port.to_string(), "--save", "", "--dir"]).arg(far.bed.path()).stdout(Stdio::null());
    let mut redis = redis.spawn().expect("redis-server must be installed for this test");
    let theirs = connect(&far.here, port).rest();
    redis.kill().and_then(|()| redis.wait()).expect("it was running");

    // Also who is here, but does not come by loopback.
    assert_eq!(connect(&far.here, far.port).rest(), theirs);
    assert!(theirs.starts_with("-DENIED Redis is running in protected mode"), "{theirs}");
    let said = far.cli(&["SET", "k", "v"]);
    assert!(said.contains("DENIED"), "{said}");
    let mut near = far.near();
    near.talk("GET k", "$-1\r\n");

    near.talk("CONFIG SET protected-mode no", "+OK\r\n");
    assert_eq!(far.cli(&["SET", "k", "v"]), "OK\n");
    near.talk("GET k", "$1\r\nv\r\n");
}

#[test]
fn with_a_password_who_comes_from_elsewhere_is_served_and_asked_for_it() {
    let far = Far::start(",password=secret");
    let said = far.cli(&["GET", "k"]);
    assert!(said.contains("NOAUTH"), "{said}");
    assert_eq!(far.cli(&["--no-auth-warning", "-a", "secret", "SET", "k", "v"]), "OK\n");
    assert_eq!(far.cli(&["--no-auth-warning", "-a", "secret", "GET", "k"]), "v\n");
}
