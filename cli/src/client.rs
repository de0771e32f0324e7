//! HTTP over annexd's Unix socket: one connection per request, as annexd serves them.

use crate::failure::Failure;
use annex_shared::api::{ApiError, AppInfo, AttachRequest, DonorInfo, ErrorCode, KvInfo, Progress, SlabInfo, Status};
use annex_shared::event::Event;
use annex_shared::printable::printable;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

pub struct Client {
    runtime: Runtime,
    socket: PathBuf,
}

/// `/v1/` and the parts, each escaped: an app's name comes from the user.
pub fn path(parts: &[&str]) -> String {
    let mut path = "/v1".to_owned();
    for part in parts {
        path.push('/');
        for byte in part.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    path
}

impl Client {
    pub fn new(socket: &Path) -> Result<Client, Failure> {
        let runtime = Builder::new_current_thread().enable_io().build().map_err(Failure::Setup)?;
        Ok(Client { runtime, socket: socket.to_owned() })
    }

    pub fn apps(&self) -> Result<Vec<AppInfo>, Failure> {
        self.call(Method::GET, &path(&["apps"]), None::<&()>)
    }

    /// Those after the one of this number.
    pub fn events(&self, after: u64) -> Result<Vec<Event>, Failure> {
        self.call(Method::GET, &format!("{}?after={after}", path(&["events"])), None::<&()>)
    }

    pub fn kv(&self) -> Result<KvInfo, Failure> {
        self.call(Method::GET, &path(&["kv"]), None::<&()>)
    }

    pub fn slabs(&self) -> Result<Vec<SlabInfo>, Failure> {
        self.call(Method::GET, &path(&["slabs"]), None::<&()>)
    }

    pub fn donors(&self) -> Result<Vec<DonorInfo>, Failure> {
        self.call(Method::GET, &path(&["donors"]), None::<&()>)
    }

    pub fn status(&self) -> Result<Status, Failure> {
        self.call(Method::GET, &path(&["status"]), None::<&()>)
    }

    /// Has annexd take a program. If no donors can take pages, it is said, and the program has its
    /// pages for itself until they can; unless they are required.
    pub fn register(&self, request: &AttachRequest) -> Result<AppInfo, Failure> {
        let ask = |request| self.call(Method::POST, &path(&["apps"]), Some(request));
        match ask(&AttachRequest { require_donors: true, ..request.clone() }) {
            Err(Failure::Refused(error)) if error.kind == ErrorCode::NoDonors && !request.require_donors => {
                eprintln!("annex: {}; the program keeps its pages until they are", printable(&error.message));
                ask(request)
            }
            answer => answer,
        }
    }

    /// Sends one request and reads its whole answer.
    pub fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let body = body.map(serde_json::to_vec).transpose().map_err(garbled)?.unwrap_or_default();
        self.runtime.block_on(async {
            let answer = self.send(method, path, body).await?;
            let bytes = answer.into_body().collect().await.map_err(lost)?.to_bytes();
            serde_json::from_slice(&bytes).map_err(garbled)
        })
    }

    /// Detaches an app, telling each step as it comes.
    pub fn detach(&self, app: &str, mut step: impl FnMut(&str, u64, u64)) -> Result<(), Failure> {
        self.runtime.block_on(async {
            let mut answer = self.send(Method::DELETE, &path(&["apps", app]), Vec::new()).await?.into_body();
            let mut lines = Vec::new();
            while let Some(frame) = answer.frame().await {
                let Ok(data) = frame.map_err(lost)?.into_data() else { continue };
                lines.extend_from_slice(&data);
                while let Some(end) = lines.iter().position(|b| *b == b'\n') {
                    let line: Vec<u8> = lines.drain(..=end).collect();
                    match serde_json::from_slice(&line).map_err(garbled)? {
                        Progress::Step { what, done, total } => step(&what, done, total),
                        Progress::Done => return Ok(()),
                        Progress::Failed(error) => return Err(error.into()),
                    }
                }
            }
            Err(Failure::Lost("the answer ended half way".into()))
        })
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Response<Incoming>, Failure> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Failure::NotRunning { socket: self.socket.clone() }
            }
            _ => Failure::Connect { socket: self.socket.clone(), source },
        })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "annexd")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(garbled)?;
        let answer = sender.send_request(request).await.map_err(lost)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let bytes = answer.into_body().collect().await.map_err(lost)?.to_bytes();
        let error: ApiError = serde_json::from_slice(&bytes)
            .map_err(|_| Failure::Garbled(format!("status {status} without a reason")))?;
        Err(error.into())
    }
}

fn lost(error: hyper::Error) -> Failure {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::Lost(format!("{error}{cause}"))
}

fn garbled(error: impl std::fmt::Display) -> Failure {
    Failure::Garbled(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_paths() {
        assert_eq!(path(&["apps", "a/b c%", "limit"]), "/v1/apps/a%2Fb%20c%25/limit");
        assert_eq!(path(&["apps", "redis-1.service"]), "/v1/apps/redis-1.service");
    }
}
