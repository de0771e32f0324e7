//! The C library's heap: which buffers it gives back to the host, and when it tidies up.
//!
//! annexd's memory is locked, so what the heap keeps is lost to the host, and it can't give back
//! holes: that takes MADV_DONTNEED, which locked memory refuses. Left to itself, glibc puts buffers
//! of up to 32 MiB among small ones once it has seen one of them. Large ones are therefore mapped
//! by themselves, and go when they are freed.
//!
//! Small pieces that are freed wait in lists (glibc's fast bins) to be joined with what is free
//! beside them, all of them at a time: after a request of 200,000 words that took 10 ms, in which
//! the thread served nobody. So they are joined one by one, when they are freed.

/// Buffers from this size on are mapped. For those that most requests take, that would cost more
/// than it gives.
const MAPPED: i32 = 1 << 20;
/// Free memory at the end of a heap that is kept for the next allocation.
const KEPT: i32 = 16 << 20;

/// Pieces of at most so many bytes wait to be joined: none.
const WAIT_TO_BE_JOINED: i32 = 0;

/// To be called before there is more than one thread.
pub fn settle_in() {
    // SAFETY: mallopt has no preconditions besides that no other thread allocates while it changes
    // the heap's limits.
    let done = unsafe {
        [
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED),
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT),
            libc::mallopt(libc::M_MXFAST, WAIT_TO_BE_JOINED),
        ]
    };
    debug_assert_eq!(done, [1, 1, 1]);
}
