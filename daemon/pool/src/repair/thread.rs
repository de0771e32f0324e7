//! The repair thread: fills syncing replicas, has backups follow, rewrites pages that gave wrong
//! bytes, and walks all pages slowly to find such before they are needed. It has a lane of its own.
//! What is filled in which order and how fast is decided by `fills`, why filling is right is told
//! in `replicas`.
//!
//! *Healing* rewrites a live replica's page from another one's. Like filling it holds a reference,
//! takes verified bytes only, and looks at the tag again afterwards. A page whose write is
//! just under way can look decayed, so it is looked at again some time later before it is
//! rewritten. A rewrite beside a slower write still brings the same bytes as the write, or, if the
//! tag changed meanwhile, is repeated.

use crate::coordinator::news::News;
use crate::core::PoolCore;
use crate::io::lane::Lane;
use crate::metadata::replica::{ReplicaState, Replicas};
use crate::metadata::slots::SlotRun;
use crate::repair::fills::{Fill, Fills, Pace};
use crate::repair::task::Task;
use crate::{Done, IoError, PoolError};
use annex_host::events::{self, EventKind, POOL};
use annex_host::repeated;
use annex_host::sentinel::Sentinel;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Slots that are copied together: no more, because what a fault asks for waits behind them on the
/// donor.
const BATCH: u32 = 64;
/// Slots the scrubber reads together.
const SCRUB: u32 = 64;
/// How often a page is rewritten before that counts as failed.
const HEAL_TRIES: u32 = 3;
/// Pages that wait to be healed at most; the scrubber comes by the others again.
const MAX_WAITING: usize = 1024;
/// How long a page that looks decayed is left alone before each look, in case it is just being
/// written.
const WRITE_TIMES: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];
/// With nothing to do the thread looks around this often.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After a round over everything the scrubber rests this long.
const SCRUB_REST: Duration = Duration::from_secs(2);

/// A page that looked decayed.
#[derive(Clone, Copy)]
struct Heal {
    slot: SlotIdx,
    index: u8,
    generation: u16,
    /// How often it was looked at, and when it will be again.
    looks: usize,
    due: Instant,
}

struct Repair {
    core: Arc<PoolCore>,
    lane: Lane,
    fills: Fills,
    heals: VecDeque<Heal>,
    repair_pace: Pace,
    scrub_pace: Pace,
    /// Where the scrubber is: an extent and an offset in it.
    scrub_at: (u32, u32),
    scrub_after: Option<Instant>,
}

/// The pool is stopping: operations may never end.
struct Stopping;

/// What became of a piece of a fill.
enum Filled {
    All,
    Some,
    /// Not now.
    Stuck,
    /// A backup has all there is, for now.
    Rests,
    /// The entry stands for something else by now.
    Void,
}

pub(crate) fn start(core: &Arc<PoolCore>, tasks: Receiver<Task>) -> Result<JoinHandle<()>, PoolError> {
    let mut lane = Lane::new(core.clone(), BATCH as usize)?;
    lane.keep_quiet();
    let mut repair = Repair {
        core: core.clone(),
        lane,
        fills: Fills::default(),
        heals: VecDeque::new(),
        repair_pace: Pace::new(core.config.repair_rate.0),
        scrub_pace: Pace::new(core.config.scrub_rate.0),
        scrub_at: (0, 0),
        scrub_after: None,
    };
    let name = "annex-repair".to_owned();
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
        let _sentinel = Sentinel("the repair thread");
        stand_back();
        while !repair.core.stopping.load(Acquire) {
            if !repair.listen(&tasks) || repair.work().is_err() {
                break;
            }
        }
    });
    thread.map_err(|source| PoolError::Thread { name, source })
}

/// The calling thread runs when nobody else wants the CPU: faults come first.
fn stand_back() {
    // SAFETY: takes numbers only; 0 is the calling thread. To be less urgent needs no privilege.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

impl Repair {
    /// Takes tasks, and waits for some if there is nothing to do. False when nobody can send any.
    fn listen(&mut self, tasks: &Receiver<Task>) -> bool {
        let wait = self.idle_for(Instant::now());
        match tasks.recv_timeout(wait) {
            Ok(task) => self.take(task),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        while let Ok(task) = tasks.try_recv() {
            self.take(task);
        }
        // Endpoints that came, connections that broke: a lane that is idle must notice too.
        let mut nothing = Vec::new();
        self.lane.poll(&mut nothing);
        true
    }

    fn idle_for(&self, now: Instant) -> Duration {
        let heal = self.heals.iter().map(|heal| heal.due.saturating_duration_since(now)).min();
        let fill = (!self.fills.is_empty()).then(|| {
            let due = self.fills.due().map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
            due.max(self.repair_pace.wait(now))
        });
        let rest = self.scrub_after.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let scrub = (self.core.config.scrub_rate.0 > 0).then(|| rest.max(self.scrub_pace.wait(now)));
        fill.into_iter().chain(scrub).chain(heal).chain([LOOK_EVERY]).min().unwrap_or(LOOK_EVERY)
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Fill { extent, index, generation, live } => {
                self.fills.add(Fill::new(extent, index, generation, live));
            }
            Task::Heal { slot, index, generation } => {
                self.core.counts.heals.fetch_sub(1, Relaxed);
                self.heal_later(slot, index, generation, 0);
            }
        }
    }

    fn work(&mut self) -> Result<(), Stopping> {
        let now = Instant::now();
        if self.repair_pace.wait(now).is_zero()
            && let Some(mut fill) = self.fills.next(now)
        {
            match self.fill(&mut fill)? {
                Filled::All => {
                    let Fill { extent, index, generation, .. } = fill;
                    self.core.tell(News::Filled { extent, index, generation });
                }
                Filled::Some => self.fills.put_back(fill),
                Filled::Stuck => {
                    fill.stuck(Instant::now());
                    self.fills.put_back(fill);
                }
                Filled::Rests => {
                    fill.rests(Instant::now());
                    self.fills.put_back(fill);
                }
                Filled::Void => {}
            }
            return Ok(());
        }
        if let Some(at) = self.heals.iter().position(|heal| heal.due <= now)
            && let Some(heal) = self.heals.remove(at)
        {
            return self.heal(heal);
        }
        if self.core.config.scrub_rate.0 > 0
            && self.scrub_pace.wait(now).is_zero()
            && self.scrub_after.is_none_or(|at| at <= now)
        {
            return self.scrub(now);
        }
        Ok(())
    }

    // ---- filling ----

    /// Copies one piece.
    fn fill(&mut self, fill: &mut Fill) -> Result<Filled, Stopping> {
        let core = self.core.clone();
        let (extent, index, generation) = (fill.extent, fill.index, fill.generation);
        let Some(replicas) = core.extents.replicas(extent) else { return Ok(Filled::Void) };
        let target = replicas.nth(index).filter(|r| r.generation == generation && r.state.is_filled());
        let Some(target) = target else { return Ok(Filled::Void) };
        let Some(first) = core.extents.next_missed(extent, index, fill.cursor) else {
            if target.state == ReplicaState::Backup {
                return Ok(Filled::Rests);
            }
            if fill.cursor == 0 || core.extents.lacks_nothing(extent, index) {
                return Ok(Filled::All);
            }
            fill.round_completed(Instant::now());
            return Ok(Filled::Some);
        };
        // With nobody live, those that are syncing have what is not marked as missed.
        let peers = replicas.iter().filter(|(n, r)| *n != index && r.state == ReplicaState::Syncing);
        let peers: Vec<u8> = if replicas.live() == 0 { peers.map(|(n, _)| n).collect() } else { Vec::new() };
        if replicas.live() == 0 && peers.is_empty() {
            return Ok(Filled::Stuck);
        }
        let mut taken = Vec::new();
        core.extents.begin_copy(extent, index, first, BATCH, &mut taken);
        let base = SlotIdx(extent.0 * core.extents.slots_per_extent().unwrap_or(0));
        let used = self.hold(taken.into_iter().map(|at| SlotIdx(base.0 + at)));
        let copied = match peers.is_empty() {
            true => self.copy(&used, index, generation),
            false => self.copy_from(&peers, &used, index, generation),
        };
        self.release(&used);
        let (failed, nobodys, clean, stopped) = match copied {
            Ok(Copied { mut failed, nobodys, corrupt }) => {
                let clean = failed.is_empty() && nobodys.is_empty();
                if fill.forgives {
                    core.counts.lost_pages.fetch_add(corrupt.len() as u64, Relaxed);
                    if !corrupt.is_empty() {
                        let n = corrupt.len();
                        let said = format!("{n} pages of {extent} are lost: no replica has them");
                        repeated!(ERROR, "pages of an extent are lost" of "", "{said}");
                        events::record(EventKind::PageLost, POOL, None, &said);
                    }
                } else {
                    failed.extend(&corrupt);
                }
                (failed, nobodys, clean, false)
            }
            Err(Stopping) => (used.clone(), Vec::new(), false, true),
        };
        let offsets = |slots: &[SlotIdx]| slots.iter().map(|s| s.0 - base.0).collect::<Vec<u32>>();
        if core.extents.end_copy(extent, index, generation, &offsets(&failed), &offsets(&nobodys)) {
            core.changed();
            core.tell(News::FellBehind { extent, indexes: 1 << index });
        }
        if stopped {
            return Err(Stopping);
        }
        let done = used.len().saturating_sub(failed.len() + nobodys.len()) as u64;
        core.counts.copied.fetch_add(done, Relaxed);
        self.repair_pace.spend(used.len() as u64 * PAGE_SIZE as u64, Instant::now());
        if done > 0 {
            fill.progressed();
        }
        if !clean {
            fill.hindered(Instant::now());
        }
        fill.cursor = first.saturating_add(BATCH);
        Ok(Filled::Some)
    }

    /// Takes a reference to each slot that somebody has bytes in. The others need nothing: whoever
    /// takes one from now on finds the syncing replica.
    fn hold(&self, slots: impl Iterator<Item = SlotIdx>) -> Vec<SlotIdx> {
        let mut held: Vec<SlotIdx> = slots.filter(|s| self.core.retain(*s)).collect();
        held.retain(|slot| {
            let is_needed = !self.core.discarded.has(*slot);
            if !is_needed {
                self.core.release(*slot);
            }
            is_needed
        });
        held
    }

    /// Copies retained slots of one extent to a replica: which were not.
    fn copy(&mut self, slots: &[SlotIdx], index: u8, generation: u16) -> Result<Copied, Stopping> {
        let mut out = Copied::default();
        let mut again = Vec::new();
        for run in runs(slots) {
            match self.copy_run(run, None, index, generation)? {
                Ok(changed) => out.failed.extend(changed),
                Err(_) if run.count > 1 => again.extend(run.slots()),
                Err(IoError::Corrupt) => out.corrupt.push(run.first),
                Err(_) => out.failed.push(run.first),
            }
        }
        // One bad page must not keep its neighbours.
        for slot in again {
            match self.copy_run(SlotRun { first: slot, count: 1 }, None, index, generation)? {
                Ok(changed) => out.failed.extend(changed),
                Err(IoError::Corrupt) => out.corrupt.push(slot),
                Err(_) => out.failed.push(slot),
            }
        }
        Ok(out)
    }

    /// Copies from syncing replicas that are not marked as missing a slot.
    fn copy_from(&mut self, peers: &[u8], slots: &[SlotIdx], index: u8, generation: u16) -> Result<Copied, Stopping> {
        let core = self.core.clone();
        let mut out = Copied::default();
        for slot in slots {
            let Some((extent, at)) = core.extents.locate(*slot) else { continue };
            let run = SlotRun { first: *slot, count: 1 };
            let mut copied = None;
            for peer in peers.iter().filter(|p| core.extents.next_missed(extent, **p, at) != Some(at)) {
                copied = self.copy_run(run, Some(*peer), index, generation)?.ok();
                if copied.is_some() {
                    break;
                }
            }
            match copied {
                Some(changed) => out.failed.extend(changed),
                None => out.nobodys.push(*slot),
            }
        }
        Ok(out)
    }

    /// Copies a run, from a certain replica or from wherever it is right: the slots that were
    /// written anew meanwhile.
    fn copy_run(
        &mut self,
        run: SlotRun,
        from: Option<u8>,
        index: u8,
        generation: u16,
    ) -> Result<Result<Vec<SlotIdx>, IoError>, Stopping> {
        let read = self.read(run, from)?;
        if let Err(error) = read.result {
            self.lane.free(read.buf);
            return Ok(Err(error));
        }
        if let Err(busy) = self.lane.heal(run, index, generation, read.buf, 0) {
            self.lane.free(busy.0);
            return Ok(Err(IoError::Lost));
        }
        let written = self.one()?;
        let pages = run.slots().zip(self.lane.bytes(&written.buf).chunks_exact(PAGE_SIZE));
        let changed =
            pages.filter(|(slot, page)| !self.core.slots.is_right(*slot, page)).map(|(slot, _)| slot).collect();
        self.lane.free(written.buf);
        Ok(written.result.map(|()| changed))
    }

    fn release(&self, slots: &[SlotIdx]) {
        for slot in slots {
            self.core.release(*slot);
        }
    }

    // ---- healing ----

    fn heal_later(&mut self, slot: SlotIdx, index: u8, generation: u16, looks: usize) {
        let is_same = |heal: &Heal| (heal.slot, heal.index, heal.generation) == (slot, index, generation);
        if self.heals.len() < MAX_WAITING && !self.heals.iter().any(is_same) {
            let due = Instant::now() + WRITE_TIMES[looks];
            self.heals.push_back(Heal { slot, index, generation, looks, due });
        }
    }

    /// Makes a live replica's page right if it is wrong.
    fn heal(&mut self, heal: Heal) -> Result<(), Stopping> {
        let Heal { slot, index, generation, looks, .. } = heal;
        let core = self.core.clone();
        let Some((extent, _)) = core.extents.locate(slot) else { return Ok(()) };
        if !core.retain(slot) {
            return Ok(());
        }
        let run = SlotRun { first: slot, count: 1 };
        let mut wrote = false;
        let healed = 'healed: {
            for _ in 0..=HEAL_TRIES {
                let replica = core.extents.replica(extent, index);
                if replica.generation != generation || replica.state != ReplicaState::Live {
                    break 'healed Ok(());
                }
                match self.look(run, index) {
                    Err(Stopping) => break 'healed Err(Stopping),
                    Ok(Ok(())) => {
                        if wrote {
                            core.counts.healed.fetch_add(1, Relaxed);
                            if let Some(donor) = core.donor(replica.donor) {
                                donor.stats.healed.fetch_add(1, Relaxed);
                            }
                            let name = core.donor_name(replica.donor);
                            repeated!(WARN, "a slot was wrong and was rewritten" of &name, "{slot} was wrong on {name} and was rewritten");
                        }
                        break 'healed Ok(());
                    }
                    // Most likely a write that is under way.
                    Ok(Err(IoError::Corrupt)) if looks + 1 < WRITE_TIMES.len() => {
                        self.heal_later(slot, index, generation, looks + 1);
                        break 'healed Ok(());
                    }
                    Ok(Err(IoError::Corrupt)) => {}
                    Ok(Err(_)) => break 'healed Ok(()),
                }
                match self.copy_run(run, None, index, generation) {
                    Err(Stopping) => break 'healed Err(Stopping),
                    // Nobody has it right: it is lost, or being written for the first time.
                    Ok(Err(_)) => break 'healed Ok(()),
                    Ok(Ok(_)) => wrote = true,
                }
            }
            if wrote {
                let name = core.donor_name(core.extents.replica(extent, index).donor);
                repeated!(WARN, "a slot can't be made right" of &name, "{slot} can't be made right on its replica {index}, on {name}");
            }
            Ok(())
        };
        core.release(slot);
        healed
    }

    /// Reads a run from one replica only.
    fn look(&mut self, run: SlotRun, index: u8) -> Result<Result<(), IoError>, Stopping> {
        let done = self.read(run, Some(index))?;
        self.lane.free(done.buf);
        Ok(done.result)
    }

    // ---- scrubbing ----

    /// Reads the next piece from all its live replicas.
    fn scrub(&mut self, now: Instant) -> Result<(), Stopping> {
        let core = self.core.clone();
        let slots = core.extents.slots_per_extent().unwrap_or(0);
        let next = core.extents.live().find(|(e, _)| e.0 >= self.scrub_at.0);
        let Some((extent, replicas)) = next.filter(|_| slots > 0) else {
            self.scrub_at = (0, 0);
            self.scrub_after = Some(now + SCRUB_REST);
            return Ok(());
        };
        let from = if extent.0 == self.scrub_at.0 { self.scrub_at.1 } else { 0 };
        let to = (from + SCRUB).min(slots);
        self.scrub_at = if to < slots { (extent.0, to) } else { (extent.0 + 1, 0) };
        let base = extent.0 * slots;
        let used = self.hold((from..to).map(|at| SlotIdx(base + at)));
        let looked = self.scrub_slots(&used, &replicas);
        self.release(&used);
        looked
    }

    fn scrub_slots(&mut self, used: &[SlotIdx], replicas: &Replicas) -> Result<(), Stopping> {
        for (index, replica) in replicas.iter().filter(|(_, r)| r.state == ReplicaState::Live) {
            for run in runs(used) {
                self.scrub_pace.spend(u64::from(run.count) * PAGE_SIZE as u64, Instant::now());
                self.core.counts.scrubbed.fetch_add(run.count.into(), Relaxed);
                if self.look(run, index)? != Err(IoError::Corrupt) {
                    continue;
                }
                for slot in run.slots() {
                    if self.look(SlotRun { first: slot, count: 1 }, index)? == Err(IoError::Corrupt) {
                        self.heal_later(slot, index, replica.generation, 0);
                    }
                }
            }
        }
        Ok(())
    }

    // ---- the lane ----

    fn read(&mut self, run: SlotRun, index: Option<u8>) -> Result<Done, Stopping> {
        // Nothing else is under way on this lane, but a slow read may hold its piece of the arena
        // for a while.
        let mut nothing = Vec::new();
        let buf = loop {
            match self.lane.alloc(run.count as usize) {
                Some(buf) => break buf,
                None if self.core.stopping.load(Acquire) => return Err(Stopping),
                None => {
                    std::thread::sleep(Duration::from_millis(1));
                    self.lane.poll(&mut nothing);
                }
            }
        };
        let posted = match index {
            Some(index) => self.lane.read_only(run, index, buf, 0),
            None => self.lane.read(run, buf, 0),
        };
        match posted {
            Ok(()) => self.one(),
            Err(busy) => Ok(Done { token: 0, buf: busy.0, result: Err(IoError::Lost) }),
        }
    }

    /// Drives the lane until the one job under way is done.
    fn one(&mut self) -> Result<Done, Stopping> {
        let mut done = Vec::new();
        self.lane.submit();
        loop {
            self.lane.poll(&mut done);
            if let Some(done) = done.pop() {
                return Ok(done);
            }
            if self.core.stopping.load(Acquire) {
                return Err(Stopping);
            }
            if !self.lane.arm() {
                let mut fds = [PollFd::new(self.lane.event_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, PollTimeout::from(50u8));
            }
        }
    }
}

#[derive(Debug, Default)]
struct Copied {
    failed: Vec<SlotIdx>,
    /// Nobody is live, and no other syncing replica has these.
    nobodys: Vec<SlotIdx>,
    /// No live replica gave right bytes for these.
    corrupt: Vec<SlotIdx>,
}

/// Neighbours together.
fn runs(slots: &[SlotIdx]) -> impl Iterator<Item = SlotRun> {
    slots.chunk_by(|a, b| a.0 + 1 == b.0).map(|chunk| SlotRun { first: chunk[0], count: chunk.len() as u32 })
}
