//! A host that needs its memory back gets it, and clients are told in time. The host's numbers are
//! files that the test writes.

use crate::client::{ANNA, BERT, Client, Data, SLAB, agent, ttl, wait_until};
use crate::restart::Grip;
use annex_agent::Config;
use annex_agent::pressure::Host;
use annex_fabric::ErrorKind;
use annex_shared::config::ByteSize;
use annex_shared::ids::SlabId;
use annex_shared::wire::{Event, Refusal, Request};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A made-up host with 1 GiB, of which 100 MiB are to stay available.
struct Made {
    dir: tempfile::TempDir,
}

impl Made {
    fn new() -> Made {
        let made = Made { dir: tempfile::tempdir().unwrap() };
        made.has(500);
        made
    }

    fn has(&self, available_mib: u64) {
        let text = format!("MemTotal: 1048576 kB\nMemAvailable: {} kB\n", available_mib << 10);
        replace(&self.dir.path().join("meminfo"), &text);
    }

    fn stalls(&self, percent: f32) {
        std::fs::create_dir_all(self.dir.path().join("pressure")).unwrap();
        let text = format!("some avg10={percent:.2} avg60=0.00 avg300=0.00 total=1\n");
        replace(&self.dir.path().join("pressure/memory"), &text);
    }

    fn set(&self, config: &mut Config) {
        config.host = Host::of(self.dir.path().to_owned());
        config.headroom = Some(ByteSize(100 * MIB));
    }
}

/// Whole at any moment, since it is read meanwhile.
fn replace(path: &Path, text: &str) {
    let new = PathBuf::from(format!("{}.new", path.display()));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

fn recalled(client: &mut Client) -> (Vec<SlabId>, u64) {
    match client.next().unwrap() {
        Event::Recall { slabs, deadline_ms } => (slabs, deadline_ms),
        other => panic!("expected a recall, got {other:?}"),
    }
}

#[test]
fn the_coldest_slabs_are_recalled_and_their_return_frees_the_memory() {
    let host = Made::new();
    let (agent, _dir) = agent(8, |c| host.set(c));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(4);
    let mut data = Data::tcp(agent.addr(), ANNA, &welcome);
    for lease in [3, 1, 0, 2] {
        data.write(leased[lease].rkey, lease as u8 + 1).unwrap();
    }
    // 112.5 MiB are wanted: two slabs are missing.
    host.has(111);
    host.stalls(30.0);
    let (slabs, deadline_ms) = recalled(&mut anna);
    assert_eq!(slabs, [leased[3].slab, leased[1].slab], "least recently used first");
    assert!((29_000..=30_000).contains(&deadline_ms), "{deadline_ms}");
    assert_eq!(data.read(leased[3].rkey).unwrap()[0], 4, "there is time to move it");
    assert!(matches!(anna.refused(&Request::Lease { count: 1 }), Refusal::HostPressure { .. }));
    host.stalls(0.0);
    host.has(200);
    anna.give_back(slabs.clone());
    assert_eq!(data.read(leased[3].rkey), Err(ErrorKind::RemoteAccess));
    assert_eq!(anna.renew(), [leased[0].slab, leased[2].slab]);
    assert_eq!(data.read(leased[0].rkey).unwrap()[0], 1);
}

#[test]
fn a_slab_that_a_client_maps_is_freed_under_it() {
    let host = Made::new();
    let (agent, _dir) = agent(8, |c| host.set(c));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(2);
    let (mut data, connector) = Data::shm(ANNA, &welcome, leased[0].rkey);
    connector.prepare(leased[1].rkey).unwrap();
    leased.iter().for_each(|lease| data.write(lease.rkey, 9).unwrap());
    let (grip, _socket) = Grip::take(&welcome, leased[0].rkey);
    assert_eq!(grip.resident(), SLAB);
    host.has(50);
    let (slabs, _) = recalled(&mut anna);
    assert_eq!(slabs.len(), 2, "no more than there are");
    assert_eq!(slabs[0], leased[1].slab, "the newest lease first");
    anna.give_back(slabs);
    assert_eq!(data.write(leased[0].rkey, 1), Err(ErrorKind::RemoteAccess));
    wait_until("the memory to be the host's again", || grip.resident() == 0);
}

#[test]
fn what_is_not_returned_by_the_deadline_is_revoked() {
    let host = Made::new();
    let (agent, _dir) = agent(8, |c| {
        host.set(c);
        c.recall_deadline = ttl(1500);
    });
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(1);
    let mut tcp = Data::tcp(agent.addr(), ANNA, &welcome);
    let (mut shm, _connector) = Data::shm(ANNA, &welcome, leased[0].rkey);
    tcp.write(leased[0].rkey, 7).unwrap();
    host.has(99);
    let started = Instant::now();
    let (_, deadline_ms) = recalled(&mut anna);
    assert!(deadline_ms <= 1500, "{deadline_ms}");
    host.has(300);
    assert_eq!(anna.renew().len(), 1);
    wait_until("the slab to be revoked", || agent.lent() == 0);
    assert!(started.elapsed() >= Duration::from_millis(1000));
    assert_eq!(tcp.read(leased[0].rkey), Err(ErrorKind::RemoteAccess));
    assert_eq!(shm.write(leased[0].rkey, 8), Err(ErrorKind::RemoteAccess));
    assert_eq!(anna.renew(), []);
}

#[test]
fn who_connects_during_a_recall_is_told() {
    let host = Made::new();
    let (agent, _dir) = agent(8, |c| host.set(c));
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let leased = anna.lease(1);
    host.has(50);
    recalled(&mut anna);
    drop(anna);
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let (slabs, deadline_ms) = recalled(&mut anna);
    assert_eq!(slabs, [leased[0].slab]);
    assert!(deadline_ms <= 30_000);
}

#[test]
fn a_host_that_has_enough_recalls_nothing() {
    let host = Made::new();
    let (agent, _dir) = agent(8, |c| host.set(c));
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let (mut bert, _) = Client::greet(agent.addr(), BERT);
    anna.lease(2);
    bert.lease(2);
    // Not quite enough to lend more, and enough to leave them alone. Stalls have other causes while
    // so much is left.
    host.has(101);
    std::thread::sleep(Duration::from_millis(1300));
    host.has(400);
    host.stalls(80.0);
    std::thread::sleep(Duration::from_millis(1300));
    assert_eq!(anna.renew().len(), 2);
    assert_eq!(bert.renew().len(), 2);
    assert_eq!(agent.lent() as u64 * SLAB, 4 * SLAB);
}
