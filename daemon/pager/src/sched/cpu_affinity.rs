//! Which fault workers watch a space: all of them, or the one alone on whose CPU its
//! thread runs.
//!
//! A fault wakes every worker that sleeps and watches. Of those only the one on the faulting
//! thread's CPU is woken for nothing but its work; for each other one the thread pays an interrupt
//! between two processors before it even sleeps. So while one thread does all the faulting and
//! stays on one worker's CPU, the others look away. They look back as soon as another thread faults
//! or that one is seen on another CPU.
//!
//! Pure: where a thread is, [`look`](CpuAffinity::look) is told every few milliseconds.

/// Looks in a row that must find the same thread on the same CPU, at first.
const STAYS: u32 = 3;
/// It gets twice as many each time a CPU turns out wrong, up to this.
const MOST_STAYS: u32 = 1 << 8;
/// A CPU that stood for so many looks was right.
const PROVEN: u32 = 1 << 8;

/// Who is to watch from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    All,
    /// This worker alone.
    Worker(usize),
}

#[derive(Debug)]
pub struct CpuAffinity {
    watch: Watch,
    /// The thread that faulted last, as the latest look found it, and the worker of the CPU it was
    /// on.
    last: Option<(i32, usize)>,
    stays: u32,
    needed: u32,
    closed: bool,
}

impl Default for CpuAffinity {
    fn default() -> CpuAffinity {
        CpuAffinity { watch: Watch::All, last: None, stays: 0, needed: STAYS, closed: false }
    }
}

impl CpuAffinity {
    /// A thread has faulted.
    pub fn fault(&mut self, thread: i32) -> Option<Watch> {
        let is_other = self.last.is_none_or(|(last, _)| last != thread);
        if is_other && self.watch != Watch::All { self.leave() } else { None }
    }

    /// There were faults since the last look; the latest was `thread`'s, which is on the CPU of
    /// this worker, or on none of a worker's.
    pub fn look(&mut self, thread: i32, worker: Option<usize>) -> Option<Watch> {
        let now = worker.map(|worker| (thread, worker));
        let stayed = now.is_some() && now == self.last;
        self.last = now;
        self.stays = if stayed { self.stays.saturating_add(1) } else { 0 };
        match (self.watch, worker) {
            (Watch::All, Some(worker)) if self.stays >= self.needed => self.move_to(Watch::Worker(worker)),
            (Watch::Worker(_), _) if !stayed => self.leave(),
            (Watch::Worker(_), _) if self.stays == PROVEN => {
                self.needed = STAYS;
                None
            }
            _ => None,
        }
    }

    /// The one worker that watches, if it is one.
    pub fn worker(&self) -> Option<usize> {
        match self.watch {
            Watch::Worker(worker) => Some(worker),
            Watch::All => None,
        }
    }

    /// Whether this worker is to watch.
    pub fn is_watched_by(&self, worker: usize) -> bool {
        !self.closed && self.worker().is_none_or(|one| one == worker)
    }

    /// Nobody is to watch any more: nothing is changed from now on.
    pub fn close(&mut self) {
        self.closed = true;
    }

    fn leave(&mut self) -> Option<Watch> {
        self.needed = (self.needed * 2).min(MOST_STAYS);
        self.move_to(Watch::All)
    }

    fn move_to(&mut self, watch: Watch) -> Option<Watch> {
        (self.watch, self.stays) = (watch, 0);
        Some(watch).filter(|_| !self.closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(thread: i32, worker: usize) -> CpuAffinity {
        let mut affinity = CpuAffinity::default();
        let moves: Vec<_> = (0..=STAYS).filter_map(|_| affinity.look(thread, Some(worker))).collect();
        assert_eq!(moves, [Watch::Worker(worker)]);
        affinity
    }

    #[test]
    fn a_thread_that_moves_about_or_is_on_no_workers_cpu_has_none() {
        let (mut moves, mut foreign) = (CpuAffinity::default(), CpuAffinity::default());
        for i in 0..1000 {
            assert_eq!((moves.look(7, Some(i % 2)), foreign.look(7, None)), (None, None));
        }
    }

    #[test]
    fn another_threads_fault_brings_all_back_and_the_next_cpu_takes_longer() {
        let mut affinity = settled(50, 1);
        assert_eq!((affinity.fault(50), affinity.fault(51)), (None, Some(Watch::All)));
        assert_eq!(affinity.fault(51), None, "they are back already");
        let looks = (0..).find(|_| affinity.look(51, Some(0)).is_some());
        assert_eq!(looks, Some(2 * STAYS));
    }

    #[test]
    fn a_thread_seen_on_another_cpu_brings_all_back_until_it_stays_there() {
        let mut affinity = settled(50, 0);
        (0..PROVEN).for_each(|_| assert_eq!(affinity.look(50, Some(0)), None));
        assert_eq!(affinity.look(50, Some(1)), Some(Watch::All));
        let looks = (1..).find(|_| affinity.look(50, Some(1)) == Some(Watch::Worker(1)));
        assert_eq!(looks, Some(2 * STAYS), "a CPU that was right for long is no reproach");
    }

    #[test]
    fn a_space_that_nobody_watches_any_more_stays_so() {
        let mut affinity = settled(50, 0);
        affinity.close();
        assert_eq!((affinity.fault(51), affinity.look(52, Some(0))), (None, None));
    }
}
