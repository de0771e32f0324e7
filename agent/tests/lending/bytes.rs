//! Real bytes through real agents: who sees what, and that nobody sees what was another's.

use crate::client::{ANNA, BERT, Client, Data, SLAB, agent, ttl, wait_until};
use annex_fabric::ErrorKind;
use annex_fabric::shm::ShmConnector;
use annex_fabric::tcp::TcpConnector;
use annex_fabric::{Arena, Connector};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_slab_that_changes_hands_over_tcp_is_zero() {
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let mut data = Data::tcp(agent.addr(), ANNA, &welcome);
    data.write(lease.rkey, 0xaa).unwrap();
    assert_eq!(data.read(lease.rkey).unwrap(), vec![0xaa; SLAB as usize]);
    anna.give_back(vec![lease.slab]);
    assert_eq!(data.read(lease.rkey), Err(ErrorKind::RemoteAccess));

    let (mut bert, welcome) = Client::greet(agent.addr(), BERT);
    let next = bert.lease(1)[0];
    assert_eq!(next.slab, lease.slab);
    let mut berts = Data::tcp(agent.addr(), BERT, &welcome);
    assert_eq!(berts.read(next.rkey).unwrap(), vec![0; SLAB as usize]);
    assert_eq!(data.read(next.rkey), Err(ErrorKind::RemoteAccess), "another client's key");
}

#[test]
fn a_slab_that_changes_hands_over_shm_is_zero_and_other_memory() {
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (mut data, _annas) = Data::shm(ANNA, &welcome, lease.rkey);
    data.write(lease.rkey, 0xaa).unwrap();
    assert_eq!(data.read(lease.rkey).unwrap(), vec![0xaa; SLAB as usize]);
    anna.give_back(vec![lease.slab]);
    assert_eq!(data.write(lease.rkey, 0xbb), Err(ErrorKind::RemoteAccess));

    let (mut bert, welcome) = Client::greet(agent.addr(), BERT);
    let next = bert.lease(1)[0];
    let (mut berts, _connector) = Data::shm(BERT, &welcome, next.rkey);
    assert_eq!(berts.read(next.rkey).unwrap(), vec![0; SLAB as usize]);
    assert_eq!(data.read(next.rkey), Err(ErrorKind::RemoteAccess));
}

#[test]
fn both_transports_reach_the_same_bytes() {
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let mut tcp = Data::tcp(agent.addr(), ANNA, &welcome);
    let (mut shm, _connector) = Data::shm(ANNA, &welcome, lease.rkey);
    tcp.write(lease.rkey, 0x11).unwrap();
    assert_eq!(shm.read(lease.rkey).unwrap(), vec![0x11; SLAB as usize]);
    shm.write(lease.rkey, 0x22).unwrap();
    assert_eq!(tcp.read(lease.rkey).unwrap(), vec![0x22; SLAB as usize]);
}

#[test]
fn an_expired_lease_gives_no_bytes() {
    let (agent, _dir) = agent(1, |c| c.lease_ttl = ttl(500));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let mut tcp = Data::tcp(agent.addr(), ANNA, &welcome);
    let (mut shm, _connector) = Data::shm(ANNA, &welcome, lease.rkey);
    wait_until("the lease to end", || agent.lent() == 0);
    assert_eq!(tcp.read(lease.rkey), Err(ErrorKind::RemoteAccess));
    assert_eq!(shm.read(lease.rkey), Err(ErrorKind::RemoteAccess));
    assert_eq!(tcp.write(lease.rkey, 1), Err(ErrorKind::RemoteAccess));
}

#[test]
fn bytes_and_connections_survive_a_new_session_but_an_old_key_opens_nothing_new() {
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, old) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let mut open = Data::tcp(agent.addr(), ANNA, &old);
    open.write(lease.rkey, 0x33).unwrap();
    drop(anna);
    let (_anna, new) = Client::greet(agent.addr(), ANNA);
    assert_eq!(open.read(lease.rkey).unwrap(), vec![0x33; SLAB as usize]);
    assert_eq!(Data::tcp(agent.addr(), ANNA, &new).read(lease.rkey).unwrap(), vec![0x33; SLAB as usize]);

    let arena = Arc::new(Arena::new(4096).unwrap());
    let patience = Duration::from_secs(5);
    let stale = TcpConnector::new(agent.addr(), ANNA, old.incarnation, old.session, patience).open(&arena);
    let why = stale.err().unwrap().to_string();
    assert!(why.contains("the session key is not the one it handed out last"), "{why}");
    let path = new.shm_socket.as_deref().map(Path::new).unwrap();
    assert!(ShmConnector::connect(path, ANNA, old.incarnation, old.session, patience).is_err());
}

#[test]
fn the_data_connections_of_a_client_that_left_are_closed() {
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let mut data = Data::tcp(agent.addr(), ANNA, &welcome);
    data.write(lease.rkey, 1).unwrap();
    assert_eq!(agent.connections(), (1, 1));
    anna.give_back(vec![lease.slab]);
    drop(anna);
    wait_until("its connections to be closed", || agent.connections() == (0, 0));
    assert_eq!(data.read(lease.rkey), Err(ErrorKind::RetryExceeded));
}
