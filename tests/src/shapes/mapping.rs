//! A mapping, and what each of its pages must hold.
//!
//! The kernel moves (`mremap`) one mapping at a time, and splits one whose parts are told different
//! things. So there are two kinds: what is [`Kind::Movable`] stays one mapping all the time, and a
//! [`Kind::Patchwork`] is never moved. How they move is in [`super::moves`]. Nothing allocates
//! after [`Mapping::new`].

use super::calls::{call, named};
use super::locks::places;
use super::report::Wrong;
use crate::stress::content::{Content, PAGE};
use std::ops::Range;
use std::ptr::null_mut;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// Since Linux 6.13; the C library's headers may be older.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;
/// No mapping becomes smaller.
pub const LEAST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Movable,
    Patchwork,
    /// Grows by brk; as good as a patchwork otherwise.
    Heap,
}

/// Whether a page can be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// PROT_NONE; it holds what it held.
    Shut,
    /// MADV_GUARD_INSTALL; zeros once the guard is removed.
    Guarded,
    /// Not mapped: a child whose parent said MADV_DONTFORK.
    Absent,
}

/// What becomes of a page in a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heritage {
    Kept,
    Wiped,
    Withheld,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) content: Content,
    /// MADV_FREE since it was written: it holds its content, or zeros.
    pub(super) loose: bool,
    pub(super) state: State,
    pub(super) heritage: Heritage,
}

pub(super) const FRESH: Page =
    Page { content: Content::Zero, loose: false, state: State::Open, heritage: Heritage::Kept };

#[derive(Debug)]
pub struct Mapping {
    /// Among those of its memory, for messages.
    number: usize,
    pub kind: Kind,
    pub(super) at: *mut u8,
    pub(super) pages: Vec<Page>,
}

// SAFETY: whoever holds the `Mapping` may use the memory at its address.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Room for twice as many pages: it never has more.
    pub fn new(number: usize, kind: Kind, pages: usize) -> Result<Mapping, Wrong> {
        let mut mapping = Mapping { number, kind, at: null_mut(), pages: Vec::with_capacity(2 * pages) };
        mapping.renew(pages)?;
        Ok(mapping)
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub fn address(&self, page: usize) -> *mut u8 {
        self.at.wrapping_add(page * PAGE)
    }

    /// Address and bytes, for a system call.
    fn at(&self, range: &Range<usize>) -> (usize, usize) {
        (self.address(range.start).addr(), range.len() * PAGE)
    }

    pub fn all(&self) -> Range<usize> {
        0..self.len()
    }

    /// The part of a range, from its start, that can be touched.
    pub fn open(&self, range: Range<usize>) -> Range<usize> {
        let open = self.pages[range.clone()].iter().take_while(|page| page.state == State::Open).count();
        range.start..range.start + open
    }

    pub(super) fn is_open(&self) -> bool {
        self.open(self.all()).len() == self.len()
    }

    pub fn is_movable(&self) -> bool {
        self.kind == Kind::Movable
    }

    /// Whether all of it is mapped.
    pub fn is_there(&self, range: &Range<usize>) -> bool {
        self.pages[range.clone()].iter().all(|page| page.state != State::Absent)
    }

    /// Writes a page, if it can be touched.
    pub fn write(&mut self, page: usize, content: Content) {
        if self.pages[page].state == State::Open {
            self.pages[page].content = content;
            self.pages[page].loose = false;
            // SAFETY: a page that is mapped and writable between steps.
            unsafe { content.fill(self.address(page)) };
        }
    }

    /// Verifies a page, if it can be touched; of a guarded one, that it can't be.
    pub fn check(&self, page: usize) -> Result<(), Wrong> {
        let Page { content, loose, state, .. } = self.pages[page];
        let (mapping, at) = (self.number, self.address(page));
        let seen = match state {
            // SAFETY: a page that is mapped and readable, and that nobody writes meanwhile.
            State::Open if loose => unsafe { content.check_or_zero(at) },
            // SAFETY: as above.
            State::Open => unsafe { content.check(at) },
            State::Guarded => return check_guard(mapping, page, at),
            State::Shut | State::Absent => Ok(()),
        };
        seen.map_err(|mismatch| Wrong::Page { mapping, page, mismatch })
    }

    /// What the page holds for certain.
    pub fn content(&self, page: usize) -> Option<Content> {
        let Page { content, loose, state, .. } = self.pages[page];
        (state == State::Open && !loose).then_some(content)
    }

    pub fn discard(&mut self, range: Range<usize>) -> Result<(), Wrong> {
        self.unlock(&range);
        self.advise("madvise(DONTNEED)", &range, libc::MADV_DONTNEED)?;
        for page in &mut self.pages[range] {
            (page.content, page.loose) = (Content::Zero, false);
        }
        Ok(())
    }

    pub fn free(&mut self, range: Range<usize>) -> Result<(), Wrong> {
        self.unlock(&range);
        self.advise("madvise(FREE)", &range, libc::MADV_FREE)?;
        self.pages[range].iter_mut().for_each(|page| page.loose = true);
        Ok(())
    }

    pub fn populate(&self, range: &Range<usize>, write: bool) -> Result<(), Wrong> {
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        self.advise("madvise(POPULATE)", range, advice)
    }

    fn advise(&self, what: &'static str, range: &Range<usize>, advice: i32) -> Result<(), Wrong> {
        let (at, len) = self.at(range);
        // A signal or a moment's lack of something is no failure.
        let mut tries = 0;
        while !range.is_empty() {
            // SAFETY: pages of our own; what they hold afterwards is noted by the caller.
            match unsafe { call(libc::SYS_madvise, [at, len, advice as usize]) } {
                Ok(_) => break,
                Err(libc::EAGAIN | libc::EINTR) if tries < 100 => tries += 1,
                Err(errno) => return Err(Wrong::Call { what, errno }),
            }
        }
        Ok(())
    }

    /// An advice that changes no content, and that the kernel may refuse.
    pub fn hint(&self, range: &Range<usize>, advice: i32) -> Result<(), Wrong> {
        match self.advise("madvise (a hint)", range, advice) {
            Err(Wrong::Call { errno: libc::EINVAL | libc::EAGAIN | libc::ENOMEM | libc::EBUSY, .. }) => Ok(()),
            other => other,
        }
    }

    /// What a forked child is to find.
    pub fn bequeath(&mut self, range: Range<usize>, heritage: Heritage) -> Result<(), Wrong> {
        // What is withheld and what is wiped are two things to the kernel.
        let advices = match heritage {
            Heritage::Kept => [libc::MADV_DOFORK, libc::MADV_KEEPONFORK],
            Heritage::Wiped => [libc::MADV_DOFORK, libc::MADV_WIPEONFORK],
            Heritage::Withheld => [libc::MADV_KEEPONFORK, libc::MADV_DONTFORK],
        };
        advices.into_iter().try_for_each(|advice| self.advise("madvise(…FORK)", &range, advice))?;
        self.pages[range].iter_mut().for_each(|page| page.heritage = heritage);
        Ok(())
    }

    /// In a child that has just been forked.
    pub fn inherit(&mut self) {
        for page in &mut self.pages {
            match page.heritage {
                Heritage::Kept => {}
                Heritage::Withheld => page.state = State::Absent,
                Heritage::Wiped => {
                    (page.content, page.loose) = (Content::Zero, false);
                    // Nothing of the page tables is inherited, so no guard either.
                    if page.state == State::Guarded {
                        page.state = State::Open;
                    }
                }
            }
        }
    }

    pub fn protect(&self, range: &Range<usize>, protection: i32) -> Result<(), Wrong> {
        let (at, len) = self.at(range);
        // SAFETY: pages of our own, which nobody touches in a way that is forbidden now.
        let protect = || unsafe { named("mprotect", libc::SYS_mprotect, [at, len, protection as usize]) };
        if range.is_empty() { Ok(()) } else { protect().map(drop) }
    }

    /// PROT_NONE, until they are opened again.
    pub fn shut(&mut self, range: Range<usize>) -> Result<(), Wrong> {
        self.protect(&range, libc::PROT_NONE)?;
        self.pages[range].iter_mut().for_each(|page| page.state = State::Shut);
        Ok(())
    }

    /// Puts guards over a part that is mapped anew, as programs do. Over a page that is out a guard
    /// does not hold for certain: the kernel tells annexd of none (`docs/limits.md`).
    pub fn guard(&mut self, range: Range<usize>) -> Result<(), Wrong> {
        self.map_anew(range.clone(), true)?;
        self.unlock(&range);
        match self.advise("madvise(GUARD_INSTALL)", &range, MADV_GUARD_INSTALL) {
            // The kernel knows none.
            Err(Wrong::Call { errno: libc::EINVAL, .. }) => return Ok(()),
            other => other?,
        }
        self.pages[range].iter_mut().for_each(|page| page.state = State::Guarded);
        Ok(())
    }

    /// Everything that is mapped can be touched again.
    pub fn reopen(&mut self) -> Result<(), Wrong> {
        for page in self.all() {
            let one = page..page + 1;
            match self.pages[page].state {
                State::Shut => self.protect(&one, RW)?,
                State::Guarded => self.advise("madvise(GUARD_REMOVE)", &one, MADV_GUARD_REMOVE)?,
                State::Open | State::Absent => continue,
            }
            self.pages[page].state = State::Open;
        }
        Ok(())
    }

    /// Locks a few pages, and those only.
    pub fn lock(&self, range: &Range<usize>, on_fault: bool) -> Result<(), Wrong> {
        self.unlock(range);
        let (at, len) = self.at(range);
        let flags = if on_fault { libc::MLOCK_ONFAULT } else { 0 };
        // SAFETY: locking changes no content.
        match unsafe { call(libc::SYS_mlock2, [at, len, flags as usize]) } {
            Err(errno) if !range.is_empty() && !matches!(errno, libc::EPERM | libc::ENOMEM | libc::EAGAIN) => {
                Err(Wrong::Call { what: "mlock2", errno })
            }
            // Who may lock how much is the system's to say.
            _ => Ok(()),
        }
    }

    /// All of it up to a gap, and what can be touched of the range for certain.
    fn unlock(&self, range: &Range<usize>) {
        for (at, len) in [self.at(&self.all()), self.at(range)] {
            // SAFETY: unlocking changes no content.
            let _ = unsafe { call(libc::SYS_munlock, [at, len]) };
        }
    }

    /// Zeros instead of what was there, at the same place.
    pub fn map_anew(&mut self, range: Range<usize>, unmap_first: bool) -> Result<(), Wrong> {
        if range.is_empty() {
            return Ok(());
        }
        let (at, len) = self.at(&range);
        let _place = places();
        if unmap_first {
            // SAFETY: pages of our own; while the place is nobody's, nobody else maps anything.
            unsafe { named("munmap", libc::SYS_munmap, [at, len]) }?;
        }
        let flags = PRIVATE | libc::MAP_FIXED;
        // SAFETY: as above.
        unsafe { named("mmap(FIXED)", libc::SYS_mmap, [at, len, RW as usize, flags as usize, usize::MAX, 0]) }?;
        self.pages[range].fill(FRESH);
        Ok(())
    }

    /// Another mapping in place of this one.
    pub fn renew(&mut self, pages: usize) -> Result<(), Wrong> {
        self.give_back()?;
        let _place = places();
        self.at = match self.kind {
            // SAFETY: more of the heap, which is used by nobody else: the break is moved to a
            // page's start first.
            Kind::Heap => unsafe {
                let end = libc::sbrk(0) as usize;
                libc::sbrk(end.next_multiple_of(PAGE).wrapping_sub(end) as isize);
                libc::sbrk((pages * PAGE) as isize).cast()
            },
            // SAFETY: a new mapping at an address that the kernel chooses.
            _ => unsafe { map(pages * PAGE, PRIVATE) }?,
        };
        if self.at.cast() == libc::MAP_FAILED {
            return Err(Wrong::Call { what: "brk", errno: libc::ENOMEM });
        }
        self.pages.resize(pages, FRESH);
        Ok(())
    }

    /// Unmaps what there is of it. Where it is absent, something else may be by now.
    pub(super) fn give_back(&mut self) -> Result<(), Wrong> {
        let mut first = 0;
        for part in self.pages.chunk_by(|a, b| (a.state == State::Absent) == (b.state == State::Absent)) {
            let range = first..first + part.len();
            first = range.end;
            let (at, len) = self.at(&range);
            if part[0].state != State::Absent {
                // SAFETY: a mapping of our own, of which nothing is wanted any more.
                unsafe { named("munmap", libc::SYS_munmap, [at, len]) }?;
            }
        }
        self.pages.clear();
        Ok(())
    }
}

fn check_guard(mapping: usize, page: usize, at: *const u8) -> Result<(), Wrong> {
    let mut got = [0; 8];
    match read_from(std::process::id() as i32, at, &mut got) {
        Ok(()) => Err(Wrong::Guard { mapping, page, got }),
        Err(_) => Ok(()),
    }
}

/// Reads another process's memory, or our own where touching it would kill.
pub fn read_from(pid: i32, at: *const u8, into: &mut [u8]) -> Result<(), i32> {
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let there = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: into.len() };
    let vectors = [(&raw const here).addr(), 1, (&raw const there).addr(), 1, 0];
    let [a, b, c, d, e] = vectors;
    // SAFETY: writes to our own slice only.
    let read = unsafe { call(libc::SYS_process_vm_readv, [pid as usize, a, b, c, d, e]) }?;
    if read == into.len() { Ok(()) } else { Err(libc::EFAULT) }
}

/// A new mapping that can be read and written, at an address that the kernel chooses.
///
/// # Safety
/// Whoever has it must hold [`places`].
pub unsafe fn map(bytes: usize, flags: i32) -> Result<*mut u8, Wrong> {
    let args = [0, bytes, RW as usize, flags as usize, usize::MAX, 0];
    // SAFETY: nothing that is mapped changes.
    unsafe { named("mmap", libc::SYS_mmap, args) }.map(|at| at as *mut u8)
}
