//! The spill file: when it is used, and when it is left.
//!
//! With two replicas and more, one in the file stands in for a donor's that can't be had, and takes
//! part in every write as that would. It goes as soon as enough donors have the extent.
//!
//! With a single replica every extent that has pages also has a *backup* there. Such a replica only
//! follows: no write waits for the disk, and the filler copies what was written meanwhile. When no
//! donor's replica is there to take writes, or the one that does must leave and no donor takes its
//! place, the backup is *syncing*: written from then on, filled, and live. When a donor has the
//! extent again it follows as before. If there is a deadline, a donor takes the place when its slab
//! is there, not when it is asked for one.

use super::inventory::{DonorEntry, Inventory};
use super::member::Member;
use super::words::Action;
use crate::metadata::replica::ReplicaState;
use annex_shared::ids::{DonorId, ExtentId};
use std::time::Instant;

/// Enough donors have room for a new extent.
pub(super) fn donors_have_room(inventory: &Inventory, now: Instant) -> bool {
    let has_room = |(id, d): &(&DonorId, &DonorEntry)| d.is_taking() && inventory.lendable(**id, d, now) > 0;
    inventory.donors.iter().filter(|(id, _)| !inventory.is_spill(**id)).filter(has_room).count()
        >= inventory.rules.replicas
}

/// The spill file, if it has room.
pub(super) fn last_tier(inventory: &Inventory, now: Instant) -> Option<DonorId> {
    let id = inventory.rules.spill?;
    inventory.donors.get(&id).filter(|d| d.is_taking() && inventory.lendable(id, d, now) > 0).map(|_| id)
}

/// The spill file, if it has room and no replica of the extent, on its way or there.
pub(super) fn last_tier_for(inventory: &Inventory, extent: ExtentId, now: Instant) -> Option<DonorId> {
    let members = inventory.extents.get(&extent)?;
    let has = members.iter().any(|m| m.is_last_tier && m.leased.state.is_kept());
    let comes = inventory.additions.iter().any(|j| j.extent == extent && inventory.is_spill(j.donor));
    last_tier(inventory, now).filter(|_| !has && !comes)
}

/// It has what a backup is made from.
pub(super) fn lacks_backup(inventory: &Inventory, extent: ExtentId, empty: &[ExtentId], now: Instant) -> bool {
    inventory.has_backups()
        && !empty.contains(&extent)
        && last_tier_for(inventory, extent, now).is_some()
        && leads(inventory, extent, |m| m.is_settled(now))
}

/// A donor's replica takes the writes, so that a backup need only follow.
fn leads(inventory: &Inventory, extent: ExtentId, which: impl Fn(&Member) -> bool) -> bool {
    let moves = inventory.additions.iter().any(|j| j.extent == extent && !inventory.is_spill(j.donor));
    let members = || inventory.extents.get(&extent).into_iter().flatten().filter(|m| !m.is_last_tier);
    let fills = members().any(|m| m.leased.state == ReplicaState::Syncing && m.draining.is_none());
    // What is only asked for may come after the deadline.
    let stays = |m: &Member| m.draining.is_none_or(|l| fills || (moves && l.deadline.is_none()));
    members().any(|m| m.leased.state == ReplicaState::Live && stays(m) && which(m))
}

/// In which state a replica begins, or comes back.
pub(super) fn state_for(inventory: &Inventory, extent: ExtentId, is_last_tier: bool, now: Instant) -> ReplicaState {
    let follows = is_last_tier && inventory.has_backups() && leads(inventory, extent, |m| m.is_settled(now));
    if follows { ReplicaState::Backup } else { ReplicaState::Syncing }
}

pub(super) fn state_to_sync_in(inventory: &Inventory, extent: ExtentId, index: u8, now: Instant) -> ReplicaState {
    let member = inventory.extents.get(&extent).and_then(|m| m.get(usize::from(index)));
    state_for(inventory, extent, member.is_some_and(|m| m.is_last_tier), now)
}

/// Backups follow when there is someone to follow, and take the writes themselves when there is
/// not.
pub(super) fn turn_backups(inventory: &mut Inventory, now: Instant) {
    if !inventory.has_backups() {
        return;
    }
    let backup = |(extent, members): (&ExtentId, &Vec<Member>)| {
        let index = members.iter().position(|m| m.is_last_tier && m.leased.state.is_there())?;
        let state = match members[index].leased.state {
            // Only when every write under way knows of the one that leads: the backup's part in
            // them counts no more.
            ReplicaState::Live | ReplicaState::Syncing if leads(inventory, *extent, |m| m.is_settled(now)) => {
                ReplicaState::Backup
            }
            ReplicaState::Backup if !leads(inventory, *extent, |_| true) => ReplicaState::Syncing,
            _ => return None,
        };
        Some((*extent, index as u8, state))
    };
    let turned: Vec<_> = inventory.extents.iter().filter_map(backup).collect();
    for (extent, index, state) in turned {
        let Some(member) = inventory.member(extent, index) else { continue };
        member.turn(state, now);
        let leased = member.leased;
        inventory.actions.push(Action::Resync { extent, index, leased });
        inventory.weigh(extent);
    }
}

/// It is to be replaced, or stood in for a donor's replica; not a backup.
pub(super) fn is_to_go(inventory: &Inventory, member: &Member) -> bool {
    member.leased.state.is_kept() && (member.draining.is_some() || (member.is_last_tier && !inventory.has_backups()))
}

/// A donor could take a replica of the extent, or is just getting one.
pub(super) fn has_somewhere_to_go(inventory: &Inventory, extent: ExtentId, now: Instant) -> bool {
    let comes = inventory.additions.iter().any(|j| j.extent == extent && !inventory.is_spill(j.donor));
    let members = inventory.extents.get(&extent).into_iter().flatten();
    let fills = |m: &Member| m.leased.state == ReplicaState::Syncing && m.lasts();
    comes || members.clone().any(fills) || inventory.allowed_for(extent, now).iter().any(|c| c.free > 0)
}
