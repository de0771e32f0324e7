//! The annexd that runs, as one sees it that is to take its place: whether its programs would go
//! on with this configuration. What would cost them their pages is refused before anything ends.

use super::ControlSocket;
use crate::config::Config;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::Deserialize;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the one that runs may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// With this configuration the next annexd can't go on where the one that runs ends.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    #[error(
        "the spill file {} holds pages of running programs but is not configured any more: add [spill] again, or stop annexd first",
        .0.display()
    )]
    SpillMissing(PathBuf),
    #[error(
        "pages of running programs are in the spill file {}, and path = \"{}\" in [spill]: give the old path again, or stop annexd first",
        .old.display(), .new.display()
    )]
    SpillMoved { old: PathBuf, new: PathBuf },
    #[error(
        "socket = \"{}\", and the annexd that runs as process {pid} does not listen there, so that the next one would not find \
         what it leaves: give the old path again, or stop annexd first",
        .socket.display()
    )]
    Socket { socket: PathBuf, pid: i32 },
}

/// What counts here of its status, whatever version it is of.
#[derive(Deserialize)]
struct Running {
    pool: RunningPool,
}

#[derive(Deserialize)]
struct RunningPool {
    #[serde(default)]
    spill_file: Option<PathBuf>,
}

/// Looks at the annexd that runs, if there is one. `main`: the process that is to be succeeded,
/// where the service manager says so.
///
/// # Errors
/// Programs would lose pages. An annexd that does not answer is no error: that one has to be
/// succeeded in any case.
pub fn check(config: &Config, main: Option<i32>) -> Result<(), TakeoverError> {
    let stream = UnixStream::connect(&config.socket).ok();
    let listener = stream.as_ref().and_then(|s| getsockopt(s, PeerCredentials).ok()).map(|peer| peer.pid());
    if let Some(pid) = main.filter(|pid| listener != Some(*pid) && ControlSocket::runs(*pid)) {
        return Err(TakeoverError::Socket { socket: config.socket.clone(), pid });
    }
    let status = stream.and_then(|stream| status(stream).ok());
    match status.and_then(|status| status.pool.spill_file) {
        Some(old) if !config.spill.is_on() => Err(TakeoverError::SpillMissing(old)),
        Some(old) if !is_same(&old, &config.spill.path) => {
            Err(TakeoverError::SpillMoved { old, new: config.spill.path.clone() })
        }
        _ => Ok(()),
    }
}

/// Two paths of one file, or the same path of none.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

fn status(mut stream: UnixStream) -> io::Result<Running> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: annexd\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread::{self, JoinHandle};

    /// Answers once, with pages in that spill file.
    fn annexd(dir: &Path, spill: Option<&Path>) -> JoinHandle<()> {
        let listener = UnixListener::bind(dir.join("annexd.sock")).unwrap();
        let body = serde_json::json!({ "pool": { "used": 1, "spill_file": spill } });
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            // One that only looks who listens asks nothing.
            if stream.read(&mut request).unwrap() > 0 {
                write!(stream, "HTTP/1.1 200 OK\r\n\r\n{body}").unwrap();
            }
        })
    }

    fn config(dir: &Path, spill: &str) -> Config {
        let mut config = Config { socket: dir.join("annexd.sock"), ..Config::default() };
        config.spill.path = spill.into();
        config
    }

    fn refusal(held: Option<&str>, configured: &str) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let annexd = annexd(dir.path(), held.map(Path::new));
        let refusal = check(&config(dir.path(), configured), None).err().map(|error| error.to_string());
        annexd.join().unwrap();
        refusal
    }

    #[test]
    fn a_spill_file_with_pages_has_to_stay_configured() {
        assert_eq!(refusal(Some("/old/spill"), "/old/spill"), None);
        assert_eq!(refusal(None, ""), None);
        assert_eq!(refusal(None, "/new/spill"), None);
        let gone = refusal(Some("/old/spill"), "").unwrap();
        assert!(gone.starts_with("the spill file /old/spill holds pages"), "{gone}");
        let moved = refusal(Some("/old/spill"), "/new/spill").unwrap();
        assert!(moved.contains("/old/spill, and path = \"/new/spill\""), "{moved}");
    }

    #[test]
    fn the_annexd_to_be_succeeded_has_to_listen_where_the_next_one_looks() {
        let dir = tempfile::tempdir().unwrap();
        let annexd = annexd(dir.path(), None);
        let me = std::process::id() as i32;
        assert!(check(&config(dir.path(), ""), Some(me)).is_ok());
        annexd.join().unwrap();
        let elsewhere = Config { socket: dir.path().join("other.sock"), ..Config::default() };
        let error = check(&elsewhere, Some(me)).unwrap_err().to_string();
        assert!(error.contains(&format!("process {me} does not listen there")), "{error}");
        // Where none runs there is nothing to lose.
        assert!(check(&elsewhere, None).is_ok());
    }
}
