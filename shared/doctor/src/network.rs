//! The IPv4 addresses of a host.

use crate::host::{Host, Subject, Unread};
use crate::report::Check;
use std::net::Ipv4Addr;

/// All of them, loopback's included, from the table of local routes.
pub fn addresses(host: &Host) -> Result<Vec<Ipv4Addr>, Unread> {
    let text = host.read("proc/net/fib_trie")?;
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut leaf: Option<Ipv4Addr> = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(leaf.take());
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

pub fn check(host: &Host, subject: &Subject) -> Check {
    const NAME: &str = "IPv4 addresses";
    let mut found = match addresses(host) {
        Ok(found) => found,
        Err(unread) => return unread.check(NAME, subject),
    };
    found.retain(|address| !address.is_loopback());
    if found.is_empty() {
        let remedy = "give a network interface an address: ip address add ADDRESS/24 dev INTERFACE";
        return Check::warn(NAME, "none but loopback: other machines can't be reached", remedy);
    }
    let words: Vec<String> = found.iter().map(Ipv4Addr::to_string).collect();
    Check::ok(NAME, words.join(", "))
}
