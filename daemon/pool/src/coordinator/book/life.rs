//! The life of a replica, as the book sees it.
//!
//! - Live until its donor is out of reach, or a lane could not write to it or was refused access:
//!   then *stale*. What a lane is told is no proof of a loss: a device that is being taken away
//!   refuses, too. Lost at once if the agent says that it does not hold the slab.
//! - Stale until its donor is heard again: then *syncing*, with what it missed still to be copied.
//!   Its donor may come back under a new incarnation if the agent vouches that the bytes came
//!   through. Lost if that takes longer than `lost_after`, or if it fails again and again; if no
//!   replica is live, longer than `last_copy_lost_after`.
//! - Syncing until the repair thread has copied what it lacks: then live.
//! - Backup: see `last_tier`. Stale and back like any other.
//! - *Draining* is a mark on any of them: another replica takes its place as soon as that one is
//!   live. If there is a deadline, the donor's first word after it decides: the replica is lost if
//!   the donor has taken its slab back, and stays if the donor has not, since it wants it back no
//!   longer (a drain was ended, say, which nobody is told).

use super::inventory::Inventory;
use super::last_tier;
use super::member::{Drain, MAX_STRIKES, Member};
use super::words::{Action, LeasedReplica};
use crate::metadata::replica::ReplicaState;
use annex_shared::ids::{DonorId, ExtentId, Incarnation};
use annex_shared::wire::Lease;
use std::time::{Duration, Instant};

/// An extent without a live replica is left so for this long before a syncing one is made live as
/// it is. Syncing ones fill each other meanwhile.
const PROMOTE_AFTER: Duration = Duration::from_secs(10);

/// Why a replica is lost that its donor no longer holds.
pub(super) const NOT_KNOWN: &str = "its donor does not know the lease any more";
/// Why a replica is lost whose slab is lent to us under another lease.
pub(super) const LENT_ANEW: &str = "its donor has taken the slab back and lent it anew";

/// A lane has marked the replica as stale.
pub(super) fn replica_stale(inventory: &mut Inventory, extent: ExtentId, index: u8, donor: DonorId, now: Instant) {
    let Some(member) = inventory.member(extent, index) else { return };
    if member.leased.donor == donor && member.leased.state.is_there() {
        member.strikes = member.strikes.saturating_add(1);
        member.turn(ReplicaState::Stale, now);
        inventory.actions.push(Action::Ask(donor));
        inventory.weigh(extent);
    }
}

/// A lane found the replica live without a write, and made it syncing.
pub(super) fn replica_fell_behind(inventory: &mut Inventory, extent: ExtentId, index: u8, now: Instant) -> bool {
    let Some(member) = inventory.member(extent, index) else { return false };
    let was_live = member.leased.state == ReplicaState::Live;
    if was_live {
        member.turn(ReplicaState::Syncing, now);
        inventory.weigh(extent);
    }
    was_live
}

/// A syncing replica lacks nothing any more and is live.
pub(super) fn synced(inventory: &mut Inventory, extent: ExtentId, index: u8, now: Instant) {
    let Some(member) = inventory.member(extent, index) else { return };
    if member.leased.state == ReplicaState::Syncing {
        member.turn(ReplicaState::Live, now);
        (member.strikes, member.fresh) = (0, false);
        inventory.weigh(extent);
    }
}

/// What [`Action::Resync`] led to: one that was to follow is syncing, if there is nobody live
/// to follow.
pub(super) fn resync_began(inventory: &mut Inventory, extent: ExtentId, index: u8, state: ReplicaState, now: Instant) {
    let Some(member) = inventory.member(extent, index).filter(|m| m.leased.state.is_filled()) else { return };
    if member.leased.state != state {
        member.turn(state, now);
        inventory.weigh(extent);
    }
}

/// What [`Action::Remove`] led to: it is removed, or it is stale since it turned out that too few
/// others are live.
pub(super) fn replica_removed(inventory: &mut Inventory, extent: ExtentId, index: u8, is_removed: bool, now: Instant) {
    let Some(member) = inventory.member(extent, index).filter(|m| m.leased.state.is_kept()) else { return };
    let leased = member.leased;
    if is_removed {
        member.leased.state = ReplicaState::Unused;
        member.draining = None;
        inventory.give_back(&leased);
    } else {
        member.turn(ReplicaState::Stale, now);
        inventory.actions.push(Action::Ask(leased.donor));
    }
    inventory.weigh(extent);
}

/// A replica's donor is there again with its lease.
pub(super) fn back(inventory: &mut Inventory, extent: ExtentId, index: u8, now: Instant) {
    lift_deadline(inventory, extent, index);
    let Some(member) = inventory.member(extent, index) else { return };
    if member.leased.state == ReplicaState::Stale {
        resync(inventory, extent, index, now);
    }
}

/// Its bytes came through a restart of its agent.
pub(super) fn resume(
    inventory: &mut Inventory,
    extent: ExtentId,
    index: u8,
    incarnation: Incarnation,
    lease: Lease,
    now: Instant,
) {
    let Some(member) = inventory.member(extent, index) else { return };
    (member.leased.incarnation, member.leased.lease) = (incarnation, lease);
    lift_deadline(inventory, extent, index);
    resync(inventory, extent, index, now);
}

/// Its donor does not want the slab back any more.
fn lift_deadline(inventory: &mut Inventory, extent: ExtentId, index: u8) {
    if let Some(member) = inventory.member(extent, index) {
        member.draining = member.draining.filter(|l| l.moves).map(|l| Drain { deadline: None, ..l });
    }
}

/// A replica's donor has its slab still, or not any more; it said so then or later.
pub(super) fn told(inventory: &mut Inventory, extent: ExtentId, index: u8, is_held: bool, said: Instant) {
    let Some(member) = inventory.member(extent, index) else { return };
    let is_past = member.draining.and_then(|l| l.deadline).is_some_and(|at| at <= said);
    match (is_held, is_past) {
        (true, false) => {}
        (true, true) => {
            lift_deadline(inventory, extent, index);
            inventory.weigh(extent);
        }
        (false, false) => declare_lost(inventory, extent, index, NOT_KNOWN),
        (false, true) => declare_lost(inventory, extent, index, "its donor has taken the slab back"),
    }
}

fn resync(inventory: &mut Inventory, extent: ExtentId, index: u8, now: Instant) {
    let state = last_tier::state_to_sync_in(inventory, extent, index, now);
    let Some(member) = inventory.member(extent, index) else { return };
    member.turn(state, now);
    let leased = member.leased;
    inventory.actions.push(Action::Resync { extent, index, leased });
    inventory.weigh(extent);
}

/// Marks a donor's replicas as draining.
pub(super) fn drain(
    inventory: &mut Inventory,
    donor: DonorId,
    which: impl Fn(&LeasedReplica) -> bool,
    deadline: Option<Instant>,
) {
    for (extent, index, leased) in inventory.kept_on(donor) {
        if which(&leased)
            && let Some(member) = inventory.member(extent, index)
        {
            let before = member.draining.unwrap_or_default();
            member.draining =
                Some(Drain { deadline: deadline.or(before.deadline), moves: before.moves || deadline.is_none() });
            inventory.weigh(extent);
        }
    }
}

pub(super) fn tick_members(inventory: &mut Inventory, now: Instant) {
    let all = inventory.extents.iter().flat_map(|(e, m)| (0u8..).zip(m).map(move |(n, m)| (*e, n, m)));
    let away = all.filter(|(.., m)| m.leased.state == ReplicaState::Stale);
    let away: Vec<(ExtentId, u8)> = away.map(|(e, n, _)| (e, n)).collect();
    for (extent, index) in away {
        let Some(member) = inventory.member(extent, index) else { continue };
        let donor = member.leased.donor;
        let (since, strikes, resync_at) = (member.since, member.strikes, member.resync_at());
        // It is not given up as long as it may have what nobody else has, or only after long.
        let is_spare = inventory.has_live(extent);
        let lost_after = inventory.rules.lost_after(donor);
        let lost_after = if is_spare { lost_after } else { lost_after.max(inventory.rules.last_copy_lost_after) };
        let entry = inventory.donors.get(&donor);
        let heard = entry.and_then(|d| d.heard).unwrap_or(since);
        let there = entry.is_some_and(|d| d.up && !d.silent && d.heard >= Some(since));
        // What waits for its next try is not absent: only since its donor was heard last.
        let absent_since = inventory.counted_from(since.max(heard));
        if strikes >= MAX_STRIKES && is_spare {
            declare_lost(inventory, extent, index, "writes to it keep failing");
        } else if there && resync_at <= now {
            resync(inventory, extent, index, now);
        } else if !there && now.duration_since(absent_since) >= lost_after {
            declare_lost(inventory, extent, index, "its donor was out of reach for too long");
        }
    }
    last_tier::turn_backups(inventory, now);
    promote(inventory, now);
    let left = |m: &Member| last_tier::is_to_go(inventory, m);
    let drained: Vec<ExtentId> =
        inventory.extents.iter().filter(|(_, m)| m.iter().any(left)).map(|(e, _)| *e).collect();
    drained.into_iter().for_each(|extent| remove_drained(inventory, extent, now));
}

/// When nobody live is left and nobody stale can come back, what a syncing replica lacks and no
/// other one has is lost, and the rest is worth having.
fn promote(inventory: &mut Inventory, now: Instant) {
    let stuck = |members: &Vec<Member>| {
        let has = |state| members.iter().any(|m| m.leased.state == state);
        !has(ReplicaState::Live) && !has(ReplicaState::Stale) && has(ReplicaState::Syncing)
    };
    let stuck: Vec<ExtentId> = inventory.extents.iter().filter(|(_, m)| stuck(m)).map(|(e, _)| *e).collect();
    for extent in stuck {
        let syncing = inventory.extents[&extent].iter().enumerate();
        let syncing = syncing.filter(|(_, m)| m.leased.state == ReplicaState::Syncing);
        let Some((index, best)) = syncing.min_by_key(|(_, m)| (m.fresh, m.since)) else { continue };
        if now.duration_since(best.since) >= PROMOTE_AFTER {
            inventory.actions.push(Action::Promote { extent, index: index as u8 });
        }
    }
}

pub(super) fn declare_lost(inventory: &mut Inventory, extent: ExtentId, index: u8, why: &'static str) {
    inventory.actions.push(Action::MarkLost { extent, index, why });
    mark_lost(inventory, extent, index);
}

/// The replica is lost: its extent is degraded, and its slab goes back if somebody is there to
/// take it.
fn mark_lost(inventory: &mut Inventory, extent: ExtentId, index: u8) {
    let Some(member) = inventory.member(extent, index) else { return };
    member.leased.state = ReplicaState::Lost;
    let leased = member.leased;
    inventory.give_back(&leased);
    inventory.weigh(extent);
}

/// Replicas that are draining may go when there are enough without them, and for long enough: a
/// write that was under way when a new one was synced may still turn that one back. The donors of
/// those must be there, and have said since that they hold the slab: a lease may have run out
/// and nobody heard.
fn remove_drained(inventory: &mut Inventory, extent: ExtentId, now: Instant) {
    let Some(members) = inventory.extents.get(&extent) else { return };
    let donor = |m: &Member| inventory.donors.get(&m.leased.donor);
    let is_there =
        |m: &Member| donor(m).is_some_and(|d| d.up && !d.silent && d.incarnation == Some(m.leased.incarnation));
    let is_confirmed = |m: &&Member| donor(m).is_some_and(|d| d.confirmed >= Some(m.since));
    let (sure, unsure): (Vec<&Member>, Vec<&Member>) =
        members.iter().filter(|m| m.is_settled(now) && is_there(m)).partition(is_confirmed);
    let on_donors = sure.iter().filter(|m| m.lasts()).count();
    let spilled = sure.iter().filter(|m| m.is_last_tier).count();
    let enough = on_donors >= inventory.rules.replicas;
    if !enough {
        let stay = unsure.iter().filter(|m| m.draining.is_none());
        inventory.actions.extend(stay.map(|m| Action::Ask(m.leased.donor)));
    }
    // Where no donor takes it, the spill file's replica is one of those that there should be.
    if !enough
        && (on_donors + spilled < inventory.rules.replicas || last_tier::has_somewhere_to_go(inventory, extent, now))
    {
        return;
    }
    let goes = |m: &Member| last_tier::is_to_go(inventory, m) && (enough || !m.is_last_tier);
    let drained = members.iter().enumerate().filter(|(_, m)| goes(m));
    let drained: Vec<u8> = drained.map(|(n, _)| n as u8).collect();
    for index in drained {
        inventory.actions.push(Action::Remove { extent, index });
    }
}
