//! When this host needs memory back, how much, and whose. Pure: what `/proc` says and the time go
//! in, a verdict comes out.
//!
//! The host is *pressed* when less than `headroom` is available, or when its programs stall for
//! memory ([`STALL`]) and not much more than that is left. Then nothing new is lent, free slabs go
//! first, and as many lent ones are recalled as are missing to `headroom` and an eighth. The host
//! counts as relieved only when that much has been available, without stalls, for [`CALM`]: between
//! the two thresholds nothing changes, so lending and recalling don't take turns.
//!
//! What is on its way back already (recalled, being emptied) is not asked for twice.
//!
//! **Whose.** Slabs that are used over TCP are seen being used: the least recently used one is the
//! coldest. Clients on this host that map their slabs (shm) are not seen, so those slabs come after
//! the ones that have lain idle for [`IDLE`] and before those in use: from the client that holds
//! most, its newest lease first, since that had the least time to fill.

use crate::lease::Moment;
use crate::pressure::Sample;
use annex_shared::ids::{ClientId, SlabId};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// Percent of the last ten seconds in which some program waited for memory (`some avg10` of
/// `/proc/pressure/memory`) from which on it counts.
pub const STALL: f32 = 10.0;

/// How long relief has to last before it is believed.
pub const CALM: Duration = Duration::from_secs(10);

/// A slab that no operation touched for this long is cold.
pub const IDLE: Duration = Duration::from_secs(60);

/// Slabs that will be free without a further recall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coming {
    pub spare: u32,
    pub cleaning: u32,
    pub recalled: u32,
}

/// What to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Give free slabs back to the host.
    pub trim: bool,
    /// Lent slabs to recall.
    pub recall: u32,
}

/// Watches one host.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    headroom: u64,
    slab_size: u64,
    is_pressed: bool,
    calm_since: Option<Moment>,
}

impl Watch {
    pub fn new(headroom: u64, slab_size: u64) -> Watch {
        Watch { headroom, slab_size, is_pressed: false, calm_since: None }
    }

    /// From the next look on this is to stay available.
    pub fn set_headroom(&mut self, headroom: u64) {
        self.headroom = headroom;
    }

    /// True while nothing may be lent.
    pub fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// Looks at the host.
    pub fn look(&mut self, sample: Sample, coming: Coming, now: Moment) -> Verdict {
        let target = self.headroom + self.headroom / 8;
        let is_stalled = sample.stall.is_some_and(|s| s >= STALL) && sample.available < self.headroom.saturating_mul(2);
        if sample.available < self.headroom || is_stalled {
            self.is_pressed = true;
            self.calm_since = None;
        } else if sample.available < target {
            self.calm_since = None;
        } else if self.is_pressed {
            let since = *self.calm_since.get_or_insert(now);
            self.is_pressed = since.until(now) < CALM;
        }
        if !self.is_pressed {
            return Verdict::default();
        }
        let mut lacking = target.saturating_sub(sample.available).div_ceil(self.slab_size);
        if lacking == 0 && is_stalled {
            // Enough seems to be there, and yet programs wait: one at a time.
            lacking = 1;
        }
        let coming = u64::from(coming.spare) + u64::from(coming.cleaning) + u64::from(coming.recalled);
        Verdict { trim: true, recall: u32::try_from(lacking.saturating_sub(coming)).unwrap_or(u32::MAX) }
    }
}

/// A lent slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub slab: SlabId,
    pub client: ClientId,
    pub leased: Moment,
    /// The last operation; `None` if its client maps it and needs no agent to use it.
    pub used: Option<Moment>,
}

/// The order in which slabs are recalled, see the module's header.
pub fn order(mut candidates: Vec<Candidate>, now: Moment) -> Vec<SlabId> {
    let mut held: HashMap<ClientId, u32> = HashMap::new();
    for candidate in &candidates {
        *held.entry(candidate.client).or_default() += 1;
    }
    let rank = |c: &Candidate| {
        let heat = match c.used {
            Some(used) if used.until(now) >= IDLE => 0,
            None => 1,
            Some(_) => 2,
        };
        let unseen = c.used.is_none().then(|| (Reverse(held[&c.client]), c.client, Reverse(c.leased)));
        (heat, c.used, unseen, c.slab)
    };
    candidates.sort_by_key(rank);
    candidates.into_iter().map(|c| c.slab).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const HEADROOM: u64 = 800 * MIB;
    const SLAB: u64 = 64 * MIB;

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    fn has(mib: u64) -> Sample {
        Sample { available: mib * MIB, stall: Some(0.0) }
    }

    fn watch() -> Watch {
        Watch::new(HEADROOM, SLAB)
    }

    #[test]
    fn a_host_with_headroom_is_left_alone() {
        let mut watch = watch();
        assert_eq!(watch.look(has(800), Coming::default(), at(0)), Verdict::default());
        let stalled = Sample { available: 4000 * MIB, stall: Some(90.0) };
        assert_eq!(watch.look(stalled, Coming::default(), at(1)), Verdict::default(), "that is not for want of memory");
        assert!(!watch.is_pressed());
    }

    #[test]
    fn as_many_are_recalled_as_are_missing_to_an_eighth_over_the_headroom() {
        // 900 - 500 = 400 MiB: 7 slabs.
        assert_eq!(watch().look(has(500), Coming::default(), at(0)), Verdict { trim: true, recall: 7 });
        let coming = Coming { spare: 1, cleaning: 2, recalled: 3 };
        assert_eq!(watch().look(has(500), coming, at(0)).recall, 1);
        assert_eq!(watch().look(has(500), Coming { recalled: 9, ..coming }, at(0)).recall, 0);
    }

    #[test]
    fn stalls_recall_one_at_a_time() {
        let stalled = Sample { available: 1000 * MIB, stall: Some(25.0) };
        assert_eq!(watch().look(stalled, Coming::default(), at(0)).recall, 1);
        assert_eq!(watch().look(stalled, Coming { recalled: 1, ..Coming::default() }, at(0)).recall, 0);
        let untold = Sample { stall: None, ..stalled };
        assert_eq!(watch().look(untold, Coming::default(), at(0)), Verdict::default());
    }

    #[test]
    fn relief_is_believed_only_when_it_lasts() {
        let mut watch = watch();
        watch.look(has(700), Coming::default(), at(0));
        assert!(watch.is_pressed());
        watch.look(has(850), Coming::default(), at(1));
        assert!(watch.is_pressed(), "over the headroom, but not by an eighth");
        watch.look(has(950), Coming::default(), at(2));
        watch.look(has(950), Coming::default(), at(11));
        assert!(watch.is_pressed());
        watch.look(has(850), Coming::default(), at(12));
        watch.look(has(950), Coming::default(), at(13));
        watch.look(has(950), Coming::default(), at(22));
        assert!(watch.is_pressed(), "it began anew");
        watch.look(has(950), Coming::default(), at(23));
        assert!(!watch.is_pressed());
        watch.look(has(820), Coming::default(), at(24));
        assert!(!watch.is_pressed(), "between the thresholds nothing changes");
    }

    #[test]
    fn the_coldest_go_first_and_what_is_not_seen_before_what_is_in_use() {
        let (now, few, most) = (at(1000), ClientId(1), ClientId(2));
        let seen = |slab, used| Candidate { slab: SlabId(slab), client: few, leased: at(1), used: Some(at(used)) };
        let mapped = |slab, client, leased| Candidate { slab: SlabId(slab), client, leased: at(leased), used: None };
        let candidates = vec![
            seen(0, 999),
            seen(1, 500),
            mapped(2, few, 900),
            seen(3, 400),
            mapped(4, most, 10),
            mapped(5, most, 20),
            seen(6, 998),
            mapped(7, most, 15),
            mapped(8, most, 16),
            mapped(9, most, 17),
            mapped(10, most, 18),
        ];
        let order: Vec<u32> = order(candidates, now).iter().map(|s| s.0).collect();
        assert_eq!(order, [3, 1, 5, 10, 9, 8, 7, 4, 2, 6, 0]);
    }

    proptest! {
        /// A host whose available memory is what its own programs leave, less what is lent.
        #[test]
        fn the_headroom_comes_back_and_nothing_flaps(own in prop::collection::vec(0u64..8000, 1..12)) {
            const TOTAL: u64 = 8000;
            let mut watch = watch();
            let (mut lent, mut recalled, mut now) = (0u64, 0u64, 0);
            for own in own {
                let mut turns = 0;
                let mut was_lending = None;
                for _ in 0..120 {
                    now += 1;
                    // What was recalled comes back a second later.
                    lent -= recalled;
                    let available = TOTAL.saturating_sub(own).saturating_sub(lent * 64);
                    let verdict = watch.look(has(available), Coming::default(), at(now));
                    recalled = u64::from(verdict.recall).min(lent);
                    let lends = !watch.is_pressed() && available >= 800 + 64;
                    if lends {
                        lent += 1;
                    }
                    if was_lending.is_some_and(|was| was != lends) {
                        turns += 1;
                    }
                    was_lending = Some(lends);
                }
                let available = TOTAL.saturating_sub(own).saturating_sub(lent * 64);
                prop_assert!(available >= 800 || lent == recalled, "{available} MiB left of {TOTAL}, {lent} lent");
                prop_assert!(turns <= 3, "it changed its mind {turns} times while the host did nothing");
            }
        }
    }
}
