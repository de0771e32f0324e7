//! How fault workers wait: asleep, or polling. What suits this machine is measured when annexd
//! starts, for some milliseconds, on memory of its own.
//!
//! A worker that sleeps on the CPU where the fault happens costs two switches between threads and
//! no interrupt. One that polls on another CPU costs none of these, but what it reads was just
//! written by the other one, and the program that has slept is woken by an interrupt: on bare metal
//! that is quick, in a virtual machine it is slow. And it takes a CPU, so it must be worth it.

use crate::kernel::process;
use annex_host::priority::Precedence;
use annex_shared::page::PAGE_SIZE;
use memmap2::MmapRaw;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use userfaultfd::{Event, Uffd, UffdBuilder};

/// Faults that are measured each way at most, and for how long.
const FAULTS: usize = 256;
const LONGEST: Duration = Duration::from_millis(20);
/// A worker that polls because that was found to be better goes to sleep when nothing has come for
/// this long: an idle host's CPUs are not burnt.
const QUIET: Duration = Duration::from_millis(1);

/// `wait` in annexd's configuration: how workers wait for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// What is measured to be better here when annexd starts.
    #[default]
    Auto,
    /// Sleeps in the kernel: no CPU while nothing faults.
    Block,
    /// Polls without sleeping: a CPU per worker, always.
    Spin,
}

/// How workers wait, settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// How long they poll after they last had something to do.
    pub polls_for: Duration,
    /// What a fault took either way, if that was asked.
    pub measured: Option<Measured>,
}

/// Medians, of a fault that is answered with a page from the CPU's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub asleep: Duration,
    /// `None`: there is one CPU only.
    pub polling: Option<Duration>,
}

impl Waiting {
    /// For so many workers.
    pub fn settle(wait: Wait, workers: usize) -> Waiting {
        let fixed = |polls_for| Waiting { polls_for, measured: None };
        match wait {
            Wait::Block => fixed(Duration::ZERO),
            Wait::Spin => fixed(Duration::MAX),
            Wait::Auto => {
                let cpus = cpus();
                let measured = measure(&cpus);
                let polls = measured.is_some_and(|m| m.favours_polling(workers, cpus.len()));
                Waiting { polls_for: if polls { QUIET } else { Duration::ZERO }, measured }
            }
        }
    }

    pub fn sleeps_at_once(&self) -> bool {
        self.polls_for.is_zero()
    }
}

/// As `annex status` shows it.
impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.sleeps_at_once() { "block" } else { "spin" })?;
        let Some(measured) = self.measured else { return Ok(()) };
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        write!(f, ", measured: {:.1} us a fault asleep", micros(measured.asleep))?;
        measured.polling.map_or(Ok(()), |polling| write!(f, ", {:.1} us polling", micros(polling)))
    }
}

impl Measured {
    /// A quarter faster at least, and as many CPUs again for the programs that the workers are
    /// there for.
    fn favours_polling(&self, workers: usize, cpus: usize) -> bool {
        cpus >= 2 * workers && self.polling.is_some_and(|polling| polling * 5 < self.asleep * 4)
    }
}

/// The CPUs that annexd may use.
fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect()
}

fn measure(cpus: &[usize]) -> Option<Measured> {
    let (first, second) = (*cpus.first()?, cpus.get(1));
    let median = |handler, polls| match faults(first, handler, polls) {
        Ok(median) => median,
        Err(error) => {
            tracing::debug!("it can't be measured how to wait for faults: {error:#}");
            None
        }
    };
    let asleep = median(first, false)?;
    Some(Measured { asleep, polling: second.and_then(|second| median(*second, true)) })
}

/// The median of faults on CPU `touched_on`, answered from CPU `handled_on`.
fn faults(touched_on: usize, handled_on: usize, polls: bool) -> anyhow::Result<Option<Duration>> {
    let memory = MmapRaw::from(memmap2::MmapOptions::new().len(FAULTS * PAGE_SIZE).map_anon()?);
    let uffd = UffdBuilder::new().close_on_exec(true).non_blocking(true).user_mode_only(true).create()?;
    uffd.register(memory.as_mut_ptr().cast(), memory.len())?;
    let over = AtomicBool::new(false);
    let mut took = std::thread::scope(|scope| {
        scope.spawn(|| {
            process::stay_on(handled_on);
            (if polls { Precedence::OfItsGroup } else { Precedence::OfAll }).give(0);
            while !over.load(Ordering::Acquire) && answer(&uffd, polls).is_ok() {
                std::hint::spin_loop();
            }
            // Whoever waits now gets zeros from the kernel.
            let _ = uffd.unregister(memory.as_mut_ptr().cast(), memory.len());
        });
        let touching = scope.spawn(|| touch(&memory, touched_on));
        let took = touching.join();
        over.store(true, Ordering::Release);
        took.unwrap_or_default()
    });
    took.sort_unstable();
    Ok(took.get(took.len() / 2).copied())
}

fn touch(memory: &MmapRaw, cpu: usize) -> Vec<Duration> {
    process::stay_on(cpu);
    let (began, mut took) = (Instant::now(), Vec::with_capacity(FAULTS));
    while took.len() < FAULTS && began.elapsed() < LONGEST {
        let start = Instant::now();
        // SAFETY: the page lies in the mapping, which is readable, and nobody writes to it but the
        // kernel before this returns.
        unsafe { memory.as_ptr().add(took.len() * PAGE_SIZE).read_volatile() };
        took.push(start.elapsed());
    }
    took
}

/// Waits for a fault, for 5 ms at most, and answers it.
fn answer(uffd: &Uffd, polls: bool) -> anyhow::Result<()> {
    static PAGE: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
    match uffd.read_event()? {
        Some(Event::Pagefault { addr, .. }) => {
            // SAFETY: a page of the mapping that this was registered for, from a page that is
            // always there.
            unsafe { uffd.copy(PAGE.as_ptr().cast(), addr, PAGE_SIZE, true) }?;
        }
        Some(_) => {}
        None if polls => {}
        None => {
            // SAFETY: the context owns the descriptor for as long as the borrow lasts.
            let fd = unsafe { BorrowedFd::borrow_raw(uffd.as_raw_fd()) };
            poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], 5u16)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn polling_must_be_worth_a_cpu_for_each_worker() {
        let polling = |polling| Measured { asleep: micros(10), polling };
        assert!(polling(Some(micros(7))).favours_polling(2, 4));
        assert!(!polling(Some(micros(7))).favours_polling(2, 3), "the programs would have no CPU of their own");
        assert!(!polling(Some(micros(9))).favours_polling(2, 4));
        assert!(!polling(None).favours_polling(1, 2));
    }

    #[test]
    fn what_is_told_is_not_measured() {
        assert_eq!(Waiting::settle(Wait::Block, 1).to_string(), "block");
        assert_eq!(Waiting::settle(Wait::Spin, 1), Waiting { polls_for: Duration::MAX, measured: None });
    }

    #[test]
    fn this_machine_is_measured_in_a_moment() {
        let began = Instant::now();
        let cpus = cpus();
        let measured = measure(&cpus).expect("userfaultfd answers in user mode");
        assert!(measured.asleep > Duration::from_nanos(200), "{measured:?}: nothing faulted");
        assert_eq!(measured.polling.is_some(), cpus.len() > 1, "{measured:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
