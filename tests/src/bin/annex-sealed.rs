//! `annex-sealed`: a program behind a strict seccomp filter. It fills memory, allows itself a
//! handful of system calls (none of which could serve a pager: no userfaultfd, no ioctl, no clone,
//! no socket), and goes on verifying and rewriting. Any other call kills it.
//!
//! Arguments: MiB of memory, seconds to go on. Exit codes: 0 all was well, 1 wrong content, 159
//! (SIGSYS) a forbidden call.

use annex_tests::stress::content::{Content, PAGE};
use std::time::{Duration, Instant};

/// All it may call from then on.
const ALLOWED: [i64; 14] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
];

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (megabytes, seconds) = (args.next().expect("MiB of memory"), args.next().expect("seconds"));
    let pages = (megabytes as usize) << 20 >> 12;
    // SAFETY: a fresh mapping, no address is asked for.
    let base = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED, "mmap of {megabytes} MiB");
    let page = |i: usize| base.cast::<u8>().wrapping_add(i * PAGE);
    for i in 0..pages {
        // SAFETY: the page lies in the mapping, which is ours.
        unsafe { Content::of(1, i as u64, 0).fill(page(i)) };
    }
    seal();
    say("sealed\n");
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0;
    while Instant::now() < until || round < 2 {
        for i in 0..pages {
            // SAFETY: the page lies in the mapping, which is ours.
            unsafe {
                if Content::of(1, i as u64, round).check(page(i)).is_err() {
                    say("wrong content\n");
                    libc::_exit(1);
                }
                Content::of(1, i as u64, round + 1).fill(page(i));
            }
        }
        round += 1;
    }
    say("verified\n");
    // SAFETY: ends the process; the usual way out makes calls that are forbidden now.
    unsafe { libc::_exit(0) }
}

fn say(text: &str) {
    // SAFETY: writes a buffer of ours. Nothing could be done about a failure.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

/// Installs the filter: the number of the call is compared with each allowed one; no match kills.
fn seal() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number)];
    for (i, call) in ALLOWED.iter().enumerate() {
        let to_allow = (ALLOWED.len() - i) as u8;
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code, jt: to_allow, jf: 0, k: *call as u32 });
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS));
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls read their arguments only; the program outlives them.
    let sealed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
    };
    assert!(sealed, "seccomp: {}", std::io::Error::last_os_error());
}
