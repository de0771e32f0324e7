//! The coordinator's book: which donors are there, which slabs are leased, which extents they make
//! up, and what to do about it. Pure: what happened and the time go in, [`Action`]s come out. The
//! coordinator carries them out and tells the outcome.
//!
//! # The life of an extent
//! A *plan* names R donors. Each is asked for one slab; slabs that come in lie on the donor's
//! *stock* until every donor of some plan has one, then the extent is published. A donor that
//! refuses ends the plans it is in; stock that no plan wants goes back after a while. An empty
//! extent beyond the spare one goes back after it was idle for a while; a degraded one as soon as
//! it is empty.
//!
//! While fewer than R donors are there and lend, though as many are known, a plan names those that
//! do. Such an extent is degraded from the first. It is planned only for pages that somebody asks
//! for now, and is repaired like any other when donors are back.
//!
//! # The life of a replica
//! `life` tells it: live, stale, syncing, lost; `absence` what makes a donor away. `repair` decides
//! where to put another one when there are too few, when a donor wants its slabs back, or when
//! donors are filled unevenly: an *addition* names one donor for one extent, and is carried out
//! when its slab is there.
//!
//! # The last tier
//! The spill file is a donor that no rule above ever chooses. A plan or an addition takes it only
//! when too few donors have room, and only for pages that somebody asks for now, not ahead of
//! demand. A replica there counts as one, and never as one that lasts: a donor is looked for all
//! the time, and once enough donors have the extent it goes. With a single replica, though, every
//! extent keeps one there as a *backup* (`last_tier`).

mod absence;
mod inventory;
mod last_tier;
mod life;
mod member;
mod removal;
mod repair;
mod reports;
mod supply;
mod words;

pub(crate) use words::{Action, DonorUp, Grade, Headroom, LeasedReplica, Rules};

use crate::metadata::replica::ReplicaState;
use annex_shared::ids::{DonorId, ExtentId, SlabId};
use annex_shared::wire::Lease;
use inventory::{DonorEntry, Inventory};
use member::Member;
use std::time::{Duration, Instant};
use supply::Supply;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Book {
    inventory: Inventory,
    supply: Supply,
}

impl Book {
    pub fn new(rules: Rules, seed: u64) -> Self {
        Book { inventory: Inventory::new(rules, seed), supply: Supply::default() }
    }

    /// An extent that was there before this book. Its donors have until `lost_after` to show up.
    pub fn adopt(&mut self, extent: ExtentId, replicas: Vec<LeasedReplica>, now: Instant) {
        for leased in replicas.iter().filter(|p| p.state.is_kept()) {
            let donor = self.inventory.donors.entry(leased.donor).or_default();
            donor.incarnation = Some(leased.incarnation);
            donor.away_at.get_or_insert(now + self.inventory.rules.away_after.max(self.inventory.rules.lost_after / 2));
            donor.lost_at.get_or_insert(now + self.inventory.rules.lost_after(leased.donor));
        }
        self.inventory.extents.insert(extent, replicas.into_iter().map(|p| self.inventory.begin(p, now)).collect());
        self.inventory.weigh(extent);
    }

    /// Fixes what is known only when the first donor has answered.
    pub fn set_geometry(&mut self, slots_per_extent: u32, max_extents: u32) {
        self.inventory.rules.slots_per_extent = slots_per_extent;
        self.inventory.rules.max_extents = max_extents;
    }

    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.inventory.actions)
    }

    /// True if more room is wanted and none is on its way.
    pub fn is_dry(&self) -> bool {
        self.supply.is_dry(&self.inventory)
    }

    /// No extent lacks a replica, as far as the book knows.
    pub fn is_whole(&self) -> bool {
        self.inventory.is_whole()
    }

    /// True from the moment the pool was found dry until it has room again. Donors are asked anew
    /// now and then meanwhile.
    pub fn is_full(&self) -> bool {
        self.supply.is_full()
    }

    /// True while too few donors have room for a new extent, so that pages go to the last tier.
    pub fn spills(&self) -> bool {
        self.supply.spills()
    }

    /// True while fewer donors are there than an extent has replicas, though enough are known.
    /// Pages go to degraded extents then.
    pub fn degrades(&self) -> bool {
        self.supply.degrades()
    }

    /// The slabs held on a donor, by the book.
    pub fn held(&self, donor: DonorId) -> u32 {
        self.inventory.held(donor)
    }

    // ---- what donors do ----

    /// A control connection stands.
    pub fn up(&mut self, donor: DonorId, said: DonorUp, now: Instant) {
        reports::up(&mut self.inventory, donor, said, now);
    }

    /// The agent said that its memory is gone after `grace`.
    pub fn closing(&mut self, donor: DonorId, grace: Duration, now: Instant) {
        reports::closing(&mut self.inventory, donor, grace, now);
    }

    /// The agent wants these slabs back until then.
    pub fn recalled(&mut self, donor: DonorId, slabs: &[SlabId], deadline: Instant) {
        reports::recalled(&mut self.inventory, donor, slabs, deadline);
    }

    /// Slabs came in.
    pub fn leased(&mut self, donor: DonorId, leases: Vec<Lease>, now: Instant) {
        reports::leased(&mut self.inventory, donor, leases, now);
    }

    /// It has none to lend now.
    pub fn refused(&mut self, donor: DonorId, now: Instant) {
        reports::refused(&mut self.inventory, donor, now);
    }

    /// The agent's books after a renewal, which was asked for at `asked`.
    pub fn renewed(&mut self, donor: DonorId, held: &[SlabId], free: u32, asked: Instant, now: Instant) {
        reports::renewed(&mut self.inventory, donor, held, free, asked, now);
    }

    /// The connection failed or could not be made.
    pub fn down(&mut self, donor: DonorId, now: Instant) {
        absence::down(&mut self.inventory, donor, now);
    }

    /// Operations on it take far too long, and nothing comes from it. Its agent is asked; if that
    /// is silent as well, nothing waits for this donor until it is heard again.
    pub fn late(&mut self, donor: DonorId, now: Instant) {
        absence::late(&mut self.inventory, donor, now);
    }

    /// An operation had all its time and got no answer: nothing waits for this donor until it is
    /// heard again. A replica to which that happens twice without its being live in between is
    /// lost: the agent may answer here and its memory not.
    pub fn hung(&mut self, donor: DonorId, now: Instant) {
        absence::hung(&mut self.inventory, donor, now);
        self.tick(now);
    }

    /// This process, or the whole machine, did not run for a while. A donor could not have been
    /// heard in that time: absences are counted anew.
    pub fn stood_still(&mut self, now: Instant) {
        absence::stood_still(&mut self.inventory, now);
    }

    pub fn measured(&mut self, donor: DonorId, latency_ns: u64) {
        self.inventory.donors.entry(donor).or_default().latency_ns = latency_ns;
    }

    /// Everything is to leave this donor for good; [`Action::DonorRemoved`] says when it has.
    pub fn remove(&mut self, donor: DonorId) {
        removal::remove(&mut self.inventory, donor);
    }

    /// A donor that was removed is wanted again. What it wants back itself leaves all the same.
    pub fn welcome_back(&mut self, donor: DonorId) {
        removal::welcome_back(&mut self.inventory, donor);
    }

    // ---- what lanes and the repair thread find, and what actions led to ----

    /// A lane has marked the replica as stale.
    pub fn replica_stale(&mut self, extent: ExtentId, index: u8, donor: DonorId, now: Instant) {
        life::replica_stale(&mut self.inventory, extent, index, donor, now);
    }

    /// A lane found the replica live without a write, and made it syncing.
    pub fn replica_fell_behind(&mut self, extent: ExtentId, index: u8, now: Instant) -> bool {
        life::replica_fell_behind(&mut self.inventory, extent, index, now)
    }

    /// A syncing replica lacks nothing any more and is live.
    pub fn synced(&mut self, extent: ExtentId, index: u8, now: Instant) {
        life::synced(&mut self.inventory, extent, index, now);
    }

    /// What [`Action::Resync`] led to: one that was to follow is syncing, if there is nobody live
    /// to follow.
    pub fn resync_began(&mut self, extent: ExtentId, index: u8, state: ReplicaState, now: Instant) {
        life::resync_began(&mut self.inventory, extent, index, state, now);
    }

    /// What [`Action::Remove`] led to: it is removed, or it is stale since it turned out that too
    /// few others are live.
    pub fn replica_removed(&mut self, extent: ExtentId, index: u8, is_removed: bool, now: Instant) {
        life::replica_removed(&mut self.inventory, extent, index, is_removed, now);
    }

    /// The coordinator has taken the empty extent away.
    pub fn retired(&mut self, extent: ExtentId) {
        self.supply.forget(extent);
        for member in self.inventory.take_out(extent).into_iter().filter(|m| m.leased.state.is_kept()) {
            self.inventory.actions.push(Action::Return(member.leased.donor, vec![member.leased.lease]));
        }
    }

    // ---- time and demand ----

    /// What time brings: donors that are away and replicas that are stale or lost by now, or may
    /// come back.
    pub fn tick(&mut self, now: Instant) {
        let is_due = |d: &DonorEntry| {
            [d.away_at, d.lost_at, absence::answer_due(&self.inventory, d)].into_iter().flatten().any(|at| at <= now)
        };
        let due: Vec<DonorId> = self.inventory.donors.iter().filter(|(_, d)| is_due(d)).map(|(id, _)| *id).collect();
        for id in &due {
            absence::is_answer_due(&mut self.inventory, *id, now);
            if self.inventory.donors.get_mut(id).is_some_and(|entry| entry.away_at.take_if(|at| *at <= now).is_some()) {
                absence::all_stale(&mut self.inventory, *id, now);
            }
        }
        // Only now is it known what nobody else has.
        for id in due {
            let Some(entry) = self.inventory.donors.get_mut(&id) else { continue };
            if entry.lost_at.take_if(|at| *at <= now).is_some() {
                entry.stock.clear();
                let closing = entry.closing;
                let why = if closing { "its donor was shut down" } else { "its donor was out of reach for too long" };
                // That is waited for longer: `tick_members`.
                let goes = |extent: ExtentId| closing || self.inventory.has_live(extent);
                let lost: Vec<_> =
                    self.inventory.kept_on(id).into_iter().filter(|(extent, ..)| goes(*extent)).collect();
                lost.into_iter().for_each(|(e, n, _)| life::declare_lost(&mut self.inventory, e, n, why));
                self.inventory.actions.push(Action::Abandon(id));
            }
        }
        life::tick_members(&mut self.inventory, now);
    }

    /// The next moment at which [`Book::tick`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        let donors = self
            .inventory
            .donors
            .values()
            .flat_map(|d| [d.away_at, d.lost_at, absence::answer_due(&self.inventory, d)])
            .flatten();
        donors.chain(self.inventory.extents.values().flatten().filter_map(Member::due)).min()
    }

    /// Takes extents ahead of demand, gives idle ones back, and has replicas put where they are
    /// missing.
    pub fn balance(&mut self, room: &Headroom, now: Instant) {
        self.supply.balance(&mut self.inventory, room, now);
    }

    /// Extents with two replicas in one host or rack, as far as donors say where they are.
    pub fn crowded(&self) -> u32 {
        repair::crowded(&self.inventory)
    }

    /// Replicas that are to leave their donor and have not yet.
    pub fn moving(&self) -> u32 {
        repair::moving(&self.inventory)
    }

    /// Of those, the ones that can't: nobody has room for what is to take their place, and
    /// nothing is on its way.
    pub fn stuck(&self, now: Instant) -> u32 {
        repair::stuck(&self.inventory, now)
    }

    /// The replica at an index is to go as soon as enough others are live.
    #[cfg(test)]
    pub fn gives_up(&self, extent: ExtentId, index: u8) -> bool {
        let member = self.inventory.extents.get(&extent).and_then(|m| m.get(usize::from(index)));
        member.is_some_and(|m| last_tier::is_to_go(&self.inventory, m))
    }
}

#[cfg(test)]
mod tests;
