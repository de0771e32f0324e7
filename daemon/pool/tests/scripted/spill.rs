//! The spill file beside scripted donors: the file is a real one.

use super::are_whole;
use annex_pool::{IoError, Lane, Pool, PoolError, PoolState, SlotRun, Spill};
use annex_pool_testbed::{Bed, SLOTS, SpillBed, eventually, read, write};
use annex_shared::api::DonorInfo;
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::time::Duration;

const EXTENT: u64 = SLOTS as u64 * PAGE_SIZE as u64;

fn file(pool: &Pool) -> DonorInfo {
    pool.donors().into_iter().find(|d| d.name == "spill").unwrap()
}

fn all_right(lane: &mut Lane, runs: &[SlotRun], generation: u32) -> bool {
    runs.iter().all(|r| read(lane, *r, generation) == Ok(true))
}

#[test]
fn what_no_donor_has_room_for_lies_in_the_file_and_moves_to_donors_that_are_added() {
    let bed = Bed::spilling(&[1, 1, 8, 8], 2, 8, |c| c.donors.truncate(2));
    let mut lane = bed.lane();
    let runs = bed.reserve(3 * SLOTS as usize);
    write(&mut lane, &runs, 1).unwrap();
    assert!(all_right(&mut lane, &runs, 1));
    assert_eq!(bed.pool.info().spilled, 2 * EXTENT);
    eventually("the file's slabs are told", || file(&bed.pool).slabs_held >= 2);
    let warnings = bed.pool.warnings();
    assert!(warnings.iter().any(|w| w.contains("the last tier is in use: 512 KiB")), "{warnings:?}");

    for n in [2, 3] {
        let address = format!("d{n}:1");
        bed.pool.add_donor(annex_pool::DonorConfig { address, ..Default::default() }).unwrap();
    }
    eventually("nothing is left in the file", || bed.pool.info().spilled == 0 && file(&bed.pool).slabs_held == 0);
    assert!(all_right(&mut lane, &runs, 1));
    assert!(are_whole(&bed, &bed.pool, &runs));
    assert!(bed.pool.slabs().iter().all(|s| s.state == "live" && s.donor != "spill"), "{:?}", bed.pool.slabs());
}

#[test]
fn with_a_donor_lost_and_none_to_take_its_place_the_file_has_the_second_copy() {
    let bed = Bed::spilling(&[8, 8], 2, 8, |_| ());
    let mut lane = bed.lane();
    let runs = bed.reserve(100);
    write(&mut lane, &runs, 1).unwrap();
    assert_eq!(file(&bed.pool).slabs_held, 0);
    bed.agents[0].cut();
    eventually("the file has it", || bed.pool.info().spilled > 0 && bed.pool.info().degraded_extents == 0);
    bed.agents[1].cut();
    assert!(all_right(&mut lane, &runs, 1));
}

#[test]
fn the_file_takes_no_more_than_its_size() {
    let bed = Bed::spilling(&[0, 0], 2, 2, |_| ());
    let mut runs = Vec::new();
    assert_eq!(bed.pool.reserve(200, &mut runs), 2 * SLOTS as usize);
    assert!(bed.pool.info().full);
    assert_eq!(bed.pool.available_pages(), 0);
    let size = std::fs::metadata(&bed.spill.as_ref().unwrap().config.path).unwrap().len();
    assert_eq!(size, PAGE_SIZE as u64 + 2 * EXTENT);
}

#[test]
fn what_is_given_back_takes_no_room_on_the_disk() {
    use std::os::unix::fs::MetadataExt;
    let bed = Bed::spilling(&[0, 0], 2, 8, |_| ());
    let mut lane = bed.lane();
    let runs = bed.reserve(3 * SLOTS as usize);
    write(&mut lane, &runs, 1).unwrap();
    let taken = || std::fs::metadata(&bed.spill.as_ref().unwrap().config.path).unwrap().blocks() * 512;
    assert!(taken() >= 3 * EXTENT);
    runs.iter().flat_map(|r| r.slots()).for_each(|s| bed.pool.release(s));
    eventually("its room is the file system's again", || taken() < EXTENT);
}

/// One donor, one replica, and all of it backed up.
fn backed_up(change: impl FnOnce(&mut annex_pool::PoolConfig)) -> (Bed, Lane, Vec<SlotRun>) {
    let bed = Bed::spilling(&[8], 1, 8, change);
    let mut lane = bed.lane();
    let runs = bed.reserve(150);
    write(&mut lane, &runs, 1).unwrap();
    eventually("every extent with pages has its backup", || bed.pool.info().backup_lag == 0);
    (bed, lane, runs)
}

#[test]
fn with_one_replica_the_end_of_all_donors_loses_no_page_that_was_backed_up() {
    let (bed, mut lane, runs) = backed_up(|_| ());
    bed.agents[0].cut();
    assert!(all_right(&mut lane, &runs, 1));
    eventually("the donor is lost and the file has it all", || {
        bed.pool.info().spilled > 0 && bed.pool.slabs().iter().all(|s| (s.donor == "spill") == (s.state == "live"))
    });
    assert!(all_right(&mut lane, &runs, 1));
    // It goes on with new pages too.
    let more = bed.reserve(20);
    write(&mut lane, &more, 2).unwrap();
    assert!(all_right(&mut lane, &more, 2));
    assert_eq!(bed.pool.info().lost_pages, 0);
}

#[test]
fn a_backup_is_not_read_while_the_donor_answers_and_stays_a_backup() {
    let (bed, mut lane, runs) = backed_up(|c| c.hedge_after = TimeSpan(Duration::from_secs(5)));
    for _ in 0..600 {
        assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
    }
    assert_eq!(file(&bed.pool).reads, 0);
    assert_eq!((bed.pool.info().spilled, bed.pool.info().repair_left), (0, 0));
    let states =
        |donor: &str| bed.pool.slabs().into_iter().filter(|s| s.donor == donor).map(|s| s.state).collect::<Vec<_>>();
    assert!(states("spill").iter().all(|s| s == "backup") && states("d0:1").iter().all(|s| s == "live"));
}

#[test]
fn what_is_written_after_a_backup_was_made_is_backed_up_too() {
    let (bed, mut lane, runs) = backed_up(|_| ());
    let later = bed.reserve(30);
    write(&mut lane, &later, 2).unwrap();
    runs[0].slots().for_each(|s| bed.pool.release(s));
    let again = bed.reserve(runs[0].count as usize);
    write(&mut lane, &again, 3).unwrap();
    eventually("the backup is up to date", || bed.pool.info().backup_lag == 0);
    bed.agents[0].cut();
    assert!(all_right(&mut lane, &later, 2) && all_right(&mut lane, &again, 3));
}

#[test]
fn a_page_that_its_backup_lacks_is_an_error_and_never_what_was_there_before() {
    // 64 pages a second.
    let (bed, mut lane, runs) = backed_up(|c| c.repair_rate = ByteSize(256 << 10));
    runs.iter().flat_map(|r| r.slots()).for_each(|s| bed.pool.release(s));
    let again = bed.reserve(150);
    write(&mut lane, &again, 2).unwrap();
    bed.agents[0].cut();
    let single = |slot| SlotRun { first: slot, count: 1 };
    let results: Vec<_> = again.iter().flat_map(|r| r.slots()).map(|slot| read(&mut lane, single(slot), 2)).collect();
    assert!(results.iter().all(|r| matches!(r, Ok(true) | Err(IoError::Lost | IoError::Corrupt))), "{results:?}");
    assert!(results.iter().any(|r| r.is_err()), "the backup was never behind");
}

#[test]
fn a_donor_that_comes_back_leads_again_and_the_file_follows() {
    let (bed, mut lane, runs) = backed_up(|c| {
        c.away_after = TimeSpan(Duration::from_millis(50));
        c.lost_after = TimeSpan(Duration::from_secs(20));
    });
    bed.agents[0].cut();
    eventually("the file is written", || bed.pool.info().spilled > 0 || bed.pool.info().stale_replicas > 0);
    let meanwhile = bed.reserve(10);
    write(&mut lane, &meanwhile, 2).unwrap();
    bed.agents[0].mend();
    eventually("all is as before", || {
        let info = bed.pool.info();
        let follows = bed.pool.slabs().iter().any(|s| s.state == "backup");
        info.stale_replicas + info.syncing_replicas == 0 && info.spilled + info.backup_lag == 0 && follows
    });
    assert!(all_right(&mut lane, &runs, 1) && all_right(&mut lane, &meanwhile, 2));
}

fn saved<'a>(bed: &Bed, references: annex_pool::References<'a>) -> PoolState<'a> {
    let (extents, slots) = bed.pool.state_fds();
    let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    PoolState::Saved { extents: copy(extents), slots: copy(slots), references }
}

#[test]
fn the_next_annexd_goes_on_with_what_is_in_the_file() {
    let bed = Bed::spilling(&[0, 0], 2, 8, |_| ());
    let mut lane = bed.lane();
    let runs = bed.reserve(100);
    write(&mut lane, &runs, 1).unwrap();
    drop(lane);
    bed.pool.leave();
    let references = |each: &mut dyn FnMut(SlotIdx)| runs.iter().flat_map(|run| run.slots()).for_each(each);
    let SpillBed { config, file: before, .. } = bed.spill.as_ref().unwrap();
    let kept = before.fd().try_clone_to_owned().unwrap();
    let next = Spill::open(config, Some(kept), true, Duration::from_secs(3)).unwrap();
    let next = Pool::start_with(bed.config.clone(), next, saved(&bed, &references), bed.dialer()).unwrap();
    let mut lane = next.lane("test", 256).unwrap();
    assert!(all_right(&mut lane, &runs, 1));
    assert_eq!(next.info().used, 100 * PAGE_SIZE as u64);
    // And new pages are put beside the old ones.
    let mut more = Vec::new();
    assert_eq!(next.reserve(3 * SLOTS as usize, &mut more), 3 * SLOTS as usize);
    write(&mut lane, &more, 2).unwrap();
    assert!(all_right(&mut lane, &runs, 1) && all_right(&mut lane, &more, 2));
}

#[test]
fn a_take_over_without_the_spill_file_that_holds_pages_is_refused() {
    let bed = Bed::spilling(&[0, 0], 2, 8, |_| ());
    bed.reserve(1);
    bed.pool.leave();
    let error = Pool::start_with(bed.config.clone(), None, saved(&bed, &|_| ()), bed.dialer()).err().unwrap();
    assert!(matches!(error, PoolError::SpillMissing), "{error}");
}

/// Bytes under an old table in a file that was begun anew since: nothing in it is what the table
/// means.
#[test]
fn a_file_that_was_begun_anew_is_not_read_for_what_it_held_before() {
    let bed = Bed::spilling(&[0, 0], 2, 8, |_| ());
    let mut lane = bed.lane();
    let runs = bed.reserve(10);
    write(&mut lane, &runs, 1).unwrap();
    drop(lane);
    bed.pool.leave();
    let other = SpillBed::new(8);
    let references = |each: &mut dyn FnMut(SlotIdx)| runs.iter().flat_map(|run| run.slots()).for_each(each);
    let state = saved(&bed, &references);
    let next = Pool::start_with(bed.config.clone(), Some(other.file.clone()), state, bed.dialer()).unwrap();
    let mut lane = next.lane("test", 256).unwrap();
    assert_eq!(read(&mut lane, runs[0], 1), Err(IoError::Lost));
}

#[test]
fn the_spill_file_is_no_donor_to_be_removed() {
    let bed = Bed::spilling(&[8, 8], 2, 8, |_| ());
    let error = bed.pool.remove_donor("spill").unwrap_err().to_string();
    assert!(error.contains("remove [spill]"), "{error}");
    // Nor does it count for what is left without another one.
    assert!(bed.pool.remove_donor("d0:1").unwrap_err().to_string().contains("only 1 would be left"));
}
