//! One running agent: its sockets, its threads, its start and its end.
//!
//! | thread | does |
//! | --- | --- |
//! | `agent-accept` | waits on the TCP and the Unix sockets, starts a thread per connection |
//! | `agent-janitor` | expiry, cleaning, host pressure, recalls ([`Lender::clean_up`]) |
//! | `agent-tcp`, `agent-shm`, `agent-local` | one connection each: control, data or RDMA control, slabs' descriptors, an administrator's request |
//!
//! Who gets a thread is in [`crate::places`].
//!
//! All of them block; an agent whose clients are quiet uses no CPU but for the renewals of their
//! leases and a look at the host's memory once a second.

use crate::config::{BadConfig, Config, Terms};
use crate::control::{self, HELLO_TIMEOUT};
use crate::lender::{Lender, ResumeError};
use crate::local;
use crate::metrics::{self, Open};
use crate::opening::{self, Opened, OpeningError, Purpose};
use crate::places::{Place, Places, Role};
use crate::port::{Port, PortError};
use crate::pressure::HostMemory;
use crate::reload::{self, Reloaded};
use crate::rlimits;
use crate::slab::SlabError;
use crate::sockets::bind_private;
use crate::store::{Store, StoreError};
use crate::targets::{self, SlabAccess};
use annex_host::repeated;
use annex_identity::config::TlsConfigError;
use annex_identity::identity::Identity;
use annex_metrics::export;
use annex_shared::api::format_bytes;
use annex_shared::ids::Incarnation;
use annex_shared::preamble::{AdmitError, Preamble, PreambleError, Proof, write_answer};
use annex_shared::wire::Event;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{setsockopt, sockopt};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};

/// How long the last connections get to notice that they were closed.
const LAST_CALL: Duration = Duration::from_secs(2);

/// After this long without a word the kernel asks whether a peer is still there.
const KEEPALIVE_IDLE_S: u32 = 30;

/// An agent could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] BadConfig),
    #[error("failed to read this machine's {what}: {source}")]
    Host { what: &'static str, source: io::Error },
    #[error(
        "failed to listen on {address}: {source}{}",
        if .source.kind() == io::ErrorKind::AddrInUse { ": another annex-agent may be running; choose another address with listen" } else { "" }
    )]
    Listen { address: SocketAddr, source: io::Error },
    #[error("failed to listen on shm_socket {}: {source}; choose another path, or \"\" for none", .path.display())]
    ShmSocket { path: PathBuf, source: io::Error },
    #[error("failed to listen on control_socket {}: {source}; choose another path, or \"\" for none", .path.display())]
    ControlSocket { path: PathBuf, source: io::Error },
    #[error(
        "prefault = true, but this host can spare {} slabs of {} now and the capacity is {}: lower capacity or headroom",
        .spare, format_bytes(*.slab), .capacity
    )]
    Prefault { spare: u32, capacity: u32, slab: u64 },
    #[error(transparent)]
    Slab(#[from] SlabError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Resume(#[from] ResumeError),
    #[error("failed to start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Identity(#[from] TlsConfigError),
    #[error(transparent)]
    Port(#[from] PortError),
}

/// What the threads share.
struct Core {
    lender: Lender,
    boot_id: String,
    places: Arc<Places>,
    /// All of the TCP port is TLS then.
    tls: Option<Port>,
    is_stopping: AtomicBool,
    /// Readable once the accepting thread is to stop.
    wake: EventFd,
}

impl Core {
    fn identity(&self) -> Option<&Identity> {
        self.tls.as_ref().map(|port| port.identity.as_ref())
    }
}

/// A running agent. Dropping it is like [`Agent::kill`].
pub struct Agent {
    core: Arc<Core>,
    addr: SocketAddr,
    has_control: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Starts an agent. It serves when this returns.
    pub fn start(config: Config) -> Result<Agent, StartError> {
        let host = config.host.memory().map_err(|source| StartError::Host { what: "memory", source })?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|source| StartError::Host { what: "boot id", source })?;
        let terms = config.resolve(&host, &host_name()?)?;
        rlimits::raise();
        let identity = terms.identity()?;
        let ca = terms.open_ca(identity.as_deref()).map_err(PortError::from)?;

        let address = terms.listen;
        let listener = TcpListener::bind(address)
            .and_then(|l| l.set_nonblocking(true).map(|()| l))
            .map_err(|source| StartError::Listen { address, source })?;
        let addr = listener.local_addr().map_err(|source| StartError::Listen { address, source })?;
        let shm_listener = listen_for_shm(&terms)?;
        let local_listener = listen_for_administrator(&terms)?;

        let incarnation = Incarnation(rand::random());
        // Last of what may fail for want of something: whoever takes what is kept has to make good
        // use of it.
        let (store, found) = Store::open(terms.keeper.as_deref())?;
        let lender = Lender::open(terms, incarnation, shm_listener.is_some(), store, found)?;
        stock(&lender, &host)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| StartError::Thread(e.into()))?;
        let places = Arc::new(Places::new(lender.terms().max_connections));
        let tls = identity.as_ref().map(|identity| Port::open(identity, ca, &lender, addr)).transpose()?;
        let core = Arc::new(Core {
            lender,
            boot_id: boot_id.trim().to_owned(),
            places,
            tls,
            is_stopping: AtomicBool::new(false),
            wake,
        });
        let mut agent = Agent { core: core.clone(), addr, has_control: local_listener.is_some(), threads: Vec::new() };
        agent.spawn("agent-janitor", |core| core.lender.clean_up())?;
        agent.spawn("agent-accept", move |core| {
            accept(core, &Doors { tcp: listener, addr, shm: shm_listener, local: local_listener })
        })?;

        let terms = core.lender.terms();
        if let Some(address) = terms.metrics {
            let shown = Arc::downgrade(&core);
            let take = move || shown.upgrade().map_or_else(String::new, |core| metrics_of(&core, addr));
            export(address, take).map_err(StartError::Thread)?;
        }
        if core.tls.is_none() && !addr.ip().is_loopback() {
            warn!("{addr} is open to the network without encryption or authentication, as insecure = true allows");
        }
        info!(
            "{} lends up to {} slabs of {} on {addr}, incarnation {incarnation}; {}; shm: {}; RDMA: {}; over a restart {} keeps its memory",
            terms.name,
            terms.capacity_slabs,
            format_bytes(terms.slab_size),
            core.tls.as_ref().map_or("not encrypted", Port::what),
            terms
                .shm_socket
                .as_ref()
                .filter(|_| core.lender.offers_shm())
                .map_or("off".into(), |p| p.display().to_string()),
            core.lender.verbs_offer(),
            core.lender.store().what(),
        );
        Ok(agent)
    }

    /// Where it listens; the port is the real one even if 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its Unix socket, if it offers shm.
    pub fn shm_socket(&self) -> Option<PathBuf> {
        self.core.lender.terms().shm_socket.clone().filter(|_| self.core.lender.offers_shm())
    }

    /// Takes another configuration, as far as that can be done while it runs.
    ///
    /// # Errors
    /// The configuration can't work on this machine. Nothing of it is taken then.
    pub fn reload(&self, config: Config) -> Result<Reloaded, StartError> {
        let host = config.host.memory().map_err(|source| StartError::Host { what: "memory", source })?;
        Ok(reload::take(&self.core.lender, &self.core.places, config, &host, &host_name()?)?)
    }

    /// Drawn at start; tells this run from any other.
    pub fn incarnation(&self) -> Incarnation {
        self.core.lender.incarnation()
    }

    /// Slabs lent now.
    pub fn lent(&self) -> u32 {
        self.core.lender.lent()
    }

    /// Open connections of clients: control, then data and shm.
    pub fn connections(&self) -> (usize, usize) {
        (self.core.lender.controls().count(), self.core.lender.connections().count())
    }

    /// Bytes that the larger buffers of data connections take.
    pub fn buffers(&self) -> usize {
        self.core.lender.connections().budget().given()
    }

    /// Stops in order: tells the clients, waits until they have returned everything or the grace
    /// has passed, then ends. True if everything was returned.
    pub fn shutdown(mut self) -> bool {
        let lender = &self.core.lender;
        let grace = lender.terms().grace;
        lender.close();
        lender.controls().announce(&Event::Closing { grace_ms: grace.as_millis() as u64 });
        let lent = lender.lent();
        if lent > 0 {
            info!("{lent} slabs are lent: their clients have {} ms to return them", grace.as_millis());
        }
        let is_returned = lender.wait_returned(grace);
        if !is_returned {
            warn!("{} slabs were not returned in time and are gone for their clients", lender.lent());
        }
        // On the board too, so that clients that map the slabs stop at once.
        lender.revoke_all();
        self.stop_threads();
        if !self.core.lender.controls().finish_all(LAST_CALL) {
            debug!("some clients did not take their last answers");
        }
        // For good: nobody is to go on with what is revoked.
        self.core.lender.forget();
        self.close_connections();
        let control = self.core.lender.terms().control_socket.clone().filter(|_| self.has_control);
        for path in self.shm_socket().into_iter().chain(control) {
            // What matters is that no client finds it any more; an error means somebody else
            // removed it.
            let _ = fs::remove_file(path);
        }
        is_returned
    }

    /// Stops at once and without a word, as a power cut would: connections break, leases on the
    /// board run out by themselves, the Unix socket's file stays behind. What is in the store stays
    /// there for the next agent.
    pub fn kill(mut self) {
        self.stop_threads();
        self.close_connections();
    }

    /// True if its janitor, which everything else waits for sooner or later, has shown life within
    /// `patience`. Asks it to.
    pub fn is_alive(&self, patience: Duration) -> bool {
        self.core.lender.is_alive(patience)
    }

    /// One line for systemd's status.
    pub fn summary(&self) -> String {
        let (view, terms) = (self.core.lender.view(), self.core.lender.terms());
        let holders = view.clients.iter().filter(|c| !c.held.is_empty()).count();
        let lent =
            format!("{} of {} slabs lent to {holders} clients on {}", view.lent, terms.capacity_slabs, self.addr);
        match (view.is_draining, self.core.lender.is_pressed()) {
            (true, _) => format!("draining: {lent}"),
            (_, true) => format!("short of memory: {lent}, {} recalled", view.recalled),
            _ => lent,
        }
    }

    /// True if an agent that is started next can go on with this one's leases.
    pub fn can_hand_over(&self) -> bool {
        self.core.lender.store().lasts()
    }

    /// Stops accepting and cleaning.
    fn stop_threads(&mut self) {
        let core = &self.core;
        core.is_stopping.store(true, Ordering::SeqCst);
        if let Err(e) = core.wake.write(1) {
            error!("failed to wake the accepting thread: {e}");
        }
        core.lender.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a thread of the agent had panicked");
            }
        }
    }

    /// Nobody comes after these: the accepting thread is gone.
    fn close_connections(&self) {
        let core = &self.core;
        core.lender.controls().close_all();
        core.lender.connections().shutdown();
        core.lender.connections().wait_empty(LAST_CALL);
        core.lender.store().leave();
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&Arc<Core>) + Send + 'static) -> Result<(), StartError> {
        let core = self.core.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(&core));
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !self.core.is_stopping.load(Ordering::SeqCst) {
            self.stop_threads();
            self.close_connections();
        }
    }
}

fn metrics_of(core: &Core, address: SocketAddr) -> String {
    let (lender, connections) = (&core.lender, core.lender.connections());
    let open =
        Open { control: lender.controls().count(), data: connections.count(), buffers: connections.budget().given() };
    metrics::snapshot(&local::status(lender, &address.to_string(), core.identity()), open).text()
}

/// Makes the whole capacity if so configured, else one slab, so that a host where none can be made
/// is known now.
fn stock(lender: &Lender, host: &HostMemory) -> Result<(), StartError> {
    let terms = lender.terms();
    let spare = host.room(terms.slab_size, terms.headroom, terms.hugepages).slabs;
    // What was taken over has its memory.
    if terms.prefault && spare < terms.capacity_slabs.saturating_sub(lender.lent()) {
        return Err(StartError::Prefault { spare, capacity: terms.capacity_slabs, slab: terms.slab_size });
    }
    if spare == 0 && lender.lent() == 0 {
        warn!("this host can spare no memory now; slabs are lent once it can");
    }
    Ok(lender.stock(if terms.prefault { terms.capacity_slabs } else { spare.min(1) })?)
}

/// The Unix socket, if configured. A default path that can't be had costs shm and a warning, a
/// configured one the start.
fn listen_for_shm(terms: &Terms) -> Result<Option<UnixListener>, StartError> {
    let Some(path) = &terms.shm_socket else { return Ok(None) };
    match bind_private(path) {
        Ok(listener) => Ok(Some(listener)),
        Err(source) if terms.shm_is_default => {
            warn!(
                "shm is not offered: failed to listen on {}: {source}; set shm_socket to another path",
                path.display()
            );
            Ok(None)
        }
        Err(source) => Err(StartError::ShmSocket { path: path.clone(), source }),
    }
}

/// The Unix socket for `status` and `drain`, in the same way.
fn listen_for_administrator(terms: &Terms) -> Result<Option<UnixListener>, StartError> {
    let Some(path) = &terms.control_socket else { return Ok(None) };
    match bind_private(path) {
        Ok(listener) => Ok(Some(listener)),
        Err(source) if terms.control_is_default => {
            warn!(
                "`annex-agent status` and `drain` won't reach this agent: failed to listen on {}: {source}; set \
                 control_socket to another path",
                path.display()
            );
            Ok(None)
        }
        Err(source) => Err(StartError::ControlSocket { path: path.clone(), source }),
    }
}

/// Where connections come in.
struct Doors {
    tcp: TcpListener,
    addr: SocketAddr,
    shm: Option<UnixListener>,
    local: Option<UnixListener>,
}

/// Accepts until the agent stops.
fn accept(core: &Arc<Core>, doors: &Doors) {
    let Doors { tcp, addr, shm, local } = doors;
    while !core.is_stopping.load(Ordering::SeqCst) {
        let mut waits =
            vec![PollFd::new(core.wake.as_fd(), PollFlags::POLLIN), PollFd::new(tcp.as_fd(), PollFlags::POLLIN)];
        waits.extend([shm, local].into_iter().flatten().map(|l| PollFd::new(l.as_fd(), PollFlags::POLLIN)));
        match poll(&mut waits, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => {
                repeated!(ERROR, "failed to wait for connections" of "", "failed to wait for connections: {e}");
                thread::sleep(Duration::from_secs(1));
            }
        }
        // Before it is looked whether there is room: an agent that is full can still be asked.
        match local.as_ref().map(UnixListener::accept) {
            Some(Ok((stream, _))) => {
                let addr = addr.to_string();
                start(core, "agent-local", move |core| {
                    if let Err(e) = local::serve(stream, &core.lender, &addr, core.identity()) {
                        debug!("a connection on the control socket ended: {e}");
                    }
                });
            }
            Some(Err(e)) => report_accept(&e),
            None => {}
        }
        if core.places.is_crowded() {
            // Those that were ended for others have not noticed yet. The backlog holds newcomers.
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        match tcp.accept() {
            Ok((stream, peer)) => {
                let socket = stream.try_clone().map(OwnedFd::from);
                start_in(core, Some(peer.ip()), socket, "agent-tcp", move |core, place| {
                    serve_tcp(core, place, stream, peer);
                });
            }
            Err(e) => report_accept(&e),
        }
        match shm.as_ref().map(UnixListener::accept) {
            Some(Ok((stream, _))) => {
                let socket = stream.try_clone().map(OwnedFd::from);
                start_in(core, None, socket, "agent-shm", move |core, place| serve_shm(core, place, stream));
            }
            Some(Err(e)) => report_accept(&e),
            None => {}
        }
    }
}

fn report_accept(error: &io::Error) {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
        _ => {
            repeated!(WARN, "failed to accept a connection" of "", "failed to accept a connection: {error}");
            // Out of descriptors or memory: that does not get better by trying faster.
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Runs one connection on a thread of its own, in a place that it gives back at its end, also if
/// its thread panics. `socket` is a duplicate.
fn start_in(
    core: &Arc<Core>,
    from: Option<IpAddr>,
    socket: io::Result<OwnedFd>,
    name: &str,
    run: impl FnOnce(&Core, &Place) + Send + 'static,
) {
    match socket {
        Ok(socket) => {
            let place = core.places.enter(from, socket);
            start(core, name, move |core| run(core, &place));
        }
        Err(e) => report_accept(&e),
    }
}

/// Runs one connection on a thread of its own.
fn start(core: &Arc<Core>, name: &str, run: impl FnOnce(&Core) + Send + 'static) {
    let core = core.clone();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(&core));
    if let Err(e) = thread {
        repeated!(WARN, "failed to start a thread for a connection" of "",
            "failed to start a thread for a connection, which is dropped: {e}");
    }
}

/// Admits a connection that shows a proof, if that is true and there is a place for it.
fn admit(core: &Core, place: &Place, proof: &Proof) -> Result<(), AdmitError> {
    core.lender.admit(proof)?;
    match place.admit(proof.client, Role::Data, || core.lender.holders()) {
        true => Ok(()),
        false => Err(AdmitError::TooManyConnections),
    }
}

fn serve_tcp(core: &Core, place: &Place, stream: TcpStream, peer: SocketAddr) {
    let hello_by = Instant::now() + HELLO_TIMEOUT;
    let opened = stream
        .set_nonblocking(false)
        // A peer that vanished with its machine is noticed within minutes, not hours.
        .and_then(|()| Ok(setsockopt(&stream, sockopt::KeepAlive, &true)?))
        .and_then(|()| Ok(setsockopt(&stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?))
        .map_err(|e| OpeningError::Preamble(PreambleError::Io(e)))
        .and_then(|()| opening::open(stream, core.tls.as_ref(), core.lender.connections().lane_keys(), hello_by));
    let (stream, purpose) = match opened {
        Ok(Opened::For(purpose, stream)) => (stream, purpose),
        Ok(Opened::Signed(name)) => return info!("{peer} has a certificate for {name} from here"),
        Err(OpeningError::Nothing) => return debug!("{peer} came and went"),
        Err(OpeningError::Refused(reason)) => return refused(&peer, &reason),
        Err(e) => {
            return match e.about_tls() {
                Some(what) => repeated!(WARN, "a connection was dropped" of what,
                    "a connection from {peer} was dropped: {e}"),
                None => repeated!(INFO, "a connection was dropped" of &peer.ip().to_string(),
                    "a connection from {peer} was dropped: {e}"),
            };
        }
    };
    if let Purpose::Data(caller) | Purpose::Verbs(caller) = &purpose
        && let Err(reason) = admit(core, place, &caller.proof)
    {
        refused(&peer, &reason);
        let _ = write_answer(&mut &stream, Err(reason));
        return;
    }
    // By its host: whoever means harm comes again and again.
    let (lender, connections, host) = (&core.lender, core.lender.connections(), peer.ip().to_string());
    match purpose {
        Purpose::Control => match control::serve(stream, hello_by, place, lender, &core.boot_id) {
            Ok(()) => debug!("the control connection of {peer} was closed"),
            Err(e) => repeated!(INFO, "a control connection ended" of &host,
                "the control connection of {peer} ended: {e}"),
        },
        Purpose::Data(caller) => match targets::tcp::serve(stream, &caller, lender, connections) {
            Ok(()) => debug!("a data connection of {peer} was closed"),
            Err(e) => repeated!(INFO, "a data connection ended" of &host, "a data connection of {peer} ended: {e}"),
        },
        Purpose::Verbs(caller) => {
            let terms = lender.terms();
            match targets::verbs::serve(stream, &caller, lender, connections, terms.verbs.as_ref()) {
                Ok(()) => debug!("an RDMA control connection of {peer} was closed"),
                Err(e) => {
                    repeated!(INFO, "an RDMA connection ended" of &host, "an RDMA connection of {peer} ended: {e}")
                }
            }
        }
    }
}

/// A client that was shut out comes again and again.
fn refused(peer: &SocketAddr, reason: &AdmitError) {
    repeated!(INFO, "a connection was refused" of &peer.ip().to_string(),
        "a connection of {peer} was refused: {reason}");
}

fn serve_shm(core: &Core, place: &Place, mut stream: UnixStream) {
    let opened = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(HELLO_TIMEOUT)))
        .map_err(PreambleError::Io)
        .and_then(|()| Preamble::read_from(&mut stream));
    if let Ok(Preamble::Shm(proof)) = &opened
        && let Err(reason) = admit(core, place, proof)
    {
        repeated!(INFO, "an shm connection was refused" of "", "an shm connection was refused: {reason}");
        let _ = write_answer(&mut stream, Err(reason));
        return;
    }
    match opened {
        Ok(Preamble::Shm(proof)) => {
            match targets::shm::serve(stream, &proof, &core.lender, core.lender.connections()) {
                Ok(()) => debug!("an shm connection was closed"),
                Err(e) => repeated!(INFO, "an shm connection ended" of "", "an shm connection ended: {e}"),
            }
        }
        Ok(_) => {
            repeated!(INFO, "an odd connection was dropped" of "", "who connected on the Unix socket wants no shm: dropped");
            let _ = write_answer(&mut stream, Err(AdmitError::NotOffered));
        }
        // Another agent that looks whether the socket is in use does that.
        Err(PreambleError::Io(e)) if e.kind() == io::ErrorKind::UnexpectedEof => debug!("someone knocked and left"),
        Err(e) => repeated!(INFO, "an shm connection was dropped" of "", "an shm connection was dropped: {e}"),
    }
}

/// Says whether a configuration would work on this machine, as far as that can be told without
/// starting. What comes back is who the donor would be, if there is to be TLS.
pub fn check(config: Config) -> Result<Option<Arc<Identity>>, StartError> {
    let host = HostMemory::now().map_err(|source| StartError::Host { what: "memory", source })?;
    let terms = config.resolve(&host, &host_name()?)?;
    let identity = terms.identity()?;
    terms.open_ca(identity.as_deref()).map_err(PortError::from)?;
    Ok(identity)
}

fn host_name() -> Result<String, StartError> {
    let name = nix::unistd::gethostname().map_err(|e| StartError::Host { what: "host name", source: e.into() })?;
    Ok(name.to_string_lossy().into_owned())
}
