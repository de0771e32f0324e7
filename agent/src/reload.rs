//! The configuration read again by an agent that is at work: what of it is taken, and what waits
//! for a restart.
//!
//! A configuration that can't work is refused whole. Of one that can, these keys are taken at once:
//! `capacity`, `per_client`, `headroom`, `spare_slabs`, `recall_deadline`, `grace`,
//! `max_connections`, `[access]` and `log`. All others are what clients were told, or what stands
//! open, and need a restart, which costs nobody anything either.
//!
//! Leases go on whatever changes. What is lent over a lowered capacity stays lent until its client
//! returns it; nothing else is lent meanwhile.

use crate::config::{BadConfig, Config, Terms};
use crate::lender::Lender;
use crate::places::Places;
use crate::pressure::HostMemory;
use annex_shared::api::format_bytes;
use annex_shared::config::{ByteSize, TimeSpan};
use std::fmt::Display;

/// What became of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What is taken: `capacity from 4 GiB to 8 GiB`.
    pub taken: Vec<String>,
    /// Keys that were changed and need a restart.
    pub waiting: Vec<&'static str>,
    /// What is to be logged from now on.
    pub log: String,
}

impl Reloaded {
    /// In words.
    pub fn summary(&self) -> String {
        match (self.taken.is_empty(), self.waiting.is_empty()) {
            (false, _) => self.taken.join(", "),
            (true, true) => "nothing has changed".to_owned(),
            (true, false) => "nothing of what has changed can be taken while the agent runs".to_owned(),
        }
    }

    /// Notes that `key` is now something else.
    fn note(&mut self, key: &str, before: impl Display, now: impl Display) {
        self.taken.push(format!("{key} from {before} to {now}"));
    }
}

/// Takes what can be taken of a configuration, on a host of this memory and name.
pub fn take(
    lender: &Lender,
    places: &Places,
    mut config: Config,
    host: &HostMemory,
    name: &str,
) -> Result<Reloaded, BadConfig> {
    let before = lender.terms();
    // As an agent that is started next would see it.
    let asked = config.clone().resolve(host, name)?;
    if asked.tls != before.tls {
        asked.identity()?;
    }
    // As this one sees it: other numbers of slabs, if they are to be of another size.
    config.slab_size = ByteSize(before.slab_size);
    config.hugepages = before.hugepages;
    config.prefault = before.prefault;
    let mut next = config.clone().resolve(host, name)?;
    let mut waiting = changed_for_the_next(&before, &asked);
    // Prefaulted memory is made at the start, and a place for each slab, too.
    if next.capacity_slabs != before.capacity_slabs && (before.prefault || next.capacity_slabs > lender.slabs()) {
        waiting.push("capacity");
        config.capacity = Some(ByteSize(u64::from(before.capacity_slabs) * before.slab_size));
        next = config.resolve(host, name)?;
    }

    let mut reloaded = Reloaded { waiting, log: next.log.clone(), ..Reloaded::default() };
    let bytes = |slabs: u32| format_bytes(u64::from(slabs) * before.slab_size);
    if next.capacity_slabs != before.capacity_slabs {
        reloaded.note("capacity", bytes(before.capacity_slabs), bytes(next.capacity_slabs));
    }
    if next.per_client_slabs != before.per_client_slabs {
        reloaded.note("per_client", bytes(before.per_client_slabs), bytes(next.per_client_slabs));
    }
    if next.headroom != before.headroom {
        reloaded.note("headroom", format_bytes(before.headroom), format_bytes(next.headroom));
    }
    if next.keep_slabs != before.keep_slabs && !before.prefault {
        reloaded.note("spare_slabs", before.keep_slabs, next.keep_slabs);
    }
    if next.recall_deadline != before.recall_deadline {
        reloaded.note("recall_deadline", TimeSpan(before.recall_deadline), TimeSpan(next.recall_deadline));
    }
    if next.grace != before.grace {
        reloaded.note("grace", TimeSpan(before.grace), TimeSpan(next.grace));
    }
    if next.max_connections != before.max_connections {
        reloaded.note("max_connections", before.max_connections, next.max_connections);
    }
    if next.access != before.access {
        reloaded.note("[access]", before.access.summary(), next.access.summary());
    }
    if next.log != before.log {
        reloaded.note("log", &before.log, &next.log);
    }
    places.set_most(next.max_connections);
    lender.change_terms(Terms {
        capacity_slabs: next.capacity_slabs,
        per_client_slabs: next.per_client_slabs,
        headroom: next.headroom,
        keep_slabs: next.keep_slabs,
        recall_deadline: next.recall_deadline,
        grace: next.grace,
        max_connections: next.max_connections,
        access: next.access,
        log: next.log,
        ..(*before).clone()
    });
    Ok(reloaded)
}

/// The keys that differ and are of the agent that is started next.
fn changed_for_the_next(before: &Terms, asked: &Terms) -> Vec<&'static str> {
    // All of them are named, so that a new one is not forgotten here.
    let Terms {
        listen,
        name,
        slab_size,
        hugepages,
        prefault,
        lease_ttl,
        shm_socket,
        control_socket,
        keeper,
        tls,
        also_plain,
        renew,
        ca,
        labels,
        log_format,
        verbs,
        metrics,
        // Taken at once, or decided by the others.
        capacity_slabs: _,
        most_slabs: _,
        per_client_slabs: _,
        headroom: _,
        keep_slabs: _,
        recall_deadline: _,
        grace: _,
        max_connections: _,
        access: _,
        log: _,
        shm_is_default: _,
        control_is_default: _,
        host: _,
    } = asked;
    let differs = [
        ("listen", *listen != before.listen),
        ("name", *name != before.name),
        ("slab_size", *slab_size != before.slab_size),
        ("hugepages", *hugepages != before.hugepages),
        ("prefault", *prefault != before.prefault),
        ("lease_ttl", *lease_ttl != before.lease_ttl),
        ("shm_socket", *shm_socket != before.shm_socket),
        ("control_socket", *control_socket != before.control_socket),
        ("keeper", *keeper != before.keeper),
        ("also_plain", *also_plain != before.also_plain),
        ("[tls]", (tls, renew) != (&before.tls, &before.renew)),
        ("[ca]", *ca != before.ca),
        ("[labels]", *labels != before.labels),
        ("log_format", *log_format != before.log_format),
        ("[verbs]", *verbs != before.verbs),
        ("[metrics]", *metrics != before.metrics),
    ];
    differs.into_iter().filter_map(|(key, is_other)| is_other.then_some(key)).collect()
}
