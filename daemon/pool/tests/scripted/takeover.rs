//! The next annexd starts on the tables of the last one.

use annex_pool::{Pool, PoolError, PoolState, References};
use annex_pool_testbed::{Bed, SLOTS, read, write};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::os::fd::BorrowedFd;

#[test]
fn the_next_annexd_takes_the_pages_over() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(100);
    write(&mut lane, &runs, 1).unwrap();
    let used = bed.pool.info().used;
    drop(lane);
    bed.pool.leave();
    let references = |each: &mut dyn FnMut(SlotIdx)| runs.iter().flat_map(|run| run.slots()).for_each(each);
    let next = Pool::start_with(bed.config.clone(), None, saved(&bed, &references), bed.dialer()).unwrap();
    assert!(next.is_taken_over());
    assert_eq!(next.info().used, used);
    let mut lane = next.lane("test", 256).unwrap();
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    assert_eq!(next.info().degraded_extents, 0);
}

/// A slot that the annexd before had in use and that no record names any more: a WRITE to it may
/// still be on its way.
#[test]
fn at_a_take_over_what_nobody_refers_to_rests_and_references_are_counted_anew() {
    let bed = Bed::new(&[8, 8], 2);
    let runs = bed.reserve(10);
    let (kept, shared, forgotten) = (runs[0].first, SlotIdx(runs[0].first.0 + 1), SlotIdx(runs[0].first.0 + 2));
    bed.pool.retain(kept);
    bed.pool.leave();
    let next = Pool::start_with(
        bed.config.clone(),
        None,
        saved(&bed, &|each| [kept, shared, shared].into_iter().for_each(each)),
        bed.dialer(),
    )
    .unwrap();
    assert_eq!([kept, shared, forgotten].map(|slot| next.references(slot)), [1, 2, 1]);
    assert_eq!(next.info().used, 10 * PAGE_SIZE as u64, "resting slots are not free");
}

#[test]
fn a_take_over_that_names_a_slot_outside_every_extent_is_refused() {
    let bed = Bed::new(&[8, 8], 2);
    bed.reserve(10);
    bed.pool.leave();
    let far = |each: &mut dyn FnMut(SlotIdx)| each(SlotIdx(SLOTS * 7));
    let error = Pool::start_with(bed.config.clone(), None, saved(&bed, &far), bed.dialer()).err().unwrap();
    assert!(matches!(error, PoolError::Reference(_)), "{error}");
}

fn saved<'a>(bed: &Bed, references: References<'a>) -> PoolState<'a> {
    let (extents, slots) = bed.pool.state_fds();
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    PoolState::Saved { extents: copy(extents), slots: copy(slots), references }
}

#[test]
fn a_take_over_without_a_donor_that_holds_pages_is_refused() {
    let bed = Bed::new(&[8, 8], 2);
    bed.reserve(1);
    bed.pool.leave();
    let mut config = bed.config.clone();
    config.donors.pop();
    let error = Pool::start_with(config, None, saved(&bed, &|_| ()), bed.dialer()).err().unwrap();
    assert!(error.to_string().contains("donor d1:1 holds pages"), "{error}");
}
