//! Reaching a donor: the control connection, and the fabric that its welcome allows. Two traits, so
//! that the pool above can be tested against scripted donors; and what they are in earnest.

use crate::config::{DonorConfig, PoolConfig, TransportChoice};
use crate::donor::tls::{DonorTls, TlsError};
use crate::donor::transport::{Choice, Way, is_fallback, is_trouble};
use crate::metadata::extents::KeyMark;
use annex_fabric::faulty::{FaultPlan, FaultyConnector, PlanError};
use annex_fabric::shm::{PrepareError, ShmConnector};
use annex_fabric::tcp::TcpConnector;
use annex_fabric::verbs::{
    self, Counts, DeviceChoice, DeviceError, Dial, MemoryRegion, RegisterError, VerbsConnector, VerbsError,
};
use annex_fabric::{Arena, ConnectError, Connector, Endpoint, SessionTls, Transport};
use annex_identity::identity::Identity;
use annex_identity::stream::{HandshakeError, Stream};
use annex_shared::ids::{ClientId, Rkey};
use annex_shared::preamble::{Preamble, Proof};
use annex_shared::wire::{Event, FrameError, Frames, Refusal, Request, VERSION, VerbsOffer, Welcome, write_frame};
use std::collections::VecDeque;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What may come while an answer is awaited: messages, and slabs that they tell of.
const MOST_HEARD: usize = 64;
const MOST_RECALLED: usize = 1 << 16;

/// A donor could not be reached, or the connection to it ended. `Display` follows "donor NAME: ".
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("the address {address} can't be resolved: {source}")]
    Resolve { address: String, source: std::io::Error },
    #[error("nobody lends memory at {address}: {source} (is annex-agent running there?)")]
    Connect { address: String, source: std::io::Error },
    #[error("the TLS handshake with the agent at {address} failed: {source}{}", tls_remedy(source))]
    Tls { address: String, source: HandshakeError },
    #[error("the control connection to {address} failed: {source}")]
    Frame { address: String, source: FrameError },
    #[error("it did not answer within {after:?}")]
    Silent { after: Duration },
    #[error("it {0}")]
    Refused(Refusal),
    #[error("it sent {MOST_HEARD} other messages, or told of {MOST_RECALLED} slabs, in place of an answer")]
    Flood,
    #[error("it sends messages without end, and nobody asked for them")]
    Chatter,
    #[error("it gave an answer that does not fit the question")]
    Confused,
    #[error("it ends leases after {ttl_ms} ms, which this annexd can't work with: lease_ttl must be from 100ms to 1h")]
    BadTtl { ttl_ms: u64 },
    #[error("it says that this annexd holds {slabs} slabs there, more than a pool can have")]
    BadHeld { slabs: usize },
    #[error("it uses slabs of {theirs} bytes, this pool has slabs of {ours}: make slab_size equal on all donors")]
    SlabSize { theirs: u64, ours: u64 },
    #[error("it uses slabs of {0} bytes, which this annexd can't: slab_size must be a power of two from 64K to 1G")]
    BadSlabSize(u64),
    #[error("{}: {why}", no_way(*.transport))]
    NoWay { transport: TransportChoice, why: String },
    #[error("its disk has not answered for long: it is used again when all that was asked of it is answered")]
    DiskHangs,
    #[error(
        "it waits for the first donor, whose slabs' size it takes; set slab_size in [pool] if it is to work before"
    )]
    NoSlabSize,
    #[error("its size of {size} bytes is less than one slab ({slab} bytes): make size in [spill] larger")]
    SpillTooSmall { size: u64, slab: u64 },
    #[error("its threads can't be started: {0}")]
    SpillStart(std::io::Error),
    #[error(transparent)]
    Data(#[from] ConnectError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error(transparent)]
    Register(#[from] verbs::PrepareError),
    #[error(transparent)]
    Buffers(#[from] RegisterError),
    #[error(transparent)]
    Faults(#[from] PlanError),
}

impl DialError {
    /// This host has no RDMA device: nothing that failed.
    pub fn is_no_rdma_here(&self) -> bool {
        matches!(self, DialError::Verbs(VerbsError::Device(DeviceError::None)))
    }
}

fn tls_remedy(error: &HandshakeError) -> &'static str {
    match error {
        HandshakeError::Closed | HandshakeError::TimedOut => " (does its configuration have [tls]? its log says why)",
        _ => "",
    }
}

fn no_way(transport: TransportChoice) -> &'static str {
    match transport {
        TransportChoice::Shm => "transport = \"shm\" (\"auto\" would try others)",
        TransportChoice::Verbs => "transport = \"verbs\" (\"auto\" would fall back to tcp)",
        TransportChoice::Auto | TransportChoice::Tcp => "tcp_fallback = false",
    }
}

/// Reaches donors.
pub trait Dialer: Send + Sync {
    /// Opens a control connection and says hello as `client`, expecting slabs of `slab_size` bytes
    /// (0 = any). May block for the configured time.
    fn dial(&self, donor: &DonorConfig, client: ClientId, slab_size: u64) -> Result<Dialed, DialError>;

    /// Pages may lie with donors that have these keys, whatever the dates of their certificates.
    fn know(&self, _keys: Vec<KeyMark>) {}

    /// Who this host is to donors; `None` without TLS.
    fn identity(&self) -> Option<Arc<Identity>> {
        None
    }

    /// The fabric to a donor that said welcome.
    fn fabric(&self, to: &Welcomed<'_>) -> Result<Fabric, DialError>;

    /// Tries whether RDMA works now, to a donor whose fabric is a fallback, and for what its
    /// welcome says is held.
    fn try_rdma(&self, to: &Welcomed<'_>) -> Result<(), DialError>;
}

/// A donor that said welcome to us.
pub struct Welcomed<'a> {
    pub donor: &'a DonorConfig,
    /// Who we are there.
    pub client: ClientId,
    pub welcome: &'a Welcome,
    /// If the welcome came over TLS: all other connections do that too.
    pub tls: Option<&'a Arc<SessionTls>>,
    /// Where RDMA counts its errors.
    pub counts: &'a Arc<Counts>,
    /// The buffers of all lanes: a transport that can't use one of them is none.
    pub arenas: &'a [Arc<Arena>],
}

/// A control connection whose hello was answered.
pub struct Dialed {
    pub link: Box<dyn Link>,
    pub welcome: Welcome,
}

/// A control connection.
pub trait Link: Send {
    /// Asks and waits for the answer, for the configured time at most.
    fn ask(&mut self, request: &Request) -> Result<Event, DialError>;

    /// What the agent said unasked, if anything; does not wait.
    fn hear(&mut self) -> Result<Option<Event>, DialError>;

    /// Readable when there may be something to hear.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What other connections of this session need, if it is TLS.
    fn tls(&self) -> Option<Arc<SessionTls>> {
        None
    }

    /// The key of the donor's certificate, if it showed one.
    fn key(&self) -> Option<KeyMark> {
        None
    }
}

/// The way to a donor's slabs, and why it is this one.
pub struct Fabric {
    pub path: Arc<dyn DataPath>,
    pub why: String,
    /// Why RDMA, which both hosts have, does not work; empty if it does or can't be had.
    pub rdma_failed: String,
    /// RDMA would be better, once it works.
    pub is_fallback: bool,
    /// The arenas as the device knows them, to be held until endpoints hold them: they would be
    /// registered a second time otherwise.
    pub regions: Vec<Arc<MemoryRegion>>,
}

/// A connector that is told which slabs will be used.
pub trait DataPath: Send + Sync {
    fn transport(&self) -> Transport;
    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError>;
    /// Makes a slab ready, so that its first operation costs no more than any other.
    fn prepare(&self, rkey: Rkey) -> Result<(), DialError>;
    fn forget(&self, rkey: Rkey);
    /// Pages are encrypted on their way.
    fn is_encrypted(&self) -> bool {
        false
    }
    /// False if it is of no use any more, and better let go of: an RDMA device can't be removed
    /// while somebody has it open.
    fn is_alive(&self) -> bool {
        true
    }
}

/// Donors on the network and on this host.
pub(crate) struct NetDialer {
    control_timeout: Duration,
    op_timeout: Duration,
    verbs: DeviceChoice,
    tls: Option<DonorTls>,
}

impl NetDialer {
    pub fn new(config: &PoolConfig) -> Result<Self, TlsError> {
        Ok(NetDialer {
            tls: config.tls.clone().map(|files| DonorTls::open(files, config.renew.clone())).transpose()?,
            control_timeout: config.control_timeout.0,
            op_timeout: config.op_timeout.0,
            verbs: config.verbs.clone(),
        })
    }
}

impl Dialer for NetDialer {
    fn know(&self, keys: Vec<KeyMark>) {
        self.tls.iter().for_each(|tls| tls.know(keys.iter().copied()));
    }

    fn identity(&self) -> Option<Arc<Identity>> {
        self.tls.as_ref().map(DonorTls::identity)
    }

    fn dial(&self, donor: &DonorConfig, client: ClientId, slab_size: u64) -> Result<Dialed, DialError> {
        let address = donor.address.clone();
        let connect = |source| DialError::Connect { address: address.clone(), source };
        let mut last = None;
        let mut stream = None;
        for addr in resolve(&address)? {
            match TcpStream::connect_timeout(&addr, self.control_timeout) {
                Ok(s) => {
                    stream = Some(s);
                    break;
                }
                Err(e) => last = Some(e),
            }
        }
        let Some(socket) = stream else {
            return Err(connect(last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into())));
        };
        socket.set_nodelay(true).map_err(connect)?;
        let tls_failed = |source| DialError::Tls { address: address.clone(), source };
        let mut stream = match &self.tls {
            None => Stream::plain(socket),
            Some(tls) => tls.connect(socket, self.control_timeout).map_err(tls_failed)?,
        };
        stream.socket().set_write_timeout(Some(self.control_timeout)).map_err(connect)?;
        Preamble::Control.write_to(&mut stream).map_err(connect)?;
        let mut link = NetLink {
            frames: Frames::new(stream),
            address: address.clone(),
            timeout: self.control_timeout,
            heard: VecDeque::new(),
            tls: None,
            key: None,
        };
        let hello = Request::Hello {
            version: VERSION as u16,
            client,
            host: nix::unistd::gethostname().map_or_else(|_| String::new(), |h| h.to_string_lossy().into_owned()),
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
            slab_size,
        };
        match link.ask(&hello)? {
            Event::Welcome(welcome) => {
                if let Some(tls) = &self.tls
                    && let Some((session, key)) = tls.of_session(link.frames.stream()).map_err(tls_failed)?
                {
                    (link.tls, link.key) = (Some(Arc::new(session)), key);
                }
                Ok(Dialed { link: Box::new(link), welcome })
            }
            Event::Refused(refusal) => Err(DialError::Refused(refusal)),
            _ => Err(DialError::Confused),
        }
    }

    fn fabric(&self, to: &Welcomed<'_>) -> Result<Fabric, DialError> {
        let donor = to.donor;
        let mut choice = Choice::new(donor, to.welcome);
        let mut rdma_failed = match &to.welcome.verbs {
            VerbsOffer::No(why)
                if donor.transport == TransportChoice::Auto && is_trouble(why) && verbs::has_device() =>
            {
                format!("the donor says: {why}")
            }
            _ => String::new(),
        };
        while let Some(way) = choice.next() {
            let mut reached = match self.reach(to, &way) {
                Ok(reached) => reached,
                // Without RDMA and shared memory there is nothing to fall back to from TCP.
                Err(error) if way == Way::Tcp => return Err(error),
                Err(error) => {
                    if way == Way::Verbs && !error.is_no_rdma_here() {
                        rdma_failed = error.to_string();
                    }
                    choice.failed(&way, error);
                    continue;
                }
            };
            let over = reached.verbs.as_ref().map_or_else(String::new, |v| v.device().to_string());
            let mut why = choice.why(&way, &over);
            why.push_str(match (to.tls, &way) {
                (None, _) | (_, Way::Shm(_)) => "",
                (Some(_), Way::Tcp) => ", encrypted (TLS)",
                (Some(_), Way::Verbs) => ", set up over TLS; the pages are not encrypted on the wire",
            });
            if let Some(plan) = &donor.faults {
                let plan: FaultPlan = plan.parse()?;
                reached.connector = Arc::new(FaultyConnector::new(reached.connector, plan));
                why.push_str(", with injected faults");
            }
            let regions = std::mem::take(&mut reached.regions);
            if way != Way::Tcp {
                rdma_failed = String::new();
            }
            let is_fallback = is_fallback(donor, &way);
            return Ok(Fabric { path: Arc::new(reached), why, rdma_failed, is_fallback, regions });
        }
        Err(DialError::NoWay { transport: donor.transport, why: choice.why_none() })
    }

    fn try_rdma(&self, to: &Welcomed<'_>) -> Result<(), DialError> {
        self.reach(to, &Way::Verbs).map(drop)
    }
}

impl NetDialer {
    fn reach(&self, to: &Welcomed<'_>, way: &Way) -> Result<Reached, DialError> {
        let &Welcomed { donor, client, welcome, tls, counts, arenas } = to;
        // Once and for all: nothing goes in the clear where TLS is configured.
        if self.tls.is_some() != tls.is_some() {
            return Err(DialError::Confused);
        }
        let tls = tls.cloned();
        let (incarnation, session, timeout) = (welcome.incarnation, welcome.session, self.op_timeout);
        let addr = || resolve(&donor.address)?.next().ok_or(DialError::Confused);
        Ok(match way {
            Way::Shm(path) => {
                let shm = ShmConnector::connect(Path::new(path), client, incarnation, session, timeout)?;
                let shm = Arc::new(shm.with_slab_size(welcome.slab_size));
                Reached {
                    connector: shm.clone(),
                    shm: Some(shm),
                    verbs: None,
                    is_encrypted: false,
                    regions: Vec::new(),
                }
            }
            Way::Verbs => {
                let proof = Proof { client, incarnation, session };
                let (device, counts) = (self.verbs.clone(), counts.clone());
                let verbs =
                    Arc::new(VerbsConnector::connect(&Dial { addr: addr()?, proof, tls, timeout, device, counts })?);
                // A donor that can't register what it has lent (for want of lockable memory) is
                // better reached over TCP.
                welcome.held.iter().try_for_each(|lease| verbs.prepare(lease.rkey))?;
                // The same for the buffers here.
                let regions = arenas.iter().map(|arena| verbs.register(arena)).collect::<Result<_, _>>()?;
                Reached { connector: verbs.clone(), shm: None, verbs: Some(verbs), is_encrypted: false, regions }
            }
            Way::Tcp => {
                let is_encrypted = tls.is_some();
                let tcp = TcpConnector::new(addr()?, client, incarnation, session, timeout).with_tls(tls);
                Reached { connector: Arc::new(tcp), shm: None, verbs: None, is_encrypted, regions: Vec::new() }
            }
        })
    }
}

fn resolve(address: &str) -> Result<impl Iterator<Item = std::net::SocketAddr>, DialError> {
    address.to_socket_addrs().map_err(|source| DialError::Resolve { address: address.to_owned(), source })
}

struct NetLink {
    frames: Frames<Stream>,
    address: String,
    timeout: Duration,
    /// Came while an answer was awaited.
    heard: VecDeque<Event>,
    tls: Option<Arc<SessionTls>>,
    key: Option<KeyMark>,
}

impl NetLink {
    fn failed(&self, source: FrameError) -> DialError {
        DialError::Frame { address: self.address.clone(), source }
    }

    fn io(&self, source: std::io::Error) -> DialError {
        self.failed(FrameError::Io(source))
    }

    fn keep(&mut self, event: Event) -> Result<(), DialError> {
        self.heard.push_back(event);
        let slabs = |event: &Event| if let Event::Recall { slabs, .. } = event { slabs.len() } else { 0 };
        let recalled: usize = self.heard.iter().map(slabs).sum();
        if self.heard.len() > MOST_HEARD || recalled > MOST_RECALLED { Err(DialError::Flood) } else { Ok(()) }
    }
}

impl Link for NetLink {
    fn ask(&mut self, request: &Request) -> Result<Event, DialError> {
        let until = Instant::now() + self.timeout;
        self.frames.stream().socket().set_nonblocking(false).map_err(|e| self.io(e))?;
        write_frame(&mut self.frames.stream(), request).map_err(|e| self.failed(e))?;
        loop {
            // However slowly its bytes trickle in.
            let read = self.frames.read_through(|stream| stream.until(until));
            match read.map_err(|e| self.failed(e))? {
                Some(event @ (Event::Closing { .. } | Event::Recall { .. })) => self.keep(event)?,
                Some(answer) => return Ok(answer),
                None if Instant::now() < until => {}
                None => return Err(DialError::Silent { after: self.timeout }),
            }
        }
    }

    fn hear(&mut self) -> Result<Option<Event>, DialError> {
        if let Some(event) = self.heard.pop_front() {
            return Ok(Some(event));
        }
        self.frames.stream().socket().set_nonblocking(true).map_err(|e| self.io(e))?;
        self.frames.read().map_err(|e| self.failed(e))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.frames.stream().socket().as_fd()
    }

    fn tls(&self) -> Option<Arc<SessionTls>> {
        self.tls.clone()
    }

    fn key(&self) -> Option<KeyMark> {
        self.key
    }
}

/// A provider's connector; shared memory and RDMA want to know of slabs beforehand.
struct Reached {
    connector: Arc<dyn Connector>,
    shm: Option<Arc<ShmConnector>>,
    verbs: Option<Arc<VerbsConnector>>,
    is_encrypted: bool,
    regions: Vec<Arc<MemoryRegion>>,
}

impl DataPath for Reached {
    fn transport(&self) -> Transport {
        self.connector.transport()
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        self.connector.open(arena)
    }

    fn prepare(&self, rkey: Rkey) -> Result<(), DialError> {
        self.shm.as_ref().map_or(Ok(()), |shm| shm.prepare(rkey))?;
        self.verbs.as_ref().map_or(Ok(()), |verbs| verbs.prepare(rkey))?;
        Ok(())
    }

    fn forget(&self, rkey: Rkey) {
        if let Some(shm) = &self.shm {
            shm.forget(rkey);
        }
        if let Some(verbs) = &self.verbs {
            verbs.forget(rkey);
        }
    }

    fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    fn is_alive(&self) -> bool {
        self.verbs.as_ref().is_none_or(|verbs| verbs.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ids::SlabId;
    use annex_shared::wire::encode_frame;
    use std::io::Write;
    use std::net::TcpListener;

    /// What became of a question to a donor that does this.
    fn asked_of_one_that(timeout: Duration, does: impl FnOnce(TcpStream) + Send + 'static) -> Result<Event, DialError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let donor = std::thread::spawn(move || does(listener.accept().unwrap().0));
        let frames = Frames::new(Stream::plain(TcpStream::connect(address).unwrap()));
        let heard = VecDeque::new();
        let mut link = NetLink { frames, address: address.to_string(), timeout, heard, tls: None, key: None };
        let answer = link.ask(&Request::Lease { count: 1 });
        drop(link);
        donor.join().unwrap();
        answer
    }

    /// One that sends this over and over, whatever it is asked.
    fn asked_of_one_that_sends(event: Event) -> DialError {
        let sends = move |mut stream: TcpStream| while write_frame(&mut stream, &event).is_ok() {};
        asked_of_one_that(Duration::from_secs(60), sends).unwrap_err()
    }

    /// Each byte gave it all of the time once more: its thread, and whoever waited for that, hung
    /// for as long as the donor liked.
    #[test]
    fn an_answer_that_comes_byte_by_byte_has_no_more_time_than_any_other() {
        let trickles = |mut stream: TcpStream| {
            let answer = encode_frame(&Event::Renewed { held: vec![SlabId(1); 400], free_slabs: 1, capacity_slabs: 1 });
            for byte in answer.unwrap().chunks(1) {
                std::thread::sleep(Duration::from_millis(25));
                if stream.write_all(byte).is_err() {
                    return;
                }
            }
        };
        let answer = asked_of_one_that(Duration::from_millis(200), trickles);
        assert!(matches!(answer, Err(DialError::Silent { .. })), "{answer:?}");
    }

    #[test]
    fn what_a_donor_sends_in_place_of_an_answer_is_not_kept_for_ever() {
        let recall = |slabs: usize| Event::Recall { slabs: vec![SlabId(1); slabs], deadline_ms: 1000 };
        for event in [recall(1), recall(200_000), Event::Closing { grace_ms: 1 }] {
            let error = asked_of_one_that_sends(event);
            assert!(matches!(error, DialError::Flood), "{error}");
        }
    }
}
