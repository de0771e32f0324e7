//! Who takes steps: a thread, a process that shares its memory, or a forked child.
//!
//! An actor holds the lock of its memory for a step. To look at another's memory it lets go of its
//! own first, and it makes or awaits a sharer without any lock, because that one looks at its
//! memory.
//! Nothing here allocates.

use super::mapping::Heritage;
use super::memory::Memory;
use super::program::Program;
use super::report::{Text, Wrong};
use super::step::{Role, Step, Trail, What};
use crate::stress::content::{Dice, PAGE};
use std::hint::black_box;
use std::time::Instant;

pub struct Actor {
    pub program: &'static Program,
    /// Which of the program's memories is its own.
    pub nth: usize,
    pub role: Role,
    pub dice: Dice,
    trail: Trail,
    /// The process that shares its memory, until it has been waited for.
    pub sharer: Option<i32>,
}

impl Actor {
    pub fn new(program: &'static Program, nth: usize, role: Role, seed: u64) -> Actor {
        Actor { program, nth, role, dice: Dice::new(seed), trail: Trail::default(), sharer: None }
    }

    /// Takes random steps and verifies everything of its own. A sharer may go on when the time is
    /// over.
    pub fn live(&mut self, steps: u64) -> Result<(), Wrong> {
        for _ in 0..steps {
            if self.role == Role::Thread && Instant::now() >= self.program.end {
                break;
            }
            let Some(mut memory) = self.program.memory(self.nth) else { return Ok(()) };
            let step = self.choose(&memory);
            match step.what {
                What::Visit => {
                    drop(memory);
                    self.visit(step)?;
                }
                What::Sharer => {
                    drop(memory);
                    self.make_sharer(step)?;
                }
                _ => self.take(&mut memory, step)?,
            }
        }
        self.program.memory(self.nth).map_or(Ok(()), |memory| self.check_all(&memory))
    }

    /// In a forked child, which verifies what it inherited, and what became of it.
    pub fn live_on(&mut self, memory: &mut Memory, steps: u64) -> Result<(), Wrong> {
        self.check_all(memory)?;
        for _ in 0..steps {
            let step = self.choose(memory);
            self.take(memory, step)?;
        }
        self.check_all(memory)
    }

    fn choose(&mut self, memory: &Memory) -> Step {
        let step = Step::random(&mut self.dice, self.role, &memory.mappings, &self.program.allowed);
        self.trail.add(step);
        self.program.tally.count_step();
        step
    }

    pub fn check_all(&self, memory: &Memory) -> Result<(), Wrong> {
        self.program.tally.count_checks(memory.len());
        memory.check_all()
    }

    /// Says what is wrong, and ends the process. Those that share its memory don't wait for its
    /// locks for ever.
    pub fn fail(&self, wrong: &Wrong) -> ! {
        super::locks::abandon();
        let Actor { nth, role, trail, .. } = self;
        let pid = std::process::id();
        let plan = &self.program.plan;
        Text::of(format_args!("annex-shapes: WRONG: {plan}\n {role:?} {nth} of process {pid}: {wrong}{trail}\n"))
            .say(libc::STDERR_FILENO);
        // SAFETY: ends this process without running anything else.
        unsafe { libc::_exit(1) }
    }

    fn take(&mut self, memory: &mut Memory, step: Step) -> Result<(), Wrong> {
        let Step { what, mapping: nth, roll, .. } = step;
        let mapping = &mut memory.mappings[nth];
        let open = mapping.open(step.range());
        match what {
            What::Write => memory.write(nth, step.range()),
            What::Check | What::Visit | What::Sharer => {
                self.program.tally.count_checks(step.count);
                memory.check(nth, step.range())?;
            }
            What::Discard => mapping.discard(open)?,
            What::Free => mapping.free(open)?,
            What::Populate => mapping.populate(&open, roll % 2 == 0)?,
            What::Protect => {
                mapping.protect(&open, libc::PROT_READ)?;
                open.clone().try_for_each(|page| mapping.check(page))?;
                mapping.protect(&open, libc::PROT_READ | libc::PROT_WRITE)?;
            }
            What::Shut if !mapping.is_movable() => mapping.shut(open)?,
            What::Guard if !mapping.is_movable() => mapping.guard(open)?,
            What::Reopen => mapping.reopen()?,
            What::MapAnew if !mapping.is_movable() => mapping.map_anew(open, roll % 2 == 0)?,
            What::Replace => {
                let pages = mapping.another_len(&mut self.dice);
                mapping.renew(pages)?;
            }
            What::Resize => {
                let pages = mapping.another_len(&mut self.dice);
                mapping.resize(pages)?;
            }
            What::MoveOver => {
                let (one, other) = memory.two(nth, roll);
                one.move_over(other)?;
            }
            What::LeaveBehind => {
                let (one, other) = memory.two(nth, roll);
                one.leave_behind(other)?;
            }
            What::Hint => {
                let hints = [
                    libc::MADV_HUGEPAGE,
                    libc::MADV_NOHUGEPAGE,
                    libc::MADV_COLLAPSE,
                    libc::MADV_MERGEABLE,
                    libc::MADV_UNMERGEABLE,
                    libc::MADV_COLD,
                    libc::MADV_PAGEOUT,
                ];
                let whole = step.whole_if_movable(mapping);
                let range = mapping.open(whole.clone());
                if range == whole || !mapping.is_movable() {
                    mapping.hint(&range, hints[roll as usize % hints.len()])?;
                }
            }
            What::Bequeath => {
                let kinds = [Heritage::Kept, Heritage::Wiped, Heritage::Withheld];
                let whole = step.whole_if_movable(mapping);
                if mapping.is_there(&whole) {
                    mapping.bequeath(whole, kinds[roll as usize % kinds.len()])?;
                }
            }
            What::Lock if !mapping.is_movable() => mapping.lock(&open, roll % 2 == 0)?,
            What::LockFuture => lock_future(memory, roll)?,
            What::Recurse => recurse(1 + roll as usize % 80, roll)?,
            What::Shut | What::Guard | What::MapAnew | What::Lock => {}
            What::Fork => self.fork_child(memory, step)?,
            What::Orphan => self.fork_orphan(memory, step)?,
            What::Share => self.share(memory, step)?,
            What::Siblings => self.siblings(memory, step)?,
            // A program within a program has none in it.
            What::ForkExec | What::VforkExec if self.program.plan.inner => {}
            What::ForkExec => self.exec_inner(roll, 0)?,
            What::VforkExec => self.exec_inner(roll, libc::CLONE_VM | libc::CLONE_VFORK)?,
            What::VforkExit => self.vfork_exit(memory, step)?,
        }
        Ok(())
    }

    /// Another's pages, under its lock.
    fn visit(&mut self, step: Step) -> Result<(), Wrong> {
        let memories = self.program.memories.len();
        let other = (self.nth + 1 + step.roll as usize % (memories - 1)) % memories;
        let Some(mut memory) = self.program.memory(other) else { return Ok(()) };
        let nth = step.mapping % memory.mappings.len();
        let len = memory.mappings[nth].len();
        let first = step.first % len;
        let range = first..(first + step.count).min(len);
        self.program.tally.count_checks(range.len());
        memory.check(nth, range.clone())?;
        if step.roll.is_multiple_of(3) {
            memory.write(nth, range);
        }
        Ok(())
    }
}

/// What is mapped while all that is to come is locked: the smallest mapping, anew.
fn lock_future(memory: &mut Memory, roll: u64) -> Result<(), Wrong> {
    let flags = if roll.is_multiple_of(2) { libc::MCL_FUTURE } else { libc::MCL_FUTURE | libc::MCL_ONFAULT };
    let last = memory.mappings.len() - 1;
    // SAFETY: locking changes no content. Who may lock how much is the system's to say.
    unsafe { libc::mlockall(flags) };
    let pages = memory.mappings[last].len();
    memory.mappings[last].renew(pages)?;
    memory.check(last, memory.mappings[last].all())?;
    memory.write(last, memory.mappings[last].all());
    // SAFETY: as above.
    unsafe { libc::munlockall() };
    Ok(())
}

/// Two pages of the stack to a frame, verified on the way back.
#[inline(never)]
fn recurse(depth: usize, seed: u64) -> Result<(), Wrong> {
    let mut frame = [0u64; 2 * PAGE / 8];
    let word = |i: usize| seed.wrapping_mul(i as u64 + 1) ^ depth as u64;
    frame.iter_mut().enumerate().for_each(|(i, at)| *at = word(i));
    black_box(&mut frame);
    if depth > 0 {
        recurse(depth - 1, seed)?;
    }
    let wrong = black_box(&frame).iter().enumerate().find(|(i, got)| **got != word(*i));
    wrong.map_or(Ok(()), |(i, got)| Err(Wrong::Stack { depth, got: *got, expected: word(i) }))
}
