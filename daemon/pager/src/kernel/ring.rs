//! The ring of a region, from annexd's side: whose questions were taken and not answered, and who
//! polls.
//!
//! The region's userfaultfd is in SIGBUS mode: the kernel sends no fault messages and wakes
//! nobody. A worker takes the questions off the ring ([`annex_shared::ring`]) and serves them as
//! it does faults; whatever installs, wakes or poisons pages through the space's
//! [`Uffd`](crate::kernel::uffd::Uffd) answers those that wait for them. So a question is answered
//! exactly when a fault would be woken. It is known here by page, in annexd's own memory: the
//! shared one is not asked twice.
//!
//! One worker at most polls a ring, and none on the CPU where the faults come from: there it would
//! run in place of the thread that asks. Who polls such a CPU all the same (there are threads on
//! all of them) lets it be for a while, and for longer each time.

use crate::page::PageIdx;
use annex_shared::ring::{Mapping, Question, Ring, RingError, SLOTS};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// How long a ring is not polled once that was found to be of no use; doubled each time.
const REST: Duration = Duration::from_millis(2);
const LONGEST_REST: Duration = Duration::from_millis(250);
const NOBODY: u32 = u32::MAX;

/// A region's ring and bell could not be had.
#[derive(Debug, thiserror::Error)]
pub enum WaitersError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("failed to {what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("the bell is no eventfd")]
    Bell,
}

#[derive(Debug)]
pub struct Waiters {
    map: Mapping,
    ring: OwnedFd,
    bell: OwnedFd,
    /// The region.
    pages: (PageIdx, PageIdx),
    /// For each slot the page that was taken from it and is not there yet, plus 1.
    taken: [AtomicU64; SLOTS],
    poller: AtomicU32,
    last_cpu: AtomicU32,
    rest: Mutex<Rest>,
}

/// Until when nobody polls.
#[derive(Debug, Default)]
struct Rest {
    until: Option<Instant>,
    length: Duration,
}

impl Waiters {
    /// Takes both descriptors, of which the program may have made anything.
    pub fn new(ring: OwnedFd, bell: OwnedFd, (start, end): (u64, u64)) -> Result<Waiters, WaitersError> {
        let map = Mapping::open(ring.as_fd())?;
        let what = std::fs::read_link(format!("/proc/self/fd/{}", bell.as_raw_fd()));
        let what = what.map_err(|source| WaitersError::System { what: "look at the bell", source })?;
        if what.as_os_str() != "anon_inode:[eventfd]" {
            return Err(WaitersError::Bell);
        }
        // Whoever polled is gone.
        map.set_awake(false);
        Ok(Waiters {
            map,
            ring,
            bell,
            pages: (PageIdx::of(start), PageIdx::of(end)),
            taken: [const { AtomicU64::new(0) }; SLOTS],
            poller: AtomicU32::new(NOBODY),
            last_cpu: AtomicU32::new(NOBODY),
            rest: Mutex::default(),
        })
    }

    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.ring.as_fd(), self.bell.as_fd()]
    }

    /// Rung when nobody polls. Never read: each ring is an edge.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn is_asked(&self) -> bool {
        self.map.is_pointed_at()
    }

    /// Takes what is asked, of each slot once: it is taken again when it was answered. (Who asks
    /// for more with a slot that waits has no word of ours, and waits for what was asked first.)
    pub fn take(&self, mut each: impl FnMut(Question)) {
        let mut slots = self.map.pointed_at();
        while slots != 0 {
            let nth = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            let Some(question) = self.map.take(nth) else { continue };
            if (self.pages.0.0..self.pages.1.0).contains(&question.page) {
                if self.taken[nth].compare_exchange(0, question.page + 1, SeqCst, Relaxed).is_ok() {
                    self.last_cpu.store(question.cpu, Relaxed);
                    each(question);
                }
            } else if self.taken[nth].load(SeqCst) == 0 {
                // Nothing of ours: whoever asks such things may ask again.
                self.map.done(nth);
            }
        }
    }

    /// Answers those that wait for one of these pages.
    pub fn wake(&self, from: PageIdx, to: PageIdx) {
        self.answer(from, to, Ring::done);
    }

    /// Tells those that wait for the page that there is none to be had.
    pub fn lose(&self, page: PageIdx) {
        self.answer(page, page.plus(1), Ring::lost);
    }

    fn answer(&self, from: PageIdx, to: PageIdx, answer: fn(&Ring, usize)) {
        for (nth, taken) in self.taken.iter().enumerate() {
            let page = taken.load(Relaxed);
            if page != 0
                && (from.0..to.0).contains(&(page - 1))
                && taken.compare_exchange(page, 0, SeqCst, Relaxed).is_ok()
            {
                answer(&self.map, nth);
            }
        }
    }

    /// Has all make their accesses again: the annexd before has taken their questions with it.
    pub fn release_all(&self) {
        self.map.release_all();
    }

    /// The region is whole and nobody's business any more.
    pub fn end(&self) {
        self.map.end();
    }

    /// Makes this worker, which is pinned to the CPU of its number, the one that polls. False:
    /// somebody does, or it is not worth it.
    pub fn begin_to_poll(&self, worker: usize, now: Instant) -> bool {
        let rests = self.rest.lock().until.is_some_and(|until| now < until);
        if rests || self.last_cpu.load(Relaxed) as usize == worker {
            return false;
        }
        let mine = self.poller.compare_exchange(NOBODY, worker as u32, SeqCst, Relaxed).is_ok();
        if mine {
            self.map.set_awake(true);
        }
        mine
    }

    /// Whether the latest question came from the CPU of this worker, which polls: then it had
    /// better not.
    pub fn is_in_the_way(&self, worker: usize) -> bool {
        self.last_cpu.load(Relaxed) as usize == worker
    }

    pub fn count_beat(&self) {
        self.map.count_beat();
    }

    /// Nobody polls any more. What is asked from now on is rung for; whoever calls this must look
    /// once more.
    pub fn stop_polling(&self, was_of_use: bool, now: Instant) {
        let mut rest = self.rest.lock();
        if was_of_use {
            *rest = Rest::default();
        } else {
            rest.length = (rest.length * 2).clamp(REST, LONGEST_REST);
            rest.until = Some(now + rest.length);
        }
        drop(rest);
        self.map.set_awake(false);
        self.poller.store(NOBODY, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ring::Progress;
    use nix::sys::eventfd::EventFd;

    fn both() -> (Mapping, Waiters) {
        let (thread, fd) = Mapping::create().unwrap();
        let bell = EventFd::new().unwrap();
        (thread, Waiters::new(fd, bell.into(), (0x10_000, 0x20_000)).unwrap())
    }

    fn ask(page: u64, cpu: u32) -> Question {
        Question { page, write: false, thread: 1, cpu }
    }

    fn taken(annexd: &Waiters) -> Vec<u64> {
        let mut pages = Vec::new();
        annexd.take(|question| pages.push(question.page));
        pages
    }

    #[test]
    fn a_wake_answers_those_who_wait_for_its_pages_and_nobody_else() {
        let (thread, annexd) = both();
        let slots = [0x10, 0x11, 0x11, 0x13].map(|page| thread.ask(ask(page, 0)).unwrap());
        assert_eq!(taken(&annexd), [0x10, 0x11, 0x11, 0x13]);
        annexd.wake(PageIdx(0x11), PageIdx(0x13));
        let done = slots.map(|nth| thread.progress(nth) == Progress::Done);
        assert_eq!(done, [false, true, true, false]);
        annexd.lose(PageIdx(0x13));
        assert_eq!(thread.progress(slots[3]), Progress::Lost);
        thread.free(slots[3]);
        annexd.wake(PageIdx(0), PageIdx(u64::MAX));
        assert!(slots[..3].iter().all(|nth| thread.progress(*nth) == Progress::Done));
    }

    #[test]
    fn a_page_outside_the_region_is_answered_and_not_served() {
        let (thread, annexd) = both();
        let slots = [0x0f, 0x20, u64::MAX].map(|page| thread.ask(ask(page, 0)).unwrap());
        assert!(taken(&annexd).is_empty());
        assert!(slots.iter().all(|nth| thread.progress(*nth) == Progress::Done));
    }

    /// A program that marked its slots as asked for over and over had annexd serve each mark, and
    /// keep what could not be served at once: other programs had no turn, and memory grew.
    #[test]
    fn a_slot_is_taken_once_until_it_was_answered_whatever_the_program_writes() {
        let (thread, annexd) = both();
        let slot = thread.ask(ask(0x10, 0)).unwrap();
        assert_eq!(taken(&annexd), [0x10]);
        for page in [0x10, 0x11, 0x99] {
            thread.free(slot);
            assert_eq!(thread.ask(ask(page, 0)), Some(slot));
            assert!(taken(&annexd).is_empty());
        }
        annexd.wake(PageIdx(0x11), PageIdx(0x12));
        thread.free(slot);
        assert_eq!(thread.ask(ask(0x12, 0)), Some(slot));
        assert!(taken(&annexd).is_empty(), "nobody waits for 0x11");
        annexd.wake(PageIdx(0x10), PageIdx(0x11));
        assert_eq!(thread.progress(slot), Progress::Done);
        thread.free(slot);
        assert_eq!(thread.ask(ask(0x13, 0)), Some(slot));
        assert_eq!(taken(&annexd), [0x13]);
    }

    #[test]
    fn one_polls_and_not_where_the_thread_runs() {
        let (thread, annexd) = both();
        let now = Instant::now();
        thread.ask(ask(0x10, 1)).unwrap();
        taken(&annexd);
        assert!(!annexd.begin_to_poll(1, now), "it would take the thread's CPU");
        assert!(annexd.begin_to_poll(0, now) && thread.is_awake());
        assert!(!annexd.begin_to_poll(2, now), "one does already");
        annexd.stop_polling(true, now);
        assert!(!thread.is_awake() && annexd.begin_to_poll(2, now));
    }

    #[test]
    fn what_was_of_no_use_is_left_off_for_longer_each_time() {
        let (_thread, annexd) = both();
        let mut now = Instant::now();
        for rest in [REST, REST * 2, REST * 4] {
            assert!(annexd.begin_to_poll(0, now));
            annexd.stop_polling(false, now);
            assert!(!annexd.begin_to_poll(0, now + rest / 2));
            now += rest;
        }
        assert!(annexd.begin_to_poll(0, now));
        annexd.stop_polling(true, now);
        assert!(annexd.begin_to_poll(0, now), "a good end is the end of it");
    }

    #[test]
    fn another_descriptor_is_no_bell() {
        let (_thread, fd) = Mapping::create().unwrap();
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert!(matches!(Waiters::new(fd, pipe, (0, 4096)), Err(WaitersError::Bell)));
    }
}
