//! The configuration read again: what a running agent takes of it, and what it leaves alone.

use crate::client::{ANNA, BERT, Client, Data, PATIENCE, SLAB, agent, config, ttl, wait_until};
use crate::program::program;
use annex_agent::Config;
use annex_shared::config::ByteSize;
use annex_shared::ids::SlabId;
use annex_shared::wire::{Event, Refusal, Request};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

fn slabs(count: u64) -> Option<ByteSize> {
    Some(ByteSize(count * SLAB))
}

#[test]
fn a_lowered_capacity_touches_no_lease_and_a_raised_one_is_lent_at_once() {
    let (agent, dir) = agent(4, |_| {});
    let config = |count| Config { capacity: slabs(count), ..config(dir.path(), 4) };
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(3);
    let mut data = Data::tcp(agent.addr(), ANNA, &welcome);
    data.write(leased[2].rkey, 0x33).unwrap();

    let taken = agent.reload(config(1)).unwrap().taken;
    assert_eq!(taken, ["capacity from 4 MiB to 1 MiB", "per_client from 4 MiB to 1 MiB"]);
    assert_eq!(anna.renew().len(), 3);
    assert_eq!(data.read(leased[2].rkey).unwrap()[0], 0x33, "the same key, the same bytes");
    let (mut bert, _) = Client::greet(agent.addr(), BERT);
    assert_eq!(bert.refused(&Request::Lease { count: 1 }), Refusal::Full { capacity: 1 });

    agent.reload(config(6)).unwrap();
    assert_eq!(bert.lease(9).len(), 3);
    assert!(matches!(bert.ask(&Request::Renew), Event::Renewed { capacity_slabs: 6, .. }));
    assert_eq!(data.read(leased[2].rkey).unwrap()[0], 0x33);
}

#[test]
fn the_limit_per_client_and_the_headroom_are_taken() {
    let (agent, dir) = agent(4, |_| {});
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    agent.reload(Config { per_client: slabs(2), ..config(dir.path(), 4) }).unwrap();
    assert_eq!(anna.lease(4).len(), 2);
    assert_eq!(anna.refused(&Request::Lease { count: 1 }), Refusal::ClientLimit { limit: 2 });
    // More than there is: what is lent is wanted back, until then.
    let all = Config { headroom: Some(ByteSize(1 << 50)), recall_deadline: ttl(3_600_000), ..config(dir.path(), 4) };
    agent.reload(all).unwrap();
    match anna.next().unwrap() {
        Event::Recall { slabs, deadline_ms } => {
            assert_eq!(slabs.len(), 2);
            assert!(deadline_ms > 3_500_000, "{deadline_ms}");
        }
        other => panic!("expected a recall, got {other:?}"),
    }
}

#[test]
fn what_needs_a_restart_is_named_and_not_taken() {
    let (agent, dir) = agent(4, |_| {});
    let mut other = config(dir.path(), 4);
    other.listen = "127.0.0.2:0".parse().unwrap();
    other.name = Some("another".into());
    other.slab_size = ByteSize(2 * SLAB);
    other.lease_ttl = ttl(1000);
    other.labels.insert("rack".into(), "r8".into());
    other.verbs.enabled = false;
    other.shm_socket = PathBuf::from("/nowhere/agent.sock");
    let reloaded = agent.reload(other).unwrap();
    let waiting = ["listen", "name", "slab_size", "lease_ttl", "shm_socket", "control_socket", "[labels]", "[verbs]"];
    assert_eq!(reloaded.waiting, waiting);
    assert_eq!(reloaded.taken, Vec::<String>::new());
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    assert_eq!((welcome.name.as_str(), welcome.slab_size, welcome.lease_ttl_ms), ("test donor", SLAB, 120_000));
    assert_eq!(anna.lease(4).len(), 4);
}

/// All of it is allocated at the start.
#[test]
fn a_prefaulted_capacity_needs_a_restart() {
    let (agent, dir) = agent(2, |c| c.prefault = true);
    let reloaded = agent.reload(Config { prefault: true, ..config(dir.path(), 4) }).unwrap();
    assert_eq!((reloaded.waiting, reloaded.taken), (vec!["capacity"], vec![]));
}

/// The program with a configuration file, and what it says.
struct Program {
    child: Child,
    file: PathBuf,
    addr: SocketAddr,
    said: Receiver<String>,
    _dir: tempfile::TempDir,
}

impl Program {
    fn start(text: &str, notify: Option<&UnixDatagram>) -> Program {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent.toml");
        std::fs::write(&file, Program::whole(text)).unwrap();
        let mut command = program();
        command.arg("--config").arg(&file).stderr(Stdio::piped());
        if let Some(notify) = notify {
            command.env("NOTIFY_SOCKET", notify.local_addr().unwrap().as_pathname().unwrap());
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tx, said) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tx.send(line)));
        let nowhere = "127.0.0.1:0".parse().unwrap();
        let mut program = Program { child, file, addr: nowhere, said, _dir: dir };
        let line = program.says(" lends up to ");
        program.addr = line.split(" on ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        program
    }

    fn whole(text: &str) -> String {
        format!("listen = '127.0.0.1:0'\nslab_size = '1M'\nheadroom = 0\nshm_socket = ''\ncontrol_socket = ''\n{text}")
    }

    fn reload(&self, text: &str) {
        std::fs::write(&self.file, Program::whole(text)).unwrap();
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGHUP).unwrap();
    }

    /// Waits for a line with this in it.
    fn says(&self, part: &str) -> String {
        loop {
            let line = self.said.recv_timeout(Duration::from_secs(60));
            let line = line.unwrap_or_else(|e| panic!("it does not say '{part}': {e}"));
            if line.contains(part) {
                return line;
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sighup_reads_the_file_again_and_says_what_changed() {
    let agent = Program::start("capacity = '4M'\n", None);
    let (mut anna, _) = Client::greet(agent.addr, ANNA);
    let held: Vec<SlabId> = anna.lease(2).iter().map(|lease| lease.slab).collect();
    agent.reload("capacity = '8M'\nper_client = '3M'\nname = 'other'\n");
    let line = agent.says("configuration reloaded");
    assert!(line.ends_with("capacity from 4 MiB to 8 MiB, per_client from 4 MiB to 3 MiB"), "{line}");
    agent.says("name has changed: restart annex-agent for it");
    assert_eq!(anna.renew(), held);
    assert_eq!(anna.lease(9).len(), 1);
}

#[test]
fn a_broken_file_is_refused_whole_and_the_agent_goes_on() {
    let agent = Program::start("capacity = '4M'\n", None);
    let (mut anna, _) = Client::greet(agent.addr, ANNA);
    let held: Vec<SlabId> = anna.lease(2).iter().map(|lease| lease.slab).collect();
    for (text, why) in [
        ("capacity = '1M'\nper_cleint = '1M'\n", "unknown key 'per_cleint'; did you mean 'per_client'?"),
        ("capacity = '1M'\nlog = 'loud'\n", "there is no log level 'loud'"),
        ("capacity = '1M'\nmax_connections = 0\n", "max_connections is 0"),
    ] {
        agent.reload(text);
        let line = agent.says("the configuration is refused, and the one before goes on");
        assert!(line.contains(why), "{line}");
    }
    assert_eq!(anna.renew(), held);
    assert_eq!(anna.lease(9).len(), 2, "nothing of it was taken");
}

#[test]
fn a_flag_goes_over_the_file_that_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    std::fs::write(&file, "capacity = '2M'\n").unwrap();
    let flags = annex_agent::flags::Settings { config: Some(file.clone()), capacity: slabs(4), ..flags() };
    assert_eq!(flags.clone().over_file().unwrap().capacity, slabs(4));
    std::fs::write(&file, "capacity = '3M'\nper_client = '1M'\n").unwrap();
    let again = flags.over_file().unwrap();
    assert_eq!((again.capacity, again.per_client), (slabs(4), slabs(1)));
}

fn flags() -> annex_agent::flags::Settings {
    use clap::Parser;
    annex_agent::flags::Flags::parse_from(["annex-agent"]).set
}

#[test]
fn the_log_level_is_taken() {
    let agent = Program::start("capacity = '4M'\n", None);
    agent.reload("capacity = '4M'\nlog = 'debug'\n");
    agent.says("configuration reloaded: log from info to debug");
    let mut seen = String::new();
    // The level is taken right after that line is said.
    wait_until("a line of level DEBUG", || {
        let (mut anna, _) = Client::greet(agent.addr, ANNA);
        let held = anna.lease(1).iter().map(|lease| lease.slab).collect();
        anna.give_back(held);
        seen.extend(agent.said.try_iter().map(|line| line + "\n"));
        seen.contains(" DEBUG ")
    });
}

/// systemd waits with what follows a reload until it is over.
#[test]
fn systemd_is_told_when_a_reload_begins_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut message = [0; 4096];
        let len = notify.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    };
    let told_of = |what: &str| {
        loop {
            let message = told();
            if message.lines().any(|line| line == what) {
                return message;
            }
        }
    };
    let agent = Program::start("capacity = '4M'\n", Some(&notify));
    told_of("READY=1");
    for text in ["capacity = '2M'\n", "capacity = 'lots'\n"] {
        agent.reload(text);
        assert!(told_of("RELOADING=1").contains("\nMONOTONIC_USEC="));
        assert!(told_of("READY=1").contains("STATUS=0 of 2 slabs"));
    }
}
