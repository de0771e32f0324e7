//! The way of a batch, from its plan until every replica has it. Read it from top to bottom: a
//! function for each step, which takes one [stage](super::stages) and makes the next one.
//!
//! 1. [`plan()`]: records are checked again, mappings are probed, and the intent is written down.
//!    The core's lock, some 20 us.
//! 2. [`move_out()`]: `UFFDIO_MOVE` by the stub. Records flip to the new slots, which are "in
//!    flight". No lock for the calls; who takes the core's between two of them finds the records of
//!    all that has moved flipped ([`guard`](crate::space::SpaceGuard)).
//! 3. [`read()`]: bytes are read from staging. All-zero pages become *none*, pages equal to their
//!    clean copy go back to that slot. No lock, then briefly the core's.
//! 4. [`write()`]: the rest, to all replicas. No lock. Faults on these pages are parked, and served
//!    from staging when a donor takes long.
//! 5. [`conclude()`]: slots leave "in flight", parked faults are served, and the intent is struck
//!    out. Staging is emptied after some batches. No lock.
//!
//! While pages move, nobody reads a change from the userfaultfd: an unread FORK, UNMAP, REMAP or
//! REMOVE makes MOVE answer EAGAIN instead of touching an address that has become something else.
//!
//! A step that can't be taken puts nothing right itself: [`rollback()`] does, for any stage.

use crate::events::settle_changes;
use crate::evict::choice::recheck;
use crate::evict::clock::Victims;
use crate::evict::move_batch::{Made, MoveBatch, MovedPage};
use crate::evict::outcome::Outcome;
use crate::evict::stages::{Batch, CutShort, Done, Moved, Planned, Read, ReadError, ReadPage, Reserved, Written};
use crate::evict::thread_exit;
use crate::fault::{Fault, put_back};
use crate::inject::stub::Hurry;
use crate::kernel::Mm;
use crate::recovery::rollback::rollback;
use crate::space::{Record, Space, Victim, prepare};
use annex_host::failpoint::failpoint;
use annex_host::priority::Urgent;
use annex_host::repeated;
use annex_pool::{Buf, Busy, Part, SlotRun};
use annex_shared::api::AppState;
use annex_shared::ids::SlotIdx;
use annex_shared::page::{PAGE_SIZE, is_zero};
use nix::poll::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Faults wait this long for the write of their pages, and are then served from what was to be
/// written.
const SLOW_WRITE: Duration = Duration::from_millis(5);
/// How long a stub that moves pages in chunks may wait for a core that somebody else has.
const BUSY: Duration = Duration::from_millis(10);
/// Pages of a span below which a batch is scattered, and from which on it is not.
const SHORT: usize = 4;
const LONG: usize = 12;

/// Evicts the victims, as far as there are slots for them.
pub fn evict(mut batch: Batch<'_>, victims: &Victims, slots: Reserved) -> Outcome {
    let done = match carry(&mut batch, victims, slots) {
        Ok(written) => written.done(),
        Err(cut) => rollback(cut, &mut batch),
    };
    conclude(&mut batch, done)
}

fn carry(batch: &mut Batch<'_>, victims: &Victims, slots: Reserved) -> Result<Written, CutShort> {
    batch.watched.begin("moving pages");
    let moved = {
        let _urgent = Urgent::begin();
        let planned = plan(batch, victims, slots)?;
        move_out(batch, planned)?
    };
    let read = read(batch, moved)?;
    write(batch, read)
}

fn plan(batch: &mut Batch<'_>, victims: &Victims, slots: Reserved) -> Result<Planned, CutShort> {
    match prepare_moves(batch, victims, &slots) {
        Ok((calls, in_chunks)) => Ok(Planned { slots, calls, in_chunks, copies: Vec::new() }),
        Err(outcome) => Err(CutShort::Reserved(slots, outcome)),
    }
}

/// Writes the intent down, and has the stub and the core ready for the moves. How many calls there
/// are, and whether they are made in chunks.
fn prepare_moves(batch: &mut Batch<'_>, victims: &Victims, slots: &Reserved) -> Result<(usize, bool), Outcome> {
    let Batch { space, task, stub, clock, shared, .. } = batch;
    let mut core = space.core();
    if core.frozen || !core.suspects.is_empty() || space.is_dead() || space.app.state() == AppState::Detaching {
        return Err(Outcome::NothingCold);
    }
    if !settle_changes(space, &mut core, shared) {
        return Err(Outcome::Again);
    }
    let victims = recheck(&core, victims, slots.count());
    if victims.pages.is_empty() {
        return Err(Outcome::Again);
    }
    prepare(space, &mut core, *task, clock, &victims)?;
    match victims.pages.len() / victims.spans.len() {
        ..SHORT => space.is_scattered.store(true, Relaxed),
        LONG.. => space.is_scattered.store(false, Relaxed),
        _ => {}
    }
    let pagemap = clock.take_pagemap(&space.identity).map_err(|_| Outcome::Dead)?;
    let bytes: Vec<(u64, u64)> = victims.spans.iter().map(|(p, n)| (p.addr(), n * PAGE_SIZE as u64)).collect();
    let at = stub.take_part(victims.covered, victims.pages.len());
    let layout = lay_out(&victims, &slots.runs, at);
    failpoint("batch-planned");
    core.table.intend(layout.iter().map(|(victim, _)| *victim));
    stub.prepare_moves(&bytes, at);
    let in_chunks = std::mem::take(&mut core.faulted) && space.stub_shares_cpu.load(Relaxed);
    core.moves = Some(Box::new(MoveBatch::new(&shared.pool, (stub, pagemap), victims.spans, layout, in_chunks)));
    drop(core);
    Ok((bytes.len(), in_chunks))
}

/// Each victim's slot and its place in staging, where the spans lie one after the other from page
/// `at` on; and whether it seems unwritten.
fn lay_out(victims: &Victims, runs: &[SlotRun], mut at: u64) -> Vec<(Victim, bool)> {
    let mut slots = runs.iter().flat_map(|r| r.slots());
    let mut layout = Vec::with_capacity(victims.pages.len());
    let mut spans = victims.spans.iter().peekable();
    for (page, unwritten) in &victims.pages {
        while let Some((_, len)) = spans.next_if(|(first, len)| *page >= first.plus(*len)) {
            at += len;
        }
        let (Some((first, _)), Some(slot)) = (spans.peek(), slots.next()) else { break };
        let staged_at = at + page.0 - first.0;
        layout.push((Victim { page: *page, slot, before: slot, staged_at, settled: false }, *unwritten));
    }
    layout
}

fn move_out(batch: &mut Batch<'_>, mut planned: Planned) -> Result<Moved, CutShort> {
    let Batch { space, stub, clock, .. } = batch;
    failpoint("moves-begin");
    let answer = if planned.in_chunks {
        stub.await_chunks(|| {
            let core = space.core_within(BUSY);
            core.and_then(|mut core| core.moves.as_mut().map(|moves| moves.hurry())).unwrap_or(Hurry::AtAChunk)
        })
    } else {
        stub.make_moves(planned.calls)
    };
    let (mut core, moves) = space.core_quiesced();
    let Some(mut moves) = moves else { return Err(CutShort::Planned(planned)) };
    match answer {
        Ok(()) => {
            failpoint("batch-moved");
            clock.last_answer = Some(Instant::now());
            moves.settle(&mut space.records(&mut core));
        }
        // Killed in the middle of it: whatever it has moved must be in the records before a message
        // is read.
        Err(_) => moves.settle_interrupted(&mut space.records(&mut core)),
    }
    let Made { moved: pages, busy, rest, interrupted, soiled, pagemap } = moves.end();
    clock.resume(pagemap, rest);
    if soiled {
        stub.is_soiled();
    }
    // Also if they come back at once: each that does is counted then.
    space.app.add_resident(-(pages.len() as i64));
    if interrupted {
        planned.copies = pages.iter().filter_map(|page| page.copy).collect();
        return Err(CutShort::Planned(planned));
    }
    core.table.intent_moved();
    drop(core);
    space.app.counters.evicted.fetch_add(pages.len() as u64, Relaxed);
    let moved = Moved { slots: planned.slots, pages, busy };
    if moved.pages.is_empty() { Err(CutShort::Unmoved(moved)) } else { Ok(moved) }
}

fn read(batch: &mut Batch<'_>, moved: Moved) -> Result<Read, CutShort> {
    match read_staging(batch, &moved.pages) {
        Ok((mm, buf)) => Ok(sort_out(batch, moved, mm, buf)),
        Err(error) => Err(CutShort::Moved(moved, error)),
    }
}

fn read_staging(batch: &mut Batch<'_>, pages: &[MovedPage]) -> Result<(Arc<Mm>, Buf), ReadError> {
    let mm = batch.space.mm().ok_or(ReadError::NoAddressSpace)?;
    let mut buf = batch.lane.alloc(pages.len()).ok_or(ReadError::NoBuffer)?;
    let mut offsets: Vec<(u64, u64)> = Vec::new();
    for m in pages {
        let (offset, page) = (m.at * PAGE_SIZE as u64, PAGE_SIZE as u64);
        match offsets.last_mut() {
            Some((o, l)) if *o + *l == offset => *l += page,
            _ => offsets.push((offset, page)),
        }
    }
    batch.watched.begin("reading pages");
    match batch.stub.read_staging(&mm, &offsets, batch.lane.bytes_mut(&mut buf)) {
        Ok(()) => Ok((mm, buf)),
        Err(error) => {
            batch.lane.free(buf);
            Err(ReadError::Staging(error))
        }
    }
}

/// Finds pages that need no write, and gathers the others at the start of the buffer and of the
/// reserved slots: what is left is one write or few.
fn sort_out(batch: &mut Batch<'_>, moved: Moved, mm: Arc<Mm>, mut buf: Buf) -> Read {
    let Batch { space, lane, shared, .. } = batch;
    let Moved { slots, pages: moved, busy } = moved;
    let n = moved.len();
    let bytes = lane.bytes_mut(&mut buf);
    let pool = &shared.pool;
    let page_at = |i: usize| i * PAGE_SIZE..(i + 1) * PAGE_SIZE;
    let verdicts: Vec<(bool, bool)> = moved
        .iter()
        .enumerate()
        .map(|(i, m)| {
            let page = &bytes[page_at(i)];
            let same = m.unwritten && m.copy.is_some_and(|copy| pool.holds(copy, page));
            (is_zero(page), same)
        })
        .collect();
    let blocks: Vec<usize> = moved
        .iter()
        .enumerate()
        .filter(|(i, m)| thread_exit::is_control_block_in(m.page, &bytes[page_at(*i)]))
        .map(|(i, _)| i)
        .collect();
    let mut pages: Vec<ReadPage> = Vec::with_capacity(n);
    let first_slots: Vec<SlotIdx> = moved.iter().map(|m| m.slot).collect();
    // Slots that their pages have no more use for, in order.
    let mut spare = VecDeque::new();
    let mut core = space.core();
    for (i, (mut m, (zero, same))) in moved.into_iter().zip(verdicts).enumerate() {
        // Not so if it was remapped, or inherited by a fork's child (a third reference beside the
        // record's and the reservation's): then its slot itself must hold the bytes.
        let alone = core.table.record(m.page) == Record::Evicted(m.slot) && pool.references(m.slot) == 2;
        if blocks.contains(&i) {
            core.pins.insert(m.page);
            if alone && put_back(space, &mut core, m.page, &bytes[page_at(i)], m.slot, shared) {
                m.copy.take().into_iter().for_each(|copy| pool.release(copy));
                spare.push_back(first_slots[i]);
                continue;
            }
        }
        if let Some(copy) = m.copy.take() {
            if same && alone {
                // The reference taken over from the old record goes back to it.
                let _ = core.table.set(m.page, Record::Evicted(copy));
                pool.release(m.slot);
                spare.push_back(first_slots[i]);
                space.app.counters.clean.fetch_add(1, Relaxed);
                continue;
            }
            pool.release(copy);
        }
        if zero && alone {
            let _ = core.table.set(m.page, Record::None);
            pool.release(m.slot);
            spare.push_back(first_slots[i]);
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
        bytes.copy_within(page_at(i), pages.len() * PAGE_SIZE);
        pages.push(ReadPage { slot: m.slot, at: m.at });
    }
    drop(core);
    Read { slots, busy, moved: n, pages, buf, mm }
}

fn write(batch: &mut Batch<'_>, mut read: Read) -> Result<Written, CutShort> {
    let parts = parts(&read.pages, batch.shared.pool.slots_per_extent().max(1));
    if !parts.is_empty() {
        let (buf, written) = write_replicas(batch, &parts, read.buf, (&read.mm, &read.pages));
        read.buf = buf;
        if !written {
            return Err(CutShort::Read(read));
        }
    }
    batch.lane.free(read.buf);
    Ok(Written { slots: read.slots, busy: read.busy, moved: read.moved })
}

/// The runs to write: pages whose slots and places in the buffer are consecutive go together. Slots
/// of different extents (of so many slots each) are not one run, even if their numbers are
/// consecutive.
fn parts(pages: &[ReadPage], extent: u32) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (at, page) in pages.iter().enumerate() {
        match parts.last_mut() {
            Some(p) if p.run.first.0 + p.run.count == page.slot.0 && !page.slot.0.is_multiple_of(extent) => {
                p.run.count += 1
            }
            _ => parts.push(Part { run: SlotRun { first: page.slot, count: 1 }, at }),
        }
    }
    parts
}

/// Writes it all. While that takes long, whoever has met one of these pages is served by
/// [`serve_from_staging`]. False: no replica took it.
fn write_replicas(batch: &mut Batch<'_>, parts: &[Part], mut buf: Buf, (mm, pages): (&Mm, &[ReadPage])) -> (Buf, bool) {
    batch.watched.begin("writing pages to donors");
    let mut done: Vec<annex_pool::Done> = Vec::with_capacity(1);
    loop {
        match batch.lane.write(parts, buf, 0) {
            Ok(()) => break,
            Err(Busy(back)) => buf = back,
        }
        batch.lane.submit();
        batch.lane.poll(&mut done);
    }
    batch.lane.submit();
    let slow = Instant::now() + SLOW_WRITE;
    loop {
        batch.lane.poll(&mut done);
        if let Some(annex_pool::Done { buf, result, .. }) = done.pop() {
            if let Err(error) = &result {
                let name = &batch.space.app.name;
                repeated!(WARN, "failed to evict a batch" of name, app = name, "failed to evict a batch: {error}");
            }
            return (buf, result.is_ok());
        }
        if Instant::now() > slow {
            // No fault is delayed for what this brings.
            batch.space.app.yielded(0);
            let parked = batch.shared.in_flight.take_parked();
            let unserved = |(space, fault): &_| !serve_from_staging(batch, (mm, pages), space, *fault);
            // A worker reads what its space has to say, and parks the fault again.
            batch.workers.serve(parked.into_iter().filter(unserved).collect());
        }
        if !batch.lane.arm() {
            let mut fds = [PollFd::new(batch.lane.event_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, SLOW_WRITE.as_millis() as u8);
        }
    }
}

/// Gives a page of the batch back to whoever waits for it. Its slot is written all the same, and
/// nobody's afterwards. False: not possible (now).
fn serve_from_staging(batch: &Batch<'_>, (mm, pages): (&Mm, &[ReadPage]), space: &Arc<Space>, fault: Fault) -> bool {
    let shared = batch.shared;
    let mut core = space.core();
    if space.is_dead() || !settle_changes(space, &mut core, shared) {
        return space.is_dead();
    }
    let Record::Evicted(slot) = core.table.record(fault.page) else { return false };
    let Some(at) = pages.iter().find(|page| page.slot == slot).map(|page| page.at) else { return false };
    let mut page = [0u8; PAGE_SIZE];
    let is_read = batch.stub.read_staging(mm, &[(at * PAGE_SIZE as u64, PAGE_SIZE as u64)], &mut page).is_ok();
    if !is_read || !shared.pool.holds(slot, &page) {
        return false;
    }
    let is_back = put_back(space, &mut core, fault.page, &page, slot, shared);
    if is_back {
        space.app.counters.major.fetch_add(1, Relaxed);
        space.app.latency.add(fault.since.elapsed());
    }
    is_back
}

/// Gives back what every batch has, whatever has become of its pages.
fn conclude(batch: &mut Batch<'_>, done: Done) -> Outcome {
    let Batch { space, stub, clock, shared, workers, watched, .. } = batch;
    let Done { slots, busy, outcome } = done;
    watched.begin("ending a batch");
    let parked = shared.in_flight.settle(&slots.runs);
    workers.serve(parked);
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
    // The references that were reserved; every page that stayed evicted has one of its own.
    slots.runs.into_iter().flat_map(SlotRun::slots).for_each(|slot| shared.pool.release(slot));
    if is_unshared && outcome == Outcome::Again { Outcome::Unshared } else { outcome }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageIdx;

    fn runs(runs: &[(u32, u32)]) -> Vec<SlotRun> {
        runs.iter().map(|(first, count)| SlotRun { first: SlotIdx(*first), count: *count }).collect()
    }

    #[test]
    fn victims_lie_in_staging_as_they_do_in_their_spans() {
        let page = |n| (PageIdx(n), n == 22);
        // Page 11 is evicted already, and is a hole in staging.
        let victims = Victims {
            pages: [10, 12, 20, 21, 22].map(page).to_vec(),
            spans: vec![(PageIdx(10), 3), (PageIdx(20), 3)],
            covered: 6,
        };
        let layout = lay_out(&victims, &runs(&[(7, 2), (100, 2)]), 40);
        let seen: Vec<_> = layout.iter().map(|(v, unwritten)| (v.page.0, v.slot.0, v.staged_at, *unwritten)).collect();
        // There are slots for four of them.
        assert_eq!(seen, [(10, 7, 40, false), (12, 8, 42, false), (20, 100, 43, false), (21, 101, 44, false)]);
        assert!(layout.iter().all(|(v, _)| v.before == v.slot && !v.settled));
    }

    #[test]
    fn what_is_consecutive_within_an_extent_is_one_write() {
        let parts = |slots: &[u32], extent| -> Vec<_> {
            let pages: Vec<_> = slots.iter().map(|slot| ReadPage { slot: SlotIdx(*slot), at: 0 }).collect();
            parts(&pages, extent).iter().map(|part| (part.run.first.0, part.run.count, part.at)).collect()
        };
        let slots = [3, 4, 9, 510, 511, 512, 513];
        assert_eq!(parts(&slots, 512), [(3, 2, 0), (9, 1, 2), (510, 2, 3), (512, 2, 5)]);
        assert_eq!(parts(&slots, 1024), [(3, 2, 0), (9, 1, 2), (510, 4, 3)]);
        // Slabs of 64 KiB are the smallest. Of slabs smaller than 2 MiB no page was written.
        assert_eq!(parts(&[14, 15, 16, 17], 16), [(14, 2, 0), (16, 2, 2)]);
    }
}
