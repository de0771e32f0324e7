//! Before whom a fault worker gets its CPU: the worker says what is due to it by what it does, and
//! the thread that looks where faults come from has all of them be *patient* while they need not
//! fight for their CPUs ([`contention`](crate::sched::contention)).

use crate::sched::contention::{Contention, Waits};
use annex_host::priority::Precedence;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

#[derive(Default)]
pub struct WorkerClass(Mutex<Held>);

#[derive(Default)]
struct Held {
    /// 0 until it runs.
    thread: i32,
    due: Option<Precedence>,
    patient: bool,
}

impl Held {
    fn apply(&self) {
        let Some(due) = self.due else { return };
        // One that has no claim on anybody's CPU waits for its own anyway.
        let given = if self.patient && due != Precedence::Ordinary { Precedence::Patient } else { due };
        given.give(self.thread);
    }
}

impl WorkerClass {
    /// Of the calling thread from now on.
    pub fn deserve(&self, due: Precedence) {
        let mut held = self.0.lock();
        (held.thread, held.due) = (nix::unistd::gettid().as_raw(), Some(due));
        held.apply();
    }

    fn be_patient(&self, patient: bool) {
        let mut held = self.0.lock();
        held.patient = patient;
        held.apply();
    }

    fn thread(&self) -> i32 {
        self.0.lock().thread
    }
}

/// Makes all workers patient, or not. One thread's.
pub struct WorkerClasses {
    classes: Vec<Arc<WorkerClass>>,
    contention: Contention,
    waits: Option<Waits>,
    is_patient: bool,
}

impl WorkerClasses {
    pub fn of(classes: Vec<Arc<WorkerClass>>) -> WorkerClasses {
        WorkerClasses { classes, contention: Contention::default(), waits: None, is_patient: false }
    }

    /// There were faults. To be called every few milliseconds until [`rest`](Self::rest).
    pub fn look(&mut self) {
        let threads = || self.classes.iter().map(|class| class.thread()).collect::<Vec<_>>();
        let waits = match self.waits.take() {
            Some(waits) => Ok(waits),
            None => Waits::of(&threads()),
        };
        let looked = waits.and_then(|mut waits| waits.look().map(|waited| (waits, waited)));
        let patient = match looked {
            Ok((waits, waited)) => {
                self.waits = Some(waits);
                self.contention.look(waited, Instant::now())
            }
            Err(error) => {
                tracing::debug!("it can't be seen how long workers wait for their CPUs: {error}");
                false
            }
        };
        self.set(patient);
    }

    /// Nobody will look for a while.
    pub fn rest(&mut self) {
        self.contention.rest();
        self.set(false);
    }

    fn set(&mut self, patient: bool) {
        if patient != self.is_patient {
            self.is_patient = patient;
            self.classes.iter().for_each(|class| class.be_patient(patient));
        }
    }
}
