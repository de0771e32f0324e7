//! Donors that are lost, away, back, recalled, added and removed, and what becomes of their
//! replicas.

use super::{are_whole, donor_of, never_away};
use annex_fabric::{ErrorKind, OpKind};
use annex_host::events::{self, Ring};
use annex_pool::{IoError, Lane, SlotRun};
use annex_pool_testbed::{Bed, Fate, SLOTS, eventually, finish, post_write, read, write};
use annex_shared::api::{DonorState, Limit};
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::event::EventKind;
use annex_shared::page::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Two donors that are soon away and not soon lost.
fn patient() -> Bed {
    Bed::with(&[8, 8], 2, |c| {
        c.away_after = TimeSpan(Duration::from_millis(50));
        c.lost_after = TimeSpan(Duration::from_secs(20));
    })
}

#[test]
fn a_lost_replica_is_made_anew_while_pages_come_and_go() {
    let bed = Bed::new(&[8, 8, 8], 2);
    let mut lane = bed.lane();
    let kept = bed.reserve(150);
    write(&mut lane, &kept, 1).unwrap();
    let victim = donor_of(&bed, kept[0], 0);
    bed.agents[victim].cut();
    let mut generation = 1;
    eventually("every extent is whole", || {
        generation += 1;
        let runs = bed.reserve(7);
        write(&mut lane, &runs, generation).unwrap();
        assert!(runs.iter().all(|r| read(&mut lane, *r, generation) == Ok(true)));
        runs.iter().flat_map(|r| r.slots()).for_each(|s| bed.pool.release(s));
        let info = bed.pool.info();
        bed.pool.donors()[victim].state == DonorState::Lost && info.degraded_extents == 0 && info.repaired > 0
    });
    // One more donor may go now: whatever was on the first is on the others twice.
    let second = (0..3).find(|d| *d != victim).unwrap();
    bed.agents[second].cut();
    assert!(kept.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
}

/// Every 5 s the log said of a donor that stayed away that it counts as lost.
#[test]
fn a_donor_that_stays_away_is_said_to_be_lost_once() {
    const NAME: &str = "stays-away";
    events::keep_in(Ring::create().unwrap());
    let of = |kind| events::after(0).into_iter().filter(move |e| e.kind == kind && e.subject == NAME);
    let said = |kind| of(kind).map(|event| event.count).sum::<u32>();
    let bed = Bed::with(&[8, 8], 2, |c| {
        c.donors[0].name = Some(NAME.into());
        c.away_after = TimeSpan(Duration::from_millis(5));
        c.lost_after = TimeSpan(Duration::from_millis(10));
    });
    bed.agents[0].cut();
    eventually("it counts as lost", || said(EventKind::DonorLost) > 0);
    let before = bed.agents[0].with(|agent| agent.dialed);
    eventually("it is dialed again and again", || bed.agents[0].with(|agent| agent.dialed) >= before + 5);
    assert_eq!(said(EventKind::DonorLost), 1);
    bed.agents[0].mend();
    eventually("it is back", || said(EventKind::DonorBack) > 0);
    let back = of(EventKind::DonorBack).next().unwrap();
    assert!(back.cause.contains(" attempts had failed in "), "{}", back.cause);
    // Gone again, that is news.
    bed.agents[0].cut();
    eventually("it counts as lost again", || said(EventKind::DonorLost) == 2);
}

#[test]
fn a_donor_that_was_away_gets_only_what_it_missed() {
    let bed = patient();
    let mut lane = bed.lane();
    let old = bed.reserve(100);
    write(&mut lane, &old, 1).unwrap();
    bed.agents[1].cut();
    let missed = bed.reserve(10);
    write(&mut lane, &missed, 2).unwrap();
    // Not because the donor was given up for good.
    assert!(bed.pool.donors()[1].state != DonorState::Lost, "the write waited for a donor that is away");
    assert!(bed.pool.info().stale_replicas >= 1 && bed.pool.info().degraded_extents >= 1);
    assert!(bed.pool.info().last_copy_extents >= 1, "one copy is left of what has pages");
    bed.agents[1].mend();
    eventually("it is whole again", || bed.pool.info().degraded_extents == 0);
    assert_eq!(bed.pool.info().repaired, 10 * PAGE_SIZE as u64);
    bed.agents[0].cut();
    assert!(old.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    assert!(missed.iter().all(|r| read(&mut lane, *r, 2) == Ok(true)));
}

#[test]
fn nothing_waits_long_for_a_donor_that_answers_nothing_and_all_waits_for_one_that_is_only_slow() {
    let bed = patient();
    let mut lane = bed.lane();
    let runs = bed.reserve(3);
    write(&mut lane, &runs[..1], 1).unwrap();
    let slow = bed.agents[1].clone();
    slow.hold(true);
    let answers = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            answers.store(true, SeqCst);
            slow.hold(false);
        });
        write(&mut lane, &runs, 2).unwrap();
        assert!(answers.load(SeqCst), "a donor whose agent answers was given up");
    });
    assert_eq!(bed.pool.info().stale_replicas, 0);

    slow.hold(true);
    slow.mute(true);
    // It answers again only when the write is completed: until then nothing comes from it.
    write(&mut lane, &runs, 3).unwrap();
    let (stale, state) = (bed.pool.info().stale_replicas, bed.pool.donors()[1].state);
    slow.mute(false);
    slow.hold(false);
    assert!(stale >= 1 && state != DonorState::Lost, "{stale} stale replicas, the donor is {state:?}");
    eventually("it is whole again", || bed.pool.info().degraded_extents == 0);
    bed.agents[0].cut();
    assert!(runs.iter().all(|r| read(&mut lane, *r, 3) == Ok(true)));
}

#[test]
fn a_page_that_only_a_donor_that_is_away_has_is_waited_for() {
    let bed = patient();
    let mut lane = bed.lane();
    let run = bed.reserve(4)[0];
    write(&mut lane, &[run], 1).unwrap();
    bed.agents[1].cut();
    eventually("it is away", || bed.pool.info().stale_replicas >= 1);
    bed.agents[0].rot();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            bed.agents[1].mend();
        });
        assert_eq!(read(&mut lane, run, 1), Ok(true));
    });
}

/// A device that is being taken away refuses access to what its agent holds as ever.
#[test]
fn access_refused_to_the_only_whole_copy_is_no_loss_while_its_agent_holds_it() {
    let bed = patient();
    let mut lane = bed.lane();
    let runs = bed.reserve(4);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[0].cut();
    eventually("it is away", || bed.pool.info().stale_replicas >= 1);
    write(&mut lane, &runs, 2).unwrap();
    let refused = Arc::new(AtomicBool::new(false));
    let once = refused.clone();
    bed.agents[1].script(move |_| match once.swap(true, SeqCst) {
        false => Fate::Fail(ErrorKind::RemoteAccess),
        true => Fate::Do,
    });
    std::thread::scope(|threads| {
        threads.spawn(|| {
            eventually("it was refused", || refused.load(SeqCst));
            bed.agents[0].mend();
        });
        assert!(runs.iter().all(|run| read(&mut lane, *run, 2) == Ok(true)));
    });
    eventually("it is whole again", || bed.pool.info().degraded_extents == 0);
    bed.agents[1].cut();
    assert!(runs.iter().all(|run| read(&mut lane, *run, 2) == Ok(true)));
}

/// A slab that its agent does not hold any more is made anew at once, though nothing else is wrong.
#[test]
fn access_refused_to_what_its_agent_does_not_hold_is_a_loss() {
    let bed = patient();
    let mut lane = bed.lane();
    let runs = bed.reserve(4);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[0].drop_slabs();
    eventually("it is made anew", || {
        assert!(runs.iter().all(|run| read(&mut lane, *run, 1) == Ok(true)));
        bed.pool.info().repaired > 0 && bed.pool.info().degraded_extents == 0
    });
    bed.agents[1].cut();
    assert!(runs.iter().all(|run| read(&mut lane, *run, 1) == Ok(true)));
}

#[test]
fn an_agent_that_restarts_with_its_bytes_is_resynced_not_rebuilt() {
    let bed = Bed::with(&[8, 8], 2, |c| c.lost_after = TimeSpan(Duration::from_secs(20)));
    let mut lane = bed.lane();
    let old = bed.reserve(100);
    write(&mut lane, &old, 1).unwrap();
    bed.agents[1].cut();
    let missed = bed.reserve(10);
    write(&mut lane, &missed, 2).unwrap();
    bed.agents[1].restart_with_bytes();
    eventually("it is whole again", || bed.pool.info().degraded_extents == 0);
    assert_eq!(bed.pool.info().repaired, 10 * PAGE_SIZE as u64);
    bed.agents[0].cut();
    assert!(old.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    assert!(missed.iter().all(|r| read(&mut lane, *r, 2) == Ok(true)));
}

#[test]
fn with_a_single_replica_reads_wait_for_an_agent_that_restarts_with_its_bytes() {
    let bed = Bed::with(&[8], 1, |c| c.lost_after = TimeSpan(Duration::from_secs(20)));
    let mut lane = bed.lane();
    let runs = bed.reserve(20);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[0].cut();
    let agent = bed.agents[0].clone();
    let back = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        agent.restart_with_bytes();
    });
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
    back.join().unwrap();
}

#[test]
fn a_write_that_nobody_took_does_not_hold_up_the_pages_beside_it() {
    // Both donors lacked slots that were nobody's, and each waited for the other: the extent could
    // not be read for ten seconds, and then pages that nobody missed were said to be gone.
    let bed = patient();
    let mut lane = bed.lane();
    let kept = bed.reserve(20);
    write(&mut lane, &kept, 1).unwrap();
    let failed = bed.reserve(6);
    bed.agents.iter().for_each(|a| a.hold(true));
    post_write(&mut lane, &failed, 2, 1);
    lane.submit();
    bed.agents.iter().for_each(|a| a.cut());
    assert_eq!(finish(&mut lane, 1)[0].result, Err(IoError::Lost));
    failed.iter().flat_map(|r| r.slots()).for_each(|s| bed.pool.release(s));
    let used = |bed: &Bed| bed.pool.info().used;
    assert_eq!(used(&bed), 26 * PAGE_SIZE as u64, "what may still arrive must not be used anew");

    bed.agents.iter().for_each(|a| {
        a.hold(false);
        a.mend();
    });
    assert!(kept.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    eventually("every extent is whole", || bed.pool.info().degraded_extents == 0);
    assert_eq!(used(&bed), 26 * PAGE_SIZE as u64, "the failed write was over before it could hold anything up");
    assert_eq!(bed.pool.info().lost_pages, 0);
}

#[test]
fn while_no_replica_is_live_those_that_are_filled_are_read_for_what_they_have() {
    let bed = Bed::with(&[8, 8], 2, |c| {
        c.away_after = TimeSpan(Duration::from_millis(50));
        c.lost_after = TimeSpan(Duration::from_secs(20));
        c.repair_rate = ByteSize(PAGE_SIZE as u64);
    });
    let mut lane = bed.lane();
    let old = bed.reserve(20);
    write(&mut lane, &old, 1).unwrap();
    bed.agents[0].cut();
    eventually("it is away", || bed.pool.info().stale_replicas >= 1);
    let new = bed.reserve(40);
    write(&mut lane, &new, 2).unwrap();
    bed.agents[1].cut();
    eventually("both are away", || bed.pool.info().stale_replicas >= 2);
    // The first one to be back lacks forty pages, and nobody can give them to it.
    bed.agents[0].mend();
    assert!(old.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    assert!(bed.pool.info().waiting_extents >= 1, "the reads waited until a replica was live");
    bed.agents[1].mend();
    assert!(new.iter().all(|r| read(&mut lane, *r, 2) == Ok(true)));
}

#[test]
fn recalled_slabs_are_emptied_and_returned_in_time() {
    let bed = Bed::new(&[8, 8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(150);
    write(&mut lane, &runs, 1).unwrap();
    let victim = donor_of(&bed, runs[0], 0);
    bed.agents[victim].recall(10_000);
    eventually("all are returned", || bed.agents[victim].lent() == 0);
    eventually("every extent is whole", || bed.pool.info().degraded_extents == 0);
    // Its free room is known from before, and evening out may have tried it once.
    eventually("nothing is on the move", || bed.pool.info().moving_replicas == 0);
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    assert!(bed.pool.slabs().iter().all(|s| s.state == "live"), "moved replicas are not lost ones");
}

#[test]
fn a_donor_that_says_goodbye_is_emptied_within_its_grace() {
    let bed = Bed::new(&[8, 8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(150);
    write(&mut lane, &runs, 1).unwrap();
    let victim = donor_of(&bed, runs[0], 0);
    bed.agents[victim].say_goodbye(10_000);
    eventually("all are returned", || bed.agents[victim].lent() == 0);
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
}

#[test]
fn a_donor_is_added_and_another_removed_under_pages_that_stay() {
    let bed = Bed::new(&[8, 8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(150);
    write(&mut lane, &runs, 1).unwrap();
    let victim = donor_of(&bed, runs[0], 0);
    bed.pool.remove_donor(&format!("d{victim}:1")).unwrap();
    eventually("it is gone", || bed.pool.donors().len() == 2);
    eventually("it has everything back", || bed.agents[victim].lent() == 0);
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    assert!(are_whole(&bed, &bed.pool, &runs));

    let staying = (0..3).find(|d| *d != victim).unwrap();
    let error = bed.pool.remove_donor(&format!("d{staying}:1")).unwrap_err().to_string();
    assert!(error.contains("only 1 would be left for 2 replicas"), "{error}");
    let config = bed.config.donors[victim].clone();
    bed.pool.add_donor(config.clone()).unwrap();
    assert!(bed.pool.add_donor(config).is_err());
    eventually("it is up", || bed.pool.donors().iter().filter(|d| d.state == DonorState::Up).count() == 3);
    bed.agents[staying].cut();
    eventually("what was lost is on the one that was added", || {
        bed.pool.info().degraded_extents == 0 && bed.agents[victim].lent() > 0
    });
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
}

fn take_late_answers(lane: &mut Lane) {
    eventually("late answers are taken", || {
        lane.poll(&mut Vec::new());
        lane.pages_out() == 0
    });
}

#[test]
fn a_read_that_takes_too_long_is_answered_by_another_replica() {
    let bed = Bed::with(&[8, 8], 2, |c| c.read_timeout = TimeSpan(Duration::from_millis(30)));
    let mut lane = bed.lane();
    let runs = bed.reserve(200);
    let run = runs[0];
    write(&mut lane, &runs, 1).unwrap();
    // Whichever of the two is asked first: one of them never answers.
    for silent in [0, 1] {
        bed.agents[silent].hold(true);
        // It never answers while this goes on: only the other one can.
        for _ in 0..20 {
            assert_eq!(read(&mut lane, run, 1), Ok(true));
        }
        bed.agents[silent].hold(false);
        take_late_answers(&mut lane);
    }
    assert!(bed.pool.info().hedged_reads > 0);
    // The arena is whole: nothing was given away that a late answer could still write to, and
    // nothing was lost.
    let all = lane.alloc(256).expect("some pages of the arena are gone");
    lane.free(all);
}

/// The first one is silent, the second one fails: the read waited for the first although the third
/// had the page.
#[test]
fn a_late_read_whose_company_fails_gets_other_company() {
    let bed = Bed::with(&[8, 8, 8], 3, |c| c.read_timeout = TimeSpan(Duration::from_millis(30)));
    let mut lane = bed.lane();
    let run = bed.reserve(1)[0];
    write(&mut lane, &[run], 1).unwrap();
    // Which one is asked first is not known.
    for silent in [0, 1, 2].into_iter().cycle().take(60) {
        let fails = Arc::new(AtomicBool::new(true));
        for agent in &bed.agents {
            let fails = fails.clone();
            agent.script(move |op| match op.kind == OpKind::Read && fails.swap(false, SeqCst) {
                true => Fate::Fail(ErrorKind::RemoteOperation),
                false => Fate::Do,
            });
        }
        bed.agents[silent].hold(true);
        let before = bed.pool.info().hedged_reads;
        assert_eq!(read(&mut lane, run, 1), Ok(true));
        if bed.pool.info().hedged_reads >= before + 2 {
            return;
        }
        fails.store(false, SeqCst);
        bed.agents[silent].hold(false);
        take_late_answers(&mut lane);
    }
    panic!("no read had company twice");
}

#[test]
fn extents_without_a_live_replica_take_no_pages() {
    let bed = Bed::new(&[8, 8], 2);
    bed.reserve(8);
    bed.agents.iter().for_each(|a| a.cut());
    eventually("all are lost", || bed.pool.info().lost_extents == bed.pool.info().extents);
    assert_eq!(bed.pool.reserve(1, &mut Vec::new()), 0);
}

#[test]
fn a_restarted_donor_is_never_read_for_what_it_held_before() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(16);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[0].restart();
    eventually("it is made anew", || bed.pool.info().repaired > 0);
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
    eventually("it is used again", || bed.pool.is_usable().is_ok());
    let more = bed.reserve(SLOTS as usize);
    write(&mut lane, &more, 2).unwrap();
    bed.agents[1].cut();
    assert!(
        more.iter()
            .filter(|r| r.first.0 / SLOTS != runs[0].first.0 / SLOTS)
            .all(|r| read(&mut lane, *r, 2) == Ok(true))
    );
}

#[test]
fn a_broken_control_connection_alone_loses_nothing() {
    let bed = Bed::with(&[8, 8], 2, never_away);
    let mut lane = bed.lane();
    let runs = bed.reserve(16);
    write(&mut lane, &runs, 1).unwrap();
    let hellos = bed.agents[0].hellos();
    bed.agents[0].hang_up();
    eventually("it is connected again", || bed.agents[0].hellos() > hellos && bed.pool.is_usable().is_ok());
    assert!(are_whole(&bed, &bed.pool, &runs));
    bed.agents[1].cut();
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
}

#[test]
fn a_donor_that_says_goodbye_is_left_in_time() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    let runs = bed.reserve(16);
    write(&mut lane, &runs, 1).unwrap();
    bed.agents[0].say_goodbye(50);
    eventually("its replicas are lost", || bed.pool.info().degraded_extents >= 1);
    assert_eq!(read(&mut lane, runs[0], 1), Ok(true));
}

#[test]
fn a_connection_that_makes_do_with_tcp_is_made_anew_when_rdma_works() {
    let bed = patient();
    let mut lane = bed.lane();
    bed.agents[0].rdma(false);
    let hellos = bed.agents[0].hellos();
    bed.agents[0].cut();
    bed.agents[0].mend();
    eventually("it has said hello again", || bed.agents[0].hellos() > hellos);
    let runs = bed.reserve(20);
    eventually("both are up", || bed.pool.is_usable().is_ok());
    write(&mut lane, &runs, 1).unwrap();
    eventually("it says why RDMA does not work now", || bed.pool.donors()[0].why.starts_with("verbs failed ("));
    let hellos = bed.agents[0].hellos();
    bed.agents[0].rdma(true);
    eventually("it says hello again", || bed.agents[0].hellos() > hellos);
    assert!(runs.iter().all(|r| read(&mut lane, *r, 1) == Ok(true)));
    eventually("no replica was lost over it", || bed.pool.info().degraded_extents == 0);
}

/// `available_pages` left degraded extents out, so that the KV API had ninety per cent of nothing.
#[test]
fn with_donors_away_there_is_room_as_long_as_one_is_there() {
    for (donors, replicas, away) in [(2, 2, 1), (3, 2, 1), (3, 2, 2), (4, 2, 2), (3, 3, 2), (2, 1, 1)] {
        let bed = Bed::new(&vec![8; donors], replicas);
        bed.pool.divide(annex_pool::Terms { min: Limit::Percent(0), max: Limit::Percent(90) }, 0);
        let mut lane = bed.lane();
        let runs = bed.reserve(8);
        write(&mut lane, &runs, 1).unwrap();
        bed.agents[..away].iter().for_each(|agent| agent.cut());
        let states = || bed.pool.donors()[..away].iter().all(|d| d.state != DonorState::Up);
        eventually("they are missed", states);
        let missed: Vec<String> = bed.pool.donors()[..away].iter().map(|d| d.name.clone()).collect();
        eventually("nothing is written to them", || {
            bed.pool.slabs().iter().all(|slab| slab.state != "live" || !missed.contains(&slab.donor))
        });
        eventually("there is room", || bed.pool.room_for_kv() >= 3 * u64::from(SLOTS));
        // More than the extents that were there: new ones are made on who is there.
        let mut runs = Vec::new();
        eventually("pages are had", || {
            let got: u32 = runs.iter().map(|run: &SlotRun| run.count).sum();
            got >= 3 * SLOTS || bed.pool.reserve_for_kv((3 * SLOTS - got) as usize, &mut runs) as u32 + got >= 3 * SLOTS
        });
        assert_eq!(write(&mut lane, &runs, 2), Ok(()), "{donors} donors, {replicas} replicas, {away} away");
        assert!(runs.iter().all(|run| read(&mut lane, *run, 2) == Ok(true)));
        assert!(bed.pool.takes_writes() && bed.pool.takes_writes_to(runs[0].first));
        assert!(!bed.pool.info().full);

        bed.agents.iter().for_each(|agent| agent.cut());
        eventually("none takes writes", || !bed.pool.takes_writes() && bed.pool.available_pages() == 0);
        assert!(!bed.pool.takes_writes_to(runs[0].first));
    }
}

#[test]
fn what_was_written_while_a_donor_was_away_is_on_it_when_it_is_back() {
    let bed = Bed::new(&[8, 8], 2);
    let mut lane = bed.lane();
    write(&mut lane, &bed.reserve(8), 1).unwrap();
    bed.agents[0].cut();
    eventually("it is missed", || bed.pool.is_usable().is_err());
    let mut runs = Vec::new();
    eventually("pages are had", || {
        let got: u32 = runs.iter().map(|run: &SlotRun| run.count).sum();
        got >= 2 * SLOTS || bed.pool.reserve((2 * SLOTS - got) as usize, &mut runs) as u32 + got >= 2 * SLOTS
    });
    write(&mut lane, &runs, 2).unwrap();
    bed.agents[0].mend();
    eventually("all is whole", || bed.pool.is_usable().is_ok() && bed.pool.info().degraded_extents == 0);
    bed.agents[1].cut();
    assert!(runs.iter().all(|run| read(&mut lane, *run, 2) == Ok(true)));
}
