//! `GET /metrics` over HTTP/1.1, on an address that somebody has asked for.
//!
//! One thread serves it. What a client can cost is bounded: [`CONNECTIONS`] at once, of which the
//! oldest is ended for a new one; [`DEADLINE`] for each; and the values are taken at most once in
//! [`FRESH`]. An address that is taken is tried again and again, and [`Exporter::failure`] says so.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, LocalSet};

/// Connections at once.
pub const CONNECTIONS: usize = 16;
/// A connection is over after this, whatever its client does.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// What was taken is shown again for so long.
const FRESH: Duration = Duration::from_millis(250);
/// An address that can't be had is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// The longest head of a request.
const HEAD: usize = 16 << 10;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Where Prometheus finds the metrics; nowhere if absent.
    pub listen: Option<SocketAddr>,
}

/// A running server. It ends with its process.
#[derive(Clone)]
pub struct Exporter {
    failure: Arc<Mutex<Option<String>>>,
}

impl Exporter {
    /// Serves what `take` returns, at `address`.
    pub fn start(address: SocketAddr, take: impl FnMut() -> String + Send + 'static) -> io::Result<Exporter> {
        if !address.ip().is_loopback() {
            tracing::warn!("{address} shows metrics to the network: names of apps and donors, and how they do");
        }
        let exporter = Exporter { failure: Arc::default() };
        let failure = exporter.failure.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("annex-metrics".into()).spawn(move || {
            let page = Rc::new(RefCell::new(Page { take: Box::new(take), taken: None }));
            LocalSet::new().block_on(&runtime, async {
                let listener = listen(address, &failure).await;
                accept(&listener, &page).await;
            });
        })?;
        Ok(exporter)
    }

    /// Why nothing is served, if nothing is.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }
}

async fn listen(address: SocketAddr, failure: &Mutex<Option<String>>) -> TcpListener {
    let set = |why: Option<String>| *failure.lock() = why;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                set(None);
                tracing::info!("metrics are on http://{}/metrics", listener.local_addr().unwrap_or(address));
                return listener;
            }
            Err(error) => {
                let why = format!(
                    "failed to listen on {address} for metrics: {error}; end what has it, or change listen in [metrics]; it is tried again and again"
                );
                if failure.lock().is_none() {
                    tracing::error!("{why}");
                }
                set(Some(why));
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn accept(listener: &TcpListener, page: &Rc<RefCell<Page>>) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: the connection stays queued, so this would spin.
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS {
            // A scrape takes milliseconds: the oldest is none.
            open.pop_front().inspect(AbortHandle::abort);
        }
        let page = page.clone();
        let serving = tokio::task::spawn_local(async move {
            // A client that hangs up, or takes too long, is no event.
            let _ = tokio::time::timeout(DEADLINE, serve(stream, page)).await;
        });
        open.push_back(serving.abort_handle());
    }
}

async fn serve(stream: TcpStream, page: Rc<RefCell<Page>>) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let response = answer(&request, &page);
        async move { Ok::<_, Infallible>(response) }
    });
    http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(DEADLINE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn answer(request: &Request<Incoming>, page: &RefCell<Page>) -> Response<Full<Bytes>> {
    match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET | &Method::HEAD) => {
            let text = page.borrow_mut().text(Instant::now());
            with_type(StatusCode::OK, text, OPEN_METRICS)
        }
        ("/metrics", _) => {
            let mut response = words(StatusCode::METHOD_NOT_ALLOWED, "metrics can only be read: use GET\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        _ => words(StatusCode::NOT_FOUND, "there is /metrics, and nothing else\n"),
    }
}

fn words(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with_type(status, Bytes::from_static(text.as_bytes()), "text/plain; charset=utf-8")
}

fn with_type(status: StatusCode, body: Bytes, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// What is served.
struct Page {
    take: Box<dyn FnMut() -> String>,
    taken: Option<(Instant, Bytes)>,
}

impl Page {
    fn text(&mut self, now: Instant) -> Bytes {
        match &self.taken {
            Some((at, text)) if now.saturating_duration_since(*at) < FRESH => text.clone(),
            _ => {
                let text = Bytes::from((self.take)());
                self.taken = Some((now, text.clone()));
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net;

    /// A server that is up, and where.
    fn start(text: &'static str) -> (Exporter, SocketAddr) {
        let address = net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let exporter = Exporter::start(address, move || text.to_owned()).unwrap();
        wait_for(|| net::TcpStream::connect(address).is_ok());
        (exporter, address)
    }

    fn wait_for(mut done: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < until, "it takes too long");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = net::TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_read_and_nothing_else_is_done() {
        let (_exporter, address) = start("a 1\n# EOF\n");
        let got = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\na 1\n# EOF\n"), "{got}");
        assert!(got.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{got}");
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.contains("content-length: 10\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let put = ask(address, "PUT /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        assert!(put.starts_with("HTTP/1.1 405 ") && put.contains("allow: GET, HEAD\r\n"), "{put}");
        assert!(ask(address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, "hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(HEAD * 4));
        let mut stream = net::TcpStream::connect(address).unwrap();
        // It may hang up in the middle.
        let _ = stream.write_all(long.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }

    #[test]
    fn clients_that_say_or_read_nothing_hold_up_nobody() {
        let text: &'static str = "a 1\n".repeat(2 << 20).leak();
        let (_exporter, address) = start(text);
        let mut idle: Vec<net::TcpStream> = Vec::new();
        for nth in 0..CONNECTIONS * 4 {
            let mut stream = net::TcpStream::connect(address).unwrap();
            // Half of them ask, and take nothing.
            if nth % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            }
            idle.push(stream);
        }
        let got = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.len() > text.len(), "{} bytes", got.len());
    }

    #[test]
    fn an_address_that_is_taken_is_said_and_had_once_it_is_free() {
        let taken = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let exporter = Exporter::start(address, || "a 1\n# EOF\n".to_owned()).unwrap();
        wait_for(|| exporter.failure().is_some());
        let why = exporter.failure().unwrap();
        assert!(why.contains(&format!("failed to listen on {address} for metrics: Address already in use")), "{why}");
        assert!(why.contains("change listen in [metrics]"), "{why}");
        drop(taken);
        wait_for(|| exporter.failure().is_none());
        assert!(ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
    }

    #[test]
    fn values_are_taken_anew_only_after_a_while() {
        let mut n = 0;
        let take = move || {
            n += 1;
            n.to_string()
        };
        let mut page = Page { take: Box::new(take), taken: None };
        let now = Instant::now();
        assert_eq!(page.text(now), "1");
        assert_eq!(page.text(now + FRESH / 2), "1");
        assert_eq!(page.text(now + FRESH), "2");
    }
}
