use super::*;
use crate::{Arena, Completion, Connector, Endpoint, ErrorKind, Op, OpKind};
use annex_shared::ids::{RemoteAddr, Rkey};
use annex_shared::page::PAGE_SIZE;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const REGION: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_millis(300);

struct Bed {
    disk: Arc<Disk>,
    arena: Arc<Arena>,
    end: Box<dyn Endpoint>,
    _file: tempfile::NamedTempFile,
}

fn bed() -> Bed {
    // Not /tmp, which may be in memory: direct I/O is what is tested.
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let open = std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(file.path());
    let disk = start_disk(open.unwrap().into(), "spill", (4096, REGION, 4), PATIENCE).unwrap();
    let arena = Arc::new(Arena::new(2 << 20).unwrap());
    let end = FileConnector(disk.clone()).open(&arena).unwrap();
    Bed { disk, arena, end, _file: file }
}

impl Bed {
    fn post(&mut self, tag: u64, kind: OpKind, local: usize, len: usize, rkey: Rkey, addr: u64) {
        let op = Op { tag, kind, local, len: len as u32, rkey, addr: RemoteAddr(addr) };
        self.end.post(op).unwrap();
        self.end.ring();
    }

    /// Sleeps on the descriptor, as a lane does.
    fn finish(&mut self, n: usize) -> Vec<Completion> {
        let until = Instant::now() + Duration::from_secs(20);
        let mut done = Vec::new();
        while done.len() < n {
            self.end.poll(&mut done);
            assert!(Instant::now() < until, "{} of {n} done", done.len());
            if done.len() < n && !self.end.arm() {
                let mut fds = [PollFd::new(self.end.event_fd().unwrap(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::from(100u8)).unwrap();
            }
        }
        done
    }

    fn one(&mut self, kind: OpKind, local: usize, len: usize, rkey: Rkey, addr: u64) -> Result<(), ErrorKind> {
        self.post(7, kind, local, len, rkey, addr);
        let done = self.finish(1).remove(0);
        assert_eq!(done.tag, 7);
        done.result
    }

    fn fill(&mut self, at: usize, len: usize, seed: u8) {
        // SAFETY: nothing is under way on the range.
        let bytes = unsafe { self.arena.bytes_mut(at, len) };
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = seed ^ (i / 7) as u8);
    }

    fn is_filled(&self, at: usize, len: usize, seed: u8) -> bool {
        // SAFETY: nothing is under way on the range.
        let bytes = unsafe { self.arena.bytes(at, len) };
        bytes.iter().enumerate().all(|(i, b)| *b == seed ^ (i / 7) as u8)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.disk.stop();
    }
}

#[test]
fn what_is_written_to_a_region_comes_back_and_regions_are_apart() {
    let mut bed = bed();
    let keys: Vec<Rkey> = (0..4).map(|_| bed.disk.lend(4).unwrap().unwrap().1).collect();
    assert_eq!(bed.disk.lend(4).unwrap(), None);
    // Longer than what a thread moves at once.
    let len = 640 << 10;
    for (seed, key) in (1..).zip(&keys) {
        bed.fill(0, len, seed);
        assert_eq!(bed.one(OpKind::Write, 0, len, *key, 4096), Ok(()));
    }
    for (seed, key) in (1..).zip(&keys) {
        assert_eq!(bed.one(OpKind::Read, 1 << 20, len, *key, 4096), Ok(()));
        assert!(bed.is_filled(1 << 20, len, seed), "region {seed}");
    }
}

#[test]
fn many_operations_at_once_all_end_and_no_bytes_are_mixed_up() {
    let mut bed = bed();
    let (_, key) = bed.disk.lend(4).unwrap().unwrap();
    let page = |n: usize| n * PAGE_SIZE;
    for round in 0..20 {
        (0..60).for_each(|n| bed.fill(page(n), PAGE_SIZE, round ^ n as u8));
        (0..60).for_each(|n| bed.post(n as u64, OpKind::Write, page(n), PAGE_SIZE, key, page(59 - n) as u64));
        assert!(bed.finish(60).iter().all(|c| c.result.is_ok()));
        (0..60).for_each(|n| bed.post(n as u64, OpKind::Read, page(100 + n), PAGE_SIZE, key, page(n) as u64));
        assert!(bed.finish(60).iter().all(|c| c.result.is_ok()));
        assert!((0..60).all(|n| bed.is_filled(page(100 + n), PAGE_SIZE, round ^ (59 - n) as u8)));
    }
}

#[test]
fn a_key_that_was_taken_back_opens_nothing_and_foreign_ranges_are_refused() {
    let mut bed = bed();
    let (slab, key) = bed.disk.lend(4).unwrap().unwrap();
    assert_eq!(bed.one(OpKind::Read, 0, 4096, key, REGION), Err(ErrorKind::RemoteAccess));
    assert_eq!(bed.one(OpKind::Read, 0, 4096, Rkey(key.0 ^ 1 << 40), 0), Err(ErrorKind::RemoteAccess));
    assert_eq!(bed.one(OpKind::Read, 0, 4096, Rkey(99), 0), Err(ErrorKind::RemoteAccess));
    assert_eq!(bed.one(OpKind::Read, 2 << 20, 4096, key, 0), Err(ErrorKind::LocalProtection));
    assert_eq!(bed.one(OpKind::Read, 0, 100, key, 0), Err(ErrorKind::LocalProtection));
    bed.disk.take_back(slab);
    assert_eq!(bed.one(OpKind::Write, 0, 4096, key, 0), Err(ErrorKind::RemoteAccess));
    assert!(bed.disk.adopt(slab, key) && !bed.disk.adopt(slab, key));
    assert_eq!(bed.one(OpKind::Read, 0, 4096, key, 0), Ok(()));
}

#[test]
fn a_region_beyond_the_limit_is_not_lent() {
    let bed = bed();
    assert!(bed.disk.lend(1).unwrap().is_some());
    assert_eq!(bed.disk.lend(1).unwrap(), None);
    assert_eq!((bed.disk.free(1), bed.disk.free(4)), (0, 3));
}

/// A write that hangs in the kernel while its place is written anew would bring old bytes back when
/// it gets through at last.
#[test]
fn a_disk_that_hangs_is_cut_off_until_all_is_back_from_it() {
    let mut bed = bed();
    let (slab, key) = bed.disk.lend(4).unwrap().unwrap();
    bed.fill(0, 4096, 1);
    let disk = bed.disk.clone();
    let hang = disk.gate.lock();
    bed.post(1, OpKind::Write, 0, 4096, key, 0);
    bed.post(2, OpKind::Read, 4096, 4096, key, 0);
    let ends: Vec<_> = bed.finish(2).into_iter().map(|c| c.result).collect();
    assert!(ends.iter().all(|r| r.is_err_and(|kind| kind.is_fatal())), "{ends:?}");
    assert!(bed.end.is_broken() && bed.disk.is_cut_off());
    assert!(FileConnector(bed.disk.clone()).open(&bed.arena).is_err());
    assert_eq!(bed.one(OpKind::Read, 0, 4096, key, 0), Err(ErrorKind::Flushed));
    bed.disk.take_back(slab);
    assert_eq!(bed.disk.free(4), 3, "its region is lent while a write is on its way there");
    // The owner uses these bytes for something else now.
    bed.fill(0, 8192, 9);
    drop(hang);
    let until = Instant::now() + Duration::from_secs(20);
    while bed.disk.is_cut_off() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(bed.is_filled(0, 8192, 9), "a read that was given up still wrote its bytes");
    assert_eq!(bed.disk.free(4), 4);
    assert!(FileConnector(bed.disk.clone()).open(&bed.arena).is_ok());
}

#[test]
fn an_error_of_the_disk_is_an_error_of_the_operation() {
    let mut bed = bed();
    let (slab, key) = bed.disk.lend(4).unwrap().unwrap();
    assert_eq!(slab.0, 0);
    nix::unistd::ftruncate(&bed.disk.file, 4096).unwrap();
    assert_eq!(bed.one(OpKind::Read, 0, 4096, key, 0), Err(ErrorKind::RemoteOperation));
    assert!(!bed.end.is_broken());
}
