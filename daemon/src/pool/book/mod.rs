//! The keeper's book: which donors are there, which slabs are leased, which extents they make up, and what to do about it. Pure: what
//! happened and the time go in, [`Action`]s come out. The keeper carries them out and tells the outcome.
//!
//! # The life of an extent
//! A *plan* names R donors. Each is asked for one slab; slabs that come in lie on the donor's *stock* until every donor of some plan has one,
//! then the extent is published. A donor that refuses ends the plans it is in; stock that no plan wants goes back after a while. An empty
//! extent beyond the spare one goes back after it was idle for a while; a degraded one as soon as it is empty.
//!
//! # The life of a replica
//! Live until one of these: its donor was out of reach for too long; its donor said goodbye; its donor came back under a new
//! incarnation, or without this slab on its list; a lane found that its operations are refused or keep failing. Then lost, for good.

use super::placement::{self, Candidate};
use annex_shared::ids::{DonorId, ExtentId, Incarnation, SlabId};
use annex_shared::wire::Lease;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A donor that refused a lease is asked again after this.
const FULL_FOR: Duration = Duration::from_secs(1);
/// Extents that may be on their way at once.
const MAX_PLANS: usize = 8;
/// Extents to hold ahead at most, however fast pages come.
const AHEAD: u64 = 1;

/// What the book needs to know of the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub replicas: usize,
    pub lost_after: Duration,
    pub idle_return: Duration,
    /// The most extents to hold.
    pub max_extents: u32,
    pub slots_per_extent: u32,
}

/// What the keeper is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Ask the donor for one slab.
    Lease(DonorId),
    /// Give slabs back.
    Return(DonorId, Vec<Lease>),
    /// Make the extent known and let pages be put there.
    Publish(ExtentId, Vec<Placed>),
    /// Mark the replica as lost.
    Lose { extent: ExtentId, replica: u8, why: &'static str },
    /// Take no more pages there unless there is nothing better.
    Degrade(ExtentId),
    /// If it is still empty, take the extent away and say [`Book::retired`].
    Retire(ExtentId),
    /// All replicas on the donor are lost.
    Abandon(DonorId),
}

/// A replica of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub donor: DonorId,
    pub incarnation: Incarnation,
    pub lease: Lease,
    pub live: bool,
}

/// What a donor says of itself at its welcome.
#[derive(Clone, Debug)]
pub(super) struct Greeting {
    pub incarnation: Incarnation,
    pub host: Option<String>,
    pub rack: Option<String>,
    pub held: Vec<Lease>,
    pub free: u32,
}

/// How the pool's room stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    /// Free pages in healthy extents.
    pub free: u64,
    /// Pages asked for and not had.
    pub wanted: u64,
    /// Pages taken in about the last second.
    pub taken: u64,
    /// Extents without a used slot.
    pub empty: Vec<ExtentId>,
}

#[derive(Debug, Default)]
struct DonorEntry {
    incarnation: Option<Incarnation>,
    host: Option<String>,
    rack: Option<String>,
    up: bool,
    /// Lost when this moment comes, unless it is up again.
    lost_at: Option<Instant>,
    closing: bool,
    free: u32,
    latency_ns: u64,
    stock: Vec<Lease>,
    asked: u32,
    full_until: Option<Instant>,
    stock_since: Option<Instant>,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Book {
    rules: Rules,
    donors: BTreeMap<DonorId, DonorEntry>,
    extents: BTreeMap<ExtentId, Vec<Placed>>,
    idle_since: BTreeMap<ExtentId, Instant>,
    plans: Vec<Vec<DonorId>>,
    dry: bool,
    full: bool,
    actions: Vec<Action>,
    draw: u64,
}

impl Book {
    pub fn new(rules: Rules, seed: u64) -> Self {
        Book {
            rules,
            donors: BTreeMap::new(),
            extents: BTreeMap::new(),
            idle_since: BTreeMap::new(),
            plans: Vec::new(),
            dry: false,
            full: false,
            actions: Vec::new(),
            draw: seed | 1,
        }
    }

    /// An extent that was there before this book. Its donors have until `lost_after` to show up.
    pub fn adopt(&mut self, extent: ExtentId, replicas: Vec<Placed>, now: Instant) {
        for placed in &replicas {
            let donor = self.donors.entry(placed.donor).or_default();
            donor.incarnation = Some(placed.incarnation);
            donor.lost_at.get_or_insert(now + self.rules.lost_after);
        }
        self.extents.insert(extent, replicas);
    }

    /// Fixes what is known only when the first donor has answered.
    pub fn set_geometry(&mut self, slots_per_extent: u32, max_extents: u32) {
        self.rules.slots_per_extent = slots_per_extent;
        self.rules.max_extents = max_extents;
    }

    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// True if more room is wanted and none is on its way.
    pub fn is_dry(&self) -> bool {
        self.dry && self.plans.is_empty()
    }

    /// True from the moment the pool was found dry until it has room again. Donors are asked anew now and then meanwhile.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// The slabs held on a donor, by the book.
    pub fn held(&self, donor: DonorId) -> u32 {
        let stock = self.donors.get(&donor).map_or(0, |d| d.stock.len());
        let placed = self.extents.values().flatten().filter(|p| p.donor == donor && p.live).count();
        (stock + placed) as u32
    }

    // ---- what donors do ----

    /// A control connection stands.
    pub fn up(&mut self, donor: DonorId, greeting: Greeting) {
        let entry = self.donors.entry(donor).or_default();
        let restarted = entry.incarnation.is_some_and(|i| i != greeting.incarnation);
        entry.incarnation = Some(greeting.incarnation);
        (entry.host, entry.rack) = (greeting.host, greeting.rack);
        (entry.up, entry.closing, entry.lost_at, entry.full_until) = (true, false, None, None);
        (entry.free, entry.asked) = (greeting.free, 0);
        if restarted {
            entry.stock.clear();
        }
        entry.stock.retain(|l| greeting.held.contains(l));
        self.plans.retain(|p| !p.contains(&donor));
        let mut mine = self.donors[&donor].stock.clone();
        let mut lost = Vec::new();
        for (extent, n, placed) in self.live_on(donor) {
            if placed.incarnation == greeting.incarnation && greeting.held.contains(&placed.lease) {
                mine.push(placed.lease);
            } else {
                lost.push((extent, n));
            }
        }
        let why = if restarted { "its donor was restarted" } else { "its donor does not know the lease any more" };
        lost.into_iter().for_each(|(extent, n)| self.lose(extent, n, why));
        let strays: Vec<Lease> = greeting.held.into_iter().filter(|l| !mine.contains(l)).collect();
        if !strays.is_empty() {
            self.actions.push(Action::Return(donor, strays));
        }
    }

    /// The connection failed or could not be made.
    pub fn down(&mut self, donor: DonorId, now: Instant) {
        let lost_at = now + self.rules.lost_after;
        let entry = self.donors.entry(donor).or_default();
        entry.up = false;
        entry.asked = 0;
        entry.lost_at = match (entry.lost_at, entry.incarnation) {
            (Some(at), _) => Some(at.min(lost_at)),
            (None, Some(_)) => Some(lost_at),
            (None, None) => None,
        };
        self.plans.retain(|p| !p.contains(&donor));
    }

    /// The agent said that its memory is gone after `grace`.
    pub fn closing(&mut self, donor: DonorId, grace: Duration, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        entry.closing = true;
        let lost_at = now + grace;
        entry.lost_at = Some(entry.lost_at.map_or(lost_at, |at| at.min(lost_at)));
        self.plans.retain(|p| !p.contains(&donor));
        let stock = std::mem::take(&mut entry.stock);
        if !stock.is_empty() {
            self.actions.push(Action::Return(donor, stock));
        }
    }

    /// Slabs came in.
    pub fn leased(&mut self, donor: DonorId, leases: Vec<Lease>, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        entry.asked = entry.asked.saturating_sub(1);
        entry.free = entry.free.saturating_sub(leases.len() as u32);
        if entry.closing {
            self.actions.push(Action::Return(donor, leases));
            return;
        }
        entry.stock.extend(leases);
        entry.stock_since = Some(now);
        self.build();
    }

    /// It has none to lend now.
    pub fn refused(&mut self, donor: DonorId, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        entry.asked = entry.asked.saturating_sub(1);
        entry.full_until = Some(now + FULL_FOR);
        // What it has on stock still serves plans made before.
        let mut left = entry.stock.len();
        self.plans.retain(|p| {
            let keep = !p.contains(&donor) || left > 0;
            if keep && p.contains(&donor) {
                left -= 1;
            }
            keep
        });
    }

    /// The agent's books after a renewal.
    pub fn renewed(&mut self, donor: DonorId, held: &[SlabId], free: u32) {
        let entry = self.donors.entry(donor).or_default();
        entry.free = free;
        entry.stock.retain(|l| held.contains(&l.slab));
        let gone = self.live_on(donor).into_iter().filter(|(_, _, p)| !held.contains(&p.lease.slab));
        let gone: Vec<(ExtentId, u8)> = gone.map(|(e, n, _)| (e, n)).collect();
        gone.into_iter().for_each(|(e, n)| self.lose(e, n, "its donor does not know the lease any more"));
    }

    pub fn measured(&mut self, donor: DonorId, latency_ns: u64) {
        self.donors.entry(donor).or_default().latency_ns = latency_ns;
    }

    // ---- what lanes find ----

    /// A lane has marked the replica as lost.
    pub fn replica_lost(&mut self, extent: ExtentId, replica: u8) {
        let Some(placed) = self.extents.get(&extent).and_then(|r| r.get(usize::from(replica))) else { return };
        if !placed.live {
            return;
        }
        self.forsake(extent, replica);
    }

    /// The keeper has taken the empty extent away.
    pub fn retired(&mut self, extent: ExtentId) {
        self.idle_since.remove(&extent);
        for placed in self.extents.remove(&extent).into_iter().flatten().filter(|p| p.live) {
            self.actions.push(Action::Return(placed.donor, vec![placed.lease]));
        }
    }

    // ---- time and demand ----

    /// Declares donors lost whose time is up.
    pub fn tick(&mut self, now: Instant) {
        let due = |d: &DonorEntry| d.lost_at.is_some_and(|at| now >= at);
        let lost: Vec<DonorId> = self.donors.iter().filter(|(_, d)| due(d)).map(|(id, _)| *id).collect();
        for donor in lost {
            let closing = {
                let entry = self.donors.entry(donor).or_default();
                entry.lost_at = None;
                entry.stock.clear();
                entry.closing
            };
            let why = if closing { "its donor was shut down" } else { "its donor was out of reach for too long" };
            let lost: Vec<_> = self.live_on(donor).into_iter().map(|(e, n, _)| (e, n)).collect();
            lost.into_iter().for_each(|(e, n)| self.lose(e, n, why));
            self.actions.push(Action::Abandon(donor));
        }
    }

    /// The next moment at which [`Book::tick`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.donors.values().filter_map(|d| d.lost_at).min()
    }

    /// Takes extents ahead of demand and gives idle ones back.
    pub fn balance(&mut self, room: &Room, now: Instant) {
        let slots = u64::from(self.rules.slots_per_extent);
        if slots == 0 {
            self.dry = true;
            return;
        }
        // One extent ahead, and what was taken lately or missed once more.
        let target = slots + room.wanted + room.taken.min(slots * AHEAD);
        let mut free = room.free;
        let spare = free.saturating_sub(target);
        self.retire(room, spare / slots, now);
        free += self.plans.len() as u64 * slots;
        while free < target && self.plans.len() < MAX_PLANS && self.plan(now) {
            free += slots;
        }
        self.dry = free < target;
        self.full = if self.full { room.free < slots } else { self.is_dry() && room.free == 0 };
        self.build();
        self.return_stock(now);
    }

    fn retire(&mut self, room: &Room, mut spare: u64, now: Instant) {
        self.idle_since.retain(|e, _| room.empty.contains(e));
        for extent in &room.empty {
            let since = *self.idle_since.entry(*extent).or_insert(now);
            let Some(replicas) = self.extents.get(extent) else { continue };
            let healthy = replicas.iter().all(|p| p.live);
            if !healthy {
                self.actions.push(Action::Retire(*extent));
            } else if spare > 0 && now.duration_since(since) >= self.rules.idle_return {
                spare -= 1;
                self.actions.push(Action::Retire(*extent));
            }
        }
    }

    fn plan(&mut self, now: Instant) -> bool {
        if self.extents.len() + self.plans.len() >= self.rules.max_extents as usize {
            return false;
        }
        let promised = |d: DonorId| self.plans.iter().filter(|p| p.contains(&d)).count() as u32;
        let candidate = |(id, d): (&DonorId, &DonorEntry)| {
            let lendable = if d.full_until.is_some_and(|t| now < t) { 0 } else { d.free };
            let free = (lendable + d.stock.len() as u32).saturating_sub(promised(*id));
            let (host, rack) = (d.host.clone(), d.rack.clone());
            Candidate { donor: *id, free, latency_ns: d.latency_ns, host, rack }
        };
        let up = self.donors.iter().filter(|(_, d)| d.up && !d.closing);
        let candidates: Vec<Candidate> = up.map(candidate).collect();
        let mut state = self.draw;
        let mut draw = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n.max(1)
        };
        let chosen = placement::choose(&candidates, self.rules.replicas, &mut draw);
        self.draw = state;
        let Some(chosen) = chosen else { return false };
        self.plans.push(chosen.clone());
        for id in chosen {
            let promised = self.plans.iter().filter(|p| p.contains(&id)).count() as u32;
            let donor = self.donors.entry(id).or_default();
            if donor.stock.len() as u32 + donor.asked < promised {
                donor.asked += 1;
                self.actions.push(Action::Lease(id));
            }
        }
        true
    }

    /// Publishes the plans whose slabs are all there.
    fn build(&mut self) {
        let mut at = 0;
        while at < self.plans.len() {
            let ready = self.plans[at].iter().all(|d| self.donors.get(d).is_some_and(|d| !d.stock.is_empty()));
            let free = (0..self.rules.max_extents).map(ExtentId).find(|e| !self.extents.contains_key(e));
            let (true, Some(extent)) = (ready, free) else {
                at += 1;
                continue;
            };
            let mut replicas = Vec::new();
            for id in self.plans.remove(at) {
                let Some(donor) = self.donors.get_mut(&id) else { continue };
                if let (Some(lease), Some(incarnation)) = (donor.stock.pop(), donor.incarnation) {
                    replicas.push(Placed { donor: id, incarnation, lease, live: true });
                }
            }
            self.extents.insert(extent, replicas.clone());
            self.actions.push(Action::Publish(extent, replicas));
        }
    }

    /// Stock that no plan has wanted for a while goes back.
    fn return_stock(&mut self, now: Instant) {
        for (id, donor) in &mut self.donors {
            let wanted = self.plans.iter().filter(|p| p.contains(id)).count();
            let old = donor.stock_since.is_some_and(|t| now.duration_since(t) >= self.rules.idle_return);
            if old && donor.stock.len() > wanted {
                self.actions.push(Action::Return(*id, donor.stock.split_off(wanted)));
            }
        }
    }

    fn lose(&mut self, extent: ExtentId, replica: u8, why: &'static str) {
        self.actions.push(Action::Lose { extent, replica, why });
        self.forsake(extent, replica);
    }

    /// The replica is lost: its extent is degraded, and its slab goes back if somebody is there to take it.
    fn forsake(&mut self, extent: ExtentId, replica: u8) {
        let Some(placed) = self.extents.get_mut(&extent).and_then(|r| r.get_mut(usize::from(replica))) else { return };
        placed.live = false;
        self.actions.push(Action::Degrade(extent));
        if self.donors.get(&placed.donor).is_some_and(|d| d.up && d.incarnation == Some(placed.incarnation)) {
            self.actions.push(Action::Return(placed.donor, vec![placed.lease]));
        }
    }

    fn live_on(&self, donor: DonorId) -> Vec<(ExtentId, u8, Placed)> {
        let replicas = self.extents.iter().flat_map(|(e, r)| (0u8..).zip(r).map(move |(n, p)| (*e, n, *p)));
        replicas.filter(|(_, _, p)| p.donor == donor && p.live).collect()
    }
}

#[cfg(test)]
mod tests;
