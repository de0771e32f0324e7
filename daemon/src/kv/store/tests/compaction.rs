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
        // A sheet is read once, however many of its records are moved.
        let stats = store.stats();
        assert!(stats.moved > 100 && stats.reads <= stats.moved, "{stats:?}");
        for n in (0..20_000u64).step_by(10) {
            let seed = if n % 50 == 0 { n + 7 } else { n };
            assert!(bytes(&store, DB, &n.to_le_bytes()).await == Some(value(seed, 150)), "{n}");
        }
    });
    world.with(async |store| assert_eq!(store.len(DB).0, 2000));
}
