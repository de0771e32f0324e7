//! What a single fault over a fabric is made of, each measured alone and on one CPU: a userfaultfd
//! fault that another process answers by one copy from cold memory, with nothing evicted and
//! nothing kept; one that the faulting thread itself answers, in its SIGBUS handler, by a copy of a
//! page that is in the CPU's cache; and a small request over loopback TCP that another process
//! answers with a page.

use super::{Measured, Memory, floor, new_histogram, pin};
use crate::stress::content::PAGE;
use anyhow::{Context, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, fork};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use userfaultfd::{FeatureFlags, Uffd, UffdBuilder};

/// What asks for a page: about what annex's own request has.
const REQUEST: usize = 32;
/// No two of the pages that follow each other are neighbours, and all come once. A prime above any
/// number of pages here.
const HOP: usize = 2_654_435_761;

/// Faults on pages in no order, one at a time.
pub fn fault(pages: usize, duration: Duration) -> anyhow::Result<Measured> {
    pin(0)?;
    let (memory, slab) = (Memory::unfilled(pages)?, Memory::plain(pages)?);
    let uffd = floor::registered(&memory)?;
    beside(|| {
        loop {
            let page = floor::next_fault(&uffd, &memory)?;
            // SAFETY: the page is absent since it faulted; the slab, inherited, holds its content.
            unsafe { uffd.copy(slab.at(page).cast(), memory.at(page).cast(), PAGE, true).context("UFFDIO_COPY")? };
        }
    })?;
    // The other process' alone from here on: should it end, faults give zeros, which are noticed,
    // and don't wait for ever.
    drop(uffd);
    one_by_one(&memory, duration)
}

/// The same, answered by the faulting thread from one page that it numbers.
pub fn sigbus(pages: usize, duration: Duration) -> anyhow::Result<Measured> {
    pin(0)?;
    let memory = Memory::unfilled(pages)?;
    let uffd = UffdBuilder::new()
        .close_on_exec(true)
        .user_mode_only(true)
        .require_features(FeatureFlags::from_bits_retain(SIGBUS))
        .create()
        .context("userfaultfd in SIGBUS mode")?;
    uffd.register(memory.base.as_ptr().cast(), pages * PAGE).context("registering the memory")?;
    IN_PLACE.set((uffd, memory.base.as_ptr() as usize)).map_err(|_| anyhow::anyhow!("once is enough"))?;
    let action = SigAction::new(SigHandler::SigAction(install), SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler makes one system call, of memory that it has to itself: there is one
    // thread that faults.
    unsafe { sigaction(Signal::SIGBUS, &action) }.context("handling SIGBUS")?;
    one_by_one(&memory, duration)
}

/// `UFFD_FEATURE_SIGBUS`.
const SIGBUS: u64 = 1 << 7;

static IN_PLACE: OnceLock<(Uffd, usize)> = OnceLock::new();

extern "C" fn install(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    static PAGE_AT_HAND: [AtomicU64; PAGE / 8] = [const { AtomicU64::new(7) }; PAGE / 8];
    // SAFETY: the kernel gives a handler with SA_SIGINFO the address.
    let address = unsafe { (*info).si_addr() } as usize & !(PAGE - 1);
    let Some((uffd, base)) = IN_PLACE.get() else { return };
    PAGE_AT_HAND[0].store(((address - base) / PAGE) as u64, Ordering::Relaxed);
    // SAFETY: the page is absent since it faulted, and what it gets is a whole page. One that can't
    // be had faults again, for ever: that is seen.
    let _ = unsafe { uffd.copy(PAGE_AT_HAND.as_ptr().cast(), address as *mut libc::c_void, PAGE, true) };
}

fn one_by_one(memory: &Memory, duration: Duration) -> anyhow::Result<Measured> {
    let pages = memory.pages;
    let mut histogram = new_histogram()?;
    let mut seconds = 0.0;
    while seconds < duration.as_secs_f64() {
        let pass = Instant::now();
        for nth in 0..pages {
            let page = nth.wrapping_mul(HOP) % pages;
            let begin = Instant::now();
            memory.touch(page, false)?;
            histogram.saturating_record(begin.elapsed().as_nanos() as u64);
        }
        seconds += pass.elapsed().as_secs_f64();
        // SAFETY: our own mapping, whose content the slab has.
        let dropped = unsafe { libc::madvise(memory.base.as_ptr().cast(), pages * PAGE, libc::MADV_DONTNEED) };
        ensure!(dropped == 0, "madvise: {}", std::io::Error::last_os_error());
    }
    Ok(Measured { threads: 1, ..Measured::of(&histogram, seconds) })
}

/// Requests and pages over loopback TCP, one at a time.
pub fn ping(duration: Duration) -> anyhow::Result<Measured> {
    pin(0)?;
    let listener = TcpListener::bind("127.0.0.1:0").context("listening")?;
    let address = listener.local_addr()?;
    beside(|| {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let (mut request, page) = ([0; REQUEST], [7; PAGE]);
        loop {
            stream.read_exact(&mut request)?;
            stream.write_all(&page)?;
        }
    })?;
    let mut stream = TcpStream::connect(address).context("connecting")?;
    stream.set_nodelay(true)?;
    let (request, mut page) = ([1; REQUEST], [0; PAGE]);
    let mut histogram = new_histogram()?;
    let began = Instant::now();
    while began.elapsed() < duration {
        let begin = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut page)?;
        histogram.saturating_record(begin.elapsed().as_nanos() as u64);
    }
    ensure!(page == [7; PAGE], "the answer is wrong");
    Ok(Measured { threads: 1, ..Measured::of(&histogram, began.elapsed().as_secs_f64()) })
}

/// Does `work` in another process on this CPU, which ends with this one.
fn beside(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    // SAFETY: called by programs of one thread only, so the child may do what it likes.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Parent { .. } => Ok(()),
        ForkResult::Child => {
            let ended = set_pdeathsig(Signal::SIGKILL).map_err(Into::into).and_then(|()| work());
            // Our end closes what the other one waits for, or it is the one that ended.
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}
