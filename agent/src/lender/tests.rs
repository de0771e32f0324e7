//! The lender with real memory and a real janitor, but no sockets.

use super::*;
use crate::config::Config;
use crate::hugepages::Hugepages;
use crate::pressure::HostMemory;
use annex_shared::config::{ByteSize, TimeSpan};
use nix::sys::stat::fstat;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

const SLAB: usize = 64 << 10;
const ANNA: ClientId = ClientId(1);
const BERT: ClientId = ClientId(2);
const CONNECTION: ConnectionId = ConnectionId(1);

struct Rig {
    lender: Arc<Lender>,
    janitor: Option<JoinHandle<()>>,
}

impl Rig {
    fn new(slabs: u64, change: impl FnOnce(&mut Config)) -> Rig {
        let mut config = Config {
            capacity: Some(ByteSize(slabs * SLAB as u64)),
            slab_size: ByteSize(SLAB as u64),
            headroom: Some(ByteSize(0)),
            shm_socket: PathBuf::from("/nowhere"),
            ..Config::default()
        };
        change(&mut config);
        let terms = config.resolve(&HostMemory::now().unwrap(), "here").unwrap();
        let lender = Arc::new(Lender::open(terms, Incarnation(7), true, Store::none(), Found::new()).unwrap());
        let janitor = thread::spawn({
            let lender = lender.clone();
            move || lender.clean_up()
        });
        Rig { lender, janitor: Some(janitor) }
    }

    fn hello(&self, client: ClientId) {
        let machine = Machine { host: "here".into(), boot_id: "b".into(), holder: None };
        self.lender.hello(client, machine, CONNECTION).unwrap();
    }

    fn lease(&self, client: ClientId) -> Lease {
        self.lender.lease(client, CONNECTION, None, 1).unwrap()[0]
    }

    fn give_back(&self, client: ClientId, lease: Lease) {
        self.lender.give_back(client, CONNECTION, &[lease.slab]).unwrap();
    }

    fn settle(&self) {
        assert!(self.lender.wait_while(Duration::from_secs(20), Book::is_cleaning));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.lender.stop();
        self.janitor.take().unwrap().join().unwrap();
    }
}

/// All bytes of the slab, or why not.
fn read(lender: &Lender, who: ClientId, rkey: Rkey) -> Result<Vec<u8>, ErrorKind> {
    let mut bytes = vec![0xee; SLAB];
    lender.with_slab(who, rkey, RemoteAddr(0), SLAB, &mut |at| {
        // SAFETY: with_slab vouches for SLAB bytes from here.
        unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), SLAB) }
    })?;
    Ok(bytes)
}

fn fill(lender: &Lender, who: ClientId, rkey: Rkey, byte: u8) -> Result<(), ErrorKind> {
    lender.with_slab(who, rkey, RemoteAddr(0), SLAB, &mut |at| {
        // SAFETY: with_slab vouches for SLAB bytes from here.
        unsafe { at.write_bytes(byte, SLAB) }
    })
}

#[test]
fn only_its_holder_reaches_a_slab_and_only_within_its_bounds() {
    let rig = Rig::new(2, |_| {});
    rig.hello(ANNA);
    let rkey = rig.lease(ANNA).rkey;
    let reach = |who, rkey, addr, len| {
        let mut is_called = false;
        let result = rig.lender.with_slab(who, rkey, RemoteAddr(addr), len, &mut |_| is_called = true);
        assert_eq!(is_called, result.is_ok());
        result
    };
    let no = Err(ErrorKind::RemoteAccess);
    assert_eq!(reach(ANNA, rkey, 0, SLAB), Ok(()));
    assert_eq!(reach(ANNA, rkey, SLAB as u64 - 8, 8), Ok(()));
    assert_eq!(reach(ANNA, rkey, SLAB as u64, 0), Ok(()));
    assert_eq!(reach(ANNA, rkey, 1, SLAB), no);
    assert_eq!(reach(ANNA, rkey, SLAB as u64 - 7, 8), no);
    assert_eq!(reach(ANNA, rkey, u64::MAX, 8), no);
    assert_eq!(reach(ANNA, rkey, 8, usize::MAX), no);
    assert_eq!(reach(BERT, rkey, 0, 8), no);
    assert_eq!(reach(ANNA, Rkey(rkey.0 ^ 1), 0, 8), no);
    assert_eq!(reach(ANNA, Rkey(0), 0, 8), no);
    assert_eq!(rig.lender.memfd(BERT, rkey).unwrap_err(), ErrorKind::RemoteAccess);
}

#[test]
fn a_slab_whose_descriptor_was_handed_out_is_other_memory_for_the_next_client() {
    let rig = Rig::new(1, |_| {});
    rig.hello(ANNA);
    rig.hello(BERT);
    let lease = rig.lease(ANNA);
    let annas = rig.lender.memfd(ANNA, lease.rkey).unwrap();
    fill(&rig.lender, ANNA, lease.rkey, 0xaa).unwrap();
    rig.give_back(ANNA, lease);
    rig.settle();
    // Her descriptor is good for ever, but the host has its memory back.
    assert_eq!(fstat(&annas.fd).unwrap().st_blocks, 0);
    let next = rig.lease(BERT);
    let berts = rig.lender.memfd(BERT, next.rkey).unwrap();
    assert_eq!(next.slab, lease.slab);
    assert_ne!(fstat(&annas.fd).unwrap().st_ino, fstat(&berts.fd).unwrap().st_ino);
    nix::sys::uio::pwrite(&annas.fd, &[0xcc; 4096], 0).unwrap();
    assert_eq!(read(&rig.lender, BERT, next.rkey).unwrap(), vec![0; SLAB]);
}

#[test]
fn a_slab_that_stayed_here_is_zeroed_and_used_again() {
    let rig = Rig::new(1, |_| {});
    rig.hello(ANNA);
    rig.hello(BERT);
    let lease = rig.lease(ANNA);
    fill(&rig.lender, ANNA, lease.rkey, 0xaa).unwrap();
    rig.give_back(ANNA, lease);
    assert_eq!(read(&rig.lender, ANNA, lease.rkey), Err(ErrorKind::RemoteAccess));
    rig.settle();
    assert_eq!(rig.lender.books.lock().book.spare(), 1);
    let next = rig.lease(BERT);
    assert_eq!(read(&rig.lender, BERT, next.rkey).unwrap(), vec![0; SLAB]);
    assert_eq!(read(&rig.lender, ANNA, lease.rkey), Err(ErrorKind::RemoteAccess));
}

#[test]
fn a_slab_is_not_zeroed_under_an_operation() {
    let rig = Rig::new(1, |_| {});
    rig.hello(ANNA);
    let lease = rig.lease(ANNA);
    fill(&rig.lender, ANNA, lease.rkey, 0xaa).unwrap();
    let mut seen = Vec::new();
    let inside = rig.lender.with_slab(ANNA, lease.rkey, RemoteAddr(0), SLAB, &mut |at| {
        rig.give_back(ANNA, lease);
        // Were the janitor not held back, it would have zeroed this long since.
        assert!(!rig.lender.wait_while(Duration::from_millis(100), Book::is_cleaning));
        // SAFETY: with_slab vouches for SLAB bytes from here.
        seen.extend((0..SLAB).map(|i| unsafe { at.add(i).read_volatile() }));
    });
    assert_eq!(inside, Ok(()));
    assert_eq!(seen, vec![0xaa; SLAB]);
    rig.settle();
}

#[test]
fn an_expired_lease_is_refused_even_before_the_janitor_gets_to_it() {
    let rig = Rig::new(1, |c| c.lease_ttl = TimeSpan(Duration::from_millis(100)));
    rig.hello(ANNA);
    let lease = rig.lease(ANNA);
    // The book is locked, so nobody can end the lease; the clock alone does.
    let _books = rig.lender.books.lock();
    let deadline = Instant::now() + Duration::from_secs(20);
    while read(&rig.lender, ANNA, lease.rkey).is_ok() {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    assert_eq!(read(&rig.lender, ANNA, lease.rkey), Err(ErrorKind::RemoteAccess));
}

#[test]
fn prefaulted_slabs_stay_allocated() {
    let rig = Rig::new(3, |c| c.prefault = true);
    rig.lender.stock(3).unwrap();
    assert_eq!(rig.lender.books.lock().book.spare(), 3);
    rig.hello(ANNA);
    let lease = rig.lease(ANNA);
    drop(rig.lender.memfd(ANNA, lease.rkey).unwrap());
    rig.give_back(ANNA, lease);
    rig.settle();
    assert_eq!(rig.lender.books.lock().book.spare(), 3);
}

/// A store that keeps a descriptor does not keep the memory.
#[test]
fn a_recalled_slab_s_memory_is_the_host_s_again_when_it_is_returned() {
    let rig = Rig::new(2, |c| c.spare_slabs = 2);
    rig.hello(ANNA);
    let (recalled, other) = (rig.lease(ANNA), rig.lease(ANNA));
    let descriptor = |lease: Lease| {
        let memory = rig.lender.slot(lease.slab).memory.read();
        memory.as_ref().unwrap().slab.fd().try_clone_to_owned().unwrap()
    };
    let kept = [descriptor(recalled), descriptor(other)];
    let resident = |fd| fstat(fd).unwrap().st_blocks as usize * 512;
    assert_eq!(resident(&kept[0]), SLAB);
    rig.lender.with_book(|book, now| book.recall(&[recalled.slab], Duration::from_secs(60), now));
    rig.give_back(ANNA, recalled);
    rig.give_back(ANNA, other);
    rig.settle();
    assert_eq!(resident(&kept[0]), 0);
    assert_eq!(resident(&kept[1]), SLAB, "this one was merely returned, and waits for the next client");
}

#[test]
fn hugepages_auto_lends_without_any() {
    let rig = Rig::new(1, |c| {
        (c.hugepages, c.slab_size, c.capacity) = (Hugepages::Auto, ByteSize(2 << 20), Some(ByteSize(2 << 20)));
    });
    rig.hello(ANNA);
    rig.lease(ANNA);
    assert_eq!(rig.lender.lent(), 1);
}

/// Clients take, use and return two slabs in turn as fast as they can while each also tries its
/// last, dead key. Nobody may ever see a byte that is neither zero nor its own.
#[test]
fn under_churn_nobody_sees_another_s_bytes() {
    const ROUNDS: usize = 150;
    let rig = Rig::new(2, |c| c.spare_slabs = 1);
    // A client that fails keeps its slab, and the others must not wait for it for ever.
    let deadline = Instant::now() + Duration::from_secs(20);
    thread::scope(|scope| {
        for n in 1..=3u8 {
            let lender = &rig.lender;
            let rig = &rig;
            scope.spawn(move || {
                let me = ClientId(u64::from(n));
                rig.hello(me);
                let mut round = 0;
                while round < ROUNDS {
                    let Ok(leased) = lender.lease(me, CONNECTION, None, 1) else {
                        assert!(Instant::now() < deadline, "client {n} gets no slab any more");
                        thread::yield_now();
                        continue;
                    };
                    let lease = leased[0];
                    assert_eq!(
                        read(lender, me, lease.rkey).unwrap(),
                        vec![0; SLAB],
                        "client {n} got a slab that is not zero"
                    );
                    if round % 3 == 0 {
                        lender.memfd(me, lease.rkey).unwrap();
                    }
                    fill(lender, me, lease.rkey, n).unwrap();
                    thread::scope(|inner| {
                        inner.spawn(|| rig.give_back(me, lease));
                        for _ in 0..4 {
                            if let Ok(bytes) = read(lender, me, lease.rkey) {
                                assert_eq!(bytes, vec![n; SLAB], "client {n} saw foreign bytes through its old key");
                            }
                        }
                    });
                    assert_eq!(fill(lender, me, lease.rkey, 0xdd), Err(ErrorKind::RemoteAccess));
                    round += 1;
                }
            });
        }
    });
}
