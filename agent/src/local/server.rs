//! The agent's side: one request per connection, answered and closed.

use super::{ApiError, Client, Pressure, Recalled, Slabs, Status};
use crate::lease::Moment;
use crate::lender::Lender;
use crate::pressure::Sample;
use annex_fabric::shm::monotonic_ns;
use annex_identity::identity::Identity;
use nix::sys::socket::{getsockopt, sockopt};
use rustls::pki_types::UnixTime;
use serde::Serialize;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tracing::info;

/// How long a peer may take to ask, and to take its answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest request head.
const HEAD_LIMIT: usize = 8 << 10;

/// What has been asked.
#[derive(Debug, PartialEq, Eq)]
enum Route {
    Status,
    Drain,
    StopDraining,
}

/// Serves one connection. `address` is where the agent listens for clients, `identity` who it is to
/// them.
pub fn serve(mut stream: UnixStream, lender: &Lender, address: &str, identity: Option<&Identity>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials)?.uid();
    let head = read_head(&mut stream)?;
    let is_allowed = peer == 0 || peer == nix::unistd::geteuid().as_raw();
    match route(&head) {
        _ if !is_allowed => refuse(&mut stream, "403 Forbidden", "only root and the agent's own user are served"),
        Err((status, why)) => refuse(&mut stream, status, why),
        Ok(asked) => {
            match asked {
                Route::Status => {}
                Route::Drain => {
                    info!("draining: nothing is lent any more, and clients are asked to return what they have");
                    lender.drain();
                }
                Route::StopDraining => {
                    info!("no longer draining");
                    lender.stop_draining();
                }
            }
            answer(&mut stream, "200 OK", &status(lender, address, identity))
        }
    }
}

fn read_head(stream: &mut UnixStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        let n = stream.read(&mut chunk)?;
        if n == 0 || head.len() + n > HEAD_LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP request came"));
        }
        head.extend_from_slice(&chunk[..n]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn route(head: &str) -> Result<Route, (&'static str, &'static str)> {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path, version) = (words.next(), words.next(), words.next());
    if !version.is_some_and(|v| v.starts_with("HTTP/1.")) {
        return Err(("400 Bad Request", "this is no HTTP/1.1 request"));
    }
    match (method.unwrap_or_default(), path.unwrap_or_default()) {
        ("GET", "/v1/status") => Ok(Route::Status),
        ("PUT", "/v1/drain") => Ok(Route::Drain),
        ("DELETE", "/v1/drain") => Ok(Route::StopDraining),
        (_, "/v1/status" | "/v1/drain") => {
            Err(("405 Method Not Allowed", "use GET for status, PUT or DELETE for drain"))
        }
        _ => Err(("404 Not Found", "there are /v1/status and /v1/drain")),
    }
}

fn refuse(stream: &mut UnixStream, status: &str, why: &str) -> io::Result<()> {
    answer(stream, status, &ApiError { error: why.to_owned() })
}

fn answer(stream: &mut UnixStream, status: &str, body: &impl Serialize) -> io::Result<()> {
    let mut body = serde_json::to_vec_pretty(body)?;
    body.push(b'\n');
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

/// The agent as it sees itself.
pub fn status(lender: &Lender, address: &str, identity: Option<&Identity>) -> Status {
    let terms = lender.terms();
    let view = lender.view();
    let now = Moment(monotonic_ns());
    let ms_to = |until| now.until(until).as_millis() as u64;
    let sample = terms.host.sample().unwrap_or(Sample { available: 0, stall: None });
    let clients = view.clients.into_iter().map(|c| Client {
        client: c.client.to_string(),
        host: c.machine.host,
        connected: c.is_connected,
        slabs: c.held,
        leases_end_in_ms: ms_to(c.until),
        recalled: c.recalled.into_iter().map(|(slab, until)| Recalled { slab, revoked_in_ms: ms_to(until) }).collect(),
    });
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: terms.name.clone(),
        incarnation: lender.incarnation().to_string(),
        address: address.to_owned(),
        rdma: lender.verbs_offer().to_string(),
        shm_socket: terms.shm_socket.as_ref().filter(|_| lender.offers_shm()).map(|p| p.display().to_string()),
        kept_by: lender.store().what().to_owned(),
        certificate: identity.map(|identity| identity.certificate(UnixTime::now())),
        draining: view.is_draining,
        closing: lender.is_closing(),
        pressure: Pressure {
            pressed: lender.is_pressed(),
            available: sample.available,
            headroom: terms.headroom,
            stall_percent: sample.stall,
        },
        shortcoming: lender.shortcoming(),
        slab_size: terms.slab_size,
        slabs: Slabs {
            capacity: terms.capacity_slabs,
            lent: view.lent,
            recalled: view.recalled,
            spare: view.spare,
            cleaning: view.cleaning,
            vacant: view.vacant,
        },
        clients: clients.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_where_they_should() {
        let of = |line: &str| route(&format!("{line}\r\nHost: x\r\n\r\n"));
        assert_eq!(of("GET /v1/status HTTP/1.1"), Ok(Route::Status));
        assert_eq!(of("PUT /v1/drain HTTP/1.1"), Ok(Route::Drain));
        assert_eq!(of("DELETE /v1/drain HTTP/1.0"), Ok(Route::StopDraining));
        assert_eq!(of("GET /v1/drain HTTP/1.1").unwrap_err().0, "405 Method Not Allowed");
        assert_eq!(of("GET / HTTP/1.1").unwrap_err().0, "404 Not Found");
        assert_eq!(of("hello").unwrap_err().0, "400 Bad Request");
        assert_eq!(of("").unwrap_err().0, "400 Bad Request");
    }
}
