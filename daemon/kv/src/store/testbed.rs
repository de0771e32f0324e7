//! A store over a pool of scripted donors, for the tests of what stands on it.

use super::{LogPageTable, Policy, Settings, Store};
use annex_pool_testbed::Bed;
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// A store with an event loop of its own.
pub(crate) struct Alone {
    pub store: Store,
    tasks: LocalSet,
    runtime: Runtime,
    pub bed: Bed,
}

impl Alone {
    pub fn new() -> Alone {
        let bed = Bed::new(&[100, 100], 2);
        let table = Arc::new(LogPageTable::create().unwrap());
        let settings =
            Settings { limit: 0, policy: Policy::NoEviction, log_factor: 10, decay: 1, expires_actively: true };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tasks = LocalSet::new();
        let store = tasks.block_on(&runtime, async {
            let (store, deliveries) = Store::open(bed.pool.clone(), table, 0, settings).unwrap();
            store.start(deliveries).unwrap();
            store.load().await;
            store
        });
        Alone { store, tasks, runtime, bed }
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.tasks.block_on(&self.runtime, future)
    }
}
