//! The book against donors that do what it asks, and a check of every action.

use super::*;
use annex_shared::ids::Rkey;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SLOTS: u64 = 64;
const LOST_AFTER: Duration = Duration::from_secs(5);

/// Donors that do what the book asks, and a check of every action against what was there before.
struct World {
    book: Book,
    now: Instant,
    replicas: usize,
    /// What each donor has lent: slab and key, by its own books.
    lent: Vec<BTreeMap<SlabId, u64>>,
    up: Vec<bool>,
    incarnation: Vec<u64>,
    asked: Vec<u32>,
    capacity: u32,
    next_key: u64,
    extents: BTreeMap<ExtentId, Vec<Placed>>,
    lost: BTreeSet<(ExtentId, u8)>,
}

impl World {
    fn new(donors: usize, replicas: usize, capacity: u32) -> World {
        let rules = Rules {
            replicas,
            lost_after: LOST_AFTER,
            idle_return: Duration::from_secs(10),
            max_extents: 100,
            slots_per_extent: SLOTS as u32,
        };
        World {
            book: Book::new(rules, 7),
            now: Instant::now(),
            replicas,
            lent: vec![BTreeMap::new(); donors],
            up: vec![false; donors],
            incarnation: vec![1; donors],
            asked: vec![0; donors],
            capacity,
            next_key: 0,
            extents: BTreeMap::new(),
            lost: BTreeSet::new(),
        }
    }

    fn id(donor: usize) -> DonorId {
        DonorId(donor as u16)
    }

    fn free(&self, donor: usize) -> u32 {
        self.capacity - self.lent[donor].len() as u32
    }

    fn connect(&mut self, donor: usize) {
        self.up[donor] = true;
        self.asked[donor] = 0;
        let held = self.lent[donor].iter().map(|(slab, key)| Lease { slab: *slab, rkey: Rkey(*key) }).collect();
        let incarnation = Incarnation(self.incarnation[donor]);
        let greeting = Greeting { incarnation, host: None, rack: None, held, free: self.free(donor) };
        self.book.up(Self::id(donor), greeting);
        self.act();
    }

    fn disconnect(&mut self, donor: usize) {
        self.up[donor] = false;
        self.book.down(Self::id(donor), self.now);
        self.act();
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
            self.lent[donor].insert(slab, self.next_key);
            let lease = Lease { slab, rkey: Rkey(self.next_key) };
            self.book.leased(Self::id(donor), vec![lease], self.now);
        }
        self.act();
    }

    fn balance(&mut self, room: Room) {
        self.book.tick(self.now);
        self.act();
        self.book.balance(&room, self.now);
        self.act();
    }

    fn settle(&mut self, room: &Room) {
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
            Action::Return(donor, leases) => {
                for lease in leases {
                    let used = |(e, n, p): (&ExtentId, u8, &Placed)| {
                        p.donor == donor && p.lease == lease && !self.lost.contains(&(*e, n))
                    };
                    let mut all = self.extents.iter().flat_map(|(e, r)| (0..).zip(r).map(move |(n, p)| (e, n, p)));
                    assert!(!all.any(used), "a live replica's slab was given back");
                    if self.up[donor.0 as usize] && self.lent[donor.0 as usize].get(&lease.slab) == Some(&lease.rkey.0)
                    {
                        self.lent[donor.0 as usize].remove(&lease.slab);
                    }
                }
            }
            Action::Publish(extent, replicas) => {
                let donors: BTreeSet<DonorId> = replicas.iter().map(|p| p.donor).collect();
                assert_eq!(donors.len(), self.replicas, "replicas share a donor, or some are missing");
                for placed in &replicas {
                    let held = self.lent[placed.donor.0 as usize].get(&placed.lease.slab);
                    assert_eq!(held, Some(&placed.lease.rkey.0), "an extent on a slab that is not ours");
                }
                self.lost.retain(|(e, _)| *e != extent);
                assert!(self.extents.insert(extent, replicas).is_none(), "{extent} was there already");
            }
            Action::Lose { extent, replica, .. } => {
                assert!(self.lost.insert((extent, replica)), "a replica was lost twice");
            }
            Action::Retire(extent) => {
                self.extents.remove(&extent);
                self.lost.retain(|(e, _)| *e != extent);
                self.book.retired(extent);
            }
            Action::Degrade(_) | Action::Abandon(_) => {}
        }
    }

    fn live(&self, extent: ExtentId) -> usize {
        let replicas = &self.extents[&extent];
        (0..replicas.len() as u8).filter(|n| !self.lost.contains(&(extent, *n))).count()
    }
}

fn nothing_free() -> Room {
    Room { free: 0, wanted: 0, taken: 0, empty: Vec::new() }
}

#[test]
fn one_extent_is_taken_ahead_and_no_more() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.balance(nothing_free());
    (0..2).for_each(|d| world.answer(d));
    assert_eq!(world.extents.len(), 1);
    world.settle(&Room { free: SLOTS, ..nothing_free() });
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
fn a_short_absence_loses_nothing_a_long_one_everything_there() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extents: Vec<ExtentId> = world.extents.keys().copied().collect();
    world.disconnect(0);
    world.now += LOST_AFTER - Duration::from_millis(1);
    world.balance(Room { free: SLOTS, ..nothing_free() });
    world.connect(0);
    world.now += LOST_AFTER;
    world.balance(Room { free: SLOTS, ..nothing_free() });
    assert!(extents.iter().all(|e| world.live(*e) == 2));
    world.disconnect(0);
    // Attempts that fail don't put it off.
    for _ in 0..5 {
        world.now += LOST_AFTER / 5;
        world.disconnect(0);
    }
    world.balance(Room { free: SLOTS, ..nothing_free() });
    assert!(extents.iter().all(|e| world.live(*e) == 1));
    // Back with everything it held: given back, not believed.
    world.connect(0);
    assert!(extents.iter().all(|e| world.live(*e) == 1));
    assert_eq!(world.lent[0].len(), 0);
}

#[test]
fn an_old_lease_in_a_new_incarnation_is_not_believed() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    world.disconnect(1);
    world.incarnation[1] += 1;
    world.connect(1);
    assert!(world.extents.keys().all(|e| world.live(*e) == 1));
}

#[test]
fn a_slab_that_the_agent_does_not_list_is_lost() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&Room { free: SLOTS - 1, ..nothing_free() });
    let (extent, replicas) = world.extents.iter().next().map(|(e, r)| (*e, r.clone())).unwrap();
    let victim = replicas[1].donor;
    let held: Vec<SlabId> =
        world.lent[victim.0 as usize].keys().copied().filter(|s| *s != replicas[1].lease.slab).collect();
    world.book.renewed(victim, &held, 3);
    world.act();
    assert!(world.lost.contains(&(extent, 1)));
}

proptest! {
    #[test]
    fn whatever_happens_no_live_slab_is_given_back_and_no_loss_is_undone(
        replicas in 1usize..4,
        steps in prop::collection::vec((0u8..10, 0usize..4, any::<u16>()), 1..120),
    ) {
        let mut world = World::new(4, replicas, 6);
        for (what, donor, n) in steps {
            match what {
                0 | 1 if !world.up[donor] => world.connect(donor),
                2 => world.disconnect(donor),
                3 => {
                    world.incarnation[donor] += 1;
                    world.lent[donor].clear();
                    world.disconnect(donor);
                }
                4 => {
                    let extent = world.extents.keys().nth(usize::from(n) % world.extents.len().max(1)).copied();
                    if let Some(extent) = extent {
                        let replica = (usize::from(n) % replicas) as u8;
                        // A lane marks it in the table first, as the keeper does for the book's own.
                        if world.lost.insert((extent, replica)) {
                            world.book.replica_lost(extent, replica);
                            world.act();
                        }
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
                    world.balance(Room { free: 2 * SLOTS, empty, ..nothing_free() });
                }
                7 => world.balance(Room { wanted: u64::from(n) % 300, ..nothing_free() }),
                _ => world.answer(donor),
            }
            for (id, lent) in world.lent.iter().enumerate() {
                prop_assert!(lent.len() <= 6);
                prop_assert!(world.book.held(World::id(id)) <= 6 || !world.up[id]);
            }
        }
        // In quiet times everything comes to rest, and nothing is held that nobody knows of.
        (0..4).for_each(|d| if !world.up[d] { world.connect(d) });
        world.now += Duration::from_secs(20);
        world.settle(&Room { free: SLOTS, ..nothing_free() });
        for (id, lent) in world.lent.iter().enumerate() {
            prop_assert_eq!(world.book.held(World::id(id)) as usize, lent.len(), "donor {}", id);
        }
    }
}
