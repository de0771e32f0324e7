//! What is to be said of `HOST:PORT` by itself.

use std::net::IpAddr;

/// The part before the port, without brackets.
pub fn host_part(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host)
}

/// Only this host has it.
pub fn is_loopback(address: &str) -> bool {
    let host = host_part(address);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Why no real machine has it, if it comes from an example: RFC 5737, 3849 and 2606 set names and
/// addresses apart for documents.
pub fn example(address: &str) -> Option<&'static str> {
    let host = host_part(address).trim_end_matches('.').to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_documentation().then_some("an address for documents (RFC 5737)"),
        Ok(IpAddr::V6(ip)) => (ip.segments()[..2] == [0x2001, 0xdb8]).then_some("an address for documents (RFC 3849)"),
        Err(_) => {
            let ends = [".example", ".invalid", "example.com", "example.net", "example.org"];
            let is_one = ends.iter().any(|end| host.ends_with(end)) || host == "example";
            is_one.then_some("a name for documents (RFC 2606)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_examples_are_told_from_real_ones() {
        for left_in in
            ["192.0.2.7:7411", "198.51.100.1:1", "203.0.113.9:7411", "[2001:db8::1]:7411", "donor-a.example:7411"]
        {
            assert!(example(left_in).is_some(), "{left_in}");
        }
        for real in ["10.0.0.5:7411", "192.0.3.1:7411", "[fd00::1]:7411", "db7:7411", "examples.internal:7411"] {
            assert_eq!(example(real), None, "{real}");
        }
    }

    #[test]
    fn the_host_is_what_stands_before_the_port() {
        assert_eq!(host_part("db7:7411"), "db7");
        assert_eq!(host_part("[::1]:7411"), "::1");
        assert!(is_loopback("[::1]:7411") && is_loopback("127.0.0.1:1") && is_loopback("localhost:1"));
        assert!(!is_loopback("10.0.0.1:1"));
    }
}
