//! Donors that are not there: connections that end, operations that get no answer, and time in
//! which this process did not run itself.

use super::members::MAX_STRIKES;
use super::{Action, Book, DonorEntry};
use crate::metadata::replica::ReplicaState;
use annex_shared::ids::DonorId;
use std::time::Instant;

impl Book {
    /// The connection failed or could not be made.
    pub fn down(&mut self, donor: DonorId, now: Instant) {
        let (away_at, lost_at) = (now + self.rules.away_after, now + self.rules.lost_after(donor));
        let entry = self.donors.entry(donor).or_default();
        entry.up = false;
        entry.asked = 0;
        if entry.incarnation.is_some() || entry.lost_at.is_some() {
            entry.away_at = Some(entry.away_at.map_or(away_at, |at| at.min(away_at)));
            entry.lost_at = Some(entry.lost_at.map_or(lost_at, |at| at.min(lost_at)));
        }
        self.forget_plans(donor);
    }

    /// Operations on it take far too long, and nothing comes from it. Its agent is asked; if that
    /// is silent as well, nothing waits for this donor until it is heard again.
    pub fn late(&mut self, donor: DonorId, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        if entry.up && !entry.silent && entry.asked_at.is_none() {
            entry.asked_at = Some(now);
            self.actions.push(Action::Ask(donor));
        }
    }

    pub(super) fn answer_due(&self, entry: &DonorEntry) -> Option<Instant> {
        entry.asked_at.map(|asked| self.counted_from(asked) + self.rules.away_after)
    }

    pub(super) fn is_answer_due(&mut self, donor: DonorId, now: Instant) {
        let is_due = |entry: &DonorEntry| self.answer_due(entry).is_some_and(|due| due <= now);
        if self.donors.get(&donor).is_some_and(is_due) {
            self.silent(donor, now);
        }
    }

    fn silent(&mut self, donor: DonorId, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        (entry.away_at, entry.asked_at) = (Some(now), None);
        if !std::mem::replace(&mut entry.silent, true) {
            self.actions.push(Action::Silent(donor, true));
            // Its slabs may never come.
            self.forget_plans(donor);
        }
    }

    /// Its agent said something.
    pub(super) fn heard(&mut self, donor: DonorId, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        (entry.heard, entry.asked_at) = (Some(now), None);
        if std::mem::take(&mut entry.silent) {
            self.actions.push(Action::Silent(donor, false));
        }
    }

    /// An operation had all its time and got no answer: nothing waits for this donor until it is
    /// heard again. A replica to which that happens twice without its being live in between is
    /// lost: the agent may answer here and its memory not.
    pub fn hung(&mut self, donor: DonorId, now: Instant) {
        self.silent(donor, now);
        self.strike(donor, MAX_STRIKES / 2);
        self.actions.push(Action::Ask(donor));
        self.tick(now);
    }

    /// This process, or the whole machine, did not run for a while. A donor could not have been
    /// heard in that time: absences are counted anew.
    pub fn stood_still(&mut self, now: Instant) {
        self.ran_since = Some(now);
        for (id, donor) in self.donors.iter_mut().filter(|(_, d)| !d.closing) {
            let lost_at = now + self.rules.lost_after(*id);
            donor.lost_at = donor.lost_at.map(|at| at.max(lost_at));
        }
    }

    /// Counts `strikes` against everything that is read or written on a donor.
    fn strike(&mut self, donor: DonorId, strikes: u8) {
        for member in self.extents.values_mut().flatten() {
            if member.placed.donor == donor && member.placed.state.is_there() {
                member.strikes = member.strikes.saturating_add(strikes);
            }
        }
    }

    pub(super) fn all_away(&mut self, donor: DonorId, now: Instant) {
        for (extent, place, placed) in self.kept_on(donor) {
            if placed.state.is_there()
                && let Some(member) = self.member(extent, place)
            {
                member.turn(ReplicaState::Away, now);
                self.actions.push(Action::Leave { extent, place, why: "its donor is out of reach" });
                self.weigh(extent);
            }
        }
    }

    /// An absence since then is counted from here.
    pub(super) fn counted_from(&self, since: Instant) -> Instant {
        self.ran_since.map_or(since, |ran| ran.max(since))
    }
}
