//! What the kernel's userfaultfd can do: it is asked, as annexd asks it.

use crate::report::Check;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NAME: &str = "userfaultfd";

/// From the kernel's `include/uapi/linux/userfaultfd.h`.
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xAA00;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const API: u64 = 0xAA;
const USER_MODE_ONLY: libc::c_int = 1;

/// Bits that annexd opens a userfaultfd with, what they are, and the Linux that brought them.
pub const FEATURES: &[(u64, &str, &str)] = &[
    (1 << 16, "UFFDIO_MOVE", "6.8"),
    (1 << 15, "asynchronous write-protect tracking", "6.7"),
    (1 << 14, "UFFDIO_POISON", "6.6"),
    (1 << 13, "write-protection of unpopulated pages", "6.4"),
    (1 << 0, "write-protect faults", "5.7"),
    (1 << 8, "thread ids", "4.14"),
    (1 << 1, "fork events", "4.11"),
    (1 << 2, "remap events", "4.11"),
    (1 << 3, "remove events", "4.11"),
    (1 << 6, "unmap events", "4.11"),
];

/// What the kernel said.
#[derive(Debug)]
pub struct Answer {
    /// Whether `/dev/userfaultfd` could be opened, as annexd does.
    pub device: io::Result<()>,
    /// All features, by the device or, where that can't be opened, by the system call.
    pub features: io::Result<u64>,
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// Asks the running kernel. Nothing is registered, and the descriptors are closed again.
pub fn ask() -> Answer {
    match by_device() {
        Ok(fd) => Answer { device: Ok(()), features: features(&fd) },
        Err(device) => Answer { device: Err(device), features: by_call().and_then(|fd| features(&fd)) },
    }
}

fn by_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC) };
    owned(libc::c_long::from(fd))
}

fn by_call() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only. Everybody may have one for faults of user mode.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) })
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn features(fd: &OwnedFd) -> io::Result<u64> {
    let mut arg = ApiArg { api: API, features: 0, ioctls: 0 };
    // SAFETY: the kernel fills the struct, which has the layout of its `struct uffdio_api` and
    // lives for the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut arg) } {
        0 => Ok(arg.features),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Judges an answer.
pub fn check(answer: &Answer) -> Check {
    let features = match &answer.features {
        Ok(features) => *features,
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
            let remedy = "install a kernel that is built with CONFIG_USERFAULTFD, 6.8 or newer";
            return Check::fail(NAME, "this kernel has no userfaultfd", remedy);
        }
        Err(e) => {
            let remedy = "run it as root: sudo annex doctor; in a container, allow the system call";
            return Check::warn(NAME, format!("unknown: the kernel refuses to make one: {e}"), remedy);
        }
    };
    let lacking: Vec<_> = FEATURES.iter().filter(|(bit, ..)| features & bit == 0).collect();
    if let Some((_, _, since)) = lacking.first() {
        let names: Vec<&str> = lacking.iter().map(|(_, what, _)| *what).collect();
        let message = format!("this kernel's userfaultfd lacks {}", names.join(", "));
        return Check::fail(NAME, message, format!("install Linux {since} or newer"));
    }
    match &answer.device {
        Ok(()) => Check::ok(NAME, format!("all {} features that annexd needs", FEATURES.len())),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Check::warn(
            NAME,
            "all features are there; /dev/userfaultfd is not for this user, and was not tried",
            "run it as root, as annexd does: sudo annex doctor",
        ),
        Err(e) => Check::fail(
            NAME,
            format!("all features are there, but /dev/userfaultfd can't be used: {e}"),
            "in a container, pass the device /dev/userfaultfd in; else load the kernel's own /dev (devtmpfs)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    fn all() -> u64 {
        FEATURES.iter().map(|(bit, ..)| bit).sum()
    }

    fn no(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn what_a_kernel_lacks_is_named_with_the_version_that_has_it() {
        let debian_12 = all() & !(1 << 16 | 1 << 15 | 1 << 14 | 1 << 13);
        let found = check(&Answer { device: Ok(()), features: Ok(debian_12) });
        assert_eq!(found.outcome, Outcome::Fail);
        assert!(found.message.contains("UFFDIO_MOVE, asynchronous"), "{found:?}");
        assert_eq!(found.remedy.unwrap(), "install Linux 6.8 or newer");
        assert_eq!(check(&Answer { device: Ok(()), features: Ok(all()) }).outcome, Outcome::Ok);
    }

    #[test]
    fn a_device_that_can_not_be_tried_is_told_from_one_that_is_not_there() {
        let with = |device, features| check(&Answer { device: Err(no(device)), features }).outcome;
        assert_eq!(with(libc::EACCES, Ok(all())), Outcome::Warn);
        assert_eq!(with(libc::ENOENT, Ok(all())), Outcome::Fail);
        assert_eq!(with(libc::ENOENT, Err(no(libc::ENOSYS))), Outcome::Fail);
        assert_eq!(with(libc::EACCES, Err(no(libc::EPERM))), Outcome::Warn);
    }

    #[test]
    fn this_kernel_answers() {
        let answer = ask();
        assert!(answer.features.is_ok() || answer.device.is_err(), "{answer:?}");
    }
}
