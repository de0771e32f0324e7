//! What schedules brought about: a search that nothing happens in finds nothing, however fast it
//! is.

use crate::coordinator::book::Action;
use std::fmt::{Display, Formatter};

/// Something that a search should see often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Times that all that must hold was looked at.
    Checked,
    /// Pages that were reported written.
    Written,
    Disconnected,
    Restarted,
    Pressed,
    Drained,
    HeldUp,
    Killed,
    /// A donor or annexd went while some extent had too few replicas, or one to be filled.
    SecondFault,
    Recalled,
    Left,
    Lost,
    Joined,
    Rejoined,
    /// Replicas that were filled.
    Filled,
    Vacated,
    /// Operations that took far too long and were done after all.
    Late,
    /// Donors that neither answered nor broke off.
    Hung,
    /// Those whose agents were found silent, too.
    Silent,
    /// Writes that reached their donor after they had been given up.
    Strayed,
    /// Donors that announced their end.
    Closed,
    Removed,
    Added,
    /// Pages that were read.
    Read,
    /// Reads that got company, and those whose older attempt was relieved.
    Hedged,
    Relieved,
}

const ALL: [Seen; 26] = [
    Seen::Checked,
    Seen::Written,
    Seen::Disconnected,
    Seen::Restarted,
    Seen::Pressed,
    Seen::Drained,
    Seen::HeldUp,
    Seen::Killed,
    Seen::SecondFault,
    Seen::Recalled,
    Seen::Left,
    Seen::Lost,
    Seen::Joined,
    Seen::Rejoined,
    Seen::Filled,
    Seen::Vacated,
    Seen::Late,
    Seen::Hung,
    Seen::Silent,
    Seen::Strayed,
    Seen::Closed,
    Seen::Removed,
    Seen::Added,
    Seen::Read,
    Seen::Hedged,
    Seen::Relieved,
];

impl Seen {
    /// What an action of the book makes happen, if it is of interest.
    pub fn of(action: &Action) -> Option<Seen> {
        match action {
            Action::MarkStale { .. } => Some(Seen::Left),
            Action::MarkLost { .. } => Some(Seen::Lost),
            Action::Add { .. } => Some(Seen::Joined),
            Action::Resync { .. } => Some(Seen::Rejoined),
            Action::Remove { .. } => Some(Seen::Vacated),
            Action::Silent(_, true) => Some(Seen::Silent),
            Action::DonorRemoved(_) => Some(Seen::Removed),
            _ => None,
        }
    }
}

/// How often each thing was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally([u64; ALL.len()]);

impl Tally {
    pub fn saw(&mut self, what: Seen) {
        self.0[what as usize] += 1;
    }

    pub fn count(&self, what: Seen) -> u64 {
        self.0[what as usize]
    }

    pub fn add(&mut self, other: &Tally) {
        self.0.iter_mut().zip(other.0).for_each(|(all, one)| *all += one);
    }

    /// What was seen less often than that.
    pub fn rarer_than(&self, times: u64) -> Vec<Seen> {
        ALL.into_iter().filter(|what| self.count(*what) < times).collect()
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        ALL.into_iter().try_for_each(|what| write!(f, " {what:?} {}", self.count(what)))
    }
}
