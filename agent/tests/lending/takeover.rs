//! The program, killed and started again: with a keeper, and with a service manager's descriptor
//! store.

use crate::client::{ANNA, Client, Data, SLAB, wait_until};
use crate::program::{Running, program};
use annex_fabric::ErrorKind;
use annex_shared::ids::Rkey;
use nix::cmsg_space;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sockopt};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Small slabs, and a Unix socket for shm in `dir`.
pub fn flags(dir: &Path, slabs: u64) -> Vec<String> {
    let shm = dir.join("agent.sock");
    let flags = ["--slab-size", "1M", "--headroom", "0", "--capacity", &format!("{slabs}M"), "--shm-socket"];
    flags.into_iter().map(str::to_owned).chain([shm.to_str().unwrap().to_owned()]).collect()
}

/// An agent with a keeper in `dir`.
pub fn kept(dir: &Path, slabs: u64) -> Command {
    let mut command = program();
    command.args(flags(dir, slabs)).arg("--keeper").arg(dir.join("keeper.sock"));
    command
}

/// The keeper in `dir`, which the agent started and nobody waits for; ended when dropped.
pub struct KeptIn<'a>(pub &'a Path);

impl KeptIn<'_> {
    pub fn pid(&self) -> Option<Pid> {
        let socket = UnixStream::connect(self.0.join("keeper.sock")).ok()?;
        Some(Pid::from_raw(getsockopt(&socket, sockopt::PeerCredentials).ok()?.pid()))
    }
}

impl Drop for KeptIn<'_> {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

#[track_caller]
fn is_all(data: &mut Data, rkey: Rkey, byte: u8) {
    assert!(data.read(rkey).unwrap() == vec![byte; SLAB as usize], "not {byte:#x} all over");
}

/// Lends to ANNA, ends the agent, starts another, and looks.
fn goes_on(mut start: impl FnMut() -> Running, end: impl FnOnce(Running)) {
    let agent = start();
    let (mut anna, before) = Client::greet(agent.addr, ANNA);
    let leased = anna.lease(2);
    Data::tcp(agent.addr, ANNA, &before).write(leased[0].rkey, 0x11).unwrap();
    let (mut near, _connector) = Data::shm(ANNA, &before, leased[1].rkey);
    near.write(leased[1].rkey, 0x22).unwrap();
    end(agent);
    let agent = start();
    let (mut anna, after) = Client::greet(agent.addr, ANNA);
    assert_eq!(after.resumed, Some(before.incarnation));
    let mut data = Data::tcp(agent.addr, ANNA, &after);
    is_all(&mut data, after.held[0].rkey, 0x11);
    is_all(&mut data, after.held[1].rkey, 0x22);
    assert_eq!(data.read(leased[0].rkey), Err(ErrorKind::RemoteAccess));
    assert_eq!(anna.renew(), leased.iter().map(|l| l.slab).collect::<Vec<_>>());
    anna.give_back(leased.iter().map(|l| l.slab).collect());
    let (mut bert, welcome) = Client::greet(agent.addr, crate::client::BERT);
    let next = bert.lease(2);
    assert_eq!(next.len(), 2);
    let mut data = Data::tcp(agent.addr, crate::client::BERT, &welcome);
    next.iter().for_each(|lease| is_all(&mut data, lease.rkey, 0));
}

#[test]
fn with_a_keeper_a_killed_agent_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let _keeper = KeptIn(dir.path());
    goes_on(|| Running::of(&mut kept(dir.path(), 4)), Running::kill);
}

#[test]
fn sigusr2_ends_it_for_the_next_one_without_a_word_to_the_clients() {
    let dir = tempfile::tempdir().unwrap();
    let _keeper = KeptIn(dir.path());
    let end = |mut agent: Running| {
        kill(agent.pid(), Signal::SIGUSR2).unwrap();
        assert_eq!(agent.child.wait().unwrap().code(), Some(0));
    };
    goes_on(|| Running::of(&mut kept(dir.path(), 4)), end);
}

#[test]
fn a_keeper_ends_with_an_agent_that_stops_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = KeptIn(dir.path());
    let mut agent = Running::of(kept(dir.path(), 4).args(["--grace", "100ms"]));
    let (mut anna, _) = Client::greet(agent.addr, ANNA);
    anna.lease(1);
    kill(agent.pid(), Signal::SIGTERM).unwrap();
    agent.child.wait().unwrap();
    wait_until("the keeper to end", || !dir.path().join("keeper.sock").exists());
    assert_eq!(keeper.pid(), None);
}

/// The part of a service manager that keeps descriptors, as `sd_notify(3)` and `sd_listen_fds(3)`
/// describe it.
struct Manager {
    socket: std::path::PathBuf,
    kept: Arc<Mutex<BTreeMap<String, Vec<OwnedFd>>>>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Manager {
    fn start(dir: &Path) -> Manager {
        let socket = dir.join("notify.sock");
        let listener = UnixDatagram::bind(&socket).unwrap();
        let manager = Manager { socket, kept: Arc::default(), said: Arc::default() };
        let (kept, said) = (manager.kept.clone(), manager.said.clone());
        std::thread::spawn(move || {
            loop {
                let (text, fds) = receive(&listener);
                let name = text.lines().find_map(|l| l.strip_prefix("FDNAME=")).map(str::to_owned);
                let mut kept = kept.lock().unwrap();
                match name {
                    Some(name) if text.contains("FDSTORE=1") => kept.entry(name).or_default().extend(fds),
                    Some(name) if text.contains("FDSTOREREMOVE=1") => drop(kept.remove(&name)),
                    _ => said.lock().unwrap().push(text),
                }
            }
        });
        manager
    }

    /// Starts an agent and passes it what is kept, from descriptor 3 on.
    fn agent(&self, dir: &Path) -> Running {
        let kept = self.kept.lock().unwrap();
        let fds = kept.iter().flat_map(|(name, fds)| fds.iter().map(move |fd| (name.clone(), fd)));
        // High numbers first, so that none is in another's place.
        let fds: Vec<(String, OwnedFd)> = fds
            .map(|(name, fd)| {
                let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(500)).unwrap();
                // SAFETY: just made, ours alone.
                (name, unsafe { OwnedFd::from_raw_fd(copy) })
            })
            .collect();
        let names: Vec<&str> = fds.iter().map(|(name, _)| &name[..]).collect();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "export LISTEN_PID=$$; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_annex-agent")]);
        command.env("NOTIFY_SOCKET", &self.socket).args(flags(dir, 4));
        if !fds.is_empty() {
            command.env("LISTEN_FDS", fds.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        let raw: Vec<RawFd> = fds.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
        // SAFETY: dup2 is async-signal-safe, and nothing else is done between fork and exec.
        unsafe {
            command.pre_exec(move || {
                for (index, fd) in raw.iter().enumerate() {
                    if libc::dup2(*fd, 3 + index as RawFd) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        Running::of(&mut command)
    }
}

fn receive(socket: &UnixDatagram) -> (String, Vec<OwnedFd>) {
    let mut bytes = [0; 4096];
    let mut space = cmsg_space!([RawFd; 4]);
    let mut fds = Vec::new();
    let len = {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let message =
            recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC).unwrap();
        for control in message.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(received) = control {
                // SAFETY: the kernel has just put these into our table for us to own.
                fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        message.bytes
    };
    (String::from_utf8(bytes[..len].to_vec()).unwrap(), fds)
}

#[test]
fn under_a_service_manager_a_killed_agent_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start(dir.path());
    goes_on(
        || manager.agent(dir.path()),
        |agent| {
            agent.kill();
            wait_until("its last messages", || manager.kept.lock().unwrap().contains_key("leases"));
        },
    );
    assert!(manager.said.lock().unwrap().iter().any(|text| text.contains("READY=1")));
}

#[test]
fn a_service_manager_that_asks_hears_that_the_agent_lives_and_what_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start(dir.path());
    let mut command = program();
    command.args(flags(dir.path(), 4)).env("NOTIFY_SOCKET", &manager.socket).env("WATCHDOG_USEC", "300000");
    let agent = Running::of(&mut command);
    let has_said = |what: &str| manager.said.lock().unwrap().iter().any(|text| text.contains(what));
    wait_until("a sign of life", || has_said("WATCHDOG=1"));
    assert!(has_said("STATUS=0 of 4 slabs lent to 0 clients on 127.0.0.1:"));
    let (mut anna, _) = Client::greet(agent.addr, ANNA);
    anna.lease(2);
    wait_until("its status", || has_said("STATUS=2 of 4 slabs lent to 1 clients on 127.0.0.1:"));
    agent.stop();
    // What it had said before it stood is read.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let signs = || manager.said.lock().unwrap().iter().filter(|text| text.contains("WATCHDOG=1")).count();
    let before = signs();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(signs(), before);
    agent.go_on();
}
