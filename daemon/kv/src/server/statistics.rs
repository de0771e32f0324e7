//! What INFO stats and errorstats tell.

use crate::call::Failure;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Instant;

/// Other codes are counted together beyond this many: a client can make some up.
const MAX_CODES: usize = 128;

#[derive(Default)]
pub struct Statistics {
    pub connections: Cell<u64>,
    pub rejected: Cell<u64>,
    pub commands: Cell<u64>,
    pub input: Cell<u64>,
    pub output: Cell<u64>,
    pub reads: Cell<u64>,
    pub writes: Cell<u64>,
    /// Of those, by I/O threads.
    pub io_threaded_writes: Cell<u64>,
    pub errors: Cell<u64>,
    pub blocked: Cell<u64>,
    /// Clients that were closed because clients held too much.
    pub evicted_clients: Cell<u64>,
    pub error_codes: RefCell<BTreeMap<String, u64>>,
    /// Per second, in the last second: commands, bytes in, bytes out.
    pub rates: Cell<[f64; 3]>,
    before: Cell<[u64; 3]>,
    sampled: Cell<Option<Instant>>,
}

impl Statistics {
    pub fn add(counter: &Cell<u64>, more: usize) {
        counter.set(counter.get() + more as u64);
    }

    pub fn count_error(&self, failure: &Failure) {
        Statistics::add(&self.errors, 1);
        let code = failure.0.split(' ').next().unwrap_or("ERR");
        let mut codes = self.error_codes.borrow_mut();
        if let Some(count) = codes.get_mut(code) {
            *count += 1;
        } else if codes.len() < MAX_CODES {
            codes.insert(code.into(), 1);
        }
    }

    /// Takes the rates anew, about once a second.
    pub fn sample(&self) {
        let now = Instant::now();
        let counts = [self.commands.get(), self.input.get(), self.output.get()];
        let seconds = self.sampled.replace(Some(now)).map_or(0.0, |before| (now - before).as_secs_f64());
        let before = self.before.replace(counts);
        if seconds > 0.0 {
            self.rates.set(std::array::from_fn(|at| counts[at].saturating_sub(before[at]) as f64 / seconds));
        }
    }

    pub fn reset(&self) {
        let counters = [&self.connections, &self.rejected, &self.commands, &self.input, &self.output];
        counters
            .iter()
            .chain(&[&self.reads, &self.writes, &self.io_threaded_writes, &self.errors, &self.evicted_clients])
            .for_each(|counter| counter.set(0));
        self.error_codes.borrow_mut().clear();
        self.before.set([0; 3]);
    }
}
