//! Unix sockets that only the agent's own user can connect to.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whoever binds the same socket has the lock for a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// Binds a socket that only this user can connect to. A socket that nobody listens on any more is
/// replaced.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    // Agents that start at the same moment look one after the other; the file stays, for removing
    // it would let two hold the lock.
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let _lock = lock(&beside(".lock"))?;
    match UnixStream::connect(path) {
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens on it")),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
        Err(_) => {}
    }
    // Bound under another name and renamed, so that it is never there with wider permissions.
    let hidden = beside(&format!(".{}", std::process::id()));
    // Left by a process of the same number that died here.
    let _ = fs::remove_file(&hidden);
    let bound = UnixListener::bind(&hidden).and_then(|listener| {
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        fs::rename(&hidden, path)?;
        Ok(listener)
    });
    bound.inspect_err(|_| {
        let _ = fs::remove_file(&hidden);
    })
}

/// Whoever can open the file could hold the lock for ever, so only this user can.
fn lock(path: &Path) -> io::Result<Flock<File>> {
    let mut file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((same, Errno::EWOULDBLOCK)) if Instant::now() < until => file = same,
            Err((_, Errno::EWOULDBLOCK)) => {
                let held = format!("another process holds {} (fuser {} names it)", path.display(), path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, held));
            }
            Err((_, errno)) => return Err(errno.into()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn nobody_else_can_hold_its_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, lock) = (folder.path().join("s"), folder.path().join("s.lock"));
        // As an agent before this left it.
        File::create(&lock).expect("a file");
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).expect("ours");
        bind_private(&path).expect("nobody holds the lock");
        assert_eq!(fs::metadata(&lock).expect("it stays").permissions().mode() & 0o777, 0o600);
    }

    /// By somebody who opened it before it was this user's alone.
    #[test]
    fn a_lock_that_is_held_for_ever_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let held = File::create(folder.path().join("s.lock")).expect("a file");
        let _held = Flock::lock(held, FlockArg::LockShared).expect("nobody holds it");
        let refused = bind_private(&folder.path().join("s")).expect_err("it is held").to_string();
        assert!(refused.contains("s.lock"), "{refused}");
    }

    #[test]
    fn of_many_that_bind_at_once_one_has_the_socket() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        for _ in 0..50 {
            // Left by one that died.
            drop(UnixListener::bind(&path).expect("a socket"));
            let start = Barrier::new(4);
            let bound: Vec<bool> = std::thread::scope(|scope| {
                let bind = || {
                    start.wait();
                    bind_private(&path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                // Kept until all have tried.
                let listeners: Vec<_> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
                listeners.iter().map(Result::is_ok).collect()
            });
            assert_eq!(bound.iter().filter(|ok| **ok).count(), 1, "{bound:?}");
            fs::remove_file(&path).expect("it is there");
        }
    }
}
