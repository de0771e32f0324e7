//! Memory files of a fixed size: whoever else has the descriptor can't cut them short under a
//! mapping, where the next access would be SIGBUS.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

const FIXED: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// A new file of `len` zero bytes, none of which takes memory yet.
pub fn create(name: &CStr, len: usize) -> nix::Result<OwnedFd> {
    create_of(name, len, MFdFlags::empty())
}

/// The same, of the pages that the flags name.
pub fn create_of(name: &CStr, len: usize, pages: MFdFlags) -> nix::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | pages)?;
    nix::unistd::ftruncate(&fd, i64::try_from(len).map_err(|_| Errno::EFBIG)?)?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(FIXED))?;
    Ok(fd)
}

/// How long such a file is. `None`: its length can be changed.
pub fn fixed_len(fd: impl AsFd) -> nix::Result<Option<u64>> {
    let seals = match fcntl(&fd, FcntlArg::F_GET_SEALS) {
        // No file in memory.
        Err(Errno::EINVAL) => return Ok(None),
        seals => SealFlag::from_bits_retain(seals?),
    };
    let len = nix::sys::stat::fstat(&fd)?.st_size as u64;
    Ok(seals.contains(FIXED).then_some(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_length() {
        let fd = create(c"x", 8192).unwrap();
        assert_eq!(fixed_len(&fd), Ok(Some(8192)));
        assert_eq!(nix::unistd::ftruncate(&fd, 4096), Err(Errno::EPERM));
        assert_eq!(nix::unistd::ftruncate(&fd, 16384), Err(Errno::EPERM));
    }

    #[test]
    fn other_files_may_change_theirs() {
        let unsealed = memfd_create(c"x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert_eq!(fixed_len(&unsealed), Ok(None));
        assert_eq!(fixed_len(std::fs::File::open("/proc/self/exe").unwrap()), Ok(None));
    }
}
