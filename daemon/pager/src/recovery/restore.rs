//! Bringing an app back: every page out of the pool into the app, then nothing of annex is left in
//! it.
//!
//! An app is whole again when no space of it has an evicted page, fork children included: a child
//! that was forked meanwhile shows up as a space before the install in its parent that it raced
//! with can succeed. Only then are the mappings unregistered and the stubs removed.

use crate::app::App;
use crate::events::{bequeath, drop_guarded};
use crate::fault::{Stretch, Why, install, lose};
use crate::inject::{AttachContext, tracer_process};
use crate::kernel::process::{self, Mapping};
use crate::kernel::uffd::Proof;
use crate::page::PageIdx;
use crate::recovery::room;
use crate::recovery::room::{Demand, RoomError};
use crate::space::{Record, Registry, Shared, Space, Table};
use annex_host::failpoint::failpoint;
use annex_host::repeated;
use annex_pool::{Busy, Done, Lane, SlotRun};
use annex_shared::api::Progress;
use annex_shared::ids::SlotIdx;
use annex_shared::page::PAGE_SIZE;
use nix::poll::{PollFd, PollFlags, poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages of buffers a restoring lane has, and the most that one read brings.
const BUFFERS: usize = 512;
const RUN: u32 = 32;

/// An app could not be brought back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    NoRoom(#[from] RoomError),
    #[error("failed to open a lane to the pool: {0}")]
    Lane(#[from] annex_pool::LaneError),
    #[error("{lost} pages are lost: no replica has their bytes; touching them raises SIGBUS")]
    Lost { lost: u64 },
    #[error("its processes did not let go of their memory changes for a minute (are they frozen?)")]
    Stuck,
}

/// Evicted pages of all spaces of the app.
pub fn evicted(context: &AttachContext, app: &App) -> u64 {
    context.registry.of_app(app.id).iter().filter(|s| !s.is_dead()).map(|s| s.evicted()).sum()
}

/// The same, if need be of a moment ago, without waiting for any of them.
pub fn evicted_about(registry: &Registry, app: &App) -> u64 {
    registry.of_app(app.id).iter().filter(|s| !s.is_dead()).map(|s| s.evicted_about()).sum()
}

/// Refuses if there is no room for what the apps have in the pool (pages that fork children share
/// come back to each of them).
pub fn check_room<'a>(context: &AttachContext, apps: impl Iterator<Item = &'a App>) -> Result<(), RoomError> {
    let demands: Vec<_> = apps.flat_map(|app| demands(context, app)).collect();
    room::check(&demands)
}

fn demands(context: &AttachContext, app: &App) -> Vec<Demand> {
    // A forked child that is not known yet has its cgroup from the others, as a rule.
    let another = app.members.lock().first().map_or(0, |member| member.pid);
    let spaces = context.registry.of_app(app.id).into_iter().filter(|s| !s.is_dead());
    spaces.map(|s| Demand { pid: s.pid().unwrap_or(another), pages: s.evicted() }).collect()
}

/// Brings every page of the app back. The app must be marked as detaching, so that nothing is
/// evicted meanwhile.
pub fn restore(context: &AttachContext, app: &App, progress: &mut dyn FnMut(Progress)) -> Result<(), RestoreError> {
    let total = evicted(context, app);
    check_room(context, std::iter::once(app))?;
    let mut lane = context.shared.pool.lane("restore", BUFFERS)?;
    let mut lost = 0;
    let mut moved_on = Instant::now();
    let mut last = u64::MAX;
    loop {
        let left = evicted(context, app);
        let page = PAGE_SIZE as u64;
        let done = total.saturating_sub(left) * page;
        progress(Progress::Step { what: "bringing pages back".into(), done, total: total * page });
        if left == 0 {
            break;
        }
        if left != last {
            (last, moved_on) = (left, Instant::now());
        } else if moved_on.elapsed() > Duration::from_secs(60) {
            return Err(RestoreError::Stuck);
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
        for space in context.registry.of_app(app.id) {
            if !space.is_dead() {
                lost += sweep(&space, &mut lane, &context.shared, 16_384);
            }
        }
    }
    if lost > 0 { Err(RestoreError::Lost { lost }) } else { Ok(()) }
}

/// One pass over a space's evicted pages, `most` at most; pages whose turn has not come (in flight,
/// mappings changing) are left for the next. Returns how many are lost.
fn sweep(space: &Arc<Space>, lane: &mut Lane, shared: &Shared, most: usize) -> u64 {
    let mut runs: Vec<(PageIdx, SlotIdx, u32)> = Vec::new();
    {
        let core = space.core();
        let extent = shared.pool.slots_per_extent().max(1);
        let (start, end) = Table::everything();
        let mut pages = 0;
        core.table.walk(start, end, |page, record| {
            let Record::Evicted(slot) = record else { return };
            if pages >= most || shared.in_flight.contains(slot) {
                return;
            }
            pages += 1;
            match runs.last_mut() {
                Some((p, s, n))
                    if p.plus(*n as u64) == page && s.0 + *n == slot.0 && slot.0 % extent.max(1) != 0 && *n < RUN =>
                {
                    *n += 1
                }
                _ => runs.push((page, slot, 1)),
            }
            // Held until its read is over: the record may change and free it before the read is
            // posted.
            shared.pool.retain(slot);
        });
    }
    let mut guards = space.pagemap().ok();
    let mut lost = 0;
    let mut done: Vec<Done> = Vec::new();
    let mut next = 0;
    let mut under_way = 0;
    while next < runs.len() || under_way > 0 {
        while let Some((_, slot, n)) = runs.get(next).copied() {
            let Some(buf) = lane.alloc(n as usize) else { break };
            match lane.read(SlotRun { first: slot, count: n }, buf, next as u64) {
                Ok(()) => (next, under_way) = (next + 1, under_way + 1),
                Err(Busy(buf)) => {
                    lane.free(buf);
                    break;
                }
            }
        }
        lane.submit();
        lane.poll(&mut done);
        if done.is_empty() && !lane.arm() {
            let mut fds = [PollFd::new(lane.event_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, 50u16);
        }
        for Done { token, buf, result } in done.drain(..) {
            under_way -= 1;
            let (page, slot, n) = runs[token as usize];
            let mut core = space.core();
            match result {
                Ok(()) => {
                    let range = (page, page.plus(n.into()));
                    let heeded = guards.as_mut().map(|g| drop_guarded(space, &mut core, range, g, shared));
                    // Else the next pass does it.
                    if heeded != Some(None) {
                        install(space, &mut core, Stretch::one(page, slot), lane.bytes(&buf), Why::Restore, shared);
                    }
                }
                Err(error) if n == 1 => {
                    let name = &space.app.name;
                    repeated!(WARN, "failed to read a page" of name, app = name, slot = slot.0, "failed to read a page: {error}");
                    let was = core.table.record(page) == Record::Evicted(slot);
                    lost += (lose(space, &mut core, page, slot, shared) && was) as u64;
                }
                // Page by page, to lose no more than must be.
                Err(_) => runs.extend((0..n).map(|i| (page.plus(i as u64), SlotIdx(slot.0 + i), 1))),
            }
            drop(core);
            if result.is_ok() || n == 1 {
                (0..n).for_each(|i| shared.pool.release(SlotIdx(slot.0 + i)));
            }
            lane.free(buf);
        }
    }
    lost
}

/// Takes annex out of a space that has nothing evicted, or whose address space has ended. False: it
/// has pages in the pool, and nothing was done.
pub fn let_go(context: &AttachContext, space: &Arc<Space>) -> bool {
    let proof = Proof::of_end(&space.uffd).or_else(|| space.core().table.all_back());
    let Some(proof) = proof.filter(|_| bequeath(space, &context.shared)) else { return false };
    context.workers.unwatch(space);
    context.registry.unfurnish(space);
    if let Some(task) = space.task() {
        let mut evicting = space.evicting.lock();
        let stub = evicting.stub.take();
        drop(evicting);
        // What is not registered changes without a word: an annexd that comes after this one must
        // not find a record that says of such a page that the pool has a copy of it. Nor can it
        // tell who lives there once the stub is gone: it is told to do the rest.
        space.forget_records(&context.shared);
        space.core().table.leave();
        // Threads that wait for a page are woken by this and find it present, or get it from the
        // kernel.
        unregister_all(space, task);
        space.uffd.ring().iter().for_each(|ring| ring.end());
        if let Some(stub) = stub {
            space.forget_staging();
            failpoint("stub-goes");
            tracer_process::remove(stub, space.pid().unwrap_or(task), &space.uffd);
            failpoint("stub-gone");
        }
    }
    context.registry.remove(space, proof);
    space.release_all(&context.shared);
    // The context ends with its last user: workers may hold it for a moment yet.
    for _ in 0..1000 {
        if Arc::strong_count(space) == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Ranges and not mappings: a mapping that has grown since we looked would be split where it ended
/// then, and the program's own mremap would fail.
fn unregister_all(space: &Space, task: i32) {
    let mapped = process::maps(task).unwrap_or_default();
    failpoint("mappings-read");
    let unregister = |(start, end): (u64, u64)| space.uffd.unregister(start, end - start);
    let ranges = match space.app.region() {
        Some(region) => vec![region],
        None => anonymous_ranges(&mapped),
    };
    for range in ranges.into_iter().filter(|range| unregister(*range).is_err()) {
        // Something that can't be registered has come to lie in it.
        let within = mapped.iter().filter(|m| range.0 <= m.start && m.end <= range.1);
        within.for_each(|m| unregister((m.start, m.end)).unwrap_or_default());
    }
}

/// Ranges of anonymous mappings, each as far as mappings of other kinds let it reach.
fn anonymous_ranges(mapped: &[Mapping]) -> Vec<(u64, u64)> {
    let of_a_kind: Vec<_> = mapped.chunk_by(|a, b| a.is_anonymous() == b.is_anonymous()).collect();
    let mut ranges = Vec::new();
    for (i, kind) in of_a_kind.iter().enumerate().filter(|(_, kind)| kind[0].is_anonymous()) {
        let below = i.checked_sub(1).map_or(kind[0].start, |i| of_a_kind[i][of_a_kind[i].len() - 1].end);
        let above = of_a_kind.get(i + 1).map_or(kind[kind.len() - 1].end, |kind| kind[0].start);
        ranges.push((below, above));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_mappings_of_other_kinds_do() {
        let listed = "10000-20000 r-xp 00000000 08:01 77 /bin/program\n\
                      30000-40000 rw-p 00000000 00:00 0 [heap]\n\
                      50000-60000 ---p 00000000 00:00 0\n\
                      70000-80000 r--p 00000000 08:01 78 /lib/one.so\n\
                      80000-90000 r--p 00000000 08:01 79 /lib/two.so\n\
                      90000-a0000 rw-p 00000000 00:00 0\n\
                      b0000-c0000 rw-p 00000000 00:00 0 [stack]\n\
                      d0000-e0000 rw-p 00000000 00:00 0\n";
        let mapped: Vec<_> = listed.lines().filter_map(Mapping::parse).collect();
        assert_eq!(mapped.len(), 8);
        assert_eq!(anonymous_ranges(&mapped), [(0x20000, 0x70000), (0x90000, 0xb0000), (0xc0000, 0xe0000)]);
        assert_eq!(anonymous_ranges(&[]), []);
    }
}
