//! No rule is followed while annexd lets go of everything: what it attached then would be left
//! behind without an annexd.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[derive(Default)]
pub struct Gate {
    is_closed: AtomicBool,
    /// Held while rules are followed.
    inside: Mutex<()>,
}

impl Gate {
    /// Returns when nobody follows a rule any more, and nobody will until it is opened.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
        drop(self.inside.lock());
    }

    pub fn open(&self) {
        self.is_closed.store(false, SeqCst);
    }

    /// To be asked before each attach: whoever closes waits for one at most.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    /// Does it inside, unless it is closed.
    pub fn pass(&self, inside: impl FnOnce()) {
        let _inside = self.inside.lock();
        if !self.is_closed() {
            inside();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_a_closed_gate() {
        let gate = Gate::default();
        let mut passed = 0;
        gate.pass(|| passed += 1);
        gate.close();
        gate.pass(|| passed += 1);
        gate.open();
        gate.pass(|| passed += 1);
        assert_eq!(passed, 2);
    }
}
