//! The book under virtual time: single steps first, then random histories checked against what any
//! observer may demand.

mod handover;
mod histories;

use super::*;
use annex_identity::certificate::KeyId;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(10);
const ANNA: ClientId = ClientId(1);
const BERT: ClientId = ClientId(2);
const CLEO: ClientId = ClientId(3);
const INCARNATION: Incarnation = Incarnation(77);
const NEXT: Incarnation = Incarnation(78);
const PLENTY: Room = Room { slabs: 1000, available_mib: 9000, headroom_mib: 500 };
const TIGHT: Room = Room { slabs: 0, available_mib: 400, headroom_mib: 500 };

fn at(seconds: f64) -> Moment {
    Moment((seconds * 1e9) as u64 + 1)
}

fn conn(n: u64) -> ConnectionId {
    ConnectionId(n)
}

fn home() -> Machine {
    Machine { host: "home".into(), boot_id: "b1".into(), holder: None }
}

fn counting_from(first: u64) -> Draw {
    let mut n = first;
    Box::new(move || {
        n += 1;
        // In both halves of a key.
        n << 32 | n
    })
}

fn book(capacity: u32, per_client: u32, keep: u32) -> Book {
    Book::new(Limits { capacity, per_client, ttl: TTL, keep }, INCARNATION, counting_from(100))
}

/// The book of the agent that follows, in another incarnation.
fn next_book(capacity: u32, saved: Saved, now: Moment) -> Book {
    let limits = Limits { capacity, per_client: capacity, ttl: TTL, keep: 0 };
    Book::resume(limits, NEXT, counting_from(10_000), saved, now)
}

/// ANNA at home, last seen in INCARNATION, with these slabs.
fn annas(slabs: &[u32]) -> Saved {
    let claim = SavedClaim { client: ANNA, machine: home(), seen: INCARNATION, until: at(10.0) };
    let leases =
        slabs.iter().map(|slab| SavedLease { slab: SlabId(*slab), client: ANNA, number: LeaseNumber(5) }).collect();
    Saved { claims: vec![claim], leases }
}

/// Leases and fills until the request is answered.
fn lease(
    book: &mut Book,
    client: ClientId,
    connection: u64,
    count: u32,
    now: Moment,
) -> Result<Vec<Lease>, LeaseError> {
    let Grant { mut leased, to_fill } = book.lease(client, conn(connection), count, None, PLENTY, now)?;
    leased.extend(to_fill.into_iter().filter_map(|slab| book.filled(slab, true, now)));
    Ok(leased)
}

/// Does all cleaning that is asked for.
fn clean(book: &mut Book) -> Vec<Action> {
    let actions = book.take_actions();
    for action in &actions {
        match action {
            Action::Close { slab, keep, .. } => book.cleaned(*slab, *keep),
            Action::Trim { slab } => book.cleaned(*slab, false),
            _ => {}
        }
    }
    actions
}

fn refusal<T: std::fmt::Debug>(result: Result<T, LeaseError>) -> Refusal {
    match result {
        Err(LeaseError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_lease_ends_when_it_is_not_renewed_and_not_before() {
    let mut book = book(4, 4, 0);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 2, at(0.0)).unwrap();
    book.tick(at(9.9));
    assert_eq!(book.renew(ANNA, conn(1), at(9.9)).unwrap().len(), 2);
    book.tick(at(19.8));
    assert_eq!(book.lent(), 2);
    clean(&mut book);
    book.tick(at(19.9));
    let closed = clean(&mut book);
    assert_eq!(book.lent(), 0);
    assert_eq!(closed.len(), 3);
    assert_eq!(closed[0], Action::Lapse { client: ANNA, slabs: 2 });
    assert!(matches!(closed[1], Action::Close { slab, rkey, .. } if slab == lent[0].slab && rkey == lent[0].rkey));
    assert_eq!(book.renew(ANNA, conn(1), at(20.0)).unwrap(), []);
}

#[test]
fn who_comes_back_in_time_finds_the_same_leases_under_the_same_keys() {
    let mut book = book(4, 4, 0);
    let first = book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 3, at(0.0)).unwrap();
    book.disconnected(ANNA, conn(1), at(1.0));
    let again = book.hello(ANNA, home(), conn(2), at(9.0)).unwrap();
    assert_eq!(again.held, lent);
    assert_ne!(again.session, first.session);
    // The hello moved the deadline.
    book.tick(at(18.0));
    assert_eq!(book.lent(), 3);
}

#[test]
fn who_comes_back_too_late_finds_nothing() {
    let mut book = book(4, 4, 0);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    lease(&mut book, ANNA, 1, 3, at(0.0)).unwrap();
    book.disconnected(ANNA, conn(1), at(1.0));
    assert_eq!(book.hello(ANNA, home(), conn(2), at(10.0)).unwrap().held, []);
    assert!(book.take_actions().contains(&Action::Forget { client: ANNA }));
}

#[test]
fn only_the_newest_connection_of_a_client_counts() {
    let mut book = book(4, 4, 0);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 1, at(0.0)).unwrap();
    book.hello(ANNA, home(), conn(2), at(1.0)).unwrap();
    assert!(book.take_actions().contains(&Action::Supersede { connection: conn(1) }));
    assert_eq!(book.renew(ANNA, conn(1), at(1.0)), Err(Superseded));
    assert_eq!(book.give_back(ANNA, conn(1), &[lent[0].slab], at(1.0)), Err(Superseded));
    book.disconnected(ANNA, conn(1), at(2.0));
    assert_eq!(book.renew(ANNA, conn(2), at(2.0)).unwrap(), [lent[0].slab]);
}

#[test]
fn a_cloned_client_id_is_refused_until_the_first_machine_s_claim_ends() {
    let mut book = book(4, 4, 0);
    let elsewhere = || Machine { host: "clone".into(), boot_id: "b2".into(), holder: None };
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    lease(&mut book, ANNA, 1, 1, at(0.0)).unwrap();
    let refused = book.hello(ANNA, elsewhere(), conn(2), at(4.0)).unwrap_err();
    assert_eq!(refused, Refusal::ClientInUse { host: "home".into(), ends_in_s: 7 });
    assert_eq!(book.renew(ANNA, conn(1), at(5.0)).unwrap().len(), 1);
    let greeted = book.hello(ANNA, elsewhere(), conn(3), at(15.0)).unwrap();
    assert_eq!(greeted.held, []);
    let actions = book.take_actions();
    assert!(actions.contains(&Action::Forget { client: ANNA }), "{actions:?}");
    assert!(actions.contains(&Action::Supersede { connection: conn(1) }), "{actions:?}");
}

/// Every donor is told a client's id, and so may know another donor's clients.
#[test]
fn a_client_id_belongs_to_the_certificate_that_it_came_with() {
    let mut book = book(4, 4, 0);
    let shows = |name: &str, key| {
        let holder = Holder { name: format!("annex://c/client/{name}"), key: [key; 32].into() };
        Machine { holder: Some(holder), ..home() }
    };
    book.hello(ANNA, shows("anna", 1), conn(1), at(0.0)).unwrap();
    lease(&mut book, ANNA, 1, 1, at(0.0)).unwrap();
    let refused = book.hello(ANNA, shows("bert", 2), conn(2), at(4.0)).unwrap_err();
    assert_eq!(refused, Refusal::ClientInUse { host: "annex://c/client/anna".into(), ends_in_s: 7 });
    // A certificate of another key, and none once the agent has no TLS.
    assert_eq!(book.hello(ANNA, shows("anna", 3), conn(3), at(5.0)).unwrap().held.len(), 1);
    assert_eq!(book.hello(ANNA, home(), conn(4), at(6.0)).unwrap().held.len(), 1);
}

#[test]
fn a_new_session_key_replaces_the_old_one() {
    let mut book = book(4, 4, 0);
    let proof = |session| Proof { client: ANNA, incarnation: INCARNATION, session };
    let first = book.hello(ANNA, home(), conn(1), at(0.0)).unwrap().session;
    assert_eq!(book.admit(&proof(first)), Ok(()));
    let second = book.hello(ANNA, home(), conn(2), at(1.0)).unwrap().session;
    assert_eq!(book.admit(&proof(first)), Err(AdmitError::WrongSession));
    assert_eq!(book.admit(&proof(second)), Ok(()));
    assert_eq!(book.admit(&Proof { client: BERT, ..proof(second) }), Err(AdmitError::UnknownClient));
    assert_eq!(book.admit(&Proof { incarnation: Incarnation(1), ..proof(second) }), Err(AdmitError::StaleIncarnation));
    book.disconnected(ANNA, conn(2), at(2.0));
    assert_eq!(book.admit(&proof(second)), Err(AdmitError::UnknownClient));
}

#[test]
fn each_limit_refuses_with_its_own_reason() {
    let mut book = book(3, 2, 0);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    book.hello(BERT, home(), conn(2), at(0.0)).unwrap();
    let pressed = book.lease(ANNA, conn(1), 1, None, TIGHT, at(0.0));
    assert_eq!(refusal(pressed), Refusal::HostPressure { available_mib: 400, headroom_mib: 500 });
    assert_eq!(lease(&mut book, ANNA, 1, 9, at(0.0)).unwrap().len(), 2);
    assert_eq!(refusal(lease(&mut book, ANNA, 1, 1, at(0.0))), Refusal::ClientLimit { limit: 2 });
    assert_eq!(lease(&mut book, BERT, 2, 9, at(0.0)).unwrap().len(), 1);
    assert_eq!(refusal(lease(&mut book, BERT, 2, 1, at(0.0))), Refusal::Full { capacity: 3 });
    assert!(matches!(refusal(lease(&mut book, BERT, 2, 0, at(0.0))), Refusal::Malformed(_)));
    book.close();
    assert_eq!(refusal(lease(&mut book, BERT, 2, 1, at(0.0))), Refusal::Closing);
    assert_eq!(book.hello(ClientId(9), home(), conn(3), at(0.0)).unwrap_err(), Refusal::Closing);
}

#[test]
fn a_slab_is_not_lent_again_before_it_is_clean() {
    let mut book = book(1, 1, 1);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    book.hello(BERT, home(), conn(2), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 1, at(0.0)).unwrap();
    book.give_back(ANNA, conn(1), &[lent[0].slab], at(1.0)).unwrap();
    assert_eq!(lease(&mut book, BERT, 2, 1, at(1.0)), Err(LeaseError::Cleaning));
    clean(&mut book);
    let again = lease(&mut book, BERT, 2, 1, at(1.0)).unwrap();
    assert_eq!(again[0].slab, lent[0].slab);
    assert_ne!(again[0].rkey, lent[0].rkey);
}

#[test]
fn memory_made_for_a_connection_that_broke_is_not_lent_behind_its_back() {
    let mut book = book(4, 4, 1);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let grant = book.lease(ANNA, conn(1), 1, None, PLENTY, at(0.0)).unwrap();
    book.hello(ANNA, home(), conn(2), at(0.5)).unwrap();
    assert_eq!(book.filled(grant.to_fill[0], true, at(1.0)), None);
    assert_eq!((book.lent(), book.spare()), (0, 1));
}

#[test]
fn memory_that_could_not_be_made_leaves_the_slab_free() {
    let mut book = book(1, 1, 1);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let grant = book.lease(ANNA, conn(1), 1, None, PLENTY, at(0.0)).unwrap();
    assert_eq!(book.free(PLENTY), 0);
    assert_eq!(book.filled(grant.to_fill[0], false, at(0.0)), None);
    assert_eq!(book.free(PLENTY), 1);
}

#[test]
fn returning_what_is_another_s_or_nobody_s_changes_nothing() {
    let mut book = book(4, 4, 0);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    book.hello(BERT, home(), conn(2), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 1, at(0.0)).unwrap();
    book.give_back(BERT, conn(2), &[lent[0].slab, SlabId(3), SlabId(u32::MAX)], at(1.0)).unwrap();
    assert_eq!(book.lent(), 1);
}

#[test]
fn spare_slabs_over_the_cache_and_under_pressure_go_back_to_the_host() {
    let mut book = book(4, 4, 2);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent: Vec<SlabId> = lease(&mut book, ANNA, 1, 4, at(0.0)).unwrap().iter().map(|l| l.slab).collect();
    clean(&mut book);
    book.give_back(ANNA, conn(1), &lent, at(1.0)).unwrap();
    clean(&mut book);
    assert_eq!(book.spare(), 2);
    book.trim(0);
    clean(&mut book);
    assert_eq!(book.spare(), 0);
    assert_eq!(book.free(PLENTY), 4);
}

#[test]
fn saved_leases_go_on_under_new_keys_for_a_ttl_from_now() {
    let now = at(1000.0);
    let mut book = next_book(4, annas(&[0, 2]), now);
    let actions = book.take_actions();
    let opened: Vec<_> = actions
        .iter()
        .filter_map(|a| match a {
            Action::Open { slab, client, rkey, until } => Some((*slab, *client, *rkey, *until)),
            _ => None,
        })
        .collect();
    assert_eq!(opened.len(), 2);
    assert!(opened.iter().all(|o| o.1 == ANNA && o.3 == now.after(TTL)));
    book.tick(at(1009.9));
    let greeting = book.hello(ANNA, home(), conn(1), at(1009.9)).unwrap();
    assert_eq!(greeting.resumed, Some(INCARNATION));
    let held: Vec<_> = greeting.held.iter().map(|l| (l.slab, l.rkey)).collect();
    assert_eq!(held, [(opened[0].0, opened[0].2), (opened[1].0, opened[1].2)]);
    assert_eq!(book.free(PLENTY), 2);
}

#[test]
fn a_lease_keeps_its_number_over_restarts_and_the_next_one_of_the_slab_has_another() {
    // A client that was killed before it booked that its slab was lent to it anew took the empty
    // slab for the one that it had.
    let mut book = book(1, 1, 1);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let first = lease(&mut book, ANNA, 1, 1, at(0.0)).unwrap()[0];
    let save = |number| {
        let mut saved = annas(&[0]);
        saved.leases[0].number = number;
        saved
    };
    let mut next = next_book(1, save(first.rkey.lease()), at(1.0));
    let held = next.hello(ANNA, home(), conn(2), at(1.0)).unwrap().held;
    assert!(held[0].rkey != first.rkey && held[0].rkey.goes_on_from(first.rkey));

    book.give_back(ANNA, conn(1), &[first.slab], at(1.0)).unwrap();
    clean(&mut book);
    let anew = lease(&mut book, ANNA, 1, 1, at(1.0)).unwrap()[0];
    assert_eq!(anew.slab, first.slab);
    let mut next = next_book(1, save(anew.rkey.lease()), at(1.0));
    let held = next.hello(ANNA, home(), conn(2), at(1.0)).unwrap().held;
    assert!(held[0].rkey.goes_on_from(anew.rkey) && !held[0].rkey.goes_on_from(first.rkey));
}

#[test]
fn a_lease_from_before_there_were_numbers_goes_on_from_any_key() {
    let mut saved = annas(&[0]);
    saved.leases[0].number = LeaseNumber(0);
    let mut book = next_book(1, saved, at(1.0));
    let held = book.hello(ANNA, home(), conn(1), at(1.0)).unwrap().held;
    assert!(held[0].rkey.goes_on_from(Rkey(0xfeed_0000_beef)));
}

#[test]
fn who_does_not_come_back_within_the_ttl_loses_what_was_taken_over() {
    let mut book = next_book(4, annas(&[0, 2]), at(1000.0));
    book.tick(at(1010.0));
    assert_eq!(book.lent(), 0);
    let greeting = book.hello(ANNA, home(), conn(1), at(1010.0)).unwrap();
    assert_eq!((greeting.held.len(), greeting.resumed), (0, None));
}

#[test]
fn every_welcome_names_the_earlier_incarnation_until_the_client_leases_again() {
    // A welcome was told only until one data connection was admitted. If the next one failed, the
    // client said hello again, was told of no earlier incarnation, and gave up all that the agent
    // had kept.
    let mut book = next_book(4, annas(&[1]), at(20.0));
    for n in 1..4 {
        let greeting = book.hello(ANNA, home(), conn(n), at(20.0)).unwrap();
        assert_eq!(greeting.resumed, Some(INCARNATION));
        book.admit(&Proof { client: ANNA, incarnation: NEXT, session: greeting.session }).unwrap();
    }
    assert!(book.take_actions().contains(&Action::Seen { client: ANNA }));
    book.renew(ANNA, conn(3), at(21.0)).unwrap();
    assert_eq!(book.hello(ANNA, home(), conn(4), at(21.0)).unwrap().resumed, Some(INCARNATION));
    lease(&mut book, ANNA, 4, 1, at(21.0)).unwrap();
    assert_eq!(book.hello(ANNA, home(), conn(5), at(21.0)).unwrap().resumed, None);
}

#[test]
fn a_client_is_not_lent_anew_what_it_does_not_know_it_lost() {
    // A client that was stopped past its deadline leased before it renewed, and got the slab that
    // it had lost: zeroed, under another key. The renewal then listed the slab, and the client took
    // it for the one it had.
    let mut book = book(2, 2, 0);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    assert_eq!(lease(&mut book, ANNA, 1, 1, at(0.0)).unwrap()[0].slab, SlabId(0));
    book.tick(at(10.0));
    clean(&mut book);
    assert_eq!(lease(&mut book, ANNA, 1, 1, at(11.0)).unwrap()[0].slab, SlabId(1));
    assert!(lease(&mut book, ANNA, 1, 1, at(11.0)).is_err());
    // A recall without time is no different.
    book.recall(&[SlabId(1)], Duration::ZERO, at(12.0));
    clean(&mut book);
    assert!(lease(&mut book, ANNA, 1, 1, at(12.0)).is_err());
    assert_eq!(book.renew(ANNA, conn(1), at(13.0)).unwrap(), []);
    assert_eq!(lease(&mut book, ANNA, 1, 2, at(13.0)).unwrap().len(), 2);
}

#[test]
fn another_machine_does_not_inherit_a_client_s_leases() {
    let mut book = next_book(4, annas(&[1]), at(20.0));
    let elsewhere = Machine { host: "clone".into(), boot_id: "b2".into(), holder: None };
    assert!(matches!(book.hello(ANNA, elsewhere, conn(1), at(21.0)), Err(Refusal::ClientInUse { .. })));
    assert!(matches!(book.hello(BERT, home(), conn(1), at(21.0)), Ok(g) if g.resumed.is_none() && g.held.is_empty()));
}

#[test]
fn a_saved_session_key_is_not_guessable_by_its_absence() {
    let mut book = next_book(4, annas(&[1]), at(20.0));
    let proof = Proof { client: ANNA, incarnation: NEXT, session: SessionKey(0) };
    assert_eq!(book.admit(&proof), Err(AdmitError::WrongSession));
}

#[test]
fn slabs_over_a_smaller_capacity_are_held_and_not_lent_again() {
    let mut book = next_book(2, annas(&[0, 5]), at(20.0));
    book.take_actions();
    assert_eq!(book.hello(ANNA, home(), conn(1), at(20.0)).unwrap().held.len(), 2);
    book.give_back(ANNA, conn(1), &[SlabId(5)], at(20.0)).unwrap();
    let closed = clean(&mut book);
    assert!(closed.iter().any(|a| matches!(a, Action::Close { slab: SlabId(5), keep: false, .. })), "{closed:?}");
    assert_eq!(book.free(PLENTY), 1);
    assert_eq!(lease(&mut book, ANNA, 1, 9, at(20.0)).unwrap().len(), 1);
}

/// Whoever has one certificate may say hello under many ids.
#[test]
fn clients_with_one_name_have_one_share() {
    let mut book = book(9, 9, 0);
    let named = |host: &str, name: &str| Machine {
        holder: Some(Holder { name: name.to_owned(), key: KeyId::from([7; 32]) }),
        host: host.to_owned(),
        ..home()
    };
    book.hello(ANNA, named("one", "annex://c/client/web"), conn(1), at(0.0)).unwrap();
    book.hello(BERT, named("two", "annex://c/client/web"), conn(2), at(0.0)).unwrap();
    book.hello(CLEO, named("three", "annex://c/client/db"), conn(3), at(0.0)).unwrap();
    let mut got = |client, connection, count| {
        let grant = book.lease(client, conn(connection), count, Some(3), PLENTY, at(0.0));
        grant.map(|grant| grant.to_fill.len()).map_err(|error| format!("{error:?}"))
    };
    assert_eq!(got(ANNA, 1, 2), Ok(2));
    assert_eq!(got(BERT, 2, 2), Ok(1));
    assert!(got(ANNA, 1, 1).is_err_and(|error| error.contains("ClientLimit { limit: 3 }")));
    assert_eq!(got(CLEO, 3, 9), Ok(3));
}

#[test]
fn a_lowered_capacity_takes_nothing_away_and_lends_no_more_than_it_says() {
    let mut book = book(4, 4, 2);
    let limits = |capacity| Limits { capacity, per_client: 4, ttl: TTL, keep: 2 };
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    book.hello(BERT, home(), conn(2), at(0.0)).unwrap();
    assert_eq!(lease(&mut book, ANNA, 1, 3, at(0.0)).unwrap().len(), 3);
    book.set_limits(limits(2));
    assert_eq!(book.renew(ANNA, conn(1), at(1.0)).unwrap().len(), 3);
    assert_eq!(refusal(lease(&mut book, BERT, 2, 1, at(1.0))), Refusal::Full { capacity: 2 });
    // Number 0 is below the capacity, and number 2, which stays lent, is not.
    book.give_back(ANNA, conn(1), &[SlabId(0)], at(1.0)).unwrap();
    clean(&mut book);
    assert_eq!(refusal(lease(&mut book, BERT, 2, 1, at(1.0))), Refusal::Full { capacity: 2 });
    book.give_back(ANNA, conn(1), &[SlabId(2)], at(1.0)).unwrap();
    clean(&mut book);
    assert_eq!(lease(&mut book, BERT, 2, 4, at(1.0)).unwrap().len(), 1);
    book.set_limits(limits(6));
    assert_eq!(book.free(PLENTY), 4);
    assert_eq!(lease(&mut book, BERT, 2, 4, at(1.0)).unwrap().len(), 3, "up to its own limit");
}

#[test]
fn free_memory_over_a_lowered_capacity_goes_back_to_the_host() {
    let mut book = book(3, 3, 3);
    (0..3).for_each(|slab| book.stocked(SlabId(slab)));
    book.set_limits(Limits { capacity: 1, per_client: 1, ttl: TTL, keep: 3 });
    assert_eq!(book.take_actions(), [Action::Trim { slab: SlabId(1) }, Action::Trim { slab: SlabId(2) }]);
    assert_eq!((book.spare(), book.free(PLENTY)), (1, 1));
}

/// Its memory was to be kept when the cleaning began.
#[test]
fn a_slab_that_is_cleaned_while_the_capacity_falls_is_not_kept() {
    let mut book = book(2, 2, 2);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    lease(&mut book, ANNA, 1, 2, at(0.0)).unwrap();
    book.give_back(ANNA, conn(1), &[SlabId(1)], at(0.0)).unwrap();
    book.take_actions();
    book.set_limits(Limits { capacity: 1, per_client: 1, ttl: TTL, keep: 2 });
    book.cleaned(SlabId(1), true);
    assert_eq!(book.take_actions(), [Action::Trim { slab: SlabId(1) }]);
}

#[test]
fn claims_without_leases_and_leases_without_claims_are_not_taken_over() {
    let mut saved = annas(&[]);
    saved.leases.push(SavedLease { slab: SlabId(0), client: BERT, number: LeaseNumber(6) });
    let mut book = next_book(2, saved, at(0.0));
    assert_eq!(book.take_actions(), []);
    assert_eq!((book.lent(), book.free(PLENTY)), (0, 2));
}

fn recalls(actions: &[Action]) -> Vec<(ConnectionId, Vec<SlabId>, Moment)> {
    let recall = |a: &Action| match a {
        Action::Recall { connection, slabs, until } => Some((*connection, slabs.clone(), *until)),
        _ => None,
    };
    actions.iter().filter_map(recall).collect()
}

#[test]
fn a_recalled_slab_that_is_not_returned_is_revoked_at_the_deadline_and_goes_back_to_the_host() {
    let mut book = book(4, 4, 4);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 3, at(0.0)).unwrap();
    clean(&mut book);
    book.recall(&[lent[0].slab, lent[1].slab, SlabId(99)], Duration::from_secs(5), at(0.0));
    let told = recalls(&book.take_actions());
    assert_eq!(told, [(conn(1), vec![lent[0].slab, lent[1].slab], at(5.0))]);
    assert_eq!(book.coming().recalled, 2);
    book.give_back(ANNA, conn(1), &[lent[0].slab], at(1.0)).unwrap();
    assert!(clean(&mut book).iter().any(|a| matches!(a, Action::Close { keep: false, .. })), "its memory is wanted");
    assert_eq!(book.renew(ANNA, conn(1), at(4.9)).unwrap().len(), 2);
    assert_eq!(book.next_deadline(), Some(at(5.0)));
    book.tick(at(5.0));
    let actions = clean(&mut book);
    assert!(actions.contains(&Action::Revoke { client: ANNA, slabs: 1 }), "{actions:?}");
    assert_eq!(book.renew(ANNA, conn(1), at(5.0)).unwrap(), [lent[2].slab]);
    assert_eq!((book.spare(), book.coming().recalled), (0, 0));
}

#[test]
fn a_recall_that_gives_no_time_revokes_at_once() {
    let mut book = book(4, 4, 2);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 2, at(0.0)).unwrap();
    book.recall(&[lent[0].slab], Duration::ZERO, at(0.0));
    assert_eq!(book.lent_slabs(), [(lent[1].slab, ANNA)]);
    assert_eq!(book.next_deadline(), Some(at(10.0)));
}

#[test]
fn who_was_away_learns_of_a_recall_when_it_comes_back() {
    let mut book = book(4, 4, 0);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 2, at(0.0)).unwrap();
    book.disconnected(ANNA, conn(1), at(0.5));
    clean(&mut book);
    book.recall(&[lent[1].slab], Duration::from_secs(5), at(1.0));
    assert_eq!(recalls(&book.take_actions()), []);
    book.hello(ANNA, home(), conn(2), at(2.0)).unwrap();
    assert_eq!(book.recalled_from(ANNA), [(lent[1].slab, at(6.0))]);
    assert_eq!(book.recalled_from(BERT), []);
}

#[test]
fn a_donor_that_is_drained_lends_nothing_until_that_is_called_off() {
    let mut book = book(4, 4, 4);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let lent = lease(&mut book, ANNA, 1, 2, at(0.0)).unwrap();
    clean(&mut book);
    book.drain(Duration::from_secs(5), at(1.0));
    assert_eq!(recalls(&clean(&mut book)), [(conn(1), lent.iter().map(|l| l.slab).collect(), at(6.0))]);
    assert_eq!(refusal(book.lease(ANNA, conn(1), 1, None, PLENTY, at(2.0))), Refusal::Draining);
    assert_eq!(book.free(PLENTY), 0);
    book.drain(Duration::from_secs(5), at(4.0));
    book.tick(at(8.0));
    assert_eq!(book.lent(), 2, "it got more time");
    clean(&mut book);
    book.give_back(ANNA, conn(1), &[lent[0].slab], at(8.0)).unwrap();
    clean(&mut book);
    assert_eq!(book.spare(), 0);
    book.stop_draining();
    book.renew(ANNA, conn(1), at(9.5)).unwrap();
    assert_eq!(book.lent(), 1, "nothing is revoked any more");
    assert_eq!(lease(&mut book, ANNA, 1, 1, at(9.5)).unwrap().len(), 1);
}
