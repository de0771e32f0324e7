//! System calls that a stop would make fail with EINTR.
//!
//! Most calls say to the kernel how they are to be restarted when no signal handler ran (ERESTARTSYS
//! and its kin, in rax at the stop). The calls here say EINTR at once, though no signal came: the
//! program would see a failure that annex caused. Rax is then set to ERESTARTNOHAND, which means: a
//! handler that runs now makes the call fail with EINTR, else the call is made again.
//!
//! EINTR from one of these calls means that it had no effect: a call that transferred something, or
//! submitted an entry, says so instead. The one cost: a relative timeout starts anew, because only the
//! kernel knows how much of it was over.

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
