//! Whether what clients of one key saw is linearizable: whether each operation can have happened at
//! one moment between its call and its answer, such that every read saw what was written last. The
//! search is Wing and Gong's, with Lowe's memory of states already tried.

use std::collections::HashSet;
use std::time::Instant;

/// What a client did with a key. Written values are unlike each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// `None`: removed it.
    Write(Option<u64>),
    Read(Option<u64>),
}

/// One operation of a client on a key.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub act: Act,
    pub called: Instant,
    /// `None`: no answer came. A write may have happened at any time after its call, or not at all;
    /// what a read would have seen nobody knows.
    pub answered: Option<Instant>,
}

/// The operations that can't be put in an order, or nothing.
///
/// # Errors
/// The first operation, by its answer, that no order explains, with those before it that overlap.
pub fn check(operations: &[Operation], first: Option<u64>) -> Result<(), Vec<Operation>> {
    let seen: HashSet<u64> =
        operations.iter().filter_map(|op| if let Act::Read(v) = op.act { v } else { None }).collect();
    // An unanswered write that nobody saw need not have happened.
    let matters = |op: &&Operation| match (op.act, op.answered) {
        (_, Some(_)) => true,
        (Act::Write(Some(value)), None) => seen.contains(&value),
        (Act::Write(None), None) => true,
        (Act::Read(_), None) => false,
    };
    let mut all: Vec<Operation> = operations.iter().filter(matters).copied().collect();
    all.sort_by_key(|op| op.called);
    let done = vec![0; all.len().div_ceil(64)];
    let mut search = Search { all: &all, done, low: 0, tried: HashSet::new(), furthest: 0 };
    if search.goes_on(first) {
        return Ok(());
    }
    let stuck = all[search.furthest];
    let overlaps =
        |op: &&Operation| op.called <= stuck.answered.unwrap_or(op.called) && op.answered >= Some(stuck.called);
    Err(std::iter::once(stuck).chain(all.iter().filter(overlaps).copied()).collect())
}

struct Search<'a> {
    all: &'a [Operation],
    /// A bit for each operation that has its place.
    done: Vec<u64>,
    /// All before this one have.
    low: usize,
    tried: HashSet<(usize, Vec<u64>, Option<u64>)>,
    furthest: usize,
}

impl Search<'_> {
    fn is_done(&self, n: usize) -> bool {
        self.done[n / 64] >> (n % 64) & 1 == 1
    }

    fn place(&mut self, n: usize) {
        self.done[n / 64] |= 1 << (n % 64);
        while self.low < self.all.len() && self.is_done(self.low) {
            self.low += 1;
        }
    }

    fn take_back(&mut self, n: usize) {
        self.done[n / 64] &= !(1 << (n % 64));
        self.low = self.low.min(n);
    }

    /// False: with the same operations placed and the same value this was tried before.
    fn is_new(&mut self, state: Option<u64>) -> bool {
        let from = self.low / 64;
        let to = self.done.iter().rposition(|word| *word != 0).map_or(from, |last| (last + 1).max(from));
        self.tried.insert((self.low, self.done[from..to].to_vec(), state))
    }

    /// Depth first, with a stack of its own: histories are long.
    fn goes_on(&mut self, first: Option<u64>) -> bool {
        // Each step: the operation placed, the state before it.
        let mut placed: Vec<(usize, Option<u64>)> = Vec::new();
        let (mut state, mut from) = (first, 0);
        // None that was answered is open.
        while let Some(deadline) = self.deadline() {
            self.furthest = self.furthest.max(self.low);
            match self.next(state, from, deadline) {
                Some((n, after)) => {
                    self.place(n);
                    if self.is_new(after) {
                        placed.push((n, state));
                        (state, from) = (after, 0);
                    } else {
                        self.take_back(n);
                        from = n + 1;
                    }
                }
                None => {
                    let Some((n, before)) = placed.pop() else { return false };
                    self.take_back(n);
                    (state, from) = (before, n + 1);
                }
            }
        }
        true
    }

    /// The first answer to an open operation: what was called after it can't come before that one.
    fn deadline(&self) -> Option<Instant> {
        let mut first: Option<Instant> = None;
        for n in self.low..self.all.len() {
            if first.is_some_and(|first| self.all[n].called > first) {
                break;
            }
            if !self.is_done(n)
                && let Some(answered) = self.all[n].answered
            {
                first = Some(first.map_or(answered, |first| first.min(answered)));
            }
        }
        first
    }

    /// The next operation from `from` on that can come now and fits the state.
    fn next(&self, state: Option<u64>, from: usize, deadline: Instant) -> Option<(usize, Option<u64>)> {
        for n in from.max(self.low)..self.all.len() {
            let op = self.all[n];
            if op.called > deadline {
                break;
            }
            if self.is_done(n) {
                continue;
            }
            match op.act {
                Act::Write(value) => return Some((n, value)),
                Act::Read(value) if value == state => return Some((n, state)),
                Act::Read(_) => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// (act, called, answered)
    fn history(ops: &[(Act, u64, Option<u64>)]) -> Result<(), Vec<Operation>> {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ops: Vec<Operation> = ops
            .iter()
            .map(|(act, from, to)| Operation { act: *act, called: at(*from), answered: to.map(at) })
            .collect();
        check(&ops, None)
    }

    use Act::{Read, Write};

    #[test]
    fn what_can_have_happened_is_accepted() {
        let w = |v| Write(Some(v));
        let r = |v| Read(Some(v));
        assert!(
            history(&[(w(1), 0, Some(10)), (r(1), 5, Some(6)), (Read(None), 1, Some(2)), (r(1), 20, Some(21))]).is_ok()
        );
        // Two writes at a time: either may have been first.
        assert!(history(&[(w(1), 0, Some(10)), (w(2), 0, Some(10)), (r(1), 11, Some(12))]).is_ok());
        assert!(history(&[(w(1), 0, Some(10)), (w(2), 0, Some(10)), (r(2), 11, Some(12))]).is_ok());
        // A write without an answer takes effect late, or never.
        assert!(history(&[(w(1), 0, Some(1)), (w(2), 2, None), (r(1), 10, Some(11)), (r(2), 20, Some(21))]).is_ok());
        assert!(history(&[(w(1), 0, Some(1)), (w(2), 2, None), (r(1), 10, Some(11))]).is_ok());
        assert!(history(&[(w(1), 0, Some(1)), (Write(None), 2, None), (Read(None), 10, Some(11))]).is_ok());
    }

    #[test]
    fn what_cannot_have_happened_is_refused() {
        let w = |v| Write(Some(v));
        let r = |v| Read(Some(v));
        // Lost.
        assert!(history(&[(w(1), 0, Some(1)), (Read(None), 2, Some(3))]).is_err());
        // Stale.
        assert!(history(&[(w(1), 0, Some(1)), (w(2), 2, Some(3)), (r(1), 4, Some(5))]).is_err());
        // Seen, and then gone back.
        assert!(history(&[(w(1), 0, Some(1)), (w(2), 2, Some(9)), (r(2), 3, Some(4)), (r(1), 5, Some(6))]).is_err());
        // Came back from the dead.
        assert!(history(&[(w(1), 0, Some(1)), (Write(None), 2, Some(3)), (r(1), 4, Some(5))]).is_err());
        // Never written.
        assert!(history(&[(r(7), 0, Some(1))]).is_err());
        // Seen before it was called.
        assert!(history(&[(r(1), 0, Some(1)), (w(1), 2, Some(3))]).is_err());
        // Two readers disagree on the order of two writes.
        assert!(
            history(&[
                (w(1), 0, Some(20)),
                (w(2), 0, Some(20)),
                (r(1), 1, Some(2)),
                (r(2), 3, Some(4)),
                (r(1), 5, Some(6)),
            ])
            .is_err()
        );
    }

    #[test]
    fn a_long_history_is_checked_in_no_time() {
        let mut ops = Vec::new();
        for n in 0..20_000u64 {
            ops.push((Write(Some(n + 1)), n * 10, Some(n * 10 + 15)));
            ops.push((Read(Some(n + 1)), n * 10 + 12, Some(n * 10 + 17)));
        }
        let began = Instant::now();
        assert!(history(&ops).is_ok());
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
