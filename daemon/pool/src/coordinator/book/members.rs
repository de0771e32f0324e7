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

use super::*;

/// What failed a write is tried again after this, doubled each time.
const REJOIN_AFTER: Duration = Duration::from_millis(250);
/// A replica that was away so often without having been live in between is lost, if another one is
/// live.
pub(super) const MAX_STRIKES: u8 = 6;
/// A replica that was live for this long has taken part in every write under way.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// An extent without a live replica is left so for this long before a joining one is made live as
/// it is. Joining ones fill each other meanwhile.
const PROMOTE_AFTER: Duration = Duration::from_secs(10);

/// A place of an extent.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub placed: Placed,
    /// When it got into this state.
    pub since: Instant,
    /// How often it was away since it was last live.
    pub strikes: u8,
    /// To be replaced; with the moment at which it is gone, if there is one.
    pub leaving: Option<Leaving>,
    /// It began without content.
    pub fresh: bool,
    /// It lies in the spill file.
    pub is_last_tier: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    /// Its donor takes the slab back then.
    pub deadline: Option<Instant>,
    /// It leaves whatever its donor wants: that is to be removed, or less full.
    pub moves: bool,
}

impl Member {
    pub fn new(placed: Placed, is_last_tier: bool, now: Instant) -> Member {
        Member { placed, since: now, strikes: 0, leaving: None, fresh: false, is_last_tier }
    }

    /// It counts towards the replicas there should be.
    pub fn lasts(&self) -> bool {
        self.placed.state.is_kept() && self.leaving.is_none() && !self.is_last_tier
    }

    /// Live for so long that every write under way knows of it.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.placed.state == ReplicaState::Live && now.duration_since(self.since) >= SETTLED_AFTER
    }

    pub fn due(&self) -> Option<Instant> {
        (self.placed.state == ReplicaState::Away).then(|| self.rejoin_at())
    }

    fn rejoin_at(&self) -> Instant {
        self.since + REJOIN_AFTER * (1 << self.strikes.min(MAX_STRIKES))
    }

    pub fn turn(&mut self, state: ReplicaState, now: Instant) {
        (self.placed.state, self.since) = (state, now);
    }
}

impl Book {
    // ---- what lanes and the repair thread find ----

    /// A lane has marked the replica as lost.
    pub fn replica_lost(&mut self, extent: ExtentId, place: u8, donor: DonorId) {
        if self.member(extent, place).is_some_and(|m| m.placed.donor == donor && m.placed.state.is_kept()) {
            self.forsake(extent, place);
        }
    }

    /// A lane has marked the replica as away.
    pub fn replica_away(&mut self, extent: ExtentId, place: u8, donor: DonorId, now: Instant) {
        let Some(member) = self.member(extent, place) else { return };
        if member.placed.donor == donor && member.placed.state.is_there() {
            member.strikes = member.strikes.saturating_add(1);
            member.turn(ReplicaState::Away, now);
            self.actions.push(Action::Ask(donor));
            self.weigh(extent);
        }
    }

    /// A lane found the replica live without a write, and made it joining.
    pub fn replica_demoted(&mut self, extent: ExtentId, place: u8, now: Instant) -> bool {
        let Some(member) = self.member(extent, place) else { return false };
        let was_live = member.placed.state == ReplicaState::Live;
        if was_live {
            member.turn(ReplicaState::Joining, now);
            self.weigh(extent);
        }
        was_live
    }

    /// A joining replica lacks nothing any more and is live.
    pub fn joined(&mut self, extent: ExtentId, place: u8, now: Instant) {
        let Some(member) = self.member(extent, place) else { return };
        if member.placed.state == ReplicaState::Joining {
            member.turn(ReplicaState::Live, now);
            (member.strikes, member.fresh) = (0, false);
            self.weigh(extent);
        }
    }

    // ---- donors ----

    /// A replica's donor is there again with its lease.
    pub(super) fn back(&mut self, extent: ExtentId, place: u8, now: Instant) {
        self.lift_deadline(extent, place);
        let Some(member) = self.member(extent, place) else { return };
        if member.placed.state == ReplicaState::Away {
            self.rejoin(extent, place, now);
        }
    }

    /// Its bytes came through a restart of its agent.
    pub(super) fn resume(&mut self, extent: ExtentId, place: u8, incarnation: Incarnation, lease: Lease, now: Instant) {
        let Some(member) = self.member(extent, place) else { return };
        (member.placed.incarnation, member.placed.lease) = (incarnation, lease);
        self.lift_deadline(extent, place);
        self.rejoin(extent, place, now);
    }

    /// Its donor does not want the slab back any more.
    fn lift_deadline(&mut self, extent: ExtentId, place: u8) {
        if let Some(member) = self.member(extent, place) {
            member.leaving = member.leaving.filter(|l| l.moves).map(|l| Leaving { deadline: None, ..l });
        }
    }

    /// A replica's donor has its slab still, or not any more; it said so then or later.
    pub(super) fn told(&mut self, extent: ExtentId, place: u8, is_held: bool, said: Instant) {
        let Some(member) = self.member(extent, place) else { return };
        let is_over = member.leaving.and_then(|l| l.deadline).is_some_and(|at| at <= said);
        match (is_held, is_over) {
            (true, false) => {}
            (true, true) => {
                self.lift_deadline(extent, place);
                self.weigh(extent);
            }
            (false, false) => self.lose(extent, place, NOT_KNOWN),
            (false, true) => self.lose(extent, place, "its donor has taken the slab back"),
        }
    }

    fn rejoin(&mut self, extent: ExtentId, place: u8, now: Instant) {
        let state = self.state_to_join_in(extent, place, now);
        let Some(member) = self.member(extent, place) else { return };
        member.turn(state, now);
        let placed = member.placed;
        self.actions.push(Action::Rejoin { extent, place, placed });
        self.weigh(extent);
    }

    /// Marks a donor's replicas as leaving.
    pub(super) fn send_off(&mut self, donor: DonorId, which: impl Fn(&Placed) -> bool, deadline: Option<Instant>) {
        for (extent, place, placed) in self.kept_on(donor) {
            if which(&placed)
                && let Some(member) = self.member(extent, place)
            {
                let before = member.leaving.unwrap_or_default();
                member.leaving =
                    Some(Leaving { deadline: deadline.or(before.deadline), moves: before.moves || deadline.is_none() });
                self.weigh(extent);
            }
        }
    }

    pub(super) fn tick_members(&mut self, now: Instant) {
        let all = self.extents.iter().flat_map(|(e, m)| (0u8..).zip(m).map(move |(n, m)| (*e, n, m)));
        let away = all.filter(|(.., m)| m.placed.state == ReplicaState::Away);
        let away: Vec<(ExtentId, u8)> = away.map(|(e, n, _)| (e, n)).collect();
        for (extent, place) in away {
            let Some(member) = self.member(extent, place) else { continue };
            let donor = member.placed.donor;
            let (since, strikes, rejoin_at) = (member.since, member.strikes, member.rejoin_at());
            // It is not given up as long as it may have what nobody else has, or only after long.
            let is_spare = self.has_live(extent);
            let lost_after = self.rules.lost_after(donor);
            let lost_after = if is_spare { lost_after } else { lost_after.max(self.rules.last_copy_lost_after) };
            let entry = self.donors.get(&donor);
            let heard = entry.and_then(|d| d.heard).unwrap_or(since);
            let there = entry.is_some_and(|d| d.up && !d.silent && d.heard >= Some(since));
            // What waits for its next try is not absent: only since its donor was heard last.
            let absent_since = self.counted_from(since.max(heard));
            if strikes >= MAX_STRIKES && is_spare {
                self.lose(extent, place, "writes to it keep failing");
            } else if there && rejoin_at <= now {
                self.rejoin(extent, place, now);
            } else if !there && now.duration_since(absent_since) >= lost_after {
                self.lose(extent, place, "its donor was out of reach for too long");
            }
        }
        self.turn_backups(now);
        self.promote(now);
        let left = |m: &Member| self.is_to_go(m);
        let leaving: Vec<ExtentId> = self.extents.iter().filter(|(_, m)| m.iter().any(left)).map(|(e, _)| *e).collect();
        leaving.into_iter().for_each(|extent| self.let_go(extent, now));
    }

    pub(super) fn has_live(&self, extent: ExtentId) -> bool {
        self.extents.get(&extent).into_iter().flatten().any(|m| m.placed.state == ReplicaState::Live)
    }

    /// When nobody live is left and nobody away can come back, what a joining replica lacks and no
    /// other one has is gone for good, and the rest is worth having.
    fn promote(&mut self, now: Instant) {
        let stuck = |members: &Vec<Member>| {
            let has = |state| members.iter().any(|m| m.placed.state == state);
            !has(ReplicaState::Live) && !has(ReplicaState::Away) && has(ReplicaState::Joining)
        };
        let stuck: Vec<ExtentId> = self.extents.iter().filter(|(_, m)| stuck(m)).map(|(e, _)| *e).collect();
        for extent in stuck {
            let joining = self.extents[&extent].iter().enumerate();
            let joining = joining.filter(|(_, m)| m.placed.state == ReplicaState::Joining);
            let Some((place, best)) = joining.min_by_key(|(_, m)| (m.fresh, m.since)) else { continue };
            if now.duration_since(best.since) >= PROMOTE_AFTER {
                self.actions.push(Action::Promote { extent, place: place as u8 });
            }
        }
    }

    // ---- endings ----

    pub(super) fn lose(&mut self, extent: ExtentId, place: u8, why: &'static str) {
        self.actions.push(Action::Lose { extent, place, why });
        self.forsake(extent, place);
    }

    /// The replica is lost: its extent is degraded, and its slab goes back if somebody is there to
    /// take it.
    fn forsake(&mut self, extent: ExtentId, place: u8) {
        let Some(member) = self.member(extent, place) else { return };
        member.placed.state = ReplicaState::Lost;
        let placed = member.placed;
        self.give_back(&placed);
        self.weigh(extent);
    }

    /// Replicas that are leaving may go when there are enough without them, and for long enough: a
    /// write that was under way when a new one joined may still turn that one back. The donors of
    /// those must be there, and have said since that they hold the slab: a lease may have run out
    /// and nobody heard.
    fn let_go(&mut self, extent: ExtentId, now: Instant) {
        let Some(members) = self.extents.get(&extent) else { return };
        let donor = |m: &Member| self.donors.get(&m.placed.donor);
        let is_there =
            |m: &Member| donor(m).is_some_and(|d| d.up && !d.silent && d.incarnation == Some(m.placed.incarnation));
        let is_confirmed = |m: &&Member| donor(m).is_some_and(|d| d.confirmed >= Some(m.since));
        let (sure, unsure): (Vec<&Member>, Vec<&Member>) =
            members.iter().filter(|m| m.is_settled(now) && is_there(m)).partition(is_confirmed);
        let on_donors = sure.iter().filter(|m| m.lasts()).count();
        let spilled = sure.iter().filter(|m| m.is_last_tier).count();
        let enough = on_donors >= self.rules.replicas;
        if !enough {
            let stay = unsure.iter().filter(|m| m.leaving.is_none());
            self.actions.extend(stay.map(|m| Action::Ask(m.placed.donor)));
        }
        // Where no donor takes it, the spill file's replica is one of those that there should be.
        if !enough && (on_donors + spilled < self.rules.replicas || self.has_somewhere_to_go(extent, now)) {
            return;
        }
        let goes = |m: &Member| self.is_to_go(m) && (enough || !m.is_last_tier);
        let leaving = members.iter().enumerate().filter(|(_, m)| goes(m));
        let leaving: Vec<u8> = leaving.map(|(n, _)| n as u8).collect();
        for place in leaving {
            self.actions.push(Action::Vacate { extent, place });
        }
    }

    /// What [`Action::Rejoin`] led to: one that was to follow is joining, if there is nobody live
    /// to follow.
    pub fn rejoined(&mut self, extent: ExtentId, place: u8, state: ReplicaState, now: Instant) {
        let Some(member) = self.member(extent, place).filter(|m| m.placed.state.is_filled()) else { return };
        if member.placed.state != state {
            member.turn(state, now);
            self.weigh(extent);
        }
    }

    /// What [`Action::Vacate`] led to: it is gone, or it is away since it turned out that too few
    /// others are live.
    pub fn vacated(&mut self, extent: ExtentId, place: u8, is_gone: bool, now: Instant) {
        let Some(member) = self.member(extent, place).filter(|m| m.placed.state.is_kept()) else { return };
        let placed = member.placed;
        if is_gone {
            member.placed.state = ReplicaState::Vacant;
            member.leaving = None;
            self.give_back(&placed);
        } else {
            member.turn(ReplicaState::Away, now);
            self.actions.push(Action::Ask(placed.donor));
        }
        self.weigh(extent);
    }

    fn give_back(&mut self, placed: &Placed) {
        if self.donors.get(&placed.donor).is_some_and(|d| d.up && d.incarnation == Some(placed.incarnation)) {
            self.actions.push(Action::Return(placed.donor, vec![placed.lease]));
        }
    }

    /// Whether the extent is whole: as many live replicas on donors as configured, none of which
    /// has a deadline. With one in the spill file it is next to that.
    pub(super) fn weigh(&mut self, extent: ExtentId) {
        let Some(members) = self.extents.get(&extent) else { return };
        let counts = |m: &&Member| {
            m.placed.state == ReplicaState::Live && m.leaving.is_none_or(|leaving| leaving.deadline.is_none())
        };
        let (spilled, on_donors): (Vec<&Member>, Vec<&Member>) =
            members.iter().filter(counts).partition(|m| m.is_last_tier);
        let grade = match () {
            () if on_donors.len() >= self.rules.replicas => Grade::Whole,
            () if !spilled.is_empty() => Grade::LastTier,
            () => Grade::Degraded,
        };
        if grade != self.grade(extent) {
            match grade {
                Grade::Whole => self.grades.remove(&extent),
                other => self.grades.insert(extent, other),
            };
            self.actions.push(Action::Grade(extent, grade));
        }
    }

    pub(super) fn grade(&self, extent: ExtentId) -> Grade {
        self.grades.get(&extent).copied().unwrap_or(Grade::Whole)
    }

    pub(super) fn member(&mut self, extent: ExtentId, place: u8) -> Option<&mut Member> {
        self.extents.get_mut(&extent)?.get_mut(usize::from(place))
    }

    /// A donor's replicas that count for something.
    pub(super) fn kept_on(&self, donor: DonorId) -> Vec<(ExtentId, u8, Placed)> {
        let all = self.extents.iter().flat_map(|(e, r)| (0u8..).zip(r).map(move |(n, m)| (*e, n, m.placed)));
        all.filter(|(_, _, p)| p.donor == donor && p.state.is_kept()).collect()
    }
}
