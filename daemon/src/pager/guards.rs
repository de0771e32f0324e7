//! Guard regions (MADV_GUARD_INSTALL, Linux 6.13): pages whose touch raises SIGSEGV, without a mapping of their own. What was there is dropped; after
//! MADV_GUARD_REMOVE there are zeros.
//!
//! No message tells of either, and UFFDIO_COPY overwrites a guard as if nothing were there (Linux 6.18). PAGEMAP_SCAN sees guards (since 6.15). So
//!
//! - each look at a space's mappings drops the records of guarded pages,
//! - a mapping in which that happened is not evicted from any more, and what is evicted there comes back: the program uses guards over memory that it has
//!   used, and a guard that comes and goes between two looks leaves no trace,
//! - from then on, and always when an app is let go, pages are installed only where no guard is.
//!
//! What is missed: the first guard of a space, if it is removed again before the next look (half a second, while pages are evicted), or a page is
//! prefetched to its place until then.

use super::scan::Pagemap;
use super::space::{Core, Space, Surroundings};
use super::table::{PageIdx, Record};
use super::window::Range;
use annex_shared::ids::SlotIdx;

/// Pages of guarded mappings that one look brings back.
const AT_ONCE: usize = 1024;

/// What a space has for its guards, from the first on.
pub struct Guards {
    pagemap: Pagemap,
    /// Evicted pages that are to come back.
    wanted: Vec<PageIdx>,
}

impl Core {
    /// Looks for guards in all regions that pages were evicted from.
    pub fn look_for_guards(&mut self, space: &Space, around: &Surroundings) {
        let Some(pid) = space.pid().filter(|_| self.table.evicted() > 0) else { return };
        let Some(mut pagemap) = self.guards.take().map(|g| g.pagemap).or_else(|| Pagemap::open(pid).ok()) else {
            return;
        };
        let registered: Vec<_> = self.regions.iter().filter(|r| r.registered).map(|r| (r.start, r.end)).collect();
        for (start, end) in registered {
            let range = (PageIdx::of(start), PageIdx::of(end));
            if self.drop_guarded(range, &mut pagemap, around) > 0 {
                tracing::info!(
                    pid,
                    "{start:#x}-{end:#x} stays resident: the program puts guards over memory that it has used"
                );
                space.app.note("memory in which the program puts guards stays resident");
                self.regions.guarded(start);
            }
        }
        let guarded: Vec<_> = self.regions.iter().filter(|r| r.guarded).map(|r| (r.start, r.end)).collect();
        if guarded.is_empty() {
            return;
        }
        let mut wanted = Vec::new();
        for (start, end) in guarded {
            self.table.walk(PageIdx::of(start), PageIdx::of(end), |page, record| {
                if matches!(record, Record::Evicted(_)) && wanted.len() < AT_ONCE {
                    wanted.push(page);
                }
            });
        }
        self.guards = Some(Guards { pagemap, wanted });
    }

    /// Evicted pages that are to come back because guards come and go around them.
    pub fn take_wanted(&mut self) -> Vec<PageIdx> {
        self.guards.as_mut().map(|g| std::mem::take(&mut g.wanted)).unwrap_or_default()
    }

    /// Before pages are installed in the range, in a space that has had guards.
    pub fn heed_guards(&mut self, range: Range, around: &Surroundings) {
        if let Some(mut guards) = self.guards.take() {
            self.drop_guarded(range, &mut guards.pagemap, around);
            self.guards = Some(guards);
        }
    }

    /// Drops the records of guarded pages in the range; how many of them had been evicted at some time.
    pub fn drop_guarded(&mut self, (from, to): Range, pagemap: &mut Pagemap, around: &Surroundings) -> usize {
        let (mut runs, mut at) = (Vec::new(), from.addr());
        while at < to.addr() {
            // A kernel that knows no guards says so; one before 6.15 has them and does not show them.
            match pagemap.guarded(at, to.addr(), &mut runs) {
                Ok(next) if next > at => at = next,
                _ => break,
            }
        }
        let (mut used, mut slots) = (0, Vec::<SlotIdx>::new());
        for run in runs {
            self.table.walk(run.first, run.end(), |_, record| used += usize::from(record.slot().is_some()));
            self.table.clear(run.first, run.end(), |slot| slots.push(slot));
            let doubtful: Vec<PageIdx> = self.suspects.range(run.first..run.end()).copied().collect();
            self.suspects.retain(|page| !doubtful.contains(page));
            if !doubtful.is_empty() {
                self.note_suspects();
            }
        }
        slots.into_iter().for_each(|slot| around.pool.release(slot));
        used
    }
}
