//! The ring that a program and annexd share for a region whose faults are taken in the faulting
//! thread (`annex-client`).
//!
//! It is a sealed memfd that the program makes and annexd fetches. A thread that meets an absent
//! page gets SIGBUS; its handler *claims* a slot, writes the page's number there, and *asks*.
//! annexd *takes* the slot, installs the page, and says that it is *done*; the handler *frees* the
//! slot and returns, so that the access is made again.
//!
//! ```text
//!        thread          thread          annexd          annexd          thread
//!  FREE ────────► CLAIMED ─────► ASKED ──────────► TAKEN ─────► DONE or LOST ────► FREE
//! ```
//!
//! A bit in `asked` says which slots to look at. While `awake` is set somebody at annexd polls
//! that, and counts `beat` up as it does; while it is not, the thread writes to the *bell*, an
//! eventfd. Both sides write first and look afterwards, so either the thread sees that nobody is
//! awake or annexd sees the bit. A thread whose poller's beat stands still rings too, and again
//! every so often: nothing that annexd forgets (it may have been killed) is waited for in vain.
//!
//! annexd believes nothing that it reads here: the page is checked, and kept in its own memory from
//! then on; a word that is overwritten costs nobody but the program that has overwritten it.

use crate::futex;
use crate::memfd;
use nix::errno::Errno;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"annexrng");
const VERSION: u32 = 1;
/// Threads that can wait for a page at the same time; one more waits for a slot first.
pub const SLOTS: usize = 64;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const ASKED: u32 = 2;
const TAKEN: u32 = 3;
const DONE: u32 = 4;
const LOST: u32 = 5;

/// What a thread asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The page's number: its address divided by the page size.
    pub page: u64,
    pub write: bool,
    /// The asking thread, in its own PID namespace, and the CPU it was on.
    pub thread: i32,
    pub cpu: u32,
}

/// How far a question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nobody has looked at it.
    Asked,
    /// Somebody works on it.
    Taken,
    Done,
    /// Nobody has the page any more, and the access can't be made.
    Lost,
}

#[repr(C, align(64))]
struct Slot {
    state: AtomicU32,
    /// The thread sleeps, or is about to.
    sleeps: AtomicU32,
    page: AtomicU64,
    write: AtomicU32,
    thread: AtomicU32,
    cpu: AtomicU32,
}

#[repr(C, align(64))]
struct Line<T>(T);

/// The shared page's layout. The kernel fills it with zeros, which is what it begins with.
#[repr(C, align(4096))]
pub struct Ring {
    magic: AtomicU64,
    version: AtomicU32,
    /// annexd has let go of the region: all of it is there, and nobody answers any more.
    ended: AtomicU32,
    asked: Line<AtomicU64>,
    awake: Line<[AtomicU32; 2]>,
    slots: [Slot; SLOTS],
}

/// A ring that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("failed to {what} the ring: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("the descriptor is no ring of this version: {0}")]
    Foreign(&'static str),
}

fn system(what: &'static str) -> impl Fn(Errno) -> RingError {
    move |errno| RingError::System { what, source: errno.into() }
}

/// A ring in this process's memory.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<Ring>,
}

// SAFETY: shared memory that is reached through atomics alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Deref for Mapping {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        // SAFETY: mapped, as large and as aligned as a ring, for as long as `self` lives; all of
        // its fields are atomics.
        unsafe { self.base.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nobody has a reference any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), size_of::<Ring>()) };
    }
}

impl Mapping {
    /// A new ring, and the descriptor for the other side. A forked child does not have it.
    pub fn create() -> Result<(Mapping, OwnedFd), RingError> {
        let fd = memfd::create(c"annex-ring", size_of::<Ring>()).map_err(system("create"))?;
        let ring = Mapping::over(fd.as_fd())?;
        ring.version.store(VERSION, Relaxed);
        ring.magic.store(MAGIC, Release);
        Ok((ring, fd))
    }

    /// Another process's ring. Whatever that does, the mapping stays as long as it is: it is
    /// sealed.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Mapping, RingError> {
        let kind = fstatfs(fd).map_err(system("inspect"))?.filesystem_type();
        let length = memfd::fixed_len(fd).map_err(system("inspect"))?.filter(|_| kind == TMPFS_MAGIC);
        let length = length.ok_or(RingError::Foreign("it is no sealed memfd"))?;
        if length != size_of::<Ring>() as u64 {
            return Err(RingError::Foreign("it has another length"));
        }
        let ring = Mapping::over(fd)?;
        if ring.magic.load(Acquire) != MAGIC || ring.version.load(Relaxed) != VERSION {
            return Err(RingError::Foreign("the library and annexd do not belong together"));
        }
        Ok(ring)
    }

    fn over(fd: BorrowedFd<'_>) -> Result<Mapping, RingError> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Ring>(), protection, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(system("map")(Errno::last()));
        }
        // SAFETY: advice on the mapping that was just made. Without it a child would have the ring
        // and no region.
        Errno::result(unsafe { libc::madvise(base, size_of::<Ring>(), libc::MADV_DONTFORK) }).map_err(system("map"))?;
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Mapping { base })
    }
}

/// The thread's side. All of it may be called by a signal handler.
impl Ring {
    /// Asks; the slot to wait on. `None`: all slots are in use.
    pub fn ask(&self, question: Question) -> Option<usize> {
        // Threads on different CPUs begin at different slots.
        let nth = (0..SLOTS).map(|i| (i + question.cpu as usize) % SLOTS).find(|nth| {
            let state = &self.slots[*nth].state;
            state.load(Relaxed) == FREE && state.compare_exchange(FREE, CLAIMED, Acquire, Relaxed).is_ok()
        })?;
        let slot = &self.slots[nth];
        slot.sleeps.store(0, Relaxed);
        slot.page.store(question.page, Relaxed);
        slot.write.store(question.write.into(), Relaxed);
        slot.thread.store(question.thread as u32, Relaxed);
        slot.cpu.store(question.cpu, Relaxed);
        slot.state.store(ASKED, Release);
        self.point_at(nth);
        Some(nth)
    }

    /// Has annexd look at the slot, once more if need be.
    pub fn point_at(&self, nth: usize) {
        self.asked.0.fetch_or(1 << nth, SeqCst);
    }

    pub fn progress(&self, nth: usize) -> Progress {
        match self.slots[nth].state.load(Acquire) {
            DONE => Progress::Done,
            LOST => Progress::Lost,
            TAKEN => Progress::Taken,
            _ => Progress::Asked,
        }
    }

    /// Sleeps until the slot is done, but not for longer than `limit`.
    pub fn sleep(&self, nth: usize, limit: Duration) {
        let slot = &self.slots[nth];
        slot.sleeps.store(1, SeqCst);
        let state = slot.state.load(SeqCst);
        if matches!(state, DONE | LOST) {
            return;
        }
        futex::wait(&slot.state, state, limit);
    }

    /// The slot may be another's.
    pub fn free(&self, nth: usize) {
        self.slots[nth].state.store(FREE, Release);
    }

    /// Whether somebody polls; if not, the bell must be rung.
    pub fn is_awake(&self) -> bool {
        self.awake.0[0].load(SeqCst) != 0
    }

    /// Changes while somebody polls.
    pub fn beat(&self) -> u32 {
        self.awake.0[1].load(Relaxed)
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Acquire) != 0
    }
}

/// annexd's side.
impl Ring {
    /// Somebody polls from now on, or nobody any more: then it must look once more.
    pub fn set_awake(&self, awake: bool) {
        self.awake.0[0].store(awake.into(), SeqCst);
    }

    pub fn count_beat(&self) {
        let beat = &self.awake.0[1];
        beat.store(beat.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Whether there are slots to look at.
    pub fn is_pointed_at(&self) -> bool {
        self.asked.0.load(SeqCst) != 0
    }

    /// The slots to look at, a bit for each.
    pub fn pointed_at(&self) -> u64 {
        self.asked.0.swap(0, SeqCst)
    }

    /// Takes a question, if there is one.
    pub fn take(&self, nth: usize) -> Option<Question> {
        let slot = &self.slots[nth];
        slot.state.compare_exchange(ASKED, TAKEN, Acquire, Relaxed).ok()?;
        Some(Question {
            page: slot.page.load(Relaxed),
            write: slot.write.load(Relaxed) != 0,
            thread: slot.thread.load(Relaxed) as i32,
            cpu: slot.cpu.load(Relaxed),
        })
    }

    /// What was taken is done.
    pub fn done(&self, nth: usize) {
        self.answer(nth, DONE);
    }

    /// The page that was asked for is lost. (The kernel's SIGBUS for a poisoned page has a code of
    /// its own only where it handles memory failures.)
    pub fn lost(&self, nth: usize) {
        self.answer(nth, LOST);
    }

    fn answer(&self, nth: usize, state: u32) {
        let slot = &self.slots[nth];
        slot.state.store(state, SeqCst);
        if slot.sleeps.load(SeqCst) != 0 {
            futex::wake(&slot.state);
        }
    }

    /// Has everybody who waits make their access again: whoever took their questions is gone.
    pub fn release_all(&self) {
        for (nth, slot) in self.slots.iter().enumerate() {
            if matches!(slot.state.load(SeqCst), ASKED | TAKEN) {
                self.done(nth);
            }
        }
    }

    /// The region needs nobody any more.
    pub fn end(&self) {
        self.ended.store(1, SeqCst);
        self.release_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const QUESTION: Question = Question { page: 77, write: true, thread: 5, cpu: 3 };

    fn both_sides() -> (Mapping, Mapping) {
        let (threads, fd) = Mapping::create().unwrap();
        (threads, Mapping::open(fd.as_fd()).unwrap())
    }

    #[test]
    fn a_question_goes_there_and_back() {
        let (thread, annexd) = both_sides();
        let nth = thread.ask(QUESTION).unwrap();
        assert_eq!(thread.progress(nth), Progress::Asked);
        assert_eq!((annexd.pointed_at(), annexd.pointed_at()), (1 << nth, 0));
        assert_eq!((annexd.take(nth), annexd.take(nth)), (Some(QUESTION), None), "it is taken once");
        assert_eq!(thread.progress(nth), Progress::Taken);
        annexd.done(nth);
        assert_eq!(thread.progress(nth), Progress::Done);
        annexd.lost(nth);
        assert_eq!(thread.progress(nth), Progress::Lost);
        thread.free(nth);
        assert_eq!(annexd.take(nth), None);
    }

    #[test]
    fn no_two_threads_have_one_slot_and_none_is_given_beyond_the_last() {
        let (thread, _annexd) = both_sides();
        let mut taken: Vec<usize> = (0..SLOTS).map(|_| thread.ask(QUESTION).unwrap()).collect();
        assert_eq!(thread.ask(QUESTION), None);
        taken.sort_unstable();
        assert_eq!(taken, (0..SLOTS).collect::<Vec<_>>());
        thread.free(9);
        assert_eq!(thread.ask(QUESTION), Some(9));
    }

    #[test]
    fn a_sleeper_is_woken_when_it_is_done_or_annexd_starts_anew() {
        type End = fn(&Ring);
        for end in [(|ring| ring.done(3)) as End, |ring| ring.release_all(), |ring| ring.end()] {
            let (thread, annexd) = both_sides();
            let nth = thread.ask(QUESTION).unwrap();
            annexd.take(nth).unwrap();
            let began = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while thread.progress(nth) != Progress::Done {
                        thread.sleep(nth, Duration::from_secs(20));
                    }
                });
                std::thread::sleep(Duration::from_millis(20));
                end(&annexd);
            });
            assert!(began.elapsed() < Duration::from_secs(10), "it slept until its time was up");
        }
    }

    #[test]
    fn what_could_shrink_under_annexd_is_no_ring() {
        use nix::sys::memfd::{MFdFlags, memfd_create};
        let unsealed = memfd_create(c"x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&unsealed, size_of::<Ring>() as i64).unwrap();
        assert!(matches!(Mapping::open(unsealed.as_fd()), Err(RingError::Foreign("it is no sealed memfd"))));
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(Mapping::open(file.as_fd()), Err(RingError::Foreign(_))));
        let empty = memfd::create(c"x", size_of::<Ring>()).unwrap();
        let error = Mapping::open(empty.as_fd()).unwrap_err().to_string();
        assert!(error.contains("do not belong together"), "{error}");
    }
}
