//! Eviction: one batch of cold pages of one space, from the app to the pool.
//!
//! 1. *Choose*: the clock's hand, PAGEMAP_SCAN, records and heat. No lock, then briefly the core's.
//! 2. *Reserve*: slots, contiguous. No lock.
//! 3. *Plan*: records are checked again, and mappings probed. The core's lock, some 20 us.
//! 4. *Move*: `UFFDIO_MOVE` by the stub. Records flip to the new slots, which are "in flight". No
//!    lock for the calls; who takes the core's between two of them finds the records of all that
//!    has moved flipped ([`guard`](crate::space::SpaceGuard)).
//! 5. *Settle*: bytes are read from staging. All-zero pages become *none*, pages equal to their
//!    clean copy go back to that slot. No lock, then briefly the core's.
//! 6. *Write*: the rest, to all replicas. No lock. Faults on these pages are parked, and served
//!    from staging when a donor takes long.
//! 7. *Release*: slots leave "in flight", and parked faults are served. Staging is emptied after
//!    some batches. No lock.
//!
//! While pages move, nobody reads a change from the userfaultfd: an unread FORK, UNMAP, REMAP or
//! REMOVE makes MOVE answer EAGAIN instead of touching an address that has become something else.
//! If all replicas of a batch fail, its bytes go back into the app.

use crate::events::settle_changes;
use crate::evict::choice::{choose, recheck};
use crate::evict::clock::{Clock, Victims};
use crate::evict::eviction_blocked::Cause;
use crate::evict::move_batch::{Made, MoveBatch, Moved};
use crate::evict::outcome::Outcome;
use crate::evict::thread_exit;
use crate::fault::{Fault, Workers, put_back};
use crate::inject::stub::{CallError, Gate, Hurry, Stub};
use crate::kernel::Mm;
use crate::page::PageIdx;
use crate::recovery::rollback;
use crate::space::{Evicting, Record, Registry, Shared, Space, Table, Victim, prepare};
use annex_host::failpoint::failpoint;
use annex_host::priority::Urgent;
use annex_host::repeated;
use annex_pool::{Buf, Busy, Done, Lane, Part, SlotRun};
use annex_shared::api::AppState;
use annex_shared::ids::SlotIdx;
use annex_shared::page::{PAGE_SIZE, checksum, is_zero};
use nix::poll::{PollFd, PollFlags, poll};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Pages one batch moves at most.
pub const BATCH: usize = 512;
/// Faults wait this long for the write of their pages, and are then served from what was to be
/// written.
const SLOW_WRITE: Duration = Duration::from_millis(5);
/// A space that somebody else works on is passed after this long.
const BUSY: Duration = Duration::from_millis(10);
/// Pages of a span below which a batch is scattered, and from which on it is not.
const SHORT: usize = 4;
const LONG: usize = 12;
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

    fn attempt(&mut self, space: &Arc<Space>, want: usize) -> Outcome {
        let shared = self.shared.clone();
        let watched = &shared.watchdog.evictors[self.number];
        watched.begin("waiting for a stub");
        // Another evictor may be kept by its program, for as long as that is frozen.
        let Some(mut evicting) = space.evicting.try_lock_for(BUSY) else { return Outcome::NoAnswer };
        let Evicting { stub: Some(stub), clock, exits } = &mut *evicting else { return Outcome::Dead };
        space.core().release.take().iter().for_each(Gate::ring);
        if let Err(outcome) = ready(stub, clock) {
            return outcome;
        }
        let Some((pid, task)) = space.pid().zip(space.task()) else { return Outcome::Dead };
        if self.has_suspects(space) {
            return Outcome::Again;
        }
        watched.begin("choosing pages");
        let victims = match choose(clock, space, task, stub, want.min(BATCH), &shared) {
            Ok(victims) => victims,
            Err(outcome) => return outcome,
        };
        watched.begin("looking at threads");
        if let Some(mm) = space.mm() {
            space.core().keep(exits.pages(pid, &mm, stub.scratch_at()));
        }
        self.bring_back_wanted(space);
        let mut runs = Vec::new();
        let reserved = self.shared.pool.reserve(victims.pages.len(), &mut runs);
        if reserved < victims.pages.len() {
            // Also when there is room for some: what the program frees meanwhile, or pages give up
            // that are resident, is no room that lasts.
            space.app.eviction_blocked.met(Cause::PoolFull);
        }
        if reserved == 0 {
            return match drop_clean_copies(space, &self.shared, BATCH) {
                0 => Outcome::PoolFull,
                _ => Outcome::Again,
            };
        }
        self.shared.in_flight.begin(&runs);
        watched.begin("moving pages");
        let (outcome, busy) = match self.move_out(space, task, (stub, clock), &victims, &runs) {
            Ok((moved, busy)) => {
                let n = moved.len() as u64;
                space.app.add_resident(-(n as i64));
                space.app.counters.evicted.fetch_add(n, Relaxed);
                (self.carry(space, stub, moved), busy)
            }
            Err(outcome) => {
                if space.core().table.intent().is_some() {
                    self.roll_back(space);
                }
                (outcome, Vec::new())
            }
        };
        watched.begin("ending a batch");
        let parked = self.shared.in_flight.settle(&runs);
        self.workers.serve(parked);
        failpoint("batch-written");
        space.core().table.conclude();
        failpoint("batch-concluded");
        // Not before: a mapping may have moved to where such a page was, with one that left in this
        // batch, and whoever touches that waits for the batch to end.
        watched.begin("unsharing pages that a fork left shared");
        let is_unshared = clock.unshare(stub, &busy);
        watched.begin("ending a batch");
        if stub.is_used_up() {
            let release = stub.prepare_release();
            match space.stub_shares_cpu.load(Relaxed) {
                // Rung for where the stub is, after the next fault: that interrupts no CPU.
                true => space.core().release = Some(release),
                false => release.ring(),
            }
        }
        // The references that `reserve` took; every page that stayed evicted has one of its own.
        for run in &runs {
            run.slots().for_each(|slot| self.shared.pool.release(slot));
        }
        if is_unshared && outcome == Outcome::Again { Outcome::Unshared } else { outcome }
    }

    /// Has the victims moved into staging, and their records flipped. Afterwards each moved page's
    /// record holds its own reference. With the pages that stayed where the kernel said EBUSY.
    fn move_out(
        &mut self,
        space: &Arc<Space>,
        task: i32,
        (stub, clock): (&mut Stub, &mut Clock),
        victims: &Victims,
        runs: &[SlotRun],
    ) -> Result<(Vec<Moved>, Vec<PageIdx>), Outcome> {
        let reserved = runs.iter().map(|r| r.count as usize).sum();
        let _urgent = Urgent::begin();
        let mut core = space.core();
        if core.frozen || !core.suspects.is_empty() || space.is_dead() || space.app.state() == AppState::Detaching {
            return Err(Outcome::NothingCold);
        }
        if !settle_changes(space, &mut core, &self.shared) {
            return Err(Outcome::Again);
        }
        let victims = recheck(&core, victims, reserved);
        if victims.pages.is_empty() {
            return Err(Outcome::Again);
        }
        prepare(space, &mut core, task, clock, &victims)?;
        match victims.pages.len() / victims.spans.len() {
            ..SHORT => space.is_scattered.store(true, Relaxed),
            LONG.. => space.is_scattered.store(false, Relaxed),
            _ => {}
        }
        let pagemap = clock.take_pagemap(&space.identity).map_err(|_| Outcome::Dead)?;
        let bytes: Vec<(u64, u64)> = victims.spans.iter().map(|(p, n)| (p.addr(), n * PAGE_SIZE as u64)).collect();
        let at = stub.take_part(victims.covered, victims.pages.len());
        let plan = plan(&victims, runs, at);
        failpoint("batch-planned");
        core.table.intend(plan.iter().map(|(victim, _)| *victim));
        stub.prepare_moves(&bytes, at);
        let in_chunks = std::mem::take(&mut core.faulted) && space.stub_shares_cpu.load(Relaxed);
        core.moves = Some(Box::new(MoveBatch::new(&self.shared.pool, (stub, pagemap), victims.spans, plan, in_chunks)));
        drop(core);
        failpoint("moves-begin");
        let answer = if in_chunks {
            stub.await_chunks(|| {
                let core = space.core_within(BUSY);
                core.and_then(|mut core| core.moves.as_mut().map(|moves| moves.hurry())).unwrap_or(Hurry::AtAChunk)
            })
        } else {
            stub.make_moves(bytes.len())
        };
        let (mut core, moves) = space.core_quiesced();
        let Some(mut moves) = moves else { return Err(Outcome::Dead) };
        match answer {
            Ok(()) => {
                failpoint("batch-moved");
                clock.last_answer = Some(Instant::now());
                moves.settle(&mut space.records(&mut core));
            }
            // Killed in the middle of it: whatever it has moved must be in the records before a
            // message is read.
            Err(_) => moves.settle_interrupted(&mut space.records(&mut core)),
        }
        let Made { moved, busy, rest, interrupted, soiled, pagemap } = moves.end();
        clock.resume(pagemap, rest);
        if soiled {
            stub.is_soiled();
        }
        if interrupted {
            drop(core);
            self.release_copies(&moved);
            return Err(Outcome::Dead);
        }
        core.table.intent_moved();
        Ok((moved, busy))
    }

    /// From staging to the pool.
    fn carry(&mut self, space: &Arc<Space>, stub: &Stub, moved: Vec<Moved>) -> Outcome {
        let n = moved.len();
        if n == 0 {
            return Outcome::Again;
        }
        let Some(mm) = space.mm() else {
            self.release_copies(&moved);
            return self.give_up(space, &moved, "the address space of its evicted pages is not open");
        };
        let Some(mut buf) = self.lane.alloc(n) else {
            self.release_copies(&moved);
            // The lane is the evictor's own and idle between batches.
            return self.give_up(space, &moved, "annexd has no transfer buffer left");
        };
        let mut offsets: Vec<(u64, u64)> = Vec::new();
        for m in &moved {
            let (offset, page) = (m.at * PAGE_SIZE as u64, PAGE_SIZE as u64);
            match offsets.last_mut() {
                Some((o, l)) if *o + *l == offset => *l += page,
                _ => offsets.push((offset, page)),
            }
        }
        self.shared.watchdog.evictors[self.number].begin("reading pages");
        if let Err(error) = stub.read_staging(&mm, &offsets, self.lane.bytes_mut(&mut buf)) {
            self.lane.free(buf);
            self.release_copies(&moved);
            // The kernel says that the address space is gone: nobody misses what it had, except a
            // child that was forked since the pages moved.
            let missed = moved.iter().any(|m| self.shared.pool.references(m.slot) > 2);
            return match space.uffd.is_dead() && !missed {
                true => Outcome::Dead,
                false => self.give_up(space, &moved, &format!("evicted pages could not be read back: {error}")),
            };
        }
        let moved = self.settle(space, moved, &mut buf);
        let parts = parts(&moved);
        if parts.is_empty() {
            self.lane.free(buf);
            return Outcome::Evicted(n as u64);
        }
        let (buf, written) = self.write(parts, buf, (space, &mm, stub, &moved));
        let outcome = match written {
            Ok(()) => Outcome::Evicted(n as u64),
            Err(()) => {
                let ours = moved.iter().enumerate().map(|(i, m)| (m.slot, i)).collect();
                let workers = &self.workers;
                rollback::give_back(
                    &self.registry,
                    &self.shared,
                    &space.app,
                    &ours,
                    self.lane.bytes(&buf),
                    &|faults| {
                        workers.serve(faults);
                    },
                );
                Outcome::WriteFailed
            }
        };
        self.lane.free(buf);
        outcome
    }

    /// The references that came over from the moved pages' old records.
    fn release_copies(&self, moved: &[Moved]) {
        moved.iter().filter_map(|m| m.copy).for_each(|copy| self.shared.pool.release(copy));
    }

    /// Finds pages that need no write, and gathers the others at the start of the buffer and of the
    /// reserved slots: what is left is one write or few. Returns the pages to write; page i of the
    /// buffer is theirs in order.
    fn settle(&mut self, space: &Space, moved: Vec<Moved>, buf: &mut Buf) -> Vec<Moved> {
        let bytes = self.lane.bytes_mut(buf);
        let pool = &self.shared.pool;
        let page_at = |i: usize| i * PAGE_SIZE..(i + 1) * PAGE_SIZE;
        let verdicts: Vec<(bool, bool)> = moved
            .iter()
            .enumerate()
            .map(|(i, m)| {
                let page = &bytes[page_at(i)];
                let same = m.unwritten && m.copy.is_some_and(|copy| pool.checksum(copy) == checksum(page));
                (is_zero(page), same)
            })
            .collect();
        let blocks: Vec<usize> = moved
            .iter()
            .enumerate()
            .filter(|(i, m)| thread_exit::is_control_block_in(m.page, &bytes[page_at(*i)]))
            .map(|(i, _)| i)
            .collect();
        let mut keep: Vec<Moved> = Vec::with_capacity(moved.len());
        let slots: Vec<SlotIdx> = moved.iter().map(|m| m.slot).collect();
        // Slots that their pages have no more use for, in order.
        let mut spare = std::collections::VecDeque::new();
        let mut core = space.core();
        for (i, (mut m, (zero, same))) in moved.into_iter().zip(verdicts).enumerate() {
            // Not so if it was remapped, or inherited by a fork's child (a third reference beside
            // the record's and the reservation's): then its slot itself must hold the bytes.
            let alone = core.table.record(m.page) == Record::Evicted(m.slot) && pool.references(m.slot) == 2;
            if blocks.contains(&i) {
                core.pins.insert(m.page);
                if alone && put_back(space, &mut core, m.page, &bytes[page_at(i)], m.slot, &self.shared) {
                    m.copy.take().into_iter().for_each(|copy| pool.release(copy));
                    spare.push_back(slots[i]);
                    continue;
                }
            }
            if let Some(copy) = m.copy.take() {
                if same && alone {
                    // The reference taken over from the old record goes back to it.
                    let _ = core.table.set(m.page, Record::Evicted(copy));
                    pool.release(m.slot);
                    spare.push_back(slots[i]);
                    space.app.counters.clean.fetch_add(1, Relaxed);
                    continue;
                }
                pool.release(copy);
            }
            if zero && alone {
                let _ = core.table.set(m.page, Record::None);
                pool.release(m.slot);
                spare.push_back(slots[i]);
                space.app.counters.zero_pages.fetch_add(1, Relaxed);
                continue;
            }
            if alone && let Some(better) = spare.pop_front() {
                pool.retain(better);
                core.table.intend_better(m.nth, better);
                failpoint("better-noted");
                let _ = core.table.set(m.page, Record::Evicted(better));
                pool.release(m.slot);
                spare.push_back(std::mem::replace(&mut m.slot, better));
            }
            bytes.copy_within(page_at(i), keep.len() * PAGE_SIZE);
            keep.push(m);
        }
        keep
    }

    /// Writes it all. While that takes long, whoever has met one of these pages is served by
    /// [`Evictor::serve_from_staging`].
    fn write(
        &mut self,
        parts: Vec<Part>,
        mut buf: Buf,
        (space, mm, stub, moved): (&Space, &Mm, &Stub, &[Moved]),
    ) -> (Buf, Result<(), ()>) {
        self.shared.watchdog.evictors[self.number].begin("writing pages to donors");
        let mut done: Vec<Done> = Vec::with_capacity(1);
        loop {
            match self.lane.write(&parts, buf, 0) {
                Ok(()) => break,
                Err(Busy(back)) => buf = back,
            }
            self.lane.submit();
            self.lane.poll(&mut done);
        }
        self.lane.submit();
        let slow = Instant::now() + SLOW_WRITE;
        loop {
            self.lane.poll(&mut done);
            if let Some(Done { buf, result, .. }) = done.pop() {
                if let Err(error) = result {
                    let name = &space.app.name;
                    repeated!(WARN, "failed to evict a batch" of name, app = name, "failed to evict a batch: {error}");
                }
                return (buf, result.map_err(drop));
            }
            if Instant::now() > slow {
                // No fault is delayed for what this brings.
                space.app.yielded(0);
                let parked = self.shared.in_flight.take_parked();
                let unserved = |(space, fault): &_| !self.serve_from_staging(mm, stub, moved, space, *fault);
                // A worker reads what its space has to say, and parks the fault again.
                self.workers.serve(parked.into_iter().filter(unserved).collect());
            }
            if !self.lane.arm() {
                let mut fds = [PollFd::new(self.lane.event_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, SLOW_WRITE.as_millis() as u8);
            }
        }
    }

    /// Gives a page of the batch back to whoever waits for it. Its slot is written all the same,
    /// and nobody's afterwards. False: not possible (now).
    fn serve_from_staging(&self, mm: &Mm, stub: &Stub, moved: &[Moved], space: &Arc<Space>, fault: Fault) -> bool {
        let shared = &self.shared;
        let mut core = space.core();
        if space.is_dead() || !settle_changes(space, &mut core, shared) {
            return space.is_dead();
        }
        let Record::Evicted(slot) = core.table.record(fault.page) else { return false };
        let Some(at) = moved.iter().find(|m| m.slot == slot).map(|m| m.at) else { return false };
        let mut page = [0u8; PAGE_SIZE];
        let is_read = stub.read_staging(mm, &[(at * PAGE_SIZE as u64, PAGE_SIZE as u64)], &mut page).is_ok();
        if !is_read || checksum(&page) != shared.pool.checksum(slot) {
            return false;
        }
        let is_back = put_back(space, &mut core, fault.page, &page, slot, shared);
        if is_back {
            space.app.counters.major.fetch_add(1, Relaxed);
            space.app.latency.add(fault.since.elapsed());
        }
        is_back
    }

    /// Pages have moved that can't be written: no record may name a slot that holds nothing.
    /// Whoever touches one of them gets SIGBUS, and the app is stopped.
    fn give_up(&self, space: &Space, moved: &[Moved], why: &str) -> Outcome {
        rollback::condemn(&self.registry, &self.shared, &space.app, &moved.iter().map(|m| m.slot).collect());
        space.app.stop(why);
        Outcome::Dead
    }

    /// An eviction that was cut short: what is in staging goes back into the app.
    fn roll_back(&self, space: &Arc<Space>) {
        let rolled_back =
            rollback::bring_back(&self.registry, &self.shared, space, &|faults| self.workers.serve(faults));
        if let Err(error) = rolled_back {
            let slots = space.core().table.intent().map(|intent| intent.slots()).unwrap_or_default();
            rollback::condemn(&self.registry, &self.shared, &space.app, &slots.into_keys().collect());
            space.app.stop(&format!("an eviction was cut short, and {error}"));
        }
    }

    /// What a look at the mappings found that is not to stay evicted.
    fn bring_back_wanted(&self, space: &Arc<Space>) {
        let wanted = space.core().take_wanted();
        self.ask_for(space, &wanted);
    }

    fn ask_for(&self, space: &Arc<Space>, pages: &[PageIdx]) {
        self.workers.serve(pages.iter().map(|page| (space.clone(), Fault::suspected(*page))).collect());
    }

    /// Pages of which it is not known whether they are there must be asked for before anything
    /// moves.
    fn has_suspects(&self, space: &Arc<Space>) -> bool {
        let suspects: Vec<PageIdx> = space.core().suspects.iter().copied().collect();
        self.ask_for(space, &suspects);
        !suspects.is_empty()
    }
}

/// Each victim's slot and its place in staging, where the spans lie one after the other from page
/// `at` on; and whether it seems unwritten.
fn plan(victims: &Victims, runs: &[SlotRun], mut at: u64) -> Vec<(Victim, bool)> {
    let mut slots = runs.iter().flat_map(|r| r.slots());
    let mut plan = Vec::with_capacity(victims.pages.len());
    let mut spans = victims.spans.iter().peekable();
    for (page, unwritten) in &victims.pages {
        while let Some((_, len)) = spans.next_if(|(first, len)| *page >= first.plus(*len)) {
            at += len;
        }
        let (Some((first, _)), Some(slot)) = (spans.peek(), slots.next()) else { break };
        let staged_at = at + page.0 - first.0;
        plan.push((Victim { page: *page, slot, before: slot, staged_at, settled: false }, *unwritten));
    }
    plan
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

/// The runs to write: pages whose slots and places in the buffer are consecutive go together.
fn parts(moved: &[Moved]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (at, m) in moved.iter().enumerate() {
        match parts.last_mut() {
            Some(p) if p.run.first.0 + p.run.count == m.slot.0 && !starts_extent(m.slot) => p.run.count += 1,
            _ => parts.push(Part { run: SlotRun { first: m.slot, count: 1 }, at }),
        }
    }
    parts
}

/// Slots of different extents are not one run, even if their numbers are consecutive. The smallest
/// extent is 2 MiB.
fn starts_extent(slot: SlotIdx) -> bool {
    slot.0.is_multiple_of(512)
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
