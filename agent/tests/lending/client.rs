//! A client that speaks the control protocol word for word, and an agent to speak to.

use annex_agent::{Agent, Config};
use annex_fabric::shm::ShmConnector;
use annex_fabric::tcp::TcpConnector;
use annex_fabric::verbs::{DeviceChoice, Dial, VerbsConnector, VerbsError};
use annex_fabric::{Arena, ConnectError, Connector, Endpoint, ErrorKind, Op, OpKind};
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::ids::{ClientId, RemoteAddr, Rkey, SlabId};
use annex_shared::preamble::{Preamble, Proof};
use annex_shared::wire::{Event, FrameError, Frames, Lease, Refusal, Request, VERSION, Welcome, write_frame};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const ANNA: ClientId = ClientId(0xa);
pub const BERT: ClientId = ClientId(0xb);
pub const SLAB: u64 = 1 << 20;

/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An agent's configuration for tests: small slabs, a free port, a socket in `dir`.
pub fn config(dir: &Path, slabs: u64) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        name: Some("test donor".into()),
        capacity: Some(ByteSize(slabs * SLAB)),
        slab_size: ByteSize(SLAB),
        headroom: Some(ByteSize(0)),
        shm_socket: dir.join("agent.sock"),
        ..Config::default()
    }
}

/// A started agent, and the folder of its socket.
pub fn agent(slabs: u64, change: impl FnOnce(&mut Config)) -> (Agent, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), slabs);
    change(&mut config);
    (Agent::start(config).unwrap(), dir)
}

pub fn ttl(ms: u64) -> TimeSpan {
    TimeSpan(Duration::from_millis(ms))
}

pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// A hello as a proper client on this host sends it.
pub fn hello(client: ClientId) -> Request {
    Request::Hello { version: VERSION as u16, client, host: "here".into(), boot_id: boot_id(), slab_size: 0 }
}

/// A control connection.
pub struct Client {
    pub stream: TcpStream,
    frames: Frames<TcpStream>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        Client::try_connect(addr).unwrap()
    }

    pub fn try_connect(addr: SocketAddr) -> std::io::Result<Client> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Preamble::Control.write_to(&mut stream)?;
        Ok(Client { frames: Frames::new(stream.try_clone()?), stream })
    }

    /// Connects and is welcome.
    pub fn greet(addr: SocketAddr, client: ClientId) -> (Client, Welcome) {
        let mut connected = Client::connect(addr);
        match connected.ask(&hello(client)) {
            Event::Welcome(welcome) => (connected, welcome),
            other => panic!("expected a welcome, got {other:?}"),
        }
    }

    pub fn send(&mut self, request: &Request) {
        write_frame(&mut self.stream, request).unwrap();
    }

    pub fn next(&mut self) -> Result<Event, FrameError> {
        self.frames.read().map(|event| event.expect("the agent says something in time"))
    }

    /// As [`Client::ask`], of an agent that may be gone.
    pub fn try_ask(&mut self, request: &Request) -> Result<Event, FrameError> {
        write_frame(&mut self.stream, request)?;
        self.next()
    }

    pub fn ask(&mut self, request: &Request) -> Event {
        self.send(request);
        self.next().unwrap()
    }

    pub fn lease(&mut self, count: u32) -> Vec<Lease> {
        match self.ask(&Request::Lease { count }) {
            Event::Leased { slabs } => slabs,
            other => panic!("expected leases, got {other:?}"),
        }
    }

    pub fn refused(&mut self, request: &Request) -> Refusal {
        match self.ask(request) {
            Event::Refused(refusal) => refusal,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    pub fn renew(&mut self) -> Vec<SlabId> {
        match self.ask(&Request::Renew) {
            Event::Renewed { held, .. } => held,
            other => panic!("expected a renewal, got {other:?}"),
        }
    }

    pub fn give_back(&mut self, slabs: Vec<SlabId>) {
        assert!(matches!(self.ask(&Request::Return { slabs }), Event::Returned));
    }
}

/// Connects over RDMA.
pub fn rdma(addr: SocketAddr, client: ClientId, welcome: &Welcome) -> Result<VerbsConnector, VerbsError> {
    VerbsConnector::connect(&Dial {
        addr,
        proof: Proof { client, incarnation: welcome.incarnation, session: welcome.session },
        tls: None,
        timeout: PATIENCE,
        device: DeviceChoice::default(),
        counts: Arc::default(),
    })
}

/// A data endpoint and its buffer.
pub struct Data {
    arena: Arc<Arena>,
    endpoint: Box<dyn Endpoint>,
}

impl Data {
    pub fn tcp(addr: SocketAddr, client: ClientId, welcome: &Welcome) -> Data {
        Data::of(&TcpConnector::new(addr, client, welcome.incarnation, welcome.session, PATIENCE))
    }

    /// Over shm, with one slab prepared.
    pub fn shm(client: ClientId, welcome: &Welcome, rkey: Rkey) -> (Data, ShmConnector) {
        let path = welcome.shm_socket.as_ref().expect("shm is offered to this host");
        let connector =
            ShmConnector::connect(Path::new(path), client, welcome.incarnation, welcome.session, PATIENCE).unwrap();
        connector.prepare(rkey).unwrap();
        (Data::of(&connector), connector)
    }

    /// Over RDMA, with one slab prepared.
    pub fn verbs(addr: SocketAddr, client: ClientId, welcome: &Welcome, rkey: Rkey) -> (Data, VerbsConnector) {
        let connector = rdma(addr, client, welcome).unwrap();
        connector.prepare(rkey).unwrap();
        (Data::of(&connector), connector)
    }

    fn of(connector: &dyn Connector) -> Data {
        Data::try_of(connector).unwrap()
    }

    pub fn try_of(connector: &dyn Connector) -> Result<Data, ConnectError> {
        let arena = Arc::new(Arena::new(SLAB as usize).unwrap());
        let endpoint = connector.open(&arena)?;
        Ok(Data { arena, endpoint })
    }

    /// Writes the whole slab.
    pub fn write_bytes(&mut self, rkey: Rkey, bytes: &[u8]) -> Result<(), ErrorKind> {
        // SAFETY: no operation is outstanding between calls.
        unsafe { self.arena.bytes_mut(0, SLAB as usize) }.copy_from_slice(bytes);
        self.run(OpKind::Write, rkey)
    }

    /// Fills the whole slab.
    pub fn write(&mut self, rkey: Rkey, byte: u8) -> Result<(), ErrorKind> {
        // SAFETY: no operation is outstanding between calls.
        unsafe { self.arena.bytes_mut(0, SLAB as usize) }.fill(byte);
        self.run(OpKind::Write, rkey)
    }

    /// The whole slab.
    pub fn read(&mut self, rkey: Rkey) -> Result<Vec<u8>, ErrorKind> {
        self.run(OpKind::Read, rkey)?;
        // SAFETY: no operation is outstanding between calls.
        Ok(unsafe { self.arena.bytes(0, SLAB as usize) }.to_vec())
    }

    fn run(&mut self, kind: OpKind, rkey: Rkey) -> Result<(), ErrorKind> {
        self.endpoint.post(Op { tag: 1, kind, local: 0, len: SLAB as u32, rkey, addr: RemoteAddr(0) }).unwrap();
        self.endpoint.ring();
        let mut done = Vec::new();
        wait_until("an operation to complete", || {
            self.endpoint.poll(&mut done);
            !done.is_empty()
        });
        done[0].result
    }
}

/// Polls for something that has no event to wait for.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
