//! What goes on beside requests: the driver that moves everything forward, expiry, and the giving
//! back of what was cleared.

use super::super::turn;
use super::*;

/// How often keys are looked at whose time may be over.
const EXPIRY_EVERY: Duration = Duration::from_millis(100);
/// Looks in which all keys have had their turn, unless there are too many.
const EXPIRY_ROUND: usize = 10;
/// Turns of the thread that one look may cost.
const EXPIRY_TURNS: usize = 8;

impl Store {
    /// Starts the tasks that the store needs, on the local task set that this runs in.
    pub fn start(
        &self,
        deliveries: tokio::sync::mpsc::UnboundedReceiver<slot_reserve::Delivery>,
    ) -> std::io::Result<()> {
        let events = self.0.pool_io.events()?;
        let store = self.clone();
        tokio::task::spawn_local(async move { store.drive(&events).await });
        let store = self.clone();
        tokio::task::spawn_local(async move { store.stock_up(deliveries).await });
        let store = self.clone();
        tokio::task::spawn_local(turn::in_turns(async move { store.expire().await }));
        let store = self.clone();
        tokio::task::spawn_local(turn::in_turns(async move { store.tidy().await }));
        Ok(())
    }

    /// Writes what waits, takes what is done, and sleeps when there is neither.
    async fn drive(&self, events: &tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>) {
        loop {
            if self.step() {
                // Those who have their answers go on first; what they post goes together.
                tokio::task::yield_now().await;
            } else {
                self.0.pool_io.rest(events).await;
            }
        }
    }

    pub(super) fn step(&self) -> bool {
        loop {
            let mut log = self.0.log.borrow_mut();
            let Some(flight) = log.launch(&self.0.pool_io, &self.0.slot_reserve) else { break };
            let mut space = self.0.space.borrow_mut();
            flight.landings.iter().for_each(|landing| space.hold(landing.sheet));
        }
        let (pool_io, slot_reserve) = (&self.0.pool_io, &self.0.slot_reserve);
        let any = pool_io.step(|token, outcome| self.0.log.borrow_mut().landed(token, outcome, pool_io, slot_reserve));
        loop {
            let next = self.0.log.borrow_mut().next();
            let Some((flight, result)) = next else { break };
            self.commit(flight, result);
            self.look_soon();
            self.0.drained.notify_waiters();
        }
        let waits = || {
            let log = self.0.log.borrow();
            log.dirty() > 0 || log.waits()
        };
        if slot_reserve.is_out() && waits() && !self.0.making_room.replace(true) {
            let store = self.clone();
            tokio::task::spawn_local(async move { store.make_room_for_waiting().await });
        }
        any
    }

    /// The pool has no room for what waits: keys go that may, or else it is refused.
    async fn make_room_for_waiting(&self) {
        let made = self.make_room(0).await;
        self.0.making_room.set(false);
        self.0.pool_io.wake();
        if made.is_ok() {
            return;
        }
        let changes = self.0.log.borrow_mut().give_up(&self.0.pool_io, &self.0.slot_reserve);
        for change in changes {
            self.give_back(change.entry.place(), change.entry.units());
            change.told.tell(Err(StoreError::NoRoom));
        }
        self.0.drained.notify_waiters();
    }

    async fn stock_up(&self, mut deliveries: tokio::sync::mpsc::UnboundedReceiver<slot_reserve::Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            self.0.slot_reserve.receive(delivery);
            self.0.pool_io.wake();
        }
    }

    /// Removes keys whose time is over, whether or not anybody asks for them.
    async fn expire(&self) {
        let mut shard = 0;
        loop {
            tokio::time::sleep(EXPIRY_EVERY).await;
            if !self.settings().expires_actively || self.0.loading.get() {
                continue;
            }
            let mut turns = 0;
            for _ in 0..index::SHARDS.div_ceil(EXPIRY_ROUND) {
                shard = (shard + 1) % index::SHARDS;
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
        let mut over = Vec::new();
        for (nth, index) in self.0.indexes.borrow().iter().enumerate().filter(|(_, index)| index.volatile() > 0) {
            let expired = index.shard(shard).filter(|e| e.is_expired(now));
            over.extend(expired.map(|e| (Db(nth as u8), e.hash())));
        }
        for (db, hash) in over {
            self.count(|s| s.expired += 1);
            self.forget(self.name_of(db), hash);
        }
    }

    /// Gives back what was cleared, and empties sheets that are mostly holes.
    async fn tidy(&self) {
        loop {
            if self.free_some() {
                tokio::task::yield_now().await;
                continue;
            }
            let cleared = self.0.cleared.borrow_mut().pop();
            if let Some(mut index) = cleared {
                let mut entries = Vec::new();
                while index.len() > 0 {
                    index.drain_some(&mut entries);
                    entries.drain(..).for_each(|entry| self.drop_record(&entry));
                    tokio::task::yield_now().await;
                }
            } else if self.compact().await {
                // Requests have their turn between two steps.
                tokio::task::yield_now().await;
            } else {
                let _ = tokio::time::timeout(compact::EVERY, self.0.work.notified()).await;
            }
        }
    }
}
