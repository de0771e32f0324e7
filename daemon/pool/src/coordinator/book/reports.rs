//! What donors say: that they are there, what they lend, hold and want back, and that they end.

use super::inventory::Inventory;
use super::life::{LENT_ANEW, NOT_KNOWN};
use super::words::{Action, DonorUp};
use super::{absence, life, supply};
use annex_shared::ids::{DonorId, SlabId};
use annex_shared::wire::Lease;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A donor that refused a lease is asked again after this.
const FULL_FOR: Duration = Duration::from_secs(1);

/// A control connection stands.
pub(super) fn up(inventory: &mut Inventory, donor: DonorId, said: DonorUp, now: Instant) {
    absence::heard(inventory, donor, now);
    let entry = inventory.donors.entry(donor).or_default();
    let restarted = entry.incarnation.is_some_and(|i| i != said.incarnation);
    entry.incarnation = Some(said.incarnation);
    (entry.host, entry.rack) = (said.host, said.rack);
    (entry.up, entry.closing) = (true, false);
    (entry.away_at, entry.lost_at) = (None, None);
    (entry.full_until, entry.recalls_until) = (None, None);
    (entry.free, entry.asked) = (said.free, 0);
    if restarted {
        entry.stock.clear();
    }
    // A donor that lies may list a hundred thousand.
    let held: BTreeMap<SlabId, Lease> = said.held.iter().map(|lease| (lease.slab, *lease)).collect();
    let is_held = |lease: &Lease| held.get(&lease.slab) == Some(lease);
    entry.stock.retain(is_held);
    let mut mine: BTreeSet<SlabId> = entry.stock.iter().map(|lease| lease.slab).collect();
    inventory.forget_plans(donor);
    for (extent, index, leased) in inventory.kept_on(donor) {
        let same = held.get(&leased.lease.slab);
        if leased.incarnation == said.incarnation && is_held(&leased.lease) {
            mine.insert(leased.lease.slab);
            life::back(inventory, extent, index, now);
        } else if let (Some(lease), true) = (same, said.resumed == Some(leased.incarnation))
            && lease.rkey.goes_on_from(leased.lease.rkey)
        {
            mine.insert(lease.slab);
            life::resume(inventory, extent, index, said.incarnation, *lease, now);
        } else {
            let restarted = leased.incarnation != said.incarnation;
            let why = match same {
                Some(lease) if !lease.rkey.goes_on_from(leased.lease.rkey) => LENT_ANEW,
                _ if restarted => "its donor was restarted",
                _ => NOT_KNOWN,
            };
            life::declare_lost(inventory, extent, index, why);
        }
    }
    let strays: Vec<Lease> = held.into_values().filter(|lease| !mine.contains(&lease.slab)).collect();
    if !strays.is_empty() {
        inventory.actions.push(Action::Return(donor, strays));
    }
}

/// The agent said that its memory is gone after `grace`.
pub(super) fn closing(inventory: &mut Inventory, donor: DonorId, grace: Duration, now: Instant) {
    let entry = inventory.donors.entry(donor).or_default();
    entry.closing = true;
    let lost_at = now + grace;
    entry.lost_at = Some(entry.lost_at.map_or(lost_at, |at| at.min(lost_at)));
    let stock = std::mem::take(&mut entry.stock);
    inventory.forget_plans(donor);
    if !stock.is_empty() {
        inventory.actions.push(Action::Return(donor, stock));
    }
    life::drain(inventory, donor, |_| true, Some(lost_at));
}

/// The agent wants these slabs back until then.
pub(super) fn recalled(inventory: &mut Inventory, donor: DonorId, slabs: &[SlabId], deadline: Instant) {
    let slabs: BTreeSet<SlabId> = slabs.iter().copied().collect();
    let entry = inventory.donors.entry(donor).or_default();
    let (back, stock) = entry.stock.drain(..).partition::<Vec<_>, _>(|l| slabs.contains(&l.slab));
    entry.stock = stock;
    (entry.full_until, entry.recalls_until) = (Some(deadline), Some(deadline));
    if !back.is_empty() {
        inventory.actions.push(Action::Return(donor, back));
    }
    life::drain(inventory, donor, |p| slabs.contains(&p.lease.slab), Some(deadline));
}

/// Slabs came in.
pub(super) fn leased(inventory: &mut Inventory, donor: DonorId, leases: Vec<Lease>, now: Instant) {
    let entry = inventory.donors.entry(donor).or_default();
    entry.asked = entry.asked.saturating_sub(1);
    entry.free = entry.free.saturating_sub(leases.len() as u32);
    if entry.closing || entry.removing {
        inventory.actions.push(Action::Return(donor, leases));
        return;
    }
    entry.stock.extend(&leases);
    entry.stock_since = Some(now);
    // It can lend again only what it has taken back, whatever we have heard.
    for (extent, index, leased) in inventory.kept_on(donor) {
        if leases.iter().any(|l| l.slab == leased.lease.slab) {
            life::declare_lost(inventory, extent, index, LENT_ANEW);
        }
    }
    supply::build(inventory, now);
}

/// It has none to lend now.
pub(super) fn refused(inventory: &mut Inventory, donor: DonorId, now: Instant) {
    let entry = inventory.donors.entry(donor).or_default();
    entry.asked = entry.asked.saturating_sub(1);
    entry.full_until = Some(now + FULL_FOR);
    // What it has on stock still serves plans made before.
    let mut left = entry.stock.len();
    let mut serves = |named: bool| {
        let keep = !named || left > 0;
        if keep && named {
            left -= 1;
        }
        keep
    };
    inventory.additions.retain(|j| serves(j.donor == donor));
    inventory.plans.retain(|p| serves(p.contains(&donor)));
}

/// The agent's books after a renewal, which was asked for at `asked`.
pub(super) fn renewed(
    inventory: &mut Inventory,
    donor: DonorId,
    held: &[SlabId],
    free: u32,
    asked: Instant,
    now: Instant,
) {
    absence::heard(inventory, donor, now);
    let held: BTreeSet<SlabId> = held.iter().copied().collect();
    let entry = inventory.donors.entry(donor).or_default();
    (entry.free, entry.confirmed) = (free, Some(asked));
    if entry.up && !entry.closing {
        entry.away_at = None;
    }
    entry.stock.retain(|l| held.contains(&l.slab));
    for (extent, index, leased) in inventory.kept_on(donor) {
        life::told(inventory, extent, index, held.contains(&leased.lease.slab), asked);
    }
}
