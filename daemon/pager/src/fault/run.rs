//! A worker's life: it waits for its epoll set, its lane, its mail and the rings that it polls.

use crate::fault::rings;
use crate::fault::worker::Worker;
use crate::kernel::process;
use crate::space::SpaceId;
use annex_host::priority::Precedence;
use annex_host::sentinel::Sentinel;
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(super) const LANE: u64 = u64::MAX;
pub(super) const INBOX: u64 = u64::MAX - 1;

static EPOCH: OnceLock<Instant> = OnceLock::new();
/// A turn takes microseconds; one that takes this long has stalled.
pub(super) const STALLED: Duration = Duration::from_secs(2);

pub(super) fn millis(at: Instant) -> u64 {
    at.saturating_duration_since(*EPOCH.get_or_init(Instant::now)).as_millis() as u64 + 1
}

impl Worker {
    pub(super) fn run(mut self, pin: Option<usize>) {
        pin.into_iter().for_each(process::stay_on);
        let _sentinel = Sentinel("a fault worker");
        let mut precedence = None;
        let mut events = [EpollEvent::empty(); 32];
        let mut stalled_since = None;
        let mut found = 0;
        while !self.stop.load(Ordering::Acquire) {
            self.give_precedence(&mut precedence);
            let asked = self.look_at_rings();
            found += asked;
            if asked > 0 && found < rings::MOST_FOUND {
                self.turn();
                continue;
            }
            found = 0;
            let timeout = self.timeout(&mut stalled_since);
            self.busy_since.store(0, Ordering::Relaxed);
            let ready = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => {
                    // Without its epoll set the worker is deaf; the others go on.
                    tracing::error!(%error, "a fault worker lost its epoll set");
                    return;
                }
            };
            let woken = Instant::now();
            self.busy_since.store(millis(woken), Ordering::Relaxed);
            if ready > 0 {
                self.last_woken = woken;
            }
            for event in &events[..ready] {
                match event.data() {
                    LANE => {}
                    INBOX => self.take_mail(),
                    bell if bell & rings::BELL != 0 => self.answer_bell(SpaceId(bell & !rings::BELL)),
                    id => self.visit(SpaceId(id), woken),
                }
            }
            self.turn();
        }
    }

    /// One that polls must leave ordinary threads this CPU: those of its group come first if it
    /// waits for faults, nobody does if it looks at rings. A donor's thread on this host is to run
    /// right here once it has been asked: the kernel sends it to another CPU if a thread of real
    /// time asks that stays on its own.
    pub(super) fn give_precedence(&self, has: &mut Option<Precedence>) {
        let may = match (self.polls_rings(), self.polls_for.is_zero() && !self.lane.is_served_here()) {
            (true, _) => Precedence::Ordinary,
            (_, false) => Precedence::OfItsGroup,
            (_, true) => Precedence::OfAll,
        };
        if *has != Some(may) {
            *has = Some(may);
            self.class.deserve(may);
        }
    }

    /// How long to sleep: not at all with work that only needs another try, at most 50 ms with
    /// reads under way.
    pub(super) fn timeout(&mut self, stalled_since: &mut Option<Instant>) -> EpollTimeout {
        if !self.again.is_empty() {
            if self.goes_on {
                *stalled_since = None;
            }
            // The app is in the middle of a system call that changes its mappings. Most take
            // microseconds; a fork of much memory takes longer.
            let since = *stalled_since.get_or_insert_with(Instant::now);
            if since.elapsed() < Duration::from_micros(200) {
                std::thread::yield_now();
                return EpollTimeout::ZERO;
            }
            return EpollTimeout::from(1u8);
        }
        *stalled_since = None;
        let now = Instant::now();
        let polls = now - self.last_woken < self.polls_for || self.busy_poll.goes_on(self.lane.usual_wait(), now);
        if polls || self.polls_rings() || self.lane.arm() {
            return EpollTimeout::ZERO;
        }
        let held = self
            .delaying
            .iter()
            .map(|(_, until)| until.saturating_duration_since(Instant::now()).as_millis() as u8 + 1);
        let under_way = (self.lane.in_flight() > 0).then_some(50);
        held.chain(under_way).min().map_or(EpollTimeout::NONE, EpollTimeout::from)
    }

    pub(super) fn take_mail(&mut self) {
        let _ = self.bell.read();
        while let Ok((space, fault)) = self.mail.try_recv() {
            self.face(&space, fault);
        }
    }
}
