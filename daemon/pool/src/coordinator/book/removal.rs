//! Donors that are not to be used any more: emptied first, then forgotten; and those that are
//! wanted again.

use super::inventory::{DonorEntry, Inventory};
use super::life;
use super::member::Drain;
use super::words::Action;
use annex_shared::ids::DonorId;

/// Everything is to leave this donor for good; [`Action::DonorRemoved`] says when it has.
pub(super) fn remove(inventory: &mut Inventory, donor: DonorId) {
    let entry = inventory.donors.entry(donor).or_default();
    entry.removing = true;
    let stock = std::mem::take(&mut entry.stock);
    inventory.forget_plans(donor);
    if !stock.is_empty() {
        inventory.actions.push(Action::Return(donor, stock));
    }
    life::drain(inventory, donor, |_| true, None);
}

/// A donor that was removed is wanted again. What it wants back itself leaves all the same.
pub(super) fn welcome_back(inventory: &mut Inventory, donor: DonorId) {
    let entry = inventory.donors.entry(donor).or_default();
    match entry.is_removed {
        true => *entry = DonorEntry::default(),
        false => entry.removing = false,
    }
    for member in inventory.extents.values_mut().flatten().filter(|m| m.leased.donor == donor) {
        let before = member.draining.filter(|l| l.deadline.is_some());
        member.draining = before.map(|l| Drain { moves: false, ..l });
    }
}

pub(super) fn finish_removals(inventory: &mut Inventory) {
    let removing: Vec<DonorId> =
        inventory.donors.iter().filter(|(_, d)| d.removing && !d.is_removed).map(|(id, _)| *id).collect();
    for donor in removing {
        if inventory.kept_on(donor).is_empty() {
            inventory.donors.insert(donor, DonorEntry { removing: true, is_removed: true, ..DonorEntry::default() });
            inventory.actions.push(Action::DonorRemoved(donor));
        }
    }
}
