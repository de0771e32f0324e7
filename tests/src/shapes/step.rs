//! What an actor may do next: the steps, and their random choice, which follows from the seed
//! alone.

use super::mapping::Mapping;
use crate::stress::content::Dice;
use std::fmt;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Write,
    Check,
    Discard,
    Free,
    Populate,
    /// Read-only, and back.
    Protect,
    Shut,
    Guard,
    /// Opens what is shut, and removes guards.
    Reopen,
    /// Unmaps a part and maps it anew, or maps over it.
    MapAnew,
    Replace,
    Resize,
    MoveOver,
    LeaveBehind,
    Hint,
    Bequeath,
    Lock,
    LockFuture,
    Recurse,
    /// Verifies, and may write, what belongs to another thread of the same memory.
    Visit,
    Fork,
    /// A child whose parent is gone before it is done.
    Orphan,
    /// A parent and its child write the same mapping.
    Share,
    /// One child reads the other's memory.
    Siblings,
    ForkExec,
    VforkExec,
    VforkExit,
    /// A process that shares the memory, and may outlive who made it.
    Sharer,
}

/// How often each is taken, of the sum of all.
const WEIGHTS: &[(What, usize)] = &[
    (What::Write, 40),
    (What::Check, 36),
    (What::Discard, 8),
    (What::Free, 6),
    (What::Populate, 4),
    (What::Protect, 4),
    (What::Shut, 4),
    (What::Guard, 4),
    (What::Reopen, 6),
    (What::MapAnew, 6),
    (What::Replace, 2),
    (What::Resize, 8),
    (What::MoveOver, 4),
    (What::LeaveBehind, 4),
    (What::Hint, 6),
    (What::Bequeath, 6),
    (What::Lock, 4),
    (What::LockFuture, 2),
    (What::Recurse, 4),
    (What::Visit, 10),
    (What::Fork, 6),
    (What::Orphan, 2),
    (What::Share, 2),
    (What::Siblings, 2),
    (What::ForkExec, 1),
    (What::VforkExec, 1),
    (What::VforkExit, 2),
    (What::Sharer, 3),
];

/// The steps of a program: those that were asked for. If none were, all but what annexd does not
/// always follow, so that the rest is looked at:
///
/// - A child that is forked as threads of its parent move mappings: which of the moves were before
///   the fork can't always be told, and the program is stopped then (`daemon/src/pager/young.rs`).
///   So a program forks or moves.
pub fn allowed(seed: u64, only: &[What]) -> Vec<What> {
    let moves = [What::Resize, What::MoveOver, What::LeaveBehind];
    let forks = [What::Fork, What::Orphan, What::Share, What::Siblings, What::ForkExec];
    let without: &[What] = if (seed / 2).is_multiple_of(2) { &moves } else { &forks };
    let all = WEIGHTS.iter().map(|(what, _)| *what);
    if only.is_empty() { all.filter(|what| !without.contains(what)).collect() } else { only.to_vec() }
}

/// Who takes steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Thread,
    /// A process that shares the memory of the program, and the thread-local storage of its maker.
    Sharer,
    /// A forked process, alone in its memory. It may fork so many times more.
    Child(u32),
}

impl What {
    fn suits(self, role: Role) -> bool {
        match self {
            What::Visit => !matches!(role, Role::Child(_)),
            What::Sharer => role == Role::Thread,
            What::Fork | What::Orphan | What::Siblings | What::Share => role != Role::Child(0),
            // What a child that annexd does not know yet tells its own children is missed
            // (`docs/limits.md`, what annex can miss).
            What::Bequeath => !matches!(role, Role::Child(_)),
            What::ForkExec | What::VforkExec => role == Role::Thread,
            _ => true,
        }
    }
}

/// A step with its arguments.
#[derive(Clone, Copy)]
pub struct Step {
    pub what: What,
    pub mapping: usize,
    pub first: usize,
    pub count: usize,
    /// For whatever else is to be chosen.
    pub roll: u64,
}

impl Step {
    /// What is not for that role is a check.
    pub fn random(dice: &mut Dice, role: Role, mappings: &[Mapping], allowed: &[What]) -> Step {
        let sum: usize = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut at = dice.below(sum);
        let nth = WEIGHTS.iter().position(|(_, weight)| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let what = WEIGHTS[nth.unwrap_or(0)].0;
        let what = if what.suits(role) && allowed.contains(&what) { what } else { What::Check };
        let mapping = dice.below(mappings.len());
        let len = mappings[mapping].len();
        let first = dice.below(len);
        let count = 1 + dice.below((len - first).min(64));
        Step { what, mapping, first, count, roll: dice.roll() }
    }

    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// The range; of what must stay one mapping to the kernel, all of it.
    pub fn whole_if_movable(&self, mapping: &Mapping) -> Range<usize> {
        if mapping.is_movable() { mapping.all() } else { self.range() }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { what, mapping, first, count, roll } = self;
        write!(f, "{what:?}(mapping {mapping}, pages {first}+{count}, roll {roll:#x})")
    }
}

/// How many steps a failure tells of.
const LAST: usize = 8;

/// The last steps that an actor took, the failing one at the end.
#[derive(Default)]
pub struct Trail {
    steps: [Option<Step>; LAST],
    taken: usize,
}

impl Trail {
    pub fn add(&mut self, step: Step) {
        self.steps[self.taken % LAST] = Some(step);
        self.taken += 1;
    }
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for nth in self.taken.saturating_sub(LAST)..self.taken {
            if let Some(step) = self.steps[nth % LAST] {
                write!(f, "\n  step {nth}: {step}")?;
            }
        }
        Ok(())
    }
}

/// Reads a step's name, such as `move-over`.
pub fn parse(name: &str) -> Result<What, String> {
    let plain = name.replace('-', "").to_lowercase();
    let named = |what: &What| format!("{what:?}").to_lowercase() == plain;
    let found = WEIGHTS.iter().map(|(what, _)| *what).find(named);
    found.ok_or_else(|| format!("{name}: there is no such step"))
}
