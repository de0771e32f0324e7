//! Sleeping on a word of memory that processes share, and waking who sleeps there.
//!
//! Unlike a descriptor that others have too, a word can't be made to block whoever wakes others by
//! it.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while the word holds this, for `limit` at most. It may come back sooner: the caller looks
/// again.
pub fn wait(word: &AtomicU32, while_it_is: u32, limit: Duration) {
    let limit = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: the word is mapped, and the time is read during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, while_it_is, &limit) };
}

/// Wakes all that sleep there. That nobody does is no error.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word is mapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
