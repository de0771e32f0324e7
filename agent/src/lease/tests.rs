//! The book under virtual time: single steps first, then random histories checked against what any observer may demand.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const TTL: Duration = Duration::from_secs(10);
const ANNA: ClientId = ClientId(1);
const BERT: ClientId = ClientId(2);
const INCARNATION: Incarnation = Incarnation(77);
const PLENTY: Room = Room { slabs: 1000, available_mib: 9000, headroom_mib: 500 };
const TIGHT: Room = Room { slabs: 0, available_mib: 400, headroom_mib: 500 };

fn at(seconds: f64) -> Moment {
    Moment((seconds * 1e9) as u64 + 1)
}

fn conn(n: u64) -> ConnectionId {
    ConnectionId(n)
}

fn home() -> Machine {
    Machine { host: "home".into(), boot_id: "b1".into() }
}

fn book(capacity: u32, per_client: u32, keep: u32) -> Book {
    let mut n = 100;
    let draw = move || {
        n += 1;
        n
    };
    Book::new(Limits { capacity, per_client, ttl: TTL, keep }, INCARNATION, Box::new(draw))
}

/// Leases and fills until the request is answered.
fn lease(
    book: &mut Book,
    client: ClientId,
    connection: u64,
    count: u32,
    now: Moment,
) -> Result<Vec<Lease>, LeaseError> {
    let Grant { mut leased, to_fill } = book.lease(client, conn(connection), count, PLENTY, now)?;
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
    let elsewhere = || Machine { host: "clone".into(), boot_id: "b2".into() };
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
    let pressed = book.lease(ANNA, conn(1), 1, TIGHT, at(0.0));
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
    let grant = book.lease(ANNA, conn(1), 1, PLENTY, at(0.0)).unwrap();
    book.hello(ANNA, home(), conn(2), at(0.5)).unwrap();
    assert_eq!(book.filled(grant.to_fill[0], true, at(1.0)), None);
    assert_eq!((book.lent(), book.spare()), (0, 1));
}

#[test]
fn memory_that_could_not_be_made_leaves_the_slab_free() {
    let mut book = book(1, 1, 1);
    book.hello(ANNA, home(), conn(1), at(0.0)).unwrap();
    let grant = book.lease(ANNA, conn(1), 1, PLENTY, at(0.0)).unwrap();
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

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Hello { client: u64, elsewhere: bool },
    Lease { client: u64, count: u32, room: u32 },
    Filled { ok: bool },
    Renew { client: u64 },
    Return { client: u64, slab: u32 },
    Disconnect { client: u64 },
    Clean,
    Trim { keep: u32 },
    Wait { ms: u64 },
}

fn steps() -> impl Strategy<Value = Step> {
    let client = 1..4u64;
    prop_oneof![
        3 => (client.clone(), prop::bool::weighted(0.2)).prop_map(|(client, elsewhere)| Step::Hello { client, elsewhere }),
        5 => (client.clone(), 1..5u32, 0..8u32).prop_map(|(client, count, room)| Step::Lease { client, count, room }),
        4 => prop::bool::weighted(0.8).prop_map(|ok| Step::Filled { ok }),
        3 => client.clone().prop_map(|client| Step::Renew { client }),
        3 => (client.clone(), 0..6u32).prop_map(|(client, slab)| Step::Return { client, slab }),
        1 => client.prop_map(|client| Step::Disconnect { client }),
        4 => Just(Step::Clean),
        1 => (0..3u32).prop_map(|keep| Step::Trim { keep }),
        3 => (0..6000u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// What an observer of the actions knows.
#[derive(Default)]
struct Observer {
    open: HashMap<SlabId, (ClientId, Rkey, Moment)>,
    dirty: HashMap<SlabId, bool>,
    keys_seen: HashSet<Rkey>,
}

impl Observer {
    fn watch(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { slab, client, rkey, until } => {
                    assert!(!self.dirty.contains_key(&slab), "{slab} was lent before it was clean");
                    assert!(self.keys_seen.insert(rkey), "key {rkey} was used before");
                    assert!(self.open.insert(slab, (client, rkey, until)).is_none(), "{slab} was lent twice");
                }
                Action::Extend { slab, until } => {
                    let lease = self.open.get_mut(&slab).expect("only an open lease is extended");
                    assert!(lease.2 <= until);
                    lease.2 = until;
                }
                Action::Close { slab, rkey, keep } => {
                    let (_, open, _) = self.open.remove(&slab).expect("only an open lease is closed");
                    assert_eq!(open, rkey);
                    self.dirty.insert(slab, keep);
                }
                Action::Trim { slab } => {
                    assert!(!self.open.contains_key(&slab));
                    self.dirty.insert(slab, false);
                }
                Action::Lapse { .. } | Action::Forget { .. } | Action::Supersede { .. } => {}
            }
        }
    }

    fn held_by(&self, client: ClientId) -> Vec<SlabId> {
        let mut held: Vec<SlabId> = self.open.iter().filter(|(_, l)| l.0 == client).map(|(s, _)| *s).collect();
        held.sort();
        held
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_history_lends_each_slab_once_clean_and_within_its_time(history in prop::collection::vec(steps(), 1..80)) {
        const CAPACITY: u32 = 6;
        const PER_CLIENT: u32 = 4;
        let mut book = book(CAPACITY, PER_CLIENT, 2);
        let mut observer = Observer::default();
        let mut now = at(0.0);
        let mut connections: HashMap<u64, u64> = HashMap::new();
        let mut next_connection = 0;
        let mut filling: Vec<SlabId> = Vec::new();
        for step in history {
            let of = |client: u64| conn(connections.get(&client).copied().unwrap_or(0));
            match step {
                Step::Hello { client, elsewhere } => {
                    next_connection += 1;
                    let machine = Machine { host: "h".into(), boot_id: format!("{elsewhere}") };
                    if let Ok(greeting) = book.hello(ClientId(client), machine, conn(next_connection), now) {
                        connections.insert(client, next_connection);
                        observer.watch(book.take_actions());
                        let held: Vec<SlabId> = greeting.held.iter().map(|l| l.slab).collect();
                        prop_assert_eq!(held, observer.held_by(ClientId(client)));
                    }
                }
                Step::Lease { client, count, room } => {
                    let room = Room { slabs: room, available_mib: 1, headroom_mib: 1 };
                    if let Ok(grant) = book.lease(ClientId(client), of(client), count, room, now) {
                        prop_assert!(grant.leased.len() + grant.to_fill.len() <= count as usize);
                        prop_assert!(filling.len() + grant.to_fill.len() <= (room.slabs as usize).max(filling.len()));
                        filling.extend(grant.to_fill);
                    }
                }
                Step::Filled { ok } => {
                    if let Some(slab) = filling.pop() {
                        book.filled(slab, ok, now);
                    }
                }
                Step::Renew { client } => {
                    if let Ok(held) = book.renew(ClientId(client), of(client), now) {
                        observer.watch(book.take_actions());
                        prop_assert_eq!(held, observer.held_by(ClientId(client)));
                    }
                }
                Step::Return { client, slab } => {
                    let _ = book.give_back(ClientId(client), of(client), &[SlabId(slab)], now);
                }
                Step::Disconnect { client } => {
                    book.disconnected(ClientId(client), of(client), now);
                    connections.remove(&client);
                }
                Step::Clean => {
                    for (slab, keep) in observer.dirty.drain() {
                        book.cleaned(slab, keep);
                    }
                }
                Step::Trim { keep } => book.trim(keep),
                Step::Wait { ms } => {
                    now = now.after(Duration::from_millis(ms));
                    book.tick(now);
                }
            }
            observer.watch(book.take_actions());
            for (_, _, until) in observer.open.values() {
                prop_assert!(*until > now, "an expired lease is open");
                prop_assert!(*until <= now.after(TTL), "a lease runs longer than its TTL");
            }
            for client in 1..4 {
                prop_assert!(observer.held_by(ClientId(client)).len() <= PER_CLIENT as usize);
            }
            prop_assert_eq!(book.lent() as usize, observer.open.len());
            prop_assert!(book.next_deadline().is_none_or(|d| d > now), "the clock's owner would spin");
        }
        // Silence ends everything, and nothing is lost on the way.
        for slab in filling {
            book.filled(slab, true, now);
        }
        book.tick(now.after(TTL));
        observer.watch(book.take_actions());
        prop_assert!(observer.open.is_empty());
        for (slab, keep) in observer.dirty.drain() {
            book.cleaned(slab, keep);
        }
        prop_assert_eq!(book.free(PLENTY), CAPACITY);
    }
}
