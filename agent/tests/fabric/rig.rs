//! A donor in this process: real targets over real sockets, and the simplest lease table that is
//! one.

#![allow(dead_code)] // each test binary uses its part

#[path = "device.rs"]
mod device;

pub use device::has_verbs;

use annex_agent::targets::{Connections, RegistrationError, Registrations, SlabAccess, SlabMemfd, shm, tcp, verbs};
use annex_fabric::shm::{Board, ShmConnector, monotonic_ns};
use annex_fabric::tcp::TcpConnector;
use annex_fabric::tcp::frame::{ALL_EARLIER, ANSWER_LEN, Answer, REQUEST_LEN, Request, Status, Verb};
use annex_fabric::verbs::{
    Counts, DeviceChoice, Dial, MemoryRegion, ProtectionDomain, Rights, VerbsConnector, VerbsError, Window,
};
use annex_fabric::{Arena, Completion, Connector, Endpoint, ErrorKind, Op, OpKind};
use annex_shared::ids::{ClientId, Incarnation, RemoteAddr, Rkey, SessionKey};
use annex_shared::memfd;
use annex_shared::preamble::{AdmitError, Preamble, Proof};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

pub const CLIENT: ClientId = ClientId(0xc1);
pub const OTHER: ClientId = ClientId(0xc2);
pub const INCARNATION: Incarnation = Incarnation(0x1ca);
pub const SESSION: SessionKey = SessionKey(0x5e55);
/// Of CLIENT, after another hello.
pub const NEXT_SESSION: SessionKey = SessionKey(0x5e56);
pub const SLAB: usize = 8 << 20;
/// Leases of CLIENT, CLIENT and OTHER.
pub const KEY: Rkey = Rkey(0xa1);
pub const SECOND_KEY: Rkey = Rkey(0xa2);
pub const OTHERS_KEY: Rkey = Rkey(0xb1);
/// Far longer than anything here takes; a test that waits for it says so.
pub const PATIENCE: Duration = Duration::from_secs(20);

struct Lease {
    owner: ClientId,
    fd: OwnedFd,
    base: *mut u8,
    slot: u32,
}

pub struct Table {
    /// Before the leases: what is registered goes first.
    registrations: Registrations,
    leases: RwLock<HashMap<Rkey, Lease>>,
    board: Board,
}

// SAFETY: the base is a mapping that lives as long as the process; it is only handed to the
// targets.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    fn new() -> Table {
        let table = Table {
            registrations: Registrations::default(),
            leases: RwLock::default(),
            board: Board::create(4).unwrap(),
        };
        for (slot, (rkey, owner)) in [(KEY, CLIENT), (SECOND_KEY, CLIENT), (OTHERS_KEY, OTHER)].into_iter().enumerate()
        {
            let slot = slot as u32 + 1;
            table.board.grant(slot, rkey, INCARNATION, u64::MAX);
            let fd = memfd::create(c"slab", SLAB).unwrap();
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a fresh mapping, never unmapped.
            let base =
                unsafe { libc::mmap(std::ptr::null_mut(), SLAB, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
            assert_ne!(base, libc::MAP_FAILED);
            table.leases.write().unwrap().insert(rkey, Lease { owner, fd, base: base.cast(), slot });
        }
        table
    }

    /// Ends a lease: on the board, in the table and with the device.
    pub fn revoke(&self, rkey: Rkey) {
        let lease = self.leases.write().unwrap().remove(&rkey).unwrap();
        self.board.revoke(lease.slot);
        self.registrations.end(rkey);
    }

    /// The slab of a lease goes on under another key, with its bytes; the old key is dead.
    pub fn lend_anew(&self, old: Rkey, new: Rkey) {
        let lease = self.leases.write().unwrap().remove(&old).unwrap();
        self.registrations.end(old);
        self.leases.write().unwrap().insert(new, lease);
    }

    /// Ends a lease on the board only.
    pub fn revoke_on_board(&self, rkey: Rkey) {
        self.board.revoke(self.leases.read().unwrap()[&rkey].slot);
    }

    /// Grants a lease anew on the board.
    pub fn grant_on_board(&self, rkey: Rkey) {
        self.board.grant(self.leases.read().unwrap()[&rkey].slot, rkey, INCARNATION, u64::MAX);
    }

    /// Lets a lease run out on the board, as when the agent has died.
    pub fn expire_on_board(&self, rkey: Rkey) {
        self.board.renew(self.leases.read().unwrap()[&rkey].slot, monotonic_ns() - 1);
    }

    /// Keeps every operation that comes waiting inside the table, as long as this is held.
    pub fn freeze(&self) -> impl Drop + '_ {
        self.leases.write().unwrap()
    }

    /// What lies in a slab, whoever asks.
    pub fn peek(&self, rkey: Rkey, at: usize, len: usize) -> Vec<u8> {
        let leases = self.leases.read().unwrap();
        let mut bytes = vec![0; len];
        assert!(at + len <= SLAB);
        // SAFETY: in bounds of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(leases[&rkey].base.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// The inode of a slab's memfd, as `/proc/self/maps` shows it.
    pub fn inode(&self, rkey: Rkey) -> String {
        nix::sys::stat::fstat(&self.leases.read().unwrap()[&rkey].fd).unwrap().st_ino.to_string()
    }

    pub fn poke(&self, rkey: Rkey, at: usize, bytes: &[u8]) {
        let leases = self.leases.read().unwrap();
        assert!(at + bytes.len() <= SLAB);
        // SAFETY: in bounds of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), leases[&rkey].base.add(at), bytes.len()) };
    }
}

impl SlabAccess for Table {
    fn admit(&self, proof: &Proof) -> Result<(), AdmitError> {
        match proof {
            p if p.incarnation != INCARNATION => Err(AdmitError::StaleIncarnation),
            p if p.client != CLIENT && p.client != OTHER => Err(AdmitError::UnknownClient),
            p if p.session != SESSION && p.session != NEXT_SESSION => Err(AdmitError::WrongSession),
            _ => Ok(()),
        }
    }

    fn with_slab(
        &self,
        who: ClientId,
        rkey: Rkey,
        addr: RemoteAddr,
        len: usize,
        f: &mut dyn FnMut(*mut u8),
    ) -> Result<(), ErrorKind> {
        let leases = self.leases.read().unwrap();
        let lease = leases.get(&rkey).filter(|l| l.owner == who).ok_or(ErrorKind::RemoteAccess)?;
        let end = addr.0.checked_add(len as u64).ok_or(ErrorKind::RemoteAccess)?;
        if end > SLAB as u64 {
            return Err(ErrorKind::RemoteAccess);
        }
        // SAFETY: in bounds of the mapping.
        f(unsafe { lease.base.add(addr.0 as usize) });
        Ok(())
    }

    fn memfd(&self, who: ClientId, rkey: Rkey) -> Result<SlabMemfd, ErrorKind> {
        let leases = self.leases.read().unwrap();
        let lease = leases.get(&rkey).filter(|l| l.owner == who).ok_or(ErrorKind::RemoteAccess)?;
        let fd = lease.fd.try_clone().map_err(|_| ErrorKind::RemoteOperation)?;
        Ok(SlabMemfd { fd, offset: 0, len: SLAB as u64, board_slot: lease.slot })
    }

    fn register(
        &self,
        who: ClientId,
        rkey: Rkey,
        connection: u64,
        domain: &Arc<ProtectionDomain>,
    ) -> Result<Window, RegistrationError> {
        let leases = self.leases.read().unwrap();
        let lease = leases.get(&rkey).filter(|l| l.owner == who).ok_or(ErrorKind::RemoteAccess)?;
        // The read lock keeps the lease.
        let registered = self.registrations.register(
            rkey,
            connection,
            || true,
            || {
                // SAFETY: the mapping lives as long as the process.
                unsafe { MemoryRegion::new(domain, lease.base, SLAB, Rights::RemoteAll) }
            },
        )?;
        Ok(registered.ok_or(ErrorKind::RemoteAccess)?)
    }

    fn unregister(&self, connection: u64) {
        self.registrations.leave(connection);
    }

    fn board(&self) -> Option<BorrowedFd<'_>> {
        Some(self.board.fd())
    }
}

pub struct Donor {
    pub table: Arc<Table>,
    pub connections: Arc<Connections>,
    pub addr: SocketAddr,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Donor {
    pub fn start() -> Donor {
        let (table, connections) = (Arc::new(Table::new()), Arc::new(Connections::new()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let local = UnixListener::bind(&socket).unwrap();
        let (t, c) = (table.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, t, c) = (stream.unwrap(), t.clone(), c.clone());
                std::thread::spawn(move || match Preamble::read_from(&mut stream) {
                    Ok(Preamble::Data(proof)) => drop(tcp::serve(stream, &proof.into(), &*t, &c)),
                    Ok(Preamble::Verbs(proof)) => {
                        drop(verbs::serve(stream, &proof.into(), &*t, &c, Some(&DeviceChoice::default())))
                    }
                    _ => {}
                });
            }
        });
        let (t, c) = (table.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in local.incoming() {
                let (mut stream, t, c) = (stream.unwrap(), t.clone(), c.clone());
                std::thread::spawn(move || {
                    let Ok(Preamble::Shm(proof)) = Preamble::read_from(&mut stream) else { return };
                    let _ = shm::serve(stream, &proof, &*t, &c);
                });
            }
        });
        Donor { table, connections, addr, socket, _dir: dir }
    }

    pub fn tcp(&self) -> TcpConnector {
        self.tcp_as(CLIENT)
    }

    pub fn tcp_as(&self, client: ClientId) -> TcpConnector {
        TcpConnector::new(self.addr, client, INCARNATION, SESSION, PATIENCE)
    }

    /// With CLIENT's two slabs prepared.
    pub fn verbs(&self) -> VerbsConnector {
        let connector = self.verbs_with(CLIENT, INCARNATION, SESSION).unwrap();
        connector.prepare(KEY).unwrap();
        connector.prepare(SECOND_KEY).unwrap();
        connector
    }

    pub fn verbs_with(
        &self,
        client: ClientId,
        incarnation: Incarnation,
        session: SessionKey,
    ) -> Result<VerbsConnector, VerbsError> {
        VerbsConnector::connect(&Dial {
            addr: self.addr,
            proof: Proof { client, incarnation, session },
            tls: None,
            timeout: PATIENCE,
            device: DeviceChoice::default(),
            counts: Arc::<Counts>::default(),
        })
    }

    /// With CLIENT's two slabs prepared.
    pub fn shm(&self) -> ShmConnector {
        let connector = self.shm_with(INCARNATION, SESSION).unwrap();
        connector.prepare(KEY).unwrap();
        connector.prepare(SECOND_KEY).unwrap();
        connector
    }

    pub fn shm_with(
        &self,
        incarnation: Incarnation,
        session: SessionKey,
    ) -> Result<ShmConnector, annex_fabric::ConnectError> {
        ShmConnector::connect(&self.socket, CLIENT, incarnation, session, PATIENCE)
    }
}

/// A donor that admits connections, answers a connector's first fence, and leaves the rest to the
/// test.
pub fn scripted_donor() -> (SocketAddr, std::sync::mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            Preamble::read_from(&mut stream).unwrap();
            annex_shared::preamble::write_answer(&mut stream, Ok(number as u64 + 1)).unwrap();
            if number == 0 {
                answer_fence(&mut stream, ALL_EARLIER);
            }
            let _ = send.send(stream);
        }
    });
    (addr, receive)
}

/// Expects a fence against `number` and grants it.
pub fn answer_fence(stream: &mut TcpStream, number: u64) {
    let mut head = [0; REQUEST_LEN];
    stream.read_exact(&mut head).unwrap();
    let fence = Request::parse(&head).unwrap();
    assert_eq!((fence.verb, fence.addr), (Verb::Fence, RemoteAddr(number)));
    let mut bytes = [0; ANSWER_LEN];
    Answer { status: Status::Done, verb: Verb::Fence, len: 0, seq: fence.seq, value: 0 }.encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
}

/// An endpoint with its arena: one lane.
pub struct Lane {
    pub arena: Arc<Arena>,
    pub endpoint: Box<dyn Endpoint>,
}

impl Lane {
    pub fn open(connector: &dyn Connector, arena: usize) -> Lane {
        let arena = Arc::new(Arena::new(arena).unwrap());
        Lane { endpoint: connector.open(&arena).unwrap(), arena }
    }

    pub fn fill(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the test has nothing in flight on the range.
        unsafe { self.arena.bytes_mut(at, bytes.len()) }.copy_from_slice(bytes);
    }

    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { self.arena.bytes(at, len) }.to_vec()
    }

    /// Polls until `count` operations are done, sleeping on the event descriptor as a worker does.
    pub fn finish(&mut self, count: usize) -> Vec<Completion> {
        let (mut done, start) = (Vec::new(), Instant::now());
        loop {
            self.endpoint.poll(&mut done);
            if done.len() >= count {
                return done;
            }
            assert!(start.elapsed() < PATIENCE * 2, "{} of {count} operations done, then nothing", done.len());
            if !self.endpoint.arm() {
                sleep_on(&*self.endpoint, Duration::from_millis(50));
            }
        }
    }

    /// One operation, alone.
    pub fn run(&mut self, kind: OpKind, local: usize, len: u32, rkey: Rkey, addr: u64) -> Completion {
        self.endpoint.post(Op { tag: 77, kind, local, len, rkey, addr: RemoteAddr(addr) }).unwrap();
        self.endpoint.ring();
        let done = self.finish(1);
        assert_eq!((done.len(), done[0].tag), (1, 77));
        done[0]
    }
}

/// True if the descriptor woke us.
pub fn sleep_on(endpoint: &dyn Endpoint, at_most: Duration) -> bool {
    let Some(fd) = endpoint.event_fd() else { return false };
    let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    let timeout = nix::poll::PollTimeout::try_from(at_most).unwrap();
    nix::poll::poll(&mut fds, timeout).unwrap() > 0
}

/// Bytes that differ at every place and for every seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
