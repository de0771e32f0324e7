//! The little HTTP that it takes to ask annexd for a region: one request for each connection, and
//! it is read to its end.

use crate::error::Error;
use annex_shared::api::{ApiError, AppInfo, RegionRequest};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Asks for a region of this process.
pub fn open(socket: &Path, request: &RegionRequest) -> Result<AppInfo, Error> {
    let body = serde_json::to_string(request).map_err(garbled)?;
    serde_json::from_str(&ask(socket, "POST", "/v1/regions", &body)?).map_err(garbled)
}

/// Says that it is no more.
pub fn close(socket: &Path, app: u64) -> Result<(), Error> {
    ask(socket, "DELETE", &format!("/v1/apps/{app}"), "").map(drop)
}

fn ask(socket: &Path, method: &str, path: &str, body: &str) -> Result<String, Error> {
    let failed = |source| Error::Talk { socket: socket.to_owned(), source };
    let mut stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NotRunning { socket: socket.to_owned() },
        _ => failed(source),
    })?;
    let head = "Host: annexd\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length:";
    write!(stream, "{method} {path} HTTP/1.1\r\n{head} {}\r\n\r\n{body}", body.len()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| garbled("it is no HTTP"))?;
    if head.starts_with("HTTP/1.1 2") {
        return Ok(body.to_owned());
    }
    Err(Error::Refused(serde_json::from_str::<ApiError>(body).map_err(garbled)?))
}

fn garbled(error: impl std::fmt::Display) -> Error {
    Error::Garbled(error.to_string())
}
