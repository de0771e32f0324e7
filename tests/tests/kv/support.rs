//! annexd with a KV API for a test.

use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// annexd listens by then, however busy the host is.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct TestServer {
    pub port: u16,
    pub bed: Testbed,
}

impl TestServer {
    pub fn start() -> TestServer {
        TestServer::with(&[])
    }

    /// With CONFIG's parameters set to these.
    pub fn with(options: &[(&str, &str)]) -> TestServer {
        let bed = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).kv(",debug=true").start();
        let address = bed.kv_address.as_deref().expect("there is a KV API");
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let server = TestServer { port, bed };
        let mut wire = server.connect();
        for (name, value) in options {
            wire.talk(&format!("CONFIG SET {name} \"{value}\""), "+OK\r\n");
        }
        // What was counted so far is the set-up's.
        wire.talk("CONFIG RESETSTAT", "+OK\r\n");
        wire.talk("QUIT", "+OK\r\n");
        assert_eq!(wire.rest(), "");
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.bed.kv_socket()
    }

    /// Bytes of memory that annexd takes.
    pub fn rss(&self) -> usize {
        self.status("VmRSS:")
    }

    /// The most that it took since [`TestServer::forget_peak`].
    pub fn peak(&self) -> usize {
        self.status("VmHWM:")
    }

    pub fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.bed.annexd.pid()), "5").expect("annexd is ours");
    }

    fn status(&self, field: &str) -> usize {
        let path = format!("/proc/{}/status", self.bed.annexd.pid());
        let status = std::fs::read_to_string(path).expect("annexd runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the kernel tells");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    }

    /// As soon as the server listens.
    pub fn connect(&self) -> Wire {
        let (address, began) = (format!("127.0.0.1:{}", self.port), Instant::now());
        loop {
            match Wire::tcp(&address) {
                Ok(wire) => return wire,
                Err(error) => assert!(began.elapsed() < PATIENCE, "the server does not listen: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
