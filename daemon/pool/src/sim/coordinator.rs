//! The coordinator's thread: what it hears goes to the real book, and what that wants is carried
//! out on the real table.

use super::*;

impl World<'_> {
    pub(super) fn hear(&mut self) {
        let Some((_, news)) = self.news.pop_front() else { return };
        let id = |d: usize| DonorId(d as u16);
        self.tell(|w| format!("{:?} hears {news:?}", w.now));
        match news {
            News::Up(d, said) => {
                self.donors[d].known = self.donors[d].connected;
                self.book.up(id(d), said, self.now);
            }
            News::Down(d) => self.book.down(id(d), self.now),
            News::Leased(d, lease) => self.book.leased(id(d), vec![lease], self.now),
            News::Refused(d) => self.book.refused(id(d), self.now),
            News::Renewed(d, held, free, asked) => self.book.renewed(id(d), &held, free, asked, self.now),
            News::Recalled(d, slabs, within) => {
                self.tally.saw(Seen::Recalled);
                self.book.recalled(id(d), &slabs, self.now + within);
            }
            News::Away(e, n, g) => {
                if let Some(donor) = self.still(e, n, g, ReplicaState::Stale) {
                    self.book.replica_stale(e, n, donor, self.now);
                }
            }
            News::FellBehind(e, indexes) => {
                for n in (0..REPLICA_ENTRIES as u8).filter(|n| indexes & 1 << n != 0) {
                    let replica = self.table.replica(e, n);
                    if replica.state == ReplicaState::Syncing {
                        self.book.replica_fell_behind(e, n, self.now);
                        self.fills.add(Fill::new(e, n, replica.generation, 1));
                    }
                }
            }
            News::Late(d) => self.book.late(id(d), self.now),
            News::Hung(d) => self.book.hung(id(d), self.now),
            News::Closing(d, grace) => self.book.closing(id(d), grace, self.now),
            News::Dropped(d) => self.book.remove(id(d)),
            News::Added(d) => self.book.welcome_back(id(d)),
            News::Filled(e, n, g) => {
                if self.table.go_live(e, n, g) {
                    self.tally.saw(Seen::Filled);
                    self.book.synced(e, n, self.now);
                } else if self.still(e, n, g, ReplicaState::Syncing).is_some() {
                    self.fills.add(Fill::new(e, n, g, 1));
                }
            }
        }
        self.act();
    }

    /// To the coordinator.
    pub(super) fn send(&mut self, news: News) {
        self.news.push_back((self.now, news));
    }

    pub(super) fn still(&self, extent: ExtentId, index: u8, generation: u16, state: ReplicaState) -> Option<DonorId> {
        let now = self.table.replica(extent, index);
        (now.generation == generation && now.state == state).then_some(now.donor)
    }

    /// Of what was told before this moment it has heard all, like the real one; what is told just
    /// now it may hear after it has looked.
    pub(super) fn look(&mut self) {
        if self.now - self.looked >= STOOD_STILL {
            self.book.stood_still(self.now);
        }
        self.looked = self.now;
        while self.news.front().is_some_and(|(told, _)| *told < self.now) {
            self.hear();
        }
        while let Some((_, slot)) = self.quarantine.pop_front_if(|(until, _)| *until <= self.now) {
            self.references[slot as usize] -= 1;
        }
        self.book.tick(self.now);
        self.act();
        let used = |e: u32| (0..SLOTS).any(|s| self.references[(e * SLOTS + s) as usize] > 0);
        let empty = (0..EXTENTS).map(ExtentId).filter(|e| self.table.is_live(*e) && !used(e.0)).collect();
        self.book.balance(&Headroom { empty, ..Headroom::default() }, self.now);
        self.act();
    }

    pub(super) fn act(&mut self) {
        loop {
            let actions = self.book.actions();
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.carry_out(action));
        }
    }

    fn carry_out(&mut self, action: Action) {
        self.tell(|w| format!("{:?} {action:?}", w.now));
        Seen::of(&action).into_iter().for_each(|what| self.tally.saw(what));
        let replica = |p: &LeasedReplica| Replica::live(p.donor, p.lease.slab, p.incarnation, p.lease.rkey);
        match action {
            Action::Lease(donor) => self.donors[usize::from(donor.0)].asked += 1,
            Action::Ask(donor) => self.hurry(usize::from(donor.0)),
            Action::Silent(donor, is_silent) => self.donors[usize::from(donor.0)].absence.is_silent = is_silent,
            Action::Return(donor, leases) => {
                for lease in leases {
                    let used = |(_, r): (u8, &Replica)| {
                        r.state.is_kept() && r.donor == donor && r.slab == lease.slab && r.rkey == lease.rkey
                    };
                    assert!(!self.table.live().any(|(_, r)| r.iter().any(used)), "a slab in use was given back");
                    self.give_back(usize::from(donor.0), &[lease]);
                }
            }
            Action::Publish(extent, leased) => {
                self.table.publish(extent, &leased.iter().map(replica).collect::<Vec<_>>());
            }
            Action::MarkLost { extent, index, .. } => {
                let generation = self.table.replica(extent, index).generation;
                self.table.mark_lost(extent, index, generation);
            }
            Action::MarkStale { extent, index, .. } => {
                let generation = self.table.replica(extent, index).generation;
                self.table.mark_stale(extent, index, generation);
            }
            Action::Add { extent, index, leased } => {
                if let Some(generation) = self.table.add_replica(extent, index, &replica(&leased), leased.state) {
                    self.fills.add(Fill::new(extent, index, generation, Self::urgency(leased.state)));
                }
            }
            Action::Resync { extent, index, leased } => {
                let before = self.table.replica(extent, index);
                let same = before.incarnation == leased.incarnation && before.rkey == leased.lease.rkey;
                let joined = match same {
                    true => self.table.resync(extent, index, leased.state),
                    false => self.table.resume(extent, index, leased.incarnation, leased.lease.rkey),
                };
                if let Some(joined) = joined {
                    self.book.resync_began(extent, index, joined.state, self.now);
                    self.fills.add(Fill::new(extent, index, joined.generation, Self::urgency(joined.state)));
                }
            }
            // Only where nothing was reported written yet, or `check` finds out.
            Action::Promote { extent, index } => {
                if self.table.promote(extent, index, |_, bits| bits).is_some() {
                    self.book.synced(extent, index, self.now);
                }
            }
            Action::Remove { extent, index } => {
                let generation = self.table.replica(extent, index).generation;
                let is_removed = self.table.remove_replica(extent, index, generation, self.replicas);
                self.book.replica_removed(extent, index, is_removed, self.now);
            }
            Action::Retire(extent) => {
                let busy = (0..SLOTS).any(|s| self.references[(extent.0 * SLOTS + s) as usize] > 0);
                if !busy {
                    self.table.begin_return(extent);
                    self.table.free(extent);
                    self.book.retired(extent);
                }
            }
            Action::DonorRemoved(donor) => self.removed(donor),
            Action::Grade(..) | Action::Abandon(_) => {}
        }
    }

    fn urgency(state: ReplicaState) -> usize {
        if state == ReplicaState::Backup { usize::MAX } else { 1 }
    }
}
