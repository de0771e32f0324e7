//! Why the pool has no room: what it lacks of all that a page needs, and what to do about it.
//! [`sentence`] is pure.

use super::Pool;
use annex_shared::api::{DonorState, format_bytes};
use annex_shared::page::PAGE_SIZE;

/// Fewer words for the same thing, wherever it is the remedy.
const ADD: &str = "add one (annex donors add HOST:PORT)";

/// How a pool stands. Donors that are to be removed don't count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stand {
    pub replicas: usize,
    pub donors: usize,
    pub up: usize,
    /// Of those that are up.
    pub with_room: usize,
    /// `max_bytes`, if the pool has grown to it.
    pub limit: Option<u64>,
    pub spill: Option<SpillStand>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpillStand {
    Down,
    Full,
    HasRoom,
}

/// What lacks, and the remedy.
pub(crate) fn sentence(stand: &Stand) -> String {
    let Stand { replicas, donors, up, with_room, .. } = *stand;
    let copies = if replicas == 1 { "a copy needs 1".to_owned() } else { format!("{replicas} copies need {replicas}") };
    if let Some(limit) = stand.limit {
        return format!("it has grown to max_bytes = {} in [pool]: raise that", format_bytes(limit));
    }
    let of_donors = match (donors, up, with_room) {
        (0, ..) => format!("there is no donor: {ADD}"),
        (_, 0, _) => {
            "no donor is up: see that annex-agent runs there and can be reached (annex donors says why)".to_owned()
        }
        (n, up, _) if n < replicas => {
            let donors = if n == 1 { "there is 1 donor" } else { &format!("there are {n} donors") };
            let down = if up < n { format!(", {up} of them up") } else { String::new() };
            format!("{donors}{down}, and {copies}: {ADD}, or set replicas = {n} in [pool]")
        }
        (n, up, _) if up < replicas => {
            format!(
                "{up} of {n} donors {} up, and {copies}: bring another one up (annex donors says why it is not)",
                are(up)
            )
        }
        (_, _, 0) => format!("no donor has room: raise capacity on one, or {ADD}"),
        (n, _, room) if room < replicas => {
            let has = if room == 1 { "has" } else { "have" };
            format!("{room} of {n} donors {has} room, and {copies}: raise capacity on another one, or {ADD}")
        }
        _ => "donors are asked for more".to_owned(),
    };
    match stand.spill {
        None | Some(SpillStand::HasRoom) => of_donors,
        Some(SpillStand::Full) => format!("{of_donors}; or raise size in [spill]: the spill file is full too"),
        Some(SpillStand::Down) => format!("{of_donors}; the spill file can't be reached either"),
    }
}

fn are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

impl Pool {
    /// Why programs get no slots now, and what to do about it.
    pub fn why_no_room(&self) -> String {
        match self.is_kept_for_kv() {
            true => "what is left is kept for the KV API: lower pool_min in [kv], or add a donor".to_owned(),
            false => self.lack(),
        }
    }

    /// Why the pool has no room.
    pub(crate) fn lack(&self) -> String {
        let core = &self.core;
        let is_used = |d: &&crate::donor::view::Donor| self.is_real(d) && d.config.lock().is_some();
        let views: Vec<_> = core.donors().filter(is_used).map(|d| d.view.lock().clone()).collect();
        let staying = || views.iter().filter(|v| !v.draining);
        let up = || staying().filter(|v| v.state == DonorState::Up);
        let extent = u64::from(core.extents.slots_per_extent().unwrap_or(0)) * PAGE_SIZE as u64;
        let held = core.extents.live().count() as u64 * extent;
        let limit = core.config.max_bytes.0;
        let spill = core.spill.map(|_| match (self.spill_is_up(), self.spill_room()) {
            (false, _) => SpillStand::Down,
            (true, 0) => SpillStand::Full,
            (true, _) => SpillStand::HasRoom,
        });
        sentence(&Stand {
            replicas: core.config.replicas.into(),
            donors: staying().count(),
            up: up().count(),
            with_room: up().filter(|v| v.free > 0).count(),
            limit: (limit > 0 && extent > 0 && held + extent > limit).then_some(limit),
            spill,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "The pool is full" was said for each of them.
    #[test]
    fn each_lack_is_named_with_its_remedy() {
        let stand = Stand { replicas: 2, donors: 3, up: 3, ..Stand::default() };
        for (stand, lack, remedy) in [
            (Stand { donors: 0, up: 0, ..stand }, "there is no donor", "annex donors add"),
            (Stand { up: 0, ..stand }, "no donor is up", "see that annex-agent runs there"),
            (
                Stand { donors: 1, up: 1, with_room: 1, ..stand },
                "there is 1 donor, and 2 copies need 2",
                "replicas = 1",
            ),
            (Stand { up: 1, with_room: 1, ..stand }, "1 of 3 donors is up", "bring another one up"),
            (stand, "no donor has room", "raise capacity"),
            (Stand { with_room: 1, ..stand }, "1 of 3 donors has room", "raise capacity on another one"),
            (Stand { limit: Some(1 << 30), ..stand }, "max_bytes = 1 GiB", "raise that"),
            (Stand { spill: Some(SpillStand::Full), ..stand }, "the spill file is full too", "raise size in [spill]"),
            (Stand { spill: Some(SpillStand::Down), ..stand }, "can't be reached either", "raise capacity"),
        ] {
            let said = sentence(&stand);
            assert!(said.contains(lack) && said.contains(remedy), "{said}");
        }
        assert_eq!(sentence(&Stand { with_room: 3, ..stand }), "donors are asked for more");
    }
}
