//! When a read has taken too long, what is done about it, and who is asked. Pure: what is under
//! way, what is known of the donors, and the time in; a verdict out. The lane carries it out
//! (`lane/hedge`).
//!
//! *Too long* is longer than 99 of 100 reads from that donor took lately (see `latency`), and
//! at least `hedge_after`; or `read_timeout`, whatever was observed. Then the read gets *company*:
//! another replica is asked as well, into spare pages of the lane's arena, and the first good
//! answer wins. Each attempt gets company once. When the second one is late too, the older one is
//! *relieved*: it goes on alone, and a third replica is asked, if there is one. Without spare pages
//! nothing more is asked.

use crate::metadata::replica::{REPLICA_ENTRIES, ReplicaState};
use std::time::{Duration, Instant};

/// How often a page is read from one replica before that counts as failed.
const READ_TRIES: u8 = 4;

/// What the configuration says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// `read_timeout`.
    pub most: Duration,
    /// `hedge_after`; zero: only the timeout counts.
    pub least: Duration,
}

impl Patience {
    /// How long a read from a donor may take that answers 99 of 100 within so many nanoseconds; 0:
    /// that is not known yet.
    pub fn with(&self, late_ns: u64) -> Duration {
        if self.least.is_zero() || late_ns == 0 {
            self.most
        } else {
            self.least.max(Duration::from_nanos(late_ns)).min(self.most)
        }
    }

    /// When an attempt that was posted then has taken too long.
    pub fn due(&self, posted: Instant, late_ns: u64) -> Instant {
        posted + self.with(late_ns)
    }
}

/// A read, one of whose attempts has taken too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    /// It asks one replica and no other.
    pub is_bound: bool,
    /// Both attempts that it can have are under way.
    pub has_company: bool,
    /// Of those under way it is the one that was begun last.
    pub is_youngest: bool,
    /// Live replicas of its extent.
    pub live: usize,
    /// There are spare pages for one more attempt.
    pub has_spare: bool,
}

/// What is done about a late attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Wait on: there is nobody else to ask.
    Wait,
    /// Somebody would be asked, but there are no spare pages.
    NoRoom,
    /// Ask another replica as well.
    Accompany,
    /// Let the older attempt go on alone, and ask another replica beside the younger one.
    Relieve,
}

impl Late {
    pub fn verdict(&self) -> Verdict {
        let has_third = self.is_youngest && self.live >= 3;
        match self.has_company {
            _ if self.is_bound => Verdict::Wait,
            true if !has_third => Verdict::Wait,
            _ if !self.has_spare => Verdict::NoRoom,
            true => Verdict::Relieve,
            false => Verdict::Accompany,
        }
    }
}

/// Who is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Replica(u8),
    /// All that are left have no endpoint now, or may come back.
    Wait,
    None,
}

/// What a read has asked so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// One replica and no other is asked, once.
    pub only: Option<u8>,
    /// The replica that last gave good bytes.
    pub good: Option<u8>,
    /// Failed attempts, per replica.
    pub tries: [u8; REPLICA_ENTRIES],
    /// Those that are being asked.
    pub busy: [Option<u8>; 2],
}

/// A replica that may be asked, and its donor as the lane knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSource {
    pub index: u8,
    /// There is an endpoint.
    pub is_usable: bool,
    pub is_spill: bool,
    /// What an operation took lately, and how many are under way.
    pub latency_ns: u64,
    pub outstanding: usize,
}

impl Asked {
    /// Whether a replica in that state is open to this read. `is_filled`: it is being filled, has
    /// these pages all the same, and may be asked for them.
    pub fn may_ask(&self, index: u8, state: ReplicaState, is_filled: bool) -> bool {
        let has_it = match state {
            ReplicaState::Live => true,
            // Who asks for one that is being filled knows that it has got these pages.
            ReplicaState::Syncing | ReplicaState::Backup => self.only.is_some() || is_filled,
            _ => false,
        };
        let tries = if self.only.is_some() { 1 } else { READ_TRIES };
        has_it
            && self.tries[usize::from(index)] < tries
            && !self.busy.contains(&Some(index))
            && self.only.is_none_or(|only| only == index)
    }

    /// The best of those that are open to this read: fewest failures, donors before the spill file,
    /// then the least expected wait. A probe takes the second-best if that is as good but for the
    /// wait, so that what is known of it stays true.
    pub fn choose(&self, candidates: impl Iterator<Item = ReadSource>, is_probe: bool) -> Choice {
        let mut best: Option<((bool, u8, bool, u64), u8)> = None;
        let mut second: Option<((bool, u8, bool, u64), u8)> = None;
        let mut any = false;
        for c in candidates {
            any = true;
            if !c.is_usable {
                continue;
            }
            let wait = c.latency_ns.saturating_mul(c.outstanding as u64 + 1);
            let is_other = self.good.is_some_and(|good| good != c.index);
            let rank = (is_other, self.tries[usize::from(c.index)], c.is_spill, wait);
            if best.is_none_or(|b| rank < b.0) {
                second = best.replace((rank, c.index));
            } else if second.is_none_or(|s| rank < s.0) {
                second = Some((rank, c.index));
            }
        }
        match (best, second) {
            (Some(b), Some(s)) if is_probe && (s.0.1, s.0.2) == (b.0.1, b.0.2) => Choice::Replica(s.1),
            (Some(b), _) => Choice::Replica(b.1),
            (None, _) if any => Choice::Wait,
            (None, _) => Choice::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { most: Duration::from_millis(500), least: Duration::from_millis(2) };
    const LATE: Late = Late { is_bound: false, has_company: false, is_youngest: true, live: 2, has_spare: true };
    const ASKED: Asked = Asked { only: None, good: None, tries: [0; REPLICA_ENTRIES], busy: [None; 2] };

    fn candidate(index: u8, latency_ns: u64) -> ReadSource {
        ReadSource { index, is_usable: true, is_spill: false, latency_ns, outstanding: 0 }
    }

    #[test]
    fn a_read_may_take_as_long_as_most_do_between_the_two_bounds() {
        let taken = [0, 10_000, 5_000_000, 4_000_000_000].map(|late_ns| PATIENCE.with(late_ns).as_millis());
        assert_eq!(taken, [500, 2, 5, 500]);
        let off = Patience { least: Duration::ZERO, ..PATIENCE };
        assert_eq!(off.with(10_000), off.most);
    }

    #[test]
    fn a_late_read_gets_company_and_then_a_third_in_place_of_the_older() {
        assert_eq!(LATE.verdict(), Verdict::Accompany);
        let both = Late { has_company: true, live: 3, ..LATE };
        assert_eq!(both.verdict(), Verdict::Relieve);
        assert_eq!(Late { live: 2, ..both }.verdict(), Verdict::Wait, "there is no third");
        assert_eq!(Late { is_youngest: false, ..both }.verdict(), Verdict::Wait, "the younger one has its time yet");
    }

    #[test]
    fn a_read_that_asks_one_replica_or_has_no_room_waits() {
        let both = Late { has_company: true, live: 3, ..LATE };
        for late in [LATE, both] {
            assert_eq!(Late { is_bound: true, ..late }.verdict(), Verdict::Wait);
            assert_eq!(Late { has_spare: false, ..late }.verdict(), Verdict::NoRoom);
        }
    }

    #[test]
    fn the_quickest_is_asked_and_those_that_failed_and_the_spill_file_last() {
        let all = [candidate(0, 300), candidate(1, 100), candidate(2, 200)];
        assert_eq!(ASKED.choose(all.into_iter(), false), Choice::Replica(1));
        assert_eq!(ASKED.choose(all.into_iter(), true), Choice::Replica(2), "a probe asks the second-best");
        let busy = ReadSource { outstanding: 9, ..all[1] };
        assert_eq!(ASKED.choose([all[0], busy].into_iter(), false), Choice::Replica(0));
        let failed = Asked { tries: [0, 1, 0, 0, 0, 0], ..ASKED };
        assert_eq!(failed.choose(all.into_iter(), false), Choice::Replica(2));
        let spilled = ReadSource { is_spill: true, ..all[1] };
        assert_eq!(ASKED.choose([all[0], spilled].into_iter(), true), Choice::Replica(0));
        let good = Asked { good: Some(0), ..ASKED };
        assert_eq!(good.choose(all.into_iter(), false), Choice::Replica(0));
    }

    #[test]
    fn a_read_waits_for_endpoints_and_has_nobody_without_candidates() {
        let broken = ReadSource { is_usable: false, ..candidate(0, 1) };
        assert_eq!(ASKED.choose([broken].into_iter(), false), Choice::Wait);
        assert_eq!(ASKED.choose([].into_iter(), false), Choice::None);
    }

    #[test]
    fn who_is_being_asked_or_has_failed_often_or_lacks_the_page_is_not_asked() {
        assert!(ASKED.may_ask(0, ReplicaState::Live, false));
        assert!(!ASKED.may_ask(0, ReplicaState::Stale, true));
        assert!(!ASKED.may_ask(0, ReplicaState::Syncing, false));
        assert!(ASKED.may_ask(0, ReplicaState::Syncing, true));
        let asked = Asked { busy: [Some(0), None], tries: [0, READ_TRIES, 0, 0, 0, 0], ..ASKED };
        let open: Vec<u8> = (0..3).filter(|index| asked.may_ask(*index, ReplicaState::Live, false)).collect();
        assert_eq!(open, [2]);
        let only = Asked { only: Some(1), ..ASKED };
        let open: Vec<u8> = (0..3).filter(|index| only.may_ask(*index, ReplicaState::Syncing, false)).collect();
        assert_eq!(open, [1]);
    }
}
