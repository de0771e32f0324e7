//! The keeper: carries out what the book decides, and tells it what happened. One thread, woken by news; it never waits for the network.

use super::PoolError;
use super::book::{Action, Book, Greeting, Placed, Room, Rules};
use super::core::{Core, Shelved, lock};
use super::dial::Dialer;
use super::donor::{Command, DonorThread};
use super::extents::{Replica, ReplicaState};
use super::slots::SlotRun;
use annex_shared::api::DonorState;
use annex_shared::fabric::Endpoint;
use annex_shared::ids::{DonorId, ExtentId, SlabId};
use annex_shared::page::PAGE_SIZE;
use annex_shared::wire::Lease;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Without news the keeper looks around this often: idle extents and stock, donors whose time is up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Slots of a write whose end was not seen are kept from reuse at least this long, and for one and a half times the longest life of a lease.
/// A new connection fences the old one, so this matters only when there is no new one: a write that an agent has not executed by then
/// is refused, since its lease is over, or it was renewed, which shows that the agent runs.
const QUARANTINE: Duration = Duration::from_secs(15);

/// What the keeper is told.
pub(super) enum News {
    // From donor threads.
    Up {
        donor: DonorId,
        slots_per_extent: u32,
        ttl: Duration,
        greeting: Greeting,
    },
    Down {
        donor: DonorId,
    },
    Closing {
        donor: DonorId,
        grace: Duration,
    },
    Leased {
        donor: DonorId,
        leases: Vec<Lease>,
    },
    LeaseRefused {
        donor: DonorId,
    },
    Renewed {
        donor: DonorId,
        held: Vec<SlabId>,
        free: u32,
    },
    // From lanes.
    LaneOpened(u32),
    EndpointBroken {
        lane: u32,
        donor: DonorId,
        endpoint: Option<Box<dyn Endpoint>>,
    },
    /// One that was replaced; dropped here since closing may take a moment.
    EndpointRetired {
        endpoint: Box<dyn Endpoint>,
    },
    ReplicaLost {
        extent: ExtentId,
        replica: u8,
        why: &'static str,
    },
    /// Release these after the quarantine.
    Quarantine(SlotRun),
    // From `reserve`.
    Taken,
    Wanted,
    // From the pool.
    Stop {
        give_back: bool,
    },
}

struct Keeper {
    core: Arc<Core>,
    book: Book,
    donors: Vec<DonorThread>,
    quarantine: VecDeque<(Instant, SlotRun)>,
    quarantine_for: Duration,
    /// Pages taken since `since`, and in the window before it.
    taken: (u64, u64),
    since: Instant,
}

/// Starts the donor threads and the keeper; the handle of the keeper, who ends the others.
pub(super) fn start(
    core: &Arc<Core>,
    dialer: Arc<dyn Dialer>,
    news: Receiver<News>,
) -> Result<Vec<JoinHandle<()>>, PoolError> {
    let now = Instant::now();
    let rules = Rules {
        replicas: core.config.replicas.into(),
        lost_after: core.config.lost_after.0,
        idle_return: core.config.idle_return.0,
        max_extents: 0,
        slots_per_extent: 0,
    };
    let mut book = Book::new(rules, rand::random());
    if let Some(slots) = core.extents.slots_per_extent() {
        book.set_geometry(slots, max_extents(core, slots));
    }
    for (extent, replicas) in core.extents.live() {
        let placed = |r: &Replica| Placed {
            donor: r.donor,
            incarnation: r.incarnation,
            lease: Lease { slab: r.slab, rkey: r.rkey },
            live: r.state == ReplicaState::Live,
        };
        let healthy = replicas.live() >= usize::from(core.config.replicas);
        book.adopt(extent, replicas.iter().map(|(_, r)| placed(r)).collect(), now);
        lock(&core.shelf).extents.push(Shelved { extent, healthy });
    }
    let mut donors = Vec::new();
    for donor in &core.donors {
        let config = core.config.donors.iter().find(|d| d.address == donor.address).cloned();
        donors.push(DonorThread::start(core, donor.id, config, dialer.clone())?);
    }
    let mut keeper = Keeper {
        core: core.clone(),
        book,
        donors,
        quarantine: VecDeque::new(),
        quarantine_for: QUARANTINE,
        taken: (0, 0),
        since: now,
    };
    let name = "annex-keeper".to_owned();
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || keeper.run(&news));
    Ok(vec![thread.map_err(|source| PoolError::Thread { name, source })?])
}

/// As many as slot numbers and `max_bytes` allow.
fn max_extents(core: &Core, slots: u32) -> u32 {
    let most = core.extents.max_extents();
    match core.config.max_bytes.0 {
        0 => most,
        max => most.min(u32::try_from(max / (u64::from(slots) * PAGE_SIZE as u64)).unwrap_or(u32::MAX)),
    }
}

impl Keeper {
    fn run(&mut self, news: &Receiver<News>) {
        loop {
            let now = Instant::now();
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
            News::Up { donor, slots_per_extent, ttl, greeting } => {
                self.quarantine_for = self.quarantine_for.max(ttl * 3 / 2);
                self.book.set_geometry(slots_per_extent, max_extents(&self.core, slots_per_extent));
                self.book.up(donor, greeting);
            }
            News::Down { donor } => self.book.down(donor, now),
            News::Closing { donor, grace } => self.book.closing(donor, grace, now),
            News::Leased { donor, leases } => self.book.leased(donor, leases, now),
            News::LeaseRefused { donor } => self.book.refused(donor, now),
            News::Renewed { donor, held, free } => {
                let latency = self.core.donor(donor).map_or(0, |d| d.stats.latency_ns.load(Relaxed));
                self.book.measured(donor, latency);
                self.book.renewed(donor, &held, free);
            }
            News::LaneOpened(lane) => self.donors.iter().for_each(|d| d.send(Command::Open { lane, old: None })),
            News::EndpointBroken { lane, donor, endpoint } => {
                if let Some(thread) = self.donors.get(usize::from(donor.0)) {
                    thread.send(Command::Open { lane, old: endpoint });
                }
            }
            News::EndpointRetired { endpoint } => drop(endpoint),
            News::ReplicaLost { extent, replica, why } => {
                self.report(extent, replica, why);
                self.core.wake_lanes();
                self.book.replica_lost(extent, replica);
            }
            News::Quarantine(run) => self.quarantine.push_back((now + self.quarantine_for, run)),
            News::Taken | News::Wanted => {}
            News::Stop { .. } => {}
        }
        self.act();
    }

    fn look(&mut self) {
        let now = Instant::now();
        while let Some((_, run)) = self.quarantine.pop_front_if(|(until, _)| *until <= now) {
            self.core.release_run(run);
        }
        self.book.tick(now);
        self.act();
        let room = self.room(now);
        self.book.balance(&room, now);
        self.act();
        {
            let mut shelf = lock(&self.core.shelf);
            (shelf.dry, shelf.full) = (self.book.is_dry(), self.book.is_full());
        }
        self.core.shelf_changed.notify_all();
        for donor in &self.core.donors {
            lock(&donor.view).held = self.book.held(donor.id);
        }
    }

    fn room(&mut self, now: Instant) -> Room {
        let slots = self.core.extents.slots_per_extent().unwrap_or(0);
        let mut shelf = lock(&self.core.shelf);
        self.taken.0 += std::mem::take(&mut shelf.taken);
        let taken = self.taken.0.max(self.taken.1);
        if now.duration_since(self.since) >= LOOK_EVERY {
            (self.taken, self.since) = ((0, self.taken.0), now);
        }
        let mut room = Room { wanted: std::mem::take(&mut shelf.wanted), taken, ..Room::default() };
        for shelved in &shelf.extents {
            let free = self.core.slots.free_count(shelved.extent);
            if shelved.healthy {
                room.free += u64::from(free);
            }
            if free == slots {
                room.empty.push(shelved.extent);
            }
        }
        room
    }

    fn act(&mut self) {
        let mut lost = false;
        loop {
            let actions = self.book.actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Lease(donor) => self.command(donor, Command::Lease),
                    Action::Return(donor, leases) => self.command(donor, Command::Return(leases)),
                    Action::Publish(extent, replicas) => self.publish(extent, &replicas),
                    Action::Lose { extent, replica, why } => {
                        if self.core.lose(extent, replica) {
                            self.report(extent, replica, why);
                            lost = true;
                        }
                    }
                    Action::Degrade(extent) => self.degrade(extent),
                    Action::Retire(extent) => self.retire(extent),
                    Action::Abandon(donor) => {
                        if let Some(donor) = self.core.donor(donor) {
                            let mut view = lock(&donor.view);
                            if view.state != DonorState::Up {
                                view.state = DonorState::Lost;
                            }
                        }
                    }
                }
            }
        }
        if lost {
            self.core.wake_lanes();
        }
    }

    fn command(&self, donor: DonorId, command: Command) {
        if let Some(thread) = self.donors.get(usize::from(donor.0)) {
            thread.send(command);
        }
    }

    fn publish(&self, extent: ExtentId, replicas: &[Placed]) {
        let Some(slots) = self.core.extents.slots_per_extent() else { return };
        let replica = |p: &Placed| Replica {
            donor: p.donor,
            state: if p.live { ReplicaState::Live } else { ReplicaState::Lost },
            slab: p.lease.slab,
            incarnation: p.incarnation,
            rkey: p.lease.rkey,
        };
        let replicas: Vec<Replica> = replicas.iter().map(replica).collect();
        self.core.slots.adopt(extent, slots);
        self.core.extents.publish(extent, &replicas);
        lock(&self.core.shelf).extents.push(Shelved { extent, healthy: true });
        self.core.shelf_changed.notify_all();
        tracing::debug!("{extent} taken on {:?}", replicas.iter().map(|r| r.donor).collect::<Vec<_>>());
    }

    fn degrade(&self, extent: ExtentId) {
        for shelved in lock(&self.core.shelf).extents.iter_mut().filter(|s| s.extent == extent) {
            shelved.healthy = false;
        }
    }

    fn retire(&mut self, extent: ExtentId) {
        let Some(slots) = self.core.extents.slots_per_extent() else { return };
        {
            // Under the lock nobody takes slots, and an extent without a used one has no operation in flight: those retain.
            let mut shelf = lock(&self.core.shelf);
            if self.core.slots.free_count(extent) != slots {
                return;
            }
            shelf.extents.retain(|s| s.extent != extent);
        }
        self.core.extents.begin_return(extent);
        self.core.slots.abandon(extent, slots);
        self.core.extents.free(extent);
        self.book.retired(extent);
        tracing::debug!("{extent} given back");
    }

    fn report(&self, extent: ExtentId, replica: u8, why: &str) {
        let name = self.core.extents.replicas(extent).and_then(|r| {
            let donor = r.nth(replica)?.donor;
            Some(lock(&self.core.donor(donor)?.view).name.clone())
        });
        tracing::warn!("replica {replica} of {extent} on donor {} is lost: {why}", name.unwrap_or_default());
    }

    fn stop(&mut self, give_back: bool) {
        for donor in &self.donors {
            donor.send(Command::Stop { give_back });
        }
        self.donors.drain(..).for_each(DonorThread::join);
        self.core.shelf_changed.notify_all();
    }
}
