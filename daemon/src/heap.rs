//! annexd's heap: what is free in it goes back to the host.
//!
//! annexd's memory is locked, so what the heap keeps is lost to the host. It can be given back by
//! unmapping it only: MADV_DONTNEED, on which most allocators depend, is refused. jemalloc unmaps
//! what has been free for a second, on a thread of its own.
//!
//! Large buffers are the C library's: it maps each by itself, unmaps it when it is freed, and has
//! the kernel move its pages when it grows, where jemalloc would copy its bytes, which takes
//! milliseconds.

use std::alloc::{GlobalAlloc, Layout, System};
use tikv_jemallocator::Jemalloc;

/// Buffers from this size on are mapped. For those that most requests take, that would cost more
/// than it gives.
const MAPPED: usize = 4 << 20;

/// Read by jemalloc before anything else happens.
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 83] = b"retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:4,background_thread:true\0";

pub struct Heap;

/// What is asked of a piece, of the allocator whose it is.
macro_rules! of {
    ($layout:ident, $asked:ident($($argument:expr),*)) => {
        // SAFETY: as the caller promised.
        unsafe { if $layout.size() < MAPPED { Jemalloc.$asked($($argument),*) } else { System.$asked($($argument),*) } }
    };
}

// SAFETY: a piece's size says which of two allocators it is of, whoever asks, and all that is asked
// of one is asked of that one.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        of!(layout, alloc(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        of!(layout, alloc_zeroed(layout))
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        of!(layout, dealloc(at, layout))
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if (layout.size() < MAPPED) == (size < MAPPED) {
            return of!(layout, realloc(at, layout, size));
        }
        // SAFETY: the caller promised that this size is right for this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as the caller promised; both pieces have as many bytes.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                new.copy_from_nonoverlapping(at, size.min(layout.size()));
                self.dealloc(at, layout);
            }
            new
        }
    }
}

/// To be called before there is more than one thread.
pub(crate) fn settle_in() {
    // Left to itself, the C library puts buffers of up to 32 MiB among small ones once it has seen
    // one of them.
    // SAFETY: mallopt has no preconditions besides that no other thread allocates meanwhile.
    let done = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED as i32) };
    debug_assert_eq!(done, 1);
}
