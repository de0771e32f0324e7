//! What becomes of a fault under its space's lock.

use crate::events::settle_changes;
use crate::fault::fetch::fetch;
use crate::fault::next::Next;
use crate::fault::page_fault::Fault;
use crate::kernel::Mm;
use crate::kernel::uffd::Installed;
use crate::page::PageIdx;
use crate::space::{Core, Record, Shared, Space, SpaceGuard};
use annex_shared::page::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How many pages a zero-filled fault brings along, aligned.
const ZERO_AROUND: u64 = 16;
static ZEROS: [u8; ZERO_AROUND as usize * PAGE_SIZE] = [0; ZERO_AROUND as usize * PAGE_SIZE];

/// Looks at one fault. The caller holds the core and has applied every change read so far.
pub fn serve(space: &Arc<Space>, core: &mut SpaceGuard<'_>, fault: Fault, shared: &Shared) -> Next {
    let page = fault.page;
    let block = PageIdx(page.0 / ZERO_AROUND * ZERO_AROUND);
    if !core.has_to_itself((block, block.plus(ZERO_AROUND))) || !settle_changes(space, core, shared) {
        return Next::Again;
    }
    let record = core.table.record(page);
    if !matches!(record, Record::Evicted(_)) {
        core.clear_suspect(page);
    }
    let adds_memory = matches!(record, Record::Evicted(_) | Record::None | Record::Removed);
    if adds_memory && !fault.evictors && space.app.delay(space.id, fault) {
        shared.registry.wake_evictor();
        return Next::Delayed;
    }
    match record {
        Record::Evicted(slot) => {
            if shared.in_flight.park(slot, space, fault) {
                return Next::Served;
            }
            Next::Read(fetch(core, page, slot, &space.app, shared))
        }
        Record::Poisoned => match space.uffd.poison(page.addr()) {
            Installed::TryAgain => Next::Again,
            _ => {
                space.uffd.ring().iter().for_each(|ring| ring.lose(page));
                space.uffd.wake(page.addr(), PAGE_SIZE as u64);
                Next::Served
            }
        },
        Record::None | Record::Removed => zero_fill(space, core, page, shared),
        // Resident by its record: nearly always the fault is an old one. A page that is truly
        // absent has been lost to us, and must not read as zeros until the app is stopped. (One
        // that MADV_FREE gave away is *removed*: that was announced.)
        Record::Clean(_) => match space.uffd.poison(page.addr()) {
            Installed::TryAgain => Next::Again,
            Installed::Done | Installed::Partly(_) => {
                space.app.stop(&format!("page {:#x} vanished while it was resident", page.addr()));
                Next::Served
            }
            Installed::Exists | Installed::NotMapped => {
                space.uffd.wake(page.addr(), PAGE_SIZE as u64);
                Next::Served
            }
            Installed::Dead => {
                space.set_dead();
                Next::Served
            }
        },
    }
}

/// A page that was never evicted (or was dropped since): zeros, with neighbours that are absent
/// too.
fn zero_fill(space: &Space, core: &mut Core, page: PageIdx, shared: &Shared) -> Next {
    let limit = (page.0 / ZERO_AROUND + 1) * ZERO_AROUND;
    let end = core.regions.containing(page.addr()).map_or(page.0 + 1, |r| r.end / PAGE_SIZE as u64);
    let mut pages = 1;
    while page.0 + pages < limit.min(end)
        && matches!(core.table.record(page.plus(pages)), Record::None | Record::Removed)
    {
        pages += 1;
    }
    // UFFDIO_COPY would replace a guard. The page itself is none: its touch would have been a
    // SIGSEGV.
    if pages > 1 {
        let guard = |mm: Arc<Mm>| mm.first_guard(page.plus(1).addr(), page.plus(pages).addr());
        pages = match space.mm().map(guard) {
            // A forked child that is not known yet.
            None => 1,
            Some(None) => pages,
            Some(Some(at)) => PageIdx::of(at).0 - page.0,
        };
    }
    core.make_way(page, pages);
    let installed = loop {
        let len = pages * PAGE_SIZE as u64;
        // SAFETY: ZEROS is as long as the longest run.
        match unsafe { space.uffd.copy(page.addr(), ZEROS.as_ptr(), len, false, true) } {
            Installed::Done => break pages,
            Installed::Partly(bytes) => break bytes / PAGE_SIZE as u64,
            Installed::TryAgain => return Next::Again,
            // The run may reach past the mapping.
            Installed::NotMapped if pages > 1 => pages = 1,
            Installed::Exists | Installed::NotMapped => {
                space.uffd.wake(page.addr(), PAGE_SIZE as u64);
                return Next::Served;
            }
            Installed::Dead => {
                space.set_dead();
                return Next::Served;
            }
        }
    };
    for i in 0..installed {
        let before = core.table.set(page.plus(i), Record::None).unwrap_or(Record::None);
        before.slot().into_iter().for_each(|slot| shared.pool.release(slot));
    }
    space.app.counters.zero.fetch_add(1, Relaxed);
    space.app.add_resident(installed as i64);
    Next::Served
}
