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
//! `members` tells it: live, away, joining, lost; `absence` what makes a donor away. `repair`
//! decides where to put another one when there are too few, when a donor wants its slabs back, or
//! when donors are filled unevenly: a *join* names one donor for one extent, and is carried out
//! when its slab is there.
//!
//! # The last tier
//! The spill file is a donor that no rule above ever chooses. A plan or a join takes it only when
//! too few donors have room, and only for pages that somebody asks for now, not ahead of demand. A
//! replica there counts as one, and never as one that lasts: a donor is looked for all the time,
//! and once enough donors have the extent it goes. With a single replica, though, every extent
//! keeps one there as a *backup* (`members`).

mod absence;
mod last_tier;
mod members;
mod removal;
mod repair;

use crate::coordinator::placement::{self, Candidate};
use crate::metadata::replica::{PLACES, ReplicaState};
use annex_shared::ids::{DonorId, ExtentId, Incarnation, SlabId};
use annex_shared::wire::Lease;
use members::Member;
use repair::Join;
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
pub(crate) struct Rules {
    pub replicas: usize,
    /// How long a donor may be out of reach before writes go on without it.
    pub away_after: Duration,
    pub lost_after: Duration,
    /// The same for what no live replica has.
    pub last_copy_lost_after: Duration,
    pub idle_return: Duration,
    /// The most extents to hold.
    pub max_extents: u32,
    pub slots_per_extent: u32,
    /// Move replicas from full donors to empty ones.
    pub rebalance: bool,
    /// The donor that is the spill file.
    pub spill: Option<DonorId>,
}

/// What an extent is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    /// As many donors have it as there should be.
    Whole,
    /// The spill file has it, since too few donors have.
    LastTier,
    /// It lacks a replica.
    Degraded,
}

/// What the coordinator is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask the donor for one slab.
    Lease(DonorId),
    /// Have the agent answer now, not at the next renewal: until it is heard, what is away there
    /// stays away.
    Ask(DonorId),
    /// It does not answer at all: give up what is under way there. Or it does again.
    Silent(DonorId, bool),
    /// Give slabs back.
    Return(DonorId, Vec<Lease>),
    /// Make the extent known and let pages be put there.
    Publish(ExtentId, Vec<Placed>),
    /// Mark the replica as lost.
    Lose { extent: ExtentId, place: u8, why: &'static str },
    /// Mark it as away: neither read nor written until it joins again.
    Leave { extent: ExtentId, place: u8, why: &'static str },
    /// Put a replica without content there, in the state named, and have it filled.
    Join { extent: ExtentId, place: u8, placed: Placed },
    /// What was away is written again, or follows as a backup, under this lease; what it missed is
    /// to be copied. Or a backup is written from now on, or the other way round. Then say
    /// [`Book::rejoined`].
    Rejoin { extent: ExtentId, place: u8, placed: Placed },
    /// If nobody has what this joining replica lacks, make it live as it is, and say
    /// [`Book::joined`].
    Promote { extent: ExtentId, place: u8 },
    /// Its bytes are elsewhere now: forget it unless fewer others are live than there should be,
    /// and say [`Book::vacated`].
    Vacate { extent: ExtentId, place: u8 },
    /// It is as good as that from now on; it was published as whole.
    Grade(ExtentId, Grade),
    /// If it is still empty, take the extent away and say [`Book::retired`].
    Retire(ExtentId),
    /// All replicas on the donor are lost, but for those that nobody else has.
    Abandon(DonorId),
    /// Nothing is left on a donor that was to be removed.
    Removed(DonorId),
}

/// A replica of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub donor: DonorId,
    pub incarnation: Incarnation,
    pub lease: Lease,
    pub state: ReplicaState,
}

/// What a donor says of itself at its welcome.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    pub incarnation: Incarnation,
    /// The incarnation before, if the bytes of what is held came through.
    pub resumed: Option<Incarnation>,
    pub host: Option<String>,
    pub rack: Option<String>,
    pub held: Vec<Lease>,
    pub free: u32,
}

/// How the pool's room stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// Free pages in whole extents.
    pub free: u64,
    /// Free pages in extents of the last tier.
    pub spilled: u64,
    /// Free pages in degraded extents that have a live replica.
    pub degraded: u64,
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
    /// When it last said something.
    heard: Option<Instant>,
    /// When it was asked last what it holds, of those times that it has answered.
    confirmed: Option<Instant>,
    /// An operation got no answer since.
    silent: bool,
    /// Since when its agent is to answer, because operations are late.
    asked_at: Option<Instant>,
    /// Its replicas are away when this moment comes, and lost at the other, unless it is up again.
    away_at: Option<Instant>,
    lost_at: Option<Instant>,
    closing: bool,
    removing: bool,
    /// It was removed. What its thread had still to say does not bring it back.
    is_gone: bool,
    free: u32,
    latency_ns: u64,
    stock: Vec<Lease>,
    asked: u32,
    full_until: Option<Instant>,
    /// It wants slabs back until then, and lends none.
    recalls_until: Option<Instant>,
    stock_since: Option<Instant>,
}

impl DonorEntry {
    fn is_taking(&self) -> bool {
        self.up && !self.silent && !self.closing && !self.removing
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Book {
    rules: Rules,
    donors: BTreeMap<DonorId, DonorEntry>,
    /// By place; lost ones stay until the place is used again.
    extents: BTreeMap<ExtentId, Vec<Member>>,
    /// Extents that are not whole.
    grades: BTreeMap<ExtentId, Grade>,
    idle_since: BTreeMap<ExtentId, Instant>,
    plans: Vec<Vec<DonorId>>,
    joins: Vec<Join>,
    dry: bool,
    full: bool,
    /// Too few donors have room for a new extent.
    spills: bool,
    /// Too few donors are there for a whole extent.
    degrades: bool,
    actions: Vec<Action>,
    /// Set when nothing ran for a while: when it ran again.
    ran_since: Option<Instant>,
    draw: u64,
}

impl Book {
    pub fn new(rules: Rules, seed: u64) -> Self {
        Book {
            rules,
            donors: BTreeMap::new(),
            extents: BTreeMap::new(),
            grades: BTreeMap::new(),
            idle_since: BTreeMap::new(),
            plans: Vec::new(),
            joins: Vec::new(),
            dry: false,
            full: false,
            spills: false,
            degrades: false,
            actions: Vec::new(),
            ran_since: None,
            draw: seed | 1,
        }
    }

    /// An extent that was there before this book. Its donors have until `lost_after` to show up.
    pub fn adopt(&mut self, extent: ExtentId, replicas: Vec<Placed>, now: Instant) {
        for placed in replicas.iter().filter(|p| p.state.is_kept()) {
            let donor = self.donors.entry(placed.donor).or_default();
            donor.incarnation = Some(placed.incarnation);
            donor.away_at.get_or_insert(now + self.rules.away_after.max(self.rules.lost_after / 2));
            donor.lost_at.get_or_insert(now + self.rules.lost_after(placed.donor));
        }
        self.extents.insert(extent, replicas.into_iter().map(|p| self.rules.member(p, now)).collect());
        self.weigh(extent);
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

    /// True from the moment the pool was found dry until it has room again. Donors are asked anew
    /// now and then meanwhile.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// True while too few donors have room for a new extent, so that pages go to the last tier.
    pub fn spills(&self) -> bool {
        self.spills
    }

    /// True while fewer donors are there than an extent has replicas, though enough are known.
    /// Pages go to degraded extents then.
    pub fn degrades(&self) -> bool {
        self.degrades
    }

    /// The slabs held on a donor, by the book.
    pub fn held(&self, donor: DonorId) -> u32 {
        let stock = self.donors.get(&donor).map_or(0, |d| d.stock.len());
        let mine = |m: &&Member| m.placed.donor == donor && m.placed.state.is_kept();
        (stock + self.extents.values().flatten().filter(mine).count()) as u32
    }

    // ---- what donors do ----

    /// A control connection stands.
    pub fn up(&mut self, donor: DonorId, greeting: Greeting, now: Instant) {
        self.heard(donor, now);
        let entry = self.donors.entry(donor).or_default();
        let restarted = entry.incarnation.is_some_and(|i| i != greeting.incarnation);
        entry.incarnation = Some(greeting.incarnation);
        (entry.host, entry.rack) = (greeting.host, greeting.rack);
        (entry.up, entry.closing) = (true, false);
        (entry.away_at, entry.lost_at) = (None, None);
        (entry.full_until, entry.recalls_until) = (None, None);
        (entry.free, entry.asked) = (greeting.free, 0);
        if restarted {
            entry.stock.clear();
        }
        entry.stock.retain(|l| greeting.held.contains(l));
        let mut mine = entry.stock.clone();
        self.forget_plans(donor);
        for (extent, place, placed) in self.kept_on(donor) {
            let same = greeting.held.iter().find(|l| l.slab == placed.lease.slab);
            if placed.incarnation == greeting.incarnation && greeting.held.contains(&placed.lease) {
                mine.push(placed.lease);
                self.back(extent, place, now);
            } else if let (Some(lease), true) = (same, greeting.resumed == Some(placed.incarnation))
                && lease.rkey.goes_on_from(placed.lease.rkey)
            {
                mine.push(*lease);
                self.resume(extent, place, greeting.incarnation, *lease, now);
            } else {
                let restarted = placed.incarnation != greeting.incarnation;
                let why = match same {
                    Some(lease) if !lease.rkey.goes_on_from(placed.lease.rkey) => LENT_ANEW,
                    _ if restarted => "its donor was restarted",
                    _ => NOT_KNOWN,
                };
                self.lose(extent, place, why);
            }
        }
        let strays: Vec<Lease> = greeting.held.into_iter().filter(|l| !mine.contains(l)).collect();
        if !strays.is_empty() {
            self.actions.push(Action::Return(donor, strays));
        }
    }

    /// The agent said that its memory is gone after `grace`.
    pub fn closing(&mut self, donor: DonorId, grace: Duration, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        entry.closing = true;
        let lost_at = now + grace;
        entry.lost_at = Some(entry.lost_at.map_or(lost_at, |at| at.min(lost_at)));
        let stock = std::mem::take(&mut entry.stock);
        self.forget_plans(donor);
        if !stock.is_empty() {
            self.actions.push(Action::Return(donor, stock));
        }
        self.send_off(donor, |_| true, Some(lost_at));
    }

    /// The agent wants these slabs back until then.
    pub fn recalled(&mut self, donor: DonorId, slabs: &[SlabId], deadline: Instant) {
        let entry = self.donors.entry(donor).or_default();
        let (back, stock) = entry.stock.drain(..).partition::<Vec<_>, _>(|l| slabs.contains(&l.slab));
        entry.stock = stock;
        (entry.full_until, entry.recalls_until) = (Some(deadline), Some(deadline));
        if !back.is_empty() {
            self.actions.push(Action::Return(donor, back));
        }
        self.send_off(donor, |p| slabs.contains(&p.lease.slab), Some(deadline));
    }

    /// Slabs came in.
    pub fn leased(&mut self, donor: DonorId, leases: Vec<Lease>, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        entry.asked = entry.asked.saturating_sub(1);
        entry.free = entry.free.saturating_sub(leases.len() as u32);
        if entry.closing || entry.removing {
            self.actions.push(Action::Return(donor, leases));
            return;
        }
        entry.stock.extend(&leases);
        entry.stock_since = Some(now);
        // It can lend again only what it has taken back, whatever we have heard.
        for (extent, place, placed) in self.kept_on(donor) {
            if leases.iter().any(|l| l.slab == placed.lease.slab) {
                self.lose(extent, place, LENT_ANEW);
            }
        }
        self.build(now);
    }

    /// It has none to lend now.
    pub fn refused(&mut self, donor: DonorId, now: Instant) {
        let entry = self.donors.entry(donor).or_default();
        entry.asked = entry.asked.saturating_sub(1);
        entry.full_until = Some(now + FULL_FOR);
        // What it has on stock still serves plans made before.
        let mut left = entry.stock.len();
        let mut serves = |named: bool| {
            let keep = !named || left > 0;
            if keep && named {
                left -= 1;
            }
            keep
        };
        self.joins.retain(|j| serves(j.donor == donor));
        self.plans.retain(|p| serves(p.contains(&donor)));
    }

    /// The agent's books after a renewal, which was asked for at `asked`.
    pub fn renewed(&mut self, donor: DonorId, held: &[SlabId], free: u32, asked: Instant, now: Instant) {
        self.heard(donor, now);
        let entry = self.donors.entry(donor).or_default();
        (entry.free, entry.confirmed) = (free, Some(asked));
        if entry.up && !entry.closing {
            entry.away_at = None;
        }
        entry.stock.retain(|l| held.contains(&l.slab));
        for (extent, place, placed) in self.kept_on(donor) {
            self.told(extent, place, held.contains(&placed.lease.slab), asked);
        }
    }

    pub fn measured(&mut self, donor: DonorId, latency_ns: u64) {
        self.donors.entry(donor).or_default().latency_ns = latency_ns;
    }

    /// The coordinator has taken the empty extent away.
    pub fn retired(&mut self, extent: ExtentId) {
        self.idle_since.remove(&extent);
        self.grades.remove(&extent);
        self.joins.retain(|j| j.extent != extent);
        for member in self.extents.remove(&extent).into_iter().flatten().filter(|m| m.placed.state.is_kept()) {
            self.actions.push(Action::Return(member.placed.donor, vec![member.placed.lease]));
        }
    }

    // ---- time and demand ----

    /// What time brings: donors and replicas that are away or lost by now, or may come back.
    pub fn tick(&mut self, now: Instant) {
        let is_due =
            |d: &DonorEntry| [d.away_at, d.lost_at, self.answer_due(d)].into_iter().flatten().any(|at| at <= now);
        let due: Vec<DonorId> = self.donors.iter().filter(|(_, d)| is_due(d)).map(|(id, _)| *id).collect();
        for id in &due {
            self.is_answer_due(*id, now);
            if self.donors.get_mut(id).is_some_and(|entry| entry.away_at.take_if(|at| *at <= now).is_some()) {
                self.all_away(*id, now);
            }
        }
        // Only now is it known what nobody else has.
        for id in due {
            let Some(entry) = self.donors.get_mut(&id) else { continue };
            if entry.lost_at.take_if(|at| *at <= now).is_some() {
                entry.stock.clear();
                let closing = entry.closing;
                let why = if closing { "its donor was shut down" } else { "its donor was out of reach for too long" };
                // That is waited for longer: `tick_members`.
                let goes = |extent: ExtentId| closing || self.has_live(extent);
                let lost: Vec<_> = self.kept_on(id).into_iter().filter(|(extent, ..)| goes(*extent)).collect();
                lost.into_iter().for_each(|(e, n, _)| self.lose(e, n, why));
                self.actions.push(Action::Abandon(id));
            }
        }
        self.tick_members(now);
    }

    /// The next moment at which [`Book::tick`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        let donors = self.donors.values().flat_map(|d| [d.away_at, d.lost_at, self.answer_due(d)]).flatten();
        donors.chain(self.extents.values().flatten().filter_map(Member::due)).min()
    }

    /// Takes extents ahead of demand, gives idle ones back, and has replicas put where they are
    /// missing.
    pub fn balance(&mut self, room: &Room, now: Instant) {
        let slots = u64::from(self.rules.slots_per_extent);
        if slots == 0 {
            self.dry = true;
            return;
        }
        // One extent ahead, and what was taken lately or missed once more.
        let target = slots + room.wanted + room.taken.min(slots * AHEAD);
        self.spills = !self.donors_have_room(now);
        self.degrades = self.lacks_donors(now);
        if !self.degrades {
            // Whole extents can be had again.
            let (replicas, spill) = (self.rules.replicas, self.rules.spill);
            self.plans.retain(|p| p.len() >= replicas || spill.is_some_and(|spill| p.contains(&spill)));
        }
        let mut free = room.free + if self.spills { room.spilled } else { 0 };
        free += if self.degrades { room.degraded } else { 0 };
        let spare = free.saturating_sub(target);
        let demand = room.wanted > 0 || room.taken > 0;
        self.retire(room, spare / slots, demand, now);
        self.plan_joins(&room.empty, now);
        free += self.plans.len() as u64 * slots;
        while free < target && self.plans.len() < MAX_PLANS && self.plan(demand, now) {
            free += slots;
        }
        self.dry = free < target;
        let left = room.free + room.spilled + room.degraded;
        self.full = if self.full { left < slots } else { self.is_dry() && left == 0 };
        self.build(now);
        self.return_stock(now);
        self.finish_removals();
    }

    fn retire(&mut self, room: &Room, mut spare: u64, demand: bool, now: Instant) {
        self.idle_since.retain(|e, _| room.empty.contains(e));
        for extent in &room.empty {
            let since = *self.idle_since.entry(*extent).or_insert(now);
            if !self.extents.contains_key(extent) {
                continue;
            }
            let idle = now.duration_since(since) >= self.rules.idle_return;
            let goes = match self.grade(*extent) {
                // What comes next goes there while nothing better can be had.
                Grade::Degraded => !(self.degrades && self.has_live(*extent)) || (idle && !demand),
                // Donors have room, so the next pages go there; and nothing is held in the file
                // ahead of demand.
                Grade::LastTier => !self.spills || (idle && !demand),
                Grade::Whole => idle && spare > 0,
            };
            if goes {
                spare = spare.saturating_sub(1);
                self.actions.push(Action::Retire(*extent));
            }
        }
    }

    fn plan(&mut self, demand: bool, now: Instant) -> bool {
        if self.extents.len() + self.plans.len() >= self.rules.max_extents as usize {
            return false;
        }
        let candidates = self.candidates(now);
        let replicas = self.rules.replicas;
        let on_donors = self.drawing(|draw| placement::choose(&candidates, replicas, draw));
        let last_tier = self.last_tier(now).filter(|_| demand);
        let spilled = |spill| self.drawing(|draw| placement::choose_with(spill, &candidates, replicas, draw));
        let Some(chosen) = on_donors.or_else(|| last_tier.map(spilled)) else {
            return demand && self.plan_degraded(&candidates);
        };
        self.pursue(chosen);
        true
    }

    /// An extent on the donors that are there. It gets its other replicas when theirs are back.
    fn plan_degraded(&mut self, candidates: &[Candidate]) -> bool {
        let donors = candidates.iter().filter(|c| c.free > 0).count();
        if !self.degrades || donors == 0 {
            return false;
        }
        let Some(chosen) = self.drawing(|draw| placement::choose(candidates, donors, draw)) else { return false };
        self.pursue(chosen);
        true
    }

    fn pursue(&mut self, chosen: Vec<DonorId>) {
        self.plans.push(chosen.clone());
        chosen.into_iter().for_each(|id| self.ask(id));
    }

    /// Fewer donors are there than an extent has replicas, and enough are known: some are away, or
    /// want back what they have lent (a drain, say). With too few donors to begin with, nothing is
    /// written that never could have all its replicas.
    fn lacks_donors(&self, now: Instant) -> bool {
        let known = || self.donors.iter().filter(|(id, d)| !self.is_spill(**id) && !d.removing);
        let lends = |d: &DonorEntry| d.is_taking() && d.recalls_until.is_none_or(|until| until <= now);
        let there = known().filter(|(_, d)| lends(d)).count();
        there > 0 && there < self.rules.replicas && known().count() >= self.rules.replicas
    }

    /// Donors that could lend a slab beyond what is promised already.
    fn candidates(&self, now: Instant) -> Vec<Candidate> {
        let candidate =
            |(id, d): (&DonorId, &DonorEntry)| Candidate { free: self.lendable(*id, d, now), ..self.label(*id, d) };
        self.donors.iter().filter(|(id, d)| d.is_taking() && !self.is_spill(**id)).map(candidate).collect()
    }

    /// Slabs it could lend beyond what is promised already.
    fn lendable(&self, id: DonorId, d: &DonorEntry, now: Instant) -> u32 {
        let lendable = if d.full_until.is_some_and(|t| now < t) { 0 } else { d.free };
        (lendable + d.stock.len() as u32).saturating_sub(self.promised(id))
    }

    fn label(&self, id: DonorId, d: &DonorEntry) -> Candidate {
        Candidate { donor: id, free: 0, latency_ns: d.latency_ns, host: d.host.clone(), rack: d.rack.clone() }
    }

    fn promised(&self, donor: DonorId) -> u32 {
        let plans = self.plans.iter().filter(|p| p.contains(&donor)).count();
        (plans + self.joins.iter().filter(|j| j.donor == donor).count()) as u32
    }

    /// Asks for a slab unless there are enough for all that is promised.
    fn ask(&mut self, id: DonorId) {
        let promised = self.promised(id);
        let donor = self.donors.entry(id).or_default();
        if donor.stock.len() as u32 + donor.asked < promised {
            donor.asked += 1;
            self.actions.push(Action::Lease(id));
        }
    }

    fn drawing<T>(&mut self, f: impl FnOnce(&mut dyn FnMut(usize) -> usize) -> T) -> T {
        let mut state = self.draw;
        let result = f(&mut |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n.max(1)
        });
        self.draw = state;
        result
    }

    fn forget_plans(&mut self, donor: DonorId) {
        self.plans.retain(|p| !p.contains(&donor));
        self.joins.retain(|j| j.donor != donor);
    }

    /// Carries out the joins and publishes the plans whose slabs are all there.
    fn build(&mut self, now: Instant) {
        self.build_joins(now);
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
                    replicas.push(Placed { donor: id, incarnation, lease, state: ReplicaState::Live });
                }
            }
            self.extents.insert(extent, replicas.iter().map(|p| self.rules.member(*p, now)).collect());
            self.actions.push(Action::Publish(extent, replicas));
            self.weigh(extent);
        }
    }

    /// Stock that no plan has wanted for a while goes back.
    fn return_stock(&mut self, now: Instant) {
        let stocked: Vec<DonorId> =
            self.donors.iter().filter(|(_, d)| !d.stock.is_empty()).map(|(id, _)| *id).collect();
        for id in stocked {
            let wanted = self.promised(id) as usize;
            let Some(donor) = self.donors.get_mut(&id) else { continue };
            let old = donor.stock_since.is_some_and(|t| now.duration_since(t) >= self.rules.idle_return);
            if old && donor.stock.len() > wanted {
                self.actions.push(Action::Return(id, donor.stock.split_off(wanted)));
            }
        }
    }
}

const NOT_KNOWN: &str = "its donor does not know the lease any more";
/// Why a replica is lost whose slab is lent to us under another lease.
const LENT_ANEW: &str = "its donor has taken the slab back and lent it anew";

#[cfg(test)]
mod tests;
