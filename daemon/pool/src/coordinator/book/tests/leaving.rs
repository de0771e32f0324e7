//! Replicas that are to leave their donor: when they may go, and what becomes of those that could
//! not in time.

use super::*;

#[test]
fn recalled_slabs_go_back_when_their_pages_are_elsewhere_and_are_lost_when_their_donor_has_taken_them() {
    let mut world = World::new(3, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extent = *world.extents.keys().next().unwrap();
    let slabs: Vec<SlabId> = world.lent[0].keys().copied().collect();
    world.book.recalled(DonorId(0), &slabs, world.now + Duration::from_secs(60));
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.live(extent), 2, "given up though nobody else has it");
    world.connect(2);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.live(extent), 2, "let go before the new replica was whole");
    assert!(!world.lent[0].is_empty());
    world.fill_and_settle();
    assert_eq!((world.live(extent), world.lent[0].len()), (2, 0));

    let slabs: Vec<SlabId> = world.lent[1].keys().copied().collect();
    world.disconnect(0);
    world.book.recalled(DonorId(1), &slabs, world.now + Duration::from_secs(1));
    world.now += Duration::from_secs(1);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.live(extent), 2);
    world.book.renewed(DonorId(1), &[], 8, world.now, world.now);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.live(extent), 1);
}

/// A drain that could not go on was called healthy.
#[test]
fn a_drain_for_which_nobody_has_room_is_stuck_until_somebody_has() {
    let mut world = World::new(3, 2, 1);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    assert_eq!(world.book.stuck(world.now), 0);
    let slabs: Vec<SlabId> = world.lent[0].keys().copied().collect();
    world.book.recalled(DonorId(0), &slabs, world.now + Duration::from_secs(60));
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!((world.book.moving(), world.book.stuck(world.now)), (1, 1));
    world.connect(2);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!((world.book.moving(), world.book.stuck(world.now)), (1, 0), "it is being copied");
    world.fill_and_settle();
    assert_eq!((world.book.moving(), world.book.stuck(world.now)), (0, 0));
}

/// What was free in the extents there were was all that could be written, however much room the
/// other donor had.
#[test]
fn while_a_donor_is_drained_and_too_few_others_are_there_new_extents_lie_on_those() {
    for (donors, replicas, drained) in [(2, 2, 1), (3, 3, 2), (3, 2, 2)] {
        let mut world = World::new(donors, replicas, 64);
        (0..donors).for_each(|d| world.connect(d));
        world.balance(nothing_free());
        (0..8 * donors).for_each(|n| world.answer(n % donors));
        for d in 0..drained {
            let slabs: Vec<SlabId> = world.lent[d].keys().copied().collect();
            world.book.recalled(World::id(d), &slabs, world.now + Duration::from_secs(60));
        }
        let before: Vec<ExtentId> = world.extents.keys().copied().collect();
        world.balance(Headroom { wanted: 1, ..nothing_free() });
        (0..8 * donors).for_each(|n| world.answer(n % donors));
        let new = world.extents.iter().filter(|(extent, _)| !before.contains(extent));
        let there: BTreeSet<DonorId> = (drained..donors).map(World::id).collect();
        let on: Vec<BTreeSet<DonorId>> = new.map(|(_, leased)| leased.iter().map(|p| p.donor).collect()).collect();
        assert!(!on.is_empty() && on.iter().all(|on| *on == there), "{:?}", world.extents);

        // It lends again: they get all their replicas.
        world.now += Duration::from_secs(61);
        (0..donors).for_each(|d| world.renew(d));
        world.fill_and_settle();
        world.fill_and_settle();
        assert!(world.extents.keys().all(|e| world.live(*e) >= replicas), "{:?}", world.extents);
        assert!(!world.book.degrades());
    }
}

#[test]
fn a_drain_that_was_ended_loses_nothing_at_its_deadline() {
    // Nobody is told that a drain has ended. What could not be moved meanwhile was taken for lost
    // at the deadline, though its donor went on lending it: with one replica that was the end of
    // its pages.
    let mut world = World::new(1, 1, 1);
    world.connect(0);
    world.settle(&nothing_free());
    let extent = *world.extents.keys().next().unwrap();
    let slabs: Vec<SlabId> = world.lent[0].keys().copied().collect();
    world.book.recalled(DonorId(0), &slabs, world.now + Duration::from_secs(600));
    world.now += Duration::from_secs(601);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.live(extent), 1);
    assert_eq!(world.book.moving(), 1);
    // What it said before the deadline, and was heard only now, says nothing.
    world.book.renewed(DonorId(0), &slabs, 0, world.now - Duration::from_secs(2), world.now);
    assert_eq!(world.book.moving(), 1);
    world.book.renewed(DonorId(0), &slabs, 0, world.now, world.now);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!((world.live(extent), world.book.moving()), (1, 0));
}

/// Three donors that have extents, one of which is to be emptied.
fn one_of_three_is_removed() -> (World, DonorId) {
    let mut world = World::new(3, 2, 8);
    (0..3).for_each(|d| world.connect(d));
    for _ in 0..3 {
        world.balance(nothing_free());
        (0..3).for_each(|d| world.answer(d));
    }
    let victim = world.extents.values().next().unwrap()[0].donor;
    world.book.remove(victim);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    (world, victim)
}

/// An extent whose replica in a place is to leave, and the donor of the one that joins in its
/// stead.
fn moving() -> (World, ExtentId, usize, usize) {
    let (world, victim) = one_of_three_is_removed();
    let moving = world.extents.iter().find(|(_, replicas)| replicas.iter().any(|p| p.state == ReplicaState::Syncing));
    let (extent, replicas) = moving.map(|(e, replicas)| (*e, replicas.clone())).unwrap();
    let leaves = replicas.iter().position(|p| p.donor == victim).unwrap();
    let third = replicas.iter().find(|p| p.state == ReplicaState::Syncing).unwrap().donor;
    (world, extent, leaves, third.0.into())
}

#[test]
fn a_replica_is_not_let_go_while_those_that_are_to_stay_are_on_donors_out_of_reach() {
    let (mut world, extent, leaves, third) = moving();
    world.fill_all();
    world.now += Duration::from_millis(900);
    // From now on the new one has been live for long enough, and it takes a moment until it counts
    // as stale.
    world.disconnect(third);
    world.now += Duration::from_millis(200);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(world.states(extent)[leaves], ReplicaState::Live, "it was let go for one that nobody can reach");
    world.connect(third);
    world.fill_and_settle();
    assert_eq!(world.live(extent), 2);
}

#[test]
fn a_replica_is_not_let_go_before_the_new_ones_donor_has_said_that_it_holds_the_slab() {
    // Its lease had run out while the thread that renews it was held up, and nobody had noticed.
    let (mut world, extent, leaves, third) = moving();
    world.deaf[third] = true;
    world.fill_and_settle();
    assert_eq!(
        world.states(extent)[leaves],
        ReplicaState::Live,
        "it was let go for one whose lease nobody has confirmed"
    );
    world.deaf[third] = false;
    world.fill_and_settle();
    assert_eq!((world.states(extent)[leaves], world.live(extent)), (ReplicaState::Unused, 2));
}

#[test]
fn a_donor_that_is_removed_is_emptied_first() {
    let (mut world, victim) = one_of_three_is_removed();
    assert!(world.removed.is_empty());
    world.fill_and_settle();
    assert_eq!(world.removed, [victim]);
    assert_eq!(world.lent[victim.0 as usize].len(), 0);
    assert!(world.extents.keys().all(|e| world.live(*e) == 2));
}

#[test]
fn a_donor_that_was_added_takes_its_share_of_replicas() {
    let mut world = World::new(3, 2, 12);
    world.book.inventory.rules.rebalance = true;
    (0..2).for_each(|d| world.connect(d));
    for _ in 0..8 {
        let free = world.extents.len() as u64;
        world.settle(&Headroom { free: if free < 8 { 0 } else { 2 * SLOTS }, ..nothing_free() });
    }
    let extents = world.extents.len();
    assert!(extents >= 8, "{extents}");
    world.connect(2);
    for _ in 0..30 {
        (0..3).for_each(|d| world.renew(d));
        world.settle(&Headroom { free: 2 * SLOTS, ..nothing_free() });
        world.fill_all();
        world.now += Duration::from_secs(1);
    }
    let held: Vec<usize> = world.lent.iter().map(BTreeMap::len).collect();
    assert!(held.iter().max().unwrap() - held.iter().min().unwrap() <= 4, "{held:?}");
    assert!(world.extents.keys().all(|e| world.live(*e) == 2));
}

#[test]
fn what_a_removed_donor_had_still_to_say_brings_it_not_back() {
    // Its thread was just connecting when it was removed. Slabs were asked for there from then on,
    // nobody answered, and extents waited for theirs without end.
    let (mut world, victim) = one_of_three_is_removed();
    world.fill_and_settle();
    assert_eq!(world.removed, [victim]);
    let at = usize::from(victim.0);
    world.connect(at);
    let others: Vec<usize> = (0..3).filter(|d| *d != at).collect();
    world.disconnect(others[0]);
    world.now += Duration::from_secs(60);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!((world.lent[at].len(), &world.removed[..]), (0, &[victim][..]), "it is used, or removed again");
    world.book.welcome_back(victim);
    world.connect(at);
    world.fill_and_settle();
    assert!(world.extents.keys().all(|e| world.live(*e) == 2));
}

#[test]
fn a_donor_that_is_removed_is_emptied_though_it_wanted_its_slabs_back_and_wants_them_no_longer() {
    // The deadline took the place of the mark that they are to leave for good, and when it was over
    // and the drain ended they stayed: the removal never ended.
    let (mut world, victim) = one_of_three_is_removed();
    let slabs: Vec<SlabId> = world.lent[usize::from(victim.0)].keys().copied().collect();
    world.book.recalled(victim, &slabs, world.now + Duration::from_secs(1));
    world.now += Duration::from_secs(2);
    world.book.renewed(victim, &slabs, 0, world.now, world.now);
    world.fill_and_settle();
    assert_eq!(world.removed, [victim]);
    assert!(world.extents.keys().all(|e| world.live(*e) == 2));
}

#[test]
fn a_replica_that_was_to_move_to_a_donor_that_is_removed_stays_where_it_is() {
    // It was marked to leave for the balance's sake. When the donor that was to have it was to be
    // removed, too few were to stay, nobody else could take one, and neither ended.
    let mut world = World::new(3, 2, 12);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extent = *world.extents.keys().next().unwrap();
    world.connect(2);
    let member = &mut world.book.inventory.extents.get_mut(&extent).unwrap()[0];
    member.draining = Some(crate::coordinator::book::member::Drain { deadline: None, moves: true });
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert!(world.extents[&extent].iter().any(|p| p.donor == DonorId(2)), "it is on its way");
    world.book.remove(DonorId(2));
    world.fill_and_settle();
    assert_eq!((&world.removed[..], world.book.moving()), (&[DonorId(2)][..], 0));
    assert_eq!(world.live(extent), 2);
}

#[test]
fn the_removal_of_a_donor_that_wants_its_slabs_back_forgets_not_until_when() {
    // The replica counted as one that lasts until it has gone elsewhere. With one replica the
    // backup only followed it from then on, and at the deadline what it had not got was gone.
    let mut world = World::new(3, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extent = *world.extents.keys().next().unwrap();
    let slabs: Vec<SlabId> = world.lent[0].keys().copied().collect();
    world.book.recalled(DonorId(0), &slabs, world.now + Duration::from_secs(8));
    assert_eq!(world.book.inventory.grade(extent), Grade::Degraded);
    world.book.remove(DonorId(0));
    assert_eq!(world.book.inventory.grade(extent), Grade::Degraded, "it is taken for whole");
}

#[test]
fn a_donor_that_is_wanted_again_still_wants_its_slabs_back() {
    // Its return made one forget that: nothing was moved, and at the deadline it was gone.
    let mut world = World::new(2, 1, 1);
    world.connect(0);
    world.settle(&nothing_free());
    let extent = *world.extents.keys().next().unwrap();
    let slabs: Vec<SlabId> = world.lent[0].keys().copied().collect();
    world.book.remove(DonorId(0));
    world.book.recalled(DonorId(0), &slabs, world.now + Duration::from_secs(8));
    world.book.welcome_back(DonorId(0));
    assert_eq!(world.book.moving(), 1);
    world.connect(1);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    world.fill_and_settle();
    assert_eq!((world.live(extent), world.lent[0].len(), world.book.moving()), (1, 0, 0));
    // What it does not want back stays.
    world.book.remove(DonorId(1));
    world.book.welcome_back(DonorId(1));
    assert_eq!(world.book.moving(), 0);
}

#[test]
fn a_replica_that_moves_for_the_balance_does_so_though_its_donor_no_longer_wants_it_back() {
    // It stayed then, and so did the one that was made to take its place.
    let mut world = World::new(3, 2, 12);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extent = *world.extents.keys().next().unwrap();
    world.connect(2);
    let member = &mut world.book.inventory.extents.get_mut(&extent).unwrap()[0];
    member.draining = Some(crate::coordinator::book::member::Drain { deadline: None, moves: true });
    let donor = member.leased.donor;
    let slabs: Vec<SlabId> = world.lent[donor.0 as usize].keys().copied().collect();
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert!(world.extents[&extent].iter().any(|p| p.donor == DonorId(2)), "it is on its way");
    world.book.recalled(donor, &slabs, world.now + Duration::from_secs(1));
    world.now += Duration::from_secs(1);
    // A drain that was ended.
    world.book.renewed(donor, &slabs, 0, world.now, world.now);
    assert_eq!(world.book.moving(), 1);
    world.fill_and_settle();
    assert_eq!((world.live(extent), world.extents[&extent].len(), world.book.moving()), (2, 3, 0));
    assert!(world.extents[&extent].iter().all(|p| p.donor != donor || !p.state.is_kept()));
}
