//! Unix sockets that only the agent's own user can connect to.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Binds a socket that only this user can connect to. A socket that nobody listens on any more is replaced.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    // Agents that start at the same moment look one after the other; the file stays, for removing it would let two hold the lock.
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let lock = File::create(beside(".lock"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

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
