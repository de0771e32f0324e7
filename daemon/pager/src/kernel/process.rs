//! What /proc says about a process. Everything here is a snapshot.

use annex_shared::mapping;
use annex_shared::printable::printable;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::time::Duration;

pub use annex_host::pidfd::{pidfd_getfd, pidfd_kill, pidfd_open};
pub use annex_shared::mapping::{HAS_PAGES, Mapping};
pub use annex_shared::process::same_address_space;

/// Memory mappings, at least one: a task that has just ended shows none, which says nothing of the
/// memory that it shared.
pub fn maps(pid: i32) -> io::Result<Vec<Mapping>> {
    some(read(format!("/proc/{pid}/maps"))?.lines().filter_map(Mapping::parse).collect())
}

fn some<T>(mappings: Vec<T>) -> io::Result<Vec<T>> {
    if mappings.is_empty() { Err(io::Error::other("it shows no mapping")) } else { Ok(mappings) }
}

/// [`maps`] with the kernel's two-letter flags (`VmFlags` of smaps), and [`HAS_PAGES`].
pub fn flagged_maps(pid: i32) -> io::Result<Vec<(Mapping, Vec<[u8; 2]>)>> {
    let text = read(format!("/proc/{pid}/smaps"))?;
    some(mapping::smaps(&text).into_iter().map(|entry| (entry.mapping, entry.flags)).collect())
}

/// The fields of /proc/PID/stat that the pager looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name, printable.
    pub comm: String,
    pub state: char,
    pub parent: i32,
    pub threads: u32,
    /// Clock ticks since boot: with the PID it names a process for good.
    pub started: u64,
    /// User plus system time in clock ticks.
    pub ticks: u64,
    /// The CPU it last ran on.
    pub cpu: u32,
    /// Kernel threads have none.
    pub has_memory: bool,
    /// A thread that the kernel has made for itself: io_uring's are among the program's.
    pub is_kernels: bool,
}

/// Flags of a task, from the kernel's `sched.h`.
const PF_IO_WORKER: u64 = 0x10;
const PF_USER_WORKER: u64 = 0x4000;
const PF_KTHREAD: u64 = 0x20_0000;

impl Stat {
    pub fn read(pid: i32) -> Option<Stat> {
        Stat::parse(&read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Of one of its threads.
    pub fn read_thread(pid: i32, thread: i32) -> Option<Stat> {
        Stat::parse(&read(format!("/proc/{pid}/task/{thread}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        let (open, close) = (text.find('(')?, text.rfind(')')?);
        let rest: Vec<&str> = text.get(close + 2..)?.split_ascii_whitespace().collect();
        // rest[0] is field 3 of proc_pid_stat(5).
        let number = |field: usize| rest.get(field - 3)?.parse::<u64>().ok();
        Some(Stat {
            comm: printable(text.get(open + 1..close)?).into_owned(),
            state: rest.first()?.chars().next()?,
            parent: number(4)? as i32,
            ticks: number(14)? + number(15)?,
            threads: number(20)? as u32,
            started: number(22)?,
            has_memory: number(23)? != 0,
            is_kernels: number(9)? & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD) != 0,
            cpu: number(39)? as u32,
        })
    }

    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Fields of /proc/PID/status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Real, effective, saved.
    pub uids: [u32; 3],
    pub gids: [u32; 3],
    /// It has capabilities of the host's, not only in a user namespace of its own.
    pub is_capable: bool,
    pub tracer: i32,
    pub seccomp: bool,
}

pub fn identity(pid: i32) -> io::Result<Identity> {
    let text = read(format!("/proc/{pid}/status"))?;
    let mut found = Identity::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        match key {
            "Uid" => found.uids = ids(value),
            "Gid" => found.gids = ids(value),
            "CapPrm" => found.is_capable = value.trim() != "0000000000000000" && is_in_our_user_namespace(pid),
            "TracerPid" => found.tracer = value.trim().parse().unwrap_or(0),
            "Seccomp" => found.seccomp = value.trim() != "0",
            _ => {}
        }
    }
    Ok(found)
}

/// Whether a process, or this thread of one, has a seccomp filter.
pub fn has_seccomp(tid: i32) -> bool {
    identity(tid).is_ok_and(|identity| identity.seccomp)
}

/// Whether the next process that this thread makes is the first of a new PID namespace
/// (`unshare(CLONE_NEWPID)`). Until then the kernel shows none.
pub fn begins_a_namespace(tid: i32) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{tid}/ns/{of}"));
    namespace("pid").is_ok() && namespace("pid_for_children").is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// Whether the processes that this one makes are in another PID namespace than it is itself
/// (`unshare(CLONE_NEWPID)`, `setns`).
pub fn makes_processes_elsewhere(pid: i32) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{pid}/ns/{of}")).ok();
    namespace("pid") != namespace("pid_for_children")
}

/// Whether it is scheduled by deadline: such a thread can't make another process.
pub fn has_deadlines(pid: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::sched_getscheduler(pid) & !libc::SCHED_RESET_ON_FORK == libc::SCHED_DEADLINE }
}

fn is_in_our_user_namespace(pid: i32) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    namespace(&pid.to_string()) == namespace("self")
}

fn ids(text: &str) -> [u32; 3] {
    let mut words = text.split_ascii_whitespace();
    [(); 3].map(|()| words.next().and_then(|id| id.parse().ok()).unwrap_or(u32::MAX))
}

impl Identity {
    /// The user that it belongs to wholly: a program with set-user-ID, set-group-ID or capabilities
    /// has rights beside that user's.
    pub fn owner(&self) -> Option<u32> {
        let is_one = |ids: [u32; 3]| ids.iter().all(|id| *id == ids[0]);
        (is_one(self.uids) && is_one(self.gids) && !self.is_capable).then_some(self.uids[0])
    }
}

/// The addresses of a process's arguments and of its environment, from and to, which the kernel
/// reads for others.
pub fn title(pid: i32) -> Option<[(u64, u64); 2]> {
    let text = read(format!("/proc/{pid}/stat")).ok()?;
    let rest: Vec<&str> = text.get(text.rfind(')')? + 2..)?.split_ascii_whitespace().collect();
    // rest[0] is field 3 of proc_pid_stat(5).
    let field = |number: usize| rest.get(number - 3)?.parse::<u64>().ok();
    Some([(field(48)?, field(49)?), (field(50)?, field(51)?)])
}

/// A task of the process that has its memory: the main thread or, once that has ended, another.
pub fn living(pid: i32) -> Option<i32> {
    let lives = |tid: &i32| Stat::read(*tid).is_some_and(|stat| !stat.is_zombie() && stat.has_memory);
    std::iter::once(pid).chain(threads(pid)).find(lives)
}

/// Whether the process behind a pidfd has ended: with its last thread, not with its main one.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0
}

/// Anonymous pages resident now, from /proc/PID/statm; `None` if the process is gone.
pub fn resident_pages(pid: i32) -> Option<u64> {
    let of_task = |task: i32| {
        let text = fs::read_to_string(format!("/proc/{task}/statm")).ok()?;
        let mut fields = text.split_ascii_whitespace().skip(1).map(|f| f.parse::<u64>().ok());
        let (resident, shared) = (fields.next()??, fields.next()??);
        Some(resident.saturating_sub(shared))
    };
    // A main thread that has ended shows nothing of the memory that the others go on with.
    match of_task(pid)? {
        0 => Some(living(pid).filter(|task| *task != pid).and_then(of_task).unwrap_or(0)),
        resident => Some(resident),
    }
}

/// Pages of shared memory (memfds, /dev/shm, System V) that it has resident; 0 if it is gone.
pub fn shared_pages(pid: i32) -> u64 {
    let text = read(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).map_or(0, |kb| kb / 4)
}

/// Anonymous memory in pages with shared copy-on-write pages divided among their users (Pss_Anon).
/// Walks the page tables: dear.
pub fn proportional_pages(pid: i32) -> Option<u64> {
    let task = living(pid)?;
    let text = fs::read_to_string(format!("/proc/{task}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Pss_Anon:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? / 4)
}

/// All PIDs, with their parents.
pub fn processes() -> Vec<(i32, Stat)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, Stat::read(pid)?))).collect()
}

/// The PID given out last on this host: while it stands still there is no new process.
pub fn last_pid() -> Option<u64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().last()?.parse().ok()
}

/// Thread IDs of a process.
pub fn threads(pid: i32) -> Vec<i32> {
    thread_entries(pid).into_iter().map(|(tid, _)| tid).collect()
}

/// Thread IDs of a process, each with a number that another thread with the same ID does not have.
pub fn thread_entries(pid: i32) -> Vec<(i32, u64)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, e.ino()))).collect()
}

/// The living children of a process, whichever of its threads has made them. None where the kernel
/// does not tell (`CONFIG_PROC_CHILDREN`).
pub fn children(pid: i32) -> Vec<i32> {
    let of = |tid: i32| read(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let texts: String = threads(pid).into_iter().map(of).collect();
    texts.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// The PIDs that a process, or a thread, has in its PID namespaces: first ours, last its own.
pub fn numbers(pid: i32) -> Vec<i32> {
    let text = read(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The PID that a process has in its own PID namespace.
pub fn number_in_own_namespace(pid: i32) -> Option<i32> {
    numbers(pid).last().copied()
}

/// The PID that one process has for another.
pub fn number_as_seen_by(seer: i32, seen: i32) -> Option<i32> {
    let depth = numbers(seer).len().checked_sub(1)?;
    numbers(seen).get(depth).copied()
}

pub const UNLIMITED: libc::rlimit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
/// Descriptors that a stub needs at the most.
const DESCRIPTORS: libc::rlim_t = 64;

fn limit(pid: i32, resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut found = UNLIMITED;
    // SAFETY: a null new limit makes this a query, and the old one is written to a live object of
    // its type.
    (unsafe { libc::prlimit(pid, resource, std::ptr::null(), &mut found) } == 0).then_some(found)
}

/// Sets a process's resource limit; what it was, if that could be done.
pub fn set_limit(pid: i32, resource: libc::__rlimit_resource_t, limit: libc::rlimit) -> Option<libc::rlimit> {
    let mut before = UNLIMITED;
    // SAFETY: reads one struct and writes the other.
    let set = unsafe { libc::prlimit(pid, resource, &limit, &mut before) };
    (set == 0).then_some(before)
}

/// Frees a stub, which is a process of its own, of the limits that it has from its program.
/// Where annexd has no CAP_SYS_RESOURCE, hard limits stay: the call that meets one then fails.
pub fn lift_limits(stub: i32) {
    let unlimited = [
        libc::RLIMIT_AS,
        libc::RLIMIT_DATA,
        libc::RLIMIT_MEMLOCK,
        libc::RLIMIT_NPROC,
        libc::RLIMIT_CPU,
        libc::RLIMIT_RTTIME,
    ];
    for resource in unlimited {
        set_limit(stub, resource, UNLIMITED);
    }
    if limit(stub, libc::RLIMIT_NOFILE).is_some_and(|limit| limit.rlim_cur < DESCRIPTORS) {
        set_limit(stub, libc::RLIMIT_NOFILE, libc::rlimit { rlim_cur: DESCRIPTORS, rlim_max: DESCRIPTORS });
    }
}

/// The hard limit of a process's CPU time under a real-time policy without a system call, in
/// microseconds.
pub fn real_time_limit(pid: i32) -> Option<u64> {
    limit(pid, libc::RLIMIT_RTTIME).map(|limit| limit.rlim_max)
}

/// True if the process runs a 32-bit (or x32) program.
pub fn is_32_bit(pid: i32) -> bool {
    let mut header = [0u8; 5];
    let read = fs::File::open(format!("/proc/{pid}/exe")).and_then(|mut f| io::Read::read_exact(&mut f, &mut header));
    read.is_ok() && header[..4] == *b"\x7fELF" && header[4] != 2
}

/// True if two processes' descriptors are of one open file.
pub fn same_file((a, fd_a): (i32, RawFd), (b, fd_b): (i32, RawFd)) -> Option<bool> {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: kcmp takes numbers only.
    match Errno::result(unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_FILE, fd_a as u64, fd_b as u64) }) {
        Ok(order) => Some(order == 0),
        Err(_) => None,
    }
}

/// The time the calling thread has had on a CPU.
pub fn own_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Has the calling thread run on one CPU.
pub fn stay_on(cpu: usize) {
    keep_on(0, cpu);
}

/// Has a thread (0: the calling one) run on one CPU. False: it does not.
pub fn keep_on(thread: i32, cpu: usize) -> bool {
    let mut set = CpuSet::new();
    let kept = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(thread), &set));
    if let Err(error) = kept {
        // Gone, or outside of what its cgroup may use.
        tracing::debug!(thread, cpu, %error, "a thread runs unpinned");
    }
    kept.is_ok()
}

/// Has a thread run on the CPUs that this process may use, but for one; on all of them if no other
/// is left.
pub fn keep_off(thread: i32, cpu: Option<usize>) {
    let all = sched_getaffinity(Pid::from_raw(std::process::id() as i32));
    let moved = all.and_then(|all| {
        let mut rest = all;
        cpu.map_or(Ok(()), |cpu| rest.unset(cpu))?;
        let none = (0..CpuSet::count()).all(|cpu| !rest.is_set(cpu).unwrap_or(false));
        sched_setaffinity(Pid::from_raw(thread), if none { &all } else { &rest })
    });
    if let Err(error) = moved {
        // Gone, or confined to other CPUs by its cgroup.
        tracing::debug!(thread, %error, "a thread stays on its CPUs");
    }
}

/// Reads all of `into` from the process's memory at `addr`. Not by process_vm_readv: it pins what
/// it reads, and a page that a fork left shared becomes a copy by that, which the kernel takes for
/// clean (see [`Stub::populate`](crate::inject::stub::Stub::populate)).
pub fn read_memory(pid: i32, addr: u64, into: &mut [u8]) -> io::Result<()> {
    fs::File::open(format!("/proc/{pid}/mem"))?.read_exact_at(into, addr)
}

/// A file of /proc in which there are names: those of programs, threads and files need not be
/// UTF-8.
fn read(path: String) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Where a thread is in the kernel, on one line.
pub fn where_in_kernel(tid: i32) -> String {
    let read = |name| fs::read_to_string(format!("/proc/{tid}/{name}")).unwrap_or_default();
    let state = Stat::read(tid).map_or('?', |stat| stat.state);
    format!("state {state}, {} {}", read("wchan"), read("stack").replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_rights_of_others_is_no_users_wholly() {
        let plain = Identity { uids: [7; 3], gids: [9; 3], ..Identity::default() };
        assert_eq!(plain.owner(), Some(7));
        assert_eq!(Identity { uids: [7, 0, 0], ..plain.clone() }.owner(), None);
        assert_eq!(Identity { uids: [7, 7, 0], ..plain.clone() }.owner(), None);
        assert_eq!(Identity { gids: [9, 4, 4], ..plain.clone() }.owner(), None);
        assert_eq!(Identity { is_capable: true, ..plain }.owner(), None);
    }

    /// Such a program was taken for one that is not there.
    #[test]
    fn a_name_that_is_no_utf8_hides_nothing() {
        let (pid, thread) = (std::process::id() as i32, nix::unistd::gettid().as_raw());
        fs::write(format!("/proc/self/task/{thread}/comm"), b"gr\xfc\xdfe").unwrap();
        assert_eq!(Stat::read_thread(pid, thread).unwrap().comm, "gr\u{fffd}\u{fffd}e");
    }

    #[test]
    fn stat_survives_any_command_name() {
        let text = fs::read_to_string("/proc/self/stat").unwrap();
        let open = text.find('(').unwrap();
        let close = text.rfind(')').unwrap();
        let odd = format!("{}(a) R 1 ({}", &text[..open], &text[close..]);
        assert_eq!(Stat::parse(&odd).unwrap().comm, "a) R 1 (");
        let hostile = format!("{}(a\x1b[2J\u{202e}{}", &text[..open], &text[close..]);
        assert_eq!(Stat::parse(&hostile).unwrap().comm, r"a\u{1b}[2J\u{202e}");
        assert_eq!(Stat::parse(&odd).unwrap().parent, Stat::parse(&text).unwrap().parent);
    }
}
