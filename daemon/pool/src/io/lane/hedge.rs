//! Reads that take too long get company: the same read from another replica, into spare pages of
//! the arena. The first verified answer wins.
//!
//! What too long is, and what is done about it, is decided in `pool/hedging`.
//!
//! # Whose bytes are whose
//! A READ that is under way may write its piece of the arena at any time until it completes. So a
//! piece is given to the lane's owner, or to anybody else, only when no operation on it is under
//! way: the one who loses the race keeps its piece until it completes, without a job (an *orphan*),
//! and then the piece goes back to the free list. If the winner read into spare pages, these become
//! the job's buffer, after the pages verified before were copied to them. The lane's arena is
//! larger than its owner asked for by the spare pages, so that the owner never misses any.

use super::*;
use crate::io::hedging::{Choice, Late, Patience, Verdict};
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Of a lane's pages, so many more are spare: a quarter, and at least and at most these.
const SPARE_PART: u32 = 4;
const SPARE_MIN: u32 = 16;
const SPARE_MAX: u32 = 256;

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

    fn set(&mut self, at: Instant, now: Instant) {
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
    fn quiet(&mut self, now: Instant) {
        if self.set_for.is_some_and(|at| at <= now) {
            // Unsetting clears what has gone off; reading could block nobody, but may find nothing
            // yet.
            let _ = self.timer.unset();
            self.set_for = None;
        }
    }
}

/// Pages to have in spare for a lane of so many.
pub(super) fn spare(pages: u32, core: &Core) -> u32 {
    let alone = core.config.replicas < 2 && core.spill.is_none();
    if alone { 0 } else { (pages / SPARE_PART).clamp(SPARE_MIN, SPARE_MAX) }
}

impl Lane {
    fn patience(&self) -> Patience {
        Patience { most: self.core.config.read_timeout.0, least: self.core.config.hedge_after.0 }
    }

    /// Gives company to reads whose time is up.
    pub(super) fn hedge(&mut self, now: Instant) {
        self.timer.quiet(now);
        let patience = self.patience();
        for at in 0..self.ends.len() {
            let late_ns = self.ends[at].quantile.late_ns();
            while let Some(op) = self.ends[at].reads.oldest() {
                if now < patience.due(self.ops[op].time, late_ns) {
                    break;
                }
                // Taken off the list: each attempt gets company once.
                self.ends[at].reads.remove(&mut self.ops, op);
                self.second(op, now);
            }
        }
    }

    fn second(&mut self, op: u32, now: Instant) {
        let job = self.ops[op].job;
        if job == NIL {
            return;
        }
        let Work::Read(read) = self.jobs[job].work else { return };
        let Some((extent, _)) = self.one_extent(read.run) else { return };
        let late = Late {
            is_bound: read.only.is_some(),
            has_company: read.attempts[1] != NIL,
            is_youngest: read.attempts[1] == op || read.attempts[1] == NIL,
            live: self.core.extents.replicas(extent).map_or(0, |r| r.live()),
            has_spare: self.jobs[job].buf.pages <= self.spare,
        };
        let verdict = late.verdict();
        if verdict == Verdict::Wait {
            return;
        }
        let end = &mut self.ends[usize::from(self.ops[op].donor.0)];
        let waited = now.saturating_duration_since(self.ops[op].time).as_nanos() as u64;
        end.latency_ns = end.latency_ns.max(waited);
        match verdict {
            Verdict::Wait | Verdict::NoRoom => return,
            Verdict::Accompany => {}
            Verdict::Relieve => {
                let (first, second) = (self.ops[read.attempts[0]].buf, self.ops[read.attempts[1]].buf);
                if self.jobs[job].buf.page == first.0 {
                    self.move_home(job, second.0);
                }
                self.orphan(read.attempts[0]);
            }
        }
        let Work::Read(read) = self.jobs[job].work else { return };
        if let Choice::Replica(_) = self.attempt(job, &read, now) {
            self.core.counts.hedged.fetch_add(1, Relaxed);
        }
    }

    /// Has the owner woken when the next read's time is up.
    pub(super) fn set_timer(&mut self) {
        let patience = self.patience();
        let due = |at: usize| {
            let op = self.ends[at].reads.oldest()?;
            Some(patience.due(self.ops[op].time, self.ends[at].quantile.late_ns()))
        };
        if let Some(at) = (0..self.ends.len()).filter_map(due).min() {
            let now = Instant::now();
            self.timer.set(at.max(now), now);
        }
    }

    pub(super) fn take_spare(&mut self, pages: u32) -> Option<u32> {
        if pages > self.spare {
            return None;
        }
        let page = self.free.alloc(pages)?;
        self.spare -= pages;
        Some(page)
    }

    pub(super) fn return_spare(&mut self, buf: (u32, u32)) {
        self.free.free(buf.0, buf.1);
        self.spare += buf.1;
    }

    /// An attempt that brought nothing: its piece goes back, unless it is the job's own buffer.
    pub(super) fn drop_spare(&mut self, op: &Pending) {
        if self.jobs[op.job].buf.page != op.buf.0 {
            self.return_spare(op.buf);
        }
    }

    /// An attempt brought verified pages: where it put them is the job's buffer from now on, and
    /// what else is under way goes on alone.
    pub(super) fn adopt(&mut self, op: &Pending) {
        let home = self.jobs[op.job].buf.page;
        let Work::Read(read) = self.jobs[op.job].work else { return };
        if home != op.buf.0 {
            self.move_home(op.job, op.buf.0);
        }
        let mut home_is_busy = false;
        for other in read.attempts.into_iter().filter(|o| *o != NIL) {
            home_is_busy |= self.ops[other].buf.0 == home;
            self.orphan(other);
        }
        if home != op.buf.0 && !home_is_busy {
            self.return_spare((home, op.buf.1));
        }
    }

    /// Makes another piece the job's buffer, with the pages that are verified already.
    fn move_home(&mut self, job: u32, page: u32) {
        let home = self.jobs[job].buf.page;
        let Work::Read(read) = self.jobs[job].work else { return };
        let verified = read.at as usize * PAGE_SIZE;
        // SAFETY: operations under way on either piece begin after the verified pages, and the two
        // pieces are disjoint.
        let (from, to) = unsafe {
            let from = self.arena.bytes(home as usize * PAGE_SIZE, verified);
            (from, self.arena.bytes_mut(page as usize * PAGE_SIZE, verified))
        };
        to.copy_from_slice(from);
        self.jobs[job].buf.page = page;
    }

    /// The attempt goes on without its job, and keeps its piece of the arena until it completes.
    fn orphan(&mut self, op: u32) {
        let job = self.ops[op].job;
        self.attempt_over(job, op);
        self.ops[op].job = NIL;
    }
}
