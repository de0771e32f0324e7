//! An agent that is restarted goes on with what it had lent, and nobody's old key works any more.

use crate::client::{ANNA, BERT, Client, Data, SLAB, config, hello, wait_until};
use annex_agent::store::keeper;
use annex_agent::{Agent, Config, sockets};
use annex_fabric::shm::BoardView;
use annex_fabric::shm::protocol::{Request as ShmRequest, receive_answer};
use annex_fabric::tcp::TcpConnector;
use annex_fabric::{Arena, Connector, ErrorKind};
use annex_shared::ids::{Rkey, SlabId};
use annex_shared::preamble::{Preamble, Proof, read_answer};
use annex_shared::wire::{Event, Lease, Refusal, Request, VERSION, Welcome};
use nix::sys::uio::{pread, pwrite};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Agents that come one after the other, and the keeper between them.
struct House {
    dir: tempfile::TempDir,
    slabs: u64,
    keeper: Option<JoinHandle<std::io::Result<()>>>,
}

impl House {
    fn new(slabs: u64) -> House {
        let dir = tempfile::tempdir().unwrap();
        let listener = sockets::bind_private(&dir.path().join("keeper.sock")).unwrap();
        let keeper = thread::spawn(move || keeper::serve(&listener, Duration::from_secs(60)));
        House { dir, slabs, keeper: Some(keeper) }
    }

    fn config(&self) -> Config {
        Config { keeper: self.dir.path().join("keeper.sock"), ..config(self.dir.path(), self.slabs) }
    }

    fn agent(&self) -> Agent {
        self.agent_with(|_| {})
    }

    fn agent_with(&self, change: impl FnOnce(&mut Config)) -> Agent {
        let mut config = self.config();
        change(&mut config);
        Agent::start(config).unwrap()
    }
}

/// A slab and the board as a client has them that maps them by itself, and obeys nobody.
pub struct Grip {
    slab: OwnedFd,
    board: BoardView,
    slot: u32,
}

impl Grip {
    pub fn take(welcome: &Welcome, rkey: Rkey) -> (Grip, UnixStream) {
        let path = PathBuf::from(welcome.shm_socket.as_ref().unwrap());
        let mut socket = UnixStream::connect(path).unwrap();
        let proof = Proof { client: ANNA, incarnation: welcome.incarnation, session: welcome.session };
        Preamble::Shm(proof).write_to(&mut socket).unwrap();
        read_answer(&mut socket).unwrap();
        ShmRequest::Board.write_to(&mut socket).unwrap();
        let (_, board) = receive_answer(&socket).unwrap().unwrap();
        ShmRequest::Slab(rkey).write_to(&mut socket).unwrap();
        let (region, slab) = receive_answer(&socket).unwrap().unwrap();
        (Grip { slab, board: BoardView::map(&board).unwrap(), slot: region.board_slot }, socket)
    }

    fn write(&self, byte: u8) {
        pwrite(&self.slab, &vec![byte; SLAB as usize], 0).unwrap();
    }

    fn first_byte(&self) -> u8 {
        let mut byte = [0];
        pread(&self.slab, &mut byte, 0).unwrap();
        byte[0]
    }

    /// Bytes of memory that the slab takes, whoever uses it.
    pub fn resident(&self) -> u64 {
        nix::sys::stat::fstat(&self.slab).unwrap().st_blocks as u64 * 512
    }

    fn holds(&self, welcome: &Welcome, rkey: Rkey) -> bool {
        self.board.holds(self.slot, rkey, welcome.incarnation, annex_fabric::shm::monotonic_ns())
    }
}

fn slabs_of(leases: &[Lease]) -> Vec<SlabId> {
    leases.iter().map(|l| l.slab).collect()
}

/// The whole slab is this.
#[track_caller]
fn is_all(data: &mut Data, rkey: Rkey, byte: u8) {
    let bytes = data.read(rkey).unwrap();
    let wrong = bytes.iter().position(|b| *b != byte);
    assert_eq!(wrong.map(|at| (at, bytes[at])), None, "not {byte:#x} all over");
}

#[test]
fn the_same_slabs_have_the_same_bytes_under_new_keys() {
    let house = House::new(4);
    let agent = house.agent();
    let (mut anna, before) = Client::greet(agent.addr(), ANNA);
    assert_eq!(before.resumed, None);
    let leased = anna.lease(3);
    let mut tcp = Data::tcp(agent.addr(), ANNA, &before);
    tcp.write(leased[0].rkey, 0x11).unwrap();
    let (mut shm, connector) = Data::shm(ANNA, &before, leased[1].rkey);
    shm.write(leased[1].rkey, 0x22).unwrap();
    agent.kill();

    let agent = house.agent();
    let (mut anna, after) = Client::greet(agent.addr(), ANNA);
    assert_eq!(after.resumed, Some(before.incarnation));
    assert_ne!(after.incarnation, before.incarnation);
    assert_eq!(slabs_of(&after.held), slabs_of(&leased));
    assert!(after.held.iter().all(|new| leased.iter().all(|old| old.rkey != new.rkey)), "a key came back");
    assert!(after.held.iter().zip(&leased).all(|(new, old)| new.rkey.goes_on_from(old.rkey)), "another lease");
    let mut now = Data::tcp(agent.addr(), ANNA, &after);
    is_all(&mut now, after.held[0].rkey, 0x11);
    is_all(&mut now, after.held[1].rkey, 0x22);
    is_all(&mut now, after.held[2].rkey, 0);
    let (mut near, _connector) = Data::shm(ANNA, &after, after.held[0].rkey);
    is_all(&mut near, after.held[0].rkey, 0x11);

    // Old keys: over a new connection, and over those that are left from before.
    for old in &leased {
        assert_eq!(now.read(old.rkey), Err(ErrorKind::RemoteAccess));
        assert_eq!(now.write(old.rkey, 0xee), Err(ErrorKind::RemoteAccess));
        assert_eq!(near.read(old.rkey), Err(ErrorKind::RemoteAccess));
    }
    assert!(shm.write(leased[1].rkey, 0xee).is_err());
    assert!(tcp.write(leased[0].rkey, 0xee).is_err());
    drop(connector);
    is_all(&mut now, after.held[0].rkey, 0x11);
    is_all(&mut now, after.held[1].rkey, 0x22);
    assert_eq!(anna.renew(), slabs_of(&leased));
    anna.give_back(slabs_of(&leased));
    assert_eq!(agent.lent(), 0);
}

#[test]
fn a_slab_that_was_leased_anew_before_the_restart_is_told_from_the_one_that_it_was() {
    let house = House::new(1);
    let agent = house.agent();
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let first = anna.lease(1)[0];
    anna.give_back(vec![first.slab]);
    let anew = anna.lease(1)[0];
    assert_eq!(anew.slab, first.slab);
    agent.kill();
    let agent = house.agent();
    // A client that was killed before it noted the second lease knows the first one's key only.
    let (_anna, after) = Client::greet(agent.addr(), ANNA);
    let key = after.held[0].rkey;
    assert!(key.goes_on_from(anew.rkey) && !key.goes_on_from(first.rkey), "{key} after {anew:?} and {first:?}");
    // Nor is the number lost when the slab moves to fresh memory, or the agent starts once more.
    agent.kill();
    let agent = house.agent();
    let (_anna, last) = Client::greet(agent.addr(), ANNA);
    let key = last.held[0].rkey;
    let (_near, _connector) = Data::shm(ANNA, &last, key);
    agent.kill();
    let agent = house.agent();
    let (_anna, last) = Client::greet(agent.addr(), ANNA);
    assert!(last.held[0].rkey.goes_on_from(anew.rkey) && !last.held[0].rkey.goes_on_from(first.rkey));
}

#[test]
fn an_old_incarnation_opens_no_data_connection() {
    let house = House::new(1);
    let agent = house.agent();
    let (mut anna, before) = Client::greet(agent.addr(), ANNA);
    anna.lease(1);
    agent.kill();
    let agent = house.agent();
    let arena = Arc::new(Arena::new(4096).unwrap());
    let patience = Duration::from_secs(5);
    let old = TcpConnector::new(agent.addr(), ANNA, before.incarnation, before.session, patience).open(&arena);
    let why = old.err().unwrap().to_string();
    assert!(why.contains("it has been restarted since"), "{why}");
}

#[test]
fn a_client_with_the_slab_mapped_may_go_on_while_the_agent_is_away_and_not_after() {
    let house = House::new(1);
    let agent = house.agent();
    let (mut anna, before) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (grip, socket) = Grip::take(&before, lease.rkey);
    grip.write(0x11);
    agent.kill();
    drop(socket);
    assert!(grip.holds(&before, lease.rkey), "the lease runs on");
    grip.write(0x22);

    let agent = house.agent();
    assert!(!grip.holds(&before, lease.rkey), "the next agent's first act ends it");
    let (_anna, after) = Client::greet(agent.addr(), ANNA);
    let key = after.held[0].rkey;
    let mut data = Data::tcp(agent.addr(), ANNA, &after);
    is_all(&mut data, key, 0x22);
    // A thread that was stopped in the middle of a write, say.
    grip.write(0x33);
    is_all(&mut data, key, 0x22);
    data.write(key, 0x44).unwrap();
    assert_ne!(grip.first_byte(), 0x44, "nor does it see what is written now");
    let (mut near, _connector) = Data::shm(ANNA, &after, key);
    is_all(&mut near, key, 0x44);
}

#[test]
fn bytes_survive_any_number_of_restarts_in_a_row() {
    let house = House::new(2);
    let agent = house.agent();
    let (mut anna, first) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (mut data, _connector) = Data::shm(ANNA, &first, lease.rkey);
    data.write(lease.rkey, 0x77).unwrap();
    agent.kill();
    // Nobody comes to this one.
    house.agent().kill();
    let agent = house.agent();
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    assert_eq!(welcome.resumed, Some(first.incarnation), "the last one this client took part in");
    let (mut data, _connector) = Data::shm(ANNA, &welcome, welcome.held[0].rkey);
    is_all(&mut data, welcome.held[0].rkey, 0x77);
    anna.renew();
    agent.kill();
    let agent = house.agent();
    let (_anna, last) = Client::greet(agent.addr(), ANNA);
    assert_eq!(last.resumed, Some(welcome.incarnation));
    let mut data = Data::tcp(agent.addr(), ANNA, &last);
    is_all(&mut data, last.held[0].rkey, 0x77);
}

#[test]
fn what_nobody_held_is_zero_for_the_next_one_who_leases_it() {
    let house = House::new(2);
    let agent = house.agent_with(|c| c.spare_slabs = 2);
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(2);
    let mut data = Data::tcp(agent.addr(), ANNA, &welcome);
    leased.iter().for_each(|l| data.write(l.rkey, 0xaa).unwrap());
    anna.give_back(vec![leased[0].slab]);
    agent.kill();
    let agent = house.agent();
    let (mut bert, welcome) = Client::greet(agent.addr(), BERT);
    assert_eq!((welcome.held.len(), welcome.resumed), (0, None));
    let next = bert.lease(2);
    assert_eq!(slabs_of(&next), [leased[0].slab], "the other one is still ANNA's");
    let mut data = Data::tcp(agent.addr(), BERT, &welcome);
    is_all(&mut data, next[0].rkey, 0);
}

#[test]
fn who_stays_away_for_a_ttl_after_the_restart_is_not_waited_for() {
    let house = House::new(1);
    let agent = house.agent();
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (mut data, connector) = Data::shm(ANNA, &welcome, lease.rkey);
    data.write(lease.rkey, 0xaa).unwrap();
    drop(connector);
    agent.kill();
    let agent = house.agent_with(|c| c.lease_ttl = crate::client::ttl(300));
    assert_eq!(agent.lent(), 1);
    // The TTL that was promised when it was leased holds.
    thread::sleep(Duration::from_millis(600));
    assert_eq!(agent.lent(), 1);
    agent.kill();

    let house = House::new(1);
    let agent = house.agent_with(|c| c.lease_ttl = crate::client::ttl(300));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    Data::tcp(agent.addr(), ANNA, &welcome).write(lease.rkey, 0xaa).unwrap();
    agent.kill();
    thread::sleep(Duration::from_millis(400));
    let agent = house.agent_with(|c| c.lease_ttl = crate::client::ttl(300));
    assert_eq!(agent.lent(), 1, "however long it was away");
    wait_until("the lease to end", || agent.lent() == 0);
    let (_anna, welcome) = Client::greet(agent.addr(), ANNA);
    assert_eq!((welcome.held.len(), welcome.resumed), (0, None));
    let (mut bert, welcome) = Client::greet(agent.addr(), BERT);
    let key = bert.lease(1)[0].rkey;
    is_all(&mut Data::tcp(agent.addr(), BERT, &welcome), key, 0);
}

#[test]
fn another_machine_with_the_same_client_id_inherits_nothing() {
    let house = House::new(1);
    let agent = house.agent();
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    anna.lease(1);
    agent.kill();
    let agent = house.agent();
    let Request::Hello { boot_id, .. } = hello(ANNA) else { unreachable!() };
    let clone = Request::Hello { version: VERSION as u16, client: ANNA, host: "clone".into(), boot_id, slab_size: 0 };
    let refused = Client::connect(agent.addr()).refused(&clone);
    assert!(matches!(&refused, Refusal::ClientInUse { host, .. } if host == "here"), "{refused:?}");
}

#[test]
fn an_orderly_end_leaves_nothing_behind() {
    let mut house = House::new(2);
    let agent = house.agent_with(|c| c.grace = crate::client::ttl(100));
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    anna.lease(1);
    assert!(!agent.shutdown());
    // A keeper that has nothing to keep ends.
    house.keeper.take().unwrap().join().unwrap().unwrap();
}

#[test]
fn a_smaller_capacity_keeps_what_is_lent_and_another_slab_size_is_refused() {
    let house = House::new(3);
    let agent = house.agent();
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(3);
    Data::tcp(agent.addr(), ANNA, &welcome).write(leased[2].rkey, 0x55).unwrap();
    agent.kill();
    let size = annex_shared::config::ByteSize(2 * SLAB);
    let refused = Agent::start(Config { slab_size: size, capacity: Some(size), ..house.config() }).err().unwrap();
    assert!(
        refused.to_string().starts_with("the saved leases are of slabs of 1 MiB, but slab_size is now 2 MiB"),
        "{refused}"
    );
    let agent = house.agent_with(|c| c.capacity = Some(annex_shared::config::ByteSize(SLAB)));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    assert_eq!(slabs_of(&welcome.held), slabs_of(&leased));
    let mut data = Data::tcp(agent.addr(), ANNA, &welcome);
    is_all(&mut data, welcome.held[2].rkey, 0x55);
    anna.give_back(slabs_of(&leased));
    assert!(matches!(anna.ask(&Request::Lease { count: 3 }), Event::Leased { slabs } if slabs.len() == 1));
}
