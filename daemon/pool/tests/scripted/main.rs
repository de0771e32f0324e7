//! The pool against scripted donors: what a lost, lying, slow or restarted donor does to pages.
//! (Nothing.)

mod donors;
mod shares;
mod spill;
mod takeover;

use annex_fabric::ErrorKind;
use annex_pool::{IoError, Lane, Pool, PoolConfig, PoolError, PoolState, SlotRun};
use annex_pool_testbed::{Bed, Fate, SLOTS, eventually, finish, index_of, is_filled, post_write, read, write};
use annex_shared::api::{DonorState, SlabInfo};
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::time::{Duration, Instant};

fn donor_of(bed: &Bed, run: SlotRun, place: u8) -> usize {
    let is_it = |slab: &SlabInfo| slab.extent == run.first.0 / SLOTS && slab.replica == place;
    let slab = bed.pool.slabs().into_iter().find(is_it).expect("the extent has such a replica");
    index_of(&slab.donor)
}

/// Every page of these has all its copies. (An extent that is made while a donor is not there has
/// fewer, and no page yet.)
fn are_whole(bed: &Bed, pool: &Pool, runs: &[SlotRun]) -> bool {
    let slabs = pool.slabs();
    let copies = |extent| slabs.iter().filter(|slab| slab.extent == extent && slab.state == "live").count();
    runs.iter().all(|run| copies(run.first.0 / SLOTS) >= usize::from(bed.config.replicas))
}

/// However busy this host is: for tests in which a broken connection alone must change nothing.
fn never_away(config: &mut PoolConfig) {
    config.away_after = TimeSpan(Duration::from_secs(120));
    config.lost_after = TimeSpan(Duration::from_secs(240));
}

#[test]
fn what_is_written_comes_back_whole_and_in_parts() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(100);
    write(&mut lane, &runs, 1).unwrap();
    for run in &runs {
        assert_eq!(read(&mut lane, *run, 1), Ok(true));
        let middle = SlotRun { first: SlotIdx(run.first.0 + run.count / 2), count: 1 };
        assert_eq!(read(&mut lane, middle, 1), Ok(true));
    }
    assert!(bed.pool.donors().iter().all(|d| d.writes >= 2), "a replica was not written");
    assert_eq!(bed.pool.info().used, 100 * PAGE_SIZE as u64);
    assert_eq!(lane.in_flight(), 0);
}

#[test]
fn a_lost_donor_loses_no_page() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(64);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[0].cut();
    for run in &runs {
        assert_eq!(read(&mut lane, *run, 1), Ok(true));
    }
    eventually("the donor is declared lost", || bed.pool.donors()[0].state == DonorState::Lost);
    for run in &runs {
        assert_eq!(read(&mut lane, *run, 1), Ok(true));
    }
    assert!(bed.pool.info().degraded_extents >= 1);
    assert!(bed.pool.warnings().iter().any(|w| w.contains("d0:1 is lost")), "{:?}", bed.pool.warnings());
}

#[test]
fn leases_that_end_before_the_next_annexd_must_come_are_warned_of() {
    let told = |wait| {
        let bed = Bed::with(&[8, 8], 2, |c| c.takeover_wait = TimeSpan(Duration::from_millis(wait)));
        bed.pool.warnings().iter().filter(|w| w.contains("donor d0:1 ends leases after 600ms")).count()
    };
    assert_eq!((told(400), told(401)), (0, 1));
}

#[test]
fn with_all_replicas_lost_a_read_is_an_error_and_no_bytes() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(8);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents.iter().for_each(|a| a.cut());
    assert_eq!(read(&mut lane, runs[0], 1), Err(IoError::Lost));
    assert!(bed.pool.info().lost_extents >= 1);
    // They come back with everything; but what missed writes meanwhile can't be told from what did
    // not.
    bed.agents.iter().for_each(|a| a.mend());
    eventually("both are up again", || bed.pool.is_usable().is_ok());
    assert_eq!(read(&mut lane, runs[0], 1), Err(IoError::Lost));
}

#[test]
fn wrong_bytes_make_the_other_replica_answer() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(32);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[1].rot();
    for _ in 0..8 {
        assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
    }
    eventually("some page was found wrong", || {
        assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
        bed.pool.donors()[1].checksum_errors > 0
    });
    assert_eq!(bed.pool.donors()[0].checksum_errors, 0);
}

/// Another page with the same CRC32C.
fn forge(page: &mut [u8]) {
    // Its generator with all 33 bits, reflected: added anywhere it leaves the sum as it was.
    let generator = 0x1_05ec_76f1u64.to_le_bytes();
    page[64..72].iter_mut().zip(generator).for_each(|(byte, g)| *byte ^= g);
}

#[test]
fn a_forged_page_makes_the_other_replica_answer() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(32);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[1].with_pages(forge);
    for run in runs.iter().cycle().take(100) {
        assert_eq!(read(&mut lane, *run, 1), Ok(true));
    }
    bed.agents[0].with_pages(forge);
    assert_eq!(read(&mut lane, runs[0], 1), Err(IoError::Corrupt));
}

#[test]
fn a_donor_that_gives_yesterdays_page_or_anothers_makes_the_other_replica_answer() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(2);
    write(&mut lane, &runs, 1).unwrap();
    let mut yesterdays = Vec::new();
    bed.agents[1].with_pages(|page| yesterdays.push(page.to_vec()));
    write(&mut lane, &runs, 2).unwrap();
    let mut old = yesterdays.iter();
    bed.agents[1].with_pages(|page| page.copy_from_slice(old.next().unwrap()));
    for _ in 0..20 {
        assert_eq!(read(&mut lane, runs[0], 2), Ok(true));
    }
    write(&mut lane, &runs, 3).unwrap();
    let mut first = None;
    bed.agents[1].with_pages(|page| page.copy_from_slice(first.get_or_insert_with(|| page.to_vec())));
    for _ in 0..20 {
        assert_eq!(read(&mut lane, runs[0], 3), Ok(true));
    }
}

#[test]
fn donors_see_pages_only_if_they_are_not_sealed() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(2);
    write(&mut lane, &runs, 1).unwrap();
    for agent in &bed.agents {
        let mut seen = 0;
        let slots = || runs.iter().flat_map(|run| run.slots());
        agent.with_pages(|page| seen += slots().filter(|slot| is_filled(page, slot.0, 1)).count());
        assert_eq!(seen, if annex_pool_testbed::seals() { 0 } else { 2 });
    }
}

#[test]
fn a_piece_of_a_slot_is_what_was_written_there() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(1);
    write(&mut lane, &runs, 1).unwrap();
    let slot = runs[0].first;
    let mut page = [0; PAGE_SIZE];
    annex_pool_testbed::fill(&mut page, slot.0, 1);
    let buf = lane.alloc(1).unwrap();
    lane.read_piece(slot, 100..228, buf, 1).unwrap();
    let done = finish(&mut lane, 1).remove(0);
    assert!(done.result.is_ok() && lane.bytes(&done.buf)[100..228] == page[100..228]);
    bed.agents.iter().for_each(|agent| agent.near(true));
    assert_eq!(lane.read_now(slot, 100..228, |piece| Some(*piece == page[100..228])), Some(true));
}

/// Whoever writes the same bytes to other slots then, as the log of the KV API does.
#[test]
fn after_a_write_that_failed_the_buffer_is_as_it_was() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(2);
    bed.agents.iter().for_each(|agent| agent.script(|_| Fate::Fail(ErrorKind::RemoteAccess)));
    post_write(&mut lane, &runs, 1, 1);
    let done = finish(&mut lane, 1).remove(0);
    assert!(done.result.is_err());
    let pages = lane.bytes(&done.buf).chunks_exact(PAGE_SIZE);
    assert!(runs.iter().flat_map(|run| run.slots()).zip(pages).all(|(slot, page)| is_filled(page, slot.0, 1)));
}

#[test]
fn a_page_that_is_wrong_is_not_given_here_and_now() {
    let bed = Bed::new(&[8], 1);
    let mut lane = bed.lane();
    let runs = bed.reserve(1);
    write(&mut lane, &runs, 1).unwrap();
    let slot = runs[0].first;
    let given = |lane: &mut Lane| lane.read_page_now(slot, |page| Some(page.len()));
    assert_eq!(given(&mut lane), None, "its donor is far");
    bed.agents[0].near(true);
    assert_eq!(given(&mut lane), Some(PAGE_SIZE));
    bed.agents[0].rot();
    assert_eq!(given(&mut lane), None);
}

#[test]
fn with_wrong_bytes_on_every_replica_a_read_is_an_error_and_no_bytes() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(32);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents.iter().for_each(|a| a.rot());
    assert_eq!(read(&mut lane, runs[0], 1), Err(IoError::Corrupt));
}

#[test]
fn a_page_that_gave_wrong_bytes_is_rewritten() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(1);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[1].rot();
    eventually("it is healed", || {
        assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
        bed.pool.info().healed_pages == 1
    });
    bed.agents[0].cut();
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
    assert_eq!(bed.pool.donors()[1].healed, 1);
}

#[test]
fn the_scrubber_finds_and_heals_pages_that_nobody_reads() {
    let bed = Bed::with(&[8, 8], 2, |c| c.scrub_rate = ByteSize(64 << 20));
    let mut lane = bed.lane();
    let runs = bed.reserve(100);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[1].rot();
    eventually("all are healed", || bed.pool.info().healed_pages >= 100);
    bed.agents[0].cut();
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
}

#[test]
fn a_page_that_is_yet_to_be_written_does_not_count_as_wrong() {
    // The scrubber meets such pages all the time, and `annex status` said that their donors gave
    // wrong bytes.
    let bed = Bed::with(&[8, 8], 2, |c| c.scrub_rate = ByteSize(64 << 20));
    let _reserved = bed.reserve(32);
    eventually("the scrubber has looked", || bed.pool.info().scrubbed_pages >= 32);
    let wrong: Vec<u64> = bed.pool.donors().iter().map(|d| d.checksum_errors).collect();
    assert_eq!(wrong, [0, 0]);
}

#[test]
fn pages_that_are_bad_on_different_replicas_are_put_together_from_both() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let run = bed.reserve(16)[0];
    let part = |from: u32, n: u32| SlotRun { first: SlotIdx(run.first.0 + from), count: n };
    write(&mut lane, &[part(0, 8)], 1).unwrap();
    bed.agents[0].rot();
    write(&mut lane, &[part(8, 8)], 1).unwrap();
    let mut writes = 0;
    bed.agents[1].script(move |op| {
        writes += u32::from(op.kind == annex_fabric::OpKind::Write);
        if writes == 1 { Fate::Corrupt } else { Fate::Do }
    });
    write(&mut lane, &[part(12, 1)], 1).unwrap();
    assert_eq!(read(&mut lane, run, 1), Ok(true));
}

#[test]
fn a_full_pool_says_so_and_takes_pages_again_when_slots_are_released() {
    let bed = Bed::new(&[2, 3], 2);
    let mut runs = Vec::new();
    assert_eq!(bed.pool.reserve(200, &mut runs), 2 * SLOTS as usize);
    assert_eq!(runs.len(), 2, "not contiguous: {runs:?}");
    assert_eq!(bed.pool.reserve(1, &mut Vec::new()), 0);
    assert_eq!(bed.pool.available_pages(), 0);
    eventually("the lack is named", || bed.pool.info().lack.starts_with("1 of 2 donors has room, and 2 copies need 2"));
    assert!(bed.pool.info().full);
    runs[0].slots().take(10).for_each(|s| bed.pool.release(s));
    assert_eq!(bed.reserve(10), [SlotRun { first: runs[0].first, count: 10 }]);
}

#[test]
fn a_batch_gets_one_run_wherever_one_is_long_enough() {
    let bed = Bed::new(&[8, 8], 2);
    let runs = bed.reserve(3 * SLOTS as usize);
    // Holes of 1 in the first extent, a hole of 20 in the last.
    runs[0].slots().step_by(2).for_each(|s| bed.pool.release(s));
    runs[2].slots().skip(30).take(20).for_each(|s| bed.pool.release(s));
    assert_eq!(bed.reserve(20).len(), 1);
}

#[test]
fn a_shared_slot_is_free_only_when_its_last_owner_lets_go() {
    let bed = Bed::new(&[1, 1], 2);
    let run = bed.reserve(SLOTS as usize)[0];
    bed.pool.retain(run.first);
    bed.pool.release(run.first);
    assert_eq!(bed.pool.reserve(1, &mut Vec::new()), 0);
    bed.pool.release(run.first);
    assert_eq!(bed.reserve(1)[0].first, run.first);
}

#[test]
fn a_write_gets_through_though_the_connection_breaks_under_it() {
    let bed = Bed::with(&[8, 8], 2, never_away);
    let mut lane = bed.lane();
    let runs = bed.reserve(64);
    let mut n = 0;
    bed.agents[1].script(move |_| {
        n += 1;
        if n == 3 { Fate::Break } else { Fate::Do }
    });
    for (i, slot) in runs.iter().flat_map(|r| r.slots()).enumerate() {
        post_write(&mut lane, &[SlotRun { first: slot, count: 1 }], 1, i as u64);
    }
    let done = finish(&mut lane, 64);
    assert!(done.iter().all(|d| d.result.is_ok()), "{done:?}");
    assert!(are_whole(&bed, &bed.pool, &runs));
    // The second replica has it all.
    bed.agents[0].cut();
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
}

#[test]
fn a_write_is_done_without_a_donor_that_died() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(8);
    bed.agents[0].hold(true);
    post_write(&mut lane, &runs, 1, 7);
    lane.submit();
    let mut done = Vec::new();
    lane.poll(&mut done);
    assert!(done.is_empty(), "done before the second replica had it");
    bed.agents[0].hold(false);
    bed.agents[0].cut();
    done.extend(finish(&mut lane, 1));
    assert_eq!((done[0].token, done[0].result), (7, Ok(())));
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
}

#[test]
fn a_replica_that_refuses_every_write_is_given_up_not_waited_for() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(8);
    bed.agents[0].script(|_| Fate::Fail(ErrorKind::RemoteOperation));
    write(&mut lane, &runs, 1).unwrap();
    assert_eq!(bed.pool.info().degraded_extents, 1);
    let reads = bed.pool.donors()[0].reads;
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
    assert_eq!(bed.pool.donors()[0].reads, reads, "a replica that missed a write was read");
    // Well again, it gets what it missed.
    bed.agents[0].script(|_| Fate::Do);
    eventually("it is whole again", || bed.pool.info().degraded_extents == 0);
    bed.agents[1].cut();
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
}

#[test]
fn a_replica_that_never_takes_a_write_again_is_made_anew_elsewhere() {
    let bed = Bed::new(&[8, 8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(8);
    let victim = donor_of(&bed, runs[0], 0);
    bed.agents[victim].script(|_| Fate::Fail(ErrorKind::RemoteOperation));
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[victim].cut();
    eventually("it is made anew", || bed.pool.info().degraded_extents == 0);
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
    assert!(bed.pool.slabs().iter().filter(|s| s.state == "live").all(|s| s.donor != format!("d{victim}:1")));
}

#[test]
fn a_write_that_no_replica_takes_is_an_error() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(8);
    bed.agents.iter().for_each(|a| a.drop_slabs());
    assert_eq!(write(&mut lane, &runs, 1), Err(IoError::Lost));
}

#[test]
fn idle_extents_go_back_and_one_stays() {
    let bed = Bed::new(&[8, 8], 2);
    let runs = bed.reserve(5 * SLOTS as usize);
    assert!(bed.agents[0].lent() >= 5);
    runs.iter().flat_map(|r| r.slots()).for_each(|s| bed.pool.release(s));
    eventually("all but the spare extent went back", || bed.agents.iter().all(|a| a.lent() == 1));
    assert_eq!(bed.reserve(10).len(), 1);
}

#[test]
fn shutdown_gives_every_slab_back() {
    let bed = Bed::new(&[8, 8], 2);
    bed.reserve(100);
    bed.pool.shutdown();
    assert!(bed.agents.iter().all(|a| a.lent() == 0));
}

#[test]
fn without_enough_donors_the_pool_says_which_are_missing() {
    let none = Pool::start(PoolConfig::default(), None, PoolState::Fresh).unwrap();
    assert!(matches!(none.is_usable(), Err(PoolError::NoDonors)));
    let bed = Bed::new(&[8, 8], 2);
    assert!(bed.pool.is_usable().is_ok());
    bed.agents[1].cut();
    // At first it may be said that a data connection broke.
    eventually("it is missed, and why", || {
        let text = bed.pool.is_usable().err().map_or_else(String::new, |error| error.to_string());
        text.contains("1 of 2 donors") && text.contains("d1:1: nobody lends memory")
    });
}

#[test]
fn operations_on_free_slots_and_across_extents_are_refused() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(2);
    let free = SlotRun { first: SlotIdx(runs[0].first.0 + 10), count: 1 };
    let across = SlotRun { first: SlotIdx(SLOTS - 1), count: 2 };
    for run in [free, across, SlotRun { first: SlotIdx(u32::MAX), count: 1 }] {
        assert_eq!(read(&mut lane, run, 1), Err(IoError::Misuse), "{run:?}");
    }
    assert_eq!(lane.in_flight(), 0);
}

#[test]
fn under_all_faults_at_once_no_read_that_succeeds_is_wrong() {
    let bed = Bed::with(&[16, 16, 16], 2, |c| c.lost_after = TimeSpan(Duration::from_secs(3)));
    for (i, agent) in bed.agents.iter().enumerate() {
        let mut n = i as u64 * 7919;
        agent.script(move |_| {
            n += 1;
            match n {
                n if n % 211 == 0 => Fate::Break,
                n if n % 53 == 0 => Fate::Corrupt,
                n if n % 37 == 0 => Fate::Fail(ErrorKind::RemoteOperation),
                _ => Fate::Do,
            }
        });
    }
    let mut lane = bed.pool.lane("test", 1024).unwrap();
    let mut held: Vec<(SlotRun, u32)> = Vec::new();
    let (mut reads, mut failed) = (0, 0);
    let caught = || bed.pool.donors().iter().map(|d| d.checksum_errors).sum::<u64>();
    let until = Instant::now() + Duration::from_secs(60);
    let mut generation = 0;
    while reads < 6000 || caught() == 0 {
        assert!(Instant::now() < until, "{reads} reads, {} wrong pages caught", caught());
        generation += 1;
        let mut runs = Vec::new();
        // Slots whose writes were swept away are kept back for a while, so there may be none now
        // and then.
        if bed.pool.reserve(1 + generation as usize % 20, &mut runs) == 0 {
            held.drain(..5).for_each(|(run, _)| run.slots().for_each(|s| bed.pool.release(s)));
            continue;
        }
        match write(&mut lane, &runs, generation) {
            Ok(()) => held.extend(runs.iter().map(|r| (*r, generation))),
            Err(_) => runs.iter().flat_map(|r| r.slots()).for_each(|s| bed.pool.release(s)),
        }
        // Several reads at once, over each other's pages.
        let picks: Vec<(SlotRun, u32)> = held.iter().rev().step_by(3).take(12).copied().collect();
        for (i, (run, _)) in picks.iter().enumerate() {
            let buf = lane.alloc(run.count as usize).unwrap();
            lane.read(*run, buf, i as u64).unwrap();
        }
        for done in finish(&mut lane, picks.len()) {
            let (run, generation) = picks[done.token as usize];
            reads += 1;
            match done.result {
                Ok(()) => {
                    let pages = run.slots().zip(lane.bytes(&done.buf).chunks_exact(PAGE_SIZE));
                    pages.for_each(|(s, p)| assert!(is_filled(p, s.0, generation), "wrong bytes in {s}"));
                }
                Err(_) => failed += 1,
            }
            lane.free(done.buf);
        }
        if held.len() > 20 {
            let (run, _) = held.remove(generation as usize % 20);
            run.slots().for_each(|s| bed.pool.release(s));
        }
    }
    assert!(failed * 50 < reads, "{failed} of {reads} reads failed");
    assert_eq!(lane.in_flight(), 0);
}

#[test]
fn a_dropped_lane_leaves_no_slot_behind() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(8);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents.iter().for_each(|a| a.hold(true));
    let buf = lane.alloc(8).unwrap();
    lane.read(runs[0], buf, 1).unwrap();
    drop(lane);
    assert!(runs[0].slots().all(|s| bed.pool.references(s) == 1));
}
