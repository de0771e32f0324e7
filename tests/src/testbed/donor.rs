//! What a donor of a testbed is like.

use std::time::Duration;

/// One donor: an agent, and how annexd is to reach it.
#[derive(Clone, Debug)]
pub struct Donor {
    pub transport: &'static str,
    pub capacity: &'static str,
    /// How long a lease lasts that nobody renews, if not as long as by default.
    pub lease_ttl: Option<&'static str>,
    /// A plan of faults the fabric is to have.
    pub faults: Option<String>,
    /// The agent does not run: the address leads nowhere.
    pub absent: bool,
    /// A process keeps its memory while the agent is down.
    pub kept: bool,
    /// In a network namespace of its own, at the end of a wire that can be cut.
    pub wired: bool,
    /// The test says how much memory its host has available.
    pub pressable: bool,
    /// What is sent to it and by it arrives so much later.
    pub delayed: Option<Duration>,
    /// The command that the agent is run by, such as `prlimit`; empty: none.
    pub under: &'static [&'static str],
    /// More arguments for the agent.
    pub agent_args: &'static [&'static str],
}

impl Donor {
    pub fn shm() -> Donor {
        Donor {
            transport: "shm",
            capacity: "3G",
            lease_ttl: None,
            faults: None,
            absent: false,
            kept: false,
            wired: false,
            pressable: false,
            delayed: None,
            under: &[],
            agent_args: &[],
        }
    }

    pub fn tcp() -> Donor {
        Donor { transport: "tcp", ..Donor::shm() }
    }

    pub fn capacity(self, capacity: &'static str) -> Donor {
        Donor { capacity, ..self }
    }

    pub fn lease_ttl(self, ttl: &'static str) -> Donor {
        Donor { lease_ttl: Some(ttl), ..self }
    }

    pub fn faults(self, plan: &str) -> Donor {
        Donor { faults: Some(plan.into()), ..self }
    }

    pub fn kept(self) -> Donor {
        Donor { kept: true, ..self }
    }

    pub fn wired(self) -> Donor {
        Donor { wired: true, ..self }
    }

    pub fn pressable(self) -> Donor {
        Donor { pressable: true, ..self }
    }

    pub fn agent_args(self, args: &'static [&'static str]) -> Donor {
        Donor { agent_args: args, ..self }
    }

    pub fn delayed(self, by: Duration) -> Donor {
        Donor { delayed: Some(by), ..self }
    }

    pub fn under(self, command: &'static [&'static str]) -> Donor {
        Donor { under: command, ..self }
    }

    pub fn absent(self) -> Donor {
        Donor { absent: true, ..self }
    }
}
