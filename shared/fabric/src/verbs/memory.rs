//! Protection domains and the memory registered in them. Each holds what it was made of, so that no
//! order of dropping is a wrong one.

use super::device::Device;
use crate::Arena;
use nix::sys::resource::{Resource, getrlimit};
use rdma_sys::*;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[error("failed to register {len} bytes with RDMA device {device}: {source}{}", remedy(.source, *.limit))]
pub struct RegisterError {
    device: String,
    len: usize,
    source: io::Error,
    /// Bytes that may be locked here; `None` if as many as there are.
    limit: Option<u64>,
}

/// The kernel says ENOMEM for all that there can be too little of.
fn remedy(error: &io::Error, limit: Option<u64>) -> String {
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM), Some(limit)) => format!(
            " (this program may lock {} KiB of memory in all, and the device needs what it works on locked: LimitMEMLOCK=infinity in the unit, \
             ulimit -l unlimited in a shell)",
            limit >> 10
        ),
        (Some(libc::ENOMEM), None) => {
            " (the machine is out of memory, or the device out of memory regions: lend or borrow less, or use larger slabs)".to_owned()
        }
        _ => String::new(),
    }
}

/// What RLIMIT_MEMLOCK allows.
fn lockable() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    Some(soft).filter(|soft| *soft != libc::RLIM_INFINITY)
}

/// Queue pairs reach only memory that is registered in their own domain, whatever keys they show.
#[derive(Debug)]
pub struct ProtectionDomain {
    pub(super) device: Arc<Device>,
    pd: NonNull<ibv_pd>,
}

// SAFETY: libibverbs lets any thread use a domain at any time.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub fn new(device: &Arc<Device>) -> io::Result<Arc<ProtectionDomain>> {
        // SAFETY: the context is open as long as the device lives.
        let pd = unsafe { (device.library.ibv_alloc_pd)(device.context()) };
        let pd = NonNull::new(pd).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(ProtectionDomain { device: device.clone(), pd }))
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs of the domain held it, and are gone.
        let error = unsafe { (self.device.library.ibv_dealloc_pd)(self.as_ptr()) };
        report("a protection domain", error);
    }
}

/// What a peer may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing: the memory is this side's own, for its operations.
    Local,
    /// Read it.
    RemoteRead,
    /// Read it, write it, and swap words in it if the device can.
    RemoteAll,
}

/// Registered memory. The device reads and writes it until this is dropped, and not any more
/// afterwards.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: Arc<ProtectionDomain>,
    mr: NonNull<ibv_mr>,
    /// What keeps the memory where it is, if it is an arena.
    _arena: Option<Arc<Arena>>,
}

// SAFETY: libibverbs lets any thread use a region at any time.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers a whole arena.
    pub fn of_arena(
        domain: &Arc<ProtectionDomain>,
        arena: &Arc<Arena>,
        rights: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        let base = arena.ptr(0, arena.len());
        // A fork would copy it, page by page, for a child that has no use for it. That the advice
        // fails is no harm. SAFETY: the range is the arena's own mapping.
        unsafe { libc::madvise(base.cast(), arena.len(), libc::MADV_DONTFORK) };
        // SAFETY: the region holds the arena.
        let mut region = unsafe { MemoryRegion::new(domain, base, arena.len(), rights) }?;
        region._arena = Some(arena.clone());
        Ok(region)
    }

    /// Registers any memory.
    ///
    /// # Safety
    /// `base` must be good for `len` bytes as long as the region lives, and its bytes only be
    /// reached through raw pointers: the peer reads and writes them at any time, as far as its
    /// rights go.
    pub unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        base: *mut u8,
        len: usize,
        rights: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        let device = &domain.device;
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let mut access = match rights {
            Rights::Local => local,
            Rights::RemoteRead => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            Rights::RemoteAll => {
                local | ibv_access_flags::IBV_ACCESS_REMOTE_READ | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
        };
        if rights == Rights::RemoteAll && device.limits().swaps {
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        }
        // SAFETY: the memory is good for as long as the region (the caller's promise); the kernel
        // checks the rest.
        let mr = unsafe { (device.library.ibv_reg_mr)(domain.as_ptr(), base.cast(), len, access.0 as i32) };
        let mr = NonNull::new(mr).ok_or_else(|| RegisterError {
            device: device.name().to_owned(),
            len,
            source: io::Error::last_os_error(),
            limit: lockable(),
        })?;
        Ok(MemoryRegion { domain: domain.clone(), mr, _arena: None })
    }

    /// The key that this side's operations show.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the structure is good as long as the region is registered; its keys don't change.
        unsafe { self.mr.as_ref().lkey }
    }

    /// What a peer has to know to reach it.
    pub fn window(&self) -> super::Window {
        // SAFETY: as above.
        let mr = unsafe { self.mr.as_ref() };
        super::Window { key: mr.rkey, addr: mr.addr.addr() as u64, len: mr.length as u64 }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered in `new`, and nobody else has the pointer.
        let error = unsafe { (self.domain.device.library.ibv_dereg_mr)(self.mr.as_ptr()) };
        report("a memory region", error);
    }
}

/// A device that was removed has forgotten everything already (`EIO`); any other trouble at the end
/// of something is a leak, and is said.
pub(super) fn report(what: &str, error: i32) {
    if error != 0 && error.abs() != libc::EIO && error.abs() != libc::ENODEV {
        tracing::error!("failed to free {what}: {}", io::Error::from_raw_os_error(error.abs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_on_locked_memory_is_told_from_a_lack_of_regions() {
        let failed = |errno, limit| {
            let source = io::Error::from_raw_os_error(errno);
            RegisterError { device: "rxe0".into(), len: 16 << 20, source, limit }.to_string()
        };
        let limited = failed(libc::ENOMEM, Some(64 << 10));
        assert!(limited.contains("16777216 bytes with RDMA device rxe0"), "{limited}");
        assert!(limited.contains("may lock 64 KiB") && limited.contains("LimitMEMLOCK=infinity"), "{limited}");
        let unlimited = failed(libc::ENOMEM, None);
        assert!(unlimited.contains("out of memory regions") && !unlimited.contains("LimitMEMLOCK"), "{unlimited}");
        assert!(failed(libc::EFAULT, Some(64 << 10)).ends_with("Bad address (os error 14)"));
    }
}
