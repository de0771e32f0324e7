//! The processes of this host, and what keeps one from being looked at or taken.

use annex_shared::api::format_bytes;
use annex_shared::mapping::NEVER_PAGED;
use annex_shared::printable::printable;
use std::fs;
use std::io::Read;

/// A process with memory of its own. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Clock ticks since boot: with the PID it names a process for good.
    pub started: u64,
    /// Printable.
    pub name: String,
    pub uid: u32,
    /// Who traces it; 0: nobody.
    pub tracer: i32,
    pub rss: u64,
    /// Anonymous memory resident.
    pub anonymous: u64,
    /// The text of /proc/PID/cgroup.
    pub cgroup: String,
}

/// Why a program is not in the table, or a process not in its sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// annexd has it: the name of the app, unless annexd could not be asked.
    Attached(Option<String>),
    /// Its files in /proc are its user's, or root's.
    NotAllowed,
    /// A part of annex, the host's first process, or what annexd descends from.
    Exempt,
    Traced(i32),
    ThirtyTwoBit,
    Userfaultfd,
    /// Clearing its accessed bits would hold it up too long: bytes in small pages.
    TooLarge(u64),
    Ended,
    Unreadable(String),
}

impl LeftOut {
    /// A short name, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            LeftOut::Attached(_) => "attached",
            LeftOut::NotAllowed => "not_allowed",
            LeftOut::Exempt => "exempt",
            LeftOut::Traced(_) => "traced",
            LeftOut::ThirtyTwoBit => "32_bit",
            LeftOut::Userfaultfd => "userfaultfd",
            LeftOut::TooLarge(_) => "too_large",
            LeftOut::Ended => "ended",
            LeftOut::Unreadable(_) => "unreadable",
        }
    }

    pub fn why(&self) -> String {
        match self {
            LeftOut::Attached(Some(app)) => format!("is attached already, as {app} (annex apps shows it)"),
            LeftOut::Attached(None) => "is attached already (annex apps shows it)".into(),
            LeftOut::NotAllowed => "belongs to another user: ask as root".into(),
            LeftOut::Exempt => "is never paged: a part of annex, the host's first process, or above annexd".into(),
            LeftOut::Traced(tracer) => format!("can't be taken while process {tracer} traces it"),
            LeftOut::ThirtyTwoBit => "can't be taken: a 32-bit program".into(),
            LeftOut::Userfaultfd => "can't be taken: it uses userfaultfd itself".into(),
            LeftOut::TooLarge(bytes) => format!(
                "has {} in small pages: looking would hold up its page faults for a second or more; name its PID to \
                 look all the same",
                format_bytes(*bytes)
            ),
            LeftOut::Ended => "ended meanwhile".into(),
            LeftOut::Unreadable(why) => format!("can't be looked at: {why}"),
        }
    }
}

/// All processes with memory of their own, as far as this user sees them.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(Process::read).collect()
}

impl Process {
    pub fn read(pid: i32) -> Option<Process> {
        let status = text(pid, "status")?;
        let cgroup = text(pid, "cgroup").unwrap_or_default();
        Some(Process { pid, started: started(pid)?, cgroup, ..Process::parse(&status)? })
    }

    /// Of /proc/PID/status; `None` for kernel threads and zombies, which have no memory.
    fn parse(status: &str) -> Option<Process> {
        let mut found = Process::default();
        let mut has_memory = false;
        for line in status.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            let kib = || value.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10;
            match key {
                "Name" => found.name = printable(value).into_owned(),
                "PPid" => found.parent = value.parse().ok()?,
                "TracerPid" => found.tracer = value.parse().unwrap_or(0),
                "Uid" => found.uid = value.split_ascii_whitespace().next()?.parse().ok()?,
                "VmRSS" => found.rss = kib(),
                "RssAnon" => (found.anonymous, has_memory) = (kib(), true),
                _ => {}
            }
        }
        has_memory.then_some(found)
    }

    /// The process of that number is still this one.
    pub fn is_there(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Whether it is a part of annex or the host's first process.
    pub fn is_exempt(&self) -> bool {
        self.pid == 1 || NEVER_PAGED.contains(&self.name.as_str())
    }

    pub fn is_32_bit(&self) -> bool {
        let mut header = [0u8; 5];
        let read = fs::File::open(format!("/proc/{}/exe", self.pid)).and_then(|mut file| file.read_exact(&mut header));
        read.is_ok() && header[..4] == *b"\x7fELF" && header[4] != 2
    }
}

/// When a process was started, in clock ticks since boot.
fn started(pid: i32) -> Option<u64> {
    let stat = text(pid, "stat")?;
    // The name, in brackets, may hold brackets and blanks. Field 22 of proc_pid_stat(5); 3 is the
    // first behind the name.
    let state = stat.get(stat.rfind(')')? + 1..)?.trim_start();
    if state.starts_with(['Z', 'X']) {
        return None;
    }
    state.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Names need not be UTF-8.
fn text(pid: i32, file: &str) -> Option<String> {
    fs::read(format!("/proc/{pid}/{file}")).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_as_the_kernel_writes_it() {
        let own = Process::read(std::process::id() as i32).expect("this one");
        assert!(own.is_there() && !own.is_exempt() && !own.is_32_bit(), "{own:?}");
        assert!(own.rss > own.anonymous && own.anonymous > 0 && own.started > 0, "{own:?}");
        assert_eq!(own.uid, nix::unistd::getuid().as_raw());
        let other = Process { started: own.started + 1, ..own };
        assert!(!other.is_there(), "another process had this number");
    }

    #[test]
    fn a_kernel_thread_has_no_memory() {
        assert_eq!(Process::parse("Name:\tkthreadd\nPPid:\t0\nUid:\t0\t0\t0\t0\n"), None);
        let escape = "Name:\ta\x1b[2Jb\nPPid:\t7\nUid:\t5\t0\t0\t0\nVmRSS:\t  20 kB\nRssAnon:\t  12 kB\n";
        let found = Process::parse(escape).expect("it has memory");
        assert_eq!((found.name.as_str(), found.parent, found.uid), ("a\\u{1b}[2Jb", 7, 5));
        assert_eq!((found.rss, found.anonymous), (20 << 10, 12 << 10));
    }
}
