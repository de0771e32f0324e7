//! A donor's control thread: keeps the connection to one agent, its leases and the endpoints that
//! lanes have there. It may block on the network; nobody waits for it but `Pool::lane` and the
//! pool's end.

use crate::PoolError;
use crate::config::{DonorConfig, is_slab_size};
use crate::coordinator::book::DonorUp;
use crate::coordinator::news::News;
use crate::core::PoolCore;
use crate::donor::dial::{DataPath, DialError, Dialer, Link, Welcomed};
use crate::donor::session::{Session, Step};
use crate::donor::transport;
use crate::donor::view::DonorView;
use crate::donor::welcome;
use crate::io::mailbox::Delivery;
use annex_fabric::{Arena, Endpoint};
use annex_host::events::{self, EventKind};
use annex_host::sentinel::Sentinel;
use annex_host::{event, repeated};
use annex_shared::api::DonorState;
use annex_shared::ids::{DonorId, Rkey, SlabId};
use annex_shared::page::PAGE_SIZE;
use annex_shared::wire::{Event, Lease, Request, Welcome};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The least time between two replacements of broken endpoints.
const REPLACE_EVERY: Duration = Duration::from_millis(20);

/// How long after a fallback to TCP it is looked whether RDMA works, and the longest time between
/// two looks: one that fails for want of answers takes `op_timeout`, in which this thread does
/// nothing else.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const LAST_LOOK: Duration = Duration::from_secs(30);

/// Messages of an agent that are taken in before anything else is done.
const HEARD_AT_ONCE: usize = 64;
/// Unasked messages of an agent in [`HEARD_WITHIN`]. An honest one has a few: a host that is short
/// of memory wants slabs back once a second.
const MOST_HEARD: u32 = 256;
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// What the coordinator asks of a donor's thread.
pub(crate) enum Command {
    /// Lease one slab.
    Lease,
    /// Renew the leases now.
    Renew,
    /// Give these back, if they are still what they were.
    Return(Vec<Lease>),
    /// Open an endpoint for the lane; the old one is closed first, so that it can be fenced.
    Open {
        lane: u32,
        old: Option<Box<dyn Endpoint>>,
    },
    Stop {
        give_back: bool,
    },
}

/// The coordinator's handle of the thread.
pub(crate) struct DonorThread {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
    thread: JoinHandle<()>,
}

impl DonorThread {
    /// A donor that is not configured any more (`None`) gets a thread that only listens.
    pub fn start(
        core: &Arc<PoolCore>,
        id: DonorId,
        config: Option<DonorConfig>,
        dialer: Arc<dyn Dialer>,
    ) -> Result<Self, PoolError> {
        let name = format!("annex-{id}");
        let fail = |source| PoolError::Thread { name: name.clone(), source };
        let (commands, inbox) = channel();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags).map_err(|e| fail(e.into()))?);
        let keep = Keep {
            core: core.clone(),
            id,
            config,
            dialer,
            inbox,
            wake: wake.clone(),
            session: Session::new(Instant::now()),
            connection: None,
            path: None,
            want: BTreeSet::new(),
            replaced: None,
            was_up: false,
            away: None,
            fallback: None,
        };
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || keep.run()).map_err(fail)?;
        Ok(DonorThread { commands, wake, thread })
    }

    pub fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            let _ = self.wake.write(1);
        }
    }

    /// Has it return what it holds and end, without waiting for it.
    pub fn dismiss(self) {
        self.send(Command::Stop { give_back: true });
    }

    pub fn join(self) {
        // It never panics: annexd would have ended.
        let _ = self.thread.join();
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, attempts) = (self.since.elapsed().as_secs(), self.attempts);
        match attempts {
            0 => Ok(()),
            1 => write!(f, "; one attempt had failed in {seconds} s"),
            _ => write!(f, "; {attempts} attempts had failed in {seconds} s"),
        }
    }
}

struct Keep {
    core: Arc<PoolCore>,
    id: DonorId,
    config: Option<DonorConfig>,
    dialer: Arc<dyn Dialer>,
    inbox: Receiver<Command>,
    wake: Arc<EventFd>,
    session: Session,
    connection: Option<Connection>,
    /// What lanes' endpoints came from. It outlives the control connection: they work on without
    /// one as long as the leases last.
    path: Option<Arc<dyn DataPath>>,
    /// Lanes that need an endpoint.
    want: BTreeSet<u32>,
    /// When the last broken endpoint was replaced.
    replaced: Option<Instant>,
    /// It has been up before.
    was_up: bool,
    /// Set while attempts to connect fail.
    away: Option<Away>,
    /// Set while the connection makes do with TCP.
    fallback: Option<Fallback>,
}

/// What is needed to see whether RDMA works by now, and when to look.
struct Fallback {
    welcome: Welcome,
    pause: Duration,
    look_at: Instant,
}

/// Reasons that are said of one absence.
const REASONS: usize = 16;

/// Attempts to connect that failed, one after the other. Each reason is said once.
struct Away {
    since: Instant,
    attempts: u32,
    said: BTreeSet<String>,
}

struct Connection {
    link: Box<dyn Link>,
    path: Arc<dyn DataPath>,
    /// What we hold, by our own and the agent's books.
    held: BTreeMap<SlabId, Rkey>,
    /// Messages that it sent unasked since then.
    heard: (Instant, u32),
}

impl Keep {
    fn run(mut self) {
        let _sentinel = Sentinel("a donor's control thread");
        loop {
            while let Ok(command) = self.inbox.try_recv() {
                if let Command::Stop { give_back } = command {
                    return self.stop(give_back);
                }
                if let Err(error) = self.obey(command) {
                    self.lost_connection(&error);
                }
            }
            let now = Instant::now();
            let until = match self.session.next(now) {
                Step::Connect => {
                    match self.connect() {
                        Ok(()) => {}
                        Err(error @ DialError::NoSlabSize) => {
                            self.session.not_yet(Instant::now());
                            self.view(|view| view.why = error.to_string());
                        }
                        Err(error) => self.lost_connection(&error),
                    }
                    continue;
                }
                Step::Renew => {
                    if let Err(error) = self.renew() {
                        self.lost_connection(&error);
                    }
                    continue;
                }
                Step::Wait(until) => until,
            };
            let until = match self.fallback.as_ref().map(|f| f.look_at) {
                Some(look_at) if look_at <= now => {
                    self.look_for_rdma();
                    continue;
                }
                look_at => look_at.map_or(until, |at| at.min(until)),
            };
            // Before it sleeps: what came together with an answer, or in one record of TLS, wakes
            // nobody.
            match self.hear() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    self.lost_connection(&error);
                    continue;
                }
            }
            self.sleep(until.saturating_duration_since(now));
            let _ = self.wake.read();
        }
    }

    /// Until a command or a word from the agent comes, or the time is up.
    fn sleep(&self, time: Duration) {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if let Some(connection) = &self.connection {
            fds.push(PollFd::new(connection.link.fd(), PollFlags::POLLIN));
        }
        // Rounded up: a wait of 0.4 ms must not become a busy loop.
        let millis = u16::try_from(time.as_millis() + 1).unwrap_or(u16::MAX);
        let _ = poll(&mut fds, PollTimeout::from(millis));
    }

    fn connect(&mut self) -> Result<(), DialError> {
        let Some(config) = self.config.clone() else {
            // Nothing to connect to; look again at commands later.
            self.session.failed(Instant::now(), 1.0);
            return Ok(());
        };
        let known = self.core.extents.slots_per_extent().map(|s| u64::from(s) * PAGE_SIZE as u64);
        let expected = known.unwrap_or(self.core.config.slab_size.0);
        let client = self.core.extents.client();
        let dialed = self.dialer.dial(&config, client, expected)?;
        let welcome = dialed.welcome;
        // Before anything is leased there: the next annexd must know it, too.
        dialed.link.key().into_iter().for_each(|key| self.core.extents.set_key(self.id, key));
        welcome::is_sound(&welcome)?;
        let slots = self.fix_slab_size(&welcome)?;
        let counts = self.core.donor(self.id).map(|d| d.traffic.statuses.clone()).unwrap_or_default();
        let (tls, arenas) = (dialed.link.tls(), self.arenas());
        let to =
            Welcomed { donor: &config, client, welcome: &welcome, tls: tls.as_ref(), counts: &counts, arenas: &arenas };
        let fabric = self.dialer.fabric(&to)?;
        let heard = (Instant::now(), 0);
        let mut connection = Connection { link: dialed.link, path: fabric.path, held: BTreeMap::new(), heard };
        for lease in &welcome.held {
            connection.path.prepare(lease.rkey)?;
            connection.held.insert(lease.slab, lease.rkey);
        }
        let (transport, path) = (connection.path.transport(), connection.path.clone());
        let encrypted = path.is_encrypted();
        self.connection = Some(connection);
        // Endpoints of an earlier session may be of another incarnation, or unfit for slabs leased
        // from now on.
        self.want.extend(self.core.lanes.lock().iter().map(|l| l.id));
        // A donor counts as up only when data flows too.
        self.open_wanted()?;
        drop(fabric.regions);
        drop(self.path.replace(path));
        self.session.connected(Instant::now(), Duration::from_millis(welcome.lease_ttl_ms));
        self.fallback = fabric.is_fallback.then(|| Fallback {
            welcome: welcome.clone(),
            pause: FIRST_LOOK,
            look_at: Instant::now() + FIRST_LOOK,
        });
        let free = welcome.free_slabs;
        let capacity = welcome.capacity_slabs;
        let name = config.name.clone().unwrap_or_else(|| welcome::name_of(&welcome, &config.address));
        let (at, why) = (&config.address, &fabric.why);
        let after = self.away.take().map_or_else(String::new, |away| away.to_string());
        match self.was_up {
            false => event!(INFO, DonorUp of &name, "donor {name} at {at} is up over {transport}: {why}{after}"),
            true => {
                event!(INFO, DonorBack of &name, "donor {name} at {at} is up again, over {transport}: {why}{after}")
            }
        }
        self.was_up = true;
        let said = DonorUp {
            incarnation: welcome.incarnation,
            resumed: welcome.resumed,
            host: welcome.labels.get("host").cloned(),
            rack: welcome.labels.get("rack").cloned(),
            held: welcome.held,
            free: welcome.free_slabs,
        };
        let ttl = Duration::from_millis(welcome.lease_ttl_ms);
        self.core.tell(News::Up { donor: self.id, slots_per_extent: slots, ttl, said });
        // Shown as up only when the coordinator knows.
        self.view(|view| {
            view.name = name;
            view.state = DonorState::Up;
            view.transport = Some(transport);
            view.why = fabric.why;
            view.rdma_failed = fabric.rdma_failed;
            view.refusal = None;
            view.encrypted = encrypted;
            view.free = free;
            view.capacity = capacity;
            view.lease = Some(ttl);
        });
        self.core.donor(self.id).and_then(|donor| self.core.lease_warning(donor)).inspect(|w| tracing::warn!("{w}"));
        Ok(())
    }

    /// Connects anew if RDMA works by now. A connection of another session is what makes sure that
    /// nothing of the old endpoints comes late.
    fn look_for_rdma(&mut self) {
        let (Some(config), Some(mut fallback)) = (self.config.clone(), self.fallback.take()) else { return };
        let client = self.core.extents.client();
        let Some(donor) = self.core.donor(self.id) else { return };
        let held = self.connection.iter().flat_map(|c| &c.held);
        fallback.welcome.held = held.map(|(slab, rkey)| Lease { slab: *slab, rkey: *rkey }).collect();
        let counts = &donor.traffic.statuses;
        let welcome = &fallback.welcome;
        let (tls, arenas) = (self.connection.as_ref().and_then(|c| c.link.tls()), self.arenas());
        let to = Welcomed { donor: &config, client, welcome, tls: tls.as_ref(), counts, arenas: &arenas };
        let tried = self.dialer.try_rdma(&to);
        if let Err(error) = tried {
            self.view(|view| {
                view.why = transport::why_still_tcp(&error);
                view.rdma_failed = if error.is_no_rdma_here() { String::new() } else { error.to_string() };
            });
            fallback.look_at = Instant::now() + fallback.pause;
            fallback.pause = (fallback.pause * 2).min(LAST_LOOK);
            self.fallback = Some(fallback);
            return;
        }
        tracing::info!("donor {}: RDMA works now, moving back to it", config.label());
        if let Err(error) = self.connect() {
            self.lost_connection(&error);
        }
    }

    fn arenas(&self) -> Vec<Arc<Arena>> {
        self.core.lanes.lock().iter().map(|lane| lane.arena.clone()).collect()
    }

    fn fix_slab_size(&self, welcome: &Welcome) -> Result<u32, DialError> {
        let theirs = welcome.slab_size;
        if !is_slab_size(theirs) {
            return Err(DialError::BadSlabSize(theirs));
        }
        let slots = (theirs / PAGE_SIZE as u64) as u32;
        let configured = self.core.config.slab_size.0;
        if (configured != 0 && configured != theirs) || !self.core.extents.fix_slots_per_extent(slots) {
            let known = self.core.extents.slots_per_extent().map_or(configured, |s| u64::from(s) * PAGE_SIZE as u64);
            return Err(DialError::SlabSize { theirs, ours: known });
        }
        Ok(slots)
    }

    fn obey(&mut self, command: Command) -> Result<(), DialError> {
        match command {
            Command::Lease => self.lease(),
            Command::Renew => {
                self.session.renew_now(Instant::now());
                Ok(())
            }
            Command::Return(leases) => self.give_back(leases),
            Command::Open { lane, old } => {
                if old.is_some() {
                    // An agent that admits connections and ends them at once is not to be stormed.
                    if self.replaced.is_some_and(|t| t.elapsed() < REPLACE_EVERY) {
                        std::thread::sleep(REPLACE_EVERY);
                    }
                    self.replaced = Some(Instant::now());
                }
                drop(old);
                self.want.insert(lane);
                self.open_wanted()
            }
            Command::Stop { .. } => Ok(()),
        }
    }

    fn lease(&mut self) -> Result<(), DialError> {
        let Some(connection) = &mut self.connection else {
            self.core.tell(News::LeaseRefused { donor: self.id });
            return Ok(());
        };
        match connection.link.ask(&Request::Lease { count: 1 })? {
            Event::Leased { slabs } if slabs.len() > 1 => {
                // What it lent, if it did, is given back when it comes again.
                tracing::debug!("{} leases {} slabs for one", self.core.donor_name(self.id), slabs.len());
                Err(DialError::Confused)
            }
            Event::Leased { slabs } if !slabs.is_empty() => {
                for lease in &slabs {
                    connection.held.insert(lease.slab, lease.rkey);
                    connection.path.prepare(lease.rkey)?;
                }
                // Told last: whoever learns of the slab must not count it as free as well.
                let count = slabs.len() as u32;
                self.view(|view| (view.free, view.refusal) = (view.free.saturating_sub(count), None));
                self.core.tell(News::Leased { donor: self.id, leases: slabs });
                Ok(())
            }
            Event::Leased { .. } => {
                self.core.tell(News::LeaseRefused { donor: self.id });
                Ok(())
            }
            Event::Refused(refusal) => {
                tracing::debug!("{} leases nothing now: it {refusal}", self.core.donor_name(self.id));
                self.view(|view| view.refusal = Some(refusal));
                self.core.tell(News::LeaseRefused { donor: self.id });
                Ok(())
            }
            _ => Err(DialError::Confused),
        }
    }

    fn give_back(&mut self, leases: Vec<Lease>) -> Result<(), DialError> {
        // While there is no connection: the next welcome lists what we hold, and the book gives
        // back what it doesn't know.
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let mut slabs = Vec::new();
        for lease in leases {
            if connection.held.get(&lease.slab) == Some(&lease.rkey) {
                connection.held.remove(&lease.slab);
                connection.path.forget(lease.rkey);
                slabs.push(lease.slab);
            }
        }
        if slabs.is_empty() {
            return Ok(());
        }
        let count = slabs.len() as u32;
        match connection.link.ask(&Request::Return { slabs })? {
            Event::Returned => {
                self.view(|view| view.free = view.free.saturating_add(count));
                Ok(())
            }
            Event::Refused(refusal) => Err(DialError::Refused(refusal)),
            _ => Err(DialError::Confused),
        }
    }

    fn renew(&mut self) -> Result<(), DialError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let asked = Instant::now();
        match connection.link.ask(&Request::Renew)? {
            Event::Renewed { held, free_slabs, capacity_slabs } => {
                welcome::is_possible(held.len())?;
                let known: BTreeSet<SlabId> = held.iter().copied().collect();
                connection.held.retain(|slab, _| known.contains(slab));
                self.session.renewed(Instant::now());
                self.view(|view| (view.free, view.capacity) = (free_slabs, capacity_slabs));
                self.core.tell(News::Renewed { donor: self.id, held, free: free_slabs, asked });
                Ok(())
            }
            Event::Refused(refusal) => Err(DialError::Refused(refusal)),
            _ => Err(DialError::Confused),
        }
    }

    /// Takes in what has come. False: there may be more.
    fn hear(&mut self) -> Result<bool, DialError> {
        for _ in 0..HEARD_AT_ONCE {
            let Some(connection) = &mut self.connection else { return Ok(true) };
            let Some(event) = connection.link.hear()? else { return Ok(true) };
            let (since, heard) = &mut connection.heard;
            if since.elapsed() >= HEARD_WITHIN {
                (*since, *heard) = (Instant::now(), 0);
            }
            *heard += 1;
            if *heard > MOST_HEARD {
                return Err(DialError::Chatter);
            }
            self.take_in(event)?;
        }
        Ok(false)
    }

    fn take_in(&mut self, event: Event) -> Result<(), DialError> {
        match event {
            Event::Closing { grace_ms } => {
                let name = self.core.plain_name(self.id);
                let said = format!("donor {name} is shutting down and takes its memory along in {grace_ms} ms");
                repeated!(WARN, "a donor says that it is shutting down" of &name, "{said}");
                events::record(EventKind::DonorAway, &name, None, &said);
                self.view(|view| (view.state, view.why) = (DonorState::Connecting, "it is shutting down".to_owned()));
                self.core.tell(News::Closing { donor: self.id, grace: Duration::from_millis(grace_ms) });
                Ok(())
            }
            Event::Recall { slabs, deadline_ms } => {
                let (name, n) = (self.core.plain_name(self.id), slabs.len());
                let said = format!(
                    "donor {name} wants {n} slabs back within {deadline_ms} ms: its host is short of memory, or it is \
                     drained (annex-agent status there)"
                );
                repeated!(INFO, "a donor wants slabs back" of &name, "{said}");
                events::record(EventKind::DonorRecalls, &name, None, &said);
                let deadline = Instant::now() + Duration::from_millis(deadline_ms);
                self.core.tell(News::Recalled { donor: self.id, slabs, deadline });
                Ok(())
            }
            _ => Err(DialError::Confused),
        }
    }

    /// Opens an endpoint for every lane that needs one.
    fn open_wanted(&mut self) -> Result<(), DialError> {
        let Some(connection) = &self.connection else { return Ok(()) };
        while let Some(lane) = self.want.first().copied() {
            let found =
                self.core.lanes.lock().iter().find(|l| l.id == lane).map(|l| (l.arena.clone(), l.mailbox.clone()));
            if let Some((arena, mailbox)) = found {
                let endpoint = connection.path.open(&arena)?;
                mailbox.deliver(Delivery { donor: self.id, endpoint });
            }
            self.want.remove(&lane);
        }
        Ok(())
    }

    fn lost_connection(&mut self, error: &DialError) {
        self.fallback = None;
        let had = self.connection.take().is_some();
        self.path.take_if(|path| !path.is_alive());
        self.session.failed(Instant::now(), rand::random());
        let why = error.to_string();
        let is_first = self.away.is_none();
        let fresh = || Away { since: Instant::now(), attempts: 0, said: BTreeSet::new() };
        let away = self.away.get_or_insert_with(fresh);
        away.attempts += u32::from(!had);
        let is_news = away.said.len() < REASONS && away.said.insert(why.clone());
        self.view(|view| {
            if view.state == DonorState::Up {
                view.state = DonorState::Connecting;
            }
            match is_first {
                true => event!(WARN, DonorAway of &view.name, "donor {}: {why}", view.name),
                false if is_news => tracing::warn!("donor {}: {why}", view.name),
                false => {}
            }
            view.why = why;
        });
        self.core.tell(News::Down { donor: self.id });
    }

    fn view(&self, change: impl FnOnce(&mut DonorView)) {
        if let Some(donor) = self.core.donor(self.id) {
            change(&mut donor.view.lock());
        }
    }

    fn stop(mut self, give_back: bool) {
        if !give_back {
            return;
        }
        let Some(connection) = &self.connection else { return };
        let all: Vec<Lease> = connection.held.iter().map(|(slab, rkey)| Lease { slab: *slab, rkey: *rkey }).collect();
        if let Err(error) = self.give_back(all) {
            tracing::warn!(
                "failed to return the leases of {}: {error}; they end by themselves",
                self.core.donor_name(self.id)
            );
        }
    }
}
