//! What the pager needs of the kernel, asked before anything is promised.

use crate::kernel::uffd::{USERFAULTFD_IOC_NEW, Uffd, feature};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The host lacks something.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("this kernel's userfaultfd lacks {what} (Linux {since} or newer has it; this is {kernel})")]
    Feature { what: &'static str, since: &'static str, kernel: String },
    #[error("failed to open /dev/userfaultfd: {0} (run annexd as root, on Linux 6.8 or newer)")]
    Device(io::Error),
    #[error("failed to make a userfaultfd: {0} (annexd needs CAP_SYS_PTRACE)")]
    Create(io::Error),
}

/// A host that will do.
#[derive(Debug)]
pub struct Host {
    pub kernel: String,
    /// `/dev/userfaultfd`, for the stubs of apps that may not make one themselves.
    pub device: OwnedFd,
}

/// Checks the running kernel.
pub fn host() -> Result<Host, ProbeError> {
    let kernel = nix::sys::utsname::uname().map_or_else(|_| "?".into(), |u| u.release().to_string_lossy().into_owned());
    let device: OwnedFd =
        File::options().read(true).write(true).open("/dev/userfaultfd").map_err(ProbeError::Device)?.into();
    // SAFETY: takes numbers only; a non-negative result is a new descriptor that nobody else owns.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(ProbeError::Create(io::Error::last_os_error()));
    }
    // SAFETY: just made, ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let features = Uffd::kernel_features(fd).map_err(ProbeError::Create)?;
    check(features, &kernel)?;
    Ok(Host { kernel, device })
}

fn check(features: u64, kernel: &str) -> Result<(), ProbeError> {
    match feature::NAMES.iter().find(|(bit, _, _)| features & bit == 0) {
        Some((_, what, since)) => Err(ProbeError::Feature { what, since, kernel: kernel.to_owned() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_told_what_it_lacks() {
        let debian_12 = feature::ALL & !(feature::MOVE | feature::WP_ASYNC | feature::POISON | feature::WP_UNPOPULATED);
        let error = check(debian_12, "6.1.0-18-amd64").unwrap_err().to_string();
        assert!(error.contains("UFFDIO_MOVE") && error.contains("6.8") && error.contains("6.1.0-18-amd64"), "{error}");
        assert!(check(feature::ALL, "6.8.0").is_ok());
    }
}
