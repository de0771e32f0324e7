//! The listening socket.
//!
//! A lock file beside the socket (`annexd.sock.lock`, held by flock for as long as annexd lives)
//! decides who owns the path, so two annexds started together can't both take it and a socket left
//! behind by a killed one is replaced without guessing. Everyone may connect; what they may do is
//! decided per connection ([`super::access`]).

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the descriptors of an annexd that has ended may live on, on a host that is busy.
const LAST_OF_THE_DEAD: Duration = Duration::from_secs(30);

/// A socket that listens at a path which is ours until this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    _lock: Flock<File>,
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("annexd is already running on {path} as {}", process(*.pid))]
    AlreadyRunning { path: PathBuf, pid: Option<i32> },
    #[error("{0} exists and is not a socket: remove it or choose another path with --socket")]
    NotASocket(PathBuf),
    #[error("failed to {what} {path}: {source}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

fn process(pid: Option<i32>) -> String {
    match pid {
        Some(pid) if ControlSocket::runs(pid) => format!("process {pid}"),
        Some(pid) => {
            format!("process {pid}, which has ended, but what it had open is open still: its keeper does not end")
        }
        None => "an unknown process".into(),
    }
}

impl ControlSocket {
    pub fn bind(path: &Path) -> Result<ControlSocket, BindError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| BindError::Io { what, path, source }
        };
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(failed("create", dir))?;
        }
        let lock = own(path)?;
        let listener = UnixListener::bind(path).map_err(failed("listen on", path))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(failed("open to all users", path))?;
        listener.set_nonblocking(true).map_err(failed("listen on", path))?;
        Ok(ControlSocket { listener, path: path.to_owned(), _lock: lock })
    }

    /// A second handle of the listening descriptor.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// False for a process that has ended, collected by its parent or not.
    pub fn runs(pid: i32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let state = stat.and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Still under the lock, so this can't be a successor's socket.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the path ours: the lock is, and nobody listens there. What an annexd that was killed had
/// open lives until its keeper has closed it: a matter of milliseconds.
fn own(path: &Path) -> Result<Flock<File>, BindError> {
    let until = Instant::now() + LAST_OF_THE_DEAD;
    loop {
        match clear(path) {
            Err(BindError::AlreadyRunning { pid, .. })
                if !pid.is_some_and(ControlSocket::runs) && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

fn clear(path: &Path) -> Result<Flock<File>, BindError> {
    let lock = lock(path)?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        // The lock is ours, so nobody should be there, unless someone removed the lock file under a
        // live annexd.
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(already_running(path)),
        Ok(_) => {
            let failed = |source| BindError::Io { what: "remove the stale socket", path: path.to_owned(), source };
            fs::remove_file(path).map_err(failed)?;
        }
        Err(_) => {}
    }
    Ok(lock)
}

fn lock(path: &Path) -> Result<Flock<File>, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let io = |source| BindError::Io { what: "open", path: name.clone(), source };
    // Readable by its owner alone: whoever can open the file can hold the lock.
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&name).map_err(io)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => already_running(path),
        _ => BindError::Io { what: "lock", path: name.clone(), source: errno.into() },
    })
}

fn already_running(path: &Path) -> BindError {
    let peer = UnixStream::connect(path)
        .ok()
        .and_then(|s| nix::sys::socket::getsockopt(&s, nix::sys::socket::sockopt::PeerCredentials).ok());
    BindError::AlreadyRunning { path: path.to_owned(), pid: peer.map(|p| p.pid()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("annexd.sock");
        drop(UnixListener::bind(&path).unwrap());
        // A child that another test starts meanwhile has the listener until it executes.
        while UnixStream::connect(&path).is_ok() {
            std::thread::yield_now();
        }
        assert!(path.exists());
        let socket = ControlSocket::bind(&path).unwrap();
        assert!(UnixStream::connect(socket.path()).is_ok());
    }

    #[test]
    fn a_live_annexd_is_not_displaced_and_named_by_its_pid() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("annexd.sock");
        let first = ControlSocket::bind(&path).unwrap();
        let error = ControlSocket::bind(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("annexd is already running on {} as process {}", path.display(), std::process::id())
        );
        assert!(UnixStream::connect(&path).is_ok());
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn one_that_has_ended_is_not_said_to_run() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert!(process(Some(ended.id() as i32)).contains("has ended"));
        assert!(!process(Some(std::process::id() as i32)).contains("has ended"));
    }

    #[test]
    fn a_live_annexd_is_found_even_without_its_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("annexd.sock");
        let _first = ControlSocket::bind(&path).unwrap();
        fs::remove_file(dir.path().join("annexd.sock.lock")).unwrap();
        assert!(matches!(ControlSocket::bind(&path), Err(BindError::AlreadyRunning { .. })));
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(ControlSocket::bind(&path), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn missing_folders_are_made_and_everyone_may_connect() {
        let dir = tempfile::tempdir().unwrap();
        let socket = ControlSocket::bind(&dir.path().join("run/annex/annexd.sock")).unwrap();
        assert_eq!(fs::metadata(socket.path()).unwrap().permissions().mode() & 0o777, 0o666);
    }
}
