//! Recalls and draining.

use super::{Action, Book, Moment, Place};
use crate::recall::Coming;
use annex_shared::ids::{ClientId, SlabId};
use std::collections::BTreeMap;
use std::time::Duration;

impl Book {
    /// Wants these back within `span`; with no time to return them they are revoked at once. What
    /// is not lent is skipped; a later recall of a slab replaces the deadline.
    pub fn recall(&mut self, slabs: &[SlabId], span: Duration, now: Moment) {
        self.tick(now);
        let until = now.after(span);
        let mut wanted: BTreeMap<ClientId, Vec<SlabId>> = BTreeMap::new();
        for slab in slabs {
            if let Some(Place::Lent { client, .. }) = self.slabs.place(*slab) {
                self.recalls.insert(*slab, until);
                wanted.entry(client).or_default().push(*slab);
            }
        }
        for (client, slabs) in wanted {
            if let Some(connection) = self.claims.get(&client).and_then(|c| c.connection) {
                self.actions.push(Action::Recall { connection, slabs, until });
            }
        }
        // No time at all: nobody else's clock would say so.
        self.revoke_overdue(now);
    }

    /// What is wanted back from a client, for one that has just connected.
    pub fn recalled_from(&self, client: ClientId) -> Vec<(SlabId, Moment)> {
        let Some(claim) = self.claims.get(&client) else { return Vec::new() };
        claim.held.iter().filter_map(|slab| Some((*slab, *self.recalls.get(slab)?))).collect()
    }

    /// Revokes what was not returned in time.
    pub(super) fn revoke_overdue(&mut self, now: Moment) {
        let is_overdue = |(slab, until): (&SlabId, &Moment)| (*until <= now).then_some(*slab);
        let late: Vec<SlabId> = self.recalls.iter().filter_map(is_overdue).collect();
        let mut losers: BTreeMap<ClientId, u32> = BTreeMap::new();
        for slab in late {
            if let Some(Place::Lent { client, .. }) = self.slabs.place(slab) {
                *losers.entry(client).or_default() += 1;
            }
            self.take_away(slab);
        }
        self.actions.extend(losers.into_iter().map(|(client, slabs)| Action::Revoke { client, slabs }));
    }

    /// Lends nothing from now on and wants everything back within `span`; called again, it gives
    /// more time.
    pub fn drain(&mut self, span: Duration, now: Moment) {
        self.draining = true;
        self.trim(0);
        let lent: Vec<SlabId> = self.lent_slabs().into_iter().map(|(slab, _)| slab).collect();
        self.recall(&lent, span, now);
    }

    /// Lends again, and wants nothing back. Clients are not told: what they return meanwhile is
    /// theirs to lease anew.
    pub fn stop_draining(&mut self) {
        self.draining = false;
        self.recalls.clear();
    }

    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Every lent slab and who has it.
    pub fn lent_slabs(&self) -> Vec<(SlabId, ClientId)> {
        let lent = self.slabs.places.iter().enumerate().filter_map(|(index, place)| match place {
            Place::Lent { client, .. } => Some((SlabId(index as u32), *client)),
            _ => None,
        });
        lent.collect()
    }

    /// When this slab is revoked, if it is wanted back.
    pub fn recalled(&self, slab: SlabId) -> Option<Moment> {
        self.recalls.get(&slab).copied()
    }

    /// What will be free without a further recall.
    pub fn coming(&self) -> Coming {
        let recalled = self.recalls.len() as u32;
        Coming { spare: self.slabs.tally.spare, cleaning: self.slabs.tally.cleaning_dropped, recalled }
    }
}
