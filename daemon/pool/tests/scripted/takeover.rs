//! The next annexd starts on the tables of the last one.

use super::{are_whole, donor_of};
use annex_pool::{DonorConfig, Pool, PoolConfig, PoolError, PoolState, References, SlotRun};
use annex_pool_testbed::{Bed, SLOTS, eventually, read, write};
use annex_shared::api::DonorState;
use annex_shared::config::ByteSize;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[test]
fn the_next_annexd_takes_the_pages_over() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(100);
    write(&mut lane, &runs, 1).unwrap();
    let used = bed.pool.info().used;
    drop(lane);
    bed.pool.leave();
    let next = next(&bed, &runs, bed.config.clone());
    assert!(next.is_taken_over());
    assert_eq!(next.info().used, used);
    assert!(is_there(&next, &runs));
    assert!(are_whole(&bed, &next, &runs));
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

/// So many pages, written by an annexd.
fn written(bed: &Bed, pages: usize) -> Vec<SlotRun> {
    let runs = bed.reserve(pages);
    write(&mut bed.lane(), &runs, 1).unwrap();
    runs
}

/// The annexd that follows, with its configuration; those pages are referred to once.
fn next(bed: &Bed, runs: &[SlotRun], config: PoolConfig) -> Arc<Pool> {
    let references = |each: &mut dyn FnMut(SlotIdx)| runs.iter().flat_map(|run| run.slots()).for_each(each);
    Pool::start_with(config, None, saved(bed, &references), bed.dialer()).unwrap()
}

/// Whether every byte is as it was written.
fn is_there(pool: &Arc<Pool>, runs: &[SlotRun]) -> bool {
    let mut lane = pool.lane("test", 256).unwrap();
    runs.iter().all(|run| read(&mut lane, *run, 1) == Ok(true))
}

fn saved<'a>(bed: &Bed, references: References<'a>) -> PoolState<'a> {
    let (extents, slots) = bed.pool.state_fds();
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    PoolState::Saved { extents: copy(extents), slots: copy(slots), references }
}

/// It was refused, when the annexd before had ended already.
#[test]
fn a_donor_that_the_next_annexd_is_not_told_of_is_emptied_first() {
    let bed = Bed::new(&[8, 8, 8], 2);
    let runs = written(&bed, 100);
    let leaver = donor_of(&bed, runs[0], 0);
    bed.pool.leave();
    let mut config = bed.config.clone();
    config.donors.remove(leaver);
    let next = next(&bed, &runs, config);
    eventually("the donor is empty", || bed.agents[leaver].lent() == 0 && next.donors().len() == 2);
    eventually("every extent is whole", || next.info().degraded_extents == 0);
    assert!(is_there(&next, &runs));
}

/// With too few others its pages have nowhere to go.
#[test]
fn a_donor_that_is_needed_stays_though_the_next_annexd_is_not_told_of_it() {
    let bed = Bed::new(&[8, 8], 2);
    let runs = written(&bed, 10);
    bed.pool.leave();
    let mut config = bed.config.clone();
    config.donors.pop();
    let next = next(&bed, &runs, config);
    assert_eq!(next.donors().len(), 2);
    eventually("both are up", || next.donors().iter().all(|donor| donor.state == DonorState::Up));
    bed.agents[0].cut();
    assert!(is_there(&next, &runs), "from the one that was not named");
}

/// All donors were refused then, and with them their pages.
#[test]
fn another_slab_size_is_for_later() {
    let bed = Bed::new(&[8, 8], 2);
    let runs = written(&bed, 10);
    bed.pool.leave();
    let mut config = bed.config.clone();
    config.slab_size = ByteSize(16 << 20);
    let next = next(&bed, &runs, config);
    eventually("both are up", || next.donors().iter().all(|donor| donor.state == DonorState::Up));
    assert!(is_there(&next, &runs));
}

/// One more copy, and one more donor for it.
#[test]
fn a_take_over_takes_more_replicas_and_more_donors() {
    let bed = Bed::with(&[8, 8], 1, |config| drop(config.donors.pop()));
    let runs = written(&bed, 10);
    bed.pool.leave();
    let mut config = bed.config.clone();
    config.replicas = 2;
    config.donors.push(DonorConfig { address: "d1:1".into(), ..DonorConfig::default() });
    let next = next(&bed, &runs, config);
    eventually("there are two copies", || next.info().degraded_extents == 0 && bed.agents[1].lent() > 0);
    bed.agents[0].cut();
    assert!(is_there(&next, &runs));
}
