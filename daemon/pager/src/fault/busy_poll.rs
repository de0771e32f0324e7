//! Whether a fault worker that waits for reads looks again at once, or sleeps until it is woken.
//! Pure: the time goes in.
//!
//! To be woken takes some microseconds, as long as a whole READ over RDMA. So a worker polls for a
//! while before it sleeps, and, if it adapts, only while reads usually come back within that while:
//! polling for what takes longer burns a CPU for nothing.

use std::time::{Duration, Instant};

pub(crate) struct BusyPoll {
    most: Duration,
    adapts: bool,
    /// When it began to poll for what is awaited.
    since: Option<Instant>,
}

impl BusyPoll {
    /// `most`: how long to poll at most; zero never polls.
    pub fn new(most: Duration, adapts: bool) -> BusyPoll {
        BusyPoll { most, adapts, since: None }
    }

    /// True to look again at once. `usual`: how long the reads that are awaited usually take;
    /// `None` if none is.
    pub fn goes_on(&mut self, usual: Option<Duration>, now: Instant) -> bool {
        match usual {
            Some(usual) if !self.adapts || usual <= self.most => {
                now.saturating_duration_since(*self.since.get_or_insert(now)) < self.most
            }
            _ => {
                self.since = None;
                false
            }
        }
    }

    /// A read was begun or came back: what is awaited now is polled for from now on.
    pub fn restart(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(20);
    const QUICK: Option<Duration> = Some(Duration::from_micros(3));
    const SLOW: Option<Duration> = Some(Duration::from_micros(21));

    #[test]
    fn it_polls_for_so_long_and_anew_for_the_next_read() {
        let now = Instant::now();
        let mut poll = BusyPoll::new(MOST, true);
        assert!(poll.goes_on(QUICK, now) && poll.goes_on(QUICK, now + MOST / 2));
        assert!(!poll.goes_on(QUICK, now + MOST) && !poll.goes_on(QUICK, now + MOST * 2));
        poll.restart();
        assert!(poll.goes_on(QUICK, now + MOST * 3));
    }

    #[test]
    fn it_sleeps_at_once_when_nothing_is_awaited_or_what_takes_longer() {
        let now = Instant::now();
        let mut poll = BusyPoll::new(MOST, true);
        assert!(!poll.goes_on(None, now) && !poll.goes_on(SLOW, now));
        assert!(BusyPoll::new(MOST, false).goes_on(SLOW, now));
        assert!(!BusyPoll::new(Duration::ZERO, false).goes_on(QUICK, now));
    }
}
