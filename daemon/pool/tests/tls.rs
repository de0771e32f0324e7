//! The pool with real agents over TLS: pages survive load and the sudden end of a donor, and a side
//! without TLS is told what it lacks.

use annex_agent::{Agent, Config};
use annex_fabric::Transport;
use annex_identity::config::TlsConfig;
use annex_identity::identity::Files;
use annex_identity::testing::{Pki, leaf_now};
use annex_pool::{DonorConfig, Lane, Part, Pool, PoolConfig, PoolState, SlotRun, TransportChoice};
use annex_pool_testbed::finish;
use annex_shared::api::{DonorInfo, DonorState};
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::page::PAGE_SIZE;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const SLAB: u64 = 1 << 20;

/// A host's folder, with its files in it.
struct Host {
    dir: tempfile::TempDir,
    files: Files,
}

fn host(pki: &Pki, uri: &str) -> Host {
    let dir = tempfile::tempdir().unwrap();
    let files = pki.files_of(dir.path(), &leaf_now(uri, 30));
    Host { dir, files }
}

fn agent(host: &Host, is_tls: bool) -> Agent {
    let Files { ca, certificate, key, .. } = host.files.clone();
    let tls = TlsConfig { ca: Some(ca), cert: Some(certificate), key: Some(key), ..TlsConfig::default() };
    let config = Config {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        capacity: Some(ByteSize(64 * SLAB)),
        slab_size: ByteSize(SLAB),
        headroom: Some(ByteSize(SLAB)),
        shm_socket: host.dir.path().join("agent.sock"),
        tls: if is_tls { tls } else { TlsConfig::default() },
        ..Config::default()
    };
    Agent::start(config).unwrap()
}

fn pool(agents: &[&Agent], transport: TransportChoice, files: Option<&Files>) -> Arc<Pool> {
    pool_on(PoolState::Fresh, agents, transport, files)
}

fn pool_on(state: PoolState<'_>, agents: &[&Agent], transport: TransportChoice, files: Option<&Files>) -> Arc<Pool> {
    let donor = |agent: &&Agent| DonorConfig { address: agent.addr().to_string(), transport, ..DonorConfig::default() };
    let config = PoolConfig {
        donors: agents.iter().map(donor).collect(),
        replicas: agents.len() as u8,
        lost_after: TimeSpan(Duration::from_secs(1)),
        last_copy_lost_after: TimeSpan(Duration::from_secs(1)),
        op_timeout: TimeSpan(Duration::from_secs(1)),
        control_timeout: TimeSpan(Duration::from_secs(1)),
        start_wait: TimeSpan(Duration::from_secs(5)),
        tls: files.cloned(),
        ..PoolConfig::default()
    };
    Pool::start(config, None, state).unwrap()
}

fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < until, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn content(slot: u32) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    for (i, word) in page.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(slot.wrapping_mul(2_654_435_761) ^ i as u32).to_le_bytes());
    }
    page
}

fn write(lane: &mut Lane, run: SlotRun) {
    let mut buf = lane.alloc(run.count as usize).unwrap();
    for (slot, page) in run.slots().zip(lane.bytes_mut(&mut buf).chunks_exact_mut(PAGE_SIZE)) {
        page.copy_from_slice(&content(slot.0));
    }
    lane.write(&[Part { run, at: 0 }], buf, 0).unwrap();
    let done = finish(lane, 1).remove(0);
    done.result.unwrap();
    lane.free(done.buf);
}

fn verify(lane: &mut Lane, run: SlotRun) {
    let buf = lane.alloc(run.count as usize).unwrap();
    lane.read(run, buf, 0).unwrap();
    let done = finish(lane, 1).remove(0);
    done.result.unwrap_or_else(|e| panic!("reading {run:?}: {e}"));
    for (slot, page) in run.slots().zip(lane.bytes(&done.buf).chunks_exact(PAGE_SIZE)) {
        assert!(*page == content(slot.0), "wrong bytes in {slot}");
    }
    lane.free(done.buf);
}

fn reserve(pool: &Arc<Pool>, pages: usize) -> Vec<SlotRun> {
    let mut runs = Vec::new();
    let mut left = pages;
    eventually("room for all pages", || {
        left -= pool.reserve(left, &mut runs);
        left == 0
    });
    runs
}

/// What the pool says of its only donor, once it has tried.
fn why(pool: &Pool) -> DonorInfo {
    eventually("an attempt", || pool.donors()[0].why != "not reached yet");
    pool.donors().remove(0)
}

#[test]
fn pages_outlive_a_donor_over_tls_too() {
    let pki = Pki::new("c");
    let hosts = [host(&pki, "annex://c/donor/a"), host(&pki, "annex://c/donor/b")];
    let mut agents = hosts.iter().map(|host| agent(host, true)).collect::<Vec<_>>();
    let client = host(&pki, "annex://c/client/x");
    let pool = pool(&[&agents[0], &agents[1]], TransportChoice::Tcp, Some(&client.files));
    pool.is_usable().unwrap();
    let mut lane = pool.lane("test", 512).unwrap();
    let runs = reserve(&pool, 4000);
    runs.iter().for_each(|run| write(&mut lane, *run));
    runs.iter().for_each(|run| verify(&mut lane, *run));
    agents.remove(0).kill();
    eventually("the donor is lost", || pool.donors()[0].state == DonorState::Lost);
    runs.iter().for_each(|run| verify(&mut lane, *run));
    assert_eq!(pool.info().lost_extents, 0);
}

/// Nobody has renewed the donors' certificates, and annexd is restarted: its pages are still there.
#[test]
fn pages_outlive_an_annexd_while_their_donors_certificates_have_expired() {
    let pki = Pki::new("c");
    let hosts = ["annex://c/donor/a", "annex://c/donor/b"].map(|uri| {
        let dir = tempfile::tempdir().unwrap();
        let mut params = leaf_now(uri, 0);
        params.not_after += Duration::from_secs(5);
        let files = pki.files_of(dir.path(), &params);
        (params.not_after, Host { dir, files })
    });
    let agents = hosts.each_ref().map(|(_, host)| agent(host, true));
    let (expire, hosts) = (hosts[1].0, hosts.map(|(_, host)| host));
    let (agents, client) = ([&agents[0], &agents[1]], host(&pki, "annex://c/client/x"));
    let before = pool(&agents, TransportChoice::Tcp, Some(&client.files));
    before.is_usable().unwrap();
    let mut lane = before.lane("test", 512).unwrap();
    let runs = reserve(&before, 400);
    runs.iter().for_each(|run| write(&mut lane, *run));
    drop(lane);
    let (extents, slots) = before.state_fds();
    let (extents, slots) = (extents.try_clone_to_owned().unwrap(), slots.try_clone_to_owned().unwrap());
    before.leave();
    eventually("the certificates have expired", || {
        SystemTime::now() > SystemTime::from(expire) + Duration::from_secs(1)
    });
    let stranger = host(&pki, "annex://c/client/y");
    let said = why(&pool(&agents, TransportChoice::Tcp, Some(&stranger.files))).why;
    assert!(said.contains("the certificate of annex://c/donor/a expired"), "{said}");

    let state =
        PoolState::Saved { extents, slots, references: &|each| runs.iter().flat_map(|run| run.slots()).for_each(each) };
    let after = pool_on(state, &agents, TransportChoice::Tcp, Some(&client.files));
    eventually("the donors are up", || after.donors().iter().all(|donor| donor.state == DonorState::Up));
    let mut lane = after.lane("test", 512).unwrap();
    runs.iter().for_each(|run| verify(&mut lane, *run));
    drop(hosts);
}

#[test]
fn the_listing_says_what_is_encrypted() {
    let pki = Pki::new("c");
    let (donor, client) = (host(&pki, "annex://c/donor/a"), host(&pki, "annex://c/client/x"));
    let agent = agent(&donor, true);
    let over = |transport| {
        let pool = pool(&[&agent], transport, Some(&client.files));
        let info = why(&pool);
        eventually("it is up", || pool.donors()[0].state == DonorState::Up);
        drop(info);
        pool.donors().remove(0)
    };
    let tcp = over(TransportChoice::Tcp);
    assert_eq!(
        (tcp.transport, &tcp.why[..], tcp.encrypted),
        (Some(Transport::Tcp), "configured: tcp, encrypted (TLS)", true)
    );
    let shm = over(TransportChoice::Auto);
    assert_eq!((shm.transport, &shm.why[..], shm.encrypted), (Some(Transport::Shm), "same host: shared memory", false));
}

#[test]
fn a_client_without_tls_is_told_what_it_lacks() {
    let donor = host(&Pki::new("c"), "annex://c/donor/a");
    let agent = agent(&donor, true);
    let info = why(&pool(&[&agent], TransportChoice::Tcp, None));
    assert_ne!(info.state, DonorState::Up);
    assert!(info.why.contains("this port takes TLS only: give annexd ca, cert and key in [tls]"), "{}", info.why);
}

/// It must not make do with a plain connection.
#[test]
fn a_donor_without_tls_is_not_used_by_a_client_that_has_it() {
    let pki = Pki::new("c");
    let (donor, client) = (host(&pki, "annex://c/donor/a"), host(&pki, "annex://c/client/x"));
    let agent = agent(&donor, false);
    for transport in [TransportChoice::Tcp, TransportChoice::Auto] {
        let info = why(&pool(&[&agent], transport, Some(&client.files)));
        assert_ne!(info.state, DonorState::Up);
        let wanted = "the peer ended the connection (does its configuration have [tls]? its log says why)";
        assert!(info.why.contains(wanted), "{}", info.why);
    }
    assert_eq!(agent.connections(), (0, 0));
}

#[test]
fn a_donor_of_another_ca_is_not_believed_and_a_client_of_another_ca_is_told() {
    let (ours, theirs) = (Pki::new("c"), Pki::new("c"));
    let (donor, client) = (host(&theirs, "annex://c/donor/a"), host(&ours, "annex://c/client/x"));
    let agent = agent(&donor, true);
    let said = why(&pool(&[&agent], TransportChoice::Tcp, Some(&client.files))).why;
    assert!(said.contains("no certificate in the ca file has issued the certificate of annex://c/donor/a"), "{said}");
    // The client believes both, and the donor only its own.
    let both = [&ours, &theirs].map(|pki| annex_identity::ca::to_pem(&pki.certificate())).concat();
    std::fs::write(&client.files.ca, both).unwrap();
    let said = why(&pool(&[&agent], TransportChoice::Tcp, Some(&client.files))).why;
    assert!(said.contains("the peer does not accept this host's certificate: its log says why"), "{said}");
}

#[test]
fn a_certificate_of_the_other_role_starts_no_daemon() {
    let pki = Pki::new("c");
    let donor = host(&pki, "annex://c/donor/a");
    let config = PoolConfig { tls: Some(donor.files.clone()), ..PoolConfig::default() };
    let refused = Pool::start(config, None, PoolState::Fresh).err().expect("it is a donor's").to_string();
    assert!(refused.contains("that of annex://c/donor/a, and a client is to run here"), "{refused}");
}
