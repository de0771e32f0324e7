//! Pages that come in: installed, put back or lost, and their records with them.

use crate::events::{heed_guards, settle_changes};
use crate::evict::policy;
use crate::fault::fetch::Stretch;
use crate::fault::page_fault::Why;
use crate::kernel::uffd::Installed;
use crate::page::PageIdx;
use crate::space::{Core, Record, Shared, Space};
use annex_host::events::{self, EventKind};
use annex_host::failpoint::failpoint;
use annex_host::repeated;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;

/// Installs pages that were read from the pool, `bytes` holding verified copies of them. Pages
/// whose record has changed since are skipped. False: the app is changing its mappings, try
/// again later.
pub fn install(space: &Space, core: &mut Core, read: Stretch, bytes: &[u8], why: Why, shared: &Shared) -> bool {
    if !settle_changes(space, core, shared) {
        return false;
    }
    let Stretch { first, slot, .. } = read;
    let pages = (bytes.len() / PAGE_SIZE) as u64;
    if !heed_guards(space, core, (first, first.plus(pages)), shared) {
        return false;
    }
    let asked = match why {
        Why::Read(page) | Why::Write(page) => Some(page),
        Why::Ahead | Why::Restore => None,
    };
    let is_current =
        |core: &Core, i: u64| core.table.record(first.plus(i)) == Record::Evicted(SlotIdx(slot.0 + i as u32));
    // The page that is being written goes in unprotected, alone.
    let is_written = |i: u64| why == Why::Write(first.plus(i));
    let (mut i, mut most) = (0, pages);
    while i < pages {
        if !is_current(core, i) {
            if asked == Some(first.plus(i)) {
                space.uffd.wake(first.plus(i).addr(), PAGE_SIZE as u64);
            }
            i += 1;
            continue;
        }
        let keep_copy = !is_written(i) && why != Why::Restore;
        let mut n = 1;
        while n < most && !is_written(i) && i + n < pages && !is_written(i + n) && is_current(core, i + n) {
            n += 1;
        }
        let addr = first.plus(i).addr();
        let from = &bytes[i as usize * PAGE_SIZE..(i + n) as usize * PAGE_SIZE];
        core.installing(first.plus(i), n);
        // SAFETY: `from` is readable for its length.
        let done = match unsafe { space.uffd.copy(addr, from.as_ptr(), from.len() as u64, keep_copy, true) } {
            Installed::Done => n,
            Installed::Partly(bytes) => bytes / PAGE_SIZE as u64,
            Installed::TryAgain => return false,
            Installed::Exists if core.suspects.contains(&first.plus(i)) => {
                core.is_there(first.plus(i), shared);
                space.uffd.wake(addr, PAGE_SIZE as u64);
                i += 1;
                continue;
            }
            Installed::Exists => {
                // The record says the page is in the pool only, and yet there is one: whose
                // bytes are right can't be told.
                space.app.stop(&format!("page {addr:#x} is both evicted and present"));
                return true;
            }
            // The kernel copies within one mapping only.
            Installed::NotMapped if n > 1 => {
                most = 1;
                continue;
            }
            Installed::NotMapped => {
                tracing::debug!(space = space.id.0, "page {addr:#x} has no mapping to go to");
                space.uffd.wake(addr, PAGE_SIZE as u64);
                i += 1;
                continue;
            }
            Installed::Dead => {
                space.set_dead();
                return true;
            }
        };
        failpoint("page-copied");
        for k in i..i + done {
            let page = first.plus(k);
            let asked_alone = asked == Some(page) && pages == 1;
            core.installed(page, SlotIdx(slot.0 + k as u32), keep_copy, asked_alone, shared);
            core.clear_suspect(page);
        }
        core.table.installed();
        space.app.add_resident(done as i64);
        space.app.counters.brought_in.fetch_add(done, Relaxed);
        if why != Why::Restore {
            let wanted = asked.is_some_and(|page| (first.plus(i)..first.plus(i + done)).contains(&page));
            space.app.counters.prefetched.fetch_add(done - u64::from(wanted), Relaxed);
        }
        i += done;
    }
    true
}

/// Installs a page that was evicted to `slot` from bytes at hand. False: not now, or not any
/// more.
pub fn put_back(space: &Space, core: &mut Core, page: PageIdx, bytes: &[u8], slot: SlotIdx, shared: &Shared) -> bool {
    core.installing(page, 1);
    // SAFETY: `bytes` is readable for its length.
    let installed = unsafe { space.uffd.copy(page.addr(), bytes.as_ptr(), PAGE_SIZE as u64, false, true) };
    failpoint("page-put-back");
    match installed {
        Installed::Done => {
            let _ = core.table.set(page, Record::None);
            core.table.installed();
            core.clear_suspect(page);
            shared.pool.release(slot);
            space.app.add_resident(1);
        }
        Installed::Exists if core.suspects.contains(&page) => {
            core.is_there(page, shared);
            return true;
        }
        Installed::Exists => space.app.stop(&format!("page {:#x} is both evicted and present", page.addr())),
        Installed::Dead => space.set_dead(),
        Installed::TryAgain | Installed::Partly(_) | Installed::NotMapped => {}
    }
    installed == Installed::Done
}

/// No replica could give the page: its next touch raises SIGBUS. Never zeros, never stale
/// bytes.
pub fn lose(space: &Space, core: &mut Core, page: PageIdx, slot: SlotIdx, shared: &Shared) -> bool {
    if !settle_changes(space, core, shared) {
        return false;
    }
    if core.table.record(page) != Record::Evicted(slot) {
        space.uffd.wake(page.addr(), PAGE_SIZE as u64);
        return true;
    }
    core.installing(page, 1);
    let poisoned = match space.uffd.poison(page.addr()) {
        Installed::TryAgain => return false,
        Installed::Exists if core.suspects.contains(&page) => Installed::Done,
        other => other,
    };
    let name = &space.app.name;
    repeated!(ERROR, "page lost" of name, app = name, "page {:#x} is lost: no replica has its bytes", page.addr());
    let said = format!("lost page {:#x}: no replica has its bytes", page.addr());
    events::record(EventKind::PageLost, name, Some(space.app.uid), &said);
    space.app.note(said);
    let _ = core.table.set(page, Record::Poisoned);
    core.table.installed();
    core.clear_suspect(page);
    shared.pool.release(slot);
    space.uffd.ring().iter().for_each(|ring| ring.lose(page));
    if poisoned != Installed::Done {
        space.app.stop(&format!("page {:#x} is lost and could not be poisoned", page.addr()));
    }
    true
}

impl Core {
    /// A suspect turned out to have been installed: what the app has is the page.
    fn is_there(&mut self, page: PageIdx, shared: &Shared) {
        let before = self.table.set(page, Record::None).unwrap_or(Record::None);
        self.clear_suspect(page);
        before.slot().into_iter().for_each(|slot| shared.pool.release(slot));
    }

    fn installed(&mut self, page: PageIdx, slot: SlotIdx, clean: bool, asked_alone: bool, shared: &Shared) {
        let heat = if asked_alone { policy::heat_after_refault(self.lap, self.table.policy(page)) } else { 0 };
        if clean {
            // The reference passes from one record to the other.
            let _ = self.table.set(page, Record::Clean(slot));
        } else {
            let _ = self.table.set(page, Record::None);
            shared.pool.release(slot);
        }
        self.table.set_policy(page, heat);
    }
}
