//! Locks that outlive their holders: who replaces the program ends all threads in the midst of
//! their steps, and what they held stays locked for the processes that share the memory, and go on.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Somebody is replacing the program.
static REPLACED: AtomicBool = AtomicBool::new(false);
/// The program has been replaced: who still holds a lock is dead.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// How long who is alive may hold a lock: far longer than `exec` takes to end them.
const ALIVE: u32 = 20_000;
const LOOK_MICROSECONDS: u32 = 100;

/// Who maps anything holds it: a place that was unmapped to be mapped anew is nobody else's
/// meanwhile. A fork holds it too, so that its child finds it free.
static PLACES: Mutex<()> = Mutex::new(());

/// `None`: its holder is dead.
pub fn places() -> Option<MutexGuard<'static, ()>> {
    lock(&PLACES)
}

/// Held while a process is forked, so that its child finds the lock free.
pub fn at_rest<T>(fork: impl FnOnce() -> T) -> T {
    let _places = places();
    fork()
}

/// Whether we are the first to replace the program.
pub fn replace() -> bool {
    !REPLACED.swap(true, SeqCst)
}

pub fn is_replaced() -> bool {
    REPLACED.load(SeqCst)
}

/// Whoever holds a lock is about to end.
pub fn abandon() {
    ABANDONED.store(true, SeqCst);
}

/// `None`: its holder is dead.
pub fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let mut looks = 0;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if ABANDONED.load(SeqCst) => return None,
            // SAFETY: it only sleeps.
            Err(TryLockError::WouldBlock) => unsafe { libc::usleep(LOOK_MICROSECONDS) },
        };
        looks = if is_replaced() { looks + 1 } else { 0 };
        if looks > ALIVE {
            abandon();
        }
    }
}
