//! `GET /metrics`, on an address that somebody has asked for.

use crate::http::{Page, Server, Site};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Where Prometheus finds the metrics; nowhere if absent.
    pub listen: Option<SocketAddr>,
}

/// Serves what `take` returns, at `address`.
///
/// # Errors
/// The server's thread can't be started.
pub fn export(address: SocketAddr, take: impl FnMut() -> String + Send + 'static) -> io::Result<Server> {
    let pages = vec![Page::taken("/metrics", OPEN_METRICS, take)];
    // Prometheus may know this host by any name.
    let site = Site { what: "metrics", table: "metrics", pages, headers: Vec::new(), refuses_names: false };
    Server::start(address, site)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn ask(address: SocketAddr, method: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "{method} /metrics HTTP/1.1\r\nHost: monitored.example\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn metrics_are_open_metrics_and_can_only_be_read() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let _server = export(address, || "a 1\n# EOF\n".to_owned()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while ask(address, "HEAD").is_err() {
            assert!(Instant::now() < until, "it takes too long");
            std::thread::sleep(Duration::from_millis(10));
        }
        let got = ask(address, "GET").unwrap();
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\na 1\n# EOF\n"), "{got}");
        assert!(got.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{got}");
        assert!(ask(address, "PUT").unwrap().ends_with("metrics can only be read: use GET\n"));
    }
}
