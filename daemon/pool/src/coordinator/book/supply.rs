//! How many extents are held: taken ahead of demand, given back when idle.
//!
//! A *plan* names R donors. Each is asked for one slab. Slabs that come in lie on the donor's
//! *stock* until every donor of some plan has one; then the extent is published.

use super::inventory::{DonorEntry, Inventory};
use super::words::{Action, Grade, Headroom, LeasedReplica};
use super::{last_tier, removal, repair};
use crate::coordinator::placement::{self, PlacementCandidate};
use crate::metadata::replica::ReplicaState;
use annex_shared::ids::{DonorId, ExtentId};
use std::collections::BTreeMap;
use std::time::Instant;

/// Extents that may be on their way at once.
const MAX_PLANS: usize = 8;
/// Extents to hold ahead at most, however fast pages come.
const AHEAD: u64 = 1;

/// How demand and what there is stood at the last look.
#[derive(Debug, Default)]
pub(super) struct Supply {
    idle_since: BTreeMap<ExtentId, Instant>,
    dry: bool,
    full: bool,
    spills: bool,
    degrades: bool,
}

impl Supply {
    /// True if more room is wanted and none is on its way.
    pub fn is_dry(&self, inventory: &Inventory) -> bool {
        self.dry && inventory.plans.is_empty()
    }

    /// True from the moment the pool was found dry until it has room again. Donors are asked anew
    /// now and then meanwhile.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Too few donors have room for a new extent, so that pages go to the last tier.
    pub fn spills(&self) -> bool {
        self.spills
    }

    /// Too few donors are there for a whole extent, though enough are known.
    pub fn degrades(&self) -> bool {
        self.degrades
    }

    /// The extent is taken away.
    pub fn forget(&mut self, extent: ExtentId) {
        self.idle_since.remove(&extent);
    }

    /// Takes extents ahead of demand, gives idle ones back, and has replicas put where they are
    /// missing.
    pub fn balance(&mut self, inventory: &mut Inventory, room: &Headroom, now: Instant) {
        let slots = u64::from(inventory.rules.slots_per_extent);
        if slots == 0 {
            self.dry = true;
            return;
        }
        // One extent ahead, and what was taken lately or missed once more.
        let target = slots + room.wanted + room.taken.min(slots * AHEAD);
        self.spills = !last_tier::donors_have_room(inventory, now);
        self.degrades = lacks_donors(inventory, now);
        if !self.degrades {
            // Whole extents can be had again.
            let (replicas, spill) = (inventory.rules.replicas, inventory.rules.spill);
            inventory.plans.retain(|p| p.len() >= replicas || spill.is_some_and(|spill| p.contains(&spill)));
        }
        let mut free = room.free + if self.spills { room.spilled } else { 0 };
        free += if self.degrades { room.degraded } else { 0 };
        let spare = free.saturating_sub(target);
        let demand = room.wanted > 0 || room.taken > 0;
        self.retire(inventory, room, spare / slots, demand, now);
        repair::plan_additions(inventory, &room.empty, now);
        free += inventory.plans.len() as u64 * slots;
        while free < target && inventory.plans.len() < MAX_PLANS && self.plan(inventory, demand, now) {
            free += slots;
        }
        self.dry = free < target;
        let left = room.free + room.spilled + room.degraded;
        self.full = if self.full { left < slots } else { self.is_dry(inventory) && left == 0 };
        build(inventory, now);
        return_stock(inventory, now);
        removal::finish_removals(inventory);
    }

    fn retire(&mut self, inventory: &mut Inventory, room: &Headroom, mut spare: u64, demand: bool, now: Instant) {
        self.idle_since.retain(|e, _| room.empty.contains(e));
        for extent in &room.empty {
            let since = *self.idle_since.entry(*extent).or_insert(now);
            if !inventory.extents.contains_key(extent) {
                continue;
            }
            let idle = now.duration_since(since) >= inventory.rules.idle_return;
            let goes = match inventory.grade(*extent) {
                // What comes next goes there while nothing better can be had.
                Grade::Degraded => !(self.degrades && inventory.has_live(*extent)) || (idle && !demand),
                // Donors have room, so the next pages go there; and nothing is held in the file
                // ahead of demand.
                Grade::LastTier => !self.spills || (idle && !demand),
                Grade::Whole => idle && spare > 0,
            };
            if goes {
                spare = spare.saturating_sub(1);
                inventory.actions.push(Action::Retire(*extent));
            }
        }
    }

    fn plan(&mut self, inventory: &mut Inventory, demand: bool, now: Instant) -> bool {
        if inventory.extents.len() + inventory.plans.len() >= inventory.rules.max_extents as usize {
            return false;
        }
        let candidates = inventory.candidates(now);
        let replicas = inventory.rules.replicas;
        let on_donors = inventory.drawing(|draw| placement::choose(&candidates, replicas, draw));
        let last_tier = last_tier::last_tier(inventory, now).filter(|_| demand);
        let spilled = |spill| inventory.drawing(|draw| placement::choose_with(spill, &candidates, replicas, draw));
        let Some(chosen) = on_donors.or_else(|| last_tier.map(spilled)) else {
            return demand && self.plan_degraded(inventory, &candidates);
        };
        pursue(inventory, chosen);
        true
    }

    /// An extent on the donors that are there. It gets its other replicas when theirs are back.
    fn plan_degraded(&mut self, inventory: &mut Inventory, candidates: &[PlacementCandidate]) -> bool {
        let donors = candidates.iter().filter(|c| c.free > 0).count();
        if !self.degrades || donors == 0 {
            return false;
        }
        let Some(chosen) = inventory.drawing(|draw| placement::choose(candidates, donors, draw)) else { return false };
        pursue(inventory, chosen);
        true
    }
}

fn pursue(inventory: &mut Inventory, chosen: Vec<DonorId>) {
    inventory.plans.push(chosen.clone());
    chosen.into_iter().for_each(|id| inventory.ask(id));
}

/// Fewer donors are there than an extent has replicas, and enough are known: some are away, or
/// want back what they have lent (a drain, say). With too few donors to begin with, nothing is
/// written that never could have all its replicas.
fn lacks_donors(inventory: &Inventory, now: Instant) -> bool {
    let known = || inventory.donors.iter().filter(|(id, d)| !inventory.is_spill(**id) && !d.removing);
    let lends = |d: &DonorEntry| d.is_taking() && d.recalls_until.is_none_or(|until| until <= now);
    let there = known().filter(|(_, d)| lends(d)).count();
    there > 0 && there < inventory.rules.replicas && known().count() >= inventory.rules.replicas
}

/// Carries out the additions and publishes the plans whose slabs are all there.
pub(super) fn build(inventory: &mut Inventory, now: Instant) {
    repair::build_additions(inventory, now);
    let mut at = 0;
    while at < inventory.plans.len() {
        let ready = inventory.plans[at].iter().all(|d| inventory.donors.get(d).is_some_and(|d| !d.stock.is_empty()));
        let free = (0..inventory.rules.max_extents).map(ExtentId).find(|e| !inventory.extents.contains_key(e));
        let (true, Some(extent)) = (ready, free) else {
            at += 1;
            continue;
        };
        let mut replicas = Vec::new();
        for id in inventory.plans.remove(at) {
            let Some(donor) = inventory.donors.get_mut(&id) else { continue };
            if let (Some(lease), Some(incarnation)) = (donor.stock.pop(), donor.incarnation) {
                replicas.push(LeasedReplica { donor: id, incarnation, lease, state: ReplicaState::Live });
            }
        }
        inventory.extents.insert(extent, replicas.iter().map(|p| inventory.begin(*p, now)).collect());
        inventory.actions.push(Action::Publish(extent, replicas));
        inventory.weigh(extent);
    }
}

/// Stock that no plan has wanted for a while goes back.
fn return_stock(inventory: &mut Inventory, now: Instant) {
    let stocked: Vec<DonorId> =
        inventory.donors.iter().filter(|(_, d)| !d.stock.is_empty()).map(|(id, _)| *id).collect();
    for id in stocked {
        let wanted = inventory.promised(id) as usize;
        let Some(donor) = inventory.donors.get_mut(&id) else { continue };
        let old = donor.stock_since.is_some_and(|t| now.duration_since(t) >= inventory.rules.idle_return);
        if old && donor.stock.len() > wanted {
            inventory.actions.push(Action::Return(id, donor.stock.split_off(wanted)));
        }
    }
}
