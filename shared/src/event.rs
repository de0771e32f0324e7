//! What happened: the events that annexd keeps, and that `annex events` shows.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing that happened, or the same thing several times within a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts up from 1, through take-overs as well.
    pub seq: u64,
    pub kind: EventKind,
    /// What it happened to: the name of a donor or an app, `pool`, or `annexd`.
    pub subject: String,
    /// A sentence that says what happened, and why.
    pub cause: String,
    /// Milliseconds since 1970, of the first and the last time.
    pub time_ms: u64,
    pub last_ms: u64,
    /// How often.
    pub count: u32,
    /// Whose app it is about. Only that user, root and group `annex` see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal $name:literal,)+) => {
        /// What may happen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum EventKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)+
        }

        impl EventKind {
            pub const ALL: &[EventKind] = &[$(EventKind::$kind),+];

            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$kind => $name,)+
                }
            }

            /// As it is kept; never 0.
            pub fn code(self) -> u16 {
                match self {
                    $(EventKind::$kind => $code,)+
                }
            }
        }
    };
}

kinds! {
    /// annexd is ready.
    Started = 1 "started",
    /// annexd took over what the one before had left.
    TookOver = 2 "took_over",
    DonorAdded = 3 "donor_added",
    /// A donor is up for the first time.
    DonorUp = 4 "donor_up",
    /// A donor that was up is not, or does not answer.
    DonorAway = 5 "donor_away",
    DonorBack = 6 "donor_back",
    /// A donor was away for too long: what lay there is made anew elsewhere.
    DonorLost = 7 "donor_lost",
    /// A donor wants slabs back.
    DonorRecalls = 8 "donor_recalls",
    DonorRemoved = 9 "donor_removed",
    /// Extents lack a copy.
    RepairBegun = 10 "repair_begun",
    /// All extents have all copies again.
    RepairDone = 11 "repair_done",
    /// No copy of a page is left.
    PageLost = 12 "page_lost",
    /// Programs get no more of the pool.
    PoolFull = 13 "pool_full",
    PoolHasRoom = 14 "pool_has_room",
    AppAttached = 15 "app_attached",
    AppDetached = 16 "app_detached",
    /// All processes of an app have ended.
    AppEnded = 17 "app_ended",
    /// An app keeps more resident than it may, since nothing of it can be evicted.
    AppOverLimit = 18 "app_over_limit",
    /// annexd ended an app, since its memory could not be vouched for.
    AppStopped = 19 "app_stopped",
    /// The disk under the spill file gave an error, or had no room.
    SpillFailed = 20 "spill_failed",
    /// annexd ended for the next one to take over.
    HandedOver = 21 "handed_over",
}

impl EventKind {
    pub fn of_code(code: u16) -> Option<EventKind> {
        EventKind::ALL.iter().copied().find(|kind| kind.code() == code)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_by_name_and_by_code() {
        for kind in EventKind::ALL {
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, kind.name());
            assert_eq!(serde_json::from_value::<EventKind>(json).unwrap(), *kind);
            assert_eq!(EventKind::of_code(kind.code()), Some(*kind));
            assert_ne!(kind.code(), 0);
        }
        assert_eq!(EventKind::of_code(0), None);
    }
}
