//! What a worker could not do at once, by space: each space has its turn, and a bound.
//!
//! What is put off is tried again once per turn of the worker, [`PORTION`] of each space at most.
//! So a program with thousands of threads, or one that takes its faults back and makes them again
//! (signals do that), costs the others no more of a turn than any program. The same thing is kept
//! once: a space has no more here than it has threads that wait, pages they wait for, and reads
//! under way.
//!
//! Pure: what is put off, and what makes two of it the same, is the worker's to say.

use crate::space::SpaceId;
use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// How much of what one space has put off is tried again in one turn.
const PORTION: usize = 32;

/// What one space has put off.
struct Queue<K, T> {
    space: SpaceId,
    work: VecDeque<(Option<K>, T)>,
    kept: HashSet<K>,
}

pub(super) struct PutOff<K, T> {
    queues: Vec<Queue<K, T>>,
}

impl<K, T> Default for PutOff<K, T> {
    fn default() -> Self {
        PutOff { queues: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash, T> PutOff<K, T> {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.work.len()).sum()
    }

    /// What has the same key as something that is here is dropped. Without a key it is kept in any
    /// case.
    pub(super) fn push(&mut self, space: SpaceId, key: Option<K>, what: T) {
        let at = self.queues.iter().position(|queue| queue.space == space).unwrap_or_else(|| {
            self.queues.push(Queue { space, work: VecDeque::new(), kept: HashSet::new() });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[at];
        if key.is_none_or(|key| queue.kept.insert(key)) {
            queue.work.push_back((key, what));
        }
    }

    /// A portion of what each space has, in the order in which it was put off.
    pub(super) fn take(&mut self) -> Vec<T> {
        let mut taken = Vec::new();
        for Queue { work, kept, .. } in &mut self.queues {
            for (key, what) in work.drain(..work.len().min(PORTION)) {
                if let Some(key) = key {
                    kept.remove(&key);
                }
                taken.push(what);
            }
        }
        self.queues.retain(|queue| !queue.work.is_empty());
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: SpaceId = SpaceId(1);
    const HONEST: SpaceId = SpaceId(2);

    #[test]
    fn the_same_thing_is_put_off_once_until_it_is_tried_again() {
        let mut put_off = PutOff::default();
        for _ in 0..1000 {
            put_off.push(HOSTILE, Some("page 5"), 5);
        }
        put_off.push(HONEST, Some("page 5"), 50);
        assert_eq!((put_off.len(), put_off.take()), (2, vec![5, 50]));
        assert!(put_off.is_empty());
        put_off.push(HOSTILE, Some("page 5"), 6);
        assert_eq!(put_off.take(), [6]);
    }

    #[test]
    fn what_is_nowhere_else_is_kept_each_time() {
        let mut put_off = PutOff::<(), _>::default();
        (0..3).for_each(|n| put_off.push(HONEST, None, n));
        assert_eq!(put_off.take(), [0, 1, 2]);
    }

    #[test]
    fn a_space_that_puts_off_much_is_not_tried_before_others() {
        let mut put_off = PutOff::default();
        (0..100_000).for_each(|n| put_off.push(HOSTILE, Some(n), n));
        put_off.push(HONEST, Some(0), -1);
        let first = put_off.take();
        assert_eq!((first.len(), first.last()), (PORTION + 1, Some(&-1)));
        assert_eq!(put_off.take()[0], PORTION as i32, "it goes on where it was");
    }
}
