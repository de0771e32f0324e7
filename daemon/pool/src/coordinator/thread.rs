//! The coordinator: carries out what the book decides, and tells it what happened. One thread,
//! woken by news; it never waits for the network.

use crate::PoolError;
use crate::coordinator::book::{Action, Book, Grade, Headroom, LeasedReplica, Rules};
use crate::coordinator::incidents::Incidents;
use crate::coordinator::news::News;
use crate::core::{Allocatable, PoolCore};
use crate::donor::dial::Dialer;
use crate::donor::thread::{Command, DonorThread};
use crate::metadata::replica::{REPLICA_ENTRIES, Replica, ReplicaState};
use crate::metadata::slots::SlotRun;
use crate::repair;
use crate::repair::task::Task;
use annex_host::events::{self, EventKind, POOL};
use annex_host::sentinel::Sentinel;
use annex_host::{event, repeated};
use annex_shared::api::DonorState;
use annex_shared::ids::{DonorId, ExtentId};
use annex_shared::page::PAGE_SIZE;
use annex_shared::wire::Lease;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The coordinator, which waits `LOOK_EVERY` at most, did not run for so long: the machine was
/// frozen, or a virtual one was paused.
pub(crate) const STOOD_STILL: Duration = Duration::from_secs(3);
/// Without news the coordinator looks around this often: idle extents and stock, donors whose time
/// is up.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Slots of a write whose end was not seen are kept from reuse at least this long, and for one and
/// a half times the longest life of a lease. A new connection fences the old one, so this matters
/// only when there is no new one: a write that an agent has not executed by then is refused, since
/// its lease is over, or it was renewed, which shows that the agent runs.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(15);

struct Coordinator {
    core: Arc<PoolCore>,
    book: Book,
    dialer: Arc<dyn Dialer>,
    donors: BTreeMap<DonorId, DonorThread>,
    quarantine: VecDeque<(Instant, SlotRun)>,
    quarantine_for: Duration,
    /// Pages taken since `since`, and in the window before it.
    taken: (u64, u64),
    since: Instant,
    incidents: Incidents,
}

/// Starts the donor threads and the coordinator; the handle of the coordinator, who ends the
/// others.
pub(crate) fn start(
    core: &Arc<PoolCore>,
    dialer: Arc<dyn Dialer>,
    news: Receiver<News>,
    tasks: Receiver<Task>,
) -> Result<Vec<JoinHandle<()>>, PoolError> {
    let now = Instant::now();
    let rules = Rules {
        replicas: core.config.replicas.into(),
        away_after: core.config.away_after.0,
        lost_after: core.config.lost_after.0,
        last_copy_lost_after: core.config.last_copy_lost_after.0,
        rebalance: core.config.rebalance,
        idle_return: core.config.idle_return.0,
        max_extents: 0,
        slots_per_extent: 0,
        spill: core.spill,
    };
    let mut book = Book::new(rules, rand::random());
    if let Some(slots) = core.extents.slots_per_extent() {
        book.set_geometry(slots, max_extents(core, slots));
    }
    for (extent, _) in core.extents.live() {
        let leased = |r: Replica| LeasedReplica {
            donor: r.donor,
            incarnation: r.incarnation,
            lease: Lease { slab: r.slab, rkey: r.rkey },
            state: r.state,
        };
        let replicas = (0..REPLICA_ENTRIES as u8).map(|n| leased(core.extents.replica(extent, n)));
        // The book says which are not whole.
        core.allocatable.lock().extents.push(Allocatable { extent, grade: Grade::Whole });
        book.adopt(extent, replicas.collect(), now);
    }
    let mut donors = BTreeMap::new();
    for donor in core.donors() {
        let config = donor.config.lock().clone();
        donors.insert(donor.id, DonorThread::start(core, donor.id, config, dialer.clone())?);
    }
    let mut coordinator = Coordinator {
        core: core.clone(),
        book,
        dialer,
        donors,
        quarantine: VecDeque::new(),
        quarantine_for: QUARANTINE,
        taken: (0, 0),
        since: now,
        incidents: Incidents::default(),
    };
    let name = "annex-coord".to_owned();
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
        let _sentinel = Sentinel("the pool's coordinator");
        coordinator.act();
        coordinator.run(&news);
    });
    let coordinator = thread.map_err(|source| PoolError::Thread { name, source })?;
    Ok(vec![repair::thread::start(core, tasks)?, coordinator])
}

/// As many as slot numbers and `max_bytes` allow.
fn max_extents(core: &PoolCore, slots: u32) -> u32 {
    let most = core.extents.max_extents();
    match core.config.max_bytes.0 {
        0 => most,
        max => most.min(u32::try_from(max / (u64::from(slots) * PAGE_SIZE as u64)).unwrap_or(u32::MAX)),
    }
}

impl Coordinator {
    fn run(&mut self, news: &Receiver<News>) {
        let mut last = Instant::now();
        loop {
            let now = Instant::now();
            if now.duration_since(last) >= STOOD_STILL {
                tracing::warn!(
                    "nothing ran here for {:?}: absences of donors are counted anew",
                    now.duration_since(last)
                );
                self.book.stood_still(now);
            }
            last = now;
            let wait = self.book.due().map_or(LOOK_EVERY, |at| at.saturating_duration_since(now).min(LOOK_EVERY));
            match news.recv_timeout(wait) {
                Ok(News::Stop { give_back }) => return self.stop(give_back),
                Ok(item) => self.take(item),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.stop(false),
            }
            // What came meanwhile is taken along, so that many small news make one look around.
            while let Ok(item) = news.try_recv() {
                if let News::Stop { give_back } = item {
                    return self.stop(give_back);
                }
                self.take(item);
            }
            self.look();
        }
    }

    fn take(&mut self, news: News) {
        let now = Instant::now();
        match news {
            News::Up { donor, slots_per_extent, ttl, said } => {
                self.quarantine_for = self.quarantine_for.max(ttl * 3 / 2);
                self.book.set_geometry(slots_per_extent, max_extents(&self.core, slots_per_extent));
                self.book.up(donor, said, now);
            }
            News::Down { donor } => self.book.down(donor, now),
            News::Closing { donor, grace } => self.book.closing(donor, grace, now),
            News::Recalled { donor, slabs, deadline } => self.book.recalled(donor, &slabs, deadline),
            News::Late { donor } => self.book.late(donor, now),
            News::Hung { donor } => self.book.hung(donor, now),
            News::Leased { donor, leases } => self.book.leased(donor, leases, now),
            News::LeaseRefused { donor } => self.book.refused(donor, now),
            News::Renewed { donor, held, free, asked } => {
                let latency = self.core.donor(donor).map_or(0, |d| d.stats.latency_ns.load(Relaxed));
                self.book.measured(donor, latency);
                self.book.renewed(donor, &held, free, asked, now);
            }
            News::LaneOpened(lane) => self.donors.values().for_each(|d| d.send(Command::Open { lane, old: None })),
            News::EndpointBroken { lane, donor, endpoint } => {
                if let Some(thread) = self.donors.get(&donor) {
                    thread.send(Command::Open { lane, old: endpoint });
                }
            }
            News::EndpointRetired { endpoint } => drop(endpoint),
            News::ReplicaStale { extent, index, generation, why } => {
                self.report(extent, index, "stale", why);
                self.core.wake_lanes();
                if let Some(donor) = self.still(extent, index, generation, ReplicaState::Stale) {
                    self.book.replica_stale(extent, index, donor, now);
                }
            }
            News::FellBehind { extent, indexes } => {
                self.core.wake_lanes();
                for index in (0..REPLICA_ENTRIES as u8).filter(|n| indexes & 1 << n != 0) {
                    self.fell_behind(extent, index, now);
                }
            }
            News::Filled { extent, index, generation } => {
                if self.core.extents.go_live(extent, index, generation) {
                    self.core.changed();
                    self.core.wake_lanes();
                    tracing::info!("replica {index} of {extent} is whole and live");
                    self.book.synced(extent, index, now);
                } else if self.still(extent, index, generation, ReplicaState::Syncing).is_some() {
                    self.fill(extent, index, generation);
                }
            }
            News::Quarantine(run) => self.quarantine.push_back((now + self.quarantine_for, run)),
            News::Discard(run) => {
                self.core.discarded.add(run);
                self.quarantine.push_back((now + self.quarantine_for, run));
            }
            News::Taken | News::Wanted => {}
            News::DonorAdded { donor } => self.add_donor(donor),
            News::DonorRemoved { donor } => self.book.remove(donor),
            News::Stop { .. } => {}
        }
        self.act();
    }

    fn look(&mut self) {
        let now = Instant::now();
        while let Some((_, run)) = self.quarantine.pop_front_if(|(until, _)| *until <= now) {
            self.core.discarded.remove(run);
            self.core.release_run(run);
        }
        self.book.tick(now);
        self.act();
        let room = self.room(now);
        self.book.balance(&room, now);
        self.act();
        {
            let mut allocatable = self.core.allocatable.lock();
            (allocatable.dry, allocatable.full) = (self.book.is_dry(), self.book.is_full());
            (allocatable.spills, allocatable.degrades) = (self.book.spills(), self.book.degrades());
            allocatable.looks += 1;
        }
        self.core.allocatable_changed.notify_all();
        self.incidents.look(&self.core, self.book.is_whole(), now);
        for donor in self.core.donors() {
            donor.view.lock().held = self.book.held(donor.id);
        }
        self.core.counts.crowded.store(self.book.crowded(), Relaxed);
        self.core.counts.moving.store(self.book.moving(), Relaxed);
        self.core.counts.stuck.store(self.book.stuck(Instant::now()), Relaxed);
    }

    fn room(&mut self, now: Instant) -> Headroom {
        let slots = self.core.extents.slots_per_extent().unwrap_or(0);
        let mut allocatable = self.core.allocatable.lock();
        self.taken.0 += std::mem::take(&mut allocatable.taken);
        let taken = self.taken.0.max(self.taken.1);
        if now.duration_since(self.since) >= LOOK_EVERY {
            (self.taken, self.since) = ((0, self.taken.0), now);
        }
        let mut room = Headroom { wanted: std::mem::take(&mut allocatable.wanted), taken, ..Headroom::default() };
        for entry in &allocatable.extents {
            let free = self.core.slots.free_count(entry.extent);
            match entry.grade {
                Grade::Whole => room.free += u64::from(free),
                Grade::LastTier => room.spilled += u64::from(free),
                Grade::Degraded if self.core.is_writable(entry.extent) => room.degraded += u64::from(free),
                Grade::Degraded => {}
            }
            if free == slots {
                room.empty.push(entry.extent);
            }
        }
        room
    }

    fn act(&mut self) {
        let mut changed = false;
        loop {
            let actions = self.book.actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Lease(donor) => self.command(donor, Command::Lease),
                    Action::Ask(donor) => self.command(donor, Command::Renew),
                    Action::Silent(donor, is_silent) => self.silent(donor, is_silent),
                    Action::Return(donor, leases) => self.command(donor, Command::Return(leases)),
                    Action::Publish(extent, replicas) => self.publish(extent, &replicas),
                    Action::MarkLost { extent, index, why } => {
                        let generation = self.core.extents.replica(extent, index).generation;
                        if self.core.mark_lost(extent, index, generation) {
                            self.report(extent, index, "lost", why);
                            changed = true;
                        }
                    }
                    Action::MarkStale { extent, index, why } => {
                        let generation = self.core.extents.replica(extent, index).generation;
                        if self.core.mark_stale(extent, index, generation) {
                            self.report(extent, index, "stale", why);
                            changed = true;
                        }
                    }
                    Action::Add { extent, index, leased } => changed |= self.add_replica(extent, index, &leased),
                    Action::Resync { extent, index, leased } => changed |= self.resync(extent, index, &leased),
                    Action::Promote { extent, index } => changed |= self.promote(extent, index),
                    Action::Remove { extent, index } => {
                        let generation = self.core.extents.replica(extent, index).generation;
                        let others = self.core.config.replicas.into();
                        let is_removed = self.core.extents.remove_replica(extent, index, generation, others);
                        changed = true;
                        self.book.replica_removed(extent, index, is_removed, Instant::now());
                    }
                    Action::Grade(extent, grade) => self.weighed(extent, grade),
                    Action::DonorRemoved(donor) => self.removed(donor),
                    Action::Retire(extent) => self.retire(extent),
                    Action::Abandon(donor) => {
                        if let Some(donor) = self.core.donor(donor) {
                            let mut view = donor.view.lock();
                            // Each attempt to reach it that fails begins another absence.
                            if view.state == DonorState::Connecting {
                                view.state = DonorState::Lost;
                                let (name, why) = (&view.name, &view.why);
                                event!(WARN, DonorLost of name, "donor {name} counts as lost, its copies are made anew elsewhere: {why}");
                            }
                        }
                    }
                }
            }
        }
        if changed {
            self.core.changed();
            self.core.wake_lanes();
        }
    }

    /// Lanes give up what is under way on a silent donor.
    fn silent(&self, donor: DonorId, is_silent: bool) {
        if let Some(donor) = self.core.donor(donor) {
            donor.silent.store(is_silent, Relaxed);
        }
        let name = self.core.plain_name(donor);
        match is_silent {
            true => {
                event!(WARN, DonorAway of &name, "donor {name} does not answer: writes go on without it until its agent does");
            }
            false => event!(INFO, DonorBack of &name, "donor {name} answers again"),
        }
    }

    fn add_donor(&mut self, id: DonorId) {
        let Some(donor) = self.core.donor(id) else { return };
        donor.view.lock().draining = false;
        let config = donor.config.lock().clone();
        match DonorThread::start(&self.core, id, config, self.dialer.clone()) {
            Ok(thread) => {
                event!(INFO, DonorAdded of &donor.address, "donor {} was added", donor.address);
                self.book.welcome_back(id);
                if let Some(before) = self.donors.insert(id, thread) {
                    before.dismiss();
                }
            }
            Err(error) => tracing::error!("failed to add donor {}: {error}", donor.address),
        }
    }

    fn removed(&mut self, id: DonorId) {
        if let Some(thread) = self.donors.remove(&id) {
            thread.dismiss();
        }
        let Some(donor) = self.core.donor(id) else { return };
        // The next annexd need not know it.
        self.core.extents.donor(&donor.address, false);
        *donor.config.lock() = None;
        let mut view = donor.view.lock();
        (view.state, view.draining) = (DonorState::Lost, false);
        view.why = "it was removed".to_owned();
        event!(INFO, DonorRemoved of &view.name, "donor {} is empty and was removed", view.name);
    }

    fn command(&self, donor: DonorId, command: Command) {
        if let Some(thread) = self.donors.get(&donor) {
            thread.send(command);
        }
    }

    /// The donor of a replica that is still the one and in the state that was told.
    fn still(&self, extent: ExtentId, index: u8, generation: u16, state: ReplicaState) -> Option<DonorId> {
        let now = self.core.extents.replica(extent, index);
        (now.generation == generation && now.state == state).then_some(now.donor)
    }

    fn fill(&self, extent: ExtentId, index: u8, generation: u16) {
        let live = match self.core.extents.replica(extent, index).state {
            // A backup is in no hurry.
            ReplicaState::Backup => usize::MAX,
            _ => self.core.extents.replicas(extent).map_or(0, |r| r.live()),
        };
        self.core.mend(Task::Fill { extent, index, generation, live });
    }

    fn fell_behind(&mut self, extent: ExtentId, index: u8, now: Instant) {
        let replica = self.core.extents.replica(extent, index);
        if replica.state == ReplicaState::Syncing {
            self.book.replica_fell_behind(extent, index, now);
            self.fill(extent, index, replica.generation);
        }
    }

    fn add_replica(&self, extent: ExtentId, index: u8, leased: &LeasedReplica) -> bool {
        let replica = Replica::live(leased.donor, leased.lease.slab, leased.incarnation, leased.lease.rkey);
        let Some(generation) = self.core.extents.add_replica(extent, index, &replica, leased.state) else {
            return false;
        };
        tracing::info!("{extent} gets a new replica on {}", self.core.donor_name(leased.donor));
        self.fill(extent, index, generation);
        true
    }

    fn resync(&mut self, extent: ExtentId, index: u8, leased: &LeasedReplica) -> bool {
        let before = self.core.extents.replica(extent, index);
        let same = before.incarnation == leased.incarnation && before.rkey == leased.lease.rkey;
        let joined = match same {
            true => self.core.extents.resync(extent, index, leased.state),
            false => self.core.extents.resume(extent, index, leased.incarnation, leased.lease.rkey),
        };
        let Some(joined) = joined else { return false };
        self.book.resync_began(extent, index, joined.state, Instant::now());
        let missed = self.core.extents.missed_count(extent, index, |_, bits| bits);
        let (name, state) = (self.core.donor_name(leased.donor), joined.state.name());
        tracing::info!(
            "replica {index} of {extent} on {name} was {}, is {state}: {missed} slots to copy",
            before.state.name()
        );
        self.fill(extent, index, joined.generation);
        true
    }

    fn promote(&mut self, extent: ExtentId, index: u8) -> bool {
        // In a slot that nobody uses nothing is lost.
        let in_use = |word, bits| bits & self.core.slots.used_bits(word);
        let Some(lacking) = self.core.extents.promote(extent, index, in_use) else { return false };
        self.book.synced(extent, index, Instant::now());
        if lacking > 0 {
            let said =
                format!("replica {index} of {extent} is all that is left of it: what it had not got yet is lost");
            repeated!(ERROR, "a replica is all that is left" of "", "{said}");
            events::record(EventKind::PageLost, POOL, None, &said);
        }
        true
    }

    fn publish(&self, extent: ExtentId, replicas: &[LeasedReplica]) {
        let Some(slots) = self.core.extents.slots_per_extent() else { return };
        let replica = |p: &LeasedReplica| Replica::live(p.donor, p.lease.slab, p.incarnation, p.lease.rkey);
        let replicas: Vec<Replica> = replicas.iter().map(replica).collect();
        self.core.slots.adopt(extent, slots);
        self.core.extents.publish(extent, &replicas);
        self.core.allocatable.lock().extents.push(Allocatable { extent, grade: Grade::Whole });
        self.core.allocatable_changed.notify_all();
        tracing::debug!("{extent} taken on {:?}", replicas.iter().map(|r| r.donor).collect::<Vec<_>>());
    }

    fn weighed(&self, extent: ExtentId, grade: Grade) {
        for entry in self.core.allocatable.lock().extents.iter_mut().filter(|s| s.extent == extent) {
            entry.grade = grade;
        }
    }

    fn retire(&mut self, extent: ExtentId) {
        let Some(slots) = self.core.extents.slots_per_extent() else { return };
        {
            // Under the lock nobody takes slots, and an extent without a used one has no operation
            // in flight: those retain.
            let mut allocatable = self.core.allocatable.lock();
            if self.core.slots.free_count(extent) != slots {
                return;
            }
            allocatable.extents.retain(|s| s.extent != extent);
        }
        self.core.extents.begin_return(extent);
        self.core.slots.abandon(extent, slots);
        self.core.extents.free(extent);
        self.book.retired(extent);
        tracing::debug!("{extent} given back");
    }

    fn report(&self, extent: ExtentId, index: u8, what: &str, why: &str) {
        let donor = self.core.donor_name(self.core.extents.replica(extent, index).donor);
        repeated!(WARN, "a replica is stale or lost" of &donor, "replica {index} of {extent} on {donor} is {what}: {why}");
    }

    fn stop(&mut self, give_back: bool) {
        for donor in self.donors.values() {
            donor.send(Command::Stop { give_back });
        }
        std::mem::take(&mut self.donors).into_values().for_each(DonorThread::join);
        self.core.allocatable_changed.notify_all();
    }
}
