//! Which transport to a donor, and why. Pure: what is known goes in, what to try comes out, and
//! what came of it makes the line that people read.
//!
//! `auto` tries shared memory with an agent on this host, then RDMA, then TCP if `tcp_fallback`
//! allows it. A transport that is configured is tried alone. Whatever was passed over is in the
//! line.

use crate::config::{DonorConfig, TransportChoice};
use annex_shared::wire::{VerbsOffer, Welcome};

/// One thing to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Over the agent's Unix socket.
    Shm(String),
    Verbs,
    Tcp,
}

/// What to try in turn, and what was passed over so far.
#[derive(Debug)]
pub(crate) struct Choice {
    ways: std::vec::IntoIter<Way>,
    passed: Vec<String>,
    /// Only one transport was allowed for.
    is_configured: bool,
}

impl Choice {
    pub fn new(config: &DonorConfig, welcome: &Welcome) -> Choice {
        let mut passed = Vec::new();
        let shm = || welcome.shm_socket.clone().map(Way::Shm);
        let mut verbs = || match &welcome.verbs {
            VerbsOffer::Over(_) => Some(Way::Verbs),
            VerbsOffer::No(why) => {
                passed.push(format!("the donor offers no RDMA (\"{why}\")"));
                None
            }
        };
        let ways: Vec<Way> = match config.transport {
            TransportChoice::Tcp => vec![Way::Tcp],
            TransportChoice::Shm => shm().into_iter().collect(),
            TransportChoice::Verbs => verbs().into_iter().collect(),
            TransportChoice::Auto => {
                let tcp = config.tcp_fallback.then_some(Way::Tcp);
                shm().into_iter().chain(verbs()).chain(tcp).collect()
            }
        };
        if ways.is_empty() && config.transport == TransportChoice::Shm {
            passed.push("its agent is not on this host or has shm_socket off".to_owned());
        }
        Choice { ways: ways.into_iter(), passed, is_configured: config.transport != TransportChoice::Auto }
    }

    /// What to try next.
    pub fn next(&mut self) -> Option<Way> {
        self.ways.next()
    }

    /// What was tried did not work.
    pub fn failed(&mut self, way: &Way, error: impl std::fmt::Display) {
        let name = match way {
            Way::Shm(_) => "shared memory failed",
            Way::Verbs => "verbs failed",
            Way::Tcp => "tcp failed",
        };
        self.passed.push(format!("{name} ({error})"));
    }

    /// Why it is this one. `over` says more about it: the RDMA device.
    pub fn why(&self, way: &Way, over: &str) -> String {
        let what = match way {
            Way::Shm(_) if self.is_configured => "shared memory".to_owned(),
            Way::Shm(_) => "same host: shared memory".to_owned(),
            Way::Verbs => format!("verbs over {over}"),
            Way::Tcp => "tcp".to_owned(),
        };
        match (self.is_configured, self.passed.as_slice()) {
            (true, _) => format!("configured: {what}"),
            (false, []) => what,
            // What was not even looked for before shared memory is of no interest.
            (false, _) if matches!(way, Way::Shm(_)) => what,
            (false, passed) => format!("{}: {what}", passed.join("; ")),
        }
    }

    /// Why there is none.
    pub fn why_none(&self) -> String {
        self.passed.join("; ")
    }
}

/// Whether a donor that offers no RDMA has a device, and something to be mended. `why` is its own
/// word.
pub(crate) fn is_trouble(why: &str) -> bool {
    !["no RDMA device here", "it is switched off"].iter().any(|none| why.starts_with(none))
}

/// The line of a connection that makes do with TCP, after another attempt.
pub(crate) fn why_still_tcp(error: &dyn std::fmt::Display) -> String {
    format!("verbs failed ({error}): tcp")
}

/// True if something better may come: the connection moves to RDMA when that is there.
pub(crate) fn is_fallback(config: &DonorConfig, way: &Way) -> bool {
    config.transport == TransportChoice::Auto && *way == Way::Tcp
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ids::{Incarnation, SessionKey};

    fn welcome(shm: bool, verbs: bool) -> Welcome {
        Welcome {
            version: 3,
            name: "d".into(),
            incarnation: Incarnation(1),
            session: SessionKey(1),
            slab_size: 1 << 26,
            capacity_slabs: 1,
            free_slabs: 1,
            lease_ttl_ms: 1000,
            labels: Default::default(),
            shm_socket: shm.then(|| "/run/annex/agent.sock".to_owned()),
            verbs: if verbs { VerbsOffer::Over("rxe0".into()) } else { VerbsOffer::No("no RDMA device here".into()) },
            held: Vec::new(),
            resumed: None,
        }
    }

    fn config(transport: TransportChoice, tcp_fallback: bool) -> DonorConfig {
        DonorConfig { transport, tcp_fallback, ..DonorConfig::default() }
    }

    /// Tries everything there is, of which only `working` works; the line.
    fn outcome(config: &DonorConfig, welcome: &Welcome, working: &[&str]) -> Result<String, String> {
        let mut choice = Choice::new(config, welcome);
        while let Some(way) = choice.next() {
            let name = match way {
                Way::Shm(_) => "shm",
                Way::Verbs => "verbs",
                Way::Tcp => "tcp",
            };
            if working.contains(&name) {
                return Ok(choice.why(&way, "rxe0 port 1"));
            }
            choice.failed(&way, "it did not work");
        }
        Err(choice.why_none())
    }

    #[test]
    fn auto_takes_shared_memory_then_rdma_then_tcp_and_says_what_it_passed_over() {
        let auto = config(TransportChoice::Auto, true);
        let all = ["shm", "verbs", "tcp"];
        assert_eq!(outcome(&auto, &welcome(true, true), &all).unwrap(), "same host: shared memory");
        assert_eq!(outcome(&auto, &welcome(true, false), &all).unwrap(), "same host: shared memory");
        assert_eq!(outcome(&auto, &welcome(false, true), &all).unwrap(), "verbs over rxe0 port 1");
        assert_eq!(
            outcome(&auto, &welcome(false, false), &all).unwrap(),
            "the donor offers no RDMA (\"no RDMA device here\"): tcp"
        );
        assert_eq!(
            outcome(&auto, &welcome(true, true), &["tcp"]).unwrap(),
            "shared memory failed (it did not work); verbs failed (it did not work): tcp"
        );
    }

    #[test]
    fn without_fallback_a_lack_of_rdma_is_an_error_that_says_why() {
        let strict = config(TransportChoice::Auto, false);
        assert_eq!(
            outcome(&strict, &welcome(false, false), &["tcp"]).unwrap_err(),
            "the donor offers no RDMA (\"no RDMA device here\")"
        );
        assert_eq!(outcome(&strict, &welcome(false, true), &["tcp"]).unwrap_err(), "verbs failed (it did not work)");
        let verbs = config(TransportChoice::Verbs, true);
        assert!(outcome(&verbs, &welcome(true, true), &["shm", "tcp"]).is_err());
        assert_eq!(outcome(&verbs, &welcome(true, true), &["verbs"]).unwrap(), "configured: verbs over rxe0 port 1");
    }

    #[test]
    fn a_configured_transport_is_the_only_one_tried() {
        assert_eq!(
            outcome(&config(TransportChoice::Tcp, true), &welcome(true, true), &["tcp"]).unwrap(),
            "configured: tcp"
        );
        let shm = config(TransportChoice::Shm, true);
        assert_eq!(
            outcome(&shm, &welcome(false, true), &["tcp", "verbs"]).unwrap_err(),
            "its agent is not on this host or has shm_socket off"
        );
    }

    #[test]
    fn a_donor_without_a_device_is_told_from_one_whose_device_is_set_up_wrongly() {
        assert!(!is_trouble(&annex_fabric::verbs::DeviceError::None.to_string()));
        assert!(!is_trouble("it is switched off there (enabled = false in [verbs])"));
        assert!(is_trouble("no RDMA device 'mlx5_7' here; there are: rxe0: set device to one of these"));
        assert!(is_trouble("port 1 of RDMA device rxe0 has no GID at gid_index = 99"));
    }

    #[test]
    fn only_tcp_that_was_not_asked_for_waits_for_something_better() {
        assert!(is_fallback(&config(TransportChoice::Auto, true), &Way::Tcp));
        assert!(!is_fallback(&config(TransportChoice::Auto, true), &Way::Verbs));
        assert!(!is_fallback(&config(TransportChoice::Tcp, true), &Way::Tcp));
    }
}
