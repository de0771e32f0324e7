//! The life of a replica, as the book sees it.
//!
//! - Live until its donor is out of reach, or a lane could not write to it: then *away*. Lost at
//!   once if its donor says that the lease is gone.
//! - Away until its donor is heard again: then *joining*, with what it missed still to be copied.
//!   Its donor may come back under a new incarnation if the agent vouches that the bytes came
//!   through. Lost if that takes longer than `lost_after`, or if it fails again and again; if no
//!   replica is live, longer than `last_copy_lost_after`.
//! - Joining until the repair thread has copied what it lacks: then live.
//! - Trailing: a backup (`last_tier`). Away and back like any other.
//! - *Leaving* is a mark on any of them: another replica takes its place as soon as that one is
//!   live. If there is a deadline, the donor's first word after it decides: the replica is lost if
//!   the donor has taken its slab back, and stays if the donor has not, since it wants it back no
//!   longer (a drain was ended, say, which nobody is told).

use super::inventory::Inventory;
use super::last_tier;
use super::member::{Leaving, MAX_STRIKES, Member};
use super::words::{Action, Placed};
use crate::metadata::replica::ReplicaState;
use annex_shared::ids::{DonorId, ExtentId, Incarnation};
use annex_shared::wire::Lease;
use std::time::{Duration, Instant};

/// An extent without a live replica is left so for this long before a joining one is made live as
/// it is. Joining ones fill each other meanwhile.
const PROMOTE_AFTER: Duration = Duration::from_secs(10);

/// Why a replica is lost that its donor no longer holds.
pub(super) const NOT_KNOWN: &str = "its donor does not know the lease any more";
/// Why a replica is lost whose slab is lent to us under another lease.
pub(super) const LENT_ANEW: &str = "its donor has taken the slab back and lent it anew";

/// A lane has marked the replica as lost.
pub(super) fn replica_lost(inventory: &mut Inventory, extent: ExtentId, place: u8, donor: DonorId) {
    if inventory.member(extent, place).is_some_and(|m| m.placed.donor == donor && m.placed.state.is_kept()) {
        forsake(inventory, extent, place);
    }
}

/// A lane has marked the replica as away.
pub(super) fn replica_away(inventory: &mut Inventory, extent: ExtentId, place: u8, donor: DonorId, now: Instant) {
    let Some(member) = inventory.member(extent, place) else { return };
    if member.placed.donor == donor && member.placed.state.is_there() {
        member.strikes = member.strikes.saturating_add(1);
        member.turn(ReplicaState::Away, now);
        inventory.actions.push(Action::Ask(donor));
        inventory.weigh(extent);
    }
}

/// A lane found the replica live without a write, and made it joining.
pub(super) fn replica_demoted(inventory: &mut Inventory, extent: ExtentId, place: u8, now: Instant) -> bool {
    let Some(member) = inventory.member(extent, place) else { return false };
    let was_live = member.placed.state == ReplicaState::Live;
    if was_live {
        member.turn(ReplicaState::Joining, now);
        inventory.weigh(extent);
    }
    was_live
}

/// A joining replica lacks nothing any more and is live.
pub(super) fn joined(inventory: &mut Inventory, extent: ExtentId, place: u8, now: Instant) {
    let Some(member) = inventory.member(extent, place) else { return };
    if member.placed.state == ReplicaState::Joining {
        member.turn(ReplicaState::Live, now);
        (member.strikes, member.fresh) = (0, false);
        inventory.weigh(extent);
    }
}

/// What [`Action::Rejoin`] led to: one that was to follow is joining, if there is nobody live
/// to follow.
pub(super) fn rejoined(inventory: &mut Inventory, extent: ExtentId, place: u8, state: ReplicaState, now: Instant) {
    let Some(member) = inventory.member(extent, place).filter(|m| m.placed.state.is_filled()) else { return };
    if member.placed.state != state {
        member.turn(state, now);
        inventory.weigh(extent);
    }
}

/// What [`Action::Vacate`] led to: it is gone, or it is away since it turned out that too few
/// others are live.
pub(super) fn vacated(inventory: &mut Inventory, extent: ExtentId, place: u8, is_gone: bool, now: Instant) {
    let Some(member) = inventory.member(extent, place).filter(|m| m.placed.state.is_kept()) else { return };
    let placed = member.placed;
    if is_gone {
        member.placed.state = ReplicaState::Vacant;
        member.leaving = None;
        inventory.give_back(&placed);
    } else {
        member.turn(ReplicaState::Away, now);
        inventory.actions.push(Action::Ask(placed.donor));
    }
    inventory.weigh(extent);
}

/// A replica's donor is there again with its lease.
pub(super) fn back(inventory: &mut Inventory, extent: ExtentId, place: u8, now: Instant) {
    lift_deadline(inventory, extent, place);
    let Some(member) = inventory.member(extent, place) else { return };
    if member.placed.state == ReplicaState::Away {
        rejoin(inventory, extent, place, now);
    }
}

/// Its bytes came through a restart of its agent.
pub(super) fn resume(
    inventory: &mut Inventory,
    extent: ExtentId,
    place: u8,
    incarnation: Incarnation,
    lease: Lease,
    now: Instant,
) {
    let Some(member) = inventory.member(extent, place) else { return };
    (member.placed.incarnation, member.placed.lease) = (incarnation, lease);
    lift_deadline(inventory, extent, place);
    rejoin(inventory, extent, place, now);
}

/// Its donor does not want the slab back any more.
fn lift_deadline(inventory: &mut Inventory, extent: ExtentId, place: u8) {
    if let Some(member) = inventory.member(extent, place) {
        member.leaving = member.leaving.filter(|l| l.moves).map(|l| Leaving { deadline: None, ..l });
    }
}

/// A replica's donor has its slab still, or not any more; it said so then or later.
pub(super) fn told(inventory: &mut Inventory, extent: ExtentId, place: u8, is_held: bool, said: Instant) {
    let Some(member) = inventory.member(extent, place) else { return };
    let is_over = member.leaving.and_then(|l| l.deadline).is_some_and(|at| at <= said);
    match (is_held, is_over) {
        (true, false) => {}
        (true, true) => {
            lift_deadline(inventory, extent, place);
            inventory.weigh(extent);
        }
        (false, false) => lose(inventory, extent, place, NOT_KNOWN),
        (false, true) => lose(inventory, extent, place, "its donor has taken the slab back"),
    }
}

fn rejoin(inventory: &mut Inventory, extent: ExtentId, place: u8, now: Instant) {
    let state = last_tier::state_to_join_in(inventory, extent, place, now);
    let Some(member) = inventory.member(extent, place) else { return };
    member.turn(state, now);
    let placed = member.placed;
    inventory.actions.push(Action::Rejoin { extent, place, placed });
    inventory.weigh(extent);
}

/// Marks a donor's replicas as leaving.
pub(super) fn send_off(
    inventory: &mut Inventory,
    donor: DonorId,
    which: impl Fn(&Placed) -> bool,
    deadline: Option<Instant>,
) {
    for (extent, place, placed) in inventory.kept_on(donor) {
        if which(&placed)
            && let Some(member) = inventory.member(extent, place)
        {
            let before = member.leaving.unwrap_or_default();
            member.leaving =
                Some(Leaving { deadline: deadline.or(before.deadline), moves: before.moves || deadline.is_none() });
            inventory.weigh(extent);
        }
    }
}

pub(super) fn tick_members(inventory: &mut Inventory, now: Instant) {
    let all = inventory.extents.iter().flat_map(|(e, m)| (0u8..).zip(m).map(move |(n, m)| (*e, n, m)));
    let away = all.filter(|(.., m)| m.placed.state == ReplicaState::Away);
    let away: Vec<(ExtentId, u8)> = away.map(|(e, n, _)| (e, n)).collect();
    for (extent, place) in away {
        let Some(member) = inventory.member(extent, place) else { continue };
        let donor = member.placed.donor;
        let (since, strikes, rejoin_at) = (member.since, member.strikes, member.rejoin_at());
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
            lose(inventory, extent, place, "writes to it keep failing");
        } else if there && rejoin_at <= now {
            rejoin(inventory, extent, place, now);
        } else if !there && now.duration_since(absent_since) >= lost_after {
            lose(inventory, extent, place, "its donor was out of reach for too long");
        }
    }
    last_tier::turn_backups(inventory, now);
    promote(inventory, now);
    let left = |m: &Member| last_tier::is_to_go(inventory, m);
    let leaving: Vec<ExtentId> =
        inventory.extents.iter().filter(|(_, m)| m.iter().any(left)).map(|(e, _)| *e).collect();
    leaving.into_iter().for_each(|extent| let_go(inventory, extent, now));
}

/// When nobody live is left and nobody away can come back, what a joining replica lacks and no
/// other one has is gone for good, and the rest is worth having.
fn promote(inventory: &mut Inventory, now: Instant) {
    let stuck = |members: &Vec<Member>| {
        let has = |state| members.iter().any(|m| m.placed.state == state);
        !has(ReplicaState::Live) && !has(ReplicaState::Away) && has(ReplicaState::Joining)
    };
    let stuck: Vec<ExtentId> = inventory.extents.iter().filter(|(_, m)| stuck(m)).map(|(e, _)| *e).collect();
    for extent in stuck {
        let joining = inventory.extents[&extent].iter().enumerate();
        let joining = joining.filter(|(_, m)| m.placed.state == ReplicaState::Joining);
        let Some((place, best)) = joining.min_by_key(|(_, m)| (m.fresh, m.since)) else { continue };
        if now.duration_since(best.since) >= PROMOTE_AFTER {
            inventory.actions.push(Action::Promote { extent, place: place as u8 });
        }
    }
}

pub(super) fn lose(inventory: &mut Inventory, extent: ExtentId, place: u8, why: &'static str) {
    inventory.actions.push(Action::Lose { extent, place, why });
    forsake(inventory, extent, place);
}

/// The replica is lost: its extent is degraded, and its slab goes back if somebody is there to
/// take it.
fn forsake(inventory: &mut Inventory, extent: ExtentId, place: u8) {
    let Some(member) = inventory.member(extent, place) else { return };
    member.placed.state = ReplicaState::Lost;
    let placed = member.placed;
    inventory.give_back(&placed);
    inventory.weigh(extent);
}

/// Replicas that are leaving may go when there are enough without them, and for long enough: a
/// write that was under way when a new one joined may still turn that one back. The donors of
/// those must be there, and have said since that they hold the slab: a lease may have run out
/// and nobody heard.
fn let_go(inventory: &mut Inventory, extent: ExtentId, now: Instant) {
    let Some(members) = inventory.extents.get(&extent) else { return };
    let donor = |m: &Member| inventory.donors.get(&m.placed.donor);
    let is_there =
        |m: &Member| donor(m).is_some_and(|d| d.up && !d.silent && d.incarnation == Some(m.placed.incarnation));
    let is_confirmed = |m: &&Member| donor(m).is_some_and(|d| d.confirmed >= Some(m.since));
    let (sure, unsure): (Vec<&Member>, Vec<&Member>) =
        members.iter().filter(|m| m.is_settled(now) && is_there(m)).partition(is_confirmed);
    let on_donors = sure.iter().filter(|m| m.lasts()).count();
    let spilled = sure.iter().filter(|m| m.is_last_tier).count();
    let enough = on_donors >= inventory.rules.replicas;
    if !enough {
        let stay = unsure.iter().filter(|m| m.leaving.is_none());
        inventory.actions.extend(stay.map(|m| Action::Ask(m.placed.donor)));
    }
    // Where no donor takes it, the spill file's replica is one of those that there should be.
    if !enough
        && (on_donors + spilled < inventory.rules.replicas || last_tier::has_somewhere_to_go(inventory, extent, now))
    {
        return;
    }
    let goes = |m: &Member| last_tier::is_to_go(inventory, m) && (enough || !m.is_last_tier);
    let leaving = members.iter().enumerate().filter(|(_, m)| goes(m));
    let leaving: Vec<u8> = leaving.map(|(n, _)| n as u8).collect();
    for place in leaving {
        inventory.actions.push(Action::Vacate { extent, place });
    }
}
