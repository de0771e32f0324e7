//! A client that lies to a real annex-agent, in every way that its protocols have, and an honest
//! client beside it that is served as if nobody else were there.

use super::MINUTE;
use super::lies::{self, Shape};
use annex_fabric::MAX_OP_LEN;
use annex_fabric::shm::protocol as shm;
use annex_fabric::tcp::frame::{ANSWER_LEN, Answer, REQUEST_LEN, Request as Operation, Status, Verb};
use annex_fabric::verbs::protocol as verbs;
use annex_shared::ids::{ClientId, Incarnation, RemoteAddr, Rkey, SessionKey, SlabId};
use annex_shared::preamble::{AnswerError, LaneProof, MAC_LEN, PREAMBLE_LEN, Preamble, Proof, read_answer};
use annex_shared::wire::{Event, Frames, Lease, Request, VERSION, Welcome, encode_frame, write_frame};
use annex_tests::testbed::process::{Process, own_memory};
use annex_tests::testbed::{Turn, bins, directory, port, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const SLAB: u64 = 1 << 20;
const PAGE: usize = 4096;
const ANNA: ClientId = ClientId(0xa11a);
const LIAR: ClientId = ClientId(0x11a2);
/// What an agent may grow by, however it is lied to: buffers and threads' stacks.
const ALLOWANCE: u64 = 64 << 20;
/// Lines of its log that a storm of lies may cost: each kind is said once in 10 s, and counted.
const FEW_LINES: usize = 60;

/// A real agent, and a client that it serves.
struct Bed {
    honest: Honest,
    agent: Process,
    addr: SocketAddr,
    socket: PathBuf,
    before: Resources,
    _dir: TempDir,
    _turn: Turn,
}

/// What a process has, of what its peers could make it have more of.
#[derive(Debug)]
struct Resources {
    memory: u64,
    threads: usize,
    sockets: usize,
}

impl Resources {
    fn of(pid: i32) -> Resources {
        let entries = |what| fs::read_dir(format!("/proc/{pid}/{what}")).expect("it runs").flatten();
        let is_socket = |path: PathBuf| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        Resources {
            memory: own_memory(pid).expect("it runs"),
            threads: entries("task").count(),
            sockets: entries("fd").filter(|entry| is_socket(entry.path())).count(),
        }
    }
}

impl Bed {
    fn new() -> Bed {
        let turn = Turn::shared();
        let dir = tempfile::tempdir_in(directory()).expect("the folder is ours");
        let (addr, socket) = (port::free(), dir.path().join("shm.sock"));
        let mut agent = Command::new(bins::find("annex-agent"));
        agent.args(["--listen", &addr.to_string(), "--capacity", "64M", "--slab-size", "1M", "--per-client", "16M"]);
        agent.args(["--headroom", "0", "--name", "donor", "--control-socket", "", "--shm-socket"]).arg(&socket);
        let agent = Process::start("agent", agent, dir.path());
        wait_for("the agent to listen", MINUTE, || TcpStream::connect(addr).is_ok());
        let honest = Honest::new(addr);
        let before = Resources::of(agent.pid());
        Bed { honest, agent, addr, socket, before, _dir: dir, _turn: turn }
    }

    /// All that was lied is over: the honest client is served, and the agent has what it had.
    fn end(mut self, lies: usize) {
        self.honest.is_served();
        self.honest.renews();
        let pid = self.agent.pid();
        let is_as_before = |now: &Resources| now.threads <= self.before.threads && now.sockets <= self.before.sockets;
        wait_for("all that the liar had to be gone", MINUTE, || is_as_before(&Resources::of(pid)));
        let after = Resources::of(pid);
        let grown = after.memory.saturating_sub(self.before.memory);
        let log = self.agent.stderr();
        let lines = log.lines().count();
        println!("{lies} lies; the agent grew by {} KiB and said {lines} lines", grown >> 10);
        assert!(grown < ALLOWANCE, "{grown} bytes more after {lies} lies");
        assert!(lines < FEW_LINES, "{lines} lines for {lies} lies:\n{log}");
        assert!(!log.contains('\x1b') && !log.lines().any(|line| line.contains(" forged ") && !line.contains('\\')));
        assert!(log.contains("127.0.0.1"), "nobody is named:\n{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

fn hello(client: ClientId, host: &str) -> Request {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it is mounted").trim().to_owned();
    Request::Hello { version: VERSION as u16, client, host: host.into(), boot_id, slab_size: 0 }
}

/// A control connection.
fn control(addr: SocketAddr) -> TcpStream {
    let mut stream = connect(addr);
    Preamble::Control.write_to(&mut stream).expect("it reads");
    stream
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(MINUTE)).expect("a socket");
    stream.set_write_timeout(Some(MINUTE)).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    stream
}

fn ask(stream: &mut TcpStream, request: &Request) -> Event {
    write_frame(stream, request).expect("it reads");
    // Nothing comes unasked in these tests, so no byte is read ahead.
    Frames::new(stream).read().expect("a valid answer").expect("in time")
}

fn greet(addr: SocketAddr, client: ClientId, host: &str) -> (TcpStream, Welcome) {
    let mut stream = control(addr);
    match ask(&mut stream, &hello(client, host)) {
        Event::Welcome(welcome) => (stream, welcome),
        other => panic!("no welcome: {other:?}"),
    }
}

fn proof(client: ClientId, welcome: &Welcome) -> Proof {
    Proof { client, incarnation: welcome.incarnation, session: welcome.session }
}

/// An admitted data connection, and its number.
fn data(addr: SocketAddr, proof: Proof) -> (TcpStream, u64) {
    let mut stream = connect(addr);
    Preamble::Data(proof).write_to(&mut stream).expect("it reads");
    let number = read_answer(&mut stream).expect("it is admitted");
    (stream, number)
}

fn operate(stream: &mut TcpStream, operation: &Operation, payload: &[u8]) -> (Answer, Vec<u8>) {
    let mut head = [0; REQUEST_LEN];
    operation.encode(&mut head);
    stream.write_all(&[&head[..], payload].concat()).expect("it reads");
    let mut head = [0; ANSWER_LEN];
    stream.read_exact(&mut head).expect("it answers");
    let answer = Answer::parse(&head).expect("an answer");
    let mut found = vec![0; answer.len as usize];
    stream.read_exact(&mut found).expect("what it said");
    (answer, found)
}

struct Honest {
    control: TcpStream,
    data: TcpStream,
    number: u64,
    welcome: Welcome,
    lease: Lease,
    seq: u64,
    page: Vec<u8>,
}

impl Honest {
    fn new(addr: SocketAddr) -> Honest {
        let (mut control, welcome) = greet(addr, ANNA, "honest");
        let Event::Leased { slabs } = ask(&mut control, &Request::Lease { count: 1 }) else { panic!("no lease") };
        let (data, number) = data(addr, proof(ANNA, &welcome));
        let mut honest = Honest { control, data, number, welcome, lease: slabs[0], seq: 0, page: Vec::new() };
        honest.writes();
        honest
    }

    fn operation(&mut self, verb: Verb) -> Operation {
        self.seq += 1;
        let (rkey, addr) = (self.lease.rkey, RemoteAddr(SLAB - PAGE as u64));
        Operation { verb, len: PAGE as u32, rkey, addr, seq: self.seq, expect: 0, swap: 0 }
    }

    fn writes(&mut self) {
        self.page = (0..PAGE).map(|at| (at as u64 * 31 + self.seq * 7) as u8 | 1).collect();
        let (operation, page) = (self.operation(Verb::Write), self.page.clone());
        assert_eq!(operate(&mut self.data, &operation, &page).0.status, Status::Done);
    }

    /// What it wrote last is there.
    fn is_served(&mut self) {
        let operation = self.operation(Verb::Read);
        let (answer, found) = operate(&mut self.data, &operation, &[]);
        assert_eq!((answer.status, answer.seq), (Status::Done, operation.seq));
        assert!(found == self.page, "other bytes than it wrote");
        if self.seq.is_multiple_of(16) {
            self.writes();
        }
    }

    fn renews(&mut self) {
        match ask(&mut self.control, &Request::Renew) {
            Event::Renewed { held, .. } => assert_eq!(held, [self.lease.slab]),
            other => panic!("no renewal: {other:?}"),
        }
    }
}

/// How far the liar is honest.
#[derive(Clone, Copy, Debug)]
enum Stage {
    First,
    Greeted,
    Leased,
    Returned,
}

const STAGES: [Stage; 4] = [Stage::First, Stage::Greeted, Stage::Leased, Stage::Returned];

fn reach(addr: SocketAddr, stage: Stage) -> TcpStream {
    if let Stage::First = stage {
        return control(addr);
    }
    let (mut stream, welcome) = greet(addr, LIAR, "liar");
    if let Stage::Leased | Stage::Returned = stage {
        let mut held: Vec<SlabId> = welcome.held.iter().map(|lease| lease.slab).collect();
        match ask(&mut stream, &Request::Lease { count: 1 }) {
            Event::Leased { slabs } => held.extend(slabs.iter().map(|lease| lease.slab)),
            // It has leased so often that it has all that one may have.
            Event::Refused(_) => {}
            other => panic!("no lease: {other:?}"),
        }
        if let Stage::Returned = stage {
            assert!(matches!(ask(&mut stream, &Request::Return { slabs: held }), Event::Returned));
        }
    }
    stream
}

/// Says it, and hears what comes until the agent has hung up.
fn tell(mut stream: TcpStream, lie: &[u8]) -> Vec<u8> {
    // The agent may have hung up in the middle of it.
    let _ = stream.write_all(lie);
    let _ = stream.shutdown(Shutdown::Write);
    let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return said,
            Ok(n) => said.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(e) => panic!("the agent keeps a liar's connection: {e}"),
        }
    }
}

/// What was made of the honest client's rights for somebody else.
fn leaks(said: &[u8], honest: &Honest) -> bool {
    let mut frames = Frames::new(said);
    std::iter::from_fn(|| frames.read::<Event>().ok().flatten()).any(|event| match event {
        Event::Welcome(welcome) => welcome.session == honest.welcome.session || welcome.held.contains(&honest.lease),
        Event::Leased { slabs } => slabs.iter().any(|lease| lease.slab == honest.lease.slab),
        Event::Renewed { held, .. } => held.contains(&honest.lease.slab),
        Event::Returned | Event::Refused(_) | Event::Closing { .. } | Event::Recall { .. } => false,
    })
}

fn numbers(field: &str) -> u128 {
    match field {
        "version" => VERSION as u128,
        "client" => u128::from(LIAR.0),
        "count" => 2,
        "slab_size" => u128::from(SLAB),
        _ => 7,
    }
}

/// Lies that take more than one odd value.
fn requests_of_its_own(honest: &Honest) -> Vec<(String, Vec<u8>)> {
    let of =
        |request: Request| (format!("{request:?}").chars().take(80).collect(), encode_frame(&request).expect("valid"));
    let Request::Hello { version, boot_id, .. } = hello(ANNA, "") else { unreachable!("it is one") };
    let another = |host: &str, boot_id: &str| {
        let (host, boot_id) = (host.to_owned(), boot_id.to_owned());
        of(Request::Hello { version, client: ANNA, host, boot_id, slab_size: 0 })
    };
    vec![
        another("liar", &boot_id),
        another("honest", "another boot"),
        another("", ""),
        of(Request::Return { slabs: vec![honest.lease.slab] }),
        of(Request::Return { slabs: (0..60).map(SlabId).collect() }),
        of(Request::Return { slabs: vec![SlabId(u32::MAX); 1000] }),
        of(Request::Return { slabs: (0..200_000).map(SlabId).collect() }),
        of(Request::Lease { count: u32::MAX }),
    ]
}

#[test]
fn no_lie_on_a_control_connection_costs_anybody_else_anything() {
    let mut bed = Bed::new();
    let mut lies: Vec<(String, Vec<u8>)> =
        lies::shapes::<Request>(&numbers).iter().flat_map(|(shape, _)| lies::lies(shape)).collect();
    lies.extend(requests_of_its_own(&bed.honest));
    // And what is none at that moment: said first, said again.
    lies.extend(
        lies::shapes::<Request>(&numbers).into_iter().map(|(Shape { name, tokens }, _)| {
            (format!("{name}, as it should be"), lies::frame(&lies::encode(&tokens)))
        }),
    );
    let mut told = 0;
    for stage in STAGES {
        for (what, lie) in &lies {
            let said = tell(reach(bed.addr, stage), lie);
            assert!(!leaks(&said, &bed.honest), "{stage:?}: {what}");
            bed.honest.is_served();
            told += 1;
        }
        bed.honest.renews();
    }
    // Other kinds of connections, each with messages of its own.
    let (_liar, welcome) = greet(bed.addr, LIAR, "liar");
    for (shape, _) in lies::shapes::<verbs::Request>(&|_| 7) {
        for (what, lie) in lies::lies(&shape) {
            let mut stream = connect(bed.addr);
            Preamble::Verbs(proof(LIAR, &welcome)).write_to(&mut stream).expect("it reads");
            read_answer(&mut stream).unwrap_or_else(|e| panic!("{what}: {e}"));
            tell(stream, &lie);
            told += 1;
        }
        bed.honest.is_served();
    }
    drop(_liar);
    bed.end(told);
}

/// Each field of a preamble, one odd value at a time; and its first bytes only.
fn odd_preambles(honest: Proof, own: Proof) -> Vec<(String, Vec<u8>)> {
    let lane = |client| LaneProof { client, incarnation: own.incarnation, lane: 0, mac: [7; MAC_LEN] };
    let mixed = [
        Proof { session: honest.session, ..own },
        Proof { client: honest.client, ..own },
        Proof { client: honest.client, session: SessionKey(0), ..own },
        Proof { client: honest.client, session: SessionKey(u128::MAX), ..own },
        Proof { incarnation: Incarnation(0), ..honest },
        Proof { incarnation: Incarnation(own.incarnation.0.wrapping_add(1)), ..own },
        Proof { client: ClientId(0), ..own },
    ];
    let kinds = |proof: Proof| {
        let all = [
            Preamble::Data(proof),
            Preamble::Shm(proof),
            Preamble::Verbs(proof),
            Preamble::SecureData(lane(proof.client)),
            Preamble::SecureVerbs(lane(proof.client)),
        ];
        // A new kind does not compile until it is among these.
        for preamble in &all {
            match preamble {
                Preamble::Control | Preamble::Data(_) | Preamble::Shm(_) | Preamble::Verbs(_) => {}
                Preamble::SecureData(_) | Preamble::SecureVerbs(_) => {}
            }
        }
        all
    };
    let bytes_of = |preamble: Preamble| {
        let mut bytes = Vec::new();
        preamble.write_to(&mut bytes).expect("memory takes it");
        bytes
    };
    let mut all = Vec::new();
    for (nth, proof) in mixed.into_iter().enumerate() {
        all.extend(kinds(proof).into_iter().map(|kind| (format!("{kind:?} with odd proof {nth}"), bytes_of(kind))));
    }
    let good = bytes_of(Preamble::Data(own));
    for at in 0..PREAMBLE_LEN {
        for value in [0, 1, 2, 3, 4, 5, 6, 7, 9, 0x16, 0x7f, 0xff] {
            let mut odd = good.clone();
            odd[at] = value;
            if odd != good {
                all.push((format!("byte {at} is {value}"), odd));
            }
        }
    }
    all.extend((0..good.len()).step_by(3).map(|len| (format!("{len} bytes of it"), good[..len].to_vec())));
    all
}

#[test]
fn no_lie_in_a_preamble_lets_anybody_in() {
    let mut bed = Bed::new();
    let (_liar, welcome) = greet(bed.addr, LIAR, "liar");
    let (anna, own) = (proof(ANNA, &bed.honest.welcome), proof(LIAR, &welcome));
    let mut told = 0;
    for (what, preamble) in odd_preambles(anna, own) {
        // What it is let in for is its own; a preamble of an older version is one.
        let said = tell(connect(bed.addr), &preamble);
        let admitted = read_answer(&mut &said[..]);
        let is_own = what.starts_with("byte 8") || what.starts_with("byte 10") || what.contains(&format!("{own:?}"));
        assert!(admitted.is_err() || is_own, "{what}: {admitted:?}");
        if let Err(e) = &admitted {
            assert!(matches!(e, AnswerError::Refused(_) | AnswerError::Io(_)), "{what}: {e}");
        }
        bed.honest.is_served();
        told += 1;
    }
    drop(_liar);
    bed.end(told);
}

/// Every operation with every odd value of every field, all of them together.
fn odd_operations(own: Rkey, honest: &Honest, own_number: u64) -> Vec<Operation> {
    let verbs = [Verb::Read, Verb::Write, Verb::CompareSwap, Verb::Fence];
    // A new operation does not compile until it is among these.
    for verb in verbs {
        match verb {
            Verb::Read | Verb::Write | Verb::CompareSwap | Verb::Fence => {}
        }
    }
    let keys = [own, honest.lease.rkey, Rkey(own.0 ^ 1), Rkey(own.0 ^ 1 << 63), Rkey(0), Rkey(u64::MAX)];
    let lengths = [0, 1, 7, 8, 9, PAGE as u32, SLAB as u32, SLAB as u32 + 1];
    let addresses = [
        0,
        1,
        4,
        8,
        SLAB - 8,
        SLAB - 4,
        SLAB - 1,
        SLAB,
        SLAB + 1,
        1 << 32,
        i64::MAX as u64,
        i64::MAX as u64 + 1,
        u64::MAX - 7,
        u64::MAX,
    ];
    let mut all = Vec::new();
    for verb in verbs {
        for rkey in keys {
            for len in lengths {
                for addr in addresses.map(RemoteAddr) {
                    let seq = all.len() as u64 * 0x0101_0101_0101;
                    all.push(Operation { verb, len, rkey, addr, seq, expect: u64::MAX, swap: seq });
                }
            }
        }
    }
    for addr in [0, own_number, honest.number, u64::MAX].map(RemoteAddr) {
        all.push(Operation { verb: Verb::Fence, len: 0, rkey: Rkey(0), addr, seq: 0, expect: 0, swap: 0 });
    }
    all
}

/// What an operation may do: nothing that its client has no lease for.
fn is_allowed(operation: &Operation, own: Rkey, own_number: u64) -> bool {
    let Operation { verb, len, rkey, addr, seq: _, expect: _, swap: _ } = *operation;
    let is_inside = rkey == own && u128::from(addr.0) + u128::from(len) <= u128::from(SLAB);
    match verb {
        Verb::Read | Verb::Write => is_inside,
        Verb::CompareSwap => is_inside && len == 8 && addr.0.is_multiple_of(8),
        Verb::Fence => addr.0 != own_number,
    }
}

#[test]
fn an_operation_does_what_its_client_has_a_lease_for_and_nothing_else() {
    let mut bed = Bed::new();
    let (mut liar, welcome) = greet(bed.addr, LIAR, "liar");
    let Event::Leased { slabs } = ask(&mut liar, &Request::Lease { count: 1 }) else { panic!("no lease") };
    let own = slabs[0].rkey;
    let (mut lane, number) = data(bed.addr, proof(LIAR, &welcome));
    let operations = odd_operations(own, &bed.honest, number);
    let payload = vec![0xee; SLAB as usize + 1];
    for operation in &operations {
        let len = if operation.verb == Verb::Write { operation.len as usize } else { 0 };
        let (answer, found) = operate(&mut lane, operation, &payload[..len]);
        let is_done = answer.status == Status::Done;
        assert_eq!(is_done, is_allowed(operation, own, number), "{operation:?}: {answer:?}");
        assert_eq!((answer.seq, answer.verb), (operation.seq, operation.verb));
        assert_eq!(found.len(), if is_done && operation.verb == Verb::Read { operation.len as usize } else { 0 });
        if !is_done {
            assert_eq!(answer.value, 0, "{operation:?} tells of bytes");
        }
    }
    bed.honest.is_served();
    let mut told = operations.len();
    // What ends a connection, each on one of its own.
    let good = Operation { verb: Verb::Read, len: 8, rkey: own, addr: RemoteAddr(0), seq: 0, expect: 0, swap: 0 };
    let mut head = [0; REQUEST_LEN];
    good.encode(&mut head);
    let odd_byte = |at: usize, value: u8| {
        let mut odd = head;
        odd[at] = value;
        odd.to_vec()
    };
    let mut odd: Vec<Vec<u8>> = [0, 5, 6, 7, 8, 0x16, 0x7f, 0xff].map(|verb| odd_byte(0, verb)).into();
    odd.extend((1..4).map(|at| odd_byte(at, 1)));
    odd.extend((1..REQUEST_LEN).step_by(5).map(|len| head[..len].to_vec()));
    for (verb, len) in
        [(2, MAX_OP_LEN), (2, MAX_OP_LEN + 1), (2, u32::MAX), (1, MAX_OP_LEN + 1), (1, u32::MAX), (3, u32::MAX)]
    {
        let mut huge = odd_byte(0, verb);
        huge[4..8].copy_from_slice(&len.to_le_bytes());
        // Half of what it promises, at most.
        huge.extend(&payload[..len.min(SLAB as u32) as usize / 2]);
        odd.push(huge);
    }
    for lie in odd {
        let (lane, _) = data(bed.addr, proof(LIAR, &welcome));
        tell(lane, &lie);
        bed.honest.is_served();
        told += 1;
    }
    // The same for who is on this host: another's slab is not handed out, and nonsense ends it.
    for kind in [0, 1, 2, 3, 0xff] {
        for rkey in [own, bed.honest.lease.rkey, Rkey(0), Rkey(u64::MAX)] {
            let mut stream = UnixStream::connect(&bed.socket).expect("it listens");
            Preamble::Shm(proof(LIAR, &welcome)).write_to(&mut stream).expect("it reads");
            read_answer(&mut stream).expect("it is admitted");
            let mut lie = [0; shm::REQUEST_LEN];
            lie[0] = kind;
            lie[8..].copy_from_slice(&rkey.0.to_le_bytes());
            stream.write_all(&lie).expect("it reads");
            let is_handed_out = shm::receive_answer(&stream).is_ok_and(|answer| answer.is_ok());
            assert_eq!(is_handed_out, kind == 1 && rkey == Rkey(0) || kind == 2 && rkey == own, "{kind} {rkey}");
            told += 1;
        }
    }
    drop((lane, liar));
    bed.end(told);
}
