//! One slab: a memfd of its own, mapped, present and locked in RAM.
//!
//! Donor memory must never be swapped out: a fault of the client would then wait for the donor's
//! disk. So each slab is populated and mlocked when it is made, and making it fails if that can't
//! be done.
//!
//! The memfd is sealed against shrinking and growing, so that a client that maps it can't lose
//! pages under its feet.

use crate::hugepages::{HUGE_PAGE, Hugepages};
use annex_shared::memfd;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::MFdFlags;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// A slab could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    #[error("failed to create the memory file of a slab: {0}")]
    Create(#[source] io::Error),
    #[error("failed to map a slab of {len} bytes: {source}")]
    Map { len: usize, source: io::Error },
    #[error("failed to allocate the {len} bytes of a slab: {source}")]
    Populate { len: usize, source: io::Error },
    #[error(
        "not permitted to lock a slab of {len} bytes in memory ({source}): run the agent as root, or raise the limit on \
         locked memory (LimitMEMLOCK=infinity in its unit, ulimit -l unlimited in a shell)"
    )]
    Lock { len: usize, source: io::Error },
}

/// What a slab is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    Small,
    TwoMib,
}

/// A slab's memory. Its bytes are shared with clients, hence only ever reached through the raw
/// pointer.
#[derive(Debug)]
pub struct Slab {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
    pages: Pages,
}

// SAFETY: a shared mapping has no thread affinity; who may touch its bytes when is the caller's
// affair, as for any raw pointer.
unsafe impl Send for Slab {}
// SAFETY: as above; `&Slab` gives out nothing but the pointer and the descriptor.
unsafe impl Sync for Slab {}

impl Slab {
    /// A slab of `len` zero bytes (a multiple of the page size).
    ///
    /// # Errors
    /// With [`Hugepages::Auto`] a lack of huge pages is none: the slab is made of small ones.
    pub fn create(len: usize, hugepages: Hugepages) -> Result<Slab, SlabError> {
        match hugepages {
            Hugepages::Off => Slab::of(len, Pages::Small),
            Hugepages::TwoMib => Slab::of(len, Pages::TwoMib),
            Hugepages::Auto => Slab::of(len, Pages::TwoMib).or_else(|_| Slab::of(len, Pages::Small)),
        }
    }

    fn of(len: usize, pages: Pages) -> Result<Slab, SlabError> {
        debug_assert!(pages == Pages::Small || (len as u64).is_multiple_of(HUGE_PAGE));
        let size = match pages {
            Pages::Small => MFdFlags::empty(),
            Pages::TwoMib => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
        };
        let create = |e: Errno| SlabError::Create(e.into());
        let fd = memfd::create_of(c"annex-slab", len, size).map_err(create)?;
        Slab::map(fd, len, pages)
    }

    /// Takes over a slab that an earlier process made, with its bytes.
    pub fn adopt(fd: OwnedFd, len: usize) -> Result<Slab, SlabError> {
        let stat = nix::sys::stat::fstat(&fd).map_err(|e| SlabError::Map { len, source: e.into() })?;
        if stat.st_size != len as i64 {
            let source = io::Error::new(io::ErrorKind::InvalidData, format!("its file has {} bytes", stat.st_size));
            return Err(SlabError::Map { len, source });
        }
        // hugetlbfs says so.
        let pages = if stat.st_blksize as u64 == HUGE_PAGE { Pages::TwoMib } else { Pages::Small };
        Slab::map(fd, len, pages)
    }

    fn map(fd: OwnedFd, len: usize, pages: Pages) -> Result<Slab, SlabError> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let source = io::Error::last_os_error();
            // Once the process locks all its future memory, mmap itself says that the limit is
            // reached.
            return Err(match source.raw_os_error() {
                Some(libc::EAGAIN) => SlabError::Lock { len, source },
                _ => SlabError::Map { len, source },
            });
        }
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(SlabError::Map { len, source: Errno::ENOMEM.into() });
        };
        // From here on dropping the slab undoes everything.
        let slab = Slab { base, len, fd, pages };
        slab.populate()?;
        slab.lock()?;
        Ok(slab)
    }

    /// Allocates every page now, and reports a lack of memory as an error where a touch would kill
    /// the process.
    fn populate(&self) -> Result<(), SlabError> {
        // SAFETY: the range is this slab's own mapping.
        let done = unsafe { libc::madvise(self.at(), self.len, libc::MADV_POPULATE_WRITE) };
        match Errno::result(done) {
            // Kernels before 5.14 don't know it; mlock then allocates.
            Ok(_) | Err(Errno::EINVAL) => Ok(()),
            Err(e) => Err(SlabError::Populate { len: self.len, source: e.into() }),
        }
    }

    fn lock(&self) -> Result<(), SlabError> {
        // SAFETY: the range is this slab's own mapping.
        let done = unsafe { libc::mlock(self.at(), self.len) };
        match Errno::result(done) {
            Ok(_) => Ok(()),
            // mlock says ENOMEM both for "over RLIMIT_MEMLOCK" and for "no memory"; the pages are
            // there already.
            Err(e) => Err(SlabError::Lock { len: self.len, source: e.into() }),
        }
    }

    fn at(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    /// The first byte. Good for [`Slab::len`] bytes as long as the slab lives.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn pages(&self) -> Pages {
        self.pages
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Zeroes every byte. For a slab that no client ever mapped: nobody else can write it
    /// meanwhile.
    pub fn zero(&mut self) {
        // SAFETY: the mapping is writable for len bytes; `&mut self` rules out other users in this
        // process, and by the method's contract there are none elsewhere.
        unsafe { self.base.as_ptr().write_bytes(0, self.len) };
    }

    /// Copies another slab of the same size into this one. Nobody else may use this one yet; the
    /// other may be written meanwhile, and what is written while it is copied may come along torn.
    pub fn copy_from(&mut self, other: &Slab) {
        let len = self.len.min(other.len);
        // SAFETY: both mappings are good for len bytes and are different ones; `&mut self` rules
        // out other users of the target.
        unsafe { self.base.as_ptr().copy_from_nonoverlapping(other.base.as_ptr(), len) };
    }

    /// Gives the memory back to the host even though a client may still have it mapped or the store
    /// keeps a descriptor, which a mere drop would not.
    pub fn discard(self) {
        punch(self.fd(), self.len);
    }
}

/// Frees the memory of a slab's file, whoever else has it.
pub fn punch(fd: BorrowedFd<'_>, len: usize) {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    // The length fits: ftruncate took it. If punching fails, the memory is freed when the last
    // descriptor is closed.
    if let Err(e) = fallocate(fd, flags, 0, len as i64) {
        tracing::warn!("failed to free the memory of a slab that others have mapped: {e}");
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length; whoever was given the pointer has let go of it,
        // see `base`.
        unsafe { libc::munmap(self.at(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1 << 20;

    fn bytes(slab: &Slab) -> Vec<u8> {
        let mut bytes = vec![1; slab.len()];
        // SAFETY: both are len bytes; nobody writes the slab meanwhile.
        unsafe { slab.base().copy_to_nonoverlapping(bytes.as_mut_ptr(), slab.len()) };
        bytes
    }

    /// `Locked:` in kB of the mapping that starts at `at`.
    fn locked_kb(at: *const u8) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", at.addr());
        let mapping = smaps.lines().skip_while(|l| !l.starts_with(&start));
        let locked = mapping.filter_map(|l| l.strip_prefix("Locked:")).next().unwrap();
        locked.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn a_slab_is_zero_sealed_and_locked_in_memory() {
        let slab = Slab::create(LEN, Hugepages::Off).unwrap();
        assert!(bytes(&slab).iter().all(|b| *b == 0));
        assert_eq!(locked_kb(slab.base()), LEN as u64 / 1024);
        assert_eq!(nix::unistd::ftruncate(slab.fd(), 0), Err(Errno::EPERM));
        assert_eq!(nix::unistd::ftruncate(slab.fd(), 2 * LEN as i64), Err(Errno::EPERM));
    }

    #[test]
    fn a_zeroed_slab_holds_no_byte_of_its_last_tenant() {
        let mut slab = Slab::create(LEN, Hugepages::Off).unwrap();
        // SAFETY: within the slab, which only this test uses.
        unsafe { slab.base().write_bytes(0xa5, LEN) };
        slab.zero();
        assert!(bytes(&slab).iter().all(|b| *b == 0));
    }

    #[test]
    fn a_discarded_slab_frees_its_memory_under_a_client_that_still_maps_it() {
        let slab = Slab::create(LEN, Hugepages::Off).unwrap();
        let clients = slab.fd().try_clone_to_owned().unwrap();
        slab.discard();
        assert_eq!(nix::sys::stat::fstat(&clients).unwrap().st_blocks, 0);
    }

    #[test]
    fn auto_makes_do_with_small_pages_and_two_mib_does_not() {
        // More than any machine reserves, so that the outcome does not depend on this one.
        let reserved = crate::pressure::HostMemory::now().unwrap().huge_free;
        let len = ((reserved + 1) * HUGE_PAGE) as usize;
        assert_eq!(Slab::create(len, Hugepages::Auto).unwrap().pages(), Pages::Small);
        let refused = Slab::create(len, Hugepages::TwoMib).unwrap_err();
        assert!(matches!(refused, SlabError::Map { .. } | SlabError::Create(_)), "{refused}");
    }
}
