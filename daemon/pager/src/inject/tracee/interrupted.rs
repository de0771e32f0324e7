//! System calls that a stop would make fail with EINTR.
//!
//! Most calls say to the kernel how they are to be restarted when no signal handler ran
//! (ERESTARTSYS and its kin, in rax at the stop). The calls here say EINTR at once, though no
//! signal came: the program would see a failure that annex caused. Rax is then set to
//! ERESTARTNOHAND, which means: a handler that runs now makes the call fail with EINTR, else the
//! call is made again.
//!
//! EINTR from one of these calls means that it had no effect: a call that transferred something, or
//! submitted an entry, says so instead. The one cost: a relative timeout starts anew, because only
//! the kernel knows how much of it was over.

const EINTR: u64 = -(libc::EINTR as i64) as u64;
const ERESTARTNOHAND: u64 = -514_i64 as u64;

/// Seccomp supervisors wait in this ioctl for a call of the supervised program.
const SECCOMP_IOCTL_NOTIF_RECV: u64 = 0xc050_2100;
/// A virtual CPU runs in this ioctl until something needs its hypervisor.
const KVM_RUN: u64 = 0xae80;

/// Not in the libc crate.
const SYS_IO_PGETEVENTS: i64 = 333;

/// Where each can say EINTR in Linux 6.18.
const CALLS: [i64; 42] = [
    // Sockets with SO_RCVTIMEO or SO_SNDTIMEO (`sock_intr_errno`).
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_preadv2,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_sendfile,
    // FUSE servers may say EINTR to any of these and to read and write.
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_copy_file_range,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    // Always, or with a timeout.
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    libc::SYS_futex_waitv,
    // With a timeout that the kernel can't write back (`poll_select_finish`).
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_ppoll,
    // In memory file systems, which undo what they have allocated.
    libc::SYS_fallocate,
];

/// Has the kernel make the call again that a stop has interrupted, if the call would fail instead.
pub fn restart(regs: &mut libc::user_regs_struct) {
    if regs.rax == EINTR && can_be_made_again(regs) {
        regs.rax = ERESTARTNOHAND;
    }
}

fn can_be_made_again(regs: &libc::user_regs_struct) -> bool {
    match regs.orig_rax as i64 {
        libc::SYS_ioctl => [SECCOMP_IOCTL_NOTIF_RECV, KVM_RUN].contains(&(regs.rsi & 0xffff_ffff)),
        libc::SYS_fallocate => {
            let moves_bytes = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
            regs.rsi & moves_bytes as u64 == 0
        }
        call => CALLS.contains(&call),
    }
}

#[cfg(test)]
mod tests {
    //! Each call waits in a process of its own for what does not come, or comes late. It is
    //! disturbed meanwhile, and must answer what it answers to a program that nobody disturbs.

    use crate::inject::tracee::tests::disturb;
    use nix::errno::Errno;
    use std::io::{BufRead, BufReader, Write};
    use std::mem::{size_of_val, zeroed};
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};
    use std::ptr::null_mut;
    use std::time::Duration;

    const LASTS: i64 = 2;
    const ENOUGH: u32 = 3;
    /// Names the call that is to wait.
    const WHICH: &str = "ANNEX_WAIT";
    const WAITING: &str = "it waits now";
    /// Of a call that the kernel here does not have, or does not allow.
    const NOT_HERE: [i32; 2] = [libc::ENOSYS, libc::EPERM];

    /// Makes the call; 0 or its error.
    struct Wait {
        name: &'static str,
        call: fn() -> i64,
        answer: i32,
    }

    const fn wait(name: &'static str, call: fn() -> i64, answer: i32) -> Wait {
        Wait { name, call, answer }
    }

    const WAITS: &[Wait] = &[
        wait("read", || with_byte(|at| call(libc::SYS_read, [silent(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("readv", || with_vector(|at| call(libc::SYS_readv, [silent(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("preadv2", || with_vector(|at| call(libc::SYS_preadv2, [silent(), at, 1, -1, -1, 0])), libc::EAGAIN),
        wait("recvfrom", || with_byte(|at| call(libc::SYS_recvfrom, [silent(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("recvmsg", || with_message(|at| call(libc::SYS_recvmsg, [silent(), at, 0, 0, 0, 0])), libc::EAGAIN),
        wait("recvmmsg", || with_message(|at| call(libc::SYS_recvmmsg, [silent(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("write", || with_byte(|at| call(libc::SYS_write, [full(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("writev", || with_vector(|at| call(libc::SYS_writev, [full(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("pwritev2", || with_vector(|at| call(libc::SYS_pwritev2, [full(), at, 1, -1, -1, 0])), libc::EAGAIN),
        wait("sendto", || with_byte(|at| call(libc::SYS_sendto, [full(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("sendmsg", || with_message(|at| call(libc::SYS_sendmsg, [full(), at, 0, 0, 0, 0])), libc::EAGAIN),
        wait("sendmmsg", || with_message(|at| call(libc::SYS_sendmmsg, [full(), at, 1, 0, 0, 0])), libc::EAGAIN),
        wait("accept", || call(libc::SYS_accept, [listening(), 0, 0, 0, 0, 0]), libc::EAGAIN),
        wait("accept4", || call(libc::SYS_accept4, [listening(), 0, 0, 0, 0, 0]), libc::EAGAIN),
        wait("connect", connect, libc::EAGAIN),
        wait("splice", || call(libc::SYS_splice, [silent(), 0, pipe()[1], 0, 1, 0]), libc::EAGAIN),
        wait("tee", || call(libc::SYS_tee, [late_pipe(), pipe()[1], 1, 0, 0, 0]), 0),
        wait("sendfile", || call(libc::SYS_sendfile, [full(), file(), constant(0i64), 1, 0, 0]), libc::EAGAIN),
        wait("epoll_wait", || with_event(|at| call(libc::SYS_epoll_wait, [epoll(), at, 1, LASTS * 1000, 0, 0])), 0),
        wait("epoll_pwait", || with_event(|at| call(libc::SYS_epoll_pwait, [epoll(), at, 1, LASTS * 1000, 0, 8])), 0),
        wait("epoll_pwait2", || with_event(|at| call(libc::SYS_epoll_pwait2, [epoll(), at, 1, lasts(), 0, 8])), 0),
        wait("rt_sigtimedwait", sigtimedwait, libc::EAGAIN),
        wait("semop", || semaphore(libc::SYS_semop, 0), 0),
        wait("semtimedop", || semaphore(libc::SYS_semtimedop, lasts()), libc::EAGAIN),
        wait("msgrcv", msgrcv, 0),
        wait("msgsnd", msgsnd, 0),
        wait("io_getevents", || asynchronous(libc::SYS_io_getevents), 0),
        wait("io_pgetevents", || asynchronous(super::SYS_IO_PGETEVENTS), 0),
        wait("io_uring_enter", io_uring_enter, libc::ETIME),
        wait("futex_waitv", futex_waitv, libc::ETIMEDOUT),
        wait("select", || call(libc::SYS_select, [0, 0, 0, 0, constant([LASTS, 0]), 0]), 0),
        wait("pselect6", || call(libc::SYS_pselect6, [0, 0, 0, 0, constant([LASTS, 0]), 0]), 0),
        wait("ppoll", || call(libc::SYS_ppoll, [0, 0, constant([LASTS, 0]), 0, 8, 0]), 0),
        // Those that the kernel makes again by itself.
        wait("poll", || call(libc::SYS_poll, [0, 0, LASTS * 1000, 0, 0, 0]), 0),
        wait("nanosleep", || call(libc::SYS_nanosleep, [lasts(), 0, 0, 0, 0, 0]), 0),
        wait("clock_nanosleep", || call(libc::SYS_clock_nanosleep, [0, 0, lasts(), 0, 0, 0]), 0),
        wait("futex", || call(libc::SYS_futex, [lasts(), 0, LASTS, lasts(), 0, 0]), libc::ETIMEDOUT),
        wait("read of a pipe", || with_byte(|at| call(libc::SYS_read, [late_pipe(), at, 1, 0, 0, 0])), 0),
        wait("wait4", wait4, 0),
    ];

    #[test]
    fn a_call_that_is_disturbed_answers_as_if_it_were_not() {
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let shares = WAITS.chunks(WAITS.len().div_ceil(8));
            let shares: Vec<_> = shares.map(|some| scope.spawn(|| some.iter().filter_map(tried).collect())).collect();
            shares.into_iter().flat_map(|share| -> Vec<String> { share.join().unwrap() }).collect()
        });
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// What came instead of the right answer. A machine on which it was over before it could be
    /// disturbed gets further tries.
    fn tried(wait: &Wait) -> Option<String> {
        for _ in 0..10 {
            let (_, here) = module_path!().split_once("::").unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("{here}::waits"), "--ignored", "--nocapture"])
                .args(["--test-threads", "1"])
                .env(WHICH, wait.name)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains(WAITING)));
            std::thread::sleep(Duration::from_millis(100));
            let times = (0..ENOUGH).take_while(|_| {
                let is_disturbed = disturb(child.id() as i32).is_ok();
                std::thread::sleep(Duration::from_millis(20));
                is_disturbed
            });
            let times = times.count();
            let answer = child.wait().unwrap().code();
            if answer != Some(wait.answer) && answer.is_none_or(|answer| !NOT_HERE.contains(&answer)) {
                let came = answer.map(Errno::from_raw);
                return Some(format!("{}: {came:?} in place of {}", wait.name, wait.answer));
            }
            if times > 0 {
                return None;
            }
        }
        Some(format!("{} could not be disturbed", wait.name))
    }

    #[test]
    #[ignore = "a_call_that_is_disturbed_answers_as_if_it_were_not runs it, in a process of its own"]
    fn waits() {
        let name = std::env::var(WHICH).unwrap();
        let wait = WAITS.iter().find(|wait| wait.name == name).unwrap();
        println!("{WAITING}");
        let answer = match (wait.call)() {
            -1 => Errno::last_raw(),
            _ => 0,
        };
        std::process::exit(answer);
    }

    fn call(number: i64, [a, b, c, d, e, f]: [i64; 6]) -> i64 {
        // SAFETY: the callers pass addresses of objects that are alive, or none.
        unsafe { libc::syscall(number, a, b, c, d, e, f) }
    }

    /// An object that stays: the child ends soon.
    fn constant<T>(value: T) -> i64 {
        Box::into_raw(Box::new(value)).addr() as i64
    }

    fn lasts() -> i64 {
        constant([LASTS, 0i64])
    }

    fn later(what: impl FnOnce() + Send + 'static) {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(LASTS as u64));
            what();
        });
    }

    fn with_byte(then: impl FnOnce(i64) -> i64) -> i64 {
        then(constant([0u8; 8]))
    }

    fn with_vector(then: impl FnOnce(i64) -> i64) -> i64 {
        then(constant([constant([0u8; 8]), 1]))
    }

    fn with_message(then: impl FnOnce(i64) -> i64) -> i64 {
        // SAFETY: all zeros is a valid value of this plain C struct.
        let mut message: libc::mmsghdr = unsafe { zeroed() };
        message.msg_hdr.msg_iov = constant([constant([0u8; 8]), 1]) as *mut libc::iovec;
        message.msg_hdr.msg_iovlen = 1;
        then(constant(message))
    }

    fn with_event(then: impl FnOnce(i64) -> i64) -> i64 {
        then(constant([0u64; 4]))
    }

    /// Gives a socket a timeout in both directions.
    fn timed(socket: impl IntoRawFd) -> i64 {
        let socket = socket.into_raw_fd();
        let timeout = libc::timeval { tv_sec: LASTS, tv_usec: 0 };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            // SAFETY: the option's value is alive.
            let set = unsafe {
                let at = (&raw const timeout).cast();
                libc::setsockopt(socket, libc::SOL_SOCKET, option, at, size_of_val(&timeout) as u32)
            };
            assert_eq!(set, 0);
        }
        socket.into()
    }

    /// A socket that nothing comes from.
    fn silent() -> i64 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let _stays = theirs.into_raw_fd();
        timed(ours)
    }

    /// A socket that takes nothing more.
    fn full() -> i64 {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let _stays = theirs.into_raw_fd();
        ours.set_nonblocking(true).unwrap();
        for size in [1 << 16, 1] {
            while ours.write(&vec![0; size]).is_ok() {}
        }
        ours.set_nonblocking(false).unwrap();
        timed(ours)
    }

    fn place() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("annex-interrupted-{}", std::process::id()))
    }

    fn listener() -> UnixListener {
        UnixListener::bind(place()).unwrap()
    }

    fn listening() -> i64 {
        let listener = timed(listener());
        std::fs::remove_file(place()).unwrap();
        listener
    }

    /// To one that accepts nobody, and has as many waiting as it may have.
    fn connect() -> i64 {
        let listener = listener();
        // SAFETY: a descriptor of ours.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let _first = UnixStream::connect(place()).unwrap();
        // SAFETY: plain calls; all zeros is a valid address to be filled.
        unsafe {
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
            let mut address: libc::sockaddr_un = zeroed();
            address.sun_family = libc::AF_UNIX as u16;
            let path = place().into_os_string().into_encoded_bytes();
            address.sun_path.iter_mut().zip(path).for_each(|(to, from)| *to = from as i8);
            let socket = std::os::fd::OwnedFd::from(<std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(socket));
            let answer =
                call(libc::SYS_connect, [timed(socket), constant(address), size_of_val(&address) as i64, 0, 0, 0]);
            let errno = Errno::last();
            std::fs::remove_file(place()).unwrap();
            errno.set();
            answer
        }
    }

    fn pipe() -> [i64; 2] {
        let (from, to) = nix::unistd::pipe().unwrap();
        [from.into_raw_fd().into(), to.into_raw_fd().into()]
    }

    /// A pipe into which something comes in the end.
    fn late_pipe() -> i64 {
        let [from, to] = pipe();
        later(move || {
            with_byte(|at| call(libc::SYS_write, [to, at, 1, 0, 0, 0]));
        });
        from
    }

    fn file() -> i64 {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        file.into_raw_fd().into()
    }

    fn epoll() -> i64 {
        call(libc::SYS_epoll_create1, [0; 6])
    }

    fn sigtimedwait() -> i64 {
        let usr2 = constant(1u64 << (libc::SIGUSR2 - 1));
        call(libc::SYS_rt_sigprocmask, [0, usr2, 0, 8, 0, 0]);
        call(libc::SYS_rt_sigtimedwait, [usr2, 0, lasts(), 8, 0, 0])
    }

    fn semaphore(number: i64, timeout: i64) -> i64 {
        let take = |by: i16| constant(libc::sembuf { sem_num: 0, sem_op: by, sem_flg: 0 });
        let set = call(libc::SYS_semget, [libc::IPC_PRIVATE.into(), 1, 0o600, 0, 0, 0]);
        if timeout == 0 {
            let give = take(1);
            later(move || {
                call(libc::SYS_semop, [set, give, 1, 0, 0, 0]);
            });
        }
        let answer = call(number, [set, take(-1), 1, timeout, 0, 0]);
        let errno = Errno::last();
        call(libc::SYS_semctl, [set, 0, libc::IPC_RMID.into(), 0, 0, 0]);
        errno.set();
        answer
    }

    fn with_queue(then: impl FnOnce(i64) -> i64) -> i64 {
        let queue = call(libc::SYS_msgget, [libc::IPC_PRIVATE.into(), 0o600, 0, 0, 0, 0]);
        let answer = then(queue);
        let errno = Errno::last();
        call(libc::SYS_msgctl, [queue, libc::IPC_RMID.into(), 0, 0, 0, 0]);
        errno.set();
        answer
    }

    fn msgrcv() -> i64 {
        with_queue(|queue| {
            later(move || {
                call(libc::SYS_msgsnd, [queue, constant([1i64, 0]), 8, 0, 0, 0]);
            });
            call(libc::SYS_msgrcv, [queue, constant([0i64; 2]), 8, 0, 0, 0])
        })
    }

    fn msgsnd() -> i64 {
        with_queue(|queue| {
            let message = constant([1i64; 129]);
            while call(libc::SYS_msgsnd, [queue, message, 1024, libc::IPC_NOWAIT.into(), 0, 0]) == 0 {}
            later(move || {
                call(libc::SYS_msgrcv, [queue, constant([0i64; 129]), 1024, 0, 0, 0]);
            });
            call(libc::SYS_msgsnd, [queue, message, 1024, 0, 0, 0])
        })
    }

    fn asynchronous(number: i64) -> i64 {
        let context = constant(0u64);
        assert_eq!(call(libc::SYS_io_setup, [1, context, 0, 0, 0, 0]), 0);
        // SAFETY: the call has filled it.
        let context = unsafe { *(context as *const i64) };
        call(number, [context, 1, 1, constant([0u64; 4]), lasts(), 0])
    }

    fn io_uring_enter() -> i64 {
        const SYS_IO_URING_SETUP: i64 = 425;
        const GETEVENTS_EXT_ARG: i64 = 1 | 8;
        let ring = call(SYS_IO_URING_SETUP, [4, constant([0u64; 15]), 0, 0, 0, 0]);
        if ring < 0 {
            return ring;
        }
        let argument = constant([0, 0, lasts()]);
        call(libc::SYS_io_uring_enter, [ring, 0, 1, GETEVENTS_EXT_ARG, argument, 24])
    }

    fn futex_waitv() -> i64 {
        let word = constant([7u32; 2]);
        let waiter = constant([7, word, 2]);
        // SAFETY: all zeros is a valid time to be filled.
        let mut until: libc::timespec = unsafe { zeroed() };
        // SAFETY: the call fills it.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) };
        call(libc::SYS_futex_waitv, [waiter, 1, 0, constant([until.tv_sec + LASTS, 0]), 1, 0])
    }

    fn wait4() -> i64 {
        // SAFETY: the child sleeps and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            std::thread::sleep(Duration::from_secs(LASTS as u64));
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: nothing is written.
        unsafe { libc::waitpid(pid, null_mut(), 0).into() }
    }
}
