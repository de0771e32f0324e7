//! Taking over from an annexd that is gone: killed, crashed, or replaced by a newer build.
//!
//! The order, and why:
//! 1. *Open* ([`PreviousState::open`]). Half-made transactions are undone. Stubs come to rest, and
//!    records say what they had moved, before any message is read: until then the pages are where
//!    the intents say.
//! 2. *Count* ([`PreviousState::references`]): the pool learns which slots are in use. Slots of
//!    evictions that were under way rest for a while, since a WRITE of theirs may still arrive.
//! 3. *Adopt* ([`PreviousState::adopt`]): spaces and apps are made anew from the tables and entered
//!    in the new keeper's index. From there on the old keeper is not needed.
//! 4. *Catch up*: messages that were read and not applied are applied; evictions that were cut
//!    short are put back.
//! 5. *Wake*: everybody who waits for a page faults again, since a fault that was read is known to
//!    nobody any more.
//!
//! Killed anywhere in between, the next annexd finds the same and starts again.

use crate::app::app_registry::AppRegistry;
use crate::app::{App, membership};
use crate::events::{Window, bequeath, change};
use crate::inject::stub::Stub;
use crate::inject::{AttachContext, tracer_process};
use crate::kernel::process::Stat;
use crate::kernel::uffd::{Event, Message, Proof, Uffd};
use crate::kernel::{Mm, Waiters, process};
use crate::recovery::ledger::{Ledger, LedgerError};
use crate::recovery::{rollback, staged};
use crate::space::{Phase, Record, Space, SpaceId, Table, TableError};
use annex_host::event;
use annex_host::events::DAEMON;
use annex_host::failpoint::failpoint;
use annex_host::fd_keeper::{Inheritance, Kept};
use annex_pool::SlotRun;
use annex_shared::api::Target;
use annex_shared::ids::SlotIdx;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a stub may take to finish what it was rung for.
const STUB_PATIENCE: Duration = Duration::from_secs(2);
/// The end of what a process can map.
pub(crate) const TASK_SIZE: u64 = (1 << 47) - 4096;

/// What was left can't be taken over, and is left alone.
#[derive(Debug, thiserror::Error)]
pub enum PreviousStateError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("programs wait for their memory, but the {0} of the annexd before is not among what was kept for it")]
    Missing(&'static str),
}

/// One address space as it was left.
struct Left {
    table: Table,
    uffd: Uffd,
    stub: Option<Stub>,
    mm: Option<Mm>,
    /// Messages read and not applied, by their place in the journal.
    pending: Vec<(usize, Message)>,
    /// The userfaultfd of each pending FORK, by its place.
    forked: HashMap<usize, OwnedFd>,
}

/// All that an annexd has left.
pub struct PreviousState {
    pub ledger: Ledger,
    spaces: Vec<Left>,
    /// Apps that can't go on, and why.
    ruined: Vec<(u64, String)>,
    /// Held so that nobody reads zeros until the ruined have ended.
    orphans: Vec<OwnedFd>,
    next_id: u64,
}

impl PreviousState {
    pub fn open(inheritance: &mut Inheritance) -> Result<Option<PreviousState>, PreviousStateError> {
        let numbers = inheritance.names(|kept| match kept {
            Kept::Table(space) => Some(space),
            _ => None,
        });
        let Some(ledger) = inheritance.take(Kept::Ledger) else {
            return if numbers.is_empty() { Ok(None) } else { Err(PreviousStateError::Missing("list of apps")) };
        };
        let ledger = Ledger::open(ledger)?;
        let mut previous =
            PreviousState { ledger, spaces: Vec::new(), ruined: Vec::new(), orphans: Vec::new(), next_id: 1 };
        let mut tables: HashMap<u64, Table> = HashMap::new();
        for number in numbers {
            previous.next_id = previous.next_id.max(number + 1);
            let Some(fd) = inheritance.take(Kept::Table(number)) else { continue };
            tables.insert(number, Table::open(fd)?);
        }
        // A child that was being made when its parent's annexd ended is made again, from the
        // parent's records and the same userfaultfd.
        let mut half_made: HashMap<u64, OwnedFd> = HashMap::new();
        let parents: Vec<(u64, u64)> = tables.iter().filter_map(|(n, t)| Some((*n, t.half_forked()?))).collect();
        for (parent, child) in parents {
            tables.remove(&child);
            half_made.extend(inheritance.take(Kept::Userfaultfd(child)).map(|fd| (parent, fd)));
        }
        for (number, table) in tables {
            match inheritance.take(Kept::Userfaultfd(number)) {
                Some(uffd) => previous.take_in(table, uffd, inheritance, half_made.remove(&number)),
                // It was being let go of, and nothing was evicted from it any more; or else it
                // can't go on.
                None if table.evicted() > 0 => previous.ruin(table.app(), "a userfaultfd of its was not kept"),
                None => {}
            }
        }
        Ok(Some(previous))
    }

    fn ruin(&mut self, app: u64, why: impl Into<String>) {
        self.ruined.push((app, why.into()));
    }

    fn take_in(&mut self, mut table: Table, uffd: OwnedFd, from: &mut Inheritance, half_made: Option<OwnedFd>) {
        let uffd = Uffd::adopt(uffd);
        let uffd = match self.region_of(&table) {
            None => uffd,
            Some(range) => {
                let fds = from.take(Kept::Ring(table.space())).zip(from.take(Kept::Bell(table.space())));
                match fds.map(|(ring, bell)| Waiters::new(ring, bell, range)) {
                    Some(Ok(waiters)) => uffd.with_ring(waiters),
                    _ => {
                        self.ruin(table.app(), "its ring was not kept");
                        uffd
                    }
                }
            }
        };
        if let Some(proof) = table.all_back().filter(|_| table.is_leaving() && !uffd.is_dead()) {
            return leave(&table, uffd, proof);
        }
        // One that has ended is taken in, too: what was read of it and not applied may be the fork
        // of a child that lives.
        let mut stub = table.stub().and_then(|traces| Stub::adopt(&traces, &uffd));
        let space = table.space();
        let kept = from.take(Kept::Memory(space)).zip(from.take(Kept::Pagemap(space)));
        let mm = kept.map(|(memory, pagemap)| Mm::kept(memory, pagemap)).or_else(|| open(&table, stub.as_ref()));
        if table.intent().is_some_and(|intent| intent.phase == Phase::Moving) {
            let rests = stub.as_mut().is_some_and(|stub| stub.quiesce(STUB_PATIENCE));
            if !rests {
                table.stub().iter().for_each(Stub::end);
                stub = None;
            }
            if let Err(error) = staged::records_as_moved(&mut table, &uffd, mm.as_ref()) {
                staged::poison_unsettled(&mut table);
                self.ruin(table.app(), format!("annexd ended during an eviction, and {error}"));
            }
        }
        let pending = table.unapplied();
        let mut forked = HashMap::new();
        let mut half_made = half_made;
        let changes = pending.iter().filter(|(_, message)| !matches!(message.event(), Event::Fault { .. }));
        for (number, (nth, message)) in (table.changes() + 1..).zip(changes) {
            if let Event::Fork { uffd } = message.event() {
                let name = Kept::Forked(table.space() as u32, number as u32);
                let fd = from.take(name).or_else(|| half_made.take()).or_else(|| from.by_number(uffd));
                match fd {
                    Some(fd) => drop(forked.insert(*nth, fd)),
                    None => {
                        self.ruin(table.app(), "a child was forked as annexd was killed, and its userfaultfd is lost")
                    }
                }
            }
        }
        self.spaces.push(Left { table, uffd, stub, mm, pending, forked });
    }

    /// The region whose pages are in the table; not that of a forked child, which can have none.
    fn region_of(&self, table: &Table) -> Option<(u64, u64)> {
        let entries = self.ledger.entries();
        let entry = entries.iter().find(|entry| entry.id == table.app())?;
        match entry.target {
            Target::Region { pid, address, length } if pid == table.pid() => Some((address, address + length)),
            _ => None,
        }
    }

    /// Every reference to a slot, once for each.
    pub fn references(&self, each: &mut dyn FnMut(SlotIdx)) {
        let (start, end) = Table::everything();
        for left in &self.spaces {
            left.table.walk(start, end, |_, record| record.slot().into_iter().for_each(&mut *each));
            let window = left.table.saved_window().and_then(|words| Window::restored(&words));
            window.iter().flat_map(Window::slots).for_each(&mut *each);
        }
        self.unsettled().into_iter().for_each(each);
    }

    /// Slots of evictions that were under way: each has a reference more than its records', to be
    /// given up when they have rested.
    fn unsettled(&self) -> BTreeSet<SlotIdx> {
        let intents = self.spaces.iter().filter_map(|left| left.table.intent());
        intents.flat_map(|intent| intent.victims.into_iter().flat_map(|v| [v.slot, v.before])).collect()
    }

    /// The first number that no space has had.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Steps 3 to 5. Nobody watches the spaces yet, and nothing is evicted.
    pub fn adopt(
        self,
        context: &Arc<AttachContext>,
        app_registry: &AppRegistry,
        generation: u64,
    ) -> Result<(), PreviousStateError> {
        let started = Instant::now();
        let PreviousState { ref ledger, .. } = self;
        let apps: Vec<Arc<App>> = ledger.entries().iter().map(rebuild_app).collect();
        let resting: Vec<SlotRun> = self.unsettled().into_iter().map(|first| SlotRun { first, count: 1 }).collect();
        // A child that a pending FORK brings is served at once; what is in staging must be waited
        // for.
        context.shared.in_flight.begin(&resting);
        let mut spaces = Vec::new();
        let mut windows = Vec::new();
        let mut stray = Vec::new();
        for left in self.spaces {
            let Some(app) = apps.iter().find(|app| app.id == left.table.app()) else {
                stray.push(left);
                continue;
            };
            let words = left.table.saved_window();
            let space = take_up(context, app, left.table, left.uffd, (left.stub, left.mm));
            context.registry.insert(space.clone());
            context.registry.furnished(&space);
            for (nth, fd) in &left.forked {
                let name = forked_name(&space, &left.pending, *nth);
                context.registry.keeper.keep(name, fd.as_fd());
            }
            windows.push((space.clone(), words));
            spaces.push((space, left.pending, left.forked));
        }
        for (space, words) in windows {
            match words.and_then(|words| Window::restored(&words)) {
                Some(window) => {
                    let children = window.children().into_iter().filter_map(|id| context.registry.space(id));
                    for child in children {
                        *child.elder.lock() = Some((Arc::downgrade(&space), started));
                    }
                    space.core().window = window;
                }
                None => {
                    space.app.stop("annexd was killed while it was changing more mappings than can be kept track of")
                }
            }
        }
        apps.iter().for_each(|app| app_registry.add(app.clone()));
        for (app, why) in &self.ruined {
            apps.iter().filter(|a| a.id == *app).for_each(|a| a.stop(why));
        }
        for left in stray {
            abandon(context, left);
        }
        // A process that ruined it for its app ends now; until then nobody may read through it.
        self.orphans.into_iter().for_each(std::mem::forget);
        context.registry.keeper.complete(generation);
        failpoint("adopted");

        // Children first: what a young one has changed itself counts when its parent's changes are
        // followed.
        spaces.sort_by_key(|(space, ..)| Reverse(space.id));
        for (space, pending, forked) in spaces.iter_mut().map(|(s, p, f)| (&*s, &*p, f)) {
            catch_up(context, space, pending, forked);
        }
        failpoint("caught-up");
        for space in spaces.iter().map(|(space, ..)| space).filter(|space| space.uffd.is_dead()) {
            // Nobody else has a core: there is nothing to wait for but its parent's stub.
            while !bequeath(space, &context.shared) {}
        }
        failpoint("bequeathed");
        for (space, ..) in &spaces {
            roll_back(context, space);
        }
        failpoint("rolled-back");
        let parked = context.shared.in_flight.settle(&resting);
        context.workers.serve(parked);
        resting.into_iter().for_each(|run| context.shared.pool.rest(run));
        // The manager forgets those that have ended.
        for space in context.registry.all().into_iter().filter(|space| !space.uffd.is_dead()) {
            if context.workers.watch(&space).is_err() {
                space.app.stop("its userfaultfd could not be watched");
            }
            space.uffd.wake(4096, TASK_SIZE - 4096);
            space.uffd.ring().iter().for_each(|ring| ring.release_all());
        }
        let (apps, spaces, took) = (apps.len(), context.registry.all().len(), started.elapsed());
        event!(INFO, TookOver of DAEMON, "took over {apps} apps with {spaces} address spaces in {took:?}");
        Ok(())
    }
}

/// Does the rest of what the annexd before was at: to let go of an address space that has
/// everything back. Its process is as one that was never attached.
fn leave(table: &Table, uffd: Uffd, proof: Proof) {
    let pid = table.pid();
    let traces = table.stub();
    match traces.as_ref().and_then(|traces| Stub::adopt(traces, &uffd)) {
        Some(stub) => tracer_process::remove(stub, pid, &uffd),
        // What a dead stub had mapped may be there still.
        None => traces.iter().filter(|traces| !Stub::is_elsewhere(traces, pid)).for_each(|traces| {
            tracer_process::reap(pid, traces.pid, &traces.mappings());
        }),
    }
    uffd.ring().iter().for_each(|ring| ring.end());
    // Closed with its last owner: then nothing is registered any more, and whoever waits is woken.
    uffd.let_go(proof);
}

/// The app as it is written down, with those of its processes that live.
fn rebuild_app(entry: &crate::recovery::ledger::Entry) -> Arc<App> {
    let app = App::new(entry.id, entry.name.clone(), entry.uid, entry.target.clone(), entry.limit)
        .of_ordinary_user(entry.of_ordinary_user)
        .with_auto(entry.auto);
    app.note(entry.note.clone());
    for (pid, started) in &entry.members {
        if let Some(stat) = Stat::read(*pid).filter(|stat| stat.started == *started && process::living(*pid).is_some())
        {
            membership::join(&app, *pid, &stat);
        }
    }
    Arc::new(app)
}

/// The space over its table.
fn take_up(
    context: &AttachContext,
    app: &Arc<App>,
    table: Table,
    uffd: Uffd,
    (stub, mm): (Option<Stub>, Option<Mm>),
) -> Arc<Space> {
    let (id, pid, traces) = (SpaceId(table.space()), table.pid(), table.stub());
    let suspects: BTreeSet<_> = table
        .half_installed()
        .chain(table.suspects())
        .filter(|page| matches!(table.record(*page), Record::Evicted(_)))
        .collect();
    let space = Arc::new(Space::new(id, app.clone(), uffd, table));
    {
        let mut core = space.core();
        core.suspects = suspects;
        core.note_suspects();
    }
    if pid != 0 && !space.uffd.is_dead() {
        space.resume(pid, stub, traces, mm);
        app.running();
        // Else the manager looks for whoever lives there.
        if !space.was_left_by(pid)
            && let Some(member) = app.members.lock().iter_mut().find(|m| m.pid == pid)
        {
            member.space = Some(space.identity.clone());
            member.keep(&context.registry.keeper);
        }
    }
    space
}

/// Nobody's space: its processes can't be found any more, but for the one it is of.
fn abandon(context: &AttachContext, left: Left) {
    let (start, end) = Table::everything();
    let release = |slot| context.shared.pool.release(slot);
    left.table.walk(start, end, |_, record| record.slot().into_iter().for_each(release));
    let mark = left.table.stub().map(|traces| traces.mark());
    for (pid, stat) in mark.iter().flat_map(|mark| mark.processes(None)) {
        tracing::error!(pid, "the memory of {} belongs to no app that is known: it is ended", stat.comm);
        if let Ok(pidfd) = process::pidfd_open(pid) {
            let _ = process::pidfd_kill(pidfd.as_fd(), libc::SIGKILL);
        }
    }
    // Never closed: should somebody still run there, it waits.
    std::mem::forget(left.uffd);
}

fn forked_name(space: &Space, pending: &[(usize, Message)], nth: usize) -> Kept {
    let is_change = |m: &Message| !matches!(m.event(), Event::Fault { .. });
    let before = pending.iter().filter(|(n, m)| *n < nth && is_change(m)).count() as u64;
    Kept::Forked(space.id.0 as u32, (space.core().table.changes() + 1 + before) as u32)
}

/// Applies what was read and not applied.
fn catch_up(
    context: &AttachContext,
    space: &Arc<Space>,
    pending: &[(usize, Message)],
    forked: &mut HashMap<usize, OwnedFd>,
) {
    let keeper = &context.registry.keeper;
    for (nth, message) in pending {
        let name = forked_name(space, &pending[pending.iter().position(|(n, _)| n == nth).unwrap_or(0)..], *nth);
        let event = match message.event() {
            Event::Fault { .. } => continue,
            Event::Fork { .. } => match forked.remove(nth) {
                Some(uffd) => Event::Fork { uffd: uffd.into_raw_fd() },
                // Its app is being stopped for it.
                None => continue,
            },
            other => other,
        };
        change(space, &mut space.core(), *nth, event, &context.shared);
        if matches!(event, Event::Fork { .. }) {
            keeper.let_go(name);
        }
    }
    // Even if there was nothing to do: the annexd before may have applied all of it, and ended
    // before it said that the journal is empty. What is read next would count as applied, too.
    space.core().table.clear_journal(crate::space::JOURNAL_MESSAGES);
}

/// Puts back what an eviction had taken out, and sees that there is a stub, or none.
fn roll_back(context: &Arc<AttachContext>, space: &Arc<Space>) {
    let rolled_back = rollback::bring_back(&context.registry, &context.shared, space, &|_| ());
    if let Err(error) = rolled_back {
        space.app.stop(&format!("annexd ended during an eviction, and {error}"));
    }
    let Some(pid) = space.pid().filter(|_| !space.uffd.is_dead()) else { return };
    if let Some(stub) = &mut space.evicting.lock().stub {
        if !stub.is_ringing() {
            // The batch before may not have come to this.
            stub.prepare_release().ring();
        }
        return;
    }
    let traces = space.core().table.stub();
    traces.iter().for_each(|traces| context.clear_away(space, pid, traces));
}

/// The address space that a table is about, seen through whoever lives there.
fn open(table: &Table, stub: Option<&Stub>) -> Option<Mm> {
    let of_process = || {
        let traces = table.stub()?;
        traces.mark().task_of(table.pid())
    };
    Mm::open(stub.map(Stub::pid).or_else(of_process)?).ok()
}
