//! What an agent starts with, and what will disappoint all the same. Pure.

use crate::config::Terms;
use annex_doctor::addresses::example;
use annex_doctor::{Check, TAKEOVER_WAIT};
use annex_shared::api::format_bytes;
use annex_shared::config::lease_to_outlast;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// The machine that is to lend.
pub struct HostState {
    /// Bytes.
    pub total: u64,
    pub available: u64,
    /// What a running agent has allocated already.
    pub lent: u64,
    /// Its IPv4 addresses; none if they are not known.
    pub addresses: Vec<Ipv4Addr>,
    /// The most memory the agent may lock; `None`: all.
    pub lockable: Option<u64>,
    pub is_running: bool,
    /// Whether the configured address could be listened on.
    pub listen: io::Result<()>,
}

pub fn lints(terms: &Terms, machine: &HostState) -> Vec<Check> {
    let mut checks = vec![capacity(terms, machine), locked(terms, machine), lease(terms), listen(terms, machine)];
    checks.extend(insecure(terms));
    checks.extend(example_label(terms));
    checks
}

fn capacity(terms: &Terms, machine: &HostState) -> Check {
    const NAME: &str = "capacity";
    let most = u64::from(terms.capacity_slabs) * terms.slab_size;
    let (capacity, headroom) = (format_bytes(most), format_bytes(terms.headroom));
    let now = (machine.available + machine.lent).saturating_sub(terms.headroom);
    match () {
        () if most + terms.headroom > machine.total => Check::warn(
            NAME,
            format!(
                "capacity {capacity} and headroom {headroom} are more than this machine's {}",
                format_bytes(machine.total)
            ),
            "lower capacity, so that clients do not count on what they can't get",
        ),
        () if now < terms.slab_size => Check::fail(
            NAME,
            format!(
                "nothing can be lent: {} are available, and headroom is {headroom}",
                format_bytes(machine.available)
            ),
            "end programs on this host, or lower headroom",
        ),
        () if now < most => Check::warn(
            NAME,
            format!("{capacity}, of which {} can be lent now: headroom is {headroom}", format_bytes(now)),
            "lower capacity, end programs on this host, or leave it: the rest is lent once it is free",
        ),
        () => Check::ok(NAME, format!("{capacity}, with headroom {headroom}")),
    }
}

fn locked(terms: &Terms, machine: &HostState) -> Check {
    const NAME: &str = "locked memory";
    let most = u64::from(terms.capacity_slabs) * terms.slab_size;
    let Some(lockable) = machine.lockable.filter(|lockable| *lockable < most) else {
        return Check::ok(NAME, "all that is lent may be locked and registered");
    };
    let (lockable, most) = (format_bytes(lockable), format_bytes(most));
    let remedy = "set LimitMEMLOCK=infinity in the unit of annex-agent, as it is shipped";
    match machine.is_running {
        true => Check::fail(NAME, format!("the agent may lock {lockable}, and capacity is {most}"), remedy),
        false => {
            Check::warn(NAME, format!("an agent started here may lock {lockable}, and capacity is {most}"), remedy)
        }
    }
}

fn lease(terms: &Terms) -> Check {
    const NAME: &str = "lease_ttl";
    let lasts = format!("leases last {} s", terms.lease_ttl.as_secs_f32());
    let (wait, enough) = (TAKEOVER_WAIT.as_secs(), lease_to_outlast(TAKEOVER_WAIT));
    match terms.lease_ttl < enough {
        false => Check::ok(NAME, lasts),
        true => Check::warn(
            NAME,
            format!(
                "{lasts}, a third of which may be over when annexd is killed; its programs wait {wait} s for the next one"
            ),
            format!("set lease_ttl = \"{}s\" or more, or takeover_wait shorter on all clients", enough.as_secs()),
        ),
    }
}

fn listen(terms: &Terms, machine: &HostState) -> Check {
    const NAME: &str = "listen";
    let address = terms.listen;
    let is_here = match address.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_loopback() || machine.addresses.contains(&ip),
        // The kernel says.
        IpAddr::V6(_) => true,
    };
    if !is_here && !machine.addresses.is_empty() {
        let from = example(&address.to_string()).map(|what| format!(", but {what}")).unwrap_or_default();
        let have: Vec<String> =
            machine.addresses.iter().filter(|ip| !ip.is_loopback()).map(Ipv4Addr::to_string).collect();
        let message = format!("{address} is no address of this machine{from}");
        return Check::fail(NAME, message, format!("set listen to one that it has: {}", have.join(", ")));
    }
    match machine.listen.as_ref().map_err(io::Error::kind) {
        Err(io::ErrorKind::AddrInUse) => Check::fail(
            NAME,
            format!("{address} is in use, by something that does not answer as this agent"),
            format!("ss -tlnp sport = :{} shows which program has it", address.port()),
        ),
        Err(io::ErrorKind::PermissionDenied) => Check::warn(
            NAME,
            format!("{address} may not be used by this user"),
            "run it as root: sudo annex-agent doctor",
        ),
        Err(kind) => Check::fail(NAME, format!("{address} can't be used: {kind}"), "set listen to another address"),
        Ok(()) if address.port() == 0 => {
            Check::warn(NAME, "port 0: a free one each time, which clients do not know", "set a port, such as 7411")
        }
        Ok(()) if address.ip().is_loopback() => Check::warn(
            NAME,
            format!("{address} is reached by clients on this machine only"),
            "set listen to an address of the network that clients are on, with [tls] (docs/operations.md)",
        ),
        Ok(()) => Check::ok(NAME, address.to_string()),
    }
}

fn insecure(terms: &Terms) -> Vec<Check> {
    let mut checks = Vec::new();
    // Whether a [tls] that there is can be used needs its files: annex_doctor::tls.
    if !terms.listen.ip().is_loopback() && terms.tls.is_none() {
        checks.push(Check::warn(
            "network",
            format!("whoever reaches {} can borrow memory, and who sees the network sees pages", terms.listen),
            "set ca, cert and key in [tls] (docs/operations.md)",
        ));
    }
    if terms.also_plain {
        checks.push(Check::warn(
            "network",
            format!("beside TLS, whoever reaches {} without it can borrow memory", terms.listen),
            "take also_plain out as soon as all clients have certificates",
        ));
    }
    if let Some(metrics) = terms.metrics.filter(|address| !address.ip().is_loopback()) {
        checks.push(Check::warn(
            "metrics",
            format!("everybody who reaches {metrics} can read them"),
            "listen on 127.0.0.1 in [metrics], or close the port to others",
        ));
    }
    checks
}

/// A rack that the example made up: donors of different racks then count as of one.
fn example_label(terms: &Terms) -> Option<Check> {
    (terms.labels.get("rack").map(String::as_str) == Some("r7")).then(|| {
        Check::warn(
            "labels",
            "rack = \"r7\" is the example's: copies avoid sharing a rack, by this name",
            "set the rack that this machine is in, if it is another",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::pressure::HostMemory;
    use annex_doctor::{LEASE_TTL, Outcome};
    use annex_shared::config::{ByteSize, TimeSpan};
    use std::time::Duration;

    fn machine() -> HostState {
        HostState {
            total: 16 << 30,
            available: 12 << 30,
            lent: 0,
            addresses: vec!["10.0.0.5".parse().unwrap(), Ipv4Addr::LOCALHOST],
            lockable: None,
            is_running: false,
            listen: Ok(()),
        }
    }

    fn terms(change: impl FnOnce(&mut Config)) -> Terms {
        let mut config = Config { insecure: true, listen: "10.0.0.5:7411".parse().unwrap(), ..Config::default() };
        change(&mut config);
        let memory = HostMemory { total: 16 << 30, available: 12 << 30, huge_total: 0, huge_free: 0 };
        config.resolve(&memory, "oak").unwrap()
    }

    #[track_caller]
    fn assert_found(terms: &Terms, machine: &HostState, name: &str, outcome: Outcome, part: &str) {
        let checks = lints(terms, machine);
        let found = checks.iter().any(|c| c.name == name && c.outcome == outcome && c.message.contains(part));
        assert!(found, "no {name}: {part} in {checks:#?}");
        assert!(checks.iter().all(|check| check.remedy.is_some() == (check.outcome != Outcome::Ok)), "{checks:#?}");
    }

    #[test]
    fn a_good_configuration_has_only_its_network_to_look_at() {
        let bad: Vec<String> = lints(&terms(|_| ()), &machine())
            .into_iter()
            .filter(|check| check.outcome != Outcome::Ok)
            .map(|check| check.name)
            .collect();
        assert_eq!(bad, ["network"]);
    }

    #[test]
    fn what_can_not_be_lent_is_told() {
        let big = terms(|c| c.capacity = Some(ByteSize(16 << 30)));
        assert_found(&big, &machine(), "capacity", Outcome::Warn, "are more than this machine's 16 GiB");
        let half = terms(|c| c.capacity = Some(ByteSize(12 << 30)));
        assert_found(&half, &machine(), "capacity", Outcome::Warn, "of which 11.2 GiB can be lent now");
        let lending = HostState { available: 1 << 30, lent: 12 << 30, ..machine() };
        assert_found(&half, &lending, "capacity", Outcome::Ok, "12 GiB");
        let short = HostState { available: 512 << 20, ..machine() };
        assert_found(&half, &short, "capacity", Outcome::Fail, "nothing can be lent: 512 MiB are available");
    }

    #[test]
    fn memory_that_may_not_be_locked_can_not_be_registered() {
        let small = HostState { lockable: Some(8 << 20), is_running: true, ..machine() };
        assert_found(&terms(|_| ()), &small, "locked memory", Outcome::Fail, "may lock 8 MiB, and capacity is 4 GiB");
        let shell = HostState { is_running: false, ..small };
        assert_found(&terms(|_| ()), &shell, "locked memory", Outcome::Warn, "started here");
    }

    #[test]
    fn a_lease_outlasts_a_takeover() {
        let short = terms(|c| c.lease_ttl = TimeSpan(Duration::from_secs(30)));
        assert_found(&short, &machine(), "lease_ttl", Outcome::Warn, "leases last 30 s");
        // One that annexd had renewed 20 s before it was killed.
        let even = terms(|c| c.lease_ttl = TimeSpan(TAKEOVER_WAIT));
        assert_found(&even, &machine(), "lease_ttl", Outcome::Warn, "leases last 60 s");
        assert_eq!(Config::default().lease_ttl.0, LEASE_TTL);
        assert_found(&terms(|_| ()), &machine(), "lease_ttl", Outcome::Ok, "leases last 120 s");
    }

    #[test]
    fn an_address_that_can_not_be_had_is_told() {
        let other = terms(|c| c.listen = "192.0.2.77:7411".parse().unwrap());
        assert_found(&other, &machine(), "listen", Outcome::Fail, "but an address for documents");
        let own = HostState { addresses: vec!["192.0.2.77".parse().unwrap()], ..machine() };
        assert_found(&other, &own, "listen", Outcome::Ok, "192.0.2.77:7411");
        let used = HostState { listen: Err(io::ErrorKind::AddrInUse.into()), ..machine() };
        assert_found(&terms(|_| ()), &used, "listen", Outcome::Fail, "10.0.0.5:7411 is in use");
        let alone = terms(|c| c.listen = "127.0.0.1:7411".parse().unwrap());
        assert_found(&alone, &machine(), "listen", Outcome::Warn, "on this machine only");
        let any = terms(|c| c.listen = "0.0.0.0:0".parse().unwrap());
        assert_found(&any, &machine(), "listen", Outcome::Warn, "port 0");
    }

    #[test]
    fn what_others_reach_and_what_the_example_made_up_is_told() {
        assert_found(&terms(|_| ()), &machine(), "network", Outcome::Warn, "10.0.0.5:7411");
        let pem = |name: &str| Some(std::path::PathBuf::from(name));
        let secure = terms(|config| {
            (config.tls.ca, config.tls.cert, config.tls.key) = (pem("ca.pem"), pem("cert.pem"), pem("key.pem"));
        });
        let checks = lints(&secure, &machine());
        assert!(!checks.iter().any(|check| check.name == "network"), "{checks:#?}");
        let open = terms(|c| c.metrics.listen = Some("0.0.0.0:9501".parse().unwrap()));
        assert_found(&open, &machine(), "metrics", Outcome::Warn, "0.0.0.0:9501");
        let rack = terms(|c| drop(c.labels.insert("rack".into(), "r7".into())));
        assert_found(&rack, &machine(), "labels", Outcome::Warn, "r7");
    }
}
