//! What the kernel does besides what its documentation says.

use super::*;
use crate::kernel::probe;
use crate::kernel::scan::Pagemap;
use crate::recovery::staged;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// No events among them.
const FEATURES: u64 = feature::PAGEFAULT_FLAG_WP | feature::WP_ASYNC | feature::MOVE;

/// A context of our own address space.
pub fn context(features: u64) -> Uffd {
    let device = probe::host().expect("root, and Linux 6.8").device;
    // SAFETY: takes numbers only; the result is checked.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert!(fd >= 0);
    // SAFETY: just made, ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut arg = ApiArg { api: API, features, ioctls: 0 };
    // SAFETY: `arg` is the struct this ioctl takes and outlives the call.
    unsafe { uffdio_api(fd.as_raw_fd(), &mut arg) }.expect("the handshake");
    Uffd::adopt(fd)
}

fn page_of(word: u32) -> Vec<u8> {
    word.to_le_bytes().repeat(PAGE / 4)
}

fn spin(turns: u32) {
    (0..turns).for_each(|_| std::hint::spin_loop());
}

/// The program has a copy of the descriptor, and with it what `O_NONBLOCK` says.
fn reading_never_waits(uffd: &Uffd) {
    fcntl(uffd.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).expect("it is ours");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut messages = [Message::default(); 4];
            // SAFETY: the buffer has room for four.
            let _ = tell.send(unsafe { uffd.read(messages.as_mut_ptr(), 4) });
        });
        let read = told.recv_timeout(std::time::Duration::from_secs(20));
        if read.is_err() {
            // Else the thread would wait for ever, and this one for it.
            std::process::abort();
        }
        assert!(matches!(read, Ok(Ok(_))), "{read:?}");
    });
    let flags = OFlag::from_bits_retain(fcntl(uffd.as_fd(), FcntlArg::F_GETFL).expect("it is ours"));
    assert!(flags.contains(OFlag::O_NONBLOCK), "it is polled again: {flags:?}");
}

/// A mapping that moves away between the kernel's two looks is not found where it was. Its page
/// was forgotten, and read as zeros where it had moved to.
#[test]
fn what_may_just_have_moved_is_never_said_not_to_be_registered() {
    use Probe::{Dead, NotRegistered, Registered, TryAgain};
    assert_eq!(final_word(NotRegistered, || TryAgain), TryAgain);
    assert_eq!(final_word(NotRegistered, || Dead), Dead);
    assert_eq!(final_word(NotRegistered, || NotRegistered), NotRegistered);
    assert_eq!(final_word(NotRegistered, || Registered), NotRegistered, "somebody maps that address");
    for said in [Registered, TryAgain, Dead] {
        assert_eq!(final_word(said, || unreachable!("it is final")), said);
    }
}

#[test]
fn reading_never_waits_whatever_others_make_of_the_descriptor() {
    reading_never_waits(&context(FEATURES));
}

/// The kernel does not read the context of a fork's child without waiting, but for its flag. One
/// such descriptor had all others read by their flags alone.
#[test]
fn nor_does_reading_the_context_of_a_forks_child_and_its_parents_afterwards() {
    let uffd = context(FEATURES | feature::EVENT_FORK);
    let area = memmap2::MmapMut::map_anon(PAGE).expect("memory");
    uffd.register_missing(area.as_ptr().addr() as u64, PAGE as u64).expect("it is registered");
    // SAFETY: the child makes calls only that are allowed between fork and exec.
    let forks = std::thread::spawn(|| unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
        child
    });
    // Other tests may fork as well. Each fork waits until its message is read.
    let mut forked = Vec::new();
    while !forks.is_finished() || forked.is_empty() {
        let mut message = [Message::default()];
        // SAFETY: the buffer has room for one.
        let read = unsafe { uffd.read(message.as_mut_ptr(), 1) };
        if read == Ok(1)
            && let Event::Fork { uffd } = message[0].event()
        {
            // SAFETY: the kernel has just made it.
            forked.push(Uffd::adopt(unsafe { OwnedFd::from_raw_fd(uffd) }));
        }
        std::thread::yield_now();
    }
    let child = forks.join().expect("it forks");
    forked.iter().chain([&uffd]).for_each(reading_never_waits);
    // SAFETY: takes numbers only; it is our child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).expect("it was ours");
    forked.iter().chain([&uffd]).for_each(|uffd| uffd.let_go(Proof(())));
}

/// One thread writes to a page at the moment another moves it.
#[test]
fn a_page_that_a_stopped_move_took_along_is_found_in_staging() {
    const ROUNDS: u32 = 100_000;
    // On a busy host each handing over takes milliseconds.
    const ENOUGH: Duration = Duration::from_secs(30);
    let uffd = context(FEATURES);
    let (source, staging) =
        (memmap2::MmapMut::map_anon(PAGE).expect("memory"), memmap2::MmapMut::map_anon(PAGE).expect("memory"));
    let (src, dst) = (source.as_ptr() as u64, staging.as_ptr() as u64);
    uffd.register(src, PAGE as u64).expect("the source is registered");
    uffd.register_missing(dst, PAGE as u64).expect("staging is registered");
    let mut pagemap = Pagemap::open(std::process::id() as i32).expect("our pagemap");
    let (turn, done, over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let (mut miscounted, mut moved_in_all, mut round) = (0, 0, 0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // Serves the writer that comes when the page has left.
            let mut messages = [Message::default(); 4];
            while !over.load(SeqCst) {
                // SAFETY: the buffer has room for four.
                if unsafe { uffd.read(messages.as_mut_ptr(), 4) } != Ok(0) {
                    // SAFETY: the page is as long as said.
                    unsafe { uffd.copy(src, page_of(u32::MAX).as_ptr(), PAGE as u64, false, true) };
                    uffd.wake(src, PAGE as u64);
                }
                std::thread::yield_now();
            }
        });
        threads.spawn(|| {
            let mut last = 0;
            while !over.load(SeqCst) {
                let round = turn.load(SeqCst);
                if round == last {
                    std::thread::yield_now();
                    continue;
                }
                last = round;
                spin(round % 97);
                // SAFETY: the last word of the mapping; nobody reads it as anything else meanwhile.
                unsafe { (src as *mut u32).add(PAGE / 4 - 1).write_volatile(round) };
                done.store(round, SeqCst);
            }
        });
        let began = Instant::now();
        while round < ROUNDS && (round < ROUNDS / 100 || began.elapsed() < ENOUGH) {
            round += 1;
            // SAFETY: the page is as long as said.
            assert_eq!(unsafe { uffd.copy(src, page_of(round).as_ptr(), PAGE as u64, true, true) }, Installed::Done);
            turn.store(round, SeqCst);
            spin(round % 89);
            let mut arg = MoveArg { dst, src, len: PAGE as u64, mode: MOVE_DONTWAKE | MOVE_SOURCE_HOLES, moved: 0 };
            // SAFETY: `arg` is the struct this ioctl takes; both ranges are mappings of ours that
            // nothing is borrowed from.
            let stopped = Errno::result(unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_MOVE, &mut arg) }).err();
            while done.load(SeqCst) != round {
                std::thread::yield_now();
            }
            let staged = staged::pages_present(&mut pagemap, (dst, PAGE as u64)).expect("a scan");
            let arrived = stopped.is_none() || staged.contains(&0);
            // SAFETY: if nothing arrived there, this is not read.
            let holds = |addr: u64| unsafe { (addr as *const u32).read_volatile() } == round;
            if arrived {
                assert!(holds(dst), "round {round}: {stopped:?}, {} counted, and not in staging", arg.moved);
            } else {
                assert!(holds(src), "round {round}: {stopped:?}, {} counted, and gone", arg.moved);
            }
            moved_in_all += u32::from(arrived);
            miscounted += u32::from(arrived && arg.moved <= 0);
            for addr in [src, dst] {
                // SAFETY: drops pages of mappings of ours that nothing is borrowed from.
                unsafe { libc::madvise(addr as *mut c_void, PAGE, libc::MADV_DONTNEED) };
            }
        }
        over.store(true, SeqCst);
    });
    println!("{moved_in_all} of {round} moved, {miscounted} of them though the kernel counted none");
    assert!(moved_in_all > round / 10);
}
