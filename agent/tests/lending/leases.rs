//! The control protocol: leases, renewals, refusals, reconnects, and peers that don't speak it.

use crate::client::{ANNA, BERT, Client, PATIENCE, SLAB, agent, hello, ttl, wait_until};
use annex_shared::config::ByteSize;
use annex_shared::ids::SlabId;
use annex_shared::wire::{Event, FrameError, OLDEST, Refusal, Request, VERSION};
use std::io::{Read, Write};
use std::net::TcpStream;

#[test]
fn a_client_leases_renews_and_returns() {
    let (agent, _dir) = agent(4, |_| {});
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    assert_eq!(welcome.name, "test donor");
    assert_eq!((welcome.slab_size, welcome.capacity_slabs, welcome.free_slabs), (SLAB, 4, 4));
    assert_eq!(welcome.lease_ttl_ms, 120_000);
    let leased = anna.lease(3);
    assert_eq!(leased.len(), 3);
    let slabs: Vec<SlabId> = leased.iter().map(|l| l.slab).collect();
    assert_eq!(anna.renew(), slabs);
    anna.give_back(slabs[..2].to_vec());
    assert_eq!(anna.renew(), slabs[2..]);
    assert_eq!(agent.lent(), 1);
}

#[test]
fn leases_that_are_not_renewed_end() {
    let (agent, _dir) = agent(4, |c| c.lease_ttl = ttl(300));
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    anna.lease(2);
    assert_eq!(anna.renew().len(), 2);
    wait_until("the leases to end", || agent.lent() == 0);
    assert_eq!(anna.renew(), []);
    // Some may still be on their way from the janitor.
    let mut leased = 0;
    wait_until("all four to be lent", || {
        if let Event::Leased { slabs } = anna.ask(&Request::Lease { count: 4 - leased }) {
            leased += slabs.len() as u32;
        }
        leased == 4
    });
}

#[test]
fn who_reconnects_in_time_gets_the_same_leases_back() {
    let (agent, _dir) = agent(4, |_| {});
    let (mut anna, before) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(2);
    drop(anna);
    let (mut anna, after) = Client::greet(agent.addr(), ANNA);
    assert_eq!(after.held, leased);
    assert_eq!(after.incarnation, before.incarnation);
    assert_ne!(after.session, before.session);
    assert_eq!(anna.renew().len(), 2);
}

#[test]
fn a_newer_control_connection_ends_the_older_one() {
    let (agent, _dir) = agent(4, |_| {});
    let (mut older, _) = Client::greet(agent.addr(), ANNA);
    let leased = older.lease(1);
    let (mut newer, welcome) = Client::greet(agent.addr(), ANNA);
    assert_eq!(welcome.held, leased);
    assert!(older.next().is_err());
    assert_eq!(newer.renew(), [leased[0].slab]);
}

#[test]
fn a_client_of_the_version_before_is_served_and_one_of_an_older_or_a_newer_one_is_not() {
    let (agent, _dir) = agent(1, |_| {});
    let of = |version: u16| {
        let Request::Hello { client, host, boot_id, slab_size, .. } = hello(ANNA) else { unreachable!() };
        Request::Hello { version, client, host, boot_id, slab_size }
    };
    for version in [OLDEST as u16 - 1, VERSION as u16 + 1] {
        let refusal = Client::connect(agent.addr()).refused(&of(version));
        assert_eq!(refusal, Refusal::Version { agent: VERSION as u16, client: version });
    }
    let mut client = Client::connect(agent.addr());
    assert!(matches!(client.ask(&of(OLDEST as u16)), Event::Welcome(_)));
    assert_eq!(client.lease(1).len(), 1);
}

#[test]
fn every_refusal_says_its_reason() {
    let (agent, _dir) = agent(3, |c| c.per_client = Some(ByteSize(2 * SLAB)));
    let at = agent.addr();
    let Request::Hello { client, host, boot_id, .. } = hello(ANNA) else { unreachable!() };
    let (h, b) = (host.clone(), boot_id.clone());
    let old = Request::Hello { version: 99, client, host: h, boot_id: b, slab_size: 0 };
    assert_eq!(Client::connect(at).refused(&old), Refusal::Version { agent: VERSION as u16, client: 99 });
    let (h, b) = (host.clone(), boot_id.clone());
    let big = Request::Hello { version: VERSION as u16, client, host: h, boot_id: b, slab_size: 64 << 20 };
    assert_eq!(Client::connect(at).refused(&big), Refusal::SlabSize { agent: SLAB, client: 64 << 20 });
    assert!(matches!(Client::connect(at).refused(&Request::Renew), Refusal::Malformed(_)));

    let (mut anna, _) = Client::greet(at, ANNA);
    let (mut bert, _) = Client::greet(at, BERT);
    assert_eq!(anna.lease(5).len(), 2);
    assert_eq!(anna.refused(&Request::Lease { count: 1 }), Refusal::ClientLimit { limit: 2 });
    assert_eq!(bert.lease(5).len(), 1);
    assert_eq!(bert.refused(&Request::Lease { count: 1 }), Refusal::Full { capacity: 3 });

    let clone = Request::Hello { version: VERSION as u16, client, host: "clone".into(), boot_id, slab_size: 0 };
    let refused = Client::connect(at).refused(&clone);
    assert!(matches!(&refused, Refusal::ClientInUse { host, .. } if host == "here"), "{refused:?}");
}

#[test]
fn a_host_without_memory_to_spare_lends_nothing() {
    let (agent, _dir) = agent(3, |c| c.headroom = Some(ByteSize(1 << 50)));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    assert_eq!(welcome.free_slabs, 0);
    let refused = anna.refused(&Request::Lease { count: 1 });
    assert!(matches!(refused, Refusal::HostPressure { headroom_mib: 0x4000_0000, .. }), "{refused:?}");
}

#[test]
fn a_client_on_another_host_is_not_offered_shm() {
    let (agent, _dir) = agent(1, |_| {});
    let (_anna, near) = Client::greet(agent.addr(), ANNA);
    assert_eq!(near.shm_socket, agent.shm_socket().map(|path| path.display().to_string()));
    let far = Request::Hello {
        version: VERSION as u16,
        client: BERT,
        host: "far".into(),
        boot_id: "another".into(),
        slab_size: 0,
    };
    let answer = Client::connect(agent.addr()).ask(&far);
    assert!(matches!(&answer, Event::Welcome(w) if w.shm_socket.is_none()), "{answer:?}");
}

/// Sends bytes and waits for the agent to hang up.
fn is_dropped_after(agent: &annex_agent::Agent, bytes: &[u8]) {
    let mut stream = TcpStream::connect(agent.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut rest = Vec::new();
    // Hung up is an end of file, or a reset if the agent left bytes unread.
    let outcome = stream.read_to_end(&mut rest);
    assert!(outcome.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset) || outcome.is_ok());
}

#[test]
fn peers_that_speak_something_else_are_dropped_and_harm_nobody() {
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    anna.lease(1);
    let control = b"annex\0\0\0\x02\0\x01\0\0\0\0\0";
    is_dropped_after(&agent, b"GET / HTTP/1.1\r\nHost: donor\r\n\r\n");
    is_dropped_after(&agent, b"annex\0\0\0\x09\0\x01\0\0\0\0\0");
    is_dropped_after(&agent, b"annex\0\0\0\x02\0\x4d\0\0\0\0\0");
    is_dropped_after(&agent, &[control, &[0xff; 64][..]].concat());
    is_dropped_after(&agent, &[control, &[4, 0, 0, 0, 0x7f, 1, 2, 3][..]].concat());
    is_dropped_after(&agent, &[&b"annex\0\0\0\x02\0\x02\0\0\0\0\0"[..], &[7; 32]].concat());
    assert_eq!(anna.renew().len(), 1);
    drop(anna);
    wait_until("all connections to be gone", || agent.connections() == (0, 0));
}

#[test]
fn a_peer_that_says_nothing_is_dropped() {
    let (agent, _dir) = agent(1, |_| {});
    is_dropped_after(&agent, b"annex");
}

#[test]
fn a_second_hello_ends_the_connection() {
    let (agent, _dir) = agent(1, |_| {});
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    assert!(matches!(anna.refused(&hello(ANNA)), Refusal::Malformed(_)));
    assert!(matches!(anna.next(), Err(FrameError::Closed | FrameError::Io(_))));
}

#[test]
fn the_last_place_is_for_who_holds_a_lease() {
    let (agent, _dir) = agent(1, |c| c.max_connections = 1);
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    // She holds nothing, and gives way.
    let (mut bert, _) = Client::greet(agent.addr(), BERT);
    assert!(matches!(anna.next(), Err(FrameError::Closed | FrameError::Io(_))));
    bert.lease(1);
    let mut anna = Client::connect(agent.addr());
    anna.send(&hello(ANNA));
    assert!(matches!(anna.next(), Err(FrameError::Closed | FrameError::Io(_))));
    bert.renew();
    drop(bert);
    wait_until("his place to be free", || agent.connections().0 == 0);
    Client::greet(agent.addr(), ANNA);
}
