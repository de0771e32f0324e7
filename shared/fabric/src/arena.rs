//! Registered local memory: where the bytes of every fabric operation lie on this side.

use std::io;
use std::ptr::NonNull;

/// A fixed, page-aligned, locked piece of this process's memory.
///
/// A lane owns the decision which range is used for what at a time; the arena only knows bounds.
/// Other agents write into it (a donor's answer, an RNIC), so it hands out pointers and copies, and
/// a reference only on the caller's word that nothing is in flight.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

/// The arena's memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what} {len} bytes of transfer buffers: {source} (raise LimitMEMLOCK / ulimit -l, or run as root)")]
pub struct ArenaError {
    what: &'static str,
    len: usize,
    source: io::Error,
}

// SAFETY: the arena is plain memory with no thread affinity; all access is through raw pointers
// whose users promise not to race (see `bytes` and `bytes_mut`).
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `len` bytes (rounded up to whole pages), present and locked in RAM.
    pub fn new(len: usize) -> Result<Self, ArenaError> {
        let len = len.next_multiple_of(annex_shared::page::PAGE_SIZE).max(annex_shared::page::PAGE_SIZE);
        let fail = |what| ArenaError { what, len, source: io::Error::last_os_error() };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing
        // that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(fail("map"));
        }
        // SAFETY: the range was just mapped.
        if unsafe { libc::mlock(base, len) } != 0 {
            let error = fail("lock");
            // SAFETY: the range was just mapped and nobody has a pointer into it.
            unsafe { libc::munmap(base, len) };
            return Err(error);
        }
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Arena { base, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of byte `at`, for the kernel or a provider to use.
    ///
    /// # Panics
    /// If `at..at + len` is not inside the arena.
    #[inline]
    pub fn ptr(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "range {at}+{len} outside an arena of {} bytes", self.len);
        // SAFETY: the assert keeps the offset inside the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// Nothing may write to the range while the reference lives: no READ into it may be
    /// outstanding.
    #[inline]
    pub unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: in bounds (ptr checks), always initialised (anonymous memory), unchanged by the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr(at, len), len) }
    }

    /// The bytes of a range, to write.
    ///
    /// # Safety
    /// Nothing else may read or write the range while the reference lives: no operation on it may
    /// be outstanding.
    #[inline]
    // the arena is shared with providers; exclusivity per range is the caller's promise
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: in bounds (ptr checks), always initialised, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(at, len), len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: endpoints hold the arena by Arc, so nobody uses the mapping any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
