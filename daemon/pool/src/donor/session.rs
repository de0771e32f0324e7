//! When a donor's control thread connects, renews and gives up. Pure: events and the time in, the
//! next step out.
//!
//! ```text
//!            connected                       renewed
//!   ┌──────┐ ────────────▶ ┌────┐ ──────────────────┐
//!   │ down │               │ up │ ◀─────────────────┘
//!   └──────┘ ◀──────────── └────┘
//!              failed
//! ```
//! Attempts are spaced 100 ms, doubled up to 3 s, each with a random part, so that a donor that
//! comes back isn't stormed. The spacing starts anew only after a connection that lasted: one that
//! breaks at once is no success.

use std::time::{Duration, Instant};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(3);
/// A connection that lasts this long was a success.
const LASTED: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Connect,
    Renew,
    /// Nothing before this moment.
    Wait(Instant),
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Session {
    phase: Phase,
    retry: Duration,
}

#[derive(Debug)]
enum Phase {
    Down { connect_at: Instant },
    Up { since: Instant, renew_every: Duration, renew_at: Instant },
}

impl Session {
    pub fn new(now: Instant) -> Self {
        Session { phase: Phase::Down { connect_at: now }, retry: FIRST_RETRY }
    }

    pub fn next(&self, now: Instant) -> Step {
        match self.phase {
            Phase::Down { connect_at } if now >= connect_at => Step::Connect,
            Phase::Down { connect_at } => Step::Wait(connect_at),
            Phase::Up { renew_at, .. } if now >= renew_at => Step::Renew,
            Phase::Up { renew_at, .. } => Step::Wait(renew_at),
        }
    }

    /// A hello was answered; leases live for `ttl` without renewal.
    pub fn connected(&mut self, now: Instant, ttl: Duration) {
        let renew_every = (ttl / 3).max(Duration::from_millis(10));
        self.phase = Phase::Up { since: now, renew_every, renew_at: now + renew_every };
    }

    pub fn renewed(&mut self, now: Instant) {
        if let Phase::Up { renew_every, renew_at, .. } = &mut self.phase {
            *renew_at = now + *renew_every;
        }
    }

    /// Whether the agent answers is of interest before the renewal is due.
    pub fn renew_now(&mut self, now: Instant) {
        if let Phase::Up { renew_at, .. } = &mut self.phase {
            *renew_at = now;
        }
    }

    /// There is nothing to connect to yet: no attempt that failed.
    pub fn not_yet(&mut self, now: Instant) {
        self.phase = Phase::Down { connect_at: now + FIRST_RETRY / 2 };
    }

    /// The connection failed or could not be made. `jitter` is a random number from 0 to 1.
    pub fn failed(&mut self, now: Instant, jitter: f64) {
        if let Phase::Up { since, .. } = self.phase
            && now.duration_since(since) >= LASTED
        {
            self.retry = FIRST_RETRY;
        }
        let pause = self.retry.mul_f64(0.5 + jitter.clamp(0.0, 1.0));
        self.phase = Phase::Down { connect_at: now + pause };
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    #[test]
    fn a_donor_that_accepts_and_hangs_up_is_not_stormed() {
        let mut now = Instant::now();
        let start = now;
        let mut session = Session::new(now);
        let mut attempts = 0;
        while now < start + Duration::from_secs(60) {
            match session.next(now) {
                Step::Connect => {
                    attempts += 1;
                    session.connected(now, TTL);
                    session.failed(now + Duration::from_millis(1), 0.5);
                }
                Step::Wait(until) => now = until,
                Step::Renew => unreachable!("a connection that lasts a millisecond needs no renewal"),
            }
        }
        assert!((20..30).contains(&attempts), "{attempts}");
    }

    #[test]
    fn leases_are_renewed_three_times_in_their_life() {
        let now = Instant::now();
        let mut session = Session::new(now);
        assert_eq!(session.next(now), Step::Connect);
        session.connected(now, TTL);
        assert_eq!(session.next(now), Step::Wait(now + TTL / 3));
        assert_eq!(session.next(now + TTL / 3), Step::Renew);
        session.renewed(now + TTL / 3);
        assert_eq!(session.next(now + TTL / 3), Step::Wait(now + TTL / 3 * 2));
    }

    #[test]
    fn after_a_connection_that_lasted_the_first_retry_is_quick() {
        let now = Instant::now();
        let mut session = Session::new(now);
        for _ in 0..10 {
            session.failed(now, 0.5);
        }
        assert_eq!(session.next(now), Step::Wait(now + LAST_RETRY));
        session.connected(now, TTL);
        session.failed(now + LASTED, 0.5);
        assert_eq!(session.next(now + LASTED), Step::Wait(now + LASTED + FIRST_RETRY));
    }
}
