//! What all of a program's threads share, and what it reports. All of it is allocated before the
//! first step.

use super::calls::exec;
use super::locks::{is_replaced, lock};
use super::memory::Memory;
use super::report::{Text, Wrong};
use super::step::{What, allowed};
use crate::stress::content::PAGE;
use annex_cli::access::dice::mix;
use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What a program is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub seconds: u64,
    /// At most so many, of each thread.
    pub steps: u64,
    /// Bytes of memory, of all threads together.
    pub size: u64,
    /// How often it may become another program.
    pub generations: u64,
    /// The kinds of steps, all if empty: others become checks.
    pub only: Vec<What>,
    /// A part of another program: it reports only what is wrong.
    pub inner: bool,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, seconds, steps, size, generations, inner, .. } = self;
        write!(f, "--seed {seed} --seconds {seconds} --size {size} --generations {generations}")?;
        if *steps != u64::MAX {
            write!(f, " --steps {steps}")?;
        }
        f.write_str(if *inner { " --inner" } else { "" })
    }
}

#[derive(Debug, Default)]
pub struct Tally {
    steps: AtomicU64,
    checks: AtomicU64,
}

impl Tally {
    pub fn count_step(&self) {
        self.steps.fetch_add(1, SeqCst);
    }

    pub fn count_checks(&self, pages: usize) {
        self.checks.fetch_add(pages as u64, SeqCst);
    }
}

pub struct Program {
    pub plan: Plan,
    /// The steps that are taken.
    pub allowed: Vec<What>,
    pub end: Instant,
    pub threads: usize,
    /// One of each thread, and one of each thread's sharer.
    pub memories: Vec<Mutex<Memory>>,
    /// The stack of each thread's sharer.
    pub stacks: Vec<AtomicPtr<u8>>,
    pub tally: Tally,
    /// Threads and sharers that live.
    alive: AtomicUsize,
    pub threads_alive: AtomicUsize,
    path: CString,
    /// What the program is called with, beside its seed.
    only: CString,
}

impl Program {
    pub fn new(plan: Plan) -> Result<Program, Wrong> {
        let threads = 2 + (plan.seed % 3) as usize;
        let pages = plan.size as usize / PAGE / threads;
        let seed_of = |nth: usize| mix(plan.seed.wrapping_mul(1000) + nth as u64);
        // A sharer's memory is a quarter of a thread's.
        let of_thread = |nth| Memory::new(seed_of(nth), pages * 4 / 5, nth == 0);
        let of_sharer = |nth| Memory::new(seed_of(nth), pages / 5, false);
        let memories = (0..threads).map(of_thread).chain((threads..2 * threads).map(of_sharer));
        let memories = memories.map(|memory| memory.map(Mutex::new)).collect::<Result<Vec<_>, _>>()?;
        let path = std::env::current_exe().map_err(|error| Wrong::Call {
            what: "readlink of /proc/self/exe",
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero byte");
        let only: Vec<String> = plan.only.iter().map(|what| format!("{what:?}")).collect();
        let only = CString::new(format!("--only={}", only.join(","))).expect("names have no zero byte");
        let share = Duration::from_secs(plan.seconds) / (plan.generations + 1) as u32;
        Ok(Program {
            allowed: allowed(plan.seed, &plan.only),
            end: Instant::now() + share,
            threads,
            memories,
            stacks: (0..threads).map(|_| AtomicPtr::default()).collect(),
            tally: Tally::default(),
            alive: AtomicUsize::new(threads),
            threads_alive: AtomicUsize::new(threads),
            path,
            only,
            plan,
        })
    }

    /// `None`: who held it was ended with it, when the program was replaced.
    pub fn memory(&self, nth: usize) -> Option<MutexGuard<'_, Memory>> {
        lock(&self.memories[nth])
    }

    /// One more that is to leave.
    pub fn arrive(&self) {
        self.alive.fetch_add(1, SeqCst);
    }

    /// The last one verifies everything and reports.
    pub fn leave(&self) -> Result<(), Wrong> {
        if self.alive.fetch_sub(1, SeqCst) > 1 || is_replaced() {
            return Ok(());
        }
        let mut memories = (0..self.memories.len()).filter_map(|nth| self.memory(nth));
        memories.try_for_each(|memory| memory.check_all())?;
        self.report(None);
        Ok(())
    }

    pub fn report(&self, becomes: Option<u64>) {
        let (seed, steps, checks) = (self.plan.seed, self.tally.steps.load(SeqCst), self.tally.checks.load(SeqCst));
        if self.plan.inner {
            return;
        }
        let head = format_args!("{{\"seed\":{seed},\"steps\":{steps},\"checks\":{checks},\"errors\":0,\"becomes\":");
        match becomes {
            None => Text::of(format_args!("{head}null}}\n")),
            Some(next) => Text::of(format_args!("{head}{next}}}\n")),
        }
        .say(libc::STDOUT_FILENO);
    }

    /// Becomes a small program that is part of this one.
    pub fn exec_inner(&self, seed: u64) -> Result<(), Wrong> {
        Err(self.exec(seed, 5, 40, 2 << 20, 0, true))
    }

    pub fn exec(&self, seed: u64, seconds: u64, steps: u64, size: u64, generations: u64, inner: bool) -> Wrong {
        let args = Text::of(format_args!(
            "--seed={seed}\0--seconds={seconds}\0--steps={steps}\0--size={size}\0--generations={generations}\0"
        ));
        let only = (!self.plan.only.is_empty()).then_some(self.only.as_c_str());
        exec(&self.path, &args, only.into_iter().chain(inner.then_some(c"--inner")))
    }
}
