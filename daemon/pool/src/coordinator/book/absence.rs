//! Donors that are not there: connections that end, operations that get no answer, and time in
//! which this process did not run itself.

use super::inventory::{DonorEntry, Inventory};
use super::member::MAX_STRIKES;
use super::words::Action;
use crate::metadata::replica::ReplicaState;
use annex_shared::ids::DonorId;
use std::time::Instant;

/// The connection failed or could not be made.
pub(super) fn down(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    let (away_at, lost_at) = (now + inventory.rules.away_after, now + inventory.rules.lost_after(donor));
    let entry = inventory.donors.entry(donor).or_default();
    entry.up = false;
    entry.asked = 0;
    if entry.incarnation.is_some() || entry.lost_at.is_some() {
        entry.away_at = Some(entry.away_at.map_or(away_at, |at| at.min(away_at)));
        entry.lost_at = Some(entry.lost_at.map_or(lost_at, |at| at.min(lost_at)));
    }
    inventory.forget_plans(donor);
}

/// Operations on it take far too long, and nothing comes from it. Its agent is asked; if that
/// is silent as well, nothing waits for this donor until it is heard again.
pub(super) fn late(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    let entry = inventory.donors.entry(donor).or_default();
    if entry.up && !entry.silent && entry.asked_at.is_none() {
        entry.asked_at = Some(now);
        inventory.actions.push(Action::Ask(donor));
    }
}

pub(super) fn answer_due(inventory: &Inventory, entry: &DonorEntry) -> Option<Instant> {
    entry.asked_at.map(|asked| inventory.counted_from(asked) + inventory.rules.away_after)
}

pub(super) fn is_answer_due(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    let is_due = |entry: &DonorEntry| answer_due(inventory, entry).is_some_and(|due| due <= now);
    if inventory.donors.get(&donor).is_some_and(is_due) {
        silent(inventory, donor, now);
    }
}

fn silent(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    let entry = inventory.donors.entry(donor).or_default();
    (entry.away_at, entry.asked_at) = (Some(now), None);
    if !std::mem::replace(&mut entry.silent, true) {
        inventory.actions.push(Action::Silent(donor, true));
        // Its slabs may never come.
        inventory.forget_plans(donor);
    }
}

/// Its agent said something.
pub(super) fn heard(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    let entry = inventory.donors.entry(donor).or_default();
    (entry.heard, entry.asked_at) = (Some(now), None);
    if std::mem::take(&mut entry.silent) {
        inventory.actions.push(Action::Silent(donor, false));
    }
}

/// An operation had all its time and got no answer: nothing waits for this donor until it is
/// heard again. A replica to which that happens twice without its being live in between is
/// lost: the agent may answer here and its memory not.
pub(super) fn hung(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    silent(inventory, donor, now);
    strike(inventory, donor, MAX_STRIKES / 2);
    inventory.actions.push(Action::Ask(donor));
}

/// This process, or the whole machine, did not run for a while. A donor could not have been
/// heard in that time: absences are counted anew.
pub(super) fn stood_still(inventory: &mut Inventory, now: Instant) {
    inventory.ran_since = Some(now);
    for (id, donor) in inventory.donors.iter_mut().filter(|(_, d)| !d.closing) {
        let lost_at = now + inventory.rules.lost_after(*id);
        donor.lost_at = donor.lost_at.map(|at| at.max(lost_at));
    }
}

/// Counts `strikes` against everything that is read or written on a donor.
fn strike(inventory: &mut Inventory, donor: DonorId, strikes: u8) {
    for member in inventory.extents.values_mut().flatten() {
        if member.leased.donor == donor && member.leased.state.is_there() {
            member.strikes = member.strikes.saturating_add(strikes);
        }
    }
}

pub(super) fn all_stale(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    for (extent, index, leased) in inventory.kept_on(donor) {
        if leased.state.is_there()
            && let Some(member) = inventory.member(extent, index)
        {
            member.turn(ReplicaState::Stale, now);
            inventory.actions.push(Action::MarkStale { extent, index, why: "its donor is out of reach" });
            inventory.weigh(extent);
        }
    }
}
