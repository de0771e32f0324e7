//! Donors that are away for a while, for too long, or only as far as we could see.

use super::*;

#[test]
fn a_short_absence_loses_nothing_a_long_one_everything_there() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extents: Vec<ExtentId> = world.extents.keys().copied().collect();
    world.disconnect(0);
    world.now += LOST_AFTER - Duration::from_millis(1);
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    world.connect(0);
    world.now += LOST_AFTER;
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    // Away for a while: what it missed is copied, and all is as it was.
    assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Syncing)));
    world.fill_all();
    assert!(extents.iter().all(|e| world.live(*e) == 2));
    world.disconnect(0);
    // Attempts that fail don't put it off.
    for _ in 0..5 {
        world.now += LOST_AFTER / 5;
        world.disconnect(0);
    }
    world.balance(Headroom { free: SLOTS, ..nothing_free() });
    assert!(extents.iter().all(|e| world.live(*e) == 1));
    // Back with everything it held: given back, not believed.
    world.connect(0);
    assert!(extents.iter().all(|e| world.live(*e) == 1));
    assert_eq!(world.lent[0].len(), 0);
}

#[test]
fn an_operation_without_an_answer_costs_no_replica_when_the_agent_answers() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extents: Vec<ExtentId> = world.extents.keys().copied().collect();
    // Both at once, long before the next renewal, and again and again: nobody else has what they
    // have.
    for _ in 0..4 {
        (0..2).for_each(|d| world.book.hung(World::id(d), world.now));
        world.act();
        assert!(extents.iter().all(|e| world.states(*e) == [ReplicaState::Stale; 2]));
        let waited = world.now;
        while extents.iter().any(|e| world.states(*e) != [ReplicaState::Syncing; 2]) {
            assert!(world.now < waited + Duration::from_secs(20), "{:?}", world.states(extents[0]));
            world.now += Duration::from_secs(1);
            world.balance(nothing_free());
        }
    }
    world.fill_all();
    assert!(extents.iter().all(|e| world.live(*e) == 2));
    // One answers, but what is read and written there does not: with the other one live it is given
    // up.
    for times in 1..=2 {
        world.book.hung(World::id(0), world.now);
        world.act();
        world.now += LOST_AFTER;
        world.balance(nothing_free());
        assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Lost)) == (times == 2));
    }
}

#[test]
fn a_donor_that_is_late_is_away_as_soon_as_its_agent_owes_an_answer() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extents: Vec<ExtentId> = world.extents.keys().copied().collect();
    // Its agent answers: it is only slow.
    world.book.late(World::id(0), world.now);
    world.act();
    world.now += AWAY_AFTER * 2;
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.live(*e) == 2) && !world.silent[0]);
    // It does not.
    world.deaf[0] = true;
    world.book.late(World::id(0), world.now);
    world.act();
    let asked = world.now;
    assert_eq!(world.book.due(), Some(asked + AWAY_AFTER));
    world.now = asked + AWAY_AFTER / 2;
    world.book.late(World::id(0), world.now);
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.live(*e) == 2) && !world.silent[0]);
    world.now = asked + AWAY_AFTER;
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.live(*e) == 1) && world.silent[0]);
    // It was not heard since, so it stays so, and the rest has strikes against nobody.
    world.now += AWAY_AFTER;
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Stale)));
    world.deaf[0] = false;
    world.renew(0);
    world.balance(nothing_free());
    assert!(!world.silent[0]);
    world.fill_all();
    assert!(extents.iter().all(|e| world.live(*e) == 2));
}

/// A replica that failed some writes waits for its next try for longer than `lost_after`. That its
/// donor is not heard for a moment meanwhile is no loss.
#[test]
fn a_replica_that_waits_for_its_next_try_is_not_absent_for_as_long() {
    for interruption in [|w: &mut World| w.book.hung(World::id(0), w.now), |w: &mut World| w.disconnect(0)] {
        let mut world = World::new(2, 2, 8);
        (0..2).for_each(|d| world.connect(d));
        world.settle(&nothing_free());
        let extents: Vec<ExtentId> = world.extents.keys().copied().collect();
        for times in 1..=5 {
            for extent in &extents {
                let index = (0..2).find(|p| world.extents[extent][usize::from(*p)].donor == World::id(0)).unwrap();
                world.set(*extent, index, ReplicaState::Stale);
                world.book.replica_stale(*extent, index, World::id(0), world.now);
            }
            let failed = world.now;
            while world.now < failed + LOST_AFTER + Duration::from_secs(1) {
                world.now += Duration::from_secs(1);
                (0..2).for_each(|d| world.renew(d));
                world.balance(nothing_free());
            }
            let is_tried = |e: &ExtentId| world.states(*e).contains(&ReplicaState::Syncing);
            assert!(extents.iter().all(|e| is_tried(e) == (times < 5)));
        }
        interruption(&mut world);
        world.act();
        world.balance(nothing_free());
        assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Stale)));
        // It is when the donor stays away.
        world.disconnect(0);
        world.now += LOST_AFTER;
        world.balance(nothing_free());
        assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Lost)));
    }
}

#[test]
fn a_donor_is_lost_by_its_own_absence_not_by_ours() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extents: Vec<ExtentId> = world.extents.keys().copied().collect();
    (0..2).for_each(|d| world.disconnect(d));
    world.now += LOST_AFTER - Duration::from_millis(1);
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.states(*e) == [ReplicaState::Stale; 2]));
    // The machine is frozen, and nobody could be heard.
    world.now += 5 * LOST_AFTER;
    world.book.stood_still(world.now);
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.states(*e) == [ReplicaState::Stale; 2]));
    world.connect(0);
    for _ in 0..LAST_COPY_LOST_AFTER.as_secs() {
        world.now += Duration::from_secs(1);
        world.renew(0);
        world.balance(nothing_free());
    }
    // The other's replicas are live as they are: nobody has what they lack.
    assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Live)));
    assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Lost)));
}

#[test]
fn what_nobody_else_has_is_waited_for_longer() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.settle(&nothing_free());
    let extents: Vec<ExtentId> = world.extents.keys().copied().collect();
    // A switch that starts anew: nobody is heard for a while, and nobody has lost anything.
    (0..2).for_each(|d| world.disconnect(d));
    for _ in 0..4 {
        world.now += 2 * LOST_AFTER;
        (0..2).for_each(|d| world.disconnect(d));
        world.balance(nothing_free());
        assert!(extents.iter().all(|e| world.states(*e) == [ReplicaState::Stale; 2]));
    }
    (0..2).for_each(|d| world.connect(d));
    world.balance(nothing_free());
    world.fill_all();
    assert!(extents.iter().all(|e| world.live(*e) == 2));
    // With another one live it is lost as soon as ever, also if that was not so in the beginning.
    (0..2).for_each(|d| world.disconnect(d));
    world.now += LOST_AFTER;
    world.balance(nothing_free());
    world.connect(1);
    world.balance(nothing_free());
    world.fill_all();
    assert!(extents.iter().all(|e| world.live(*e) == 1));
    world.now += LOST_AFTER;
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.states(*e).contains(&ReplicaState::Lost)));
    // Not for ever.
    world.disconnect(1);
    world.now += AWAY_AFTER;
    world.balance(nothing_free());
    world.now += LAST_COPY_LOST_AFTER;
    world.balance(nothing_free());
    assert!(extents.iter().all(|e| world.states(*e) == [ReplicaState::Lost; 2]));
}

fn wanted() -> Headroom {
    Headroom { wanted: 1, ..nothing_free() }
}

/// Writes stopped as soon as fewer donors were there than an extent has replicas, however much room
/// these had.
#[test]
fn with_too_few_donors_left_new_extents_lie_on_those_there_are_until_the_others_are_back() {
    for (donors, replicas, away) in [(2, 2, 1), (3, 3, 1), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 3, 3)] {
        let mut world = World::new(donors, replicas, 8);
        (0..donors).for_each(|d| world.connect(d));
        (0..away).for_each(|d| world.disconnect(d));
        world.settle(&nothing_free());
        assert!(world.extents.is_empty(), "nobody has asked");
        world.settle(&wanted());
        let there: Vec<DonorId> = (away..donors).map(World::id).collect();
        let on_all = |leased: &Vec<LeasedReplica>| {
            leased.iter().map(|p| p.donor).collect::<BTreeSet<_>>().into_iter().eq(there.clone())
        };
        assert!(!world.extents.is_empty() && world.extents.values().all(on_all), "{:?}", world.extents);
        // What is free in them is room while there is nothing better.
        let count = world.extents.len();
        world.settle(&Headroom { degraded: 2 * SLOTS, ..wanted() });
        assert_eq!(world.extents.len(), count);

        (0..away).for_each(|d| world.connect(d));
        world.fill_and_settle();
        world.fill_and_settle();
        assert!(world.extents.keys().all(|e| world.live(*e) == replicas), "{:?}", world.extents);
        assert!(!world.book.degrades());
    }
}

#[test]
fn with_donors_enough_or_never_enough_no_extent_lacks_a_replica_from_the_first() {
    for (donors, connected, replicas, away) in [(3, 3, 2, 1), (4, 4, 2, 2), (2, 2, 1, 1), (2, 1, 2, 0)] {
        let mut world = World::new(donors, replicas, 8);
        (0..connected).for_each(|d| world.connect(d));
        (0..away).for_each(|d| world.disconnect(d));
        world.settle(&wanted());
        assert!(!world.book.degrades());
        assert!(world.extents.values().all(|leased| leased.len() == replicas), "{:?}", world.extents);
        assert_eq!(world.extents.is_empty(), connected < replicas);
    }
}

#[test]
fn a_silent_donor_is_asked_for_no_slab_and_nothing_waits_for_it() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.deaf[0] = true;
    world.book.hung(World::id(0), world.now);
    world.act();
    world.balance(wanted());
    assert!(world.asked[0] == 0 && world.asked[1] > 0, "{:?}", world.asked);
    world.settle(&wanted());
    assert!(!world.extents.is_empty());
}

#[test]
fn an_empty_degraded_extent_goes_back_when_a_donor_is_back_and_not_before() {
    let mut world = World::new(2, 2, 8);
    (0..2).for_each(|d| world.connect(d));
    world.disconnect(0);
    world.settle(&wanted());
    let count = world.extents.len();
    let empty: Vec<ExtentId> = world.extents.keys().copied().collect();
    let room = Headroom { degraded: count as u64 * SLOTS, empty: empty.clone(), ..wanted() };
    world.balance(room.clone());
    assert_eq!(world.extents.len(), count);
    world.connect(0);
    world.balance(Headroom { degraded: 0, ..room });
    assert!(empty.iter().all(|e| !world.extents.contains_key(e)));
}
