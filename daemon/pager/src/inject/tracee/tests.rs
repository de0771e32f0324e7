//! Children that are stopped, make a call, and are let go.

use super::ptrace::*;
use super::*;
use crate::kernel::process;
use nix::errno::Errno;
use std::process::Command;
use std::time::{Duration, Instant};

/// A child that runs `body` and ends with its answer.
pub(super) struct Child(i32);

impl Child {
    pub fn run(body: impl FnOnce() -> i32) -> Child {
        // SAFETY: the child runs `body` on this thread's copy and ends by _exit.
        match unsafe { libc::fork() } {
            0 => {
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
                // SAFETY: ends the child.
                unsafe { libc::_exit(ended) }
            }
            pid => Child(pid),
        }
    }

    pub fn pid(&self) -> i32 {
        self.0
    }

    /// Waits until its main thread sleeps (S) or is in another state.
    pub fn await_state(&self, state: char) {
        let until = Instant::now() + Duration::from_secs(10);
        while process::Stat::read(self.0).map(|stat| stat.state) != Some(state) {
            assert!(Instant::now() < until, "it never came to state {state}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What `body` answered; a negative signal number if it was killed.
    pub fn answer(self) -> i32 {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        unsafe { libc::waitpid(self.0, &mut status, 0) };
        let answer = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) };
        std::mem::forget(self);
        answer
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not collected yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Stops a thread of the process, has it make a call and lets it go.
pub(super) fn disturb(pid: i32) -> Result<i32, TraceError> {
    // The tracer may have children that are none of this test's tracees.
    std::thread::spawn(move || {
        let (mut tracee, mut asked) = borrow(pid)?;
        let tid = tracee.tid();
        let answered = tracee.syscall(libc::SYS_getpid, [0; 6])?;
        assert_eq!(answered, i64::from(pid));
        tracee.release()?;
        asked.let_go();
        Ok(tid)
    })
    .join()
    .expect("the tracer does not panic")
}

/// Its vdso is elsewhere after every exec. A thread that was sent to where it was before got one
/// SIGSEGV after another.
#[test]
fn a_process_that_calls_exec_all_the_time_is_stopped_and_makes_calls() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("again");
    std::fs::write(&script, "exec /bin/sh \"$0\"\n").unwrap();
    let mut child = Command::new("/bin/sh").arg(&script).spawn().unwrap();
    let pid = child.id() as i32;
    let (told, outcome) = std::sync::mpsc::channel();
    let tracer = std::thread::spawn(move || {
        for _ in 0..1000 {
            let (mut tracee, _) = borrow(pid).unwrap();
            assert_eq!(tracee.syscall(libc::SYS_getpid, [0; 6]).unwrap(), i64::from(pid));
            tracee.release().unwrap();
        }
        told.send(()).unwrap();
    });
    let ended = outcome.recv_timeout(Duration::from_secs(60));
    child.kill().unwrap();
    child.wait().unwrap();
    tracer.join().unwrap();
    ended.unwrap();
}

/// EINTR came from a call with a timeout, though no signal had.
#[test]
fn a_receive_with_a_timeout_is_made_again_after_a_stop() {
    let child = Child::run(|| {
        let mut pair = [0; 2];
        let timeout = libc::timeval { tv_sec: 1, tv_usec: 0 };
        // SAFETY: plain calls on objects that live here.
        unsafe {
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr());
            let (at, len) = ((&raw const timeout).cast(), size_of::<libc::timeval>() as u32);
            libc::setsockopt(pair[0], libc::SOL_SOCKET, libc::SO_RCVTIMEO, at, len);
            let mut byte = 0u8;
            libc::recv(pair[0], (&raw mut byte).cast(), 1, 0);
        }
        Errno::last_raw()
    });
    std::thread::sleep(Duration::from_millis(200));
    child.await_state('S');
    assert_eq!(disturb(child.pid()).expect("it can be borrowed"), child.pid());
    assert_eq!(child.answer(), libc::EAGAIN);
}

/// A stopped program stays stopped when a thread of its was borrowed.
#[test]
fn a_stopped_thread_is_stopped_afterwards() {
    let child = Child::run(|| {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    });
    // SAFETY: our own child.
    unsafe { libc::kill(child.pid(), libc::SIGSTOP) };
    child.await_state('T');
    disturb(child.pid()).expect("it can be borrowed");
    child.await_state('T');
}

/// SIGSTOP can't be blocked; one that came while a thread made a call for us was lost.
#[test]
fn a_process_that_is_stopped_while_it_makes_a_call_for_us_is_stopped_afterwards() {
    let child = Child::run(|| {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    });
    let pid = child.pid();
    // SAFETY: our own child.
    let stop = move || unsafe { libc::kill(pid, libc::SIGSTOP) };
    let made_to = |act: fn(&mut Tracee, &dyn Fn() -> i32)| {
        std::thread::spawn(move || {
            let (mut tracee, _) = borrow(pid).unwrap();
            act(&mut tracee, &stop);
            tracee.release().unwrap();
        })
        .join()
        .unwrap();
        child.await_state('T');
        // SAFETY: our own child.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        child.await_state('S');
    };
    made_to(|tracee, stop| {
        stop();
        assert_eq!(tracee.syscall(libc::SYS_getpid, [0; 6]).unwrap(), i64::from(tracee.tid()));
    });
    made_to(|tracee, stop| {
        assert_eq!(tracee.syscall(libc::SYS_getpid, [0; 6]).unwrap(), i64::from(tracee.tid()));
        stop();
    });
}
