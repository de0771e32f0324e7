//! Random histories, checked against what any observer may demand.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Hello {
        client: u64,
        elsewhere: bool,
    },
    Lease {
        client: u64,
        count: u32,
        room: u32,
    },
    Filled {
        ok: bool,
    },
    Renew {
        client: u64,
    },
    Return {
        client: u64,
        slab: u32,
    },
    Disconnect {
        client: u64,
    },
    Clean,
    Trim {
        keep: u32,
    },
    Wait {
        ms: u64,
    },
    Recall {
        slab: u32,
        ms: u64,
    },
    Drain {
        on: bool,
    },
    /// The configuration is read again.
    Capacity {
        slabs: u32,
    },
    /// The agent is killed and another one goes on.
    Restart,
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
        1 => Just(Step::Restart),
        2 => (0..6u32, 0..4000u64).prop_map(|(slab, ms)| Step::Recall { slab, ms }),
        1 => any::<bool>().prop_map(|on| Step::Drain { on }),
        1 => (1..9u32).prop_map(|slabs| Step::Capacity { slabs }),
    ]
}

/// What an observer of the actions knows.
#[derive(Default)]
struct Observer {
    open: HashMap<SlabId, (ClientId, Rkey, Moment)>,
    dirty: HashMap<SlabId, bool>,
    keys_seen: HashSet<Rkey>,
    machines: HashMap<ClientId, Machine>,
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
                Action::Lapse { .. }
                | Action::Forget { .. }
                | Action::Supersede { .. }
                | Action::Until { .. }
                | Action::Recall { .. }
                | Action::Revoke { .. }
                | Action::Seen { .. } => {}
            }
        }
    }

    /// What is found when the agent dies now. Memory that nobody holds is thrown away.
    fn saved(&mut self) -> Saved {
        self.dirty.clear();
        let open = std::mem::take(&mut self.open);
        let claims = self.machines.iter().map(|(client, machine)| SavedClaim {
            client: *client,
            machine: machine.clone(),
            seen: INCARNATION,
            until: at(0.0),
        });
        let leases = open.iter().map(|(slab, (client, rkey, _))| SavedLease {
            slab: *slab,
            client: *client,
            number: rkey.lease(),
        });
        Saved { claims: claims.collect(), leases: leases.collect() }
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
        const PER_CLIENT: u32 = 4;
        let mut capacity = 6;
        let mut book = book(capacity, PER_CLIENT, 2);
        let mut observer = Observer::default();
        let mut now = at(0.0);
        let mut connections: HashMap<u64, u64> = HashMap::new();
        let mut next_connection = 0;
        let mut restarts = 0u64;
        let mut filling: Vec<SlabId> = Vec::new();
        for step in history {
            let of = |client: u64| conn(connections.get(&client).copied().unwrap_or(0));
            match step {
                Step::Hello { client, elsewhere } => {
                    next_connection += 1;
                    let machine = Machine { host: "h".into(), boot_id: format!("{elsewhere}"), holder: None };
                    if let Ok(greeting) = book.hello(ClientId(client), machine.clone(), conn(next_connection), now) {
                        observer.machines.insert(ClientId(client), machine);
                        connections.insert(client, next_connection);
                        observer.watch(book.take_actions());
                        let held: Vec<SlabId> = greeting.held.iter().map(|l| l.slab).collect();
                        prop_assert_eq!(held, observer.held_by(ClientId(client)));
                    }
                }
                Step::Lease { client, count, room } => {
                    let room = Room { slabs: room, available_mib: 1, headroom_mib: 1 };
                    let before = book.lent() + book.slabs.tally.filling;
                    if let Ok(grant) = book.lease(ClientId(client), of(client), count, None, room, now) {
                        prop_assert!(grant.leased.len() + grant.to_fill.len() <= count as usize);
                        prop_assert!(filling.len() + grant.to_fill.len() <= (room.slabs as usize).max(filling.len()));
                        filling.extend(grant.to_fill);
                        let after = book.lent() + book.slabs.tally.filling;
                        prop_assert!(after <= capacity.max(before), "{after} slabs of {capacity} are lent");
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
                Step::Recall { slab, ms } => book.recall(&[SlabId(slab)], Duration::from_millis(ms), now),
                Step::Drain { on: true } => book.drain(Duration::from_secs(3), now),
                Step::Drain { on: false } => book.stop_draining(),
                Step::Capacity { slabs } => {
                    capacity = slabs;
                    book.set_limits(Limits { capacity, per_client: PER_CLIENT, ttl: TTL, keep: 2 });
                }
                Step::Restart => {
                    let before = observer.open.clone();
                    restarts += 1;
                    let limits = Limits { capacity, per_client: PER_CLIENT, ttl: TTL, keep: 2 };
                    let draw = counting_from(restarts << 16);
                    book = Book::resume(limits, Incarnation(1000 + restarts), draw, observer.saved(), now);
                    observer.watch(book.take_actions());
                    connections.clear();
                    filling.clear();
                    let holders = |open: &HashMap<SlabId, (ClientId, Rkey, Moment)>| {
                        let mut holders: Vec<_> = open.iter().map(|(slab, lease)| (*slab, lease.0)).collect();
                        holders.sort();
                        holders
                    };
                    prop_assert_eq!(holders(&before), holders(&observer.open), "a lease was lost or made up");
                }
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
        book.stop_draining();
        prop_assert_eq!(book.free(PLENTY), capacity);
    }
}
