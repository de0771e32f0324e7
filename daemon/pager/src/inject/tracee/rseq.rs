//! Restartable sequences (rseq(2)).
//!
//! A thread that is stopped inside a restartable sequence must start it anew. The kernel would see
//! to that when the thread goes on. But the thread goes to our system call first, and the kernel
//! takes that for the sequence's end. So it is sent to the sequence's abort address by us.

use super::ptrace::ptrace;
use crate::kernel::process;

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// Where struct rseq has the address of the current sequence's descriptor.
const RSEQ_CS: u64 = 8;
/// What the kernel calls the least size of struct rseq that has it.
const LEAST_SIZE: u32 = 16;

/// struct ptrace_rseq_configuration.
#[repr(C)]
#[derive(Default)]
struct Configuration {
    area: u64,
    size: u32,
    signature: u32,
    flags: u32,
    pad: u32,
}

/// Where stopped thread `tid` is to go on that was stopped at `rip`, if not there.
pub fn abort_address(tid: i32, rip: u64) -> Option<u64> {
    let mut there = Configuration::default();
    let size = size_of::<Configuration>();
    ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, size, &raw mut there as usize).ok()?;
    if there.area == 0 || there.size < LEAST_SIZE {
        return None;
    }
    let descriptor_at = words::<1>(tid, there.area + RSEQ_CS)?[0];
    if descriptor_at == 0 {
        return None;
    }
    // struct rseq_cs: version and flags, start, length, abort address.
    let [_version, start, len, abort] = words(tid, descriptor_at)?;
    if rip.wrapping_sub(start) >= len {
        return None;
    }
    // As the kernel does, which kills a program whose sequences are not signed.
    let mut signature = [0u8; 4];
    process::read_memory(tid, abort.wrapping_sub(4), &mut signature).ok()?;
    (u32::from_le_bytes(signature) == there.signature).then_some(abort)
}

fn words<const COUNT: usize>(tid: i32, at: u64) -> Option<[u64; COUNT]> {
    let mut bytes = [[0u8; 8]; COUNT];
    process::read_memory(tid, at, bytes.as_flattened_mut()).ok()?;
    Some(bytes.map(u64::from_le_bytes))
}
