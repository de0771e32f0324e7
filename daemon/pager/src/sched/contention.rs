//! Whether fault workers have to fight for their CPUs.
//!
//! A fault wakes the workers of all CPUs where a space is watched. One that has real time then
//! interrupts the program that runs on its CPU, for nothing if the fault was another CPU's, and the
//! thread that faulted pays for the interrupt before it even sleeps: twelve of 24 us in a virtual
//! machine. A *patient* worker waits for its CPU instead: the one on the faulting CPU gets it at
//! once, since the thread that faulted goes to sleep, and the others when a thread there faults
//! itself.
//!
//! That is so while nothing else wants the CPUs. Beside busy programs of another scheduling group a
//! patient worker can wait for seconds, and so workers are patient for as long only as somebody
//! looks every few milliseconds how long they wait. Whether they would have to wait can't be told
//! while they have real time: it is tried, and tried less and less often where it was wrong.
//!
//! Pure, but for [`Waits`], which reads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A worker that waits this long for its CPU each time it wants it, on average over all workers,
/// has to fight for it.
const LONG: Duration = Duration::from_micros(200);
/// How long workers have real time before being patient is tried: at first, and at most.
const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(10);
/// Patience that was right for so long was no mistake.
const PROVEN: Duration = Duration::from_secs(2);

/// What the workers waited for their CPUs between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// In all.
    pub time: Duration,
    /// How often one got its CPU.
    pub turns: u64,
    /// One is waiting now.
    pub waits: bool,
}

impl Waited {
    fn is_long(&self) -> bool {
        match u32::try_from(self.turns) {
            Ok(0) => self.waits,
            Ok(turns) => self.time / turns > LONG,
            Err(_) => false,
        }
    }
}

/// Decides whether workers are patient.
#[derive(Debug, Default)]
pub struct Contention {
    state: State,
    /// How long workers will have real time when they had to wait the next time.
    pause: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nobody has looked for a while: there were no faults.
    #[default]
    Unknown,
    /// They have real time until then.
    Urgent(Instant),
    /// They are patient since then.
    Patient(Instant),
}

impl Contention {
    /// There are faults, and this is what the workers have waited since the last look. True: they
    /// are to be patient.
    pub fn look(&mut self, waited: Waited, now: Instant) -> bool {
        self.state = match self.state {
            State::Unknown => State::Urgent(now + self.pause.unwrap_or(FIRST)),
            State::Urgent(until) if now < until => State::Urgent(until),
            State::Urgent(_) => State::Patient(now),
            State::Patient(since) if waited.is_long() => {
                let pause = self.pause.filter(|_| now - since < PROVEN).map_or(FIRST, |pause| (pause * 2).min(LAST));
                self.pause = Some(pause);
                State::Urgent(now + pause)
            }
            State::Patient(since) => State::Patient(since),
        };
        matches!(self.state, State::Patient(_))
    }

    /// Nobody will look for a while: they must have real time when the next fault comes.
    pub fn rest(&mut self) {
        self.state = State::Unknown;
    }
}

/// Reads how long threads of this process have waited for a CPU (proc_pid_schedstat: nanoseconds
/// run, nanoseconds waited, times it got one).
pub struct Waits {
    threads: Vec<Thread>,
}

struct Thread {
    schedstat: File,
    stat: File,
    waited: u64,
    turns: u64,
}

impl Waits {
    pub fn of(threads: &[i32]) -> io::Result<Waits> {
        let open = |thread: i32, name| File::open(format!("/proc/self/task/{thread}/{name}"));
        let threads = threads.iter().map(|thread| {
            Ok(Thread { schedstat: open(*thread, "schedstat")?, stat: open(*thread, "stat")?, waited: 0, turns: 0 })
        });
        Ok(Waits { threads: threads.collect::<io::Result<_>>()? })
    }

    /// Since the last call.
    pub fn look(&mut self) -> io::Result<Waited> {
        let mut sum = Waited::default();
        for thread in &mut self.threads {
            let (waited, turns) = thread.totals()?;
            sum.time += Duration::from_nanos(waited.saturating_sub(thread.waited));
            sum.turns += turns.saturating_sub(thread.turns);
            (thread.waited, thread.turns) = (waited, turns);
        }
        if sum.turns == 0 {
            sum.waits = self.threads.iter().any(Thread::is_runnable);
        }
        Ok(sum)
    }
}

impl Thread {
    fn totals(&self) -> io::Result<(u64, u64)> {
        let mut bytes = [0; 64];
        let text = read(&self.schedstat, &mut bytes)?;
        let mut numbers = text.split_ascii_whitespace().skip(1).flat_map(str::parse);
        let pair = numbers.next().zip(numbers.next());
        pair.ok_or_else(|| io::Error::other("schedstat has no three numbers"))
    }

    fn is_runnable(&self) -> bool {
        let mut bytes = [0; 64];
        let text = read(&self.stat, &mut bytes);
        text.is_ok_and(|text| text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R')))
    }
}

fn read<'a>(file: &File, bytes: &'a mut [u8]) -> io::Result<&'a str> {
    let read = file.read_at(bytes, 0)?;
    str::from_utf8(&bytes[..read]).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(2);
    const CALM: Waited = Waited { time: Duration::from_millis(1), turns: 100, waits: false };
    const STARVED: Waited = Waited { time: Duration::ZERO, turns: 0, waits: true };

    /// Looks every 2 ms for so long, and for how much of it workers are patient.
    fn looks(contention: &mut Contention, from: Instant, lasts: Duration, waited: Waited) -> (Instant, Duration) {
        let (mut now, mut patient) = (from, Duration::ZERO);
        while now < from + lasts {
            now += LOOK;
            patient += if contention.look(waited, now) { LOOK } else { Duration::ZERO };
        }
        (now, patient)
    }

    #[test]
    fn workers_that_get_their_cpus_at_once_are_patient_after_a_moment() {
        let mut contention = Contention::default();
        let second = Duration::from_secs(1);
        let (_, patient) = looks(&mut contention, Instant::now(), second, CALM);
        assert!(patient > second - 2 * FIRST, "{patient:?}");
    }

    #[test]
    fn workers_that_would_have_to_wait_have_real_time_but_for_a_try_now_and_then() {
        let mut contention = Contention::default();
        let minute = Duration::from_secs(60);
        for waited in [STARVED, Waited { time: Duration::from_millis(2), turns: 1, waits: false }] {
            let (_, patient) = looks(&mut contention, Instant::now(), minute, waited);
            assert!(patient < Duration::from_millis(40), "{patient:?}");
        }
    }

    #[test]
    fn a_worker_that_waits_while_another_one_works_harms_nobody() {
        let mixed = Waited { time: Duration::from_millis(3), turns: 60, waits: false };
        assert!(!mixed.is_long() && !Waited::default().is_long());
        assert!(STARVED.is_long());
    }

    #[test]
    fn contention_that_has_passed_is_forgotten() {
        let mut contention = Contention::default();
        let (now, _) = looks(&mut contention, Instant::now(), Duration::from_secs(60), STARVED);
        let (now, _) = looks(&mut contention, now, LAST + PROVEN, CALM);
        assert!(!contention.look(STARVED, now));
        let (_, patient) = looks(&mut contention, now, 4 * FIRST, CALM);
        assert!(patient > 2 * FIRST, "{patient:?}");
    }

    #[test]
    fn after_a_rest_workers_have_real_time() {
        let mut contention = Contention::default();
        let (now, _) = looks(&mut contention, Instant::now(), Duration::from_secs(1), CALM);
        contention.rest();
        assert!(!contention.look(CALM, now));
    }

    #[test]
    fn what_the_kernel_counts_is_read() {
        let mut waits = Waits::of(&[nix::unistd::gettid().as_raw()]).unwrap();
        waits.look().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(waits.look().unwrap().turns > 0);
        assert!(waits.threads[0].is_runnable());
    }
}
