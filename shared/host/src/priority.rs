//! Threads that somebody waits for come before those that nobody does.
//!
//! A nice value is heeded among the threads of one scheduling group only (a session, with
//! autogroups, or a control group), and Linux 6.18 lets a group that mostly sleeps wait for seconds
//! beside one that never does. Real time is before them all.
//!
//! Nothing here logs or fails: without the privilege a thread takes its turn like all others.

/// Before whom a thread gets its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// Before nobody.
    Ordinary,
    /// Before others of its group: for those that may run for long.
    OfItsGroup,
    /// Before others of its group, but it interrupts nobody: for those that are woken in vain more
    /// often than not.
    Patient,
    /// Before all ordinary threads, whatever their group: for those that run for microseconds at a
    /// time.
    OfAll,
}

impl Precedence {
    /// Gives it to a thread (0: the calling one).
    pub fn give(self, thread: i32) {
        let (policy, priority, nice) = match self {
            Precedence::Ordinary => (libc::SCHED_OTHER, 0, 0),
            Precedence::OfItsGroup => (libc::SCHED_OTHER, 0, -20),
            Precedence::Patient => (libc::SCHED_BATCH, 0, -20),
            Precedence::OfAll => (libc::SCHED_RR, 1, -20),
        };
        schedule(thread, policy, priority);
        // SAFETY: takes numbers only.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice) };
    }
}

/// The calling thread is before all ordinary ones until this is dropped: it has what a fault waits
/// for, and must not stand still with it.
pub struct Urgent(());

impl Urgent {
    pub fn begin() -> Urgent {
        schedule(0, libc::SCHED_RR, 1);
        Urgent(())
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        schedule(0, libc::SCHED_OTHER, 0);
    }
}

fn schedule(thread: i32, policy: i32, sched_priority: i32) {
    let priority = libc::sched_param { sched_priority };
    // SAFETY: the parameters are read during the call.
    unsafe { libc::sched_setscheduler(thread, policy | libc::SCHED_RESET_ON_FORK, &priority) };
}
