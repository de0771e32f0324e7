//! A small server of HTTP/1.1, for what whoever reaches an address may read: metrics, the page.
//!
//! A [`Site`] is a handful of [`Page`]s; nothing but GET and HEAD of those is answered. One thread
//! serves it. What a client can cost is bounded: [`CONNECTIONS`] at once, of which the oldest is
//! ended for a new one, and [`DEADLINE`] for each. An address that is taken is tried again and
//! again, and [`Server::failure`] says so.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
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

/// What is served at one address.
pub struct Site {
    /// What people call it: `metrics`, `the page`.
    pub what: &'static str,
    /// The table of the configuration whose `listen` is its address; its thread has that name too.
    pub table: &'static str,
    /// The first one is where people are sent.
    pub pages: Vec<Page>,
    /// What every answer has besides its own.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// On loopback it is asked for by an IP address or as `localhost` only. A page of anybody's can
    /// have its own name lead to 127.0.0.1, and then read what is there with its visitor's browser.
    pub refuses_names: bool,
}

/// Makes an answer's body of the query.
type Take = Box<dyn FnMut(Option<&str>) -> Bytes + Send>;

/// One path, and what is there.
pub struct Page {
    path: &'static str,
    kind: &'static str,
    take: Take,
}

impl Page {
    /// What never changes.
    pub fn fixed(path: &'static str, kind: &'static str, content: &'static str) -> Page {
        Page::by_query(path, kind, move |_| Bytes::from_static(content.as_bytes()))
    }

    /// What is taken anew when somebody asks, and at most once in [`FRESH`].
    pub fn taken(path: &'static str, kind: &'static str, mut take: impl FnMut() -> String + Send + 'static) -> Page {
        let mut fresh = Fresh::default();
        Page::by_query(path, kind, move |_| fresh.text(Instant::now(), &mut take))
    }

    /// What depends on the part of the address behind the question mark.
    pub fn by_query(
        path: &'static str,
        kind: &'static str,
        take: impl FnMut(Option<&str>) -> Bytes + Send + 'static,
    ) -> Page {
        Page { path, kind, take: Box::new(take) }
    }
}

/// A running server. It ends with its process.
#[derive(Clone)]
pub struct Server {
    failure: Arc<Mutex<Option<String>>>,
}

impl Server {
    /// Serves a site at `address`, once that can be had.
    ///
    /// # Errors
    /// Its thread can't be started.
    pub fn start(address: SocketAddr, site: Site) -> io::Result<Server> {
        if !address.ip().is_loopback() {
            tracing::warn!("{address} shows {} to the network: names of apps and donors, and how they do", site.what);
        }
        let server = Server { failure: Arc::default() };
        let failure = server.failure.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name(format!("annex-{}", site.table)).spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                let listener = listen(address, &site, &failure).await;
                accept(&listener, &Rc::new(RefCell::new(site))).await;
            });
        })?;
        Ok(server)
    }

    /// Why nothing is served, if nothing is.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }
}

async fn listen(address: SocketAddr, site: &Site, failure: &Mutex<Option<String>>) -> TcpListener {
    let set = |why: Option<String>| *failure.lock() = why;
    let Site { what, table, .. } = site;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                set(None);
                let path = site.pages.first().map_or("/", |page| page.path);
                tracing::info!("serves {what} on http://{}{path}", listener.local_addr().unwrap_or(address));
                return listener;
            }
            Err(error) => {
                let why = format!(
                    "failed to listen on {address} for {what}: {error}; end what has it, or change listen in [{table}]; it is tried again and again"
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

async fn accept(listener: &TcpListener, site: &Rc<RefCell<Site>>) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: the connection stays queued, so this would spin.
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS {
            // A look takes milliseconds: the oldest is none.
            open.pop_front().inspect(AbortHandle::abort);
        }
        let site = site.clone();
        let serving = tokio::task::spawn_local(async move {
            // A client that hangs up, or takes too long, is no event.
            let _ = tokio::time::timeout(DEADLINE, serve(stream, site)).await;
        });
        open.push_back(serving.abort_handle());
    }
}

async fn serve(stream: TcpStream, site: Rc<RefCell<Site>>) -> hyper::Result<()> {
    let is_loopback = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let service = service_fn(move |request| {
        let response = site.borrow_mut().answer(&request, is_loopback);
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

impl Site {
    fn answer(&mut self, request: &Request<Incoming>, is_loopback: bool) -> Response<Full<Bytes>> {
        let mut response = self.response(request, is_loopback);
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.extend(self.headers.iter().cloned());
        response
    }

    fn response(&mut self, request: &Request<Incoming>, is_loopback: bool) -> Response<Full<Bytes>> {
        let what = self.what;
        if self.refuses_names && is_loopback && !names_an_address(request) {
            let text = format!("ask for {what} by its IP address, or as localhost: other names may be a trap\n");
            return words(StatusCode::FORBIDDEN, text);
        }
        let Some(page) = self.pages.iter_mut().find(|page| page.path == request.uri().path()) else {
            let paths: Vec<&str> = self.pages.iter().map(|page| page.path).collect();
            return words(StatusCode::NOT_FOUND, format!("there is {}, and nothing else\n", paths.join(", ")));
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = words(StatusCode::METHOD_NOT_ALLOWED, format!("{what} can only be read: use GET\n"));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        with_type(StatusCode::OK, (page.take)(request.uri().query()), page.kind)
    }
}

/// Whether whoever asks knows the server by an IP address, or as `localhost`.
fn names_an_address(request: &Request<Incoming>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let of_target = request.uri().authority();
    of_target.is_none_or(|authority| is_address(authority.as_str())) && hosts.all(is_address)
}

fn is_address(authority: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    let host = authority.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(authority, |(host, _)| host);
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok(),
    }
}

fn words(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    with_type(status, text.into(), "text/plain; charset=utf-8")
}

fn with_type(status: StatusCode, body: Bytes, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// What was taken last.
#[derive(Default)]
struct Fresh(Option<(Instant, Bytes)>);

impl Fresh {
    fn text(&mut self, now: Instant, take: &mut impl FnMut() -> String) -> Bytes {
        match &self.0 {
            Some((at, text)) if now.saturating_duration_since(*at) < FRESH => text.clone(),
            _ => {
                let text = Bytes::from(take());
                self.0 = Some((now, text.clone()));
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

    fn site(text: &'static str) -> Site {
        let pages = vec![
            Page::fixed("/", "text/plain", text),
            Page::by_query("/query", "text/plain", |query| query.unwrap_or("none").to_owned().into()),
        ];
        Site { what: "the page", table: "web", pages, headers: Vec::new(), refuses_names: true }
    }

    /// A server that is up, and where.
    fn start(site: Site) -> (Server, SocketAddr) {
        let address = net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = Server::start(address, site).unwrap();
        wait_for(|| net::TcpStream::connect(address).is_ok());
        (server, address)
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
    fn pages_are_read_and_nothing_else_is_done() {
        let (_server, address) = start(site("a 1\n"));
        let got = ask(address, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\na 1\n"), "{got}");
        assert!(got.contains("cache-control: no-store\r\n") && got.contains("x-content-type-options: nosniff\r\n"));
        let head = ask(address, "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(head.contains("content-length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let put = ask(address, "PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        assert!(put.starts_with("HTTP/1.1 405 ") && put.contains("allow: GET, HEAD\r\n"), "{put}");
        assert!(put.ends_with("the page can only be read: use GET\n"), "{put}");
        let unknown = ask(address, "GET /etc HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(unknown.starts_with("HTTP/1.1 404 ") && unknown.ends_with("there is /, /query, and nothing else\n"));
        assert!(ask(address, "GET /query?after=7 HTTP/1.1\r\nHost: localhost\r\n\r\n").ends_with("\r\n\r\nafter=7"));
        assert!(ask(address, "hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD * 4));
        let mut stream = net::TcpStream::connect(address).unwrap();
        // It may hang up in the middle.
        let _ = stream.write_all(long.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }

    #[test]
    fn a_foreign_name_that_leads_to_loopback_gets_nothing() {
        let status = |address, head: &str| ask(address, &format!("GET {head}\r\n\r\n"))[9..12].to_owned();
        let (_server, address) = start(site("a 1\n"));
        for head in ["/ HTTP/1.1\r\nHost: 127.0.0.1:9502", "/ HTTP/1.1\r\nHost: [::1]:9502", "/ HTTP/1.0"] {
            assert_eq!(status(address, head), "200", "{head}");
        }
        for head in [
            "/ HTTP/1.1\r\nHost: evil.example:9502",
            "/query HTTP/1.1\r\nHost: localhost.evil.example",
            "/ HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
            "http://evil.example/ HTTP/1.1\r\nHost: localhost",
            "/ HTTP/1.1\r\nHost: ",
        ] {
            assert_eq!(status(address, head), "403", "{head}");
        }
        let (_server, address) = start(Site { refuses_names: false, ..site("a 1\n") });
        assert_eq!(status(address, "/ HTTP/1.1\r\nHost: metrics.example"), "200");
    }

    #[test]
    fn clients_that_say_or_read_nothing_hold_up_nobody() {
        let text: &'static str = "a 1\n".repeat(2 << 20).leak();
        let (_server, address) = start(site(text));
        let mut idle: Vec<net::TcpStream> = Vec::new();
        for nth in 0..CONNECTIONS * 4 {
            let mut stream = net::TcpStream::connect(address).unwrap();
            // Half of them ask, and take nothing.
            if nth % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            }
            idle.push(stream);
        }
        let got = ask(address, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.len() > text.len(), "{} bytes", got.len());
    }

    #[test]
    fn an_address_that_is_taken_is_said_and_had_once_it_is_free() {
        let taken = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let server = Server::start(address, site("a 1\n")).unwrap();
        wait_for(|| server.failure().is_some());
        let why = server.failure().unwrap();
        assert!(why.contains(&format!("failed to listen on {address} for the page: Address already in use")), "{why}");
        assert!(why.contains("change listen in [web]"), "{why}");
        drop(taken);
        wait_for(|| server.failure().is_none());
        assert!(ask(address, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
    }

    #[test]
    fn values_are_taken_anew_only_after_a_while() {
        let mut n = 0;
        let mut take = move || {
            n += 1;
            n.to_string()
        };
        let mut fresh = Fresh::default();
        let now = Instant::now();
        assert_eq!(fresh.text(now, &mut take), "1");
        assert_eq!(fresh.text(now + FRESH / 2, &mut take), "1");
        assert_eq!(fresh.text(now + FRESH, &mut take), "2");
    }
}
