//! Where further replicas go: for extents that have too few, for those that must leave their donor,
//! and to even out donors.
//!
//! Extents with the fewest live replicas come first. Few additions are under way at once, since
//! each takes part in every write while one thread fills them in turn. Empty extents are not
//! repaired but given back.

use super::inventory::{Addition, DonorEntry, Inventory};
use super::last_tier;
use super::member::{Drain, Member};
use super::words::{Action, Grade, LeasedReplica};
use crate::coordinator::placement::{self, PlacementCandidate, apart};
use crate::metadata::replica::{REPLICA_ENTRIES, ReplicaState};
use annex_shared::ids::{DonorId, ExtentId};
use std::time::Instant;

/// New replicas that may be on their way or being filled at once.
const MAX_ADDITIONS: usize = 4;
/// A donor is relieved when it is fuller than the emptiest by this part of their size (1/N), and by
/// two slabs at least.
const UNEVEN_PART: u32 = 4;

/// What an extent has too few of, the more urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Replica,
    /// It has as many replicas as it should, which is one, and no copy in the spill file.
    Backup,
}

/// Replicas being filled for the first time, or on their way to that.
fn additions_under_way(inventory: &Inventory) -> usize {
    let filling = |m: &&Member| m.fresh && m.leased.state == ReplicaState::Syncing;
    inventory.additions.len() + inventory.extents.values().flatten().filter(filling).count()
}

pub(super) fn plan_additions(inventory: &mut Inventory, empty: &[ExtentId], now: Instant) {
    let mut needy: Vec<(Need, usize, ExtentId)> = Vec::new();
    for (extent, members) in &inventory.extents {
        let live = members.iter().filter(|m| m.leased.state == ReplicaState::Live).count();
        let kept = members.iter().filter(|m| m.leased.state.is_kept()).count();
        let lasting = members.iter().filter(|m| m.lasts()).count();
        let coming = inventory.additions.iter().filter(|j| j.extent == *extent && !inventory.is_spill(j.donor)).count();
        let lacks = lasting + coming < inventory.rules.replicas;
        let need = if lacks { Need::Replica } else { Need::Backup };
        // One that is empty and degraded goes back as a whole.
        let retires = empty.contains(extent) && inventory.grade(*extent) != Grade::Whole;
        let wanted = lacks || last_tier::lacks_backup(inventory, *extent, empty, now);
        if wanted && kept + coming < REPLICA_ENTRIES && live > 0 && !retires {
            needy.push((need, live, *extent));
        }
    }
    needy.sort_unstable();
    let mut under_way = additions_under_way(inventory);
    for (need, _, extent) in needy {
        if under_way >= MAX_ADDITIONS {
            return;
        }
        let donor = if need == Need::Replica { choose_for(inventory, extent, now) } else { None };
        let stays = donor.is_none() && need == Need::Replica && stay(inventory, extent);
        if let Some(donor) = donor.or_else(|| last_tier::last_tier_for(inventory, extent, now).filter(|_| !stays)) {
            inventory.additions.push(Addition { extent, donor });
            inventory.ask(donor);
            under_way += 1;
        }
    }
    if under_way == 0 && inventory.rules.rebalance {
        even_out(inventory, empty, now);
    }
}

/// Replicas that were to move only to even out donors stay: there is nowhere to go, since where
/// they were to go is lost or removed. True if there were any.
fn stay(inventory: &mut Inventory, extent: ExtentId) -> bool {
    let is_removed = |donor: &DonorId| inventory.donors.get(donor).is_some_and(|d| d.removing);
    let mut stays = false;
    for member in inventory.extents.get_mut(&extent).into_iter().flatten() {
        let moves = member.draining.is_some_and(|drain| drain.deadline.is_none());
        if moves && member.leased.state.is_kept() && !is_removed(&member.leased.donor) {
            (member.draining, stays) = (None, true);
        }
    }
    stays
}

/// A donor for one more replica of an extent.
fn choose_for(inventory: &mut Inventory, extent: ExtentId, now: Instant) -> Option<DonorId> {
    let allowed = inventory.allowed_for(extent, now);
    // Those that are draining have no say in what is far apart, but a donor never gets two.
    let lasting = inventory.neighbours(extent, Member::lasts);
    let lasting: Vec<&PlacementCandidate> = lasting.iter().collect();
    inventory.drawing(|draw| placement::choose_beside(&allowed, &lasting, draw).map(|c| c.donor))
}

pub(super) fn build_additions(inventory: &mut Inventory, now: Instant) {
    let mut at = 0;
    while at < inventory.additions.len() {
        let Addition { extent, donor } = inventory.additions[at];
        let taken = neighbours_taken(inventory, extent, donor);
        let Some(members) = inventory.extents.get(&extent).filter(|_| !taken) else {
            inventory.additions.remove(at);
            continue;
        };
        let index = members.iter().position(|m| !m.leased.state.is_kept()).unwrap_or(members.len());
        let is_spill = inventory.is_spill(donor);
        let state = last_tier::state_for(inventory, extent, is_spill, now);
        let entry = inventory.donors.entry(donor).or_default();
        let (Some(incarnation), true) = (entry.incarnation, index < REPLICA_ENTRIES) else {
            inventory.additions.remove(at);
            continue;
        };
        let Some(lease) = entry.stock.pop() else {
            at += 1;
            continue;
        };
        inventory.additions.remove(at);
        let leased = LeasedReplica { donor, incarnation, lease, state };
        let member = Member { fresh: true, ..inventory.begin(leased, now) };
        let members = inventory.extents.entry(extent).or_default();
        match members.get_mut(index) {
            Some(old) => *old = member,
            None => members.push(member),
        }
        inventory.actions.push(Action::Add { extent, index: index as u8, leased });
    }
}

fn neighbours_taken(inventory: &Inventory, extent: ExtentId, donor: DonorId) -> bool {
    let members = inventory.extents.get(&extent).into_iter().flatten();
    members.filter(|m| m.leased.state.is_kept()).any(|m| m.leased.donor == donor)
}

/// Moves one replica from the fullest donor to the emptiest, if that is worth it.
fn even_out(inventory: &mut Inventory, empty: &[ExtentId], now: Instant) {
    if !inventory.is_whole() || inventory.extents.values().flatten().any(|m| m.draining.is_some()) {
        return;
    }
    // In thousandths of what each could hold for us.
    let load = |id: &DonorId, d: &DonorEntry| {
        let held = inventory.held(*id);
        ((u64::from(held) * 1000 / (u64::from(held) + u64::from(d.free)).max(1)) as u32, held)
    };
    let taking = inventory.donors.iter().filter(|(id, d)| d.is_taking() && !inventory.is_spill(**id));
    let mut loads: Vec<((u32, u32), DonorId)> = taking.map(|(id, d)| (load(id, d), *id)).collect();
    loads.sort_unstable();
    let (Some(low), Some(high)) = (loads.first(), loads.last()) else { return };
    let uneven = high.0.0 >= low.0.0 + 1000 / UNEVEN_PART && high.0.1 >= low.0.1 + 2;
    let (from, to) = (high.1, low.1);
    let room = inventory.candidates(now).iter().any(|c| c.donor == to && c.free > 0);
    if !uneven || !room {
        return;
    }
    let movable = |(extent, members): (&ExtentId, &Vec<Member>)| {
        let kept = || members.iter().filter(|m| m.leased.state.is_kept());
        let index = members.iter().position(|m| m.leased.donor == from && m.leased.state == ReplicaState::Live)?;
        let fits = kept().count() < REPLICA_ENTRIES && kept().all(|m| m.leased.donor != to) && !empty.contains(extent);
        let others: Vec<PlacementCandidate> = inventory.neighbours(*extent, |m| m.leased.donor != from);
        let others: Vec<&PlacementCandidate> = others.iter().collect();
        let label = |id: DonorId| Some(inventory.label(id, inventory.donors.get(&id)?));
        let apart_enough = apart(&label(to)?, &others) >= apart(&label(from)?, &others);
        (fits && apart_enough).then_some((*extent, index as u8))
    };
    if let Some((extent, index)) = inventory.extents.iter().find_map(movable)
        && let Some(member) = inventory.member(extent, index)
    {
        member.draining = Some(Drain { deadline: None, moves: true });
        inventory.additions.push(Addition { extent, donor: to });
        inventory.ask(to);
    }
}

/// Extents with two replicas in one host or rack, as far as donors say where they are.
pub(super) fn crowded(inventory: &Inventory) -> u32 {
    let crowded = |extent: &&ExtentId| {
        let all = inventory.neighbours(**extent, Member::lasts);
        let others = |n: usize| all.iter().enumerate().filter(move |(i, _)| *i != n).map(|(_, c)| c);
        (0..all.len()).any(|n| apart(&all[n], &others(n).collect::<Vec<_>>()) < 2)
    };
    inventory.extents.keys().filter(crowded).count() as u32
}

/// Replicas that are to leave their donor and have not yet.
pub(super) fn moving(inventory: &Inventory) -> u32 {
    let moving = |m: &&Member| m.draining.is_some() && m.leased.state.is_kept();
    inventory.extents.values().flatten().filter(moving).count() as u32
}

/// Of those, the ones that can't: nobody has room for what is to take their place, and
/// nothing is on its way.
pub(super) fn stuck(inventory: &Inventory, now: Instant) -> u32 {
    let mut stuck = 0;
    for (extent, members) in &inventory.extents {
        let kept = || members.iter().filter(|m| m.leased.state.is_kept());
        let draining = kept().filter(|m| m.draining.is_some()).count();
        if draining == 0 {
            continue;
        }
        let coming = inventory.additions.iter().filter(|j| j.extent == *extent).count();
        let has_successors = kept().count() - draining + coming >= inventory.rules.replicas;
        let has_room = || inventory.allowed_for(*extent, now).iter().any(|c| c.free > 0);
        if !has_successors && !has_room() && last_tier::last_tier_for(inventory, *extent, now).is_none() {
            stuck += draining;
        }
    }
    stuck as u32
}
