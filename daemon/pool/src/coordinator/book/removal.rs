//! Donors that are not to be used any more: emptied first, then forgotten; and those that are
//! wanted again.

use super::members::Leaving;
use super::*;

impl Book {
    /// Everything is to leave this donor for good; [`Action::Removed`] says when it has.
    pub fn remove(&mut self, donor: DonorId) {
        let entry = self.donors.entry(donor).or_default();
        entry.removing = true;
        let stock = std::mem::take(&mut entry.stock);
        self.forget_plans(donor);
        if !stock.is_empty() {
            self.actions.push(Action::Return(donor, stock));
        }
        self.send_off(donor, |_| true, None);
    }

    /// A donor that was removed is wanted again. What it wants back itself leaves all the same.
    pub fn welcome_back(&mut self, donor: DonorId) {
        let entry = self.donors.entry(donor).or_default();
        match entry.is_gone {
            true => *entry = DonorEntry::default(),
            false => entry.removing = false,
        }
        for member in self.extents.values_mut().flatten().filter(|m| m.placed.donor == donor) {
            let before = member.leaving.filter(|l| l.deadline.is_some());
            member.leaving = before.map(|l| Leaving { moves: false, ..l });
        }
    }

    pub(super) fn finish_removals(&mut self) {
        let removing: Vec<DonorId> =
            self.donors.iter().filter(|(_, d)| d.removing && !d.is_gone).map(|(id, _)| *id).collect();
        for donor in removing {
            if self.kept_on(donor).is_empty() {
                self.donors.insert(donor, DonorEntry { removing: true, is_gone: true, ..DonorEntry::default() });
                self.actions.push(Action::Removed(donor));
            }
        }
    }
}
