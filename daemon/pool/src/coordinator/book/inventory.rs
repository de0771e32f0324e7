//! What the book knows: donors, the extents with their replicas, and what is on its way. Whatever
//! is decided is decided by looking here.

use super::member::Member;
use super::words::{Action, Grade, LeasedReplica, Rules};
use crate::coordinator::placement::PlacementCandidate;
use crate::metadata::replica::ReplicaState;
use annex_shared::ids::{DonorId, ExtentId, Incarnation};
use annex_shared::wire::Lease;
use std::collections::BTreeMap;
use std::time::Instant;

/// One donor.
#[derive(Debug, Default)]
pub(super) struct DonorEntry {
    pub incarnation: Option<Incarnation>,
    pub host: Option<String>,
    pub rack: Option<String>,
    pub up: bool,
    /// When it last said something.
    pub heard: Option<Instant>,
    /// When it was asked last what it holds, of those times that it has answered.
    pub confirmed: Option<Instant>,
    /// An operation got no answer since.
    pub silent: bool,
    /// Since when its agent is to answer, because operations are late.
    pub asked_at: Option<Instant>,
    /// Its replicas are stale when this moment comes, and lost at the other, unless it is up again.
    pub away_at: Option<Instant>,
    pub lost_at: Option<Instant>,
    pub closing: bool,
    pub removing: bool,
    /// It was removed. What its thread had still to say does not bring it back.
    pub is_removed: bool,
    pub free: u32,
    pub latency_ns: u64,
    pub stock: Vec<Lease>,
    pub asked: u32,
    pub full_until: Option<Instant>,
    /// It wants slabs back until then, and lends none.
    pub recalls_until: Option<Instant>,
    pub stock_since: Option<Instant>,
}

impl DonorEntry {
    /// It may be asked for slabs.
    pub fn is_taking(&self) -> bool {
        self.up && !self.silent && !self.closing && !self.removing
    }
}

/// A replica on its way: it begins when its donor's slab is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addition {
    pub extent: ExtentId,
    pub donor: DonorId,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Inventory {
    pub rules: Rules,
    pub donors: BTreeMap<DonorId, DonorEntry>,
    /// By index; lost ones stay until the entry is used again.
    pub extents: BTreeMap<ExtentId, Vec<Member>>,
    /// Extents that are not whole.
    grades: BTreeMap<ExtentId, Grade>,
    pub plans: Vec<Vec<DonorId>>,
    pub additions: Vec<Addition>,
    pub actions: Vec<Action>,
    /// Set when nothing ran for a while: when it ran again.
    pub ran_since: Option<Instant>,
    draw: u64,
}

impl Inventory {
    pub fn new(rules: Rules, seed: u64) -> Self {
        Inventory {
            rules,
            donors: BTreeMap::new(),
            extents: BTreeMap::new(),
            grades: BTreeMap::new(),
            plans: Vec::new(),
            additions: Vec::new(),
            actions: Vec::new(),
            ran_since: None,
            draw: seed | 1,
        }
    }

    /// A replica that begins now.
    pub fn begin(&self, leased: LeasedReplica, now: Instant) -> Member {
        Member::new(leased, self.is_spill(leased.donor), now)
    }

    /// Every extent is whole.
    pub fn is_whole(&self) -> bool {
        self.grades.is_empty()
    }

    /// Takes an extent away.
    pub fn take_out(&mut self, extent: ExtentId) -> Vec<Member> {
        self.grades.remove(&extent);
        self.additions.retain(|j| j.extent != extent);
        self.extents.remove(&extent).unwrap_or_default()
    }

    pub fn is_spill(&self, donor: DonorId) -> bool {
        self.rules.spill == Some(donor)
    }

    pub fn has_backups(&self) -> bool {
        self.rules.spill.is_some() && self.rules.replicas == 1
    }

    /// Donors that could lend a slab beyond what is promised already.
    pub fn candidates(&self, now: Instant) -> Vec<PlacementCandidate> {
        let candidate = |(id, d): (&DonorId, &DonorEntry)| PlacementCandidate {
            free: self.lendable(*id, d, now),
            ..self.label(*id, d)
        };
        self.donors.iter().filter(|(id, d)| d.is_taking() && !self.is_spill(**id)).map(candidate).collect()
    }

    /// Slabs it could lend beyond what is promised already.
    pub fn lendable(&self, id: DonorId, d: &DonorEntry, now: Instant) -> u32 {
        let lendable = if d.full_until.is_some_and(|t| now < t) { 0 } else { d.free };
        lendable.saturating_add(d.stock.len() as u32).saturating_sub(self.promised(id))
    }

    pub fn label(&self, id: DonorId, d: &DonorEntry) -> PlacementCandidate {
        PlacementCandidate { donor: id, free: 0, latency_ns: d.latency_ns, host: d.host.clone(), rack: d.rack.clone() }
    }

    pub fn promised(&self, donor: DonorId) -> u32 {
        let plans = self.plans.iter().filter(|p| p.contains(&donor)).count();
        (plans + self.additions.iter().filter(|j| j.donor == donor).count()) as u32
    }

    /// Asks for a slab unless there are enough for all that is promised.
    pub fn ask(&mut self, id: DonorId) {
        let promised = self.promised(id);
        let donor = self.donors.entry(id).or_default();
        if donor.stock.len() as u32 + donor.asked < promised {
            donor.asked += 1;
            self.actions.push(Action::Lease(id));
        }
    }

    pub fn drawing<T>(&mut self, f: impl FnOnce(&mut dyn FnMut(usize) -> usize) -> T) -> T {
        let mut state = self.draw;
        let result = f(&mut |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n.max(1)
        });
        self.draw = state;
        result
    }

    pub fn forget_plans(&mut self, donor: DonorId) {
        self.plans.retain(|p| !p.contains(&donor));
        self.additions.retain(|j| j.donor != donor);
    }

    pub fn member(&mut self, extent: ExtentId, index: u8) -> Option<&mut Member> {
        self.extents.get_mut(&extent)?.get_mut(usize::from(index))
    }

    pub fn has_live(&self, extent: ExtentId) -> bool {
        self.extents.get(&extent).into_iter().flatten().any(|m| m.leased.state == ReplicaState::Live)
    }

    pub fn grade(&self, extent: ExtentId) -> Grade {
        self.grades.get(&extent).copied().unwrap_or(Grade::Whole)
    }

    /// Whether the extent is whole: as many live replicas on donors as configured, none of which
    /// has a deadline. With one in the spill file it is next to that.
    pub fn weigh(&mut self, extent: ExtentId) {
        let Some(members) = self.extents.get(&extent) else { return };
        let counts = |m: &&Member| {
            m.leased.state == ReplicaState::Live && m.draining.is_none_or(|drain| drain.deadline.is_none())
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

    /// A donor's replicas that count for something.
    pub fn kept_on(&self, donor: DonorId) -> Vec<(ExtentId, u8, LeasedReplica)> {
        let all = self.extents.iter().flat_map(|(e, r)| (0u8..).zip(r).map(move |(n, m)| (*e, n, m.leased)));
        all.filter(|(_, _, p)| p.donor == donor && p.state.is_kept()).collect()
    }

    /// The donors of an extent's replicas, those on their way included.
    pub fn neighbours(&self, extent: ExtentId, which: impl Fn(&Member) -> bool) -> Vec<PlacementCandidate> {
        let members = self.extents.get(&extent).into_iter().flatten();
        let kept = members.filter(|m| m.leased.state.is_kept() && which(m)).map(|m| m.leased.donor);
        let coming = self.additions.iter().filter(|j| j.extent == extent).map(|j| j.donor);
        kept.chain(coming).filter_map(|d| Some(self.label(d, self.donors.get(&d)?))).collect()
    }

    /// Donors without a replica of the extent.
    pub fn allowed_for(&self, extent: ExtentId, now: Instant) -> Vec<PlacementCandidate> {
        let beside = self.neighbours(extent, |_| true);
        self.candidates(now).into_iter().filter(|c| beside.iter().all(|b| b.donor != c.donor)).collect()
    }

    /// An absence since then is counted from here.
    pub fn counted_from(&self, since: Instant) -> Instant {
        self.ran_since.map_or(since, |ran| ran.max(since))
    }

    pub fn give_back(&mut self, leased: &LeasedReplica) {
        if self.donors.get(&leased.donor).is_some_and(|d| d.up && d.incarnation == Some(leased.incarnation)) {
            self.actions.push(Action::Return(leased.donor, vec![leased.lease]));
        }
    }

    /// The slabs held on a donor, by the book.
    pub fn held(&self, donor: DonorId) -> u32 {
        let stock = self.donors.get(&donor).map_or(0, |d| d.stock.len());
        let mine = |m: &&Member| m.leased.donor == donor && m.leased.state.is_kept();
        (stock + self.extents.values().flatten().filter(mine).count()) as u32
    }
}
