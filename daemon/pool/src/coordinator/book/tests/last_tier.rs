//! The spill file, which is the last of the donors: used when nothing else is left, and left when
//! something is.

use super::*;

const SPILL: usize = 2;

/// Two donors and the spill file.
fn world(replicas: usize, capacity: u32) -> World {
    let mut world = World::with_spill(3, replicas, capacity, true);
    world.capacity[SPILL] = 50;
    (0..3).for_each(|d| world.connect(d));
    world
}

/// Takes one extent, on donors.
fn one_extent(world: &mut World) -> ExtentId {
    world.balance(nothing_free());
    (0..3).for_each(|d| world.answer(d));
    assert_eq!(world.extents.len(), 1);
    ExtentId(0)
}

fn wanted() -> Headroom {
    Headroom { wanted: 1, ..nothing_free() }
}

fn spilled(world: &World, extent: ExtentId) -> Option<ReplicaState> {
    let in_file = |p: &&LeasedReplica| p.donor == World::id(SPILL) && p.state.is_kept();
    world.extents[&extent].iter().find(in_file).map(|p| p.state)
}

#[test]
fn while_donors_have_room_nothing_is_put_into_the_file() {
    let mut world = world(2, 50);
    for _ in 0..10 {
        world.balance(wanted());
        (0..6).for_each(|d| world.answer(d % 3));
    }
    assert!(world.extents.len() > 10);
    assert!(world.lent[SPILL].is_empty());
}

#[test]
fn when_no_donor_has_room_the_file_takes_what_is_asked_for_and_nothing_ahead() {
    let mut world = world(2, 1);
    world.settle(&nothing_free());
    world.settle(&nothing_free());
    assert_eq!((world.extents.len(), world.lent[SPILL].len()), (1, 0), "an extent in the file that nobody asked for");
    assert!(world.book.is_dry() && world.book.spills());
    world.balance(wanted());
    (0..2).for_each(|_| world.answer(SPILL));
    assert_eq!((world.extents.len(), world.lent[SPILL].len()), (3, 2));
    assert_eq!(world.book.inventory.grade(ExtentId(1)), Grade::LastTier);
    // Its free pages count while there is nothing better.
    let enough = Headroom { spilled: 2 * SLOTS, ..wanted() };
    world.settle(&enough);
    assert_eq!(world.extents.len(), 3);
}

#[test]
fn with_too_few_donors_alive_the_file_stands_in_for_one_and_goes_when_it_is_back() {
    let mut world = world(2, 50);
    let extent = one_extent(&mut world);
    world.restart(0, false);
    world.now += LOST_AFTER;
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    world.fill_and_settle();
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Live));
    assert_eq!((world.live(extent), world.book.inventory.grade(extent)), (2, Grade::LastTier));
    world.connect(0);
    world.fill_and_settle();
    assert_eq!(spilled(&world, extent), None);
    assert_eq!((world.live(extent), world.lent[SPILL].len()), (2, 0));
    assert_eq!(world.book.inventory.grade(extent), Grade::Whole);
}

#[test]
fn a_new_extent_is_on_the_donors_there_are_and_in_the_file() {
    let mut world = world(2, 50);
    world.disconnect(1);
    world.settle(&wanted());
    let donors: Vec<Vec<DonorId>> = world.extents.values().map(|r| r.iter().map(|p| p.donor).collect()).collect();
    assert!(!donors.is_empty() && donors.iter().all(|d| *d == [World::id(0), World::id(SPILL)]), "{donors:?}");
}

#[test]
fn an_empty_extent_in_the_file_goes_back_as_soon_as_donors_have_room() {
    let mut world = world(2, 0);
    world.settle(&wanted());
    assert!(!world.lent[SPILL].is_empty());
    world.capacity = vec![50; 3];
    (0..2).for_each(|d| world.disconnect(d));
    (0..2).for_each(|d| world.connect(d));
    for _ in 0..3 {
        let empty =
            world.extents.keys().copied().filter(|e| world.book.inventory.grade(*e) == Grade::LastTier).collect();
        world.settle(&Headroom { empty, ..wanted() });
    }
    assert!(world.lent[SPILL].is_empty());
}

#[test]
fn with_one_replica_every_extent_with_pages_gets_a_backup_that_no_write_waits_for() {
    let mut world = world(1, 50);
    let extent = one_extent(&mut world);
    let empty = Headroom { free: SLOTS, empty: vec![extent], ..nothing_free() };
    world.now += Duration::from_secs(2);
    world.settle(&empty);
    assert_eq!(spilled(&world, extent), None, "a backup of nothing");
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Backup));
    assert_eq!(world.book.inventory.grade(extent), Grade::Whole);
    world.fill_and_settle();
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Backup));
}

fn with_backup() -> (World, ExtentId, usize) {
    let mut world = world(1, 50);
    let extent = one_extent(&mut world);
    world.now += Duration::from_secs(2);
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Backup));
    let donor = world.extents[&extent][0].donor.0.into();
    (world, extent, donor)
}

#[test]
fn a_backup_takes_the_writes_while_the_donor_is_away_and_follows_again_afterwards() {
    let (mut world, extent, donor) = with_backup();
    world.disconnect(donor);
    world.now += AWAY_AFTER;
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Syncing));
    world.fill_all();
    assert_eq!(
        (spilled(&world, extent), world.book.inventory.grade(extent)),
        (Some(ReplicaState::Live), Grade::LastTier)
    );
    world.connect(donor);
    world.fill_all();
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Live), "it follows one that not every write knows of");
    world.fill_and_settle();
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Backup));
}

#[test]
fn a_backup_of_a_lost_replica_is_where_the_next_one_comes_from() {
    let (mut world, extent, donor) = with_backup();
    world.restart(donor, false);
    world.now += LOST_AFTER;
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    world.fill_and_settle();
    let live: Vec<usize> =
        world.extents[&extent].iter().filter(|p| p.state == ReplicaState::Live).map(|p| p.donor.0.into()).collect();
    assert_eq!(live, [1 - donor]);
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Backup));
}

#[test]
fn a_recalled_slab_whose_pages_no_other_donor_takes_is_returned_when_the_backup_has_them_all() {
    let (mut world, extent, donor) = with_backup();
    world.capacity[1 - donor] = world.lent[1 - donor].len() as u32;
    world.disconnect(1 - donor);
    world.connect(1 - donor);
    let slabs: Vec<SlabId> = world.lent[donor].keys().copied().collect();
    world.book.recalled(World::id(donor), &slabs, world.now + Duration::from_secs(60));
    world.settle(&Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Syncing));
    assert_eq!(world.live(extent), 1, "returned before the backup had everything");
    world.fill_and_settle();
    assert_eq!((spilled(&world, extent), world.lent[donor].len()), (Some(ReplicaState::Live), 0));
}

#[test]
fn a_backup_takes_the_writes_from_a_recall_until_the_next_donor_does() {
    // It followed as soon as a donor was asked. That one was in no hurry, and what was written last
    // went with the slab.
    let (mut world, extent, donor) = with_backup();
    let room = Headroom { free: SLOTS, ..nothing_free() };
    let slabs: Vec<SlabId> = world.lent[donor].keys().copied().collect();
    world.book.recalled(World::id(donor), &slabs, world.now + Duration::from_secs(60));
    for _ in 0..3 {
        world.balance(room.clone());
        world.now += Duration::from_secs(1);
    }
    assert!(world.asked[1 - donor] > 0, "nobody was asked");
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Syncing));
    world.answer(1 - donor);
    world.balance(room);
    assert!(world.states(extent).contains(&ReplicaState::Syncing), "the next donor takes no writes");
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Backup));
    world.fill_and_settle();
    assert_eq!((spilled(&world, extent), world.lent[donor].len()), (Some(ReplicaState::Backup), 0));
}

#[test]
fn a_backup_that_found_nobody_to_follow_tries_again() {
    let (mut world, extent, donor) = with_backup();
    world.disconnect(donor);
    world.now += AWAY_AFTER;
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    world.connect(donor);
    world.fill_all();
    world.now += Duration::from_secs(1);
    world.lags = true;
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Syncing));
    world.lags = false;
    world.fill_and_settle();
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Backup));
}

#[test]
fn a_disk_that_is_out_of_reach_is_waited_for_longer_than_a_donor() {
    let mut world = world(2, 0);
    world.settle(&wanted());
    let extent = *world.extents.keys().next().unwrap();
    world.disconnect(SPILL);
    for _ in 0..10 {
        world.now += LOST_AFTER;
        world.balance(nothing_free());
    }
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Stale));
    world.connect(SPILL);
    world.fill_all();
    assert_eq!(spilled(&world, extent), Some(ReplicaState::Live));
}
