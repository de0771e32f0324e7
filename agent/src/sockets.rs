//! Unix sockets that only the agent's own user can connect to.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Binds a socket that only this user can connect to. A socket that nobody listens on any more is replaced.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    match UnixStream::connect(path) {
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens on it")),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
        Err(_) => {}
    }
    // Bound under another name and renamed, so that it is never there with wider permissions.
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
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
