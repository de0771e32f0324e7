//! What each slab is doing, and how many do each. Slabs only change state here; who may have which
//! is the book's to decide.

use super::words::ConnectionId;
use annex_shared::ids::{ClientId, Rkey, SlabId};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// No memory behind it.
    Vacant,
    /// Zeroed memory, lent to nobody.
    Spare,
    /// Memory is being made, for the client's request on this connection.
    Filling {
        client: ClientId,
        connection: ConnectionId,
    },
    Lent {
        client: ClientId,
        rkey: Rkey,
    },
    Cleaning {
        keep: bool,
    },
    /// Over the capacity, which was larger once: it has no memory and is not lent.
    Retired,
}

/// How many slabs are in each state, so that no question needs a walk over all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub vacant: u32,
    pub spare: u32,
    pub filling: u32,
    pub lent: u32,
    pub cleaning_kept: u32,
    pub cleaning_dropped: u32,
    pub retired: u32,
}

impl Tally {
    fn of(&mut self, place: Place) -> &mut u32 {
        match place {
            Place::Vacant => &mut self.vacant,
            Place::Spare => &mut self.spare,
            Place::Filling { .. } => &mut self.filling,
            Place::Lent { .. } => &mut self.lent,
            Place::Cleaning { keep: true } => &mut self.cleaning_kept,
            Place::Cleaning { keep: false } => &mut self.cleaning_dropped,
            Place::Retired => &mut self.retired,
        }
    }
}

/// All slabs. Those from `capacity` on were there when it was larger.
#[derive(Clone)]
pub(super) struct Slabs {
    capacity: u32,
    pub places: Vec<Place>,
    pub tally: Tally,
}

impl Slabs {
    /// So many without memory.
    pub fn vacant(capacity: u32) -> Slabs {
        Slabs {
            capacity,
            places: vec![Place::Vacant; capacity as usize],
            tally: Tally { vacant: capacity, ..Tally::default() },
        }
    }

    /// So many are to be lent from now on.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        if let Some(last) = capacity.checked_sub(1) {
            self.reach(SlabId(last));
        }
        for index in 0..self.places.len() {
            if matches!(self.places[index], Place::Vacant | Place::Retired) {
                self.set(SlabId(index as u32), Place::Vacant);
            }
        }
    }

    /// Makes sure that there is a slab of this number.
    pub fn reach(&mut self, slab: SlabId) {
        let places = self.places.len().max(slab.0 as usize + 1);
        self.tally.retired += (places - self.places.len()) as u32;
        self.places.resize(places, Place::Retired);
    }

    pub fn place(&self, slab: SlabId) -> Option<Place> {
        self.places.get(slab.0 as usize).copied()
    }

    pub fn set(&mut self, slab: SlabId, place: Place) {
        let place = match place {
            Place::Vacant if slab.0 >= self.capacity => Place::Retired,
            place => place,
        };
        if let Some(p) = self.places.get_mut(slab.0 as usize) {
            *self.tally.of(*p) -= 1;
            *self.tally.of(place) += 1;
            *p = place;
        }
    }

    /// Slabs that are being filled for this client.
    pub fn filling_for(&self, client: ClientId) -> u32 {
        if self.tally.filling == 0 {
            return 0;
        }
        let theirs = self.places.iter().filter(|p| matches!(p, Place::Filling { client: c, .. } if *c == client));
        theirs.count() as u32
    }

    /// The first `most` slabs in this state, but for these.
    pub fn find(&self, place: Place, most: usize, but: &BTreeSet<SlabId>) -> Vec<SlabId> {
        let found = self.places.iter().enumerate().filter(|(_, p)| **p == place);
        found.map(|(index, _)| SlabId(index as u32)).filter(|slab| !but.contains(slab)).take(most).collect()
    }
}
