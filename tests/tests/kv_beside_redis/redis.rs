//! A real Redis, in a process of its own.

use super::Step;
use annex_tests::kv::wire::Wire;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

pub struct Redis {
    process: Child,
    directory: std::path::PathBuf,
    wire: Wire,
}

impl Redis {
    /// `None`: it is no Redis 7.0.
    pub fn start(name: &str, resp3: bool) -> Option<Redis> {
        let directory = std::env::temp_dir().join(format!("beside-redis-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for redis-server");
        let socket = directory.join("socket");
        let process = Process::new("redis-server")
            .args(["--port", "0", "--save", "", "--databases", "16", "--dir"])
            .arg(&directory)
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed for this test");
        let deadline = Instant::now() + Duration::from_secs(20);
        let wire = loop {
            match Wire::unix(&socket) {
                Ok(wire) => break wire,
                Err(error) => assert!(Instant::now() < deadline, "redis-server does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut redis = Redis { process, directory, wire };
        let info = redis.ask(&[b"INFO".to_vec(), b"server".to_vec()]);
        let is_7_0 = String::from_utf8_lossy(&info).contains("redis_version:7.0");
        if !is_7_0 {
            assert!(std::env::var_os("ANNEX_SKIP_NOTHING").is_none(), "redis-server is another version than 7.0");
            eprintln!("SKIPPED: redis-server is another version than 7.0, whose replies ours are");
            return None;
        }
        if resp3 {
            redis.ask(&[b"HELLO".to_vec(), b"3".to_vec()]);
        }
        Some(redis)
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.directory.join("socket")
    }

    /// Two more connections.
    pub fn wires(&self) -> [Wire; 2] {
        [(); 2].map(|()| Wire::unix(&self.socket()).expect("redis-server listens"))
    }

    pub fn ask(&mut self, request: &[Vec<u8>]) -> Vec<u8> {
        self.wire.ask(request).expect("redis-server answers")
    }

    /// The replies to these commands on empty databases.
    pub fn run(&mut self, steps: &[Step]) -> Vec<Vec<u8>> {
        run(&mut self.wire, steps)
    }
}

/// Empties all databases and sends each command to its own. The replies to these.
pub fn run(wire: &mut Wire, steps: &[Step]) -> Vec<Vec<u8>> {
    let words = |text: String| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let mut commands = vec![words("FLUSHALL".into())];
    for (db, command) in steps {
        commands.push(words(format!("SELECT {db}")));
        commands.push(command.clone());
    }
    let replies = wire.ask_all(&commands).expect("an answer to each command");
    replies.into_iter().skip(2).step_by(2).collect()
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
