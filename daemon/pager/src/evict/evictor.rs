//! An evictor, and what it does before a batch: sees that the space can be evicted from, chooses
//! pages, and reserves slots. Then the batch goes through its [`pipeline`].
//!
//! 1. *Ready*: the stub answers, staging is empty, and no page is in question.
//! 2. *Choose*: the clock's hand, PAGEMAP_SCAN, records and heat. No lock, then briefly the core's.
//! 3. *Reserve*: slots, contiguous. No lock.
//!
//! Until slots are reserved there is nothing to give back.

use crate::evict::choice::choose;
use crate::evict::clock::Clock;
use crate::evict::eviction_blocked::Cause;
use crate::evict::outcome::Outcome;
use crate::evict::pipeline;
use crate::evict::stages::{Batch, Reserved};
use crate::fault::{Fault, Workers};
use crate::inject::stub::{CallError, Gate, Stub};
use crate::page::PageIdx;
use crate::space::{Evicting, Record, Registry, Shared, Space, Table};
use annex_pool::Lane;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages one batch moves at most.
pub const BATCH: usize = 512;
/// A space that somebody else works on is passed after this long.
const BUSY: Duration = Duration::from_millis(10);
/// A stub that has not answered for this long is asked before it is trusted with a batch.
const QUIET: Duration = Duration::from_secs(1);

pub struct Evictor {
    /// Whose steps are written down where.
    pub number: usize,
    pub lane: Lane,
    pub shared: Arc<Shared>,
    pub registry: Arc<Registry>,
    pub workers: Arc<Workers>,
}

impl Evictor {
    /// Evicts up to `want` pages of the space.
    pub fn batch(&mut self, space: &Arc<Space>, want: usize) -> Outcome {
        match self.attempt(space, want) {
            Outcome::Unshared => self.attempt(space, want),
            outcome => outcome,
        }
    }

    /// Gives up some of the space's copies in the pool of pages that are resident. How many; none
    /// if somebody else works on the space, who may be kept by its program.
    pub fn give_copies(&self, space: &Arc<Space>) -> usize {
        let Some(_evicting) = space.evicting.try_lock() else { return 0 };
        drop_clean_copies(space, &self.shared, BATCH)
    }

    fn attempt(&mut self, space: &Arc<Space>, want: usize) -> Outcome {
        let Evictor { number, lane, shared, registry, workers } = self;
        let watched = &shared.watchdog.evictors[*number];
        watched.begin("waiting for a stub");
        // Another evictor may be kept by its program, for as long as that is frozen.
        let Some(mut evicting) = space.evicting.try_lock_for(BUSY) else { return Outcome::NoAnswer };
        let Evicting { stub: Some(stub), clock, exits } = &mut *evicting else { return Outcome::Dead };
        space.core().release.take().iter().for_each(Gate::ring);
        if let Err(outcome) = ready(stub, clock) {
            return outcome;
        }
        let Some((pid, task)) = space.pid().zip(space.task()) else { return Outcome::Dead };
        if has_suspects(space, workers) {
            return Outcome::Again;
        }
        watched.begin("choosing pages");
        let victims = match choose(clock, space, task, stub, want.min(BATCH), shared) {
            Ok(victims) => victims,
            Err(outcome) => return outcome,
        };
        watched.begin("looking at threads");
        if let Some(mm) = space.mm() {
            let spaceless = || {
                let members = space.app.members.lock();
                members.iter().filter(|member| member.space.is_none()).map(|member| member.pid).collect()
            };
            let pids = space.mark().map_or_else(|| vec![pid], |mark| exits.processes((pid, mark), spaceless));
            let pages = exits.pages(&pids, &mm, (stub.pid(), stub.scratch_at()));
            space.core().keep(pages);
        }
        bring_back_wanted(space, workers);
        let slots = match reserve(space, shared, victims.pages.len()) {
            Ok(slots) => slots,
            Err(outcome) => return outcome,
        };
        let batch = Batch { space, task, stub, clock, lane, shared, registry, workers, watched };
        pipeline::evict(batch, &victims, slots)
    }
}

/// Collects the stub's last answer, and makes sure it answers at all.
fn ready(stub: &mut Stub, clock: &mut Clock) -> Result<(), Outcome> {
    let patience = Duration::from_millis(50);
    let quiet = clock.last_answer.is_none_or(|t| t.elapsed() > QUIET);
    let mut answer = if quiet { stub.ping(patience) } else { stub.wait(patience) };
    if answer.is_ok() && stub.is_used_up() {
        // Another annexd's.
        stub.prepare_release().ring();
        answer = stub.wait(patience);
    }
    match answer {
        Ok(()) => {
            clock.last_answer = Some(Instant::now());
            Ok(())
        }
        Err(CallError::Dead) => Err(Outcome::Dead),
        Err(CallError::NoAnswer) => Err(Outcome::NoAnswer),
    }
}

/// Pages of which it is not known whether they are there must be asked for before anything moves.
fn has_suspects(space: &Arc<Space>, workers: &Workers) -> bool {
    let suspects: Vec<PageIdx> = space.core().suspects.iter().copied().collect();
    ask_for(space, &suspects, workers);
    !suspects.is_empty()
}

/// What a look at the mappings found that is not to stay evicted.
fn bring_back_wanted(space: &Arc<Space>, workers: &Workers) {
    let wanted = space.core().take_wanted();
    ask_for(space, &wanted, workers);
}

fn ask_for(space: &Arc<Space>, pages: &[PageIdx], workers: &Workers) {
    workers.serve(pages.iter().map(|page| (space.clone(), Fault::suspected(*page))).collect());
}

/// Slots for so many pages, or for some of them.
fn reserve(space: &Space, shared: &Shared, pages: usize) -> Result<Reserved, Outcome> {
    let mut runs = Vec::new();
    let reserved = shared.pool.reserve(pages, &mut runs);
    if reserved < pages {
        // Also when there is room for some: what the program frees meanwhile, or pages give up that
        // are resident, is no room that lasts.
        space.app.eviction_blocked.met(Cause::PoolFull);
    }
    if reserved == 0 {
        return Err(match drop_clean_copies(space, shared, BATCH) {
            0 => Outcome::PoolFull,
            _ => Outcome::Again,
        });
    }
    Ok(Reserved::begin(runs, shared))
}

/// Frees pool copies of resident pages: room for pages that have none.
fn drop_clean_copies(space: &Space, shared: &Shared, most: usize) -> usize {
    let mut core = space.core();
    let mut clean = Vec::new();
    let (start, end) = Table::everything();
    core.table.walk(start, end, |page, record| {
        if let Record::Clean(slot) = record
            && clean.len() < most
        {
            clean.push((page, slot));
        }
    });
    for (page, slot) in &clean {
        let _ = core.table.set(*page, Record::None);
        shared.pool.release(*slot);
    }
    clean.len()
}
