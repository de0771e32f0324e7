//! The store over a pool of scripted donors.

mod compaction;
mod deferred;
mod reading;

use super::*;
use annex_pool::{Pool, PoolConfig, PoolState};
use annex_pool_testbed::Bed;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use bytes::Bytes;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::LocalSet;

const SETTINGS: Settings =
    Settings { limit: 0, policy: Policy::NoEviction, log_factor: 10, decay: 1, expires_actively: true };
const DB: Db = Db(0);

/// A pool and the table that outlives a store.
struct World {
    bed: Bed,
    pool: RefCell<Arc<Pool>>,
    table: Arc<LogPageTable>,
}

impl World {
    fn new(slabs: u32) -> World {
        // A moment in which nothing runs is not to cost donors what they hold.
        Self::over(Bed::with(&[slabs, slabs], 2, |config| config.lost_after = PoolConfig::default().lost_after))
    }

    /// Room for `lives` that follow each other quickly: what each had in reserve, and what it had
    /// just asked for, rests for longer than all of them take.
    fn of_lives(slabs: u32, lives: u32) -> World {
        Self::new(slabs + lives * 2 * slot_reserve::MAX_TARGET as u32 / annex_pool_testbed::SLOTS)
    }

    fn over(bed: Bed) -> World {
        let pool = RefCell::new(bed.pool.clone());
        World { bed, pool, table: Arc::new(LogPageTable::create().unwrap()) }
    }

    /// Runs with a store that is opened for it, and ends as a kill would: whatever is under way
    /// stays so, and the next one takes the pool's tables over.
    fn run<T, F: Future<Output = T>>(&self, cache: u64, settings: Settings, run: impl FnOnce(Store) -> F) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tasks = LocalSet::new();
        let pool = self.pool.borrow().clone();
        let result = tasks.block_on(&runtime, async {
            let (store, deliveries) = Store::open(pool.clone(), self.table.clone(), cache, settings).unwrap();
            store.start(deliveries).unwrap();
            store.load().await;
            run(store).await
        });
        drop((tasks, runtime));
        let (extents, slots) = pool.state_fds();
        let [extents, slots] = [extents, slots].map(|fd| fd.try_clone_to_owned().unwrap());
        pool.leave();
        let references = |each: &mut dyn FnMut(SlotIdx)| self.table.references(each);
        let saved = PoolState::Saved { extents, slots, references: &references };
        let next = Pool::start_with(self.bed.config.clone(), None, saved, self.bed.dialer()).unwrap();
        // Donors come back by themselves; a store in a hurry would find none.
        let started = std::time::Instant::now();
        while next.is_usable().is_err() && started.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        *self.pool.borrow_mut() = next;
        result
    }

    fn with<T, F: Future<Output = T>>(&self, run: impl FnOnce(Store) -> F) -> T {
        self.run(0, SETTINGS, run)
    }
}

fn value(seed: u64, len: usize) -> Bytes {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

async fn bytes(store: &Store, db: Db, key: &[u8]) -> Option<Bytes> {
    store.read(db, key).await.unwrap().map(|v| v.bytes)
}

/// Within a minute: five hundred other tests may want the CPUs.
async fn eventually(what: &str, is_true: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

async fn every_key(store: &Store, db: Db) -> Vec<Bytes> {
    let (mut cursor, mut keys) = (0, Vec::new());
    loop {
        let (next, found) = store.scan(db, cursor, 10).await.unwrap();
        keys.extend(found);
        cursor = next;
        if cursor == 0 {
            keys.sort();
            return keys;
        }
    }
}

#[test]
fn values_of_every_size_are_read_as_they_were_written_and_by_the_next_store_too() {
    let world = World::new(400);
    let sizes = [0, 1, 100, 2000, 4000, 4096, 5000, 100_000, 1_000_000, 1_500_000, 5_000_000, 9_000_001];
    let key = |n: usize| value(n as u64, n % 300);
    let check = async |store: &Store| {
        let reads = store.stats().reads;
        for (n, size) in sizes.iter().enumerate() {
            assert_eq!(store.length(DB, &key(n)), Some(*size as u64));
        }
        assert_eq!((store.length(DB, b"none"), store.stats().reads), (None, reads));
        for (n, size) in sizes.iter().enumerate() {
            assert!(bytes(store, DB, &key(n)).await == Some(value(n as u64, *size)), "{size}");
        }
    };
    world.with(async |store| {
        let writes = sizes.iter().enumerate().map(|(n, size)| {
            let store = store.clone();
            async move { store.write(DB, &key(n), value(n as u64, *size), None).await }
        });
        futures::future::try_join_all(writes).await.unwrap();
        check(&store).await;
        assert_eq!(store.len(DB), (sizes.len() as u64, 0));
    });
    world.with(async |store| {
        assert_eq!(store.stats().lost, 0);
        assert_eq!(store.len(DB), (sizes.len() as u64, 0));
        check(&store).await;
        for n in 0..sizes.len() {
            assert!(store.remove(DB, &key(n)));
        }
        assert_eq!((store.stats().used, store.stats().held), (0, 0));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Write(u8, u8, u16, bool),
    Remove(u8, u8),
    Expire(u8, u8, bool),
    Clear(u8),
    Swap(u8, u8),
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let (db, key) = (0u8..3, 0u8..40);
    prop_oneof![
        12 => (db.clone(), key.clone(), 0u16..9000, any::<bool>()).prop_map(|(d, k, n, e)| Step::Write(d, k, n, e)),
        5 => (db.clone(), key.clone()).prop_map(|(d, k)| Step::Remove(d, k)),
        3 => (db.clone(), key.clone(), any::<bool>()).prop_map(|(d, k, e)| Step::Expire(d, k, e)),
        1 => db.clone().prop_map(Step::Clear),
        1 => (db.clone(), db.clone()).prop_map(|(a, b)| Step::Swap(a, b)),
        1 => Just(Step::Kill),
    ]
}

const FAR: UnixMs = 1 << 50;

/// What is expected: by database and key, the value and its expiry.
type Model = HashMap<(u8, u8), (Bytes, Option<UnixMs>)>;

async fn take(store: &Store, model: &mut Model, nth: usize, step: &Step) {
    match *step {
        Step::Write(db, key, len, expires) => {
            let (value, expires) = (value(nth as u64, len.into()), expires.then_some(FAR + nth as u64));
            let written = store.write(Db(db), &[key], value.clone(), expires).await;
            assert_eq!(written.err(), None, "{:?}; {:?}", store.stats(), store.0.pool.info());
            model.insert((db, key), (value, expires));
        }
        Step::Remove(db, key) => assert_eq!(store.remove(Db(db), &[key]), model.remove(&(db, key)).is_some()),
        Step::Expire(db, key, expires) => {
            let expires = expires.then_some(FAR + nth as u64);
            let was = store.expire_at(Db(db), &[key], expires).await.unwrap();
            assert_eq!(was, model.get_mut(&(db, key)).map(|v| v.1 = expires).is_some());
        }
        Step::Clear(db) => {
            store.clear(Some(Db(db)));
            model.retain(|(d, _), _| *d != db);
        }
        Step::Swap(a, b) => {
            store.swap(Db(a), Db(b));
            let other = |d: u8| {
                if d == a {
                    b
                } else if d == b {
                    a
                } else {
                    d
                }
            };
            *model = model.drain().map(|((d, k), v)| ((other(d), k), v)).collect();
        }
        Step::Kill => {}
    }
}

async fn compare(store: &Store, model: &Model) {
    for db in 0..3u8 {
        let mut keys: Vec<Bytes> =
            model.keys().filter(|(d, _)| *d == db).map(|(_, k)| Bytes::copy_from_slice(&[*k])).collect();
        keys.sort();
        assert_eq!(every_key(store, Db(db)).await, keys);
        let volatile = model.iter().filter(|((d, _), v)| *d == db && v.1.is_some()).count();
        assert_eq!(store.len(Db(db)), (keys.len() as u64, volatile as u64));
    }
    for ((db, key), (value, expires)) in model {
        let read = store.read(Db(*db), &[*key]).await.unwrap().unwrap();
        assert!(read.bytes == value && read.expires == *expires);
        assert_eq!(store.known(Db(*db), &[*key]).unwrap().expires, *expires);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]
    /// Against a plain map, with the store opened anew now and then.
    #[test]
    fn the_store_is_a_map_and_so_is_the_next_one(steps in proptest::collection::vec(step(), 1..300), cached: bool) {
        let kills = steps.iter().filter(|step| matches!(step, Step::Kill)).count() as u32;
        let world = World::of_lives(300, kills + 2);
        let mut model = Model::new();
        let cache = if cached { 64 << 10 } else { 0 };
        for (life, steps) in steps.split(|step| matches!(step, Step::Kill)).enumerate() {
            world.run(cache, SETTINGS, async |store| {
                compare(&store, &model).await;
                for (nth, step) in steps.iter().enumerate() {
                    take(&store, &mut model, life * 1000 + nth, step).await;
                }
                compare(&store, &model).await;
            });
        }
        world.with(async |store| {
            compare(&store, &model).await;
            store.clear(None);
            eventually("all is given back", || store.stats().held == 0 && store.stats().used == 0).await;
        });
    }
}

/// A kill at any moment: what was acknowledged is there, or what was written to the key after it.
#[test]
fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let world = World::of_lives(400, 13);
    let acknowledged = RefCell::new(HashMap::<u8, u64>::new());
    let started = RefCell::new(HashMap::<u8, u64>::new());
    let mut nth = 0u64;
    for life in 0..12u64 {
        world.with(async |store| {
            assert_eq!(store.stats().lost, 0);
            for key in 0..50u8 {
                let found = bytes(&store, DB, &[key]).await;
                let least = acknowledged.borrow().get(&key).copied();
                let most = started.borrow().get(&key).copied();
                let found = found.map(|v| u64::from_le_bytes(*v.first_chunk().unwrap()));
                assert!(found >= least && found <= most, "key {key}: {least:?} <= {found:?} <= {most:?}");
                // What is seen now stays.
                found.map(|n| acknowledged.borrow_mut().insert(key, n));
            }
            let heard = Cell::new(0);
            let write = |key: u8, n: u64| {
                let (store, acknowledged, started, heard) = (&store, &acknowledged, &started, &heard);
                async move {
                    started.borrow_mut().insert(key, n);
                    let bytes = [&n.to_le_bytes()[..], &value(n, (n * 131 % 6000) as usize)].concat();
                    store.write(DB, &[key], bytes.into(), None).await.unwrap();
                    acknowledged.borrow_mut().insert(key, n);
                    heard.set(heard.get() + 1);
                }
            };
            let writers = (0..50u8).map(|key| {
                let first = nth + u64::from(key) + 1;
                async move {
                    for round in 0..1000 {
                        write(key, first + round * 50).await;
                    }
                }
            });
            let all = futures::future::join_all(writers);
            // So many answers, some turns of the event loop, and then no more.
            let over = async {
                while heard.get() < life * 97 {
                    tokio::task::yield_now().await;
                }
                for _ in 0..life % 5 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! { biased; () = over => {}, _ = all => {} }
            nth += 1000 * 50;
        });
    }
    assert!(acknowledged.borrow().values().all(|n| *n > 50_000));
}

#[test]
fn a_lost_donor_loses_no_key() {
    let world = World::over(Bed::new(&[300, 300, 300], 2));
    world.with(async |store| {
        for n in 0..500u64 {
            store.write(DB, &n.to_le_bytes(), value(n, 700), None).await.unwrap();
        }
        world.bed.agents[0].cut();
        for n in 0..500u64 {
            assert!(bytes(&store, DB, &n.to_le_bytes()).await == Some(value(n, 700)), "{n}");
            store.write(DB, &n.to_le_bytes(), value(n + 1, 700), None).await.unwrap();
            assert!(bytes(&store, DB, &n.to_le_bytes()).await == Some(value(n + 1, 700)), "{n}");
        }
    });
}

#[test]
fn a_full_pool_refuses_writes_and_takes_them_again_when_there_is_room() {
    let world = World::new(20);
    world.with(async |store| {
        let mut n = 0u64;
        let refused = loop {
            match store.write(DB, &n.to_le_bytes(), value(n, 3000), None).await {
                Ok(()) => n += 1,
                Err(error) => break error,
            }
            assert!(n < 20 * 64 * 2, "the pool takes more than it has");
        };
        assert_eq!(refused, StoreError::NoRoom);
        assert!(n > 500, "{n}");
        for n in 0..n {
            assert!(bytes(&store, DB, &n.to_le_bytes()).await == Some(value(n, 3000)), "{n}");
        }
        (0..n / 2).for_each(|n| assert!(store.remove(DB, &n.to_le_bytes())));
        let mut tries = 0;
        while store.write(DB, b"again", value(1, 3000), None).await.is_err() {
            tries += 1;
            assert!(tries < 100, "no room is found though half of all keys are gone");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn with_a_policy_a_full_pool_takes_every_write() {
    let settings = Settings { policy: Policy::AllKeysLru, ..SETTINGS };
    World::new(20).run(0, settings, async |store| {
        // Many times what the pool has room for.
        for n in 0..4000u64 {
            store.write(DB, &n.to_le_bytes(), value(n, 1500), None).await.unwrap();
        }
        let stats = store.stats();
        assert!(stats.evicted > 1000 && stats.held <= 20 * 64 * 4096, "{stats:?}");
        for n in 3000..4000u64 {
            let read = bytes(&store, DB, &n.to_le_bytes()).await;
            assert!(read.is_none_or(|read| read == value(n, 1500)), "{n}");
        }
        assert!(store.known(DB, &3999u64.to_le_bytes()).is_some());
    });
}

#[test]
fn with_a_policy_the_limit_is_kept_and_the_least_used_go() {
    let limit = 512 << 10;
    let settings = Settings { limit, policy: Policy::AllKeysLfu, ..SETTINGS };
    World::new(300).run(0, settings, async |store| {
        for n in 0..20_000u64 {
            store.write(DB, &n.to_le_bytes(), value(n, 300), None).await.unwrap();
            // Ten keys are in use all the time.
            for hot in 0..10u64.min(n) {
                store.touch(DB, &hot.to_le_bytes());
            }
            assert!(store.stats().used <= limit);
        }
        assert!((0..10u64).all(|n| store.known(DB, &n.to_le_bytes()).is_some()));
        assert!(store.stats().evicted > 15_000);
    });
}

#[test]
fn with_a_policy_no_write_is_refused_however_many_keys_have_to_go() {
    let settings = Settings { limit: 2 << 20, policy: Policy::AllKeysLru, ..SETTINGS };
    World::new(1200).run(0, settings, async |store| {
        let fill = async |from: u64| {
            for n in from..from + 20_000 {
                store.write(DB, &n.to_le_bytes(), value(n, 10), None).await.unwrap();
            }
        };
        fill(0).await;
        let before = store.stats();
        assert!(before.used <= 2 << 20 && before.evicted < 9_000, "{before:?}");
        store.write(DB, b"large", value(1, 1 << 20), None).await.unwrap();
        assert!(store.stats().evicted - before.evicted > 8_000);
        // What can't fit costs no key.
        let evicted = store.stats().evicted;
        assert_eq!(store.write(DB, b"too large", value(1, 3 << 20), None).await, Err(StoreError::NoRoom));
        assert_eq!(store.stats().evicted, evicted);
        // With a lower limit the next write is taken too.
        fill(20_000).await;
        store.set(Settings { limit: 64 << 10, ..settings });
        assert!(store.has_room());
        store.write(DB, b"next", value(1, 10), None).await.unwrap();
        assert!(store.stats().used <= 64 << 10);
    });
}

#[test]
fn a_volatile_policy_leaves_keys_without_expiry_alone() {
    let settings = Settings { limit: 256 << 10, policy: Policy::VolatileTtl, ..SETTINGS };
    World::new(300).run(0, settings, async |store| {
        store.write(DB, b"stays", value(1, 1000), None).await.unwrap();
        for n in 0..2000u64 {
            store.write(DB, &n.to_le_bytes(), value(n, 300), Some(FAR + n)).await.unwrap();
        }
        assert!(store.known(DB, b"stays").is_some());
        // Those that would have ended first went first.
        assert!(store.known(DB, &0u64.to_le_bytes()).is_none());
        assert!(store.known(DB, &1999u64.to_le_bytes()).is_some());
        // When only such are left that may not go, there is no room.
        let mut refused = Ok(());
        for n in 0..2000u64 {
            refused = store.write(DB, &n.to_le_bytes(), value(n, 300), None).await;
            if refused.is_err() {
                break;
            }
        }
        assert_eq!(refused, Err(StoreError::NoRoom));
        assert!(store.known(DB, b"stays").is_some());
    });
}

#[test]
fn a_key_whose_time_is_over_goes_whether_or_not_anybody_asks() {
    World::new(100).with(async |store| {
        // Long enough for 300 writes on a machine that has other things to do.
        let soon = now() + 2000;
        for n in 0..300u64 {
            store.write(DB, &n.to_le_bytes(), value(n, 10), (n > 0).then_some(soon)).await.unwrap();
        }
        assert_eq!(store.len(DB), (300, 299));
        assert!(store.known(DB, &1u64.to_le_bytes()).is_some());
        tokio::time::sleep(Duration::from_millis((soon + 1).saturating_sub(now()))).await;
        assert!(store.read(DB, &1u64.to_le_bytes()).await.unwrap().is_none());
        eventually("all are gone", || store.len(DB) == (1, 0)).await;
        assert_eq!(store.stats().expired, 299);
        store.write(DB, b"past", value(1, 1), Some(1)).await.unwrap();
        assert!(store.known(DB, b"past").is_none());
    });
}

#[test]
fn a_key_whose_time_is_over_is_not_there_for_the_write_that_replaces_it() {
    let settings = Settings { expires_actively: false, policy: Policy::AllKeysLfu, ..SETTINGS };
    World::new(100).run(0, settings, async |store| {
        // Long enough for the touches on a machine that has other things to do.
        let soon = now() + 2000;
        store.write(DB, b"k", value(1, 10), Some(soon)).await.unwrap();
        (0..1000).for_each(|_| assert!(store.touch(DB, b"k")));
        tokio::time::sleep(Duration::from_millis((soon + 1).saturating_sub(now()))).await;
        store.write(DB, b"k", value(2, 10), None).await.unwrap();
        assert_eq!(store.stats().expired, 1);
        assert_eq!(store.known(DB, b"k").unwrap().frequency, 5);
    });
}

#[test]
fn a_watch_tells_of_every_change_and_of_nothing_else() {
    World::new(100).with(async |store| {
        for key in [&b"a"[..], b"b", b"gone"] {
            store.write(DB, key, value(1, 10), None).await.unwrap();
        }
        store.remove(DB, b"gone");
        let watch = || [&b"a"[..], b"b", b"gone"].map(|key| store.watch(DB, key));
        let changed = |watches: &[Watch; 3]| [0, 1, 2].map(|n: usize| watches[n].is_changed());
        let watches = watch();
        store.read(DB, b"a").await.unwrap();
        assert!(!store.remove(DB, b"gone"));
        store.write(Db(1), b"a", value(1, 10), None).await.unwrap();
        assert_eq!(changed(&watches), [false; 3]);
        store.write(DB, b"a", value(2, 10), None).await.unwrap();
        assert_eq!(changed(&watches), [true, false, false]);
        // One that is over by now is not seen to come.
        store.write(Db(1), b"gone", value(1, 10), Some(now() + 1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
        let watches = watch();
        store.swap(DB, Db(1));
        assert_eq!(changed(&watches), [true, true, false]);
        let watches = watch();
        store.clear(Some(DB));
        assert_eq!(changed(&watches), [true, false, false]);
        // Long enough for the watch to find it.
        let soon = now() + 2000;
        store.write(DB, b"b", value(1, 10), Some(soon)).await.unwrap();
        let watches = watch();
        tokio::time::sleep(Duration::from_millis((soon + 1).saturating_sub(now()))).await;
        assert_eq!(changed(&watches), [false, true, false]);
    });
}

#[test]
fn of_a_large_value_only_the_log_pages_that_are_asked_for_are_read_and_nothing_wrong_is_given_out() {
    let world = World::new(100);
    let key = |size: usize| format!("{size:050}");
    world.with(async |store| {
        store.write(DB, b"before", value(1, 700), None).await.unwrap();
        // Within the log, and with log pages of its own.
        for size in [70_000, 1_000_000, 3_000_001] {
            store.write(DB, key(size).as_bytes(), value(size as u64, size), None).await.unwrap();
        }
        let read_bytes = Arc::new(std::sync::atomic::AtomicU64::new(0));
        for agent in &world.bed.agents {
            let read_bytes = read_bytes.clone();
            agent.script(move |op| {
                let is_read = op.kind == annex_fabric::OpKind::Read;
                read_bytes.fetch_add(if is_read { op.len.into() } else { 0 }, std::sync::atomic::Ordering::Relaxed);
                annex_pool_testbed::Fate::Do
            });
        }
        for size in [70_000, 1_000_000, 3_000_001] {
            let (key, whole, len) = (key(size), value(size as u64, size), size as u64);
            let part = async |from: u64, to: u64| {
                read_bytes.store(0, std::sync::atomic::Ordering::Relaxed);
                let read = store.read_part(DB, key.as_bytes(), |_| from..to).await.unwrap().unwrap();
                assert!(read == whole[from as usize..to as usize], "{from}..{to} of {size}");
                read_bytes.load(std::sync::atomic::Ordering::Relaxed)
            };
            for from in [0, 1, 3000, 3300, 4096, len / 2 - 7, len - 9000] {
                for bytes in [0, 1, 100, 5000, 9000] {
                    // The first log page, and those in which the part lies.
                    let most = 4096 + (bytes / 4096 + 2) * 4096;
                    assert!(part(from, from + bytes).await <= most, "{bytes} bytes from {from} of {size}");
                }
            }
            part(len - 1, len).await;
            part(0, len).await;
            part(5, len - 5).await;
        }
        assert!(store.read_part(DB, b"none", |len| 0..len).await.unwrap().is_none());
        let end = store.read_part(DB, b"before", |len| len - 3..len).await.unwrap();
        assert_eq!(end, Some(value(1, 700).slice(697..)));
        world.bed.agents.iter().for_each(|agent| agent.rot());
        assert!(store.read_part(DB, key(1_000_000).as_bytes(), |_| 500_000..500_001).await.is_err());
    });
}

/// Each write evicted thousands of keys, to find no room all the same.
#[test]
fn with_donors_away_no_key_is_evicted_in_vain() {
    let world = World::new(100);
    let settings = Settings { policy: Policy::named("allkeys-lru").unwrap(), ..SETTINGS };
    world.run(0, settings, async |store| {
        let key = |nth: usize| format!("{nth}").into_bytes();
        for nth in 0..200 {
            store.write(DB, &key(nth), value(nth as u64, 3000), None).await.unwrap();
        }
        world.bed.agents[0].cut();
        // Far more than the pool had given before.
        for nth in 200..2000 {
            store.write(DB, &key(nth), value(nth as u64, 3000), None).await.unwrap();
        }
        assert_eq!((store.len(DB).0, store.stats().evicted), (2000, 0));

        world.bed.agents[1].cut();
        let refused = store.write(DB, b"more", value(1, 3000), None).await;
        assert!(refused.is_err());
        assert_eq!((store.len(DB).0, store.stats().evicted), (2000, 0));
        world.bed.agents.iter().for_each(|agent| agent.mend());
    });
}
