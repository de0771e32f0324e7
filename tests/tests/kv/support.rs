//! annexd with a KV API for a test.

use annex_tests::kv::wire::Wire;
use annex_tests::testbed::process::own_memory;
use annex_tests::testbed::{Donor, Testbed};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

    /// Bytes of memory that annexd has for itself: not the pool of a donor in shared memory.
    pub fn memory(&self) -> usize {
        own_memory(self.bed.annexd.pid()).expect("annexd runs") as usize
    }

    /// Watches that memory until it is asked for the most that it was.
    pub fn watch_memory(&self) -> impl FnOnce() -> usize + use<> {
        let (pid, over) = (self.bed.annexd.pid(), Arc::new(AtomicBool::new(false)));
        let watching = std::thread::spawn({
            let over = over.clone();
            move || {
                let mut most = 0;
                while !over.load(Ordering::Relaxed)
                    && let Ok(now) = own_memory(pid).map(|bytes| bytes as usize)
                {
                    most = most.max(now);
                    std::thread::sleep(Duration::from_millis(2));
                }
                most
            }
        });
        move || {
            over.store(true, Ordering::Relaxed);
            watching.join().expect("no panic")
        }
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
