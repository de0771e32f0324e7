//! How programs and the KV API share the pool.

use annex_pool::{SlotRun, Terms};
use annex_pool_testbed::{Bed, SLOTS, eventually};
use annex_shared::api::Limit;
use annex_shared::page::PAGE_SIZE;
use std::time::Duration;

#[test]
fn programs_leave_the_kv_api_its_minimum_and_it_leaves_them_the_rest() {
    let (bed, total) = four_extents();
    bed.pool.divide(Terms { min: Limit::Percent(25), max: Limit::Percent(50) }, 0);
    assert_eq!(bed.pool.share_of_kv(), Some((total * 1024, total * 2048)));

    let mut apps = Vec::new();
    let got = in_steps(total, &mut apps, |pages, runs| bed.pool.reserve(pages, runs));
    assert_eq!(got, total - total / 4, "programs take more than their part");
    assert!(bed.pool.why_no_room().contains("kept for the KV API"), "{}", bed.pool.why_no_room());
    let mut kv = Vec::new();
    let got = in_steps(total, &mut kv, |pages, runs| bed.pool.reserve_for_kv(pages, runs));
    assert_eq!(got, total / 4, "the KV API does not get its minimum");
    assert_eq!(bed.pool.room_for_kv(), 0, "there is room that nobody has");

    // Room that programs give back is the KV API's up to its maximum.
    apps.iter().flat_map(|run| run.slots()).for_each(|slot| bed.pool.release(slot));
    let got = in_steps(total, &mut kv, |pages, runs| bed.pool.reserve_for_kv(pages, runs));
    assert_eq!(got, total / 4, "the KV API takes more than its maximum");
    kv.iter().flat_map(|run| run.slots()).for_each(|slot| bed.pool.release_of_kv(slot));
    let got = in_steps(total, &mut kv, |pages, runs| bed.pool.reserve_for_kv(pages, runs));
    assert_eq!(got, total / 2, "what the KV API gave back still counts");
}

#[test]
fn what_was_taken_over_counts_and_sizes_are_as_good_as_parts() {
    let (bed, total) = four_extents();
    let pages = |pages: u64| Limit::Bytes(pages * PAGE_SIZE as u64);
    bed.pool.divide(Terms { min: pages(0), max: pages(30) }, 20);
    let mut runs = Vec::new();
    assert_eq!(bed.pool.room_for_kv(), 10);
    assert_eq!(bed.pool.reserve_for_kv(100, &mut runs), 10);
    assert_eq!(bed.pool.room_for_kv(), 0);
    assert_eq!(bed.pool.reserve_for_kv(100, &mut runs), 0);
    assert_eq!(in_steps(total, &mut runs, |pages, runs| bed.pool.reserve(pages, runs)), total - 10);
}

/// A pool of four extents that knows it: while slabs are asked for, there seem to be fewer.
fn four_extents() -> (Bed, u64) {
    let bed = Bed::new(&[4, 4], 2);
    let total = 4 * u64::from(SLOTS);
    eventually("the pool to know all its room", || bed.pool.available_pages() == total);
    (bed, total)
}

fn in_steps(pages: u64, runs: &mut Vec<SlotRun>, take: impl Fn(usize, &mut Vec<SlotRun>) -> usize) -> u64 {
    let (mut got, mut looks) = (0, 0);
    while got < pages && looks < 3 {
        match take(((pages - got) as usize).min(64), runs) {
            0 => {
                // Perhaps the look at the pool is old.
                std::thread::sleep(Duration::from_millis(60));
                looks += 1;
            }
            more => got += more as u64,
        }
    }
    got
}
