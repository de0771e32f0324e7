//! What lanes and the filler do, in small steps.

use super::*;

impl World<'_> {
    pub(super) fn begin_write(&mut self) {
        let is_live =
            |e: ExtentId| (0..REPLICA_ENTRIES as u8).any(|n| self.table.replica(e, n).state == ReplicaState::Live);
        let all = (0..EXTENTS).map(ExtentId);
        let is_open = |e: &ExtentId| self.table.is_live(*e) && is_live(*e) && !self.is_doomed(*e);
        let extents: Vec<ExtentId> = all.filter(is_open).collect();
        if extents.is_empty() {
            return;
        }
        let extent = extents[self.draw(extents.len())];
        let slot = extent.0 * SLOTS + self.draw(SLOTS as usize) as u32;
        if self.references[slot as usize] > 0 {
            return;
        }
        // Once for its owner, once for the operation.
        self.references[slot as usize] = 2;
        let content = self.fresh() as u32;
        self.sums[slot as usize] = content;
        let mut write = Write { slot, content, open: Vec::new(), done: [None; REPLICA_ENTRIES], is_unknown: false };
        for (n, r) in self.table.replicas(extent).unwrap().iter().filter(|(_, r)| r.state.is_written()) {
            let (donor, key, since) = (usize::from(r.donor.0), r.rkey.0, self.now);
            write.open.push(Posted { index: n, generation: r.generation, donor, key, since });
        }
        self.writes.push(write);
    }

    /// One operation of a write ends somehow, or the write is settled.
    pub(super) fn go_on_writing(&mut self) {
        if self.writes.is_empty() {
            return;
        }
        let at = self.draw(self.writes.len());
        if self.writes[at].open.is_empty() {
            return self.settle(at);
        }
        let i = self.draw(self.writes[at].open.len());
        let Posted { index: n, generation, donor, key, .. } = self.writes[at].open[i];
        let (slot, content) = (self.writes[at].slot, self.writes[at].content);
        let extent = ExtentId(slot / SLOTS);
        let replica = self.table.replica(extent, n);
        if self.donors[donor].absence.hang.is_some() {
            return;
        }
        let fault = self.draw(40);
        let fails = fault <= 1 && self.table.replicas(extent).is_some_and(|r| r.live() > 1) && self.can_spare(donor);
        if !self.donors[donor].reachable {
            // It waits until the replica is given up.
            if !replica.state.is_there() || replica.generation != generation {
                self.writes[at].open.swap_remove(i);
            }
            return;
        }
        let stored = match self.slab(donor, key) {
            Some(bytes) => {
                // Also when its end is not seen.
                if fault != 1 || !fails {
                    bytes[(slot % SLOTS) as usize] = content;
                }
                true
            }
            None => false,
        };
        self.writes[at].open.swap_remove(i);
        if !stored || fails {
            if self.table.mark_stale(extent, n, generation) {
                self.send(News::Away(extent, n, generation));
            }
        } else {
            self.writes[at].done[usize::from(n)] = Some(generation);
        }
    }

    /// All there is of it is one slab that its donor wants back. Nothing is promised for what is
    /// put there if it turns out that there is nowhere to go.
    fn is_doomed(&self, extent: ExtentId) -> bool {
        let Some(replicas) = self.table.replicas(extent) else { return false };
        let mut kept = replicas.iter().filter(|(_, r)| r.state.is_kept());
        kept.next().is_some_and(|(_, r)| self.is_recalled(r)) && kept.next().is_none()
    }

    /// Settles a write whose operations are completed, if there is one.
    pub(super) fn settle_one(&mut self) -> bool {
        let completed = self.writes.iter().position(|w| w.open.is_empty());
        completed.into_iter().for_each(|at| self.settle(at));
        completed.is_some()
    }

    fn settle(&mut self, at: usize) {
        let write = self.writes.swap_remove(at);
        let extent = ExtentId(write.slot / SLOTS);
        let settled = self.table.settle(extent, write.slot % SLOTS, 1, &write.done);
        self.tell(|w| format!("{:?} slot {} {settled:?}, done {:?}", w.now, write.slot, write.done));
        if settled.fell_behind != 0 {
            self.send(News::FellBehind(extent, settled.fell_behind));
        }
        match write.is_unknown {
            // What was given up may still come.
            true => self.quarantine.push_back((self.now + QUARANTINE.max(self.ttl * 3 / 2), write.slot)),
            false => self.references[write.slot as usize] -= 1,
        }
        if settled.held {
            self.tally.saw(Seen::Written);
            self.acknowledged[write.slot as usize] = write.content;
        } else {
            self.references[write.slot as usize] -= 1;
        }
    }

    pub(super) fn release(&mut self) {
        let first = self.draw(self.acknowledged.len());
        let all = (first..self.acknowledged.len()).chain(0..first);
        if let Some(slot) = all.into_iter().find(|slot| self.acknowledged[*slot] != 0) {
            self.acknowledged[slot] = 0;
            self.references[slot] -= 1;
        }
    }

    // ---- the filler ----

    /// False if there is nothing to do before time passes or the coordinator acts.
    pub(super) fn go_on_filling(&mut self) -> bool {
        let Some(mut copying) = self.copying.take() else { return self.begin_fill() };
        let (extent, index, generation) = (copying.fill.extent, copying.fill.index, copying.fill.generation);
        if let Some((slot, content)) = copying.read.take() {
            let replica = self.table.replica(extent, index);
            let fits = replica.state.is_there() && replica.generation == generation;
            let target = self.slab(usize::from(replica.donor.0), replica.rkey.0).filter(|_| fits);
            let written = target.map(|bytes| bytes[slot as usize] = content).is_some();
            if !written || self.sums[(extent.0 * SLOTS + slot) as usize] != content {
                copying.failed.push(slot);
            }
        } else if let Some(slot) = copying.left.pop() {
            let at = extent.0 * SLOTS + slot;
            if self.references[at as usize] > 0 {
                self.references[at as usize] += 1;
                copying.held.push(at);
                let sources: Vec<Replica> = self.table.replicas(extent).map_or(Vec::new(), |r| {
                    let from = |s: ReplicaState| r.iter().filter(move |(n, r)| r.state == s && *n != index);
                    let has = |n: u8| self.table.next_missed(extent, n, slot) != Some(slot);
                    match r.live() {
                        0 => from(ReplicaState::Syncing).filter(|(n, _)| has(*n)).map(|(_, r)| *r).collect(),
                        _ => from(ReplicaState::Live).map(|(_, r)| *r).collect(),
                    }
                });
                let sum = self.sums[at as usize];
                let give =
                    |w: &mut World<'_>, r: &Replica| Some(w.slab(usize::from(r.donor.0), r.rkey.0)?[slot as usize]);
                let found = sources.iter().any(|r| give(self, r) == Some(sum));
                match found {
                    true => copying.read = Some((slot, sum)),
                    false => copying.nobodys.push(slot),
                }
            }
        } else {
            for at in copying.held.drain(..) {
                self.references[at as usize] -= 1;
            }
            if self.table.end_copy(extent, index, generation, &copying.failed, &copying.nobodys) {
                self.send(News::FellBehind(extent, 1 << index));
            }
            if copying.failed.is_empty() && copying.nobodys.is_empty() {
                copying.fill.progressed();
            } else {
                copying.fill.hindered(self.now);
            }
            copying.fill.cursor += SLOTS / 2;
            self.fills.put_back(copying.fill);
            return true;
        }
        self.copying = Some(copying);
        true
    }

    fn begin_fill(&mut self) -> bool {
        let Some(mut fill) = self.fills.next(self.now) else { return false };
        let (extent, index, generation) = (fill.extent, fill.index, fill.generation);
        let replica = self.table.replica(extent, index);
        if replica.generation != generation || !replica.state.is_filled() || !self.table.is_live(extent) {
            return true;
        }
        let Some(first) = self.table.next_missed(extent, index, fill.cursor) else {
            if replica.state == ReplicaState::Backup {
                fill.rests(self.now);
                self.fills.put_back(fill);
                return true;
            }
            if fill.cursor == 0 || self.table.lacks_nothing(extent, index) {
                self.send(News::Filled(extent, index, generation));
                return true;
            }
            fill.round_completed(self.now);
            fill.forgives = false;
            self.fills.put_back(fill);
            return true;
        };
        let has_peers = |r: &Replicas| r.iter().any(|(n, r)| n != index && r.state == ReplicaState::Syncing);
        if self.table.replicas(extent).is_some_and(|r| r.live() == 0 && !has_peers(&r)) {
            fill.stuck(self.now);
            self.fills.put_back(fill);
            return true;
        }
        let mut left = Vec::new();
        self.table.begin_copy(extent, index, first, SLOTS / 2, &mut left);
        fill.cursor = first;
        self.copying =
            Some(Copying { fill, left, read: None, failed: Vec::new(), nobodys: Vec::new(), held: Vec::new() });
        true
    }
}
