//! What annexd starts with, and what will disappoint all the same. Pure.

use super::config::{Config, Donor, Tls};
use annex_doctor::addresses::{example, host_part, is_loopback};
use annex_doctor::{Check, LEASE_TTL};
use annex_shared::config::{TimeSpan, lease_to_outlast};
use std::collections::{BTreeMap, BTreeSet};

/// `known` is how many donors annexd has now, from wherever.
pub fn lints(config: &Config, known: usize, has_rdma: bool) -> Vec<Check> {
    let mut checks = vec![copies(config, known), shared_hosts(config), examples(config), last_copy(config)];
    checks.extend(takeover_wait(config));
    checks.extend(fault_plans(config));
    checks.extend(rdma_only(config, has_rdma));
    checks.extend(insecure(config));
    checks
}

fn names<'a>(donors: impl Iterator<Item = &'a Donor>) -> String {
    donors.map(Donor::label).collect::<Vec<_>>().join(", ")
}

/// Copies of a page are on different donors, and should be on different hosts.
fn copies(config: &Config, known: usize) -> Check {
    const NAME: &str = "replicas";
    let (donors, copies) = (config.pool.donors.len(), usize::from(config.pool.replicas));
    let hosts: BTreeSet<&str> = config.pool.donors.iter().map(|donor| host_part(&donor.address)).collect();
    let (hosts, has_spill) = (hosts.len(), !config.spill.path.is_empty());
    let remedy = format!("add a [[pool.donor]], or set replicas = {} in [pool]", donors.max(1));
    match () {
        () if donors == 0 && known == 0 && !has_spill => {
            Check::warn(NAME, "the file names no donor", "add a [[pool.donor]], or use annex donors add HOST:PORT")
        }
        () if donors == 0 => Check::ok(NAME, format!("{copies}; the donors come from elsewhere than the file")),
        () if donors < copies && has_spill => Check::warn(
            NAME,
            format!("{copies} copies, and the file names {donors} donors: all pages go to the spill file"),
            remedy,
        ),
        () if donors < copies => {
            Check::fail(NAME, format!("{copies} copies need {copies} donors, and the file names {donors}"), remedy)
        }
        () if hosts < copies => Check::warn(
            NAME,
            format!(
                "copies: {copies}, donors: {donors}, their hosts: {hosts}: a host that fails takes all copies of a page"
            ),
            "add a donor on another host",
        ),
        () => Check::ok(NAME, format!("copies: {copies}, donors: {donors}, their hosts: {hosts}")),
    }
}

fn shared_hosts(config: &Config) -> Check {
    const NAME: &str = "donors on one host";
    let mut by_host: BTreeMap<&str, Vec<&Donor>> = BTreeMap::new();
    for donor in &config.pool.donors {
        by_host.entry(host_part(&donor.address)).or_default().push(donor);
    }
    let crowded: Vec<String> = by_host
        .iter()
        .filter(|(_, donors)| donors.len() > 1)
        .map(|(host, donors)| format!("{} on {host}", names(donors.iter().copied())))
        .collect();
    if crowded.is_empty() || config.pool.replicas == 1 {
        return Check::ok(NAME, "none that count as two copies");
    }
    Check::warn(
        NAME,
        format!("{}: copies there count as two, and are lost together", crowded.join("; ")),
        "name one donor a host; if these are several hosts behind one address, label them (host, rack)",
    )
}

fn examples(config: &Config) -> Check {
    const NAME: &str = "example addresses";
    let left: Vec<String> = config
        .pool
        .donors
        .iter()
        .filter_map(|donor| Some(format!("{} is {}", donor.address, example(&donor.address)?)))
        .collect();
    match left.is_empty() {
        true => Check::ok(NAME, "none left in"),
        false => Check::warn(NAME, left.join("; "), "put the addresses of your donors in [[pool.donor]]"),
    }
}

fn last_copy(config: &Config) -> Check {
    const NAME: &str = "spill";
    match (config.pool.replicas, config.spill.path.as_str()) {
        (1, "") => Check::warn(
            NAME,
            "replicas = 1 and no spill file: a donor that dies takes its pages with it",
            "set replicas = 2 in [pool], or path and size in [spill] for a second copy on disk",
        ),
        (_, "") => Check::ok(NAME, "no spill file; pages have copies on donors"),
        (_, path) => Check::ok(NAME, format!("spill file {path}")),
    }
}

/// The agents' leases must not end while programs wait for the next annexd.
fn takeover_wait(config: &Config) -> Option<Check> {
    const NAME: &str = "takeover_wait";
    let wait: TimeSpan = config.takeover_wait.as_ref()?.parse().ok()?;
    let enough = lease_to_outlast(wait.0);
    Some(match enough > LEASE_TTL {
        false => Check::ok(NAME, wait.to_string()),
        true => Check::warn(
            NAME,
            format!("{wait} is longer than leases outlast unless configured: pages may be lost while programs wait"),
            format!(
                "set lease_ttl = \"{}\" or more in agent.toml of each donor, or a shorter takeover_wait",
                TimeSpan(enough)
            ),
        ),
    })
}

fn fault_plans(config: &Config) -> Option<Check> {
    let planned = || config.pool.donors.iter().filter(|donor| donor.faults.is_some());
    planned().next()?;
    let message = format!("operations of {} fail on purpose", names(planned()));
    Some(Check::fail("fault plans", message, "take faults = … out: it is for tests"))
}

/// Donors that may not be used over TCP, on a host without RDMA.
fn rdma_only(config: &Config, has_rdma: bool) -> Option<Check> {
    let only =
        || config.pool.donors.iter().filter(|d| d.transport == "verbs" || (d.transport == "auto" && !d.tcp_fallback));
    only().next()?;
    Some(match has_rdma {
        true => Check::ok("RDMA only", names(only())),
        false => Check::fail(
            "RDMA only",
            format!("{} may be used over RDMA only, and this host has no active RDMA port", names(only())),
            "set up RDMA (docs/rdma.md), or allow TCP: transport = \"auto\" and tcp_fallback = true",
        ),
    })
}

/// What others on the network can see or do.
fn insecure(config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    let remote = config.pool.donors.iter().filter(|donor| !is_loopback(&donor.address)).count();
    // Whether a [tls] that there is can be used needs its files: annex_doctor::tls.
    if remote > 0 && config.tls == Tls::default() {
        checks.push(Check::warn(
            "network",
            format!("pages go to other machines without encryption or authentication (donors: {remote})"),
            "set ca, cert and key in [tls] (docs/operations.md)",
        ));
    }
    if let Some(listen) = config.metrics.listen.as_ref().filter(|listen| !is_loopback(listen)) {
        let message = format!("everybody who reaches {listen} can read the names of apps and donors");
        checks.push(Check::warn("metrics", message, "listen on 127.0.0.1 in [metrics], or close the port to others"));
    }
    if let Some(listen) = config.web.listen.as_ref().filter(|listen| !is_loopback(listen)) {
        let message = format!("everybody who reaches {listen} can read the names of apps and donors");
        checks.push(Check::warn("page", message, "listen on 127.0.0.1 in [web], and have ssh bring it to you"));
    }
    let open: Vec<&str> = config.kv.listen.iter().map(String::as_str).filter(|listen| !is_loopback(listen)).collect();
    if config.kv.enabled && !open.is_empty() {
        let message = format!("the KV API on {} is not encrypted: passwords and values can be read", open.join(", "));
        checks.push(Check::warn("KV API", message, "listen on 127.0.0.1 in [kv], or use a network that you trust"));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::config::parse;
    use annex_doctor::Outcome;

    fn donors(addresses: &[&str]) -> String {
        addresses.iter().map(|address| format!("[[pool.donor]]\naddress = \"{address}\"\n")).collect()
    }

    fn linted(text: &str) -> Vec<Check> {
        lints(&parse(text).unwrap(), 0, false)
    }

    #[track_caller]
    fn assert_found(text: &str, name: &str, outcome: Outcome, part: &str) {
        let checks = linted(text);
        let found =
            checks.iter().any(|check| check.name == name && check.outcome == outcome && check.message.contains(part));
        assert!(found, "no {name}: {part} in {checks:#?}");
        assert!(checks.iter().all(|check| check.remedy.is_some() == (check.outcome != Outcome::Ok)), "{checks:#?}");
    }

    #[test]
    fn copies_need_as_many_donors_and_hosts() {
        assert_found(&donors(&["a:1"]), "replicas", Outcome::Fail, "2 copies need 2 donors, and the file names 1");
        let spilled = format!("[spill]\npath = '/s'\n{}", donors(&["a:1"]));
        assert_found(&spilled, "replicas", Outcome::Warn, "go to the spill file");
        assert_found(
            &donors(&["a:1", "a:2"]),
            "replicas",
            Outcome::Warn,
            "their hosts: 1: a host that fails takes all copies",
        );
        assert_found(&donors(&["a:1", "b:1"]), "replicas", Outcome::Ok, "copies: 2, donors: 2, their hosts: 2");
        assert_found("", "replicas", Outcome::Warn, "names no donor");
        assert_eq!(lints(&parse("").unwrap(), 2, false)[0].outcome, Outcome::Ok);
    }

    #[test]
    fn two_donors_on_one_host_are_told_from_two_hosts() {
        let three = donors(&["10.0.0.1:7411", "10.0.0.1:7412", "10.0.0.2:7411"]);
        assert_found(&three, "donors on one host", Outcome::Warn, "10.0.0.1:7411, 10.0.0.1:7412 on 10.0.0.1");
        let one_copy = format!("[pool]\nreplicas = 1\n{}", donors(&["a:1", "a:2"]));
        assert_found(&one_copy, "donors on one host", Outcome::Ok, "none");
    }

    #[test]
    fn addresses_of_the_example_are_found() {
        let example = include_str!("../../../systemd/annexd.toml");
        assert_found(example, "example addresses", Outcome::Warn, "donor-a.example:7411 is a name for documents");
        assert_found(&donors(&["203.0.113.5:1", "b:1"]), "example addresses", Outcome::Warn, "203.0.113.5:1");
        assert_found(&donors(&["10.0.0.1:1", "b:1"]), "example addresses", Outcome::Ok, "none");
    }

    #[test]
    fn one_copy_needs_a_spill_file() {
        assert_found("[pool]\nreplicas = 1\n", "spill", Outcome::Warn, "takes its pages with it");
        assert_found("[pool]\nreplicas = 1\n[spill]\npath = '/s'\n", "spill", Outcome::Ok, "/s");
    }

    #[test]
    fn programs_that_wait_longer_than_leases_last_are_told() {
        assert_found("takeover_wait = '5m'", "takeover_wait", Outcome::Warn, "longer than leases outlast");
        assert_found("takeover_wait = '60s'", "takeover_wait", Outcome::Ok, "60s");
    }

    #[test]
    fn what_was_for_a_test_is_found() {
        let text = "[[pool.donor]]\naddress = 'a:1'\nname = 'oak'\nfaults = 'fail=1/97'\n";
        assert_found(text, "fault plans", Outcome::Fail, "oak fail on purpose");
    }

    #[test]
    fn donors_for_rdma_only_need_rdma_here() {
        let text = "[[pool.donor]]\naddress = 'a:1'\ntransport = 'verbs'\n[[pool.donor]]\naddress = 'b:1'\ntcp_fallback = false\n";
        assert_found(text, "RDMA only", Outcome::Fail, "a:1, b:1 may be used over RDMA only");
        let with = lints(&parse(text).unwrap(), 0, true);
        assert!(with.iter().any(|check| check.name == "RDMA only" && check.outcome == Outcome::Ok));
    }

    #[test]
    fn addresses_that_others_reach_are_told() {
        let text = "[kv]\nenabled = true\nlisten = ['0.0.0.0:6379']\n[metrics]\nlisten = '0.0.0.0:9500'\n[web]\nlisten = '[::]:9502'\n";
        assert_found(text, "metrics", Outcome::Warn, "0.0.0.0:9500");
        assert_found(text, "page", Outcome::Warn, "[::]:9502");
        assert_found(text, "KV API", Outcome::Warn, "0.0.0.0:6379");
        let remote = donors(&["10.0.0.1:1", "127.0.0.1:2"]);
        assert_found(&remote, "network", Outcome::Warn, "(donors: 1)");
        let secure = lints(&parse(&format!("{remote}\n[tls]\ncert = 'cert.pem'\n")).unwrap(), 0, true);
        assert!(!secure.iter().any(|check| check.name == "network"), "{secure:?}");
        let local = linted(&donors(&["127.0.0.1:1", "localhost:2"]));
        assert!(!local.iter().any(|check| check.name == "network"), "{local:?}");
    }
}
