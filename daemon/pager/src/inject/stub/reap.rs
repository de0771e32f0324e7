//! What is left of a stub that has ended: its mappings in the program, and a zombie.

use super::layout::NAME;
use crate::inject::tracee;
use crate::inject::tracee::Tracee;
use crate::kernel::process::Stat;
use crate::kernel::{Lookup, SHARED_PAGE, process};
use std::time::{Duration, Instant};

/// How long a stub that was killed may take to end.
const ENDING: Duration = Duration::from_secs(2);
/// How long whoever adopted the stub is given to collect it.
const COLLECTING: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(1);

/// Unmaps what `stub` left in the address space of process `pid`, if that is still the stub's: when
/// the process has called exec since, the same addresses are another program's. Then sees that the
/// dead stub is collected. Best effort: the app may be gone.
pub fn reap(pid: i32, stub: i32, mappings: &[(u64, u64)]) {
    let is_its_child = Stat::read(stub).is_some_and(|stat| stat.parent == pid);
    if is_its_child {
        await_end(stub);
    }
    if is_its_child || !mappings.is_empty() {
        let _ = tidy(pid, stub, mappings);
    }
    await_end(stub);
    let until = Instant::now() + COLLECTING;
    while is_zombie(stub) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    let Some(parent) = Stat::read(stub).map(|stat| stat.parent) else { return };
    let is_our_starter = parent == nix::unistd::getppid().as_raw();
    if !is_zombie(stub) || parent <= 1 || is_our_starter {
        return;
    }
    let _ = tracee::borrow(parent).and_then(|(mut thread, mut asked)| {
        collect(&mut thread, parent, stub);
        let released = thread.release();
        asked.let_go();
        released
    });
}

/// What is to be done in the program itself.
fn tidy(pid: i32, stub: i32, mappings: &[(u64, u64)]) -> Result<(), tracee::TraceError> {
    let (mut thread, mut asked) = tracee::borrow(pid)?;
    // Looked at while the thread is held: were another one calling exec, this one would be ended by
    // that.
    let there = Lookup::open(thread.tid());
    let is_ours = |at: u64| {
        let found = there.as_ref().ok().and_then(|there| there.at(at).ok()).flatten();
        found.is_some_and(|m| m.start == at && m.name.starts_with(SHARED_PAGE))
    };
    if mappings.iter().any(|(at, _)| is_ours(*at)) {
        for (at, len) in mappings {
            let _ = thread.syscall(libc::SYS_munmap, [*at, *len, 0, 0, 0, 0]);
        }
    }
    collect(&mut thread, pid, stub);
    let released = thread.release();
    asked.let_go();
    released
}

/// Has the borrowed thread of `parent` collect its child, if the stub is that and has ended.
fn collect(thread: &mut Tracee, parent: i32, stub: i32) {
    let is_its_child = Stat::read(stub).is_some_and(|stat| stat.parent == parent);
    if let Some(there) = process::number_as_seen_by(parent, stub).filter(|_| is_its_child && is_zombie(stub)) {
        let flags = (libc::__WALL | libc::WNOHANG) as u64;
        let _ = thread.syscall(libc::SYS_wait4, [there as u64, 0, flags, 0, 0, 0]);
    }
}

fn await_end(stub: i32) {
    let until = Instant::now() + ENDING;
    while Stat::read(stub).is_some_and(|stat| stat.comm == NAME && !stat.is_zombie()) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// Its PID is another process's when it has been collected: a zombie with its name is it.
fn is_zombie(stub: i32) -> bool {
    Stat::read(stub).is_some_and(|stat| stat.comm == NAME && stat.is_zombie())
}
