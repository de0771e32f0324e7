//! The whole program: its threads, and how it ends.
//!
//! ```text
//! seed % 2 == 0   the main thread ends at once; the leader is a zombie from then on
//! seed % 3 == 0   who is done first replaces the program by that of the next seed: a thread that
//!                 is not the main one, or (seed odd) the main one for it, while the others go on
//! otherwise       threads end one by one, and a process that shares the memory may outlive all of
//!                 them; the last one verifies everything and reports
//! ```

use super::actor::Actor;
use super::locks::{self, is_replaced};
use super::program::{Plan, Program};
use super::step::Role;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Barrier, OnceLock};
use std::time::Duration;

/// A thread's stack: deep recursion takes up to a third of it.
const STACK: usize = 2 << 20;

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Lives the program's life in this process, and ends it.
pub fn run(plan: Plan) -> Result<(), String> {
    let program = Program::new(plan).map_err(|wrong| wrong.to_string())?;
    let program: &'static Program = PROGRAM.get_or_init(|| program);
    let all_made = Barrier::new(program.threads + 1);
    // It lives as long as the process: threads end without unwinding.
    let all_made: &'static Barrier = Box::leak(Box::new(all_made));
    for nth in 0..program.threads {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            all_made.wait();
            program.thread(nth)
        });
        thread.map_err(|error| format!("can't make a thread: {error}"))?;
    }
    all_made.wait();
    if program.plan.seed.is_multiple_of(2) {
        end_thread();
    }
    loop {
        std::thread::park_timeout(Duration::from_millis(20));
        if is_replaced() {
            program.replace();
        }
    }
}

impl Program {
    fn thread(&'static self, nth: usize) -> ! {
        let mut actor = Actor::new(self, nth, Role::Thread, self.plan.seed.wrapping_mul(1000) + nth as u64);
        let lived = actor.live(self.plan.steps).and_then(|()| {
            if self.becomes_another() && locks::replace() && self.plan.seed.is_multiple_of(2) {
                self.replace();
            }
            // Another one is left to outlive us.
            if actor.dice.one_in(2) { Ok(()) } else { actor.await_sharer() }
        });
        if let Err(wrong) = lived.and_then(|()| self.leave()) {
            actor.fail(&wrong);
        }
        let is_last = self.threads_alive.fetch_sub(1, SeqCst) == 1;
        if is_last && !is_replaced() {
            // SAFETY: ends the process, of which only the main thread can be left.
            unsafe { libc::_exit(0) }
        }
        end_thread()
    }

    fn becomes_another(&self) -> bool {
        self.plan.generations > 0 && self.plan.seed.is_multiple_of(3)
    }

    /// Becomes the program of the next seed.
    fn replace(&self) -> ! {
        let Plan { seed, seconds, steps, size, generations, .. } = self.plan;
        let next = seed + 1;
        self.report(Some(next));
        let seconds = seconds - seconds / (generations + 1);
        self.exec(next, seconds, steps, size, generations - 1, false).give_up()
    }
}

/// Ends this thread alone: its stack and its thread-local storage stay, which a sharer may use.
fn end_thread() -> ! {
    // SAFETY: what the thread owns is not used by anybody else.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}
