//! Where further replicas go: for extents that have too few, for those that must leave their donor,
//! and to even out donors.
//!
//! Extents with the fewest live replicas come first. Few joins are under way at once, since each
//! takes part in every write while one thread fills them in turn. Empty extents are not repaired
//! but given back.

use super::members::Leaving;
use super::*;
use crate::coordinator::placement::apart;

/// New replicas that may be on their way or being filled at once.
const MAX_JOINS: usize = 4;
/// A donor is relieved when it is fuller than the emptiest by this part of their size (1/N), and by
/// two slabs at least.
const UNEVEN_PART: u32 = 4;

/// A replica on its way: it begins when its donor's slab is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub extent: ExtentId,
    pub donor: DonorId,
}

/// What an extent has too few of, the more urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Replica,
    /// It has as many replicas as it should, which is one, and no copy in the spill file.
    Backup,
}

impl Book {
    /// Replicas being filled for the first time, or on their way to that.
    fn joins_under_way(&self) -> usize {
        let filling = |m: &&Member| m.fresh && m.placed.state == ReplicaState::Joining;
        self.joins.len() + self.extents.values().flatten().filter(filling).count()
    }

    pub(super) fn plan_joins(&mut self, empty: &[ExtentId], now: Instant) {
        let mut needy: Vec<(Need, usize, ExtentId)> = Vec::new();
        for (extent, members) in &self.extents {
            let live = members.iter().filter(|m| m.placed.state == ReplicaState::Live).count();
            let kept = members.iter().filter(|m| m.placed.state.is_kept()).count();
            let lasting = members.iter().filter(|m| m.lasts()).count();
            let coming = self.joins.iter().filter(|j| j.extent == *extent && !self.is_spill(j.donor)).count();
            let lacks = lasting + coming < self.rules.replicas;
            let need = if lacks { Need::Replica } else { Need::Backup };
            // One that is empty and degraded goes back as a whole.
            let retires = empty.contains(extent) && self.grade(*extent) != Grade::Whole;
            let wanted = lacks || self.lacks_backup(*extent, empty, now);
            if wanted && kept + coming < PLACES && live > 0 && !retires {
                needy.push((need, live, *extent));
            }
        }
        needy.sort_unstable();
        let mut under_way = self.joins_under_way();
        for (need, _, extent) in needy {
            if under_way >= MAX_JOINS {
                return;
            }
            let donor = if need == Need::Replica { self.choose_for(extent, now) } else { None };
            let stays = donor.is_none() && need == Need::Replica && self.stay(extent);
            if let Some(donor) = donor.or_else(|| self.last_tier_for(extent, now).filter(|_| !stays)) {
                self.joins.push(Join { extent, donor });
                self.ask(donor);
                under_way += 1;
            }
        }
        if under_way == 0 && self.rules.rebalance {
            self.even_out(empty, now);
        }
    }

    /// Replicas that were to move only to even out donors stay: there is nowhere to go, since where
    /// they were to go is lost or removed. True if there were any.
    fn stay(&mut self, extent: ExtentId) -> bool {
        let is_removed = |donor: &DonorId| self.donors.get(donor).is_some_and(|d| d.removing);
        let mut stays = false;
        for member in self.extents.get_mut(&extent).into_iter().flatten() {
            let moves = member.leaving.is_some_and(|leaving| leaving.deadline.is_none());
            if moves && member.placed.state.is_kept() && !is_removed(&member.placed.donor) {
                (member.leaving, stays) = (None, true);
            }
        }
        stays
    }

    /// A donor for one more replica of an extent.
    fn choose_for(&mut self, extent: ExtentId, now: Instant) -> Option<DonorId> {
        let allowed = self.allowed_for(extent, now);
        // Those that are leaving have no say in what is far apart, but a donor never gets two.
        let lasting = self.neighbours(extent, Member::lasts);
        let lasting: Vec<&Candidate> = lasting.iter().collect();
        self.drawing(|draw| placement::choose_beside(&allowed, &lasting, draw).map(|c| c.donor))
    }

    /// Donors without a replica of the extent.
    pub(super) fn allowed_for(&self, extent: ExtentId, now: Instant) -> Vec<Candidate> {
        let beside = self.neighbours(extent, |_| true);
        self.candidates(now).into_iter().filter(|c| beside.iter().all(|b| b.donor != c.donor)).collect()
    }

    /// The donors of an extent's replicas, those on their way included.
    fn neighbours(&self, extent: ExtentId, which: impl Fn(&Member) -> bool) -> Vec<Candidate> {
        let members = self.extents.get(&extent).into_iter().flatten();
        let kept = members.filter(|m| m.placed.state.is_kept() && which(m)).map(|m| m.placed.donor);
        let coming = self.joins.iter().filter(|j| j.extent == extent).map(|j| j.donor);
        kept.chain(coming).filter_map(|d| Some(self.label(d, self.donors.get(&d)?))).collect()
    }

    pub(super) fn build_joins(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.joins.len() {
            let Join { extent, donor } = self.joins[at];
            let taken = self.neighbours_taken(extent, donor);
            let Some(members) = self.extents.get(&extent).filter(|_| !taken) else {
                self.joins.remove(at);
                continue;
            };
            let place = members.iter().position(|m| !m.placed.state.is_kept()).unwrap_or(members.len());
            let is_spill = self.is_spill(donor);
            let state = self.state_for(extent, is_spill, now);
            let entry = self.donors.entry(donor).or_default();
            let (Some(incarnation), true) = (entry.incarnation, place < PLACES) else {
                self.joins.remove(at);
                continue;
            };
            let Some(lease) = entry.stock.pop() else {
                at += 1;
                continue;
            };
            self.joins.remove(at);
            let placed = Placed { donor, incarnation, lease, state };
            let member = Member { fresh: true, ..self.rules.member(placed, now) };
            let members = self.extents.entry(extent).or_default();
            match members.get_mut(place) {
                Some(old) => *old = member,
                None => members.push(member),
            }
            self.actions.push(Action::Join { extent, place: place as u8, placed });
        }
    }

    fn neighbours_taken(&self, extent: ExtentId, donor: DonorId) -> bool {
        let members = self.extents.get(&extent).into_iter().flatten();
        members.filter(|m| m.placed.state.is_kept()).any(|m| m.placed.donor == donor)
    }

    /// Moves one replica from the fullest donor to the emptiest, if that is worth it.
    fn even_out(&mut self, empty: &[ExtentId], now: Instant) {
        if !self.grades.is_empty() || self.extents.values().flatten().any(|m| m.leaving.is_some()) {
            return;
        }
        // In thousandths of what each could hold for us.
        let load = |id: &DonorId, d: &DonorEntry| {
            let held = self.held(*id);
            (held * 1000 / (held + d.free).max(1), held)
        };
        let taking = self.donors.iter().filter(|(id, d)| d.is_taking() && !self.is_spill(**id));
        let mut loads: Vec<((u32, u32), DonorId)> = taking.map(|(id, d)| (load(id, d), *id)).collect();
        loads.sort_unstable();
        let (Some(low), Some(high)) = (loads.first(), loads.last()) else { return };
        let uneven = high.0.0 >= low.0.0 + 1000 / UNEVEN_PART && high.0.1 >= low.0.1 + 2;
        let (from, to) = (high.1, low.1);
        let room = self.candidates(now).iter().any(|c| c.donor == to && c.free > 0);
        if !uneven || !room {
            return;
        }
        let movable = |(extent, members): (&ExtentId, &Vec<Member>)| {
            let kept = || members.iter().filter(|m| m.placed.state.is_kept());
            let place = members.iter().position(|m| m.placed.donor == from && m.placed.state == ReplicaState::Live)?;
            let fits = kept().count() < PLACES && kept().all(|m| m.placed.donor != to) && !empty.contains(extent);
            let others: Vec<Candidate> = self.neighbours(*extent, |m| m.placed.donor != from);
            let others: Vec<&Candidate> = others.iter().collect();
            let label = |id: DonorId| Some(self.label(id, self.donors.get(&id)?));
            let apart_enough = apart(&label(to)?, &others) >= apart(&label(from)?, &others);
            (fits && apart_enough).then_some((*extent, place as u8))
        };
        if let Some((extent, place)) = self.extents.iter().find_map(movable)
            && let Some(member) = self.member(extent, place)
        {
            member.leaving = Some(Leaving { deadline: None, moves: true });
            self.joins.push(Join { extent, donor: to });
            self.ask(to);
        }
    }

    /// Extents with two replicas in one host or rack, as far as donors say where they are.
    pub fn crowded(&self) -> u32 {
        let crowded = |extent: &&ExtentId| {
            let all = self.neighbours(**extent, Member::lasts);
            let others = |n: usize| all.iter().enumerate().filter(move |(i, _)| *i != n).map(|(_, c)| c);
            (0..all.len()).any(|n| apart(&all[n], &others(n).collect::<Vec<_>>()) < 2)
        };
        self.extents.keys().filter(crowded).count() as u32
    }

    /// Replicas that are to leave their donor and have not yet.
    pub fn moving(&self) -> u32 {
        let moving = |m: &&Member| m.leaving.is_some() && m.placed.state.is_kept();
        self.extents.values().flatten().filter(moving).count() as u32
    }

    /// Of those, the ones that can't: nobody has room for what is to take their place, and
    /// nothing is on its way.
    pub fn stuck(&self, now: Instant) -> u32 {
        let mut stuck = 0;
        for (extent, members) in &self.extents {
            let kept = || members.iter().filter(|m| m.placed.state.is_kept());
            let leaving = kept().filter(|m| m.leaving.is_some()).count();
            if leaving == 0 {
                continue;
            }
            let coming = self.joins.iter().filter(|j| j.extent == *extent).count();
            let has_successors = kept().count() - leaving + coming >= self.rules.replicas;
            let has_room = || self.allowed_for(*extent, now).iter().any(|c| c.free > 0);
            if !has_successors && !has_room() && self.last_tier_for(*extent, now).is_none() {
                stuck += leaving;
            }
        }
        stuck as u32
    }
}
