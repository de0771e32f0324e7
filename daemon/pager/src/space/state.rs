//! What others tell a space about itself, and ask of it, which takes its lock.

use crate::inject::stub::Stub;
use crate::kernel::Mm;
use crate::space::address_space::Space;
use crate::space::shared::Shared;
use crate::space::table::{StubTraces, Table};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl Space {
    /// Writes down the stub that the space is to have, the process it turned out to be, and the
    /// address space that both live in.
    pub fn describe(&self, pid: i32, stub: &Stub, mm: Mm) {
        self.identity.set_pid(pid);
        self.identity.set_stub_pid(stub.pid());
        let traces = stub.traces();
        *self.staging.lock() = traces.staging;
        self.identity.set_mark(Some(stub.mark()));
        self.identity.set_mm(Some(mm));
        self.core().table.describe(pid, &traces);
    }

    /// Says which process this is, as the annexd before knew it, and gives it what that one had of
    /// it, as far as it is of use.
    pub fn resume(&self, pid: i32, stub: Option<Stub>, traces: Option<StubTraces>, mm: Option<Mm>) {
        self.identity.set_pid(pid);
        self.identity.set_stub_pid(stub.as_ref().map_or(0, Stub::pid));
        *self.staging.lock() = traces.map(|traces| traces.staging).unwrap_or_default();
        let mark = stub.as_ref().map(Stub::mark);
        self.identity.set_mark(mark.or(traces.map(|traces| traces.mark())));
        self.identity.set_mm(mm);
        self.evicting.lock().stub = stub;
    }

    /// Another process lives in the address space, which outlives the one that was known.
    pub fn move_in(&self, pid: i32) {
        self.identity.set_pid(pid);
        let core = self.core();
        if let Some(traces) = core.table.stub() {
            core.table.describe(pid, &traces);
        }
    }

    pub fn evicted(&self) -> u64 {
        let evicted = self.core().table.evicted();
        self.last_evicted.store(evicted, Relaxed);
        evicted
    }

    /// [`Space::evicted`], or what it was when it was last asked for if somebody holds the core:
    /// whoever looks after all apps must not wait for one of them.
    pub fn evicted_about(&self) -> u64 {
        let evicted = self.core_within(Duration::from_millis(1)).map(|core| core.table.evicted());
        evicted.inspect(|n| self.last_evicted.store(*n, Relaxed)).unwrap_or_else(|| self.last_evicted.load(Relaxed))
    }

    /// Bytes of its table; what they were when last asked for if somebody holds the core.
    pub fn overhead_about(&self) -> u64 {
        self.taken_about().0
    }

    /// Bytes of its table, and slots that it names; what they were when last asked for if somebody
    /// holds the core.
    pub fn taken_about(&self) -> (u64, u64) {
        if let Some(core) = self.lock_within(Duration::from_millis(1)) {
            self.last_overhead.store(core.table.bytes(), Relaxed);
            self.last_slots.store(core.table.slots(), Relaxed);
        }
        (self.last_overhead.load(Relaxed), self.last_slots.load(Relaxed))
    }

    /// The space has ended: gives back every slot it refers to.
    pub fn release_all(&self, shared: &Shared) {
        self.set_dead();
        self.forget_records(shared);
    }

    /// Nothing is known of any page from here on, and every slot that was is given back.
    pub fn forget_records(&self, shared: &Shared) {
        let (start, end) = Table::everything();
        let mut core = self.core();
        core.table.clear(start, end, |slot| shared.pool.release(slot));
        // What an eviction under way had moved is nobody's any more.
        core.table.conclude();
    }
}
