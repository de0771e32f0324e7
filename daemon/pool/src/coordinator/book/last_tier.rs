//! The spill file: when it is used, and when it is left.
//!
//! With two replicas and more, one in the file stands in for a donor's that can't be had, and takes
//! part in every write as that would. It goes as soon as enough donors have the extent.
//!
//! With a single replica every extent that has pages also has a *backup* there. It is *trailing*:
//! no write waits for the disk, and the filler copies what was written meanwhile. When no donor's
//! replica is there to take writes, or the one that does must leave and no donor takes its place,
//! the backup is *joining*: written from then on, filled, and live. When a donor has the extent
//! again it follows as before. If there is a deadline, a donor takes the place when its slab is
//! there, not when it is asked for one.

use super::*;

/// How long the spill file may be out of reach before what lies there counts as lost. Disks try for
/// long before they give up, and nobody else has the bytes.
const SPILL_LOST_AFTER: Duration = Duration::from_secs(120);

impl Rules {
    pub fn lost_after(&self, donor: DonorId) -> Duration {
        if self.spill == Some(donor) { self.lost_after.max(SPILL_LOST_AFTER) } else { self.lost_after }
    }

    pub(super) fn member(&self, placed: Placed, now: Instant) -> Member {
        Member::new(placed, self.spill == Some(placed.donor), now)
    }
}

impl Book {
    pub(super) fn is_spill(&self, donor: DonorId) -> bool {
        self.rules.spill == Some(donor)
    }

    fn has_backups(&self) -> bool {
        self.rules.spill.is_some() && self.rules.replicas == 1
    }

    /// Enough donors have room for a new extent.
    pub(super) fn donors_have_room(&self, now: Instant) -> bool {
        let has_room = |(id, d): &(&DonorId, &DonorEntry)| d.is_taking() && self.lendable(**id, d, now) > 0;
        self.donors.iter().filter(|(id, _)| !self.is_spill(**id)).filter(has_room).count() >= self.rules.replicas
    }

    /// The spill file, if it has room.
    pub(super) fn last_tier(&self, now: Instant) -> Option<DonorId> {
        let id = self.rules.spill?;
        self.donors.get(&id).filter(|d| d.is_taking() && self.lendable(id, d, now) > 0).map(|_| id)
    }

    /// The spill file, if it has room and no replica of the extent, on its way or there.
    pub(super) fn last_tier_for(&self, extent: ExtentId, now: Instant) -> Option<DonorId> {
        let members = self.extents.get(&extent)?;
        let has = members.iter().any(|m| m.is_last_tier && m.placed.state.is_kept());
        let comes = self.joins.iter().any(|j| j.extent == extent && self.is_spill(j.donor));
        self.last_tier(now).filter(|_| !has && !comes)
    }

    /// It has what a backup is made from.
    pub(super) fn lacks_backup(&self, extent: ExtentId, empty: &[ExtentId], now: Instant) -> bool {
        self.has_backups()
            && !empty.contains(&extent)
            && self.last_tier_for(extent, now).is_some()
            && self.leads(extent, |m| m.is_settled(now))
    }

    /// A donor's replica takes the writes, so that a backup need only follow.
    fn leads(&self, extent: ExtentId, which: impl Fn(&Member) -> bool) -> bool {
        let moves = self.joins.iter().any(|j| j.extent == extent && !self.is_spill(j.donor));
        let members = || self.extents.get(&extent).into_iter().flatten().filter(|m| !m.is_last_tier);
        let fills = members().any(|m| m.placed.state == ReplicaState::Joining && m.leaving.is_none());
        // What is only asked for may come after the deadline.
        let stays = |m: &Member| m.leaving.is_none_or(|l| fills || (moves && l.deadline.is_none()));
        members().any(|m| m.placed.state == ReplicaState::Live && stays(m) && which(m))
    }

    /// In which state a replica begins, or comes back.
    pub(super) fn state_for(&self, extent: ExtentId, is_last_tier: bool, now: Instant) -> ReplicaState {
        let follows = is_last_tier && self.has_backups() && self.leads(extent, |m| m.is_settled(now));
        if follows { ReplicaState::Trailing } else { ReplicaState::Joining }
    }

    pub(super) fn state_to_join_in(&self, extent: ExtentId, place: u8, now: Instant) -> ReplicaState {
        let member = self.extents.get(&extent).and_then(|m| m.get(usize::from(place)));
        self.state_for(extent, member.is_some_and(|m| m.is_last_tier), now)
    }

    /// Backups follow when there is someone to follow, and take the writes themselves when there is
    /// not.
    pub(super) fn turn_backups(&mut self, now: Instant) {
        if !self.has_backups() {
            return;
        }
        let backup = |(extent, members): (&ExtentId, &Vec<Member>)| {
            let place = members.iter().position(|m| m.is_last_tier && m.placed.state.is_there())?;
            let state = match members[place].placed.state {
                // Only when every write under way knows of the one that leads: the backup's part in
                // them counts no more.
                ReplicaState::Live | ReplicaState::Joining if self.leads(*extent, |m| m.is_settled(now)) => {
                    ReplicaState::Trailing
                }
                ReplicaState::Trailing if !self.leads(*extent, |_| true) => ReplicaState::Joining,
                _ => return None,
            };
            Some((*extent, place as u8, state))
        };
        let turned: Vec<_> = self.extents.iter().filter_map(backup).collect();
        for (extent, place, state) in turned {
            let Some(member) = self.member(extent, place) else { continue };
            member.turn(state, now);
            let placed = member.placed;
            self.actions.push(Action::Rejoin { extent, place, placed });
            self.weigh(extent);
        }
    }

    /// It is to be replaced, or stood in for a donor's replica; not a backup.
    pub(super) fn is_to_go(&self, member: &Member) -> bool {
        member.placed.state.is_kept() && (member.leaving.is_some() || (member.is_last_tier && !self.has_backups()))
    }

    /// The replica in a place is to go as soon as enough others are live.
    #[cfg(test)]
    pub fn gives_up(&self, extent: ExtentId, place: u8) -> bool {
        let member = self.extents.get(&extent).and_then(|m| m.get(usize::from(place)));
        member.is_some_and(|m| self.is_to_go(m))
    }

    /// A donor could take a replica of the extent, or is just getting one.
    pub(super) fn has_somewhere_to_go(&self, extent: ExtentId, now: Instant) -> bool {
        let comes = self.joins.iter().any(|j| j.extent == extent && !self.is_spill(j.donor));
        let members = self.extents.get(&extent).into_iter().flatten();
        let fills = |m: &Member| m.placed.state == ReplicaState::Joining && m.lasts();
        comes || members.clone().any(fills) || self.allowed_for(extent, now).iter().any(|c| c.free > 0)
    }
}
