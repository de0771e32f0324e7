//! Thin, checked calls to the memory system calls that the workload is made of.

use super::content::PAGE;
use std::io;
use std::ptr::NonNull;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// `len` bytes of fresh anonymous memory somewhere.
pub fn anonymous(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: no address is asked for, so no existing mapping is touched.
    checked(unsafe { libc::mmap(std::ptr::null_mut(), len, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) })
}

/// `len` bytes of address space of ours that nobody can touch.
pub fn inaccessible(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: no address is asked for, so no existing mapping is touched.
    checked(unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    })
}

/// `len` bytes that fork does not copy.
pub fn shared(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: no address is asked for, so no existing mapping is touched.
    checked(unsafe { libc::mmap(std::ptr::null_mut(), len, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) })
}

/// Fresh memory in place of whatever was at `at`, in one step.
///
/// # Safety
/// The range belongs to the caller, who holds no reference into it.
pub unsafe fn replace(at: NonNull<u8>, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller owns the range that is replaced.
    checked(unsafe { libc::mmap(at.as_ptr().cast(), len, RW, flags, -1, 0) }).map(drop)
}

/// Fresh memory at an address that was just unmapped; `None` if someone else took it meanwhile.
pub fn again(at: NonNull<u8>, len: usize) -> io::Result<Option<()>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE never touches an existing mapping.
    match checked(unsafe { libc::mmap(at.as_ptr().cast(), len, RW, flags, -1, 0) }) {
        Ok(_) => Ok(Some(())),
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(None),
        Err(e) => Err(e),
    }
}

/// # Safety
/// The range belongs to the caller, who holds no reference into it and does not use it any more.
pub unsafe fn unmap(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the caller owns the range.
    zero(unsafe { libc::munmap(at.as_ptr().cast(), len) })
}

/// # Safety
/// The range belongs to the caller, who holds no reference into it.
pub unsafe fn advise(at: NonNull<u8>, len: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the caller owns the range; what the advice does to its content is the caller's
    // business.
    zero(unsafe { libc::madvise(at.as_ptr().cast(), len, advice) })
}

/// # Safety
/// The range belongs to the caller, who does not use it in a way that `protection` forbids.
pub unsafe fn protect(at: NonNull<u8>, len: usize, protection: i32) -> io::Result<()> {
    // SAFETY: the caller owns the range.
    zero(unsafe { libc::mprotect(at.as_ptr().cast(), len, protection) })
}

/// Moves or resizes a mapping; with `to`, to that address in place of what is there.
///
/// # Safety
/// Both ranges belong to the caller, who holds no reference into them.
pub unsafe fn remap(
    at: NonNull<u8>,
    old: usize,
    new: usize,
    flags: i32,
    to: Option<NonNull<u8>>,
) -> io::Result<NonNull<u8>> {
    let to = to.map_or(std::ptr::null_mut(), NonNull::as_ptr);
    let flags = if to.is_null() { flags } else { flags | libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE };
    // SAFETY: the caller owns both ranges.
    checked(unsafe { libc::mremap(at.as_ptr().cast(), old, new, flags, to) })
}

/// The address of the `page`th page from `at`.
///
/// # Safety
/// It lies in the same mapping.
pub unsafe fn page(at: NonNull<u8>, page: usize) -> NonNull<u8> {
    // SAFETY: the caller vouches that the result stays in the mapping.
    unsafe { at.add(page * PAGE) }
}

fn checked(at: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))
}

fn zero(answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
