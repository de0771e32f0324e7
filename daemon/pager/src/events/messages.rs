//! Reading what a userfaultfd has to say: changes are applied at once, faults are gathered.

use crate::events::changes::change;
use crate::fault::Fault;
use crate::kernel::uffd::Event;
use crate::page::PageIdx;
use crate::space::{Shared, Space, SpaceGuard};
use annex_shared::page::PAGE_SIZE;
use std::sync::Arc;
use std::time::Instant;

/// Reads all messages (while a stub moves pages: only faults), applies the changes among them,
/// and appends the faults to `faults`; they have waited at least since `since`.
pub fn read_messages(
    space: &Arc<Space>,
    core: &mut SpaceGuard<'_>,
    shared: &Shared,
    since: Instant,
    faults: &mut Vec<Fault>,
) {
    // Small reads keep two workers busy on one space; a change makes it read on to the end.
    const FEW: usize = 8;
    let mut most = core.readable();
    while most > 0 {
        let few = FEW.min(most);
        let journal = core.table.journal();
        // SAFETY: the journal has room for JOURNAL_MESSAGES.
        let read = unsafe { space.uffd.read(journal, few) };
        let count = match read {
            Ok(0) => break,
            Ok(count) => count,
            Err(errno) => {
                tracing::debug!(%errno, space = space.id.0, "the userfaultfd ended");
                space.set_dead();
                break;
            }
        };
        most -= count;
        for i in 0..count {
            // SAFETY: `count` messages were just read into the journal.
            let message = unsafe { journal.add(i).read() };
            match message.event() {
                Event::Fault { addr, write, thread } => {
                    let evictors = shared.watchdog.are_evictors(thread);
                    core.faults.push(Fault { page: PageIdx::of(addr), write, thread, since, evictors });
                }
                event => {
                    core.quiesce_for_change();
                    most = core.readable();
                    change(space, core, i, event, shared);
                }
            }
        }
        core.table.clear_journal(count);
        if count < few {
            break;
        }
    }
    faults.append(&mut core.faults);
}

/// Reads all messages, so that the kernel answers questions. Faults come again.
pub fn read_and_wake(space: &Arc<Space>, core: &mut SpaceGuard<'_>, shared: &Shared) {
    let mut faults = Vec::new();
    read_messages(space, core, shared, Instant::now(), &mut faults);
    faults.iter().for_each(|fault| space.uffd.wake(fault.page.addr(), PAGE_SIZE as u64));
}
