//! What is done to the guests, each a script of its own. One that returns without an error has
//! shown what it says.

mod calls;
mod donors;
mod keys;
mod packages;
mod plain;
mod roce;
mod speed;
mod systemd;
mod trouble;
mod verbs;

use super::lab::Lab;

pub struct Scenario {
    pub name: &'static str,
    /// What it shows.
    pub shows: &'static str,
    pub play: fn(&mut Lab) -> anyhow::Result<()>,
}

/// In the order in which they are run: those that need few guests first.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "roce",
        shows: "guests have Soft-RoCE between them: ib_read_lat, ib_write_bw",
        play: roce::devices,
    },
    Scenario {
        name: "packages",
        shows: "the packages installed, upgraded under load, removed and purged: nothing is lost, nothing is left",
        play: packages::under_load,
    },
    Scenario {
        name: "annexd-killed",
        shows: "systemctl kill, reload and restart of annexd under load",
        play: systemd::annexd,
    },
    Scenario {
        name: "agent-killed",
        shows: "systemctl kill and restart of annex-agent under load",
        play: systemd::agent,
    },
    Scenario {
        name: "verbs-keys",
        shows: "stolen keys, and keys of leases that are over, on a real device",
        play: verbs::keys,
    },
    Scenario {
        name: "verbs",
        shows: "redis-server and the stress program over RDMA alone, and annexd stopped in order",
        play: verbs::workloads,
    },
    Scenario {
        name: "one-sided",
        shows: "agents use no CPU while pages come and go over RDMA, and do over TCP",
        play: verbs::one_sided,
    },
    Scenario {
        name: "calls",
        shows: "system calls of a fault worker per page that comes over RDMA: no more than are needed",
        play: calls::per_page,
    },
    Scenario {
        name: "device-lost",
        shows: "rdma_rxe unloaded and loaded again, with tcp to fall back to and without",
        play: verbs::device_lost,
    },
    Scenario {
        name: "no-verbs",
        shows: "RoCE blocked on the way, memory that may not be locked, a port that goes down: what is said, and what takes its place",
        play: trouble::of_verbs,
    },
    Scenario {
        name: "reasons",
        shows: "a device, port or GID that is configured wrongly, no device: what is said, and that TCP makes do",
        play: trouble::of_settings,
    },
    Scenario {
        name: "kv",
        shows: "the KV API over RDMA alone: values stored anew while a donor's power goes",
        play: keys::over_verbs,
    },
    Scenario {
        name: "donors-lost",
        shows: "a donor cut off, one without power: failover, and repair onto the third",
        play: donors::lost,
    },
    Scenario {
        name: "no-libibverbs",
        shows: "both programs on machines without libibverbs",
        play: plain::without_libibverbs,
    },
];

/// What measures and holds nothing against a bar: run when named.
pub const MEASURES: &[Scenario] = &[Scenario {
    name: "speed",
    shows: "READ, WRITE and faults over verbs beside ib_read_lat, ib_write_bw and a bare userfaultfd handler",
    play: speed::ratios,
}];
