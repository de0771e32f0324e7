//! Where the replicas of a new extent go. Pure.
//!
//! Power of two choices: for each replica two donors are drawn at random among those allowed, and
//! the better one is taken. That spreads load nearly as well as always taking the best, and many
//! annexds with the same news don't all pick the same donor. Never two replicas on one donor;
//! different racks and hosts where there are any, since they fail apart.

use annex_shared::ids::DonorId;

/// A donor that could take a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacementCandidate {
    pub donor: DonorId,
    /// Slabs it could lend, in its own words.
    pub free: u32,
    /// Smoothed time of an operation; 0 = not known.
    pub latency_ns: u64,
    pub host: Option<String>,
    pub rack: Option<String>,
}

/// Picks `replicas` donors; `None` if there aren't as many with something free. `draw(n)` gives a
/// random number below `n`.
pub(crate) fn choose(
    all: &[PlacementCandidate],
    replicas: usize,
    draw: &mut dyn FnMut(usize) -> usize,
) -> Option<Vec<DonorId>> {
    let mut chosen: Vec<&PlacementCandidate> = Vec::with_capacity(replicas);
    while chosen.len() < replicas {
        chosen.push(choose_beside(all, &chosen, draw)?);
    }
    Some(chosen.into_iter().map(|c| c.donor).collect())
}

/// As many donors as there are, short of `replicas`, and the last tier in place of those that are
/// missing: it has one replica, whatever is missing.
pub(crate) fn choose_with(
    last_tier: DonorId,
    all: &[PlacementCandidate],
    replicas: usize,
    draw: &mut dyn FnMut(usize) -> usize,
) -> Vec<DonorId> {
    let donors = all.iter().filter(|c| c.free > 0).count().min(replicas.saturating_sub(1));
    let mut chosen = choose(all, donors, draw).unwrap_or_default();
    chosen.push(last_tier);
    chosen
}

/// Picks one more donor beside those that are chosen.
pub(crate) fn choose_beside<'a>(
    all: &'a [PlacementCandidate],
    chosen: &[&PlacementCandidate],
    draw: &mut dyn FnMut(usize) -> usize,
) -> Option<&'a PlacementCandidate> {
    let left = all.iter().filter(|c| c.free > 0 && chosen.iter().all(|x| x.donor != c.donor));
    let left: Vec<&PlacementCandidate> = left.collect();
    let apart = left.iter().map(|c| apart(c, chosen)).max()?;
    let allowed: Vec<&PlacementCandidate> = left.into_iter().filter(|c| self::apart(c, chosen) == apart).collect();
    let first = draw(allowed.len());
    // The second draw is among the others, so that two candidates are always compared if there are
    // two.
    let second = (first + 1 + draw(allowed.len().max(2) - 1)) % allowed.len();
    Some(better(allowed[first], allowed[second]))
}

/// How many extents fit into donors with so many free slabs each, every replica on another donor.
pub(crate) fn extents_possible(free: &[u64], replicas: usize) -> u64 {
    let fits = |extents: u64| free.iter().map(|f| (*f).min(extents)).sum::<u64>() >= extents * replicas as u64;
    let (mut low, mut high) = (0, free.iter().sum::<u64>() / replicas.max(1) as u64);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// How far apart from those already chosen: 2 = another rack and host, 1 = another host, 0 = same
/// host as one of them.
pub(crate) fn apart(candidate: &PlacementCandidate, chosen: &[&PlacementCandidate]) -> u8 {
    let shares = |label: fn(&PlacementCandidate) -> &Option<String>| {
        chosen.iter().any(|x| label(x).is_some() && label(x) == label(candidate))
    };
    match (shares(|c| &c.host), shares(|c| &c.rack)) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// The one with clearly more free, else the faster one.
fn better<'a>(a: &'a PlacementCandidate, b: &'a PlacementCandidate) -> &'a PlacementCandidate {
    let (most, least) = if a.free >= b.free { (a, b) } else { (b, a) };
    let close = least.free as u64 * 4 >= most.free as u64 * 3;
    if close && least.latency_ns != 0 && most.latency_ns != 0 && least.latency_ns < most.latency_ns {
        least
    } else {
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(donor: u16, free: u32, host: Option<u8>, rack: Option<u8>) -> PlacementCandidate {
        let (host, rack) = (host.map(|h| format!("h{h}")), rack.map(|r| format!("r{r}")));
        PlacementCandidate { donor: DonorId(donor), free, latency_ns: 0, host, rack }
    }

    proptest! {
        #[test]
        fn replicas_never_share_a_donor_and_share_a_host_only_if_they_must(
            donors in prop::collection::vec((0u32..4, prop::option::of(0u8..4), prop::option::of(0u8..3)), 0..8),
            replicas in 1usize..5,
            seed in any::<u64>(),
        ) {
            let all: Vec<PlacementCandidate> =
                donors.iter().enumerate().map(|(i, (f, h, r))| candidate(i as u16, *f, *h, *r)).collect();
            let mut state = seed | 1;
            let mut draw = |n: usize| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as usize % n
            };
            let usable = all.iter().filter(|c| c.free > 0).count();
            let chosen = choose(&all, replicas, &mut draw);
            prop_assert_eq!(chosen.is_some(), usable >= replicas);
            let Some(chosen) = chosen else { return Ok(()) };
            prop_assert_eq!(chosen.len(), replicas);
            let mut seen = std::collections::BTreeSet::new();
            prop_assert!(chosen.iter().all(|d| all[d.0 as usize].free > 0 && seen.insert(*d)));
            if replicas == 2 {
                let pair: Vec<&PlacementCandidate> = chosen.iter().map(|d| &all[d.0 as usize]).collect();
                let elsewhere = all.iter().any(|c| c.free > 0 && apart(c, &pair[..1]) > 0);
                prop_assert!(apart(pair[1], &pair[..1]) > 0 || !elsewhere);
            }
        }

        #[test]
        fn as_many_extents_as_promised_really_fit(free in prop::collection::vec(0u64..6, 1..6), replicas in 1usize..4) {
            let promised = extents_possible(&free, replicas);
            // The best strategy takes from the donors with most left.
            let mut left = free.clone();
            let mut leased = 0;
            loop {
                left.sort_unstable_by(|a, b| b.cmp(a));
                if left.len() < replicas || left[replicas - 1] == 0 {
                    break;
                }
                left[..replicas].iter_mut().for_each(|f| *f -= 1);
                leased += 1;
            }
            prop_assert_eq!(promised, leased);
        }
    }

    #[test]
    fn the_last_tier_stands_in_once_for_all_donors_that_are_missing() {
        let (spill, first) = (DonorId(9), &mut |_: usize| 0);
        let all = [candidate(0, 3, None, None), candidate(1, 0, None, None), candidate(2, 3, None, None)];
        assert_eq!(choose_with(spill, &all, 4, first).len(), 3);
        assert_eq!(choose_with(spill, &all[..2], 2, first), [DonorId(0), spill]);
        assert_eq!(choose_with(spill, &all[1..2], 2, first), [spill]);
        assert_eq!(choose_with(spill, &all, 1, first), [spill]);
    }

    #[test]
    fn of_two_with_like_room_the_faster_one_is_taken() {
        let slow = PlacementCandidate { latency_ns: 50_000, ..candidate(0, 10, None, None) };
        let fast = PlacementCandidate { latency_ns: 5_000, ..candidate(1, 9, None, None) };
        let full = PlacementCandidate { latency_ns: 1_000, ..candidate(2, 1, None, None) };
        assert_eq!(better(&slow, &fast).donor, DonorId(1));
        assert_eq!(better(&fast, &full).donor, DonorId(1));
    }
}
