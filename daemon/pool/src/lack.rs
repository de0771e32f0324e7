//! Why the pool has no room: what it lacks of all that a page needs, and what to do about it.
//! [`judge`] is pure.

use crate::core::PoolCore;
use crate::donor::view::Donor;
use annex_shared::api::{DonorState, format_bytes};
use annex_shared::page::PAGE_SIZE;
use annex_shared::wire::Refusal;
use std::fmt;

/// Fewer words for the same thing, wherever it is the remedy.
const ADD: &str = "add one (annex donors add HOST:PORT)";

/// How a pool stands. Donors that are to be removed don't count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stand {
    pub replicas: usize,
    pub donors: usize,
    pub up: usize,
    /// Of those that are up.
    pub with_room: usize,
    /// What those said that are up and lent nothing when they were asked last.
    pub refusals: Vec<(String, Refusal)>,
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

/// What lacks, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    pub what: String,
    pub remedy: String,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lack { what, remedy } = self;
        write!(f, "{what}: {remedy}")
    }
}

pub(crate) fn judge(stand: &Stand) -> Lack {
    let lack = |what: String, remedy: String| Lack { what, remedy };
    if let Some(limit) = stand.limit {
        return lack(format!("it has grown to max_bytes = {} in [pool]", format_bytes(limit)), "raise that".to_owned());
    }
    let Lack { what, remedy } = of_donors(stand);
    match stand.spill {
        None | Some(SpillStand::HasRoom) => lack(what, remedy),
        Some(SpillStand::Full) => {
            lack(format!("{what}; the spill file is full too"), format!("{remedy}; or raise size in [spill]"))
        }
        Some(SpillStand::Down) => lack(format!("{what}; the spill file can't be reached either"), remedy),
    }
}

fn of_donors(stand: &Stand) -> Lack {
    let Stand { replicas, donors, up, with_room, .. } = *stand;
    let copies = if replicas == 1 { "a copy needs 1".to_owned() } else { format!("{replicas} copies need {replicas}") };
    let said = told(&stand.refusals);
    let is_all_lent = stand.refusals.iter().all(|(_, refusal)| matches!(refusal, Refusal::Full { .. }));
    let mend = if is_all_lent { "raise capacity on" } else { "see annex-agent doctor on the host of" };
    let (what, remedy) = match (donors, up, with_room) {
        (0, ..) => ("there is no donor".to_owned(), ADD.to_owned()),
        (_, 0, _) => (
            "no donor is up".to_owned(),
            "see that annex-agent runs there and can be reached (annex donors says why)".to_owned(),
        ),
        (n, up, _) if n < replicas => {
            let donors = if n == 1 { "there is 1 donor" } else { &format!("there are {n} donors") };
            let down = if up < n { format!(", {up} of them up") } else { String::new() };
            (format!("{donors}{down}, and {copies}"), format!("{ADD}, or set replicas = {n} in [pool]"))
        }
        (n, up, _) if up < replicas => (
            format!("{up} of {n} donors {} up, and {copies}", are(up)),
            "bring another one up (annex donors says why it is not)".to_owned(),
        ),
        (_, _, 0) => (format!("no donor has room{said}"), format!("{mend} one, or {ADD}")),
        (n, _, room) if room < replicas => {
            let has = if room == 1 { "has" } else { "have" };
            (format!("{room} of {n} donors {has} room{said}, and {copies}"), format!("{mend} another one, or {ADD}"))
        }
        _ if said.is_empty() => ("donors are asked for more".to_owned(), "wait a moment".to_owned()),
        _ => (format!("donors lend nothing though they have room{said}"), format!("{mend} one, or {ADD}")),
    };
    Lack { what, remedy }
}

fn are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

/// Who lends nothing and why, in brackets: three are enough.
fn told(refusals: &[(String, Refusal)]) -> String {
    let each: Vec<String> = refusals.iter().take(3).map(|(name, refusal)| format!("{name}: it {refusal}")).collect();
    if each.is_empty() { String::new() } else { format!(" ({})", each.join("; ")) }
}

impl PoolCore {
    /// Why the pool has no room.
    pub(crate) fn lack(&self) -> Lack {
        let is_used = |d: &&Donor| !self.is_spill(d.id) && d.config.lock().is_some();
        let views: Vec<_> = self.donors().filter(is_used).map(|d| d.view.lock().clone()).collect();
        let staying = || views.iter().filter(|v| !v.draining);
        let up = || staying().filter(|v| v.state == DonorState::Up);
        let extent = u64::from(self.extents.slots_per_extent().unwrap_or(0)) * PAGE_SIZE as u64;
        let held = self.extents.live().count() as u64 * extent;
        let limit = self.config.max_bytes.0;
        let spill = self.spill.map(|_| match (self.spill_is_up(), self.spill_room()) {
            (false, _) => SpillStand::Down,
            (true, 0) => SpillStand::Full,
            (true, _) => SpillStand::HasRoom,
        });
        judge(&Stand {
            replicas: self.config.replicas.into(),
            donors: staying().count(),
            up: up().count(),
            with_room: up().filter(|v| v.free > 0).count(),
            refusals: up().filter_map(|v| Some((v.name.clone(), v.refusal.clone()?))).collect(),
            limit: (limit > 0 && extent > 0 && held + extent > limit).then_some(limit),
            spill,
        })
    }

    /// True if the spill file can take pages now.
    pub(crate) fn spill_is_up(&self) -> bool {
        let donor = self.spill.and_then(|id| self.donor(id));
        donor.is_some_and(|d| d.view.lock().state == DonorState::Up)
    }

    /// Slabs that the spill file could lend now.
    pub(crate) fn spill_room(&self) -> u64 {
        let donor = self.spill.filter(|_| self.spill_is_up()).and_then(|id| self.donor(id));
        donor.map_or(0, |d| u64::from(d.view.lock().free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "The pool is full" was said for each of them.
    #[test]
    fn each_lack_is_named_with_its_remedy() {
        let stand = || Stand { replicas: 2, donors: 3, up: 3, ..Stand::default() };
        for (stand, lack, remedy) in [
            (Stand { donors: 0, up: 0, ..stand() }, "there is no donor", "annex donors add"),
            (Stand { up: 0, ..stand() }, "no donor is up", "see that annex-agent runs there"),
            (
                Stand { donors: 1, up: 1, with_room: 1, ..stand() },
                "there is 1 donor, and 2 copies need 2",
                "replicas = 1",
            ),
            (Stand { up: 1, with_room: 1, ..stand() }, "1 of 3 donors is up", "bring another one up"),
            (stand(), "no donor has room", "raise capacity"),
            (Stand { with_room: 1, ..stand() }, "1 of 3 donors has room", "raise capacity on another one"),
            (Stand { limit: Some(1 << 30), ..stand() }, "max_bytes = 1 GiB", "raise that"),
            (Stand { spill: Some(SpillStand::Full), ..stand() }, "the spill file is full too", "raise size in [spill]"),
            (Stand { spill: Some(SpillStand::Down), ..stand() }, "can't be reached either", "raise capacity"),
        ] {
            let said = judge(&stand).to_string();
            assert!(said.contains(lack) && said.contains(remedy), "{said}");
        }
        let pressed = vec![("oak".to_owned(), Refusal::HostPressure { available_mib: 300, headroom_mib: 512 })];
        let unlockable = vec![("oak".to_owned(), Refusal::HostPressure { available_mib: 9000, headroom_mib: 512 })];
        for (stand, lack) in [
            (
                Stand { refusals: pressed, ..stand() },
                "no donor has room (oak: it can spare no more memory now: 300 MiB",
            ),
            (
                Stand { refusals: unlockable, with_room: 3, ..stand() },
                "(oak: it gets no memory for another slab, though",
            ),
        ] {
            let said = judge(&stand).to_string();
            assert!(
                said.contains(lack) && said.contains("see annex-agent doctor on the host of one, or add"),
                "{said}"
            );
        }
        assert_eq!(judge(&Stand { with_room: 3, ..stand() }).what, "donors are asked for more");
    }
}
