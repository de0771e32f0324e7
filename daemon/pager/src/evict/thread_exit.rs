//! What the kernel touches as a thread ends. Those pages must stay resident.
//!
//! An ending thread can't wait for a page any more. So if one of these pages is evicted, the
//! kernel's access fails in silence, and another thread waits for ever:
//! - The word that it clears to say that the thread has ended (`set_tid_address`,
//!   `CLONE_CHILD_CLEARTID`). `pthread_join` waits for it. In glibc it is in the thread's control
//!   block, in musl it is a lock that all threads share, elsewhere it may be anywhere.
//! - The thread's robust list, and the locks in it: who waits for one of these is told that its
//!   owner died.
//!
//! The kernel tells where a thread's robust list is. glibc keeps the word 16 bytes below, where it
//! holds the thread's TID. Any other thread is asked once, by `PR_GET_TID_ADDRESS`, which only the
//! thread itself can call: it is stopped for that (see [`tracer_process`]).
//!
//! The threads are gone through right before a batch of pages is moved. A thread that starts after
//! that may lose a page of its to the batch. A glibc control block is recognised in its bytes
//! ([`is_control_block_in`]) and put back at once. Any other page comes back when the next batch
//! begins.

use crate::inject::tracer_process;
use crate::kernel::{Mark, Mm, process};
use crate::page::PageIdx;
use annex_shared::page::PAGE_SIZE;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// In glibc, the TID is this far below the head of the robust list.
const GLIBC_TID_BELOW: u64 = 16;
/// Bytes of a robust list's head: the first entry, the distance from an entry to its futex word,
/// and the entry that is about to be added or removed.
const HEAD: usize = 24;
/// The kernel itself follows a list no further than this (`ROBUST_LIST_LIMIT`).
const LONGEST_LIST: usize = 2048;
/// In the address of an entry: its lock inherits priority.
const PI: u64 = 1;
/// A thread that could not be asked is asked again after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// What is known of the threads of an address space.
#[derive(Debug, Default)]
pub struct ThreadExits {
    threads: HashMap<i32, Thread>,
    lives: Option<Lives>,
}

/// Which processes live in the address space.
#[derive(Debug)]
struct Lives {
    /// First the one that it is known by.
    there: Vec<i32>,
    /// Children and members that do not.
    elsewhere: HashSet<i32>,
    looked: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    pid: i32,
    /// Of its folder in /proc: TIDs are used again.
    inode: u64,
    /// Of its robust list, or 0.
    head: u64,
    cleared: Cleared,
}

/// Where the kernel clears the TID.
#[derive(Clone, Copy, Debug)]
enum Cleared {
    /// 0: nowhere.
    At(u64),
    /// Not known; when the thread was asked last.
    Unknown(Option<Instant>),
}

impl ThreadExits {
    /// The processes that live in the space: the one that it is known by, and those that were made
    /// with `CLONE_VM`. Its children are looked at each time, members of its app that have no space
    /// of their own once in a while.
    pub fn processes(&mut self, (pid, mark): (i32, Mark), members: impl FnOnce() -> Vec<i32>) -> Vec<i32> {
        let is_fresh = |lives: &Lives| lives.looked.elapsed() < AGAIN && lives.there.first() == Some(&pid);
        let mut lives = self.lives.take().filter(is_fresh).unwrap_or_else(|| {
            let others = members().into_iter().filter(|other| *other != pid);
            let (mut there, elsewhere): (Vec<i32>, Vec<i32>) = others.partition(|other| mark.task_of(*other).is_some());
            there.insert(0, pid);
            Lives { there, elsewhere: elsewhere.into_iter().collect(), looked: Instant::now() }
        });
        for child in lives.there.clone().into_iter().flat_map(process::children) {
            if lives.there.contains(&child) || lives.elsewhere.contains(&child) {
                continue;
            }
            match mark.task_of(child) {
                Some(_) => lives.there.push(child),
                None => drop(lives.elsewhere.insert(child)),
            }
        }
        self.lives.insert(lives).there.clone()
    }

    /// The pages that the kernel will touch as threads of these processes end, which share their
    /// memory. `scratch`: 8 bytes in it that a thread may be told to write its answer to.
    /// `stub`: a process that lives there for certain.
    pub fn pages(&mut self, pids: &[i32], mm: &Mm, (stub, scratch): (i32, u64)) -> Vec<PageIdx> {
        let mut before = std::mem::take(&mut self.threads);
        let entries =
            |pid: &i32| process::thread_entries(*pid).into_iter().map(|entry| (*pid, entry)).collect::<Vec<_>>();
        for (pid, (tid, inode)) in pids.iter().flat_map(entries) {
            let Some(head) = robust_list(tid) else { continue };
            let known = before.remove(&tid).filter(|t| (t.inode, t.head) == (inode, head));
            let thread = known.unwrap_or_else(|| Thread { pid, inode, head, cleared: in_glibc(mm, tid, head) });
            self.threads.insert(tid, thread);
        }
        pids.iter().for_each(|pid| self.ask(*pid, stub, scratch));
        let mut pages = Vec::new();
        for thread in self.threads.values() {
            if let Cleared::At(word) = thread.cleared
                && word != 0
            {
                pages.push(PageIdx::of(word));
            }
            if thread.head != 0 {
                // Of glibc's control block also what is near.
                pages.extend([PageIdx::of(thread.head - 64), PageIdx::of(thread.head + 64)]);
                add_locks(mm, thread.head, &mut pages);
            }
        }
        pages
    }

    fn ask(&mut self, pid: i32, stub: i32, scratch: u64) {
        let is_due = |t: &Thread| match t.cleared {
            Cleared::At(_) => false,
            Cleared::Unknown(asked) => asked.is_none_or(|at| at.elapsed() > AGAIN),
        };
        let due: Vec<i32> =
            self.threads.iter().filter(|(_, t)| t.pid == pid && is_due(t)).map(|(tid, _)| *tid).collect();
        if due.is_empty() {
            return;
        }
        for (tid, answer) in tracer_process::ask_where_tids_are_cleared(pid, &due, (stub, scratch)) {
            let cleared = answer.map_or(Cleared::Unknown(Some(Instant::now())), Cleared::At);
            self.threads.entry(tid).and_modify(|thread| thread.cleared = cleared);
        }
    }
}

/// The head of a thread's robust list, 0 if it has none. `None`: it has ended.
fn robust_list(tid: i32) -> Option<u64> {
    let (mut head, mut len) = (0u64, 0usize);
    // SAFETY: the call writes the two words.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
    (result == 0).then_some(head)
}

/// What can be told without asking: glibc's threads by their TID beside the robust list. The
/// kernel's own have none to clear, and can't be asked.
fn in_glibc(mm: &Mm, tid: i32, head: u64) -> Cleared {
    if head == 0 && process::Stat::read(tid).is_some_and(|stat| stat.is_kernels) {
        return Cleared::At(0);
    }
    let mut there = [0; 4];
    let word = head.saturating_sub(GLIBC_TID_BELOW);
    let is_tid = head != 0
        && mm.read(word, &mut there).is_ok()
        && process::number_in_own_namespace(tid) == Some(i32::from_le_bytes(there));
    if is_tid { Cleared::At(word) } else { Cleared::Unknown(None) }
}

/// The pages of the locks in a robust list, as far as the list can be read: what is evicted of it
/// is added, and comes back.
fn add_locks(mm: &Mm, head: u64, pages: &mut Vec<PageIdx>) {
    let word = |bytes: &[u8], nth: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[nth * 8 + i]));
    let mut bytes = [0; HEAD];
    if mm.read(head, &mut bytes).is_err() {
        return;
    }
    let (first, offset, pending) = (word(&bytes, 0), word(&bytes, 1), word(&bytes, 2));
    let mut add = |entry: u64| pages.extend([entry, entry.wrapping_add(offset)].map(PageIdx::of));
    if pending & !PI != 0 {
        add(pending & !PI);
    }
    let mut entry = first & !PI;
    for _ in 0..LONGEST_LIST {
        if entry == head || entry == 0 {
            return;
        }
        add(entry);
        let mut next = [0; 8];
        if mm.read(entry, &mut next).is_err() {
            return;
        }
        entry = u64::from_le_bytes(next) & !PI;
    }
}

/// True if a control block starts in this page, at some multiple of 64 bytes: first its own
/// address, then that of the thread's table of variables; then (glibc) its own address again, or
/// (musl) those of the threads beside it. (The head of an empty list holds its own address too,
/// twice as a rule. Its page is not to stay for that.)
pub fn is_control_block_in(page: PageIdx, bytes: &[u8]) -> bool {
    let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let is_address = |word: u64| word != 0 && word.is_multiple_of(8);
    (0..PAGE_SIZE).step_by(64).any(|at| {
        let own = page.addr() + at as u64;
        let [first, variables, third, fourth] = [0, 8, 16, 24].map(|n| word(at + n));
        let is_known = third == own || (is_address(third) && is_address(fourth));
        first == own && is_address(variables) && variables != own && is_known
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> (i32, Mm) {
        let pid = std::process::id() as i32;
        (pid, Mm::open(pid).unwrap())
    }

    #[test]
    fn the_head_of_a_list_is_no_control_block() {
        let page = PageIdx::of(0x7000_0000_0000);
        let with = |words: [u64; 4]| {
            let mut bytes = vec![0u8; PAGE_SIZE];
            bytes[64..96].copy_from_slice(&words.map(u64::to_le_bytes).concat());
            bytes
        };
        let own = page.addr() + 64;
        let (variables, thread) = (own + 4096, own + 8192);
        assert!(is_control_block_in(page, &with([own, variables, own, 1])), "glibc's");
        assert!(is_control_block_in(page, &with([own, variables, thread, thread])), "musl's");
        assert!(!is_control_block_in(page, &with([own, own, thread, thread])), "an empty list");
        assert!(!is_control_block_in(page, &with([own, 0, 0, 0])), "a pointer to itself");
    }

    #[test]
    fn a_running_threads_own_control_block_is_found_both_ways() {
        let found = std::thread::spawn(|| {
            let block: u64;
            // SAFETY: reads the first word of the thread's own control block, which is its address.
            unsafe { std::arch::asm!("mov {}, fs:0", out(reg) block) };
            let page = PageIdx::of(block);
            let (pid, mm) = me();
            let mut bytes = vec![0u8; PAGE_SIZE];
            mm.read(page.addr(), &mut bytes).unwrap();
            // SAFETY: the call takes nothing.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            let mut exits = ThreadExits::default();
            let is_listed = exits.pages(&[pid], &mm, (pid, 0)).contains(&page);
            let is_of_glibc = matches!(exits.threads[&tid].cleared, Cleared::At(word) if word != 0);
            (is_listed, is_of_glibc, is_control_block_in(page, &bytes))
        });
        assert_eq!(found.join().unwrap(), (true, true, true));
        assert!(!is_control_block_in(PageIdx(7), &vec![0u8; PAGE_SIZE]));
    }

    #[test]
    fn the_locks_of_a_robust_list_are_found_to_its_end() {
        // Words: a list head, and three entries in pages of their own; the last one leads back.
        let words = vec![0u64; 4 * 512 + 512];
        let base = (words.as_ptr().addr() as u64).next_multiple_of(PAGE_SIZE as u64);
        let mut words = words;
        let at = |page: u64| base + page * PAGE_SIZE as u64;
        let first = ((base - words.as_ptr().addr() as u64) / 8) as usize;
        words[first] = at(1) | PI;
        words[first + 1] = 0u64.wrapping_sub(32);
        words[first + 2] = at(3) + 64;
        words[first + 512] = at(2);
        words[first + 1024] = at(0);
        let mut pages = Vec::new();
        add_locks(&me().1, at(0), &mut pages);
        pages.sort_unstable();
        pages.dedup();
        // An entry at the start of a page has its futex word in the page before.
        assert_eq!(pages, [at(0), at(1), at(2), at(3)].map(PageIdx::of));
        drop(words);
    }

    #[test]
    fn a_list_that_leads_in_a_circle_comes_to_an_end() {
        let mut words = Box::new([0u64; 4]);
        let head = words.as_ptr().addr() as u64;
        words[0] = head + 24;
        words[3] = head + 24;
        let mut pages = Vec::new();
        add_locks(&me().1, head, &mut pages);
        assert_eq!(pages.len(), 2 * LONGEST_LIST);
    }
}
