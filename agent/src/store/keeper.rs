//! The keeper: a process of a few lines that holds the agent's descriptors while there is no agent.
//! For hosts without systemd.
//!
//! It listens on a Unix socket that only its own user can connect to and serves one agent at a
//! time: what it has goes to the agent that connects, then it does as it is told (`keep`,
//! `forget`). An agent that ends in order has it forget everything, and it ends too. After any
//! other end it waits for the next agent, for [`PATIENCE`]: lent memory must not stay occupied for
//! ever because nobody started the agent again.
//!
//! The agent starts it if it isn't there. It is then in a session of its own, so that what ends the
//! agent does not end it.

use super::wire::{Kind, Message};
use crate::sockets::bind_private;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What the agent starts itself again with to become a keeper.
pub const SUBCOMMAND: &str = "keeper";

/// How long what an agent left behind is held.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// How long a keeper that has nothing to hold waits for the agent that started it.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// How long an agent may take to receive what is kept for it.
const HANDOVER: Duration = Duration::from_secs(10);

/// How long the agent waits for a keeper that it has started.
const START: Duration = Duration::from_secs(5);

/// What an agent before this one left behind, by name.
pub type Found = BTreeMap<String, Vec<OwnedFd>>;

/// Connects to the keeper at `path`, starting it if nobody listens there, and takes what it has.
pub(super) fn connect(path: &Path) -> io::Result<(UnixStream, Found)> {
    let started = Instant::now();
    let mut has_spawned = false;
    let socket = loop {
        match UnixStream::connect(path) {
            Ok(socket) => break socket,
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => return Err(e),
            Err(_) if !has_spawned => {
                spawn(path)?;
                has_spawned = true;
            }
            Err(e) if started.elapsed() > START => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("it was started and does not answer ({e})"),
                ));
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    socket.set_read_timeout(Some(HANDOVER))?;
    let mut found = Found::new();
    loop {
        match Message::receive(&socket)? {
            Some((Message { kind: Kind::Kept, name }, Some(fd))) => found.entry(name).or_default().push(fd),
            Some((Message { kind: Kind::End, .. }, None)) => break,
            Some(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak the keeper's protocol"));
            }
            // It has another agent.
            None => return Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }
    Ok((socket, found))
}

fn spawn(path: &Path) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("annex-agent").arg(SUBCOMMAND).arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    // Whoever reads what the agent says is to see it end with the agent.
    command.stderr(Stdio::null());
    // It is never waited for: it ends after the agent.
    command.spawn().map(drop)
}

/// A keeper's life. Ends when it holds nothing any more, or nobody came for what it holds.
pub fn run(path: &Path) -> io::Result<()> {
    // Fails if this process leads a group already, as one that a shell or a supervisor started
    // does; then it has its own.
    let _ = nix::unistd::setsid();
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"agent-fdkeeper".as_ptr()) };
    // The agent blocked these before it started us; whoever means to end this process ends it.
    nix::sys::signal::SigSet::all().thread_unblock()?;
    let listener = bind_private(path)?;
    let outcome = serve(&listener, PATIENCE);
    // An agent that comes now starts another.
    let _ = std::fs::remove_file(path);
    outcome
}

/// Serves agents on `listener`, and holds what the last one left for `patience`.
pub fn serve(listener: &UnixListener, patience: Duration) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut kept: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
    let mut agent: Option<UnixStream> = None;
    let mut waiting_until = Instant::now() + FIRST_PATIENCE;
    loop {
        let left = match &agent {
            Some(_) => PollTimeout::NONE,
            None => PollTimeout::try_from(waiting_until.saturating_duration_since(Instant::now()))
                .unwrap_or(PollTimeout::MAX),
        };
        let (is_knocking, has_word) = {
            let mut waits = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            waits.extend(agent.as_ref().map(|a| PollFd::new(a.as_fd(), PollFlags::POLLIN)));
            match poll(&mut waits, left) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let is_ready =
                |index: usize| waits.get(index).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
            (is_ready(0), is_ready(1))
        };
        // First what the agent still has to say, its end included, then the next agent.
        if has_word && let Some(stream) = &agent {
            match Message::receive(stream) {
                Ok(Some((Message { kind: Kind::Keep, name }, Some(fd)))) => kept.entry(name).or_default().push(fd),
                Ok(Some((Message { kind: Kind::Forget, name }, None))) => drop(kept.remove(&name)),
                other => {
                    if let Err(e) = other {
                        warn!("the agent's connection failed: {e}");
                    }
                    agent = None;
                    waiting_until = Instant::now() + patience;
                    if kept.is_empty() {
                        return Ok(());
                    }
                    info!("the agent is gone; keeping {} descriptors for the next one", kept.len());
                }
            }
            continue;
        }
        if is_knocking && let Ok((stream, _)) = listener.accept() {
            // One that comes while another is here is hung up on.
            if agent.is_none() {
                match hand_over(&stream, &kept) {
                    Ok(()) => agent = Some(stream),
                    Err(e) => warn!("failed to hand over what is kept: {e}"),
                }
            }
        }
        if agent.is_none() && Instant::now() >= waiting_until {
            if !kept.is_empty() {
                warn!("no agent came for {} s: letting go of the memory it lent", patience.as_secs());
            }
            return Ok(());
        }
    }
}

fn hand_over(stream: &UnixStream, kept: &BTreeMap<String, Vec<OwnedFd>>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(HANDOVER))?;
    for (name, fds) in kept {
        for fd in fds {
            Message { kind: Kind::Kept, name: name.clone() }.send(stream, Some(fd.as_fd()))?;
        }
    }
    Message { kind: Kind::End, name: String::new() }.send(stream, None)
}

#[cfg(test)]
mod tests {
    use super::super::{Store, inode};
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn memory() -> OwnedFd {
        memfd_create(c"kept", MFdFlags::MFD_CLOEXEC).unwrap()
    }

    fn keeper(patience: Duration) -> (tempfile::TempDir, std::path::PathBuf, thread::JoinHandle<io::Result<()>>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let listener = bind_private(&path).unwrap();
        let served = thread::spawn(move || serve(&listener, patience));
        (dir, path, served)
    }

    #[test]
    fn what_one_agent_left_the_next_one_finds() {
        let (_dir, path, served) = keeper(Duration::from_secs(60));
        let (first, found) = Store::open(Some(&path)).unwrap();
        assert!(found.is_empty());
        let (a, b) = (memory(), memory());
        assert!(first.keep("s1", a.as_fd()));
        assert!(first.keep("s2", b.as_fd()));
        first.forget("s1");
        drop(first);
        let (second, found) = loop {
            match Store::open(Some(&path)) {
                Ok(opened) => break opened,
                Err(_) => thread::yield_now(),
            }
        };
        assert_eq!(found.keys().collect::<Vec<_>>(), ["s2"]);
        assert_eq!(inode(found["s2"][0].as_fd()).unwrap(), inode(b.as_fd()).unwrap());
        second.forget("s2");
        drop(second);
        served.join().unwrap().unwrap();
    }

    #[test]
    fn a_second_agent_is_refused_while_the_first_is_there() {
        let (_dir, path, served) = keeper(Duration::from_secs(60));
        let (first, _) = Store::open(Some(&path)).unwrap();
        let refused = Store::open(Some(&path)).err().unwrap().to_string();
        assert!(refused.contains("another agent uses it"), "{refused}");
        drop(first);
        served.join().unwrap().unwrap();
    }

    #[test]
    fn what_nobody_comes_for_is_let_go() {
        let (_dir, path, served) = keeper(Duration::from_millis(50));
        let (first, _) = Store::open(Some(&path)).unwrap();
        let kept = memory();
        assert!(first.keep("s1", kept.as_fd()));
        drop(first);
        served.join().unwrap().unwrap();
    }
}
