//! Reaches an agent's memory over RDMA: a control connection for what must be agreed on, and a
//! queue pair for each endpoint.

use super::device::{Device, DeviceChoice, DeviceError};
use super::endpoint::{PROOF_LEN, Parts, Shared, VerbsEndpoint};
use super::gid::GidKind;
use super::limits;
use super::memory::{MemoryRegion, ProtectionDomain, RegisterError, Rights};
use super::protocol::{Answer, Party, Request, Window};
use super::queue::{CompletionQueue, QueueCapacity, QueuePair, RETRIES};
use super::status::Counts;
use crate::ledger::{Ledger, Link};
use crate::opening::{Purpose, SessionTls, open};
use crate::prepared::Prepared;
use crate::{Arena, ArenaError, ConnectError, Connector, Endpoint, ErrorKind, Transport};
use annex_identity::stream::Stream;
use annex_shared::ids::Rkey;
use annex_shared::preamble::Proof;
use annex_shared::wire::{FrameError, Frames, write_frame};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Operations outstanding at once, unless told otherwise or the device has less room.
const DEPTH: usize = 256;
/// WRITEs of at most this many bytes travel in the work request, if the device has room for it.
const INLINE: u32 = 256;
/// In the ledger: what connectors of earlier sessions left behind. No queue pair for data has this
/// number.
const ALL_EARLIER: u64 = 0;
/// How often it is looked whether the device is still there, and for tables that no endpoint uses
/// any more; in milliseconds.
const SWEEP: u16 = 1000;

/// How to reach an agent: what a connector is made of.
#[derive(Clone, Debug)]
pub struct Dial {
    /// The agent's port, the same as for all else.
    pub addr: SocketAddr,
    pub proof: Proof,
    /// Of the control session, if that has TLS.
    pub tls: Option<Arc<SessionTls>>,
    /// For connecting, for each answer, and for each operation.
    pub timeout: Duration,
    pub device: DeviceChoice,
    /// Where completions with an error are counted.
    pub counts: Arc<Counts>,
}

/// Verbs can't be used to this donor. `Display` stands alone.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// A slab could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("the agent at {peer} does not register the slab: {reason}")]
    Refused { peer: String, kind: ErrorKind, reason: String },
    #[error("failed to ask the agent at {peer} to register a slab: {source}")]
    Io { peer: String, source: io::Error },
}

/// Opens endpoints to one agent over RDMA, for one incarnation and session.
#[derive(Debug)]
pub struct VerbsConnector {
    domain: Arc<ProtectionDomain>,
    depth: usize,
    timeout: Duration,
    shared: Arc<Shared>,
    ledger: Arc<Ledger>,
    /// Arenas that are registered, each once for all endpoints that use it.
    regions: Mutex<Vec<(Weak<Arena>, Weak<MemoryRegion>)>>,
    /// One question at a time.
    talk: Mutex<Talk>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Talk {
    frames: Frames<Stream>,
    timeout: Duration,
}

impl VerbsConnector {
    /// Opens the device, connects to the agent, and reads a few bytes over RDMA to see that data
    /// flows.
    pub fn connect(dial: &Dial) -> Result<VerbsConnector, VerbsError> {
        let device = Device::open(&dial.device)?;
        let connector = VerbsConnector::connect_with(&device, dial)?;
        let words = Arena::new(1).map_err(|e| connector.local(io::Error::other(e)))?;
        connector.open_endpoint(&Arc::new(words), false)?;
        tracing::debug!("verbs to {}: {device}", dial.addr);
        Ok(connector)
    }

    fn connect_with(device: &Arc<Device>, dial: &Dial) -> Result<VerbsConnector, ConnectError> {
        let peer = dial.addr.to_string();
        let local = |source| ConnectError::Local { transport: Transport::Verbs, peer: peer.clone(), source };
        let domain = ProtectionDomain::new(device).map_err(local)?;
        let (stream, _) = open(dial.addr, Purpose::Verbs, &dial.proof, dial.tls.as_deref(), dial.timeout)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let shared = Arc::new(Shared {
            peer: peer.clone(),
            slabs: Prepared::default(),
            is_alive: AtomicBool::new(true),
            ended: EventFd::from_flags(flags).map_err(|e| local(e.into()))?,
            counts: dial.counts.clone(),
        });
        let watcher = {
            let (shared, events) = (shared.clone(), device.events().map_err(local)?);
            let (device, socket) = (Arc::downgrade(device), stream.socket().try_clone().map_err(local)?);
            let thread = std::thread::Builder::new().name("verbs-watch".into()).stack_size(64 << 10);
            thread.spawn(move || watch(&shared, &device, &events, &socket)).map_err(local)?
        };
        Ok(VerbsConnector {
            domain,
            depth: DEPTH,
            timeout: dial.timeout,
            shared,
            ledger: Arc::new(Ledger::new(vec![ALL_EARLIER])),
            regions: Mutex::default(),
            talk: Mutex::new(Talk { frames: Frames::new(stream), timeout: dial.timeout }),
            watcher: Some(watcher),
        })
    }

    /// Operations that an endpoint may have outstanding at once, as far as the device has room.
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// The device, port and GID in use.
    pub fn device(&self) -> &Device {
        self.domain.device()
    }

    /// Completions with an error, by status.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.shared.counts
    }

    /// Has the agent register the slab leased under `rkey`, for all endpoints, those already open
    /// too. Nothing to do if it has.
    pub fn prepare(&self, rkey: Rkey) -> Result<(), PrepareError> {
        let mut talk = self.talk.lock();
        if self.shared.slabs.contains(rkey) {
            return Ok(());
        }
        let io = |source| PrepareError::Io { peer: self.peer(), source };
        match talk.ask(&Request::Map { rkey }).map_err(io)? {
            Answer::Mapped(window) => {
                self.shared.slabs.insert(rkey, window);
                Ok(())
            }
            Answer::Refused { kind, reason } => {
                Err(PrepareError::Refused { peer: self.peer(), kind: kind.kind(), reason })
            }
            _ => Err(io(talk.confused())),
        }
    }

    /// Makes a slab known that the agent registered for somebody: what a thief of keys would do.
    /// For tests.
    #[doc(hidden)]
    pub fn pretend(&self, rkey: Rkey, window: Window) {
        let _talk = self.talk.lock();
        self.shared.slabs.insert(rkey, window);
    }

    /// What the agent said about a slab.
    #[doc(hidden)]
    pub fn window(&self, rkey: Rkey) -> Option<Window> {
        self.shared.slabs.view().get(rkey).copied()
    }

    /// Drops a slab that is returned or lost: from now on operations on it are refused.
    pub fn forget(&self, rkey: Rkey) {
        let _talk = self.talk.lock();
        self.shared.slabs.remove(rkey);
    }

    /// False once the agent has hung up or the device is gone, broken or without its port: nothing
    /// will work again through this connector.
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive.load(Ordering::Acquire)
    }

    fn peer(&self) -> String {
        self.shared.peer.clone()
    }

    fn unreachable(&self, source: io::Error) -> ConnectError {
        ConnectError::Unreachable { peer: self.peer(), source }
    }

    fn local(&self, source: io::Error) -> ConnectError {
        ConnectError::Local { transport: Transport::Verbs, peer: self.peer(), source }
    }

    /// Fenced or, for a look whether data flows, not.
    fn open_endpoint(&self, arena: &Arc<Arena>, is_fenced: bool) -> Result<VerbsEndpoint, ConnectError> {
        if !self.is_alive() {
            let said = "the agent has closed its RDMA connection, or the RDMA device here failed, lost its port or was removed";
            return Err(self.unreachable(io::Error::new(io::ErrorKind::NotConnected, said)));
        }
        let local = |e| self.local(e);
        let (device, mut talk) = (self.domain.device(), self.talk.lock());
        if is_fenced {
            self.fence(&mut talk)?;
        }
        let granted = limits::grant(device.limits(), self.depth as u32, u8::MAX);
        let depth = granted.depth as usize;
        let region = self.register(arena).map_err(|e| local(io::Error::other(e)))?;
        let words = Arena::new(depth * 8 + PROOF_LEN).map(Arc::new);
        let words = words.map_err(|e: ArenaError| local(io::Error::other(e)))?;
        let words_region = MemoryRegion::of_arena(&self.domain, &words, Rights::Local);
        let words_region = words_region.map_err(|e| local(io::Error::other(e)))?;
        let cq = Arc::new(CompletionQueue::new(device, granted.depth).map_err(local)?);
        let room = QueueCapacity { sends: granted.depth, inline: INLINE };
        let (qp, room) = QueuePair::new(&self.domain, &cq, room, false).map_err(local)?;

        let (peer, proof, nonce) = match talk.ask(&Request::Open(qp.party(0))).map_err(|e| self.unreachable(e))? {
            Answer::Opened { party, proof, nonce } => (party, proof, nonce),
            Answer::Refused { reason, .. } => return Err(ConnectError::Refused { peer: self.peer(), reason }),
            _ => return Err(self.unreachable(talk.confused())),
        };
        // From here on the agent's end is to be closed, whatever comes.
        let link = Link::new(u64::from(peer.number), self.ledger.clone());
        self.check_kind(&peer)?;
        let granted = limits::grant(device.limits(), self.depth as u32, peer.reads);
        for note in &granted.notes {
            tracing::info!("RDMA device {}: {note}", device.name());
        }
        let timeout = limits::ack_timeout(self.timeout, RETRIES + 1);
        let qp = qp.receive_from(&peer, 0).and_then(|qp| qp.send(granted.reads, timeout)).map_err(local)?;
        let endpoint = VerbsEndpoint::new(Parts {
            shared: self.shared.clone(),
            qp,
            link,
            cq,
            arena: arena.clone(),
            region,
            words,
            words_region,
            depth,
            inline: room.inline,
            can_swap: device.limits().swaps,
            timeout: self.timeout,
        });
        let mut endpoint = endpoint.map_err(local)?;
        drop(talk);
        endpoint.prove(proof, &nonce).map_err(|e| self.unreachable(e))?;
        Ok(endpoint)
    }

    /// Two GIDs of different kinds, or of different families, don't reach each other.
    fn check_kind(&self, theirs: &Party) -> Result<(), ConnectError> {
        let ours = self.device().gid();
        let is_same_family = ours.kind == GidKind::InfiniBand || ours.gid.ip().is_ipv4() == theirs.gid.ip().is_ipv4();
        if ours.kind == theirs.kind && is_same_family {
            return Ok(());
        }
        let (kind, ip) = (theirs.kind, theirs.gid.ip());
        let reason =
            format!("it uses {kind} with {ip}, this machine {ours}: set gid_index on one side so that they match");
        Err(ConnectError::Refused { peer: self.peer(), reason })
    }

    /// Asks the agent to end what has ended: its ends of queue pairs, and first of all the
    /// connections of earlier sessions.
    fn fence(&self, talk: &mut Talk) -> Result<(), ConnectError> {
        for number in self.ledger.ended() {
            let asked = match number {
                ALL_EARLIER => Request::Fence,
                _ => Request::Close { number: number as u32 },
            };
            match talk.ask(&asked).map_err(|e| self.unreachable(e))? {
                Answer::Closed => self.ledger.fenced(number),
                Answer::Refused { reason, .. } => return Err(ConnectError::Refused { peer: self.peer(), reason }),
                _ => return Err(self.unreachable(talk.confused())),
            }
        }
        Ok(())
    }

    /// Registers an arena, once for all endpoints that use it and as long as anybody holds the
    /// region.
    pub fn register(&self, arena: &Arc<Arena>) -> Result<Arc<MemoryRegion>, RegisterError> {
        let mut regions = self.regions.lock();
        regions.retain(|(_, region)| region.strong_count() > 0);
        let known = regions.iter().find(|(a, _)| std::ptr::eq(a.as_ptr(), Arc::as_ptr(arena)));
        if let Some(region) = known.and_then(|(_, region)| region.upgrade()) {
            return Ok(region);
        }
        let region = Arc::new(MemoryRegion::of_arena(&self.domain, arena, Rights::Local)?);
        regions.push((Arc::downgrade(arena), Arc::downgrade(&region)));
        Ok(region)
    }
}

impl Talk {
    /// Asks and waits for the answer.
    fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        let answer = write_frame(&mut self.frames.stream(), request).and_then(|()| self.answer());
        answer.map_err(|e| {
            self.end();
            match e {
                FrameError::Io(e) => e,
                FrameError::Closed | FrameError::Truncated => io::ErrorKind::UnexpectedEof.into(),
                e => io::Error::new(io::ErrorKind::InvalidData, e),
            }
        })
    }

    fn answer(&mut self) -> Result<Answer, FrameError> {
        let until = Instant::now() + self.timeout;
        loop {
            // However slowly its bytes trickle in.
            if let Some(answer) = self.frames.read_through(|stream| stream.until(until))? {
                return Ok(answer);
            }
            if Instant::now() >= until {
                return Err(FrameError::Io(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// The answer was to another question.
    fn confused(&mut self) -> io::Error {
        self.end();
        io::Error::new(io::ErrorKind::InvalidData, "it gave an answer that does not fit the question")
    }

    /// An answer that comes late would be taken for the next one's: no more questions on this
    /// connection.
    fn end(&mut self) {
        // An error means that the agent closed it first.
        let _ = self.frames.stream().socket().shutdown(Shutdown::Both);
    }
}

impl Connector for VerbsConnector {
    fn transport(&self) -> Transport {
        Transport::Verbs
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        Ok(Box::new(self.open_endpoint(arena, true)?))
    }
}

impl Drop for VerbsConnector {
    fn drop(&mut self) {
        // Wakes the watcher. If it is shut down already, so is the watcher.
        self.talk.lock().end();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// Sleeps until the agent hangs up, or the device is gone or of no use.
fn watch(shared: &Shared, device: &Weak<Device>, events: &OwnedFd, socket: &TcpStream) {
    loop {
        let hang_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let mut fds = [PollFd::new(socket.as_fd(), hang_up), PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(SWEEP)) {
            // Not so, or not known to be so: nix has no name for POLLRDHUP.
            Ok(_) if fds[0].any() == Some(false) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) | Err(_) => break,
        }
        // Held for this moment only: the kernel does not remove a device that somebody has open.
        let Some(device) = device.upgrade() else { break };
        if !device.is_present() || has_ended(&device) {
            break;
        }
        shared.slabs.sweep();
    }
    shared.is_alive.store(false, Ordering::Release);
    if let Err(e) = shared.ended.write(1) {
        tracing::error!("failed to wake the lanes of a connection that has ended: {e}");
    }
    // The agent learns it too: its end of what can't be used any more is of no use.
    let _ = socket.shutdown(Shutdown::Both);
    tracing::debug!("the RDMA connection to {} has ended", shared.peer);
}

/// Fetches what the device has said; true if it is of no use any more.
fn has_ended(device: &Device) -> bool {
    let mut ended = false;
    while let Some(event) = device.next_event() {
        if event.ends(device) {
            tracing::warn!("RDMA device {}: {event}", device.name());
            ended = true;
        } else {
            tracing::debug!("RDMA device {}: {event}", device.name());
        }
    }
    ended
}
