//! How an agent ends: in order, or not.

use crate::client::{ANNA, Client, Data, agent, hello, ttl};
use annex_fabric::ErrorKind;
use annex_shared::ids::ClientId;
use annex_shared::wire::{Event, Refusal, Request};
use std::time::{Duration, Instant};

#[test]
fn a_shutdown_tells_clients_and_waits_until_they_returned_everything() {
    let (agent, dir) = agent(2, |c| c.grace = ttl(20_000));
    let at = agent.addr();
    let (mut anna, welcome) = Client::greet(at, ANNA);
    let lease = anna.lease(1)[0];
    let mut data = Data::tcp(at, ANNA, &welcome);
    data.write(lease.rkey, 7).unwrap();
    let started = Instant::now();
    let ending = std::thread::spawn(move || agent.shutdown());
    assert!(matches!(anna.next().unwrap(), Event::Closing { grace_ms: 20_000 }));
    // Bringing pages home still works, on a new data connection too; new leases and new clients
    // don't.
    assert_eq!(data.read(lease.rkey).unwrap()[0], 7);
    assert_eq!(Data::tcp(at, ANNA, &welcome).read(lease.rkey).unwrap()[0], 7);
    assert_eq!(anna.refused(&Request::Lease { count: 1 }), Refusal::Closing);
    assert_eq!(Client::connect(at).refused(&hello(ClientId(99))), Refusal::Closing);
    anna.give_back(vec![lease.slab]);
    assert!(ending.join().unwrap(), "everything was returned");
    assert!(started.elapsed() < Duration::from_secs(10), "the grace was not waited out");
    assert!(!dir.path().join("agent.sock").exists());
}

#[test]
fn a_shutdown_without_leases_is_immediate() {
    let (agent, _dir) = agent(2, |c| c.grace = ttl(60_000));
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let started = Instant::now();
    assert!(agent.shutdown());
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(matches!(anna.next().unwrap(), Event::Closing { .. }));
    // Whoever comes just then is told by the announcement and as one who comes while it closes.
    while let Ok(event) = anna.next() {
        assert!(matches!(event, Event::Closing { .. }), "{event:?}");
    }
}

#[test]
fn what_is_not_returned_in_the_grace_is_revoked() {
    let (agent, _dir) = agent(2, |c| c.grace = ttl(200));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (mut data, connector) = Data::shm(ANNA, &welcome, lease.rkey);
    data.write(lease.rkey, 7).unwrap();
    assert!(!agent.shutdown());
    assert!(matches!(data.read(lease.rkey), Err(ErrorKind::RemoteAccess | ErrorKind::RetryExceeded)));
    drop(connector);
    assert!(matches!(anna.next().unwrap(), Event::Closing { grace_ms: 200 }));
}

#[test]
fn a_killed_agent_breaks_off_without_a_word() {
    let (agent, dir) = agent(2, |_| {});
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let mut data = Data::tcp(agent.addr(), ANNA, &welcome);
    data.write(lease.rkey, 7).unwrap();
    agent.kill();
    assert!(anna.next().is_err());
    assert_eq!(data.read(lease.rkey), Err(ErrorKind::RetryExceeded));
    assert!(dir.path().join("agent.sock").exists(), "as after a power cut");
}

#[test]
fn an_agent_takes_over_the_socket_of_one_that_died_under_a_new_incarnation() {
    let (first, dir) = agent(2, |_| {});
    let incarnation = first.incarnation();
    first.kill();
    let second = annex_agent::Agent::start(crate::client::config(dir.path(), 2)).unwrap();
    assert_ne!(second.incarnation(), incarnation);
    let (_anna, welcome) = Client::greet(second.addr(), ANNA);
    assert_eq!(welcome.held, []);
    assert!(welcome.shm_socket.is_some());
}
