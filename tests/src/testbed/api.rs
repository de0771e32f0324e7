//! The control API asked without the `annex` command: a test that polls must not start a process
//! each time.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// `GET path` from the annexd at `socket`.
pub fn fetch<T: DeserializeOwned>(socket: &Path, path: &str) -> anyhow::Result<T> {
    Ok(serde_json::from_str(&request(socket, "GET", path, None)?)?)
}

/// A request with a JSON body and a JSON answer.
pub fn send<T: DeserializeOwned>(socket: &Path, method: &str, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
    Ok(serde_json::from_str(&request(socket, method, path, Some(serde_json::to_string(body)?))?)?)
}

/// A request and its answer's body. A chunked body keeps its chunk sizes, one per line, between its
/// own lines.
pub fn request(socket: &Path, method: &str, path: &str, body: Option<String>) -> anyhow::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let body = body.unwrap_or_default();
    let head = "Host: annexd\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length:";
    write!(stream, "{method} {path} HTTP/1.1\r\n{head} {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| anyhow::anyhow!("no HTTP answer: {answer:?}"))?;
    anyhow::ensure!(head.starts_with("HTTP/1.1 2"), "annexd said {answer:?}");
    Ok(body.to_owned())
}
