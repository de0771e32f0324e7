//! Processes and threads that come and go.
//!
//! *Fork*: the parent notes the set's states just before and just after the fork, the child gets
//! both (the second through shared memory) and verifies every page that did not change in between
//! ([`Set::inherit`]), while the parent's other threads go on writing. Some children then live a
//! while, write and discard pages of their own, or fork again.
//!
//! *Exec*: this program, started by vfork or fork, builds and verifies memory of its own
//! ([`probe`]).

use super::Trouble;
use super::board::Shared;
use super::content::{Content, Dice, PAGE};
use super::set::Set;
use super::touch::{check_all, random_touch};
use super::{discard, map};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Children alive at once.
const MOST: usize = 3;
/// In a child, which has one thread.
const CHILDS_PLACE: usize = 63;

/// The children not waited for yet.
pub struct Children {
    alive: Mutex<Vec<libc::pid_t>>,
    stall: Duration,
}

impl Children {
    /// None yet. `stall`: how long the whole program may be without any progress.
    pub fn new(stall: Duration) -> Children {
        Children { alive: Mutex::default(), stall }
    }

    /// Waits for those that have ended.
    fn reap(alive: &mut Vec<libc::pid_t>, flags: i32, board: Shared) -> Result<(), Trouble> {
        let mut outcome = Ok(());
        alive.retain(|pid| match wait(*pid, flags) {
            Ok(None) => true,
            Ok(Some(())) => {
                board.children.fetch_add(1, Relaxed);
                false
            }
            Err(trouble) => {
                outcome = Err(trouble);
                false
            }
        });
        outcome
    }

    /// Waits for all of them.
    pub fn wait_all(&self, board: Shared) -> Result<(), Trouble> {
        let mut alive = self.alive.lock().map_err(|_| Trouble::Panic)?;
        Self::reap(&mut alive, 0, board)
    }
}

/// `None`: still running.
fn wait(pid: libc::pid_t, flags: i32) -> Result<Option<()>, Trouble> {
    let mut status = 0;
    let ended = loop {
        // SAFETY: `status` is ours.
        let ended = unsafe { libc::waitpid(pid, &mut status, flags) };
        if ended >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            break ended;
        }
    };
    if ended < 0 {
        return Err(Trouble::Call { what: "waitpid", source: std::io::Error::last_os_error() });
    }
    if ended == 0 {
        return Ok(None);
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        return Ok(Some(()));
    }
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
        return Err(Trouble::Child(format!("(PID {pid}) hung until its alarm ended it")));
    }
    Err(Trouble::Child(format!("(PID {pid}) failed: wait status {status:#x}")))
}

/// The parent's second snapshot on its way to the child.
struct Letter {
    at: NonNull<u8>,
    pages: usize,
}

impl Letter {
    fn new(pages: usize) -> Result<Letter, Trouble> {
        let at = map::shared(Self::len(pages)).map_err(Trouble::call("mmap"))?;
        Ok(Letter { at, pages })
    }

    fn len(pages: usize) -> usize {
        ((pages + 1) * 8).next_multiple_of(PAGE)
    }

    fn flag(&self) -> &AtomicU32 {
        // SAFETY: the mapping is zeroed, aligned and lives as long as self.
        unsafe { self.at.cast().as_ref() }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has room for one word and then `pages` words.
        unsafe { std::slice::from_raw_parts(self.at.cast::<AtomicU64>().as_ptr().add(1), self.pages) }
    }

    fn write(&self, states: &[u64]) {
        for (word, state) in self.words().iter().zip(states) {
            word.store(*state, Relaxed);
        }
        self.flag().store(1, Release);
    }

    fn read(&self) -> Vec<u64> {
        while self.flag().load(Acquire) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.words().iter().map(|w| w.load(Relaxed)).collect()
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, not used any more. A failure would leak, no more.
        let _ = unsafe { map::unmap(self.at, Self::len(self.pages)) };
    }
}

pub fn fork(set: &Set, dice: &mut Dice, board: Shared, children: &Children) -> Result<(), Trouble> {
    // One forker at a time.
    let Ok(mut alive) = children.alive.try_lock() else { return Ok(()) };
    Children::reap(&mut alive, libc::WNOHANG, board)?;
    if alive.len() >= MOST {
        return Ok(());
    }
    let letter = Letter::new(set.pages())?;
    let seed = dice.roll();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    set.snapshot(&mut before);
    // SAFETY: the child runs `inherited` only, on memory that fork leaves consistent: glibc's
    // allocator is, and no other lock is taken before `_exit`.
    match unsafe { libc::fork() } {
        -1 => Err(Trouble::Call { what: "fork", source: std::io::Error::last_os_error() }),
        0 => {
            let began = Instant::now();
            let outcome = inherited(set, &letter.read(), &before, board, seed, children.stall);
            board.longest_child.fetch_max(began.elapsed().as_millis() as u64, Relaxed);
            end_child(outcome, board)
        }
        pid => {
            set.snapshot(&mut after);
            letter.write(&after);
            alive.push(pid);
            Ok(())
        }
    }
}

/// A child never returns into the parent's code.
fn end_child(outcome: Result<(), Trouble>, board: Shared) -> ! {
    let code = match outcome {
        Ok(()) => 0,
        Err(trouble) => {
            board.errors.fetch_add(1, Relaxed);
            let line = format!("annex-stress: child {}: {trouble}\n", std::process::id());
            // SAFETY: writes a buffer of ours; stdio's locks may have been held by another thread
            // at the fork.
            unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
            1
        }
    };
    // SAFETY: ends the process without running the parent's destructors.
    unsafe { libc::_exit(code) }
}

/// A child verifies all it has inherited several times, beside others that do the same: it has four
/// times as long as the whole program may be without any progress. Then its own alarm ends it, and
/// it counts as hung.
fn end_when_hung(stall: Duration) {
    // SAFETY: sets a timer, whose signal ends the process.
    unsafe { libc::alarm(4 * stall.as_secs() as u32) };
}

/// The child's life.
fn inherited(
    set: &Set,
    after: &[u64],
    before: &[u64],
    board: Shared,
    seed: u64,
    stall: Duration,
) -> Result<(), Trouble> {
    end_when_hung(stall);
    let mut dice = Dice::new(seed);
    // Another thread of the parent may have had some pages protected at that moment. Those are
    // unknown, but writable they must be. SAFETY: the whole set is this process's own now.
    unsafe { map::protect(set.base(), set.pages() * PAGE, libc::PROT_READ | libc::PROT_WRITE) }
        .map_err(Trouble::call("mprotect in a child"))?;
    set.inherit(before, after);
    check_all(set, board)?;
    match dice.below(4) {
        0 => {}
        1 => {
            for _ in 0..set.pages() / 10 {
                random_touch(set, &mut dice, board, CHILDS_PLACE)?;
            }
            discard::dontneed(set, &mut dice, board)?;
            check_all(set, board)?;
        }
        2 => {
            // Long enough to be found among the parent's children for a while.
            let until = Instant::now() + Duration::from_millis(1000 + dice.roll() % 3000);
            while Instant::now() < until && !board.stopping() {
                random_touch(set, &mut dice, board, CHILDS_PLACE)?;
                discard::dontneed(set, &mut dice, board)?;
                std::thread::sleep(Duration::from_millis(2));
            }
            check_all(set, board)?;
        }
        _ => {
            // SAFETY: one thread; the grandchild runs `check_all` and exits.
            match unsafe { libc::fork() } {
                -1 => return Err(Trouble::Call { what: "fork", source: std::io::Error::last_os_error() }),
                0 => end_child(check_all(set, board), board),
                grandchild => {
                    for _ in 0..256 {
                        random_touch(set, &mut dice, board, CHILDS_PLACE)?;
                    }
                    wait(grandchild, 0)?;
                    check_all(set, board)?;
                }
            }
        }
    }
    Ok(())
}

/// Starts this program anew, as a shell would start one, and waits for it.
pub fn exec(dice: &mut Dice, board: Shared, children: &Children) -> Result<(), Trouble> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--probe", &(1 + dice.below(8)).to_string()]);
    command.args(["--stall", &children.stall.as_secs().to_string()]);
    if dice.one_in(2) {
        use std::os::unix::process::CommandExt;
        // A hook makes the standard library use fork and exec; without one it uses vfork's
        // semantics. SAFETY: the hook does nothing.
        unsafe { command.pre_exec(|| Ok(())) };
    }
    let status = command.status().map_err(Trouble::call("exec of this program"))?;
    board.progress.fetch_add(1, Relaxed);
    if status.success() { Ok(()) } else { Err(Trouble::Child(format!("that was exec'ed failed: {status}"))) }
}

/// What an exec'ed copy of this program does: a few MiB of memory of its own, verified.
pub fn probe(megabytes: usize, stall: Duration) -> Result<(), Trouble> {
    let board = Shared::new().map_err(Trouble::call("mmap of the counters"))?;
    end_when_hung(stall);
    let set = Set::new((megabytes << 20) / PAGE, std::process::id() as u64)?;
    for round in 0..3 {
        for page in 0..set.pages() {
            if let Some(held) = set.hold(page, 1) {
                held.check("an earlier round")?;
                if (page + round) % 3 != 0 {
                    held.rewrite(0);
                }
            }
        }
    }
    check_all(&set, board)
}

/// A thread with a stack, a heap and a join.
pub fn thread(dice: &mut Dice, board: Shared) -> Result<(), Trouble> {
    let seed = dice.roll();
    std::thread::spawn(move || {
        let pages = 16;
        let at = map::anonymous(pages * PAGE).map_err(Trouble::call("mmap in a thread"))?;
        let content = |page: usize| Content::of(seed, page as u64, 1);
        for page in 0..pages {
            // SAFETY: just mapped, this thread's.
            unsafe { content(page).fill(map::page(at, page).as_ptr()) };
        }
        deepen(24, seed)?;
        for page in 0..pages {
            // SAFETY: as above.
            let seen = unsafe { content(page).check(map::page(at, page).as_ptr()) };
            let why = "in a thread's own mapping".to_owned();
            seen.map_err(|mismatch| Trouble::Wrong { doing: "a deep call", page, mismatch, why })?;
        }
        board.checked(pages);
        // SAFETY: not used any more.
        unsafe { map::unmap(at, pages * PAGE) }.map_err(Trouble::call("munmap in a thread"))
    })
    .join()
    .map_err(|_| Trouble::Panic)?
}

/// Uses `depth` pages of stack and verifies them on the way back.
fn deepen(depth: usize, seed: u64) -> Result<(), Trouble> {
    #[repr(align(4096))]
    struct Frame([u8; PAGE]);
    let mut frame = Frame([0; PAGE]);
    let content = Content::of(seed, depth as u64, 2);
    // SAFETY: the frame is ours, aligned and a page long.
    unsafe { content.fill(std::hint::black_box(&mut frame).0.as_mut_ptr()) };
    if depth > 0 {
        deepen(depth - 1, seed)?;
    }
    // SAFETY: as above.
    let seen = unsafe { content.check(std::hint::black_box(&frame).0.as_ptr()) };
    let why = "on a thread's stack".to_owned();
    seen.map_err(|mismatch| Trouble::Wrong { doing: "a deep call", page: depth, mismatch, why })
}
