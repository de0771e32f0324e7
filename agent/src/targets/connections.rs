//! All open data and shm connections of this agent.
//!
//! A connection is registered *before* it asks to be admitted, so that a session which ends in
//! between still finds it. Closing sets a flag that the target looks at before every operation, and
//! shuts the socket down, which wakes a target that waits in it. [`Connections::fence`] goes one
//! step further and waits until the target is gone: after it, no operation sent over that
//! connection will be executed any more.

use super::buffers::Budget;
use super::lane_keys::LaneKeys;
use super::turns::Turns;
use annex_shared::ids::{ClientId, SessionKey};
use annex_shared::preamble::{AdmitError, Proof};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Connections one client may hold: lanes of all its workers, with room for those that are being
/// replaced.
const PER_CLIENT: usize = 256;

/// The registry. One per agent.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<HashMap<u64, Open>>,
    gone: Condvar,
    last: AtomicU64,
    closing: AtomicBool,
    budget: Budget,
    turns: Turns,
    lane_keys: Arc<LaneKeys>,
}

#[derive(Debug)]
struct Open {
    client: ClientId,
    session: SessionKey,
    /// A duplicate, so that the number can't be reused for another socket while it stands here.
    socket: OwnedFd,
    closed: Arc<AtomicBool>,
}

/// A registered connection; leaves the registry when dropped.
#[derive(Debug)]
pub struct Guest<'a> {
    connections: &'a Connections,
    number: u64,
    closed: Arc<AtomicBool>,
}

impl Connections {
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters a connection whose socket is `socket` (a duplicate), for the client that `proof`
    /// names, whether it is true or not.
    ///
    /// # Errors
    /// The client has too many, or the agent is closing.
    pub fn enter(&self, proof: &Proof, socket: OwnedFd) -> Result<Guest<'_>, AdmitError> {
        let Proof { client, session, .. } = *proof;
        let mut open = self.open.lock();
        // Under the lock, so that `shutdown` sees either the flag obeyed or the connection entered.
        if self.closing.load(Ordering::Relaxed) {
            return Err(AdmitError::Closing);
        }
        if open.values().filter(|o| o.client == client).count() >= PER_CLIENT {
            return Err(AdmitError::TooManyConnections);
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let closed = Arc::new(AtomicBool::new(false));
        open.insert(number, Open { client, session, socket, closed: closed.clone() });
        Ok(Guest { connections: self, number, closed })
    }

    /// Closes all connections of a client whose session is over. Does not wait for them.
    pub fn close_client(&self, client: ClientId) {
        self.lane_keys.leave(client);
        self.open.lock().values().filter(|o| o.client == client).for_each(Open::close);
    }

    /// Closes all connections and admits no new one.
    pub fn shutdown(&self) {
        let open = self.open.lock();
        self.closing.store(true, Ordering::Relaxed);
        open.values().for_each(Open::close);
    }

    /// Closes one connection of `client` and waits until nothing more will be executed for it.
    /// Other clients' connections and unknown numbers are left alone. False if it is still there
    /// after `patience`.
    pub fn fence(&self, client: ClientId, number: u64, patience: Duration) -> bool {
        let open = self.open.lock();
        match open.get(&number) {
            Some(o) if o.client == client => o.close(),
            _ => return true,
        }
        self.wait_until(open, patience, |open| !open.contains_key(&number))
    }

    /// Closes all connections of `client` that were opened in another session than `session`, and
    /// waits until nothing more will be executed for them. False if one is still there after
    /// `patience`.
    pub fn fence_sessions_before(&self, client: ClientId, session: SessionKey, patience: Duration) -> bool {
        let is_earlier = |o: &Open| o.client == client && o.session != session;
        let open = self.open.lock();
        open.values().filter(|o| is_earlier(o)).for_each(Open::close);
        self.wait_until(open, patience, |open| !open.values().any(is_earlier))
    }

    /// Waits until all connections are gone; false if some are left after `patience`.
    pub fn wait_empty(&self, patience: Duration) -> bool {
        let open = self.open.lock();
        self.wait_until(open, patience, HashMap::is_empty)
    }

    /// For the buffers of data connections.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// By which connections over TLS are admitted.
    pub fn lane_keys(&self) -> &Arc<LaneKeys> {
        &self.lane_keys
    }

    /// For data connections that run before all others.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Open connections of all clients.
    pub fn count(&self) -> usize {
        self.open.lock().len()
    }

    fn wait_until(
        &self,
        mut open: MutexGuard<'_, HashMap<u64, Open>>,
        patience: Duration,
        is_done: impl Fn(&HashMap<u64, Open>) -> bool,
    ) -> bool {
        let deadline = Instant::now() + patience;
        while !is_done(&open) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.gone.wait_for(&mut open, left);
        }
        true
    }
}

impl Open {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // SAFETY: shutdown takes any descriptor number; this one is open, since we own it. A peer
        // that is gone already is fine.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Guest<'_> {
    /// The connection's number: unique for this agent's life, never 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// True once nothing may be executed for it any more.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.number);
        self.connections.gone.notify_all();
    }
}
