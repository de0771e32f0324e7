//! The timer that wakes a lane's owner.

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Wakes the lane's owner when a read's time is up. It may go off early and for nothing.
pub(super) struct Timer {
    timer: TimerFd,
    set_for: Option<Instant>,
}

impl Timer {
    pub fn new() -> Result<Timer, Errno> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Timer { timer: TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?, set_for: None })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    pub fn set(&mut self, at: Instant, now: Instant) {
        if self.set_for.is_some_and(|set| set > now && set <= at) {
            return;
        }
        let wait = at.saturating_duration_since(now).max(Duration::from_micros(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(wait));
        if self.timer.set(once, TimerSetTimeFlags::empty()).is_ok() {
            self.set_for = Some(at);
        }
    }

    /// Takes the descriptor's readability away once its time has come.
    pub fn quiet(&mut self, now: Instant) {
        if self.set_for.is_some_and(|at| at <= now) {
            // Unsetting clears what has gone off; reading could block nobody, but may find nothing
            // yet.
            let _ = self.timer.unset();
            self.set_for = None;
        }
    }
}
