//! A replica as the book sees it.

use super::words::LeasedReplica;
use crate::metadata::replica::ReplicaState;
use std::time::{Duration, Instant};

/// What failed a write is tried again after this, doubled each time.
const RESYNC_AFTER: Duration = Duration::from_millis(250);
/// A replica that was stale so often without having been live in between is lost, if another one is
/// live.
pub(super) const MAX_STRIKES: u8 = 6;
/// A replica that was live for this long has taken part in every write under way.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// A replica, or what one left.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub leased: LeasedReplica,
    /// When it got into this state.
    pub since: Instant,
    /// How often it was stale since it was last live.
    pub strikes: u8,
    /// To be replaced; with the moment at which it is gone, if there is one.
    pub draining: Option<Drain>,
    /// It began without content.
    pub fresh: bool,
    /// It lies in the spill file.
    pub is_last_tier: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drain {
    /// Its donor takes the slab back then.
    pub deadline: Option<Instant>,
    /// It leaves whatever its donor wants: that is to be removed, or less full.
    pub moves: bool,
}

impl Member {
    pub fn new(leased: LeasedReplica, is_last_tier: bool, now: Instant) -> Member {
        Member { leased, since: now, strikes: 0, draining: None, fresh: false, is_last_tier }
    }

    /// It counts towards the replicas there should be.
    pub fn lasts(&self) -> bool {
        self.leased.state.is_kept() && self.draining.is_none() && !self.is_last_tier
    }

    /// Live for so long that every write under way knows of it.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.leased.state == ReplicaState::Live && now.duration_since(self.since) >= SETTLED_AFTER
    }

    pub fn due(&self) -> Option<Instant> {
        (self.leased.state == ReplicaState::Stale).then(|| self.resync_at())
    }

    /// When it is tried again.
    pub fn resync_at(&self) -> Instant {
        self.since + RESYNC_AFTER * (1 << self.strikes.min(MAX_STRIKES))
    }

    pub fn turn(&mut self, state: ReplicaState, now: Instant) {
        (self.leased.state, self.since) = (state, now);
    }
}
