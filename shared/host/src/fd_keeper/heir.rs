//! How a starting annexd comes by what the one before has left.
//!
//! Keepers are found by their sockets. One whose annexd lives says so and is left alone. Of the
//! others the one with the highest generation counts; those before it have handed over already and
//! are told to go. Descriptors are fetched by `pidfd_getfd`, so until [`Inheritance::settle`] the
//! keeper goes on holding all of them, and the next annexd would find the same.

use super::index::Index;
use super::process::{BUSY, DONE, MINE, TAKE, read_pid};
use super::{Kept, store};
use crate::pidfd::{pidfd_getfd, pidfd_open};
use crate::rights;
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a keeper may take to answer: it does nothing else.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was left can't be had.
#[derive(Debug, thiserror::Error)]
pub enum HeirError {
    #[error("failed to take over from the keeper at {path}: {source}")]
    Keeper { path: PathBuf, source: io::Error },
    #[error("the keeper at {0} is of another version of annexd: start the version it belongs to")]
    Version(PathBuf),
}

/// What the annexd before has left.
pub struct Inheritance {
    fds: HashMap<Kept, OwnedFd>,
    keeper: Option<(UnixStream, OwnedFd)>,
    generation: u64,
}

struct Found {
    stream: UnixStream,
    pidfd: OwnedFd,
    index: Index,
}

/// Looks for what an annexd with this control socket has left. `None`: there is nothing.
pub fn find(socket: &Path) -> Result<Option<Inheritance>, HeirError> {
    let stored = store::take();
    let mut keepers: Vec<Found> = Vec::new();
    for path in sockets(socket) {
        let failed = |source| HeirError::Keeper { path: path.clone(), source };
        match ask(&path) {
            Ok(Answer::Index(found)) if found.index.is_complete() => keepers.push(found),
            Ok(Answer::Index(_) | Answer::Busy) => {}
            Ok(Answer::Unknown) => return Err(HeirError::Version(path)),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => drop(std::fs::remove_file(&path)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
    }
    keepers.sort_by_key(|found| found.index.generation());
    let Some(last) = keepers.pop() else {
        let generation = 1;
        let fds: HashMap<_, _> = stored.into_iter().collect();
        return Ok((!fds.is_empty()).then_some(Inheritance { fds, keeper: None, generation }));
    };
    for mut before in keepers {
        let _ = before.stream.write_all(&[DONE]);
    }
    let mut fds = HashMap::new();
    for (kept, number) in last.index.entries() {
        // A descriptor that is named and not there was being entered or dropped when its annexd
        // ended.
        if let Ok(fd) = pidfd_getfd(&last.pidfd, number) {
            fds.insert(kept, fd);
        }
    }
    let generation = last.index.generation() + 1;
    Ok(Some(Inheritance { fds, keeper: Some((last.stream, last.pidfd)), generation }))
}

impl Inheritance {
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn take(&mut self, kept: Kept) -> Option<OwnedFd> {
        self.fds.remove(&kept)
    }

    /// All names of which `select` makes something.
    pub fn names<T>(&self, select: impl Fn(Kept) -> Option<T>) -> Vec<T> {
        self.fds.keys().copied().filter_map(select).collect()
    }

    /// A userfaultfd by the number it had in the table of the annexd before: it came with a message
    /// that was not applied.
    pub fn by_number(&self, number: RawFd) -> Option<OwnedFd> {
        let (_, pidfd) = self.keeper.as_ref()?;
        pidfd_getfd(pidfd, number).ok()
    }

    /// Everything is ours, and kept by us: the keeper before need not wait any longer.
    pub fn settle(self) {
        if let Some((mut stream, _)) = self.keeper {
            // One that is gone already needs no word.
            let _ = stream.write_all(&[DONE]);
        }
    }
}

fn sockets(socket: &Path) -> Vec<PathBuf> {
    let (Some(name), Some(dir)) = (socket.file_name(), socket.parent()) else { return Vec::new() };
    let prefix = format!("{}.keeper-", name.to_string_lossy());
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let own = format!("{prefix}{}", std::process::id());
    let names = entries.filter(|e| {
        let name = e.file_name();
        let name = name.to_string_lossy();
        name.starts_with(&prefix) && name != own
    });
    names.map(|e| e.path()).collect()
}

enum Answer {
    Index(Found),
    /// Its annexd lives.
    Busy,
    Unknown,
}

fn ask(path: &Path) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // A keeper whose annexd lives has answered and gone before it has heard this.
    let _ = stream.write_all(&[TAKE]);
    let mut answer = [0u8; 1];
    // One that has nothing to keep ends: with our word in its queue, or without.
    let (received, fd) = match rights::receive(stream.as_fd(), &mut answer) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => (0, None),
        received => received?,
    };
    if received == 0 {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    match (answer[0], fd) {
        (BUSY, _) => Ok(Answer::Busy),
        (MINE, Some(fd)) => {
            let Some(index) = Index::open(fd)? else { return Ok(Answer::Unknown) };
            // The socket's credentials are those of the annexd that made it; the keeper says its
            // own PID.
            let pidfd = pidfd_open(read_pid(&mut stream)?)?;
            Ok(Answer::Index(Found { stream, pidfd, index }))
        }
        _ => Ok(Answer::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_keeper_that_ends_while_it_is_asked_had_nothing_to_keep() {
        for hears_it in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("annexd.sock");
            let keeper = UnixListener::bind(dir.path().join("annexd.sock.keeper-1")).unwrap();
            let ends = std::thread::spawn(move || {
                let (mut stream, _) = keeper.accept().unwrap();
                let mut word = [0; 1];
                // What is in its queue when it is closed resets the connection.
                if hears_it {
                    std::io::Read::read_exact(&mut stream, &mut word).unwrap();
                } else {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            });
            assert!(find(&socket).unwrap().is_none());
            ends.join().unwrap();
        }
    }
}
