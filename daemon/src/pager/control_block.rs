//! Pages with a thread's control block (glibc's and musl's `struct pthread`), which must stay resident.
//!
//! When a thread exits, the kernel clears its TID in the control block and wakes whoever joins it, at a point where it can't wait
//! for a page any more: if the page is evicted the write fails in silence, and the join never returns.
//!
//! Two ways to know them. Each thread's robust list, which the kernel tells, has its head in the control block; the live threads are asked right before
//! a batch of pages is moved. And a control block begins with its own address, so one that was moved after all (its thread is younger than the
//! question) is recognised in its bytes, put back at once, and kept from then on.

use super::process;
use super::table::PageIdx;
use annex_shared::page::PAGE_SIZE;

/// The pages of all live threads' control blocks.
pub fn of_threads(pid: i32) -> Vec<PageIdx> {
    let mut pages = Vec::new();
    for tid in process::threads(pid) {
        let (mut head, mut len) = (0u64, 0usize);
        // SAFETY: the call writes the two words.
        let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
        if result == 0 && head != 0 {
            // glibc keeps the TID 16 bytes below the list head, both in struct pthread.
            pages.extend([PageIdx::of(head - 64), PageIdx::of(head + 64)]);
        }
    }
    pages
}

/// True if a control block starts in this page: at some multiple of 64 bytes, its own address, there and (glibc) 16 bytes on, or (musl) there.
pub fn is_in(page: PageIdx, bytes: &[u8]) -> bool {
    let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    (0..PAGE_SIZE).step_by(64).any(|at| word(at) == Some(page.addr() + at as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_threads_own_control_block_is_found_both_ways() {
        let found = std::thread::spawn(|| {
            let block: u64;
            // SAFETY: reads the first word of the thread's own control block, which is its address.
            unsafe { std::arch::asm!("mov {}, fs:0", out(reg) block) };
            let page = PageIdx::of(block);
            let mut bytes = vec![0u8; PAGE_SIZE];
            process::read_memory(std::process::id() as i32, page.addr(), &mut bytes).unwrap();
            let listed = of_threads(std::process::id() as i32);
            (listed.contains(&page), is_in(page, &bytes))
        });
        assert_eq!(found.join().unwrap(), (true, true));
        assert!(!is_in(PageIdx(7), &vec![0u8; PAGE_SIZE]));
    }
}
