//! Who is let in when.

use super::*;

fn keys(locks: &Locks, keys: &[&str], write: bool) -> Ticket {
    locks.keys(keys.iter().map(|key| key.as_bytes()), if write { Mode::Write } else { Mode::Read })
}

#[test]
fn deferred_writes_follow_each_other_and_nobody_else_comes_between() {
    let locks = Locks::default();
    let deferred = || locks.keys([&b"a"[..]].into_iter(), Mode::Deferred);
    let (first, second) = (deferred(), deferred());
    assert!(first.is_granted() && !second.is_granted());
    first.appended();
    assert!(second.is_granted());
    second.appended();
    let reader = keys(&locks, &["a"], false);
    let third = deferred();
    assert!(!reader.is_granted() && !third.is_granted());
    drop(first);
    assert!(!reader.is_granted());
    drop(second);
    assert!(reader.is_granted() && !third.is_granted());
    drop(reader);
    assert!(third.is_granted());
    let writer = keys(&locks, &["a"], true);
    third.appended();
    assert!(!writer.is_granted());
    drop(third);
    assert!(writer.is_granted());
}

#[test]
fn who_need_not_ask_to_read_is_who_would_be_let_in_at_once() {
    let locks = Locks::default();
    let may = || locks.may_read([&b"a"[..]].into_iter());
    let reader = keys(&locks, &["a"], false);
    assert!(may());
    let writer = keys(&locks, &["a"], true);
    assert!(!may(), "a writer waits");
    drop(reader);
    assert!(!may() && locks.may_read([&b"b"[..]].into_iter()));
    drop(writer);
    let deferred = locks.keys([&b"a"[..]].into_iter(), Mode::Deferred);
    assert!(!may());
    deferred.appended();
    assert!(!may(), "a deferred write is on its way");
    drop(deferred);
    assert!(may());
    let alone = locks.everything();
    assert!(!may());
    drop(alone);
    assert!(may());
}

#[test]
fn a_deferred_write_that_ends_before_it_is_in_the_log_lets_the_next_one_in() {
    let locks = Locks::default();
    let deferred = || locks.keys([&b"a"[..]].into_iter(), Mode::Deferred);
    let (first, second) = (deferred(), deferred());
    drop(first);
    assert!(second.is_granted());
}

#[test]
fn readers_share_a_key_and_a_writer_does_not() {
    let locks = Locks::default();
    let (first, second) = (keys(&locks, &["a"], false), keys(&locks, &["a"], false));
    let writer = keys(&locks, &["a"], true);
    assert!(first.is_granted() && second.is_granted() && !writer.is_granted());
    drop((first, second));
    assert!(writer.is_granted());
}

#[test]
fn a_reader_does_not_overtake_a_waiting_writer() {
    let locks = Locks::default();
    let first = keys(&locks, &["a"], false);
    let writer = keys(&locks, &["a"], true);
    let late = keys(&locks, &["a"], false);
    assert!(!late.is_granted());
    drop(first);
    assert!(writer.is_granted() && !late.is_granted());
    drop(writer);
    assert!(late.is_granted());
}

#[test]
fn a_command_that_waits_for_one_key_has_its_place_at_the_others_too() {
    let locks = Locks::default();
    let holder = keys(&locks, &["a"], true);
    let both = keys(&locks, &["a", "b"], true);
    let after = keys(&locks, &["b"], false);
    assert!(!both.is_granted() && !after.is_granted());
    drop(holder);
    assert!(both.is_granted() && !after.is_granted());
}

#[test]
fn a_command_that_is_given_up_lets_those_behind_it_pass() {
    let locks = Locks::default();
    let reader = keys(&locks, &["a"], false);
    let writer = keys(&locks, &["a"], true);
    let late = keys(&locks, &["a"], false);
    drop(writer);
    assert!(late.is_granted());
    drop((reader, late));
    assert!(keys(&locks, &["a"], true).is_granted());
}

#[test]
fn the_same_key_twice_is_one_lock() {
    let locks = Locks::default();
    assert!(keys(&locks, &["a", "a", "a"], true).is_granted());
    assert!(keys(&locks, &["a"], true).is_granted());
}

#[test]
fn a_command_that_runs_alone_waits_for_all_and_holds_up_all() {
    let locks = Locks::default();
    let running = keys(&locks, &["a"], false);
    let alone = locks.everything();
    let late = keys(&locks, &["b"], false);
    assert!(!alone.is_granted() && !late.is_granted());
    drop(running);
    assert!(alone.is_granted() && !late.is_granted());
    drop(alone);
    assert!(late.is_granted());
}

#[tokio::test]
async fn a_waiting_command_is_woken() {
    let locks = Locks::default();
    let first = locks.everything();
    let second = keys(&locks, &["a"], true);
    let (_, ()) = tokio::join!(second.granted(), async {
        tokio::task::yield_now().await;
        drop(first);
    });
    assert!(second.is_granted());
}

/// Of tests that have no event loop: one that lets others have their turn would never go on.
fn crowd(locks: &Locks, of: std::ops::Range<usize>, mode: Mode) -> Ticket {
    futures::executor::block_on(ask_for_crowd(locks, of, mode))
}

async fn ask_for_crowd(locks: &Locks, of: std::ops::Range<usize>, mode: Mode) -> Ticket {
    let keys: Vec<String> = of.map(|nth| format!("key{nth}")).collect();
    locks.together(keys.iter().map(String::as_bytes), mode, true).await
}

#[test]
fn a_crowd_holds_its_keys_and_no_others_and_has_no_lock_for_any_that_nobody_else_wants() {
    let locks = Locks::default();
    let held = || locks.0.table.borrow().keys();
    let reader = keys(&locks, &["key7"], false);
    let many = crowd(&locks, 0..1000, Mode::Write);
    assert!(!many.is_granted() && held() == 1);
    drop(reader);
    assert!(many.is_granted());
    let may = |key: &str| locks.may_read([key.as_bytes()].into_iter());
    assert!(!may("key7") && !may("key999") && may("key1000"));
    let (among, other) = (keys(&locks, &["key500", "key2000"], true), keys(&locks, &["key1000"], true));
    let after = keys(&locks, &["key500"], false);
    assert!(!among.is_granted() && !after.is_granted() && other.is_granted() && held() == 4);
    drop(many);
    assert!(among.is_granted() && !after.is_granted() && may("key999"));
    drop(among);
    assert!(after.is_granted());
    drop((after, other));
    assert_eq!(held(), 0);
}

#[test]
fn crowds_have_their_turns_and_each_comes_before_whoever_asked_for_its_keys_later() {
    let locks = Locks::default();
    let (first, second) = (crowd(&locks, 0..500, Mode::Write), crowd(&locks, 400..900, Mode::Write));
    assert!(first.is_granted() && !second.is_granted());
    let [of_first, of_both, of_second] = ["key1", "key450", "key800"].map(|key| keys(&locks, &[key], false));
    assert!(![&of_first, &of_both, &of_second].iter().any(|ticket| ticket.is_granted()));
    drop(first);
    assert!(of_first.is_granted() && second.is_granted() && !of_both.is_granted() && !of_second.is_granted());
    // One that is given up before it has its turn lets those behind it pass.
    let third = crowd(&locks, 0..500, Mode::Write);
    let behind = keys(&locks, &["key450"], true);
    drop((third, second));
    assert!(of_both.is_granted() && of_second.is_granted() && !behind.is_granted());
    drop(of_both);
    assert!(behind.is_granted());
    drop((of_first, of_second, behind));
    assert_eq!(locks.0.table.borrow().keys(), 0);
}

#[test]
fn a_crowd_that_reads_shares_its_keys_with_other_readers() {
    let locks = Locks::default();
    let many = crowd(&locks, 0..500, Mode::Read);
    let (reader, writer) = (keys(&locks, &["key5"], false), keys(&locks, &["key6"], true));
    assert!(many.is_granted() && reader.is_granted() && !writer.is_granted());
    assert!(locks.may_read([&b"key7"[..]].into_iter()) && !locks.may_read([&b"key6"[..]].into_iter()));
    drop(many);
    assert!(writer.is_granted());
}

#[test]
fn who_looks_at_all_keys_sees_no_half_of_what_writes_several() {
    let locks = Locks::default();
    let all = || locks.keys(std::iter::empty(), Mode::Read);
    let (several, many) = (keys(&locks, &["a", "b"], true), crowd(&locks, 0..500, Mode::Write));
    let one = keys(&locks, &["c"], true);
    let survey = all();
    assert!(several.is_granted() && many.is_granted() && one.is_granted() && !survey.is_granted());
    let later = keys(&locks, &["d", "e"], true);
    drop((several, many));
    assert!(survey.is_granted() && !later.is_granted());
    drop(survey);
    assert!(later.is_granted());
}

#[tokio::test]
async fn who_wants_to_run_alone_waits_for_the_long_ones_before_others_wait_for_it() {
    let locks = Locks::default();
    let many = ask_for_crowd(&locks, 0..500, Mode::Write).await;
    let mut alone = std::pin::pin!(locks.everything_soon());
    assert!(futures::poll!(alone.as_mut()).is_pending());
    assert!(keys(&locks, &["other"], true).is_granted());
    drop(many);
    let alone = alone.await;
    assert!(alone.is_granted() && !keys(&locks, &["other"], true).is_granted());
}
