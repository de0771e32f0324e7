//! What goes on beside requests: the driver that moves everything forward, expiry, and the giving
//! back of what was cleared.

use super::clock::now;
use super::compact::{Compaction, EVERY};
use super::db::Db;
use super::engine::Engine;
use super::flush;
use super::index::SHARDS;
use super::slot_reserve::Delivery;
use crate::turn;
use std::rc::Rc;
use std::time::Duration;

/// How often keys are looked at whose time may be over.
const EXPIRY_EVERY: Duration = Duration::from_millis(100);
/// Looks in which all keys have had their turn, unless there are too many.
const EXPIRY_ROUND: usize = 10;
/// Turns of the thread that one look may cost.
const EXPIRY_TURNS: usize = 8;

/// One of the tasks.
struct Background(Rc<Engine>);

/// Starts the tasks that the store needs, on the local task set that this runs in.
pub fn start(engine: &Rc<Engine>, deliveries: tokio::sync::mpsc::UnboundedReceiver<Delivery>) -> std::io::Result<()> {
    let events = engine.pool_io.events()?;
    let task = Background(engine.clone());
    tokio::task::spawn_local(async move { task.drive(&events).await });
    let task = Background(engine.clone());
    tokio::task::spawn_local(async move { task.refill_reserve(deliveries).await });
    let task = Background(engine.clone());
    tokio::task::spawn_local(turn::in_turns(async move { task.expire().await }));
    let task = Background(engine.clone());
    tokio::task::spawn_local(turn::in_turns(async move { task.tidy().await }));
    Ok(())
}

impl Background {
    /// Writes what waits, takes what is done, and sleeps when there is neither.
    async fn drive(&self, events: &tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>) {
        loop {
            if flush::step(&self.0) {
                // Those who have their answers go on first; what they post goes together.
                tokio::task::yield_now().await;
            } else {
                self.0.pool_io.rest(events).await;
            }
        }
    }

    async fn refill_reserve(&self, mut deliveries: tokio::sync::mpsc::UnboundedReceiver<Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            self.0.records().slot_reserve.receive(delivery);
            self.0.pool_io.wake();
        }
    }

    /// Removes keys whose time is over, whether or not anybody asks for them.
    async fn expire(&self) {
        let mut shard = 0;
        loop {
            tokio::time::sleep(EXPIRY_EVERY).await;
            if !self.0.keys.settings().expires_actively || self.0.loading.get() {
                continue;
            }
            let mut turns = 0;
            for _ in 0..SHARDS.div_ceil(EXPIRY_ROUND) {
                shard = (shard + 1) % SHARDS;
                self.expire_shard(shard);
                if turn::is_over() {
                    turns += 1;
                    if turns == EXPIRY_TURNS {
                        break;
                    }
                    turn::pause().await;
                }
            }
        }
    }

    fn expire_shard(&self, shard: usize) {
        let now = now();
        let mut keys = Vec::new();
        for (nth, index) in self.0.keys.indexes.borrow().iter().enumerate().filter(|(_, index)| index.volatile() > 0) {
            let expired = index.shard(shard).filter(|e| e.is_expired(now));
            keys.extend(expired.map(|e| (Db(nth as u8), e.hash())));
        }
        for (db, hash) in keys {
            self.0.keys.count(|s| s.expired += 1);
            self.0.keys.forget(self.0.keys.name_of(db), hash);
        }
    }

    /// Gives back what was cleared, and empties log pages that are mostly holes.
    async fn tidy(&self) {
        loop {
            if self.0.records().free_some() {
                tokio::task::yield_now().await;
                continue;
            }
            let cleared = self.0.keys.cleared.borrow_mut().pop();
            if let Some(mut index) = cleared {
                let mut entries = Vec::new();
                while index.len() > 0 {
                    index.drain_some(&mut entries);
                    entries.drain(..).for_each(|entry| self.0.records().drop_record(&entry));
                    tokio::task::yield_now().await;
                }
            } else if Compaction(&self.0).compact().await {
                // Requests have their turn between two steps.
                tokio::task::yield_now().await;
            } else {
                let _ = tokio::time::timeout(EVERY, self.0.records().work.notified()).await;
            }
        }
    }
}
