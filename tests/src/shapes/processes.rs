//! Steps that make processes: forks in forks, orphans, families that read each other, `vfork`,
//! `exec`, and processes that share the memory (`CLONE_VM`).
//!
//! A child ends by `_exit` with 0 if all was right. What is wrong it says itself.

use super::actor::Actor;
use super::calls::{call, named};
use super::locks::{at_rest, places};
use super::mapping::{map, read_from};
use super::memory::Memory;
use super::report::Wrong;
use super::step::{Role, Step};
use crate::stress::content::{Content, PAGE};

/// Of a process that shares the memory.
const STACK: usize = 1 << 20;

/// How often a forked child of that role may fork in turn.
fn depth_below(role: Role) -> u32 {
    if let Role::Child(depth) = role { depth.saturating_sub(1) } else { 2 }
}

impl Actor {
    /// `None` in the child, which is an actor of its own from now on.
    fn fork(&mut self, memory: &mut Memory, seed: u64) -> Result<Option<i32>, Wrong> {
        // Past the C library: its fork waits for locks of its own, which another thread may have
        // held, for ever, as the process was made that forks now. And a sharer would pass in it for
        // the thread that made it. SAFETY: the child touches its own copies only, allocates
        // nothing, and ends by _exit.
        let fork = || unsafe { named("clone", libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0]) };
        let pid = at_rest(fork)? as i32;
        match pid {
            0 => {
                self.role = Role::Child(depth_below(self.role));
                self.dice = crate::stress::content::Dice::new(seed);
                self.sharer = None;
                memory.inherit(seed);
                Ok(None)
            }
            pid => Ok(Some(pid)),
        }
    }

    fn end_child(&self, lived: Result<(), Wrong>) -> ! {
        if let Err(wrong) = lived {
            self.fail(&wrong);
        }
        // SAFETY: ends this process without running anything of the parent's.
        unsafe { libc::_exit(0) }
    }

    pub fn fork_child(&mut self, memory: &mut Memory, step: Step) -> Result<(), Wrong> {
        let Some(child) = self.fork(memory, step.roll)? else {
            let lived = self.live_on(memory, step.roll % 12);
            self.end_child(lived);
        };
        ended_well(child, "a child")
    }

    pub fn fork_orphan(&mut self, memory: &mut Memory, step: Step) -> Result<(), Wrong> {
        let (done, told) = pipe()?;
        let Some(child) = self.fork(memory, step.roll)? else {
            // SAFETY: it only asks who we are.
            let parent = unsafe { libc::getpid() };
            if self.fork(memory, step.roll)?.is_none() {
                // SAFETY: they only ask, and sleep.
                while unsafe { libc::getppid() } == parent {
                    // SAFETY: as above.
                    unsafe { libc::usleep(100) };
                }
                let lived = self.live_on(memory, step.roll % 8);
                if lived.is_ok() {
                    say_byte(told);
                }
                self.end_child(lived);
            }
            self.end_child(Ok(()));
        };
        let left = ended_well(child, "a child that leaves a child");
        close(told);
        let lived = await_byte(done);
        close(done);
        left.and(if lived { Ok(()) } else { Err(Wrong::Child { what: "an orphan", status: -1 }) })
    }

    /// The parent writes every other page of a shared mapping, the child the rest; each verifies
    /// the other's.
    pub fn share(&mut self, memory: &mut Memory, step: Step) -> Result<(), Wrong> {
        let len = step.count * PAGE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = at_rest(|| unsafe { map(len, libc::MAP_SHARED | libc::MAP_ANONYMOUS) })?;
        let page = |nth: usize| at.wrapping_add(nth * PAGE);
        let content = |nth: usize| Content::of(step.roll, nth as u64, 0);
        // SAFETY: pages of the mapping, which only one of the two processes uses at a time.
        let write = |odd: usize| (odd..step.count).step_by(2).for_each(|nth| unsafe { content(nth).fill(page(nth)) });
        let check = |odd: usize| {
            // SAFETY: as above.
            let seen = (odd..step.count).step_by(2).try_for_each(|nth| unsafe { content(nth).check(page(nth)) });
            seen.map_err(|mismatch| Wrong::Elsewhere { page: odd, mismatch })
        };
        write(0);
        let Some(child) = self.fork(memory, step.roll)? else {
            let right = check(0);
            write(1);
            self.end_child(right);
        };
        let right = ended_well(child, "a child that shares").and_then(|()| check(0)).and_then(|()| check(1));
        // SAFETY: our mapping, of which nothing is wanted any more.
        unsafe { named("munmap", libc::SYS_munmap, [at.addr(), len]) }?;
        right
    }

    /// One child writes and waits; the other reads its memory from outside.
    pub fn siblings(&mut self, memory: &mut Memory, step: Step) -> Result<(), Wrong> {
        let range = memory.mappings[step.mapping].open(step.range());
        let content = |page: usize| Content::of(step.roll, page as u64, u64::MAX);
        let ((ready, tell_ready), (go, tell_go)) = (pipe()?, pipe()?);
        let Some(writer) = self.fork(memory, step.roll)? else {
            close(tell_go);
            // What the parent withholds is not there.
            let mapping = &mut memory.mappings[step.mapping];
            range.for_each(|page| mapping.write(page, content(page)));
            say_byte(tell_ready);
            await_byte(go);
            let right = self.check_all(memory);
            self.end_child(right);
        };
        close(tell_ready);
        let is_ready = await_byte(ready);
        let reader = if is_ready { self.fork(memory, step.roll)? } else { Some(-1) };
        if reader.is_none() {
            let mapping = &memory.mappings[step.mapping];
            let there = mapping.open(range.clone());
            let right =
                there.into_iter().try_for_each(|page| right_in(writer, mapping.address(page), content(page), page));
            self.end_child(right);
        }
        let read = reader.map_or(Ok(()), |pid| ended_well(pid, "a child that reads its sibling"));
        // Not by closing it: a process that another thread has made meanwhile has the descriptor
        // too.
        say_byte(tell_go);
        close(tell_go);
        let wrote = ended_well(writer, "a child that is read by its sibling");
        close(ready);
        close(go);
        wrote.and(read)
    }

    /// A small program of random steps in a process of its own.
    pub fn exec_inner(&mut self, roll: u64, flags: i32) -> Result<(), Wrong> {
        let seed = roll % 1_000_000;
        let child = Child { flags, job: &mut |actor: &mut Actor| actor.program.exec_inner(seed), actor: self };
        child.run("a program that a child became")
    }

    /// Verifies and writes its parent's memory while that waits.
    pub fn vfork_exit(&mut self, memory: &mut Memory, step: Step) -> Result<(), Wrong> {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        let mut job = |_: &mut Actor| {
            memory.check(step.mapping, step.range())?;
            memory.write(step.mapping, step.range());
            Ok(())
        };
        Child { flags, job: &mut job, actor: self }.run("a child of vfork")
    }

    /// One at a time: the one before is waited for.
    pub fn make_sharer(&mut self, step: Step) -> Result<(), Wrong> {
        self.await_sharer()?;
        let stack = map_stack()?;
        let start = SharerStart {
            actor: Actor::new(self.program, self.nth + self.program.threads, Role::Sharer, step.roll),
            steps: 10 + step.roll % 100,
        };
        // SAFETY: the lowest bytes of the new stack, which it does not grow down to.
        unsafe { stack.cast::<SharerStart>().write(start) };
        self.program.arrive();
        // SAFETY: the stack is its own; the function ends by itself and allocates nothing.
        let pid = unsafe {
            libc::clone(sharer_life, stack.wrapping_add(STACK).cast(), libc::CLONE_VM | libc::SIGCHLD, stack.cast())
        };
        let pid = made("clone(VM)", pid)?;
        self.sharer = Some(pid);
        self.program.stacks[self.nth].store(stack, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    pub fn await_sharer(&mut self) -> Result<(), Wrong> {
        let Some(pid) = self.sharer.take() else { return Ok(()) };
        ended_well(pid, "a process that shares the memory")?;
        let stack = self.program.stacks[self.nth].load(std::sync::atomic::Ordering::Relaxed);
        unmap_stack(stack);
        Ok(())
    }
}

struct SharerStart {
    actor: Actor,
    steps: u64,
}

extern "C" fn sharer_life(start: *mut libc::c_void) -> i32 {
    // SAFETY: its maker has put it there, for this process alone.
    let SharerStart { mut actor, steps } = unsafe { start.cast::<SharerStart>().read() };
    let lived = actor.live(steps).and_then(|()| actor.program.leave());
    if let Err(wrong) = lived {
        actor.fail(&wrong);
    }
    0
}

/// A child that does one job on a stack of its own, and ends.
struct Child<'a> {
    flags: i32,
    actor: &'a mut Actor,
    job: &'a mut dyn FnMut(&mut Actor) -> Result<(), Wrong>,
}

impl Child<'_> {
    fn run(mut self, what: &'static str) -> Result<(), Wrong> {
        let stack = map_stack()?;
        let flags = self.flags | libc::SIGCHLD;
        // SAFETY: the stack is its own, and what it is given lives until it has ended: we wait for
        // it.
        let pid = at_rest(|| unsafe {
            libc::clone(child_job, stack.wrapping_add(STACK).cast(), flags, (&raw mut self).cast())
        });
        let ended = ended_well(made("clone", pid)?, what);
        unmap_stack(stack);
        ended
    }
}

extern "C" fn child_job(child: *mut libc::c_void) -> i32 {
    // SAFETY: its maker waits for our end, and does not use it meanwhile.
    let child = unsafe { &mut *child.cast::<Child<'_>>() };
    let done = (child.job)(child.actor);
    child.actor.end_child(done)
}

fn map_stack() -> Result<*mut u8, Wrong> {
    let _place = places();
    // SAFETY: a new mapping, at a place that nobody else is about to map.
    unsafe { map(STACK, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK) }
}

fn unmap_stack(stack: *mut u8) {
    // SAFETY: a stack of ours, whose process has ended.
    let _ = unsafe { call(libc::SYS_munmap, [stack.addr(), STACK]) };
}

/// Whether another process has that content at that address.
fn right_in(pid: i32, at: *const u8, content: Content, page: usize) -> Result<(), Wrong> {
    #[repr(align(4096))]
    struct Buffer([u8; PAGE]);
    let mut buffer = Buffer([0; PAGE]);
    match read_from(pid, at, &mut buffer.0) {
        // Who may look into whom is the system's to say.
        Err(libc::EPERM) => Ok(()),
        Err(errno) => Err(Wrong::Call { what: "process_vm_readv", errno }),
        // SAFETY: the buffer is aligned, whole and ours.
        Ok(()) => unsafe { content.check(buffer.0.as_ptr()) }.map_err(|mismatch| Wrong::Elsewhere { page, mismatch }),
    }
}

fn ended_well(pid: i32, what: &'static str) -> Result<(), Wrong> {
    let mut status = 0i32;
    let args = [pid as usize, (&raw mut status).addr(), libc::__WALL as usize, 0];
    loop {
        // SAFETY: our own child, whose status is put into our own number.
        match unsafe { call(libc::SYS_wait4, args) } {
            Ok(_) => break,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(Wrong::Call { what: "wait4", errno }),
        }
    }
    if status == 0 { Ok(()) } else { Err(Wrong::Child { what, status }) }
}

/// The end to read from, and the end to write to.
fn pipe() -> Result<(i32, i32), Wrong> {
    let mut ends = [0i32; 2];
    // SAFETY: two descriptors are put into our own array.
    unsafe { named("pipe2", libc::SYS_pipe2, [ends.as_mut_ptr().addr(), libc::O_CLOEXEC as usize]) }?;
    Ok((ends[0], ends[1]))
}

fn close(descriptor: i32) {
    // SAFETY: ours, and not used after this.
    let _ = unsafe { call(libc::SYS_close, [descriptor as usize]) };
}

fn say_byte(descriptor: i32) {
    // SAFETY: one byte of our own.
    let _ = unsafe { call(libc::SYS_write, [descriptor as usize, [1u8].as_ptr().addr(), 1]) };
}

/// Whether a byte came before the other end was closed.
fn await_byte(descriptor: i32) -> bool {
    let mut byte = [0u8];
    loop {
        // SAFETY: into our own byte.
        match unsafe { call(libc::SYS_read, [descriptor as usize, byte.as_mut_ptr().addr(), 1]) } {
            Err(libc::EINTR) => {}
            read => return read == Ok(1),
        }
    }
}

/// What a function of the C library says that makes a process. Why it failed may have been
/// overwritten by another thread.
fn made(what: &'static str, pid: i32) -> Result<i32, Wrong> {
    if pid < 0 { Err(Wrong::Call { what, errno: 0 }) } else { Ok(pid) }
}
