//! Whether each donor can be reached, and what annexd says of it.

use super::config;
use annex_doctor::Check;
use annex_shared::api::{DonorInfo, DonorState};
use annex_shared::remedy;
use annex_shared::transport::Transport;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Connections that are measured, and how long each may take.
const CONNECTS: usize = 5;
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How long all of it may take for one donor, the look-up of its name included.
const LIMIT: Duration = Duration::from_secs(8);
/// A page over TCP takes at least this long. Above it programs will feel each fault.
const SLOW: Duration = Duration::from_millis(2);
/// The same for a read that annexd has measured: with all that stands before it in the donor.
const SLOW_READ: Duration = Duration::from_millis(10);
const LENDS_NO_MORE: &str =
    "on that host: annex-agent doctor says what keeps it from lending: memory (headroom), or a limit on locked memory";
const AT_THE_HOST: &str =
    "look whether that host runs and answers (ping), then for a firewall that drops what comes to that port";

/// A donor that the file or annexd names.
#[derive(Clone, Debug)]
pub struct Donor {
    pub name: String,
    pub address: String,
    /// Configured to use TCP.
    pub is_tcp: bool,
    /// What annexd says.
    pub info: Option<DonorInfo>,
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub enum Unreached {
    /// The address leads nowhere.
    Unknown(String),
    Failed(String),
}

/// The file's donors, then those that only annexd knows.
pub fn merge(file: &[config::Donor], known: &[DonorInfo]) -> Vec<Donor> {
    let of_file = file.iter().map(|donor| {
        let info = known.iter().find(|info| info.address == donor.address).cloned();
        let name = info.as_ref().map_or_else(|| donor.label().to_owned(), |info| info.name.clone());
        Donor { name, address: donor.address.clone(), is_tcp: donor.transport == "tcp", info }
    });
    let others = known.iter().filter(|info| file.iter().all(|donor| donor.address != info.address));
    let others = others.map(|info| Donor {
        name: info.name.clone(),
        address: info.address.clone(),
        is_tcp: false,
        info: Some(info.clone()),
    });
    of_file.chain(others).collect()
}

/// The median time that a connection takes, or why there is none. All donors are tried at once.
pub fn reach(donors: &[Donor]) -> Vec<Result<Duration, Unreached>> {
    let (send, receive) = channel();
    for (nth, donor) in donors.iter().enumerate() {
        let (send, address) = (send.clone(), donor.address.clone());
        // Left behind if a name server does not answer; the process ends all the same.
        std::thread::spawn(move || send.send((nth, connect(&address))));
    }
    drop(send);
    let mut found = vec![Err(Unreached::Failed(format!("no answer within {} s", LIMIT.as_secs()))); donors.len()];
    let end = Instant::now() + LIMIT;
    while let Ok((nth, reached)) = receive.recv_timeout(end.saturating_duration_since(Instant::now())) {
        found[nth] = reached;
    }
    found
}

fn connect(address: &str) -> Result<Duration, Unreached> {
    let resolved = address.to_socket_addrs().map_err(|e| Unreached::Unknown(e.to_string()))?;
    let resolved: Vec<SocketAddr> = resolved.collect();
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for to in resolved {
        let times: io::Result<Vec<Duration>> = (0..CONNECTS).map(|_| time(to)).collect();
        match times {
            Ok(mut times) => {
                times.sort();
                return Ok(times[CONNECTS / 2]);
            }
            Err(e) => failure = e,
        }
    }
    Err(Unreached::Failed(failure.to_string()))
}

fn time(to: SocketAddr) -> io::Result<Duration> {
    let begun = Instant::now();
    TcpStream::connect_timeout(&to, CONNECT_LIMIT)?;
    Ok(begun.elapsed())
}

/// What is true for all donors.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    pub annexd_answers: bool,
    /// This host has an RDMA port that is up.
    pub has_rdma: bool,
}

/// Judges one donor.
pub fn judge(donor: &Donor, reached: &Result<Duration, Unreached>, around: Surroundings) -> Check {
    if let Some(info) = donor.info.as_ref().filter(|info| info.is_spill()) {
        return spill(info);
    }
    let named = if donor.name == donor.address { String::new() } else { format!("{}, ", donor.address) };
    let wire = match reached {
        Ok(median) => format!("{named}TCP connect {} µs (median of {CONNECTS})", median.as_micros()),
        Err(Unreached::Unknown(why)) => format!("{named}no such address: {why}"),
        Err(Unreached::Failed(why)) => format!("{named}no TCP connection: {why}"),
    };
    let said = match &donor.info {
        Some(info) => format!("{wire}; annexd: {}", told(info)),
        None => wire.clone(),
    };
    let name = donor.name.clone();
    let info = donor.info.as_ref();
    let state = info.map(|info| info.state);
    let why = info.map_or("", |info| info.why.as_str());
    let is_slow = |median: Duration| {
        let read = Duration::from_micros(info.map_or(0, |info| info.read_us));
        (median > SLOW || read > SLOW_READ).then_some((median > SLOW, read))
    };
    match (reached, state) {
        (Err(_), Some(DonorState::Up)) => {
            Check::warn(name, said, "ask again; if it stays so, new connections to the donor are refused")
        }
        (Err(Unreached::Unknown(_)), _) => Check::fail(name, said, remedy::UNRESOLVED),
        (Err(Unreached::Failed(why)), _) if !why.contains("refused") => Check::fail(name, said, AT_THE_HOST),
        (Err(Unreached::Failed(_)), _) => Check::fail(name, said, remedy::REFUSED),
        (Ok(_), Some(DonorState::Lost | DonorState::Connecting)) if remedy::is_of_identity(why) => {
            Check::fail(name, said, remedy::of_donor(why).unwrap_or(remedy::REFUSED))
        }
        (Ok(_), Some(DonorState::Lost)) => Check::fail(
            name,
            said,
            remedy::of_donor(why).unwrap_or("on that host: journalctl -u annex-agent; here: annex events"),
        ),
        (Ok(_), Some(DonorState::Connecting)) => Check::warn(
            name,
            said,
            remedy::of_donor(why).unwrap_or("wait, then ask again; journalctl -u annexd tells what it waits for"),
        ),
        (Ok(_), None) if around.annexd_answers => {
            Check::warn(name, format!("{said}; annexd does not use it"), "systemctl reload annexd, or annex donors add")
        }
        (Ok(median), _) if let Some((is_path, read)) = is_slow(*median) => {
            let read = if read.is_zero() { String::new() } else { format!(", reads take {} µs", read.as_micros()) };
            let remedy = match is_path {
                true => "look at the path: ping, mtr, other load on the wire",
                false => "on that host see what takes CPU or memory (annex-agent doctor, top), then look at the path",
            };
            Check::warn(name, format!("{said}{read}: slow for pages"), remedy)
        }
        (Ok(_), Some(DonorState::Up)) if let Some(why) = refusal(info) => {
            Check::warn(name, format!("{said}; lends no more: {why}"), LENDS_NO_MORE)
        }
        (Ok(_), Some(DonorState::Up)) if let Some(failed) = rdma(donor, around) => {
            Check::warn(name, format!("{said}; {}", failed.0), failed.1)
        }
        (Ok(_), _) => Check::ok(name, said),
    }
}

/// The last tier is a file of this host.
fn spill(info: &DonorInfo) -> Check {
    let said = told(info);
    match info.state {
        DonorState::Up => Check::ok("spill", said),
        DonorState::Connecting | DonorState::Lost => {
            Check::warn("spill", said, "see the kernel log for its disk (dmesg), and the room on it (df)")
        }
    }
}

/// Why it lends nothing, if that is a fault and not that all is lent.
fn refusal(info: Option<&DonorInfo>) -> Option<&str> {
    info.map(|info| info.refusal.as_str()).filter(|why| !why.is_empty() && !why.contains("no slab left"))
}

/// What keeps a donor from being used over RDMA, and the remedy.
fn rdma(donor: &Donor, around: Surroundings) -> Option<(String, &'static str)> {
    let info = donor.info.as_ref().filter(|info| info.transport == Some(Transport::Tcp) && !donor.is_tcp)?;
    let failed = &info.rdma_failed;
    match failed.as_str() {
        "" if around.has_rdma => Some((
            "this host has RDMA".to_owned(),
            "on that host: annex-agent status says why it offers none; docs/rdma.md",
        )),
        "" => None,
        _ if failed.starts_with("the donor says") => Some((
            "RDMA does not work".to_owned(),
            "on that host: set [verbs] in agent.toml as the reason says; annex-agent doctor there checks it; docs/rdma.md",
        )),
        _ => Some((
            "RDMA does not work".to_owned(),
            "set [pool.verbs] (device, port, gid_index) as the reason says; see RDMA and GID above, and docs/rdma.md",
        )),
    }
}

fn told(info: &DonorInfo) -> String {
    let state = match info.state {
        DonorState::Connecting => "connecting",
        DonorState::Up => "up",
        DonorState::Lost => "lost",
    };
    let over = info.transport.map(|transport| format!(" over {transport}")).unwrap_or_default();
    let why = if info.why.is_empty() { String::new() } else { format!(" ({})", info.why) };
    format!("{state}{over}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_doctor::Outcome;
    use annex_identity::certificate::CertificateError;
    use annex_identity::names::Role;
    use annex_identity::stream::HandshakeError;
    use annex_identity::verify::PeerError;
    use std::net::TcpListener;

    const AROUND: Surroundings = Surroundings { annexd_answers: true, has_rdma: false };

    fn donor(state: Option<&str>) -> Donor {
        let info = state.map(|state| {
            serde_json::from_value(serde_json::json!({
                "name": "oak", "address": "10.0.0.5:7411", "state": state, "transport": "tcp", "why": "no RDMA there",
                "slabs_held": 1, "slabs_free": 1, "slabs_capacity": 2, "used": 0, "reads": 0, "writes": 0, "errors": 0,
                "checksum_errors": 0,
            }))
            .unwrap()
        });
        Donor { name: "oak".into(), address: "10.0.0.5:7411".into(), is_tcp: false, info }
    }

    fn outcome(state: Option<&str>, reached: Result<u64, &str>, around: Surroundings) -> Outcome {
        judge(
            &donor(state),
            &reached.map(Duration::from_micros).map_err(|why| Unreached::Failed(why.to_owned())),
            around,
        )
        .outcome
    }

    #[test]
    fn a_donor_is_judged_by_the_wire_and_by_annexd() {
        assert_eq!(outcome(Some("up"), Ok(120), AROUND), Outcome::Ok);
        assert_eq!(outcome(Some("up"), Err("refused"), AROUND), Outcome::Warn);
        assert_eq!(outcome(Some("lost"), Ok(120), AROUND), Outcome::Fail);
        assert_eq!(outcome(Some("lost"), Err("refused"), AROUND), Outcome::Fail);
        assert_eq!(outcome(Some("connecting"), Ok(120), AROUND), Outcome::Warn);
        assert_eq!(outcome(Some("up"), Ok(5000), AROUND), Outcome::Warn);
        assert_eq!(outcome(None, Ok(120), AROUND), Outcome::Warn);
    }

    /// The remedy was to wait, and no waiting heals a certificate.
    #[test]
    fn a_donor_that_tls_keeps_away_fails_with_what_mends_it() {
        let name = || "annex://c/donor/oak".parse().unwrap();
        let handshake = "the TLS handshake with the agent at 10.0.0.5:7411 failed: ";
        let closed = format!("{handshake}{} (does its configuration have [tls]? …)", HandshakeError::Closed);
        let of = |error: PeerError| format!("{handshake}{error}");
        for (why, remedy) in [
            (of(PeerError::Expired { name: name(), ago: 259_200 }), "on that host: sign a new certificate"),
            (of(PeerError::NotYet { name: name(), left: 9 }), "set the clocks of both hosts"),
            (of(PeerError::Issuer(name())), "put the CA that issued it into the ca file"),
            (of(PeerError::Revoked(name())), "on that host: make a new key"),
            (
                of(PeerError::Role { name: name(), wanted: Role::Donor }),
                "on that host: sign a certificate with the role",
            ),
            (of(PeerError::Cluster(name(), "d".parse().unwrap())), "correct the address"),
            (of(PeerError::Unusable { name: name(), why: "…".into() }), "on that host: sign a new certificate"),
            (of(CertificateError::NoName.into()), "on that host: sign a certificate with a URI"),
            (closed, "set ca, cert and key in [tls] on that host, or take [tls] away here"),
            (
                "it refused: this port takes TLS only: give annexd ca, cert …".into(),
                "set ca, cert and key in [tls] here",
            ),
            (
                "the control connection to oak failed: the peer does not accept this host's certificate: …".into(),
                "on that host: journalctl",
            ),
        ] {
            for state in ["connecting", "lost"] {
                let mut donor = donor(Some(state));
                donor.info.as_mut().unwrap().why = why.clone();
                let check = judge(&donor, &Ok(Duration::from_micros(120)), AROUND);
                let is_told = check.remedy.as_ref().is_some_and(|said| said.starts_with(remedy));
                assert!(check.outcome == Outcome::Fail && is_told, "{why}: {check:?}");
            }
        }
        for why in ["not reached yet", "it did not answer within 5s", "it is shutting down"] {
            assert!(!remedy::is_of_identity(why), "{why}");
        }
    }

    #[test]
    fn without_annexd_the_wire_decides() {
        let alone = Surroundings { annexd_answers: false, ..AROUND };
        assert_eq!(outcome(None, Ok(120), alone), Outcome::Ok);
        assert_eq!(outcome(None, Err("refused"), alone), Outcome::Fail);
    }

    #[test]
    fn tcp_where_rdma_could_be_is_told_with_annexds_reason() {
        let check =
            judge(&donor(Some("up")), &Ok(Duration::from_micros(120)), Surroundings { has_rdma: true, ..AROUND });
        assert_eq!(check.outcome, Outcome::Warn);
        assert!(check.message.contains("up over tcp (no RDMA there)"), "{check:?}");
    }

    #[test]
    fn rdma_that_fails_is_mended_on_the_side_that_is_wrong() {
        let remedy_of = |failed: &str| {
            let mut donor = donor(Some("up"));
            donor.info.as_mut().unwrap().rdma_failed = failed.into();
            let check = judge(&donor, &Ok(Duration::from_micros(120)), AROUND);
            assert_eq!(check.outcome, Outcome::Warn, "{check:?}");
            check.remedy.unwrap()
        };
        assert!(remedy_of("port 1 of RDMA device rxe0 has no GID at gid_index = 99").starts_with("set [pool.verbs]"));
        assert!(remedy_of("the donor says: no RDMA device 'x' here").starts_with("on that host: set [verbs]"));
    }

    #[test]
    fn a_donor_that_is_up_and_slow_or_lends_nothing_is_told() {
        let with = |change: fn(&mut DonorInfo)| {
            let mut donor = donor(Some("up"));
            change(donor.info.as_mut().unwrap());
            judge(&donor, &Ok(Duration::from_micros(120)), AROUND)
        };
        let slow = with(|info| info.read_us = 70_000);
        assert!(slow.outcome == Outcome::Warn && slow.message.contains("reads take 70000 µs: slow"), "{slow:?}");
        let short = with(|info| info.refusal = "it can spare no more memory now: 1 MiB available".into());
        assert!(short.outcome == Outcome::Warn && short.message.contains("lends no more: it can spare"), "{short:?}");
        let lent = with(|info| info.refusal = "it has no slab left to lend (16 slabs, all lent)".into());
        assert_eq!(lent.outcome, Outcome::Ok, "{lent:?}");
        let spill = with(|info| info.address = "spill".into());
        assert_eq!((spill.outcome, spill.name.as_str()), (Outcome::Ok, "spill"));
    }

    #[test]
    fn donors_of_the_file_and_of_annexd_are_one_list() {
        let file = [config::Donor { address: "10.0.0.5:7411".into(), ..config::Donor::default() }];
        let known = donor(Some("up")).info.unwrap();
        let added = DonorInfo { name: "elm".into(), address: "10.0.0.6:7411".into(), ..known.clone() };
        let names: Vec<String> = merge(&file, &[known, added]).into_iter().map(|donor| donor.name).collect();
        assert_eq!(names, ["oak", "elm"]);
    }

    #[test]
    fn a_connection_is_timed_and_a_refusal_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap().to_string();
        let there = Donor { address: open, ..donor(None) };
        let closed = Donor { address: "127.0.0.1:1".into(), ..donor(None) };
        let nowhere = Donor { address: "no-such-host.invalid:1".into(), ..donor(None) };
        let found = reach(&[there, closed, nowhere]);
        assert!(found[0].as_ref().is_ok_and(|median| *median < CONNECT_LIMIT), "{found:?}");
        assert!(
            found[1].as_ref().is_err_and(|why| matches!(why, Unreached::Failed(why) if why.contains("refused"))),
            "{found:?}"
        );
        assert!(matches!(found[2], Err(Unreached::Unknown(_))), "{found:?}");
    }
}
