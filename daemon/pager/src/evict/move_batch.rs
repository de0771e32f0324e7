//! The moves of one eviction while they are made: which pages go where, how many of the stub's
//! calls are over, and what their records were.
//!
//! The stub makes a call for each span, without the space's lock. Whoever takes that lock
//! meanwhile shuts the stub's gate, and then *settles*: makes the records of what has moved say so
//! ([`guard`](crate::space::SpaceGuard)). So to everybody who has the lock it is as if a batch
//! ended with each call.

use crate::inject::stub::{Gate, Hurry, STAGING, Stub};
use crate::kernel::Pagemap;
use crate::page::{PageIdx, Range};
use crate::recovery::staged;
use crate::recovery::staged::SpaceRecords;
use crate::space::{Record, Victim};
use annex_host::failpoint::failpoint;
use annex_pool::Pool;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use nix::errno::Errno;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// Calls of a chunk: a fault that comes while they are made waits for them, some 2 us each.
const CHUNK: usize = 8;

/// One moved page.
pub struct MovedPage {
    pub page: PageIdx,
    /// Its number in the intent.
    pub nth: usize,
    /// Its place in staging, in pages.
    pub at: u64,
    pub slot: SlotIdx,
    /// The copy the pool had of it, with our reference.
    pub copy: Option<SlotIdx>,
    pub unwritten: bool,
}

pub struct MoveBatch {
    pub gate: Gate,
    pool: Arc<Pool>,
    pagemap: Pagemap,
    staging: u64,
    /// First page and length of what each call moves.
    spans: Vec<(PageIdx, u64)>,
    /// The pages in them that are to go, and whether each seems unwritten since its pool copy was
    /// made.
    plan: Vec<(Victim, bool)>,
    /// Calls that the stub has been rung for.
    rung: usize,
    /// Whoever serves faults rings for some more each time.
    in_chunks: bool,
    /// Calls and pages that are settled.
    calls: usize,
    pages: usize,
    moved: Vec<MovedPage>,
    busy: Vec<PageIdx>,
    /// The plan is not true any more: no further call may begin.
    given_up: bool,
    /// The stub was killed, or staging can't be read: staging told what moved, as after a crash.
    interrupted: bool,
    /// Something is in staging that was not moved there.
    soiled: bool,
}

/// What came of them.
pub struct Made {
    pub moved: Vec<MovedPage>,
    /// Pages that stayed because the kernel said EBUSY.
    pub busy: Vec<PageIdx>,
    /// The first page whose call was never made.
    pub rest: Option<PageIdx>,
    /// Records were made right from staging as after a crash; nothing else is known of what moved.
    pub interrupted: bool,
    /// Staging has pages that no move has brought.
    pub soiled: bool,
    pub pagemap: Pagemap,
}

impl MoveBatch {
    pub fn new(
        pool: &Arc<Pool>,
        (stub, pagemap): (&Stub, Pagemap),
        spans: Vec<(PageIdx, u64)>,
        plan: Vec<(Victim, bool)>,
        in_chunks: bool,
    ) -> MoveBatch {
        let moved = Vec::with_capacity(plan.len());
        let busy = Vec::with_capacity(plan.len());
        let (gate, staging, pool) = (stub.gate(), stub.staging(), pool.clone());
        let rung = if in_chunks { 0 } else { spans.len() };
        let (calls, pages) = (0, 0);
        let (given_up, interrupted, soiled) = (false, false, false);
        MoveBatch {
            gate,
            pool,
            pagemap,
            staging,
            spans,
            plan,
            rung,
            in_chunks,
            calls,
            pages,
            moved,
            busy,
            given_up,
            interrupted,
            soiled,
        }
    }

    /// A fault was served: it is time for a chunk of what is to be made in chunks. Whoever asks
    /// rings the gate's bell for it. None of them is answered: that would interrupt the evictor's
    /// CPU, which costs the one it comes from as much.
    pub fn next_chunk(&mut self) -> Option<Gate> {
        let is_time = self.in_chunks && self.is_to_be_rung();
        is_time.then(|| self.prepare_ring(CHUNK, false))
    }

    /// No chunks any more: all that is left is rung for, and will be answered.
    pub fn hurry(&mut self) -> Hurry {
        self.in_chunks = false;
        if self.gate.is_finished() {
            Hurry::Finished
        } else if self.is_to_be_rung() {
            self.prepare_ring(self.spans.len(), true).ring();
            Hurry::Rung
        } else {
            Hurry::AtAChunk
        }
    }

    fn prepare_ring(&mut self, most: usize, answers: bool) -> Gate {
        let calls = most.min(self.spans.len() - self.rung);
        self.gate.prepare_ring(self.rung, calls, answers);
        self.rung += calls;
        self.gate.clone()
    }

    /// Moves that are given up have their gate ended by whoever had the lock then
    /// ([`guard`](crate::space::SpaceGuard)).
    fn is_to_be_rung(&self) -> bool {
        self.is_between_chunks() && !self.gate.is_ended()
    }

    /// Whether the stub sleeps between two chunks.
    pub fn is_between_chunks(&self) -> bool {
        self.rung < self.spans.len() && self.gate.is_idle()
    }

    /// What was planned must not happen any more: the app has changed its mappings, or is being let
    /// go of.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether a span that is not settled goes on over some of these pages.
    pub fn still_covers(&self, (from, to): Range) -> bool {
        self.spans[self.calls..].iter().any(|(first, len)| *first < to && from < first.plus(*len))
    }

    /// Pages that are evicted come back: a span that goes on over them would take them along.
    pub fn make_way(&mut self, pages: Range) {
        self.given_up |= self.still_covers(pages);
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Makes records say what has moved by now. Nothing moves meanwhile: the gate is shut, or the
    /// stub has answered.
    pub fn settle(&mut self, records: &mut SpaceRecords<'_>) {
        let mut staged = None;
        while !self.interrupted && self.calls < self.spans.len() {
            let Some(answer) = self.gate.answer(self.calls) else { break };
            let error = (answer != 0).then(|| Errno::from_raw(-answer as i32));
            if error.is_some() && staged.is_none() {
                match staged::pages_present(&mut self.pagemap, (self.staging, STAGING)) {
                    Ok(places) => staged = Some(places),
                    Err(_) => return self.settle_interrupted(records),
                }
            }
            // A program that locks its memory or looks through all of it has the kernel put zeros
            // into staging: then a page is there and was not moved. It is where it was.
            let stayed = match error {
                Some(Errno::EEXIST) => match self.still_at_source() {
                    Ok(stayed) => stayed,
                    Err(_) => return self.settle_interrupted(records),
                },
                _ => HashSet::new(),
            };
            self.soiled |= !stayed.is_empty();
            if let Some(staged) = staged.as_mut() {
                staged.retain(|staged_at| !stayed.contains(staged_at));
            }
            self.settle_call(records, error, staged.as_ref());
        }
    }

    /// Places in staging of the present call's pages that are still where they were.
    fn still_at_source(&mut self) -> io::Result<HashSet<u64>> {
        let (first, len) = self.spans[self.calls];
        let present = staged::pages_present(&mut self.pagemap, (first.addr(), len * PAGE_SIZE as u64))?;
        let pages = self.plan[self.pages..].iter().take_while(|(victim, _)| victim.page < first.plus(len));
        let stayed = pages.filter(|(victim, _)| present.contains(&(victim.page.0 - first.0)));
        Ok(stayed.map(|(victim, _)| victim.staged_at).collect())
    }

    /// Staging is to tell what moved, by whatever way is left.
    pub fn settle_interrupted(&mut self, records: &mut SpaceRecords<'_>) {
        (self.interrupted, self.given_up) = (true, true);
        staged::settle_records(records, &self.pool);
    }

    fn settle_call(&mut self, records: &mut SpaceRecords<'_>, error: Option<Errno>, staged: Option<&HashSet<u64>>) {
        let (first, len) = self.spans[self.calls];
        let lap = records.lap;
        while let Some((victim, unwritten)) = self.plan.get(self.pages).filter(|(v, _)| v.page < first.plus(len)) {
            let Victim { page, slot, staged_at, .. } = *victim;
            let has_moved = error.is_none() || staged.is_some_and(|places| places.contains(&staged_at));
            if has_moved {
                self.pool.retain(slot);
                let before = records.table.set(page, Record::Evicted(slot)).unwrap_or(Record::None);
                records.table.set_policy(page, lap);
                let (nth, copy, unwritten) = (self.pages, before.slot(), *unwritten);
                self.moved.push(MovedPage { page, nth, at: staged_at, slot, copy, unwritten });
                failpoint("record-flipped");
            } else if error == Some(Errno::EBUSY) {
                self.busy.push(page);
            }
            records.table.intent_settled(self.pages);
            self.pages += 1;
        }
        match error {
            Some(Errno::EINVAL) => {
                if let Some(mapping) = records.regions.containing(first.addr()).map(|r| r.mapping) {
                    records.regions.mark(mapping, |r| r.refused = true);
                }
            }
            Some(Errno::EEXIST) => tracing::debug!("the kernel moved pages that it did not count"),
            _ => {}
        }
        self.calls += 1;
    }

    /// All is settled that ever will be.
    pub fn end(self) -> Made {
        let rest = self.plan.get(self.pages).map(|(victim, _)| victim.page);
        let (interrupted, soiled) = (self.interrupted, self.soiled);
        Made { moved: self.moved, busy: self.busy, rest, interrupted, soiled, pagemap: self.pagemap }
    }
}
