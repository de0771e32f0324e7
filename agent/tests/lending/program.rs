//! The program itself: what it prints, how it exits, what it locks.

use crate::client::{ANNA, Client, wait_until};
use annex_shared::wire::Event;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annex-agent"));
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end, which must be a failure; its last words.
fn fails(args: &[&str]) -> String {
    let Output { status, stderr, .. } =
        program().args(["--shm-socket", "", "--control-socket", ""]).args(args).output().unwrap();
    assert_eq!(status.code(), Some(1));
    let text = String::from_utf8(stderr).unwrap();
    text.lines().last().unwrap().strip_prefix("annex-agent: ").unwrap().to_owned()
}

/// A running agent, killed when dropped.
pub struct Running {
    pub child: Child,
    pub addr: SocketAddr,
}

impl Running {
    pub fn start(args: &[&str]) -> Running {
        Running::of(program().args(["--shm-socket", "", "--control-socket", ""]).args(args))
    }

    pub fn of(command: &mut Command) -> Running {
        Running::started(command).unwrap_or_else(|said| panic!("it did not start: {said:#?}"))
    }

    /// `None` if it ended before it was ready.
    pub fn try_of(command: &mut Command) -> Option<Running> {
        Running::started(command).ok()
    }

    /// Or what it said instead.
    fn started(command: &mut Command) -> Result<Running, Vec<String>> {
        let mut child = command.args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        let line =
            log.by_ref().map(Result::unwrap).inspect(|l| said.push(l.clone())).find(|l| l.contains(" lends up to "));
        let Some(line) = line else {
            child.wait().unwrap();
            return Err(said);
        };
        let addr = line.split(" on ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        std::thread::spawn(move || log.for_each(drop));
        Ok(Running { child, addr })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Stops it, and waits until it stands: a signal is on its way when `kill` returns, and other
    /// threads run on until one has taken it.
    pub fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let tasks = format!("/proc/{}/task", self.pid());
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        wait_until("every thread to stand", || std::fs::read_dir(&tasks).unwrap().all(stands));
    }

    pub fn go_on(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
    }

    pub fn kill(mut self) {
        kill(self.pid(), Signal::SIGKILL).unwrap();
        self.child.wait().unwrap();
    }

    /// Locked memory of all slabs.
    fn locked_kb(&self) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps", self.pid())).unwrap();
        let mut is_slab = false;
        let mut locked = 0;
        for line in maps.lines() {
            match line.strip_prefix("Locked:") {
                Some(kb) if is_slab => locked += kb.trim().trim_end_matches(" kB").parse::<u64>().unwrap(),
                Some(_) => {}
                // A mapping's first line ends with its file's name, and a field's name with a
                // colon.
                None if !line.split(' ').next().unwrap().ends_with(':') => is_slab = line.contains("/memfd:annex-slab"),
                None => {}
            }
        }
        locked
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_bad_configuration_is_refused_with_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    let path = file.to_str().unwrap();
    let complaint = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let said = fails(&["--config", path]);
        assert_eq!(fails(&["check-config", path]), said);
        said.replace(path, "FILE")
    };
    assert_eq!(complaint("capasity = '4G'\n"), "FILE:1: unknown key 'capasity'; did you mean 'capacity'?");
    assert_eq!(complaint("\ncapacity = 'lots'\n"), "FILE:2: bad size 'lots': give bytes with a unit, like 64M or 2G");
    assert!(complaint("capacity = '1000T'\n").starts_with("capacity 1000 TiB is more than this machine's memory"));
    assert!(complaint("listen = '0.0.0.0:7411'\n").contains("set insecure = true if the network is trusted"));
}

#[test]
fn an_address_in_use_is_said_to_be() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    assert_eq!(
        fails(&["--listen", &addr.to_string()]),
        format!(
            "failed to listen on {addr}: Address already in use (os error 98): another annex-agent may be running; \
             choose another address with listen"
        )
    );
}

#[test]
fn what_is_lent_is_locked_in_memory() {
    const SLAB_KB: u64 = 8 << 10;
    let agent = Running::start(&["--capacity", "64M", "--slab-size", "8M", "--headroom", "0", "--spare-slabs", "0"]);
    let (mut anna, _) = Client::greet(agent.addr, ANNA);
    let slabs: Vec<_> = anna.lease(1).iter().map(|l| l.slab).collect();
    let one = agent.locked_kb();
    let more: Vec<_> = anna.lease(4).iter().map(|l| l.slab).collect();
    assert_eq!(more.len(), 4);
    let five = agent.locked_kb();
    assert_eq!((one, five), (SLAB_KB, 5 * SLAB_KB));
    anna.give_back([slabs, more].concat());
    wait_until("the host to have its memory back", || agent.locked_kb() == 0);
}

#[test]
fn sigterm_tells_the_clients_and_exits_with_success() {
    let mut agent = Running::start(&["--capacity", "8M", "--slab-size", "1M", "--headroom", "0", "--grace", "300ms"]);
    let (mut anna, _) = Client::greet(agent.addr, ANNA);
    anna.lease(1);
    kill(agent.pid(), Signal::SIGTERM).unwrap();
    assert!(matches!(anna.next().unwrap(), Event::Closing { grace_ms: 300 }));
    assert_eq!(agent.child.wait().unwrap().code(), Some(0));
}

/// It starts on machines without RDMA: libibverbs is loaded when it is needed, not by the dynamic
/// linker.
#[test]
fn the_program_is_not_linked_with_an_rdma_library() {
    let asked = Command::new("readelf").args(["-d", env!("CARGO_BIN_EXE_annex-agent")]).output().unwrap();
    let needed = String::from_utf8(asked.stdout).unwrap();
    assert!(needed.contains("Shared library: [libc.so.6]"), "{needed}");
    assert!(!needed.contains("ibverbs") && !needed.contains("rdmacm"), "{needed}");
}
