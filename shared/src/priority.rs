//! Threads that somebody waits for come before those that nobody does.
//!
//! A nice value is heeded among the threads of one scheduling group only (a session, with autogroups, or a control group), and Linux 6.18 lets a group that
//! mostly sleeps wait for seconds beside one that never does. Real time is before them all.
//!
//! Nothing here logs or fails: without the privilege a thread takes its turn like all others.

/// Puts a thread (0: the calling one) before others of its group. For those that may run for long.
pub fn hurry(thread: i32) {
    schedule(thread, libc::SCHED_OTHER, 0);
    be_nice(thread, -20);
}

/// Puts a thread (0: the calling one) that runs for microseconds at a time before all ordinary ones, whatever their group.
pub fn overtake(thread: i32) {
    be_nice(thread, -20);
    schedule(thread, libc::SCHED_RR, 1);
}

/// The calling thread is before all ordinary ones until this is dropped: it has what a fault waits for, and must not stand still with it.
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

fn be_nice(thread: i32, nice: i32) {
    // SAFETY: takes numbers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice) };
}

fn schedule(thread: i32, policy: i32, sched_priority: i32) {
    let priority = libc::sched_param { sched_priority };
    // SAFETY: the parameters are read during the call.
    unsafe { libc::sched_setscheduler(thread, policy | libc::SCHED_RESET_ON_FORK, &priority) };
}
