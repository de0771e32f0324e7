//! A stub that is a thread of this process, which it ends with.

use super::super::code::code;
use super::*;
use crate::kernel::Pagemap;
use crate::kernel::uffd::feature;
use crate::kernel::uffd::tests::context;
use crate::recovery::staged;
use memmap2::{MmapMut, MmapOptions, MmapRaw};
use std::os::fd::AsRawFd;

const PAGES: usize = 4;
const LEN: usize = PAGES * PAGE_SIZE;
const LIMIT: Duration = Duration::from_secs(20);

/// A gate on a page of our own.
pub fn gate() -> Gate {
    let comm = MmapOptions::new().len(size_of::<Comm>()).map_anon().expect("memory");
    Gate::new(MmapRaw::from(comm))
}

/// Has a thread run the stub's loop for the rest of the process.
pub fn start(gate: &Gate) {
    let mut text = MmapMut::map_anon(4096).expect("memory");
    text[..code().len()].copy_from_slice(code());
    let text = Box::leak(Box::new(text.make_exec().expect("executable memory")));
    let (entry, comm) = (text.as_ptr().addr(), Box::leak(Box::new(gate.clone())).comm.as_ptr().addr());
    // SAFETY: the stub's loop, with the register it wants; it uses no stack, and all that it
    // touches outlives it.
    std::thread::spawn(move || unsafe {
        std::arch::asm!("mov rbx, {comm}", "jmp {entry}", comm = in(reg) comm, entry = in(reg) entry, options(noreturn));
    });
}

#[test]
fn staging_is_emptied_and_registered_again_though_nobody_reads_messages() {
    let pid = std::process::id() as i32;
    let uffd = context(feature::EVENT_REMOVE | feature::MOVE);
    let map = Box::leak(Box::new(MmapMut::map_anon((STAGING + HUGE) as usize).expect("memory")));
    let staging_map = (map.as_ptr().addr() as u64, STAGING + HUGE);
    let staging = staging_map.0.next_multiple_of(HUGE);
    uffd.register_missing(staging, STAGING).expect("staging is registered");
    let gate = gate();
    start(&gate);
    let mut stub = Stub {
        pid,
        pid_there: pid,
        pidfd: process::pidfd_open(pid).expect("our pidfd"),
        fds_there: [-1, uffd.as_raw_fd()],
        code_at: 0,
        comm_at: gate.comm.as_ptr().addr() as u64,
        gate,
        inode: 0,
        staging_map,
        staging,
        used: 0,
        held: 0,
        releasing: false,
        failed_releases: 0,
    };
    let mut source = MmapMut::map_anon(LEN).expect("memory");
    let mut pagemap = Pagemap::open(pid).expect("our pagemap");
    let mut held = || staged::pages_present(&mut pagemap, (staging, STAGING)).expect("our pagemap");
    for round in 1..=3 {
        source.fill(round);
        let at = stub.take_part(PAGES as u64, PAGES);
        assert_eq!(at, 0, "it begins anew");
        stub.prepare_moves(&[(source.as_ptr().addr() as u64, LEN as u64)], at);
        assert_eq!((stub.make_moves(1), stub.gate().answer(0)), (Ok(()), Some(0)), "round {round}");
        assert_eq!(held().len(), PAGES);
        stub.prepare_release().ring();
        assert_eq!(stub.wait(LIMIT), Ok(()), "round {round}");
        assert!(held().is_empty(), "round {round}");
    }
}
