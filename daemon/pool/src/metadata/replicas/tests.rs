//! The replica table: what a kill between any two accesses leaves behind, and that racing lanes,
//! filler and coordinator keep the rule.

use super::*;
use annex_shared::ids::{ClientId, DonorId};
use std::cell::RefCell;

const SLOTS: u32 = 64;
const E: ExtentId = ExtentId(3);

fn replica(donor: u16, key: u64) -> Replica {
    Replica::live(DonorId(donor), SlabId(donor.into()), Incarnation(1), Rkey(key))
}

fn table(replicas: u16) -> ExtentTable {
    let table = ExtentTable::create(ClientId(1)).unwrap();
    table.fix_slots_per_extent(SLOTS);
    table.publish(E, &(0..replicas).map(|d| replica(d, 100 + u64::from(d))).collect::<Vec<_>>());
    table
}

fn state(table: &ExtentTable, index: u8) -> ReplicaState {
    table.replica(E, index).state
}

fn generation(table: &ExtentTable, index: u8) -> u16 {
    table.replica(E, index).generation
}

fn missed(table: &ExtentTable, index: u8) -> Vec<u32> {
    let mut all = Vec::new();
    let mut from = 0;
    while let Some(at) = table.next_missed(E, index, from) {
        all.push(at);
        from = at + 1;
    }
    all
}

fn took(table: &ExtentTable, indexes: &[u8]) -> Took {
    std::array::from_fn(|n| indexes.contains(&(n as u8)).then(|| generation(table, n as u8)))
}

#[test]
fn who_did_not_take_a_write_is_marked_and_not_live_any_more() {
    let t = table(3);
    let settled = t.settle(E, 5, 3, &took(&t, &[0]));
    assert_eq!(settled, Settled { held: true, fell_behind: 0b110 });
    assert_eq!((missed(&t, 0), missed(&t, 1)), (vec![], vec![5, 6, 7]));
    assert_eq!((state(&t, 0), state(&t, 2)), (ReplicaState::Live, ReplicaState::Syncing));
    // What is stale is marked too, and stays stale; what is lost needs nothing.
    assert!(t.mark_stale(E, 1, generation(&t, 1)) && t.mark_lost(E, 2, generation(&t, 2)));
    assert_eq!(t.settle(E, 9, 1, &took(&t, &[0])), Settled { held: true, fell_behind: 0 });
    assert_eq!((missed(&t, 1), missed(&t, 2)), (vec![5, 6, 7, 9], vec![5, 6, 7]));
    assert!(!t.settle(E, 9, 1, &took(&t, &[1])).held, "a replica that is away counts as holding a write");
}

#[test]
fn a_replica_stays_if_it_turns_out_that_nobody_else_is_live() {
    let t = table(2);
    assert_eq!(t.settle(E, 5, 1, &took(&t, &[0])), Settled { held: true, fell_behind: 0b10 });
    assert!(!t.remove_replica(E, 0, generation(&t, 0), 1), "the only replica that has slot 5 was let go");
    assert_eq!((state(&t, 0), missed(&t, 0)), (ReplicaState::Stale, vec![]));
    // The other way round: the write that only the one that stepped back has taken is not held.
    let t = table(2);
    let took = took(&t, &[0]);
    assert!(t.remove_replica(E, 0, generation(&t, 0), 1));
    assert_eq!(t.settle(E, 5, 1, &took), Settled { held: false, fell_behind: 0b10 });
}

#[test]
fn a_replica_stays_while_fewer_others_are_live_than_there_should_be() {
    // The coordinator had not heard yet that one of the others was stale by then, and the last
    // one's donor was gone as well.
    let t = table(3);
    assert!(t.mark_stale(E, 2, generation(&t, 2)));
    assert!(!t.remove_replica(E, 0, generation(&t, 0), 2), "it was let go for two, of whom one is away");
    assert_eq!(state(&t, 0), ReplicaState::Stale);
    assert!(t.remove_replica(E, 0, generation(&t, 0), 1));
}

#[test]
fn a_backup_goes_on_being_written_if_it_turns_out_that_there_is_nobody_to_follow() {
    let t = table(2);
    assert_eq!(t.settle(E, 5, 1, &took(&t, &[1])), Settled { held: true, fell_behind: 0b1 });
    let joined = t.resync(E, 1, ReplicaState::Backup).unwrap();
    assert_eq!((joined.state, state(&t, 1)), (ReplicaState::Syncing, ReplicaState::Syncing));
    assert!(missed(&t, 1).is_empty() && t.go_live(E, 1, joined.generation));
    assert!(t.settle(E, 6, 1, &took(&t, &[0, 1])).held);
}

#[test]
fn a_backup_is_marked_by_every_write_and_goes_live_only_by_way_of_joining() {
    let t = table(2);
    assert!(t.resync(E, 1, ReplicaState::Backup).is_some());
    assert_eq!(t.settle(E, 5, 2, &took(&t, &[0])), Settled { held: true, fell_behind: 0 });
    assert_eq!((missed(&t, 1), state(&t, 1)), (vec![5, 6], ReplicaState::Backup));
    // A write that was posted when it was still written, and that only it took, is held by nobody.
    assert!(!t.settle(E, 9, 1, &took(&t, &[1])).held);
    let g = generation(&t, 1);
    t.begin_copy(E, 1, 0, SLOTS, &mut Vec::new());
    t.end_copy(E, 1, g, &[], &[]);
    assert!(!t.go_live(E, 1, g), "a backup is live though no write is sent to it");
    assert_eq!(t.resync(E, 1, ReplicaState::Syncing).map(|r| r.generation), Some(g));
    assert!(t.go_live(E, 1, g));
}

#[test]
fn a_write_to_an_earlier_generation_counts_as_missed() {
    let t = table(2);
    let before = took(&t, &[0, 1]);
    t.resume(E, 1, Incarnation(2), Rkey(7)).unwrap();
    assert!(t.go_live(E, 1, generation(&t, 1)));
    assert_eq!(t.settle(E, 0, 1, &before), Settled { held: true, fell_behind: 0b10 });
    assert_eq!((state(&t, 1), missed(&t, 1)), (ReplicaState::Syncing, vec![0]));
}

#[test]
fn a_replica_goes_live_only_when_it_lacks_nothing() {
    let t = table(1);
    let g = t.add_replica(E, 1, &replica(1, 5), ReplicaState::Syncing).unwrap();
    assert_eq!(missed(&t, 1).len(), SLOTS as usize);
    let mut taken = Vec::new();
    t.begin_copy(E, 1, 0, 40, &mut taken);
    assert_eq!(taken.len(), 40);
    t.end_copy(E, 1, g, &[7], &[]);
    assert!(!t.go_live(E, 1, g));
    taken.clear();
    t.begin_copy(E, 1, 0, SLOTS, &mut taken);
    assert_eq!(taken.len(), 25);
    assert!(!t.go_live(E, 1, g), "live while slots are being copied");
    t.end_copy(E, 1, g, &[], &[]);
    assert!(!t.go_live(E, 1, g.wrapping_add(1)));
    assert!(t.go_live(E, 1, g));
}

/// A copy was under way whenever it was tried, and made the replica syncing again (seed 1385924 of
/// the simulation).
#[test]
fn what_nobody_has_is_given_up_though_it_is_being_looked_for() {
    let t = table(1);
    let g = t.add_replica(E, 1, &replica(1, 5), ReplicaState::Syncing).unwrap();
    let mut taken = Vec::new();
    t.begin_copy(E, 1, 0, SLOTS, &mut taken);
    assert_eq!(t.promote(E, 1, |_, bits| bits), Some(0), "all that is missed is being copied");
    assert!(!t.end_copy(E, 1, g, &[], &taken));
    assert_eq!((state(&t, 1), missed(&t, 1)), (ReplicaState::Live, vec![]));
    // The copy may have overwritten what was written meanwhile.
    assert!(t.end_copy(E, 1, g, &[3], &[]));
    assert_eq!((state(&t, 1), missed(&t, 1)), (ReplicaState::Syncing, vec![3]));
}

/// Both donors of an extent were silent one after the other, and the repair thread had no time for
/// what each had to give the other.
#[test]
fn what_another_joining_replica_has_is_not_given_up() {
    let t = table(2);
    assert!(t.mark(E, 0, 3, 1) && t.mark(E, 1, 5, 1));
    assert_eq!((t.promote(E, 0, |_, bits| bits), t.promote(E, 1, |_, bits| bits)), (None, None));
    assert_eq!((state(&t, 0), missed(&t, 0)), (ReplicaState::Syncing, vec![3]));
    assert_eq!((state(&t, 1), missed(&t, 1)), (ReplicaState::Syncing, vec![5]));
    // What both lack nobody has.
    t.mark(E, 1, 3, 1);
    assert_eq!(t.promote(E, 1, |_, bits| bits), None, "it lacks what the other one has");
    assert_eq!(t.promote(E, 0, |_, bits| bits), Some(1));
    assert_eq!((state(&t, 0), missed(&t, 0)), (ReplicaState::Live, vec![]));
}

#[test]
fn a_copy_to_a_replica_that_was_replaced_meanwhile_counts_for_nothing() {
    let t = table(1);
    let old = t.add_replica(E, 1, &replica(1, 5), ReplicaState::Syncing).unwrap();
    t.mark_lost(E, 1, old);
    let new = t.add_replica(E, 1, &replica(2, 6), ReplicaState::Syncing).unwrap();
    // The filler looked at the entry before, and takes the bits after.
    let mut taken = Vec::new();
    t.begin_copy(E, 1, 0, SLOTS, &mut taken);
    t.end_copy(E, 1, old, &[], &[]);
    assert_eq!(missed(&t, 1).len(), SLOTS as usize);
    assert!(!t.go_live(E, 1, new));
}

#[test]
fn lost_is_for_good_and_a_place_is_not_given_away_while_it_counts() {
    let t = table(2);
    assert!(t.add_replica(E, 1, &replica(5, 5), ReplicaState::Syncing).is_none());
    assert!(t.mark_lost(E, 1, generation(&t, 1)));
    assert!(t.resync(E, 1, ReplicaState::Syncing).is_none() && t.resume(E, 1, Incarnation(2), Rkey(1)).is_none());
    assert!(!t.mark_stale(E, 1, generation(&t, 1)) && !t.go_live(E, 1, generation(&t, 1)));
    assert!(t.add_replica(E, 1, &replica(5, 5), ReplicaState::Syncing).is_some());
}

#[test]
fn extents_smaller_than_a_word_of_bits_leave_their_neighbours_alone() {
    let t = ExtentTable::create(ClientId(1)).unwrap();
    t.fix_slots_per_extent(16);
    for extent in 0..8 {
        t.publish(ExtentId(extent), &[replica(0, 1)]);
    }
    t.add_replica(ExtentId(5), 1, &replica(1, 2), ReplicaState::Syncing).unwrap();
    t.mark(ExtentId(2), 1, 3, 2);
    assert_eq!(t.missed_count(ExtentId(5), 1, |_, b| b), 16);
    assert_eq!((t.next_missed(ExtentId(2), 1, 0), t.missed_count(ExtentId(2), 1, |_, b| b)), (Some(3), 2));
    assert_eq!(t.missed_count(ExtentId(4), 1, |_, b| b) + t.missed_count(ExtentId(6), 1, |_, b| b), 0);
}

// ---- kills ----

/// What is known to be true while a change is under way.
struct Truth {
    /// Slots whose content the replica in entry 1 has, now and after whatever step is under way.
    has: [bool; SLOTS as usize],
    /// Leases that entry 1 may name when it counts for something.
    leases: Vec<(u64, u64)>,
    images: u32,
}

/// What the next annexd would make of the table as it is.
fn check_image(table: &ExtentTable, truth: &mut Truth) {
    truth.images += 1;
    let image = table.image(E);
    let next = image.replica(E, 1);
    let lacks: Vec<u32> = (0..SLOTS).filter(|s| !truth.has[*s as usize]).collect();
    let marked = missed(&image, 1);
    match next.state {
        ReplicaState::Live => assert!(lacks.is_empty() && marked.is_empty(), "live and lacks {lacks:?}"),
        ReplicaState::Stale => {
            assert!(lacks.iter().all(|s| marked.contains(s)), "lacks {lacks:?}, of which only {marked:?} are marked");
            let lease = (next.incarnation.0, next.rkey.0);
            assert!(truth.leases.contains(&lease), "names a lease that never was: {lease:?}");
        }
        ReplicaState::Syncing | ReplicaState::Backup => panic!("found being filled at a take-over"),
        ReplicaState::Unused | ReplicaState::Lost => {}
    }
    assert_eq!(image.replica(E, 0).state, ReplicaState::Live);
    assert!(missed(&image, 0).is_empty());
}

#[test]
fn a_kill_between_any_two_accesses_loses_no_mark() {
    let t = std::rc::Rc::new(table(2));
    let truth = std::rc::Rc::new(RefCell::new(Truth { has: [true; 64], leases: vec![(1, 101)], images: 0 }));
    let step = |f: &dyn Fn(&ExtentTable)| {
        let (hook_t, hook_truth) = (t.clone(), truth.clone());
        crate::metadata::extents::on_access(Some(Box::new(move || check_image(&hook_t, &mut hook_truth.borrow_mut()))));
        f(&t);
        crate::metadata::extents::on_access(None);
        check_image(&t, &mut truth.borrow_mut());
    };
    let lacks = |slots: &[u32], has: bool| slots.iter().for_each(|s| truth.borrow_mut().has[*s as usize] = has);
    let copy = |slots: &[u32], failed: &[u32]| {
        let g = generation(&t, 1);
        step(&|t| {
            let mut taken = Vec::new();
            t.begin_copy(E, 1, 0, SLOTS, &mut taken);
        });
        lacks(slots, true);
        lacks(failed, false);
        step(&|t| _ = t.end_copy(E, 1, g, failed, &[]));
    };

    // A failed write is marked before it counts as done; only from then on must the replica's lack
    // be known.
    step(&|t| _ = t.mark_stale(E, 1, generation(t, 1)));
    step(&|t| _ = t.settle(E, 3, 4, &took(t, &[0])));
    lacks(&[3, 4, 5, 6], false);
    step(&|t| _ = t.resync(E, 1, ReplicaState::Syncing));
    copy(&[3, 4], &[5, 6]);
    copy(&[5, 6], &[]);
    step(&|t| _ = t.go_live(E, 1, generation(t, 1)));
    assert_eq!(state(&t, 1), ReplicaState::Live);
    // A backup: it follows, is copied to again and again, and is written again at last.
    step(&|t| _ = t.resync(E, 1, ReplicaState::Backup));
    step(&|t| _ = t.settle(E, 20, 2, &took(t, &[0])));
    lacks(&[20, 21], false);
    copy(&[20], &[21]);
    step(&|t| _ = t.resync(E, 1, ReplicaState::Syncing));
    copy(&[21], &[]);
    step(&|t| _ = t.go_live(E, 1, generation(t, 1)));
    assert_eq!(state(&t, 1), ReplicaState::Live);
    // A restarted agent. The fields pass through one mixture, which no agent will confirm but with
    // what it says of the bytes.
    truth.borrow_mut().leases = vec![(1, 101), (1, 202), (2, 202)];
    step(&|t| _ = t.resume(E, 1, Incarnation(2), Rkey(202)));
    step(&|t| _ = t.settle(E, 9, 1, &took(t, &[0])));
    lacks(&[9], false);
    copy(&[9], &[]);
    step(&|t| _ = t.go_live(E, 1, generation(t, 1)));
    assert_eq!(state(&t, 1), ReplicaState::Live);
    // Lost, and another one in its place.
    step(&|t| _ = t.mark_lost(E, 1, generation(t, 1)));
    let all: Vec<u32> = (0..SLOTS).collect();
    lacks(&all, false);
    truth.borrow_mut().leases = vec![(1, 303)];
    step(&|t| _ = t.add_replica(E, 1, &replica(4, 303), ReplicaState::Syncing));
    copy(&all, &[]);
    step(&|t| _ = t.go_live(E, 1, generation(t, 1)));
    assert_eq!(state(&t, 1), ReplicaState::Live);
    assert!(truth.borrow().images > 100, "{} images", truth.borrow().images);
}
