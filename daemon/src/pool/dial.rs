//! Reaching a donor: the control connection, and the fabric that its welcome allows. Two traits, so that the pool above can be tested
//! against scripted donors; and what they are in earnest.

use super::config::{DonorConfig, PoolConfig, TransportChoice};
use annex_shared::fabric::faulty::{FaultPlan, FaultyConnector, PlanError};
use annex_shared::fabric::shm::{PrepareError, ShmConnector};
use annex_shared::fabric::tcp::TcpConnector;
use annex_shared::fabric::{Arena, ConnectError, Connector, Endpoint, Transport};
use annex_shared::ids::{ClientId, Rkey};
use annex_shared::preamble::Preamble;
use annex_shared::wire::{Event, FrameError, Frames, Refusal, Request, VERSION, Welcome, write_frame};
use std::collections::VecDeque;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A donor could not be reached, or the connection to it ended. `Display` follows "donor NAME: ".
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("the address {address} can't be resolved: {source}")]
    Resolve { address: String, source: std::io::Error },
    #[error("nobody lends memory at {address}: {source} (is annex-agent running there?)")]
    Connect { address: String, source: std::io::Error },
    #[error("the control connection to {address} failed: {source}")]
    Frame { address: String, source: FrameError },
    #[error("it did not answer within {after:?}")]
    Silent { after: Duration },
    #[error("it {0}")]
    Refused(Refusal),
    #[error("it gave an answer that does not fit the question")]
    Confused,
    #[error("it uses slabs of {theirs} bytes, this pool has slabs of {ours}: make slab_size equal on all donors")]
    SlabSize { theirs: u64, ours: u64 },
    #[error("it uses slabs of {0} bytes, which this annexd can't: slab_size must be a power of two from 64K to 1G")]
    BadSlabSize(u64),
    #[error("transport = \"shm\" but its agent is not on this host or has shm_socket off: use \"auto\" or \"tcp\"")]
    NoShm,
    #[error(transparent)]
    Data(#[from] ConnectError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Faults(#[from] PlanError),
}

/// Reaches donors.
pub(crate) trait Dialer: Send + Sync {
    /// Opens a control connection and says hello as `client`, expecting slabs of `slab_size` bytes (0 = any). May block for the
    /// configured time.
    fn dial(&self, donor: &DonorConfig, client: ClientId, slab_size: u64) -> Result<Dialed, DialError>;

    /// The fabric to a donor that said welcome.
    fn fabric(&self, donor: &DonorConfig, client: ClientId, welcome: &Welcome) -> Result<Fabric, DialError>;
}

/// A control connection whose hello was answered.
pub(crate) struct Dialed {
    pub link: Box<dyn Link>,
    pub welcome: Welcome,
}

/// A control connection.
pub(crate) trait Link: Send {
    /// Asks and waits for the answer, for the configured time at most.
    fn ask(&mut self, request: &Request) -> Result<Event, DialError>;

    /// What the agent said unasked, if anything; does not wait.
    fn hear(&mut self) -> Result<Option<Event>, DialError>;

    /// Readable when there may be something to hear.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// The way to a donor's slabs, and why it is this one.
pub(crate) struct Fabric {
    pub path: Arc<dyn DataPath>,
    pub why: String,
}

/// A connector that is told which slabs will be used.
pub(crate) trait DataPath: Send + Sync {
    fn transport(&self) -> Transport;
    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError>;
    /// Makes a slab ready, so that its first operation costs no more than any other.
    fn prepare(&self, rkey: Rkey) -> Result<(), DialError>;
    fn forget(&self, rkey: Rkey);
}

/// Donors on the network and on this host.
pub(crate) struct NetDialer {
    control_timeout: Duration,
    op_timeout: Duration,
}

impl NetDialer {
    pub fn new(config: &PoolConfig) -> Self {
        NetDialer { control_timeout: config.control_timeout.0, op_timeout: config.op_timeout.0 }
    }
}

impl Dialer for NetDialer {
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
        let Some(mut stream) = stream else {
            return Err(connect(last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into())));
        };
        stream.set_nodelay(true).map_err(connect)?;
        stream.set_write_timeout(Some(self.control_timeout)).map_err(connect)?;
        Preamble::Control.write_to(&mut stream).map_err(connect)?;
        let mut link = NetLink {
            frames: Frames::new(stream),
            address: address.clone(),
            timeout: self.control_timeout,
            heard: VecDeque::new(),
        };
        let hello = Request::Hello {
            version: VERSION as u16,
            client,
            host: nix::unistd::gethostname().map_or_else(|_| String::new(), |h| h.to_string_lossy().into_owned()),
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
            slab_size,
        };
        match link.ask(&hello)? {
            Event::Welcome(welcome) => Ok(Dialed { link: Box::new(link), welcome }),
            Event::Refused(refusal) => Err(DialError::Refused(refusal)),
            _ => Err(DialError::Confused),
        }
    }

    fn fabric(&self, donor: &DonorConfig, client: ClientId, welcome: &Welcome) -> Result<Fabric, DialError> {
        let (incarnation, session) = (welcome.incarnation, welcome.session);
        let shm = |path: &str| -> Result<Reached, DialError> {
            let shm = ShmConnector::connect(Path::new(path), client, incarnation, session, self.op_timeout)?;
            let shm = Arc::new(shm);
            Ok(Reached { connector: shm.clone(), shm: Some(shm) })
        };
        let tcp = || -> Result<Reached, DialError> {
            let addr = resolve(&donor.address)?.next().ok_or(DialError::Confused)?;
            let tcp = TcpConnector::new(addr, client, incarnation, session, self.op_timeout);
            Ok(Reached { connector: Arc::new(tcp), shm: None })
        };
        let (mut reached, mut why) = match (donor.transport, &welcome.shm_socket) {
            (TransportChoice::Tcp, _) => (tcp()?, "configured: tcp".to_owned()),
            (TransportChoice::Shm, None) => return Err(DialError::NoShm),
            (TransportChoice::Shm, Some(path)) => (shm(path)?, "configured: shared memory".to_owned()),
            (TransportChoice::Auto, None) => (tcp()?, "no shared memory with it, no RDMA device here: tcp".to_owned()),
            (TransportChoice::Auto, Some(path)) => match shm(path) {
                Ok(shm) => (shm, "same host: shared memory".to_owned()),
                Err(error) => (tcp()?, format!("same host, but shared memory failed ({error}): tcp")),
            },
        };
        if let Some(plan) = &donor.faults {
            let plan: FaultPlan = plan.parse()?;
            reached.connector = Arc::new(FaultyConnector::new(reached.connector, plan));
            why.push_str(", with injected faults");
        }
        Ok(Fabric { path: Arc::new(reached), why })
    }
}

fn resolve(address: &str) -> Result<impl Iterator<Item = std::net::SocketAddr>, DialError> {
    address.to_socket_addrs().map_err(|source| DialError::Resolve { address: address.to_owned(), source })
}

struct NetLink {
    frames: Frames<TcpStream>,
    address: String,
    timeout: Duration,
    /// Came while an answer was awaited.
    heard: VecDeque<Event>,
}

impl NetLink {
    fn failed(&self, source: FrameError) -> DialError {
        DialError::Frame { address: self.address.clone(), source }
    }

    fn io(&self, source: std::io::Error) -> DialError {
        self.failed(FrameError::Io(source))
    }
}

impl Link for NetLink {
    fn ask(&mut self, request: &Request) -> Result<Event, DialError> {
        let until = Instant::now() + self.timeout;
        self.frames.stream().set_nonblocking(false).map_err(|e| self.io(e))?;
        write_frame(&mut self.frames.stream(), request).map_err(|e| self.failed(e))?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DialError::Silent { after: self.timeout });
            }
            let stream = self.frames.stream();
            stream.set_read_timeout(Some(left)).map_err(|e| self.io(e))?;
            match self.frames.read::<Event>().map_err(|e| self.failed(e))? {
                Some(event @ (Event::Closing { .. } | Event::Recall { .. })) => self.heard.push_back(event),
                Some(answer) => return Ok(answer),
                None => {}
            }
        }
    }

    fn hear(&mut self) -> Result<Option<Event>, DialError> {
        if let Some(event) = self.heard.pop_front() {
            return Ok(Some(event));
        }
        self.frames.stream().set_nonblocking(true).map_err(|e| self.io(e))?;
        self.frames.read().map_err(|e| self.failed(e))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.frames.stream().as_fd()
    }
}

/// A provider's connector; shared memory wants to know of slabs beforehand.
struct Reached {
    connector: Arc<dyn Connector>,
    shm: Option<Arc<ShmConnector>>,
}

impl DataPath for Reached {
    fn transport(&self) -> Transport {
        self.connector.transport()
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        self.connector.open(arena)
    }

    fn prepare(&self, rkey: Rkey) -> Result<(), DialError> {
        self.shm.as_ref().map_or(Ok(()), |shm| Ok(shm.prepare(rkey)?))
    }

    fn forget(&self, rkey: Rkey) {
        if let Some(shm) = &self.shm {
            shm.forget(rkey);
        }
    }
}
