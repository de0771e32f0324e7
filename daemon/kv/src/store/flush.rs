//! Flushing: what waits in the log is written, and counts when it is on all replicas.

use super::engine::Engine;
use super::error::StoreError;
use super::eviction::Eviction;
use super::log::Flight;
use annex_pool::IoError;
use std::rc::Rc;

/// Where that is over at once, writes what waits, and tells whoever waits for it. Else as
/// [`forward_soon`].
pub fn forward(engine: &Rc<Engine>) {
    if engine.pool_io.is_instant() {
        step(engine);
    }
    if engine.log.borrow().is_busy() {
        forward_soon(engine);
    }
}

/// Has the driver write what waits, together with what comes until its turn.
pub fn forward_soon(engine: &Engine) {
    engine.pool_io.wake();
}

/// Writes what waits, and takes what is done. True if anything was.
pub fn step(engine: &Rc<Engine>) -> bool {
    loop {
        let mut log = engine.log.borrow_mut();
        let Some(flight) = log.launch(&engine.pool_io, &engine.records().slot_reserve) else { break };
        let mut space = engine.records().space.borrow_mut();
        flight.landings.iter().for_each(|landing| space.hold(landing.log_page));
    }
    let (pool_io, slot_reserve) = (&engine.pool_io, &engine.records().slot_reserve);
    let any = pool_io.step(|token, outcome| engine.log.borrow_mut().landed(token, outcome, pool_io, slot_reserve));
    loop {
        let next = engine.log.borrow_mut().next();
        let Some((flight, result)) = next else { break };
        commit(engine, flight, result);
        engine.look_soon();
        engine.drained.notify_waiters();
    }
    let waits = || {
        let log = engine.log.borrow();
        log.dirty() > 0 || log.waits()
    };
    if slot_reserve.is_out() && waits() && !engine.making_room.replace(true) {
        let engine = engine.clone();
        tokio::task::spawn_local(async move { make_room_for_waiting(&engine).await });
    }
    any
}

/// A flight is over: its records count, or those who wrote them hear why not.
fn commit(engine: &Engine, flight: Flight, result: Result<(), IoError>) {
    if result.is_ok() {
        // If not, its slots were given back already.
        flight.landings.iter().for_each(|landing| engine.records().put(landing.log_page, landing.slot));
    }
    for _ in 0..flight.changes {
        let next = engine.log.borrow_mut().next_change();
        let Some(change) = next else { break };
        match result {
            Ok(()) => engine.keys.apply(change.db, change.entry, change.from),
            Err(_) => engine.records().give_back(change.entry.addr(), change.entry.units()),
        }
        change.completion.tell(result.map_err(StoreError::Unwritten));
    }
    for landing in &flight.landings {
        engine.records().free_log_page(landing.log_page);
        engine.records().let_go(landing.log_page);
    }
}

/// The pool has no room for what waits: keys go that may, or else it is refused.
async fn make_room_for_waiting(engine: &Rc<Engine>) {
    let made = Eviction(engine).make_room(0).await;
    engine.making_room.set(false);
    engine.pool_io.wake();
    if made.is_ok() {
        return;
    }
    let changes = engine.log.borrow_mut().give_up(&engine.pool_io, &engine.records().slot_reserve);
    for change in changes {
        engine.records().give_back(change.entry.addr(), change.entry.units());
        change.completion.tell(Err(StoreError::NoRoom));
    }
    engine.drained.notify_waiters();
}
