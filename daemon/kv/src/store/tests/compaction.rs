//! Compaction: what it gives back, and when.

use super::*;

#[test]
fn compaction_gives_space_back_and_changes_no_value() {
    let world = World::new(600);
    world.with(async |store| {
        let write = |n: u64, seed: u64| {
            let store = store.clone();
            async move { store.write(DB, &n.to_le_bytes(), value(seed, 150), None).await.unwrap() }
        };
        futures::future::join_all((0..20_000).map(|n| write(n, n))).await;
        // Nine of ten go, all over the place; some of the rest are written anew meanwhile.
        (0..20_000u64).filter(|n| n % 10 != 0).for_each(|n| assert!(store.remove(DB, &n.to_le_bytes())));
        futures::future::join_all((0..20_000).step_by(50).map(|n| write(n, n + 7))).await;
        eventually("little is unused", || {
            let stats = store.stats();
            stats.held <= 256 * 4096 || stats.held * 3 <= stats.used * 4
        })
        .await;
        // A log page is read once, however many of its records are moved.
        let stats = store.stats();
        assert!(stats.moved > 100 && stats.reads <= stats.moved, "{stats:?}");
        for n in (0..20_000u64).step_by(10) {
            let seed = if n % 50 == 0 { n + 7 } else { n };
            assert!(bytes(&store, DB, &n.to_le_bytes()).await == Some(value(seed, 150)), "{n}");
        }
    });
    world.with(async |store| assert_eq!(store.len(DB).0, 2000));
}

/// Records that are written anew all over the place, three times what the pool can take: log pages
/// of which most is in use fill it, and no log page comes back by itself.
#[test]
fn a_pool_that_is_nearly_full_is_compacted_before_writers_are_refused() {
    let slabs = 40;
    let world = World::new(slabs);
    let log_pages = u64::from(slabs * annex_pool_testbed::SLOTS);
    // Sixteen to a log page. With half of what is held unused they would not fit.
    let keys = log_pages * 16 * 60 / 100;
    world.with(async |store| {
        let write = |n: u64, seed: u64| {
            let store = store.clone();
            async move { store.write(DB, &n.to_le_bytes(), value(seed, 150), None).await }
        };
        let mut newest: Vec<u64> = (0..keys).collect();
        for some in newest.chunks(200) {
            futures::future::try_join_all(some.iter().map(|n| write(*n, *n))).await.unwrap();
        }
        let mut dice = 1u64;
        for seed in (keys..keys * 6).step_by(200) {
            let drawn: Vec<(u64, u64)> = (seed..seed + 200)
                .map(|seed| {
                    dice = dice.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    ((dice >> 33) % keys, seed)
                })
                .collect();
            // One after the other by key: the last one drawn counts.
            let latest: HashMap<u64, u64> = drawn.into_iter().collect();
            let writes = latest.iter().map(|(n, seed)| write(*n, *seed));
            let refused = futures::future::try_join_all(writes).await;
            assert_eq!(refused.err(), None, "after {} writes: {:?}", seed - keys, store.stats());
            latest.into_iter().for_each(|(n, seed)| newest[n as usize] = seed);
        }
        assert!(store.stats().moved > 0, "{:?}", store.stats());
        for (n, seed) in newest.into_iter().enumerate().step_by(7) {
            assert!(bytes(&store, DB, &(n as u64).to_le_bytes()).await == Some(value(seed, 150)), "{n}");
        }
    });
}

/// There is room: nothing is moved before half is unused, and then no more than it takes.
#[test]
fn with_room_left_half_of_what_is_held_may_be_unused() {
    let world = World::new(600);
    world.with(async |store| {
        let write = |n: u64| {
            let store = store.clone();
            async move { store.write(DB, &n.to_le_bytes(), value(n, 150), None).await.unwrap() }
        };
        futures::future::join_all((0..20_000).map(write)).await;
        let held = store.stats().held;
        // Four of ten, of every log page some.
        (0..20_000u64).filter(|n| n % 10 < 4).for_each(|n| assert!(store.remove(DB, &n.to_le_bytes())));
        for _ in 0..5 {
            store.0.records().work.notify_one();
            tokio::time::sleep(compact::EVERY).await;
        }
        assert_eq!((store.stats().moved, store.stats().held), (0, held));
        (0..20_000u64).filter(|n| n % 10 == 4 || n % 10 == 5).for_each(|n| assert!(store.remove(DB, &n.to_le_bytes())));
        eventually("no more than half is unused", || store.stats().held <= store.stats().used * 2).await;
        let stats = store.stats();
        assert!(stats.held * 10 > stats.used * 18, "more is moved than it takes: {stats:?}");
        for n in (0..20_000u64).filter(|n| n % 10 > 5) {
            assert!(bytes(&store, DB, &n.to_le_bytes()).await == Some(value(n, 150)), "{n}");
        }
    });
}

/// What a limit lets records take is no more than a third above it in the pool, whatever room that
/// has; a log page of which a part is in use counts as one.
#[test]
fn a_limit_bounds_what_is_held_for_it() {
    let limit = 8 << 20;
    let settings = Settings { limit, policy: Policy::AllKeysRandom, ..SETTINGS };
    World::new(600).run(0, settings, async |store| {
        let write = |n: u64| {
            let store = store.clone();
            async move { store.write(DB, &(n * 7919 % 60_000).to_le_bytes(), value(n, 150), None).await.unwrap() }
        };
        for first in (0..120_000).step_by(200) {
            futures::future::join_all((first..first + 200).map(write)).await;
        }
        let log_pages = |bytes: u64| bytes.div_ceil(PAGE_SIZE as u64);
        let is_dense = || log_pages(store.stats().held) * 3 <= log_pages(store.stats().used) * 4;
        if !is_dense() {
            let what = format!("a quarter is unused at most: at first {:?}; {:?}", store.stats(), store.0.pool.info());
            eventually(&what, is_dense).await;
        }
        assert!(store.stats().used > limit * 9 / 10, "{:?}", store.stats());
    });
}
