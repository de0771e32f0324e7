//! The book against donors that do what it asks, and a check of every action.

mod absence;
mod last_tier;
mod leaving;

use super::*;
use crate::metadata::replica::REPLICA_ENTRIES;
use annex_shared::ids::{Incarnation, Rkey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SLOTS: u64 = 64;
const LOST_AFTER: Duration = Duration::from_secs(5);
const LAST_COPY_LOST_AFTER: Duration = Duration::from_secs(60);
const AWAY_AFTER: Duration = Duration::from_millis(300);

/// Donors that do what the book asks, and a check of every action against what was there before.
struct World {
    book: Book,
    now: Instant,
    replicas: usize,
    /// What each donor has lent: slab and key, by its own books.
    lent: Vec<BTreeMap<SlabId, u64>>,
    up: Vec<bool>,
    incarnation: Vec<u64>,
    resumed: Vec<Option<u64>>,
    asked: Vec<u32>,
    /// Agents that answer nothing, and donors that the book has called silent.
    deaf: Vec<bool>,
    silent: Vec<bool>,
    capacity: Vec<u32>,
    removed: Vec<DonorId>,
    /// The book has not heard yet that nobody is live for a backup to follow.
    lags: bool,
    next_key: u64,
    /// By index.
    extents: BTreeMap<ExtentId, Vec<LeasedReplica>>,
}

impl World {
    fn new(donors: usize, replicas: usize, capacity: u32) -> World {
        Self::with_spill(donors, replicas, capacity, false)
    }

    /// The last of the donors is the spill file.
    fn with_spill(donors: usize, replicas: usize, capacity: u32, spills: bool) -> World {
        let rules = Rules {
            replicas,
            away_after: AWAY_AFTER,
            lost_after: LOST_AFTER,
            last_copy_lost_after: LAST_COPY_LOST_AFTER,
            rebalance: false,
            idle_return: Duration::from_secs(10),
            max_extents: 100,
            slots_per_extent: SLOTS as u32,
            spill: spills.then(|| Self::id(donors - 1)),
        };
        World {
            book: Book::new(rules, 7),
            now: Instant::now(),
            replicas,
            lent: vec![BTreeMap::new(); donors],
            up: vec![false; donors],
            incarnation: vec![1; donors],
            resumed: vec![None; donors],
            asked: vec![0; donors],
            deaf: vec![false; donors],
            silent: vec![false; donors],
            capacity: vec![capacity; donors],
            removed: Vec::new(),
            lags: false,
            next_key: 0,
            extents: BTreeMap::new(),
        }
    }

    fn id(donor: usize) -> DonorId {
        DonorId(donor as u16)
    }

    fn free(&self, donor: usize) -> u32 {
        self.capacity[donor] - self.lent[donor].len() as u32
    }

    fn connect(&mut self, donor: usize) {
        self.up[donor] = true;
        self.asked[donor] = 0;
        let held = self.lent[donor].iter().map(|(slab, key)| Lease { slab: *slab, rkey: Rkey(*key) }).collect();
        let incarnation = Incarnation(self.incarnation[donor]);
        let resumed = self.resumed[donor].map(Incarnation);
        let said = DonorUp { incarnation, resumed, host: None, rack: None, held, free: self.free(donor) };
        self.book.up(Self::id(donor), said, self.now);
        self.act();
    }

    fn disconnect(&mut self, donor: usize) {
        self.up[donor] = false;
        self.book.down(Self::id(donor), self.now);
        self.act();
    }

    /// The donor tells what it lends, if it answers.
    fn renew(&mut self, donor: usize) {
        if self.up[donor] {
            let held: Vec<SlabId> = self.lent[donor].keys().copied().collect();
            self.book.renewed(Self::id(donor), &held, self.free(donor), self.now, self.now);
        }
    }

    /// The donor answers one lease request.
    fn answer(&mut self, donor: usize) {
        if self.asked[donor] == 0 || !self.up[donor] {
            return;
        }
        self.asked[donor] -= 1;
        if self.free(donor) == 0 {
            self.book.refused(Self::id(donor), self.now);
        } else {
            let slab = (0..).map(SlabId).find(|s| !self.lent[donor].contains_key(s)).unwrap();
            self.next_key += 1;
            // In both halves, so that the lease has a number.
            let rkey = Rkey(self.next_key << 32 | self.next_key);
            self.lent[donor].insert(slab, rkey.0);
            let lease = Lease { slab, rkey };
            self.book.leased(Self::id(donor), vec![lease], self.now);
        }
        self.act();
    }

    /// The agent starts anew; `with_bytes`: its slabs come through, under new keys.
    fn restart(&mut self, donor: usize, with_bytes: bool) {
        self.resumed[donor] = with_bytes.then_some(self.incarnation[donor]);
        self.incarnation[donor] += 1;
        for key in self.lent[donor].values_mut() {
            self.next_key += 1;
            *key = Rkey::of(Rkey(*key).lease(), self.next_key as u32).0;
        }
        if !with_bytes {
            self.lent[donor].clear();
        }
        self.disconnect(donor);
    }

    fn fill_and_settle(&mut self) {
        for _ in 0..8 {
            self.fill_all();
            self.now += Duration::from_secs(1);
            self.settle(&Headroom { free: SLOTS, ..nothing_free() });
        }
    }

    /// What is syncing has got all it lacks.
    fn fill_all(&mut self) {
        let all: Vec<(ExtentId, u8)> =
            self.extents.iter().flat_map(|(e, r)| (0..r.len() as u8).map(move |n| (*e, n))).collect();
        for (extent, index) in all {
            if self.state(extent, index) == ReplicaState::Syncing {
                self.set(extent, index, ReplicaState::Live);
                self.book.synced(extent, index, self.now);
                self.act();
            }
        }
    }

    fn state(&self, extent: ExtentId, index: u8) -> ReplicaState {
        self.extents[&extent][usize::from(index)].state
    }

    fn set(&mut self, extent: ExtentId, index: u8, state: ReplicaState) {
        self.extents.get_mut(&extent).unwrap()[usize::from(index)].state = state;
    }

    fn states(&self, extent: ExtentId) -> Vec<ReplicaState> {
        self.extents[&extent].iter().map(|p| p.state).collect()
    }

    fn balance(&mut self, room: Headroom) {
        self.book.tick(self.now);
        self.act();
        self.book.balance(&room, self.now);
        self.act();
    }

    fn settle(&mut self, room: &Headroom) {
        for _ in 0..50 {
            self.balance(room.clone());
            (0..self.up.len()).for_each(|d| self.answer(d));
        }
    }

    fn act(&mut self) {
        loop {
            let actions = self.book.actions();
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|a| self.carry_out(a));
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Lease(donor) => {
                assert!(self.up[donor.0 as usize], "asked a donor that is down");
                self.asked[donor.0 as usize] += 1;
            }
            Action::Ask(donor) if self.deaf[donor.0 as usize] => {}
            Action::Ask(donor) => self.renew(donor.0 as usize),
            Action::Silent(donor, is_silent) => self.silent[donor.0 as usize] = is_silent,
            Action::Return(donor, leases) => {
                for lease in leases {
                    let used = |p: &LeasedReplica| p.donor == donor && p.lease == lease && p.state.is_kept();
                    assert!(!self.extents.values().flatten().any(used), "a slab in use was given back");
                    if self.up[donor.0 as usize] && self.lent[donor.0 as usize].get(&lease.slab) == Some(&lease.rkey.0)
                    {
                        self.lent[donor.0 as usize].remove(&lease.slab);
                    }
                }
            }
            Action::Publish(extent, replicas) => {
                let donors: BTreeSet<DonorId> = replicas.iter().map(|p| p.donor).collect();
                let spilled = self.book.inventory.rules.spill.is_some_and(|spill| donors.contains(&spill));
                assert_eq!(donors.len(), replicas.len(), "replicas share a donor");
                let is_full = donors.len() == self.replicas || spilled || self.book.degrades();
                assert!(is_full, "some replicas are missing");
                replicas.iter().for_each(|p| self.check_slab(p));
                assert!(self.extents.insert(extent, replicas).is_none(), "{extent} was there already");
            }
            Action::MarkLost { extent, index, .. } => {
                assert!(self.state(extent, index).is_kept(), "a replica was lost twice");
                self.set(extent, index, ReplicaState::Lost);
            }
            Action::MarkStale { extent, index, .. } => {
                assert!(self.state(extent, index).is_there(), "a replica that was not written was left");
                self.set(extent, index, ReplicaState::Stale);
            }
            Action::Add { extent, index, leased } => {
                self.check_slab(&leased);
                let replicas = self.extents.get_mut(&extent).unwrap();
                match replicas.get_mut(usize::from(index)) {
                    Some(old) => {
                        assert!(!old.state.is_kept(), "an entry in use was given to another replica");
                        *old = leased;
                    }
                    None => replicas.push(leased),
                }
                let kept: Vec<DonorId> = replicas.iter().filter(|p| p.state.is_kept()).map(|p| p.donor).collect();
                let donors: BTreeSet<&DonorId> = kept.iter().collect();
                assert!(
                    replicas.len() <= REPLICA_ENTRIES && donors.len() == kept.len(),
                    "two replicas on one donor: {kept:?}"
                );
            }
            Action::Resync { extent, index, leased } => {
                // A backup whose disk is not heard just now may be turned under a key that is over:
                // its next hello tells.
                if self.up[leased.donor.0 as usize] {
                    self.check_slab(&leased);
                }
                assert!(self.state(extent, index).is_kept(), "a lost replica came back");
                let is_alone = self.lags && leased.state == ReplicaState::Backup;
                let state = if is_alone { ReplicaState::Syncing } else { leased.state };
                self.extents.get_mut(&extent).unwrap()[usize::from(index)] = LeasedReplica { state, ..leased };
                self.book.resync_began(extent, index, state, self.now);
            }
            Action::Promote { extent, index } => {
                assert_eq!(self.live(extent), 0, "a replica that lacks something was made live beside a whole one");
                self.set(extent, index, ReplicaState::Live);
                self.book.synced(extent, index, self.now);
            }
            Action::Remove { extent, index } => {
                self.set(extent, index, ReplicaState::Unused);
                assert!(self.live(extent) >= self.replicas, "a replica was let go before there were enough");
                self.book.replica_removed(extent, index, true, self.now);
            }
            Action::Retire(extent) => {
                self.extents.remove(&extent);
                self.book.retired(extent);
            }
            Action::DonorRemoved(donor) => self.removed.push(donor),
            Action::Grade(..) | Action::Abandon(_) => {}
        }
    }

    /// The slab is lent to us under this key, and nothing else is on it.
    fn check_slab(&self, leased: &LeasedReplica) {
        let held = self.lent[leased.donor.0 as usize].get(&leased.lease.slab);
        assert_eq!(held, Some(&leased.lease.rkey.0), "a replica on a slab that is not ours");
        let same =
            |p: &&LeasedReplica| p.state.is_kept() && p.donor == leased.donor && p.lease.slab == leased.lease.slab;
        assert!(self.extents.values().flatten().filter(same).count() <= 1, "a slab was used twice");
    }

    fn live(&self, extent: ExtentId) -> usize {
        self.extents[&extent].iter().filter(|p| p.state == ReplicaState::Live).count()
    }
}

fn nothing_free() -> Headroom {
    Headroom::default()
}

#[test]
fn one_extent_is_taken_ahead_and_no_more() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.balance(nothing_free());
    (0..2).for_each(|d| world.answer(d));
    assert_eq!(world.extents.len(), 1);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.extents.len(), 1);
    assert!(!world.book.is_dry());
}

#[test]
fn a_donor_without_room_ends_the_plan_and_the_other_slab_is_not_kept_for_ever() {
    let mut world = World::new(2, 2, 4);
    (0..2).for_each(|d| world.connect(d));
    // The second donor lent all it has to somebody else since its welcome.
    world.lent[1].extend((0..4).map(|i| (SlabId(100 + i), 999)));
    world.settle(&nothing_free());
    assert!(world.extents.is_empty() && world.book.is_dry());
    assert_eq!(world.lent[0].len(), 1);
    world.now += Duration::from_secs(11);
    world.book.refused(DonorId(1), world.now);
    world.balance(nothing_free());
    assert_eq!(world.lent[0].len(), 0);
}

#[test]
fn an_old_lease_in_a_new_incarnation_is_not_believed() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    world.restart(1, false);
    world.connect(1);
    assert!(world.extents.keys().all(|e| world.live(*e) == 1));
}

#[test]
fn a_restart_that_kept_the_bytes_is_no_loss() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    world.restart(1, true);
    world.connect(1);
    let syncing = |w: &World, e| w.states(e).contains(&ReplicaState::Syncing);
    assert!(!world.extents.is_empty() && world.extents.keys().all(|e| syncing(&world, *e)));
    world.fill_all();
    assert!(world.extents.keys().all(|e| world.live(*e) == 2));
    assert_eq!(world.lent[1].len(), world.extents.len(), "slabs that nobody uses were not given back");
}

#[test]
fn a_restart_that_was_not_seen_in_between_is_a_loss() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    // Whose bytes the second one kept is not what we knew: between the two, anything may have
    // happened to them.
    world.restart(1, true);
    world.restart(1, true);
    world.connect(1);
    assert!(world.extents.keys().all(|e| world.live(*e) == 1));
}

#[test]
fn a_lost_replica_is_made_anew_on_another_donor() {
    let mut world = World::new(3, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&Headroom { free: SLOTS - 1, ..nothing_free() });
    world.connect(2);
    let extent = *world.extents.keys().next().unwrap();
    world.restart(0, false);
    world.now += LOST_AFTER;
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    world.fill_all();
    assert_eq!(world.live(extent), 2);
    assert!(world.extents[&extent].iter().any(|p| p.donor == DonorId(2) && p.state == ReplicaState::Live));
}

#[test]
fn a_slab_that_is_lent_anew_is_not_the_one_that_it_was() {
    // The lease had run out and the donor lent the same slab again, clean. When its agent was
    // restarted with its bytes, they were taken for the replica's.
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let (extent, replicas) = world.extents.iter().next().map(|(e, r)| (*e, r.clone())).unwrap();
    let donor = usize::from(replicas[0].donor.0);
    let slab = replicas[0].lease.slab;
    world.lent[donor].insert(slab, 999);
    world.book.leased(replicas[0].donor, vec![Lease { slab, rkey: Rkey(999) }], world.now);
    world.act();
    assert_eq!(world.state(extent, 0), ReplicaState::Lost);
    world.restart(donor, true);
    world.connect(donor);
    assert_eq!(world.state(extent, 0), ReplicaState::Lost);
}

#[test]
fn a_slab_that_was_lent_anew_before_a_kill_is_not_the_one_that_it_was_after_its_agents_restart() {
    // The annexd that asked for it was killed before it heard of it, so the table named the slab
    // under the key of the lease before. When the agent was restarted too, with its bytes, the
    // empty slab was taken for the replica.
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let (extent, replicas) = world.extents.iter().next().map(|(e, r)| (*e, r.clone())).unwrap();
    let (donor, slab) = (usize::from(replicas[0].donor.0), replicas[0].lease.slab);
    world.lent[donor].insert(slab, 999 << 32 | 999);
    let mut next = Book::new(world.book.inventory.rules, 8);
    world.extents.iter().for_each(|(e, replicas)| next.adopt(*e, replicas.clone(), world.now));
    world.book = next;
    world.restart(donor, true);
    world.connect(donor);
    assert_eq!(world.state(extent, 0), ReplicaState::Lost);
    assert!(!world.lent[donor].contains_key(&slab), "it was not given back");
    world.connect(1 - donor);
    assert!(world.extents[&extent][1].state.is_kept(), "the other one went with it");
}

#[test]
fn what_only_joining_replicas_hold_is_made_live_when_nobody_else_can_come_back() {
    let mut world = World::new(2, 1, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let (extent, donor) = world.extents.iter().next().map(|(e, r)| (*e, r[0].donor)).unwrap();
    world.restart(donor.0.into(), true);
    world.connect(donor.0.into());
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.live(extent), 0, "a syncing replica was trusted at once");
    world.now += Duration::from_secs(10);
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.live(extent), 1);
}

#[test]
fn a_slab_that_the_agent_does_not_list_is_lost() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&Headroom { free: SLOTS - 1, ..nothing_free() });
    let (extent, replicas) = world.extents.iter().next().map(|(e, r)| (*e, r.clone())).unwrap();
    let victim = replicas[1].donor;
    let held: Vec<SlabId> =
        world.lent[victim.0 as usize].keys().copied().filter(|s| *s != replicas[1].lease.slab).collect();
    world.book.renewed(victim, &held, 3, world.now, world.now);
    world.act();
    assert_eq!(world.state(extent, 1), ReplicaState::Lost);
}

proptest! {
    #[test]
    fn whatever_happens_no_live_slab_is_given_back_and_no_loss_is_undone(
        replicas in 1usize..4,
        spills in any::<bool>(),
        steps in prop::collection::vec((0u8..14, 0usize..4, any::<u16>()), 1..120),
    ) {
        let mut world = World::with_spill(4, replicas, 6, spills);
        for (what, donor, n) in steps {
            match what {
                0 | 1 if !world.up[donor] => world.connect(donor),
                2 => world.disconnect(donor),
                3 => world.restart(donor, n % 2 == 0),
                4 => {
                    let extent = world.extents.keys().nth(usize::from(n) % world.extents.len().max(1)).copied();
                    if let Some(extent) = extent {
                        let index = (usize::from(n) % world.extents[&extent].len()) as u8;
                        let leased = world.extents[&extent][usize::from(index)];
                        // A lane marks it in the table first.
                        if leased.state.is_there() {
                            world.set(extent, index, ReplicaState::Stale);
                            world.book.replica_stale(extent, index, leased.donor, world.now);
                        }
                        world.act();
                    }
                }
                5 => {
                    let grace = Duration::from_millis(u64::from(n));
                    world.book.closing(World::id(donor), grace, world.now);
                    world.act();
                }
                6 => {
                    world.now += Duration::from_millis(u64::from(n) / 4);
                    let empty = world.extents.keys().copied().filter(|e| e.0 % 3 == u32::from(n) % 3).collect();
                    world.balance(Headroom { free: 2 * SLOTS, empty, ..nothing_free() });
                }
                8 => world.fill_all(),
                10 if n % 4 == 0 => {
                    world.book.hung(World::id(donor), world.now);
                    world.act();
                }
                11 if n % 4 == 0 => world.book.stood_still(world.now),
                9 => {
                    let slabs: Vec<SlabId> = world.lent[donor].keys().copied().filter(|s| s.0 % 2 == u32::from(n) % 2).collect();
                    world.book.recalled(World::id(donor), &slabs, world.now + Duration::from_millis(u64::from(n)));
                    world.act();
                }
                7 => world.balance(Headroom { wanted: u64::from(n) % 300, ..nothing_free() }),
                _ => world.answer(donor),
            }
            for (id, lent) in world.lent.iter().enumerate() {
                prop_assert!(lent.len() <= 6);
                prop_assert!(world.book.held(World::id(id)) <= 6 || !world.up[id]);
            }
        }
        // In quiet times everything comes to rest, and nothing is held that nobody knows of.
        (0..4).for_each(|d| if !world.up[d] { world.connect(d) });
        for _ in 0..8 {
            world.now += Duration::from_secs(20);
            world.settle(&Headroom { free: SLOTS, ..nothing_free() });
            world.fill_all();
        }
        for (id, lent) in world.lent.iter().enumerate() {
            prop_assert_eq!(world.book.held(World::id(id)) as usize, lent.len(), "donor {}", id);
        }
    }
}
