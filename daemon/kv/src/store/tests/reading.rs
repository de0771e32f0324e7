//! Reads that are answered on the spot.

use super::*;
use annex_fabric::{ErrorKind, Op, OpKind};
use annex_pool_testbed::Fate;
use std::sync::atomic::{AtomicU64, Ordering};

/// Up to half a log page: none of them goes on in the next one.
const SIZES: [usize; 5] = [0, 1, 100, 700, 1900];

fn near(world: &World) {
    world.bed.agents.iter().for_each(|agent| agent.near(true));
}

async fn fill(store: &Store) {
    for size in SIZES {
        store.write(DB, size.to_string().as_bytes(), value(size as u64, size), None).await.unwrap();
    }
    // So that the log pages of the others are not the last one, which is here.
    store.write(DB, b"last", value(1, 3000), None).await.unwrap();
}

fn now_read(store: &Store, key: &str) -> Option<Option<Bytes>> {
    store.read_now(DB, key.as_bytes()).map(|found| found.map(|value| value.bytes))
}

#[test]
fn what_is_near_or_known_is_read_without_waiting() {
    let world = World::new(100);
    world.run(64 << 10, SETTINGS, async |store| {
        fill(&store).await;
        store.write(DB, b"large", value(1, 5000), None).await.unwrap();
        store.write(DB, b"larger", value(1, 70_000), None).await.unwrap();
        assert_eq!((now_read(&store, "100"), store.stats().hits), (None, 0), "it is far away");
        // The last log page and keys that are not there take no READ.
        store.write(DB, b"new", "1".into(), None).await.unwrap();
        assert_eq!((now_read(&store, "new"), now_read(&store, "none")), (Some(Some("1".into())), Some(None)));
        assert_eq!((store.stats().hits, store.stats().misses, store.stats().reads), (1, 1, 0));
        near(&world);
        for size in SIZES {
            assert!(now_read(&store, &size.to_string()) == Some(Some(value(size as u64, size))), "{size}");
        }
        assert_eq!((store.stats().hits, store.stats().reads), (1 + SIZES.len() as u64, SIZES.len() as u64));
        // The cache is not for those.
        assert_eq!(now_read(&store, "100"), Some(Some(value(100, 100))));
        let stats = store.stats();
        assert_eq!((stats.cache_hits, stats.cached, stats.reads), (0, 0, 1 + SIZES.len() as u64), "{stats:?}");
        let reads = store.stats().reads;
        assert!(now_read(&store, "large") == Some(Some(value(1, 5000))));
        assert_eq!(store.stats().reads, reads + 2, "it lies in two log pages");
        assert_eq!(now_read(&store, "larger"), None, "it would take long");
        assert!(bytes(&store, DB, b"larger").await == Some(value(1, 70_000)));
        store.write(DB, b"soon", "1".into(), Some(now() + 30)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(31)).await;
        assert_eq!((now_read(&store, "soon"), store.stats().expired), (Some(None), 1));
    });
}

#[test]
fn what_was_far_away_is_near_in_the_cache() {
    let world = World::new(100);
    world.run(64 << 10, SETTINGS, async |store| {
        fill(&store).await;
        assert_eq!(bytes(&store, DB, b"100").await, Some(value(100, 100)));
        let reads = store.stats().reads;
        assert_eq!(now_read(&store, "100"), Some(Some(value(100, 100))));
        assert_eq!((store.stats().cache_hits, store.stats().reads), (1, reads));
    });
}

#[test]
fn a_read_on_the_spot_is_a_use() {
    let settings = Settings { policy: Policy::AllKeysLfu, log_factor: 0, ..SETTINGS };
    let world = World::new(100);
    near(&world);
    world.run(0, settings, async |store| {
        fill(&store).await;
        let before = store.known(DB, b"100").unwrap().frequency;
        (0..20).for_each(|_| assert!(now_read(&store, "100").is_some()));
        assert_eq!(store.known(DB, b"100").unwrap().frequency, before + 20);
    });
}

#[test]
fn what_is_wrong_on_the_spot_is_not_given_out_and_comes_from_another_donor() {
    let world = World::new(100);
    near(&world);
    world.with(async |store| {
        // In two log pages.
        store.write(DB, b"5000", value(5000, 5000), None).await.unwrap();
        fill(&store).await;
        for (size, fate) in [100, 5000]
            .into_iter()
            .flat_map(|size| [Fate::Corrupt, Fate::Fail(ErrorKind::RemoteOperation)].map(|fate| (size, fate)))
        {
            let (key, right) = (size.to_string(), Some(value(size as u64, size)));
            let wrong = Arc::new(AtomicU64::new(1));
            for agent in &world.bed.agents {
                let wrong = wrong.clone();
                let is_one = move |op: &Op| op.kind == OpKind::Read && wrong.swap(0, Ordering::Relaxed) > 0;
                agent.script(move |op| if is_one(op) { fate } else { Fate::Do });
            }
            let hits = store.stats().hits;
            assert!((now_read(&store, &key), store.stats().hits) == (None, hits), "{size}: {fate:?}");
            assert!(bytes(&store, DB, key.as_bytes()).await == right, "{size}: {fate:?}");
            assert!((now_read(&store, &key), store.stats().hits) == (Some(right), hits + 2), "{size}: {fate:?}");
        }
        // One donor is gone, and the other one is as near.
        world.bed.agents[0].cut();
        for size in SIZES {
            assert_eq!(bytes(&store, DB, size.to_string().as_bytes()).await, Some(value(size as u64, size)));
        }
    });
}

#[test]
fn nothing_is_read_on_the_spot_while_keys_are_taken_over() {
    let world = World::new(100);
    near(&world);
    world.with(async |store| {
        fill(&store).await;
        store.0.loading.set(true);
        assert_eq!((now_read(&store, "100"), now_read(&store, "none")), (None, None));
        store.0.loading.set(false);
        assert!(now_read(&store, "100").is_some());
    });
}

#[test]
fn what_will_be_read_is_hinted_at_where_it_lies_and_nothing_is_changed_by_that() {
    let world = World::new(100);
    near(&world);
    world.run(0, Settings { policy: Policy::AllKeysLfu, log_factor: 0, ..SETTINGS }, async |store| {
        fill(&store).await;
        store.write(DB, b"large", value(1, 9000), None).await.unwrap();
        store.write(DB, b"gone", "1".into(), Some(now() + 1)).await.unwrap();
        store.write(DB, b"tail", "1".into(), None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let (before, used) = (store.stats(), store.known(DB, b"100").map(|known| known.frequency));
        let keys = ["none", "1900", "tail", "700", "gone", "100", "1", "0"];
        keys.iter().for_each(|key| store.add_prefetch_hint(DB, key.as_bytes(), Soon::Read));
        store.follow_prefetch_hints();
        let hinted: Vec<_> = world.bed.agents.iter().flat_map(|agent| agent.hinted()).collect();
        (0..TOGETHER + 4).for_each(|_| store.add_prefetch_hint(DB, b"large", Soon::Overwrite));
        store.follow_prefetch_hints();
        assert_eq!((store.stats(), store.known(DB, b"100").map(|known| known.frequency)), (before, used));
        let read = Arc::new(parking_lot::Mutex::new(Vec::new()));
        for agent in &world.bed.agents {
            let read = read.clone();
            agent.script(move |op| {
                read.lock().push((op.rkey, op.addr, op.len));
                Fate::Do
            });
        }
        keys.iter().for_each(|key| assert!(now_read(&store, key).is_some(), "{key}"));
        assert_eq!(hinted, *read.lock());
        assert_eq!(hinted.len(), SIZES.len());
        assert_eq!(world.bed.agents.iter().map(|agent| agent.hinted().len()).sum::<usize>(), 0, "those are not read");
    });
}
