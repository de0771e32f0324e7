//! The gate between a stub's calls: whoever is about to read an address space's messages shuts it,
//! and no call begins until it is open again. And the doorbell.
//!
//! One word of the shared page. The stub sets [`MOVING`] before each call, if neither of the other
//! bits is set, and takes it back after it. Who shuts the gate sets [`SHUT`] and waits for the call
//! that is under way, a few microseconds. The stub meanwhile spins, for a moment only: it may have
//! the very CPU that whoever has shut the gate needs. Then it gives the rest of its calls up
//! ([`ENDED`]), and so it does when it is told to.
//!
//! Calls may be rung for a few at a time. Only an idle stub may be rung for, for it reads what to
//! do once it has heard the bell: the stub notes which ring is completed.
//!
//! Bell and answer are words of the page, on which the other side sleeps (a futex), and no
//! descriptors: of those the program has a copy, and could make whoever uses them wait.

use super::layout::{Call, Comm, ENDED, MAX_MOVES, MOVING, SHUT, UNMADE};
use annex_shared::futex;
use memmap2::MmapRaw;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Between two looks whether the stub has done what it does not answer.
pub(super) const LOOK: Duration = Duration::from_micros(50);
/// A call that takes longer than this is not waited for without letting others have the CPU.
const SOON: Duration = Duration::from_micros(50);

#[derive(Clone, Debug)]
pub struct Gate {
    pub(super) comm: Arc<MmapRaw>,
}

impl Gate {
    pub(super) fn new(comm: MmapRaw) -> Gate {
        Gate { comm: Arc::new(comm) }
    }

    fn comm(&self) -> &Comm {
        // SAFETY: the mapping is as large and as aligned as `Comm` and lives as long as `self`;
        // only its atomic words are looked at through the reference.
        unsafe { &*self.comm.as_ptr().cast::<Comm>() }
    }

    fn word(&self) -> &AtomicU32 {
        &self.comm().gate
    }

    /// As it is before so many calls are made.
    pub(super) fn reset(&self, calls: u32) {
        self.comm().left.store(calls, Ordering::SeqCst);
        self.word().store(0, Ordering::SeqCst);
    }

    /// Calls that have not been made yet, the one that is under way among them.
    pub fn left(&self) -> u32 {
        self.comm().left.load(Ordering::SeqCst)
    }

    /// Lets no call begin, and waits for the one that is under way. False: that takes longer than
    /// `limit`, and the gate is as it was.
    pub fn shut(&self, limit: Duration) -> bool {
        if self.word().fetch_or(SHUT, Ordering::SeqCst) & MOVING == 0 {
            return true;
        }
        let began = Instant::now();
        while self.word().load(Ordering::SeqCst) & MOVING != 0 {
            let waited = began.elapsed();
            if waited > limit {
                self.open();
                return false;
            }
            if waited > SOON {
                std::thread::yield_now();
            }
        }
        true
    }

    pub fn open(&self) {
        self.word().fetch_and(!SHUT, Ordering::SeqCst);
    }

    /// No call that has not begun is made any more.
    pub fn end(&self) {
        self.word().fetch_or(ENDED, Ordering::SeqCst);
    }

    pub fn is_ended(&self) -> bool {
        self.word().load(Ordering::SeqCst) & ENDED != 0
    }

    /// Whether all that was rung for is completed.
    pub fn is_idle(&self) -> bool {
        self.comm().completed.load(Ordering::SeqCst) == self.comm().rung.load(Ordering::SeqCst)
    }

    /// Whether the stub is idle and no call that is prepared will be made any more. It stays so,
    /// since nobody rings for calls that will not be made.
    pub fn is_finished(&self) -> bool {
        // In this order: a ring that ends may be the one that found the gate shut for too long.
        (self.left() == 0 || self.is_ended()) && self.is_idle()
    }

    /// Sleeps until what was rung for is completed, for `limit` at most. It may come back sooner,
    /// and what is not answered is looked at every [`LOOK`].
    pub fn await_end(&self, limit: Duration) {
        let comm = self.comm();
        let completed = comm.completed.load(Ordering::SeqCst);
        let limit = if comm.answers.load(Ordering::SeqCst) == 0 { limit.min(LOOK) } else { limit };
        if completed != comm.rung.load(Ordering::SeqCst) {
            futex::wait(&comm.completed, completed, limit);
        }
    }

    /// Says which of the calls that are prepared an idle stub is to make next, and whether it is to
    /// answer. From here on it is not idle, and may begin; one thread at a time may do this, and
    /// then [`ring`](Self::ring).
    pub fn prepare_ring(&self, first: usize, calls: usize, answers: bool) {
        let comm = self.comm();
        comm.first.store(first as u32, Ordering::SeqCst);
        comm.count.store(calls as u32, Ordering::SeqCst);
        comm.answers.store(answers.into(), Ordering::SeqCst);
        comm.rung.fetch_add(1, Ordering::SeqCst);
    }

    pub fn ring(&self) {
        futex::wake(&self.comm().rung);
    }

    /// What the call that was prepared there answered, if it was made. With the gate shut, or once
    /// the stub is idle.
    pub fn answer(&self, nth: usize) -> Option<i64> {
        assert!(nth < MAX_MOVES);
        // SAFETY: in bounds of the mapping; the stub writes it before it takes `MOVING` back, and
        // not again.
        let call: Call = unsafe { (&raw const (*self.comm.as_ptr().cast::<Comm>()).calls[nth]).read_volatile() };
        Some(call.result).filter(|result| *result != UNMADE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::tests::{gate, start};
    use super::super::layout::Call;
    use super::*;
    use nix::sys::eventfd::EventFd;
    use std::os::fd::AsRawFd;

    const MOMENT: Duration = Duration::from_millis(1);
    const CALLS: u32 = 3;

    /// A stub in a thread of this process, which its process ends with.
    struct Bench {
        gate: Gate,
        /// Counts the calls that were made.
        counter: EventFd,
    }

    impl Bench {
        fn new() -> &'static Bench {
            // The stub goes on for as long as the process does.
            let bench = Box::leak(Box::new(Bench { gate: gate(), counter: EventFd::new().expect("an eventfd") }));
            start(&bench.gate);
            bench
        }

        /// Has it make its calls, with the gate as `shape` makes it, and how many it has made.
        fn rung(&self, shape: impl FnOnce(&Gate)) -> u64 {
            static ONE: u64 = 1;
            let args = [self.counter.as_raw_fd() as u64, (&raw const ONE).addr() as u64, 8, 0, 0, 0];
            for nth in 0..CALLS as usize {
                // SAFETY: in bounds of the mapping, and the stub sleeps.
                unsafe {
                    let calls = &raw mut (*self.gate.comm.as_mut_ptr().cast::<Comm>()).calls;
                    calls.cast::<Call>().add(nth).write_volatile(Call {
                        number: libc::SYS_write,
                        args,
                        result: UNMADE,
                    });
                }
            }
            self.gate.reset(CALLS);
            shape(&self.gate);
            self.gate.prepare_ring(0, CALLS as usize, true);
            self.gate.ring();
            self.await_idle();
            // One more than it counts, so that reading never waits.
            self.counter.write(1).expect("the counter counts");
            self.counter.read().expect("the counter is read") - 1
        }

        fn await_idle(&self) {
            let began = Instant::now();
            while !self.gate.is_idle() {
                assert!(began.elapsed() < Duration::from_secs(20), "the stub does not answer");
                self.gate.await_end(Duration::from_secs(20));
            }
        }

        fn answers(&self) -> Vec<i64> {
            (0..CALLS as usize).map_while(|nth| self.gate.answer(nth)).collect()
        }
    }

    #[test]
    fn a_stub_makes_its_calls_at_an_open_gate_only() {
        let bench = Bench::new();
        assert_eq!((bench.rung(|_| ()), bench.answers(), bench.gate.left()), (3, vec![8; 3], 0));
        assert_eq!((bench.rung(Gate::end), bench.answers(), bench.gate.left()), (0, vec![], CALLS));
        assert_eq!(bench.rung(|gate| assert!(gate.shut(MOMENT))), 0, "it does not wait for ever at a shut one");
        assert_eq!((bench.answers(), bench.gate.left()), (vec![], CALLS));
        assert_eq!(bench.rung(|_| ()), 3);
    }

    #[test]
    fn a_stub_that_is_rung_for_a_few_calls_makes_those_and_answers_when_it_is_to() {
        let bench = Bench::new();
        assert_eq!(bench.rung(Gate::end), 0);
        bench.gate.reset(CALLS);
        for nth in 0..CALLS {
            bench.gate.prepare_ring(nth as usize, 1, nth + 1 == CALLS);
            bench.gate.ring();
            bench.await_idle();
            assert_eq!((bench.answers().len(), bench.gate.left()), (nth as usize + 1, CALLS - nth - 1));
        }
        bench.counter.read().expect("it was counted");
    }

    #[test]
    fn who_shuts_the_gate_waits_for_the_call_under_way() {
        let gate = gate();
        gate.word().store(MOVING, Ordering::SeqCst);
        assert!(!gate.shut(MOMENT));
        assert_eq!(gate.word().load(Ordering::SeqCst), MOVING, "it is as it was");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(10 * MOMENT);
                gate.word().fetch_and(!MOVING, Ordering::SeqCst);
            });
            let began = Instant::now();
            assert!(gate.shut(Duration::from_secs(20)));
            assert!(began.elapsed() >= 5 * MOMENT);
        });
        gate.open();
        assert_eq!(gate.word().load(Ordering::SeqCst), 0);
    }
}
