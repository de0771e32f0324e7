//! annexd with a KV API for a test, and a client that sees every byte.

use annex_tests::testbed::{Donor, Testbed};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

/// No answer takes longer, however busy the host is.
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
            wire.ask(&format!("CONFIG SET {name} \"{value}\""), "+OK\r\n");
        }
        // What was counted so far is the set-up's.
        wire.ask("CONFIG RESETSTAT", "+OK\r\n");
        wire.ask("QUIT", "+OK\r\n");
        assert_eq!(wire.rest(), "");
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.bed.kv_socket()
    }

    /// As soon as the server listens.
    pub fn connect(&self) -> Wire {
        let began = std::time::Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", self.port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(began.elapsed() < PATIENCE, "the server does not listen: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Wire(stream)
    }
}

/// A connection without a client library.
pub struct Wire(pub TcpStream);

impl Wire {
    pub fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).expect("the server reads");
    }

    /// Reads exactly this.
    pub fn expect(&mut self, text: &str) {
        let mut read = vec![0; text.len()];
        let mut length = 0;
        while length < read.len() {
            match self.0.read(&mut read[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) => panic!("{error}, after {:?}", String::from_utf8_lossy(&read[..length])),
            }
        }
        assert_eq!(String::from_utf8_lossy(&read[..length]), text);
    }

    pub fn ask(&mut self, command: &str, answer: &str) {
        self.send(&format!("{command}\r\n"));
        self.expect(answer);
    }

    /// All until the server closes the connection.
    pub fn rest(&mut self) -> String {
        let mut all = Vec::new();
        // A connection that was reset is closed too.
        _ = self.0.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }

    /// One line, without its end.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            assert_eq!(
                self.0.read(&mut byte).expect("an answer"),
                1,
                "closed after {:?}",
                String::from_utf8_lossy(&line)
            );
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }
}
