//! The command's side.

use super::{ApiError, Status};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the agent may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The agent could not be asked, or said no.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(
        "failed to reach the agent at {}: {source}: is it running, with this control_socket, as this user or under a root that you are?",
        .path.display()
    )]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("the agent at {} did not answer: {source}", .path.display())]
    Silent { path: PathBuf, source: io::Error },
    #[error("the agent refused: {0}")]
    Refused(String),
    #[error("the agent's answer makes no sense: {0}; is it of the same version?")]
    Malformed(String),
}

/// Asks the agent whose control socket this is.
pub fn call(path: &Path, method: &str, what: &str) -> Result<Status, CallError> {
    let mut stream =
        UnixStream::connect(path).map_err(|source| CallError::Unreachable { path: path.to_owned(), source })?;
    let answer =
        exchange(&mut stream, method, what).map_err(|source| CallError::Silent { path: path.to_owned(), source })?;
    let malformed = || CallError::Malformed(answer.lines().next().unwrap_or_default().to_owned());
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    match head.split(' ').nth(1) {
        Some("200") => serde_json::from_str(body).map_err(|e| CallError::Malformed(e.to_string())),
        Some(_) => {
            let error: ApiError = serde_json::from_str(body).map_err(|_| malformed())?;
            Err(CallError::Refused(error.error))
        }
        None => Err(malformed()),
    }
}

fn exchange(stream: &mut UnixStream, method: &str, what: &str) -> io::Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "{method} {what} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
