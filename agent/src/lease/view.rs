//! The book as a listing shows it.

use super::{Book, Machine, Moment};
use annex_shared::ids::{ClientId, SlabId};
use std::collections::HashSet;

/// The whole book at one moment.
#[derive(Clone, Debug)]
pub struct View {
    pub clients: Vec<ClientView>,
    pub lent: u32,
    pub spare: u32,
    pub cleaning: u32,
    pub vacant: u32,
    pub recalled: u32,
    pub is_draining: bool,
}

/// One client's claim.
#[derive(Clone, Debug)]
pub struct ClientView {
    pub client: ClientId,
    pub machine: Machine,
    pub is_connected: bool,
    pub held: Vec<SlabId>,
    /// When all of them end unless renewed.
    pub until: Moment,
    /// Those that are wanted back, and by when.
    pub recalled: Vec<(SlabId, Moment)>,
}

impl Book {
    /// The clients that hold leases.
    pub fn holders(&self) -> HashSet<ClientId> {
        self.claims.iter().filter(|(_, claim)| !claim.held.is_empty()).map(|(client, _)| *client).collect()
    }

    pub fn view(&self) -> View {
        let mut clients: Vec<ClientView> = self
            .claims
            .iter()
            .map(|(client, claim)| ClientView {
                client: *client,
                machine: claim.machine.clone(),
                is_connected: claim.connection.is_some(),
                held: claim.held.iter().copied().collect(),
                until: claim.deadline,
                recalled: self.recalled_from(*client),
            })
            .collect();
        clients.sort_by_key(|c| c.client);
        View {
            clients,
            lent: self.slabs.tally.lent,
            spare: self.slabs.tally.spare,
            cleaning: self.slabs.tally.cleaning_kept + self.slabs.tally.cleaning_dropped,
            vacant: self.slabs.tally.vacant + self.slabs.tally.filling,
            recalled: self.recalls.len() as u32,
            is_draining: self.draining,
        }
    }
}
