//! The fault workers, and what the rest of the pager has of them.
//!
//! One is a thread that reads userfaultfd messages and installs pages, its own lane to the pool
//! beside it.
//!
//! Every worker watches the userfaultfds of all spaces through an epoll set of its own. With few
//! workers (one per CPU, pinned) each of them is woken by a fault, and the one on the faulting CPU
//! gets there first, which is the cheapest place to serve it from: no inter-processor interrupt.
//! With many, the watches are exclusive, so that a fault wakes one of them and not all. A space
//! whose faults come from one CPU is watched by the worker there alone
//! ([`cpu_affinity`](crate::sched::CpuAffinity)).

use crate::config::PagerConfig;
use crate::fault::busy_poll::BusyPoll;
use crate::fault::page_fault::Fault;
use crate::fault::rings;
use crate::fault::run::{INBOX, LANE, STALLED, millis};
use crate::fault::worker::{BUFFERS, Worker};
use crate::sched::affinity::{Bell, HERD};
use crate::sched::waiting::Waiting;
use crate::sched::{WorkerClass, WorkerClasses, affinity};
use crate::space::{Registry, Shared, Space};
use crossbeam::channel::Sender;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The handle the rest of the pager has of a worker.
struct Handle {
    epoll: Arc<Epoll>,
    inbox: Sender<(Arc<Space>, Fault)>,
    bell: Arc<EventFd>,
    /// When its present turn began, in ms since `EPOCH`, plus 1; 0 while it sleeps.
    busy_since: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

pub struct Workers {
    handles: Vec<Handle>,
    stop: Arc<AtomicBool>,
    pub waiting: Waiting,
    /// The thread that looks where faults come from.
    looking: Option<(Arc<Bell>, JoinHandle<()>)>,
}

impl Workers {
    /// Starts `count` workers (0: one per CPU, four at most), pinned to CPUs in turn if there are
    /// enough of those.
    pub fn start(config: &PagerConfig, shared: &Arc<Shared>, registry: &Arc<Registry>) -> io::Result<Workers> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let count = if config.fault_workers == 0 { cpus.min(HERD) } else { config.fault_workers as usize };
        let waiting = Waiting::settle(config.wait, count);
        tracing::info!("{count} workers wait for faults: {waiting}");
        let stop = Arc::new(AtomicBool::new(false));
        let looking = Arc::new(Bell::new()?);
        let epolls: Arc<[Arc<Epoll>]> = (0..count)
            .map(|_| Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?
            .into();
        let classes: Vec<Arc<WorkerClass>> = (0..count).map(|_| Arc::default()).collect();
        let mut handles = Vec::new();
        for n in 0..count {
            let lane = shared.pool.lane(&format!("fault-{n}"), BUFFERS).map_err(io::Error::other)?;
            let epoll = epolls[n].clone();
            let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
            epoll.add(lane.event_fd(), EpollEvent::new(EpollFlags::EPOLLIN, LANE))?;
            epoll.add(&*bell, EpollEvent::new(EpollFlags::EPOLLIN, INBOX))?;
            let (inbox, mail) = crossbeam::channel::unbounded();
            let busy_since = Arc::new(AtomicU64::new(0));
            let worker = Worker {
                number: n,
                epolls: epolls.clone(),
                class: classes[n].clone(),
                looking: looking.clone(),
                since_ring: 0,
                epoll: epoll.clone(),
                bell: bell.clone(),
                mail,
                busy_since: busy_since.clone(),
                lane,
                polls_for: waiting.polls_for,
                last_woken: Instant::now(),
                busy_poll: BusyPoll::new(Duration::from_micros(config.busy_poll_us.into()), config.adaptive_polling),
                shared: shared.clone(),
                registry: registry.clone(),
                stop: stop.clone(),
                pending: Vec::new(),
                free: Vec::new(),
                again: Default::default(),
                goes_on: false,
                held_up: Vec::new(),
                done: Vec::with_capacity(BUFFERS),
                faults: Vec::with_capacity(64),
                delaying: Vec::new(),
                faulted: None,
                rings: Vec::new(),
                polls_rings: count <= cpus && config.busy_poll_us > 0,
            };
            let pin = (count <= cpus).then_some(n);
            let name = format!("annex-fault-{n}");
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run(pin))?;
            handles.push(Handle { epoll, inbox, bell, busy_since, thread: Some(thread) });
        }
        let has_affinity = (2..=cpus).contains(&count) && waiting.sleeps_at_once();
        let looking = match has_affinity {
            true => {
                Some((looking.clone(), affinity::start(shared.clone(), epolls, looking, WorkerClasses::of(classes))?))
            }
            false => None,
        };
        Ok(Workers { handles, stop, waiting, looking })
    }

    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// A worker that has not come to the end of its turn for long, in words.
    pub fn stalled(&self) -> Option<String> {
        let now = millis(Instant::now());
        let turns = self.handles.iter().map(|h| h.busy_since.load(Ordering::Relaxed)).enumerate();
        let mut long = turns.filter(|(_, since)| *since != 0 && now - since.min(&now) > STALLED.as_millis() as u64);
        long.next().map(|(n, since)| format!("fault worker {n} has made no progress for {} s", (now - since) / 1000))
    }

    /// Has every worker watch the space.
    pub fn watch(&self, space: &Space) -> io::Result<()> {
        for handle in &self.handles {
            affinity::watch(&handle.epoll, space, self.handles.len())?;
            if let Some(ring) = space.uffd.ring() {
                let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
                handle.epoll.add(ring.bell(), EpollEvent::new(edges, rings::BELL | space.id.0))?;
            }
        }
        Ok(())
    }

    pub fn unwatch(&self, space: &Space) {
        space.core().affinity.close();
        for handle in &self.handles {
            // Not watched any more is what is wanted.
            let _ = handle.epoll.delete(space.uffd.as_fd());
            let _ = space.uffd.ring().map(|ring| handle.epoll.delete(ring.bell()));
        }
    }

    /// Hands faults that had to wait to a worker.
    pub fn serve(&self, faults: Vec<(Arc<Space>, Fault)>) {
        let Some(handle) = self.handles.first() else { return };
        if !faults.is_empty() {
            for fault in faults {
                // The channel's other end lives as long as the worker.
                let _ = handle.inbox.send(fault);
            }
            let _ = handle.bell.write(1);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some((bell, thread)) = self.looking.take() {
            bell.stop();
            let _ = thread.join();
        }
        self.stop.store(true, Ordering::Release);
        for handle in &mut self.handles {
            let _ = handle.bell.write(1);
            if let Some(thread) = handle.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
