//! The program itself: what it prints, how it exits, what it locks.

use crate::client::{ANNA, Client, wait_until};
use annex_shared::wire::Event;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annex-agent"));
    command.args(["--shm-socket", ""]).stdin(Stdio::null());
    command
}

/// Runs it to its end, which must be a failure; its last words.
fn fails(args: &[&str]) -> String {
    let Output { status, stderr, .. } = program().args(args).output().unwrap();
    assert_eq!(status.code(), Some(1));
    let text = String::from_utf8(stderr).unwrap();
    text.lines().last().unwrap().strip_prefix("annex-agent: ").unwrap().to_owned()
}

/// A running agent, killed when dropped.
struct Running {
    child: Child,
    addr: SocketAddr,
}

impl Running {
    fn start(args: &[&str]) -> Running {
        let mut child = program().args(args).args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = log.find(|l| l.as_ref().unwrap().contains(" lends up to ")).unwrap().unwrap();
        let addr = line.split(" on ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        std::thread::spawn(move || log.for_each(drop));
        Running { child, addr }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn locked_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
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
    // Its threads' stacks and heaps are locked too.
    let five = agent.locked_kb();
    assert!((4 * SLAB_KB..5 * SLAB_KB).contains(&(five - one)), "{one} kB, then {five} kB");
    anna.give_back([slabs, more].concat());
    wait_until("the host to have its memory back", || agent.locked_kb() + 4 * SLAB_KB < five);
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
