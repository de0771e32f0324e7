//! System calls of the fault workers for each page that comes over verbs, counted by strace, while
//! READs take longer than a worker polls for them.

use super::verbs::{VERBS, over};
use crate::vm::lab::Lab;
use crate::vm::load::Load;
use annex_shared::transport::Transport;
use anyhow::ensure;
use std::collections::BTreeMap;

/// Faults that are to be served before it is counted.
const WARM: u64 = 300;
/// Pages that are to be installed while it is.
const PAGES: u64 = 300;
/// What it takes is seven: two sleeps, reading the fault, posting the READ, arming the completion
/// queue and fetching its event, installing the page; and a timer now and then. Soft-RoCE's post
/// and arm are system calls, those of hardware are not. An endpoint that is armed and looked at
/// anew before each sleep makes it 14.
const AT_MOST: f64 = 10.0;

/// A worker arms nothing that is armed, and looks for no event that is not there.
pub fn per_page(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(2, &VERBS)?;
    let client = lab.client()?;
    let load = Load::reads(client, 16)?;
    lab.wait_faults("load", WARM)?;
    ensure!(over(&lab.status()?, Transport::Verbs) == 2, "{:?}", lab.status()?.donors);
    client.sh("pid=$(systemctl show -P MainPID annexd)
         workers=$(grep -l annex-fault /proc/$pid/task/*/comm | cut -d/ -f5 | sed 's/^/-p /')
         systemd-run --quiet --unit=load-strace -p KillSignal=SIGINT \
         strace -qq -y -e signal=none -o /run/load.strace $workers")?;
    lab.wait_faults("load", PAGES)?;
    client.sh("systemctl stop load-strace")?;
    let log = client.sh("cat /run/load.strace")?;
    load.kill()?;
    let calls = Calls::of(&log);
    for (call, times) in &calls.by_kind {
        println!("{:6.2} {call}", *times as f64 / calls.pages as f64);
    }
    let per_page = calls.all() as f64 / calls.pages as f64;
    println!("{per_page:.2} system calls of the fault workers per page, over {} pages", calls.pages);
    ensure!(calls.pages >= PAGES / 2, "too few pages were installed while it was counted: {}", calls.pages);
    ensure!(per_page <= AT_MOST, "{per_page:.2} system calls per page, of which {AT_MOST} are needed");
    Ok(())
}

struct Calls {
    /// By name, and what kind of file they are about.
    by_kind: BTreeMap<String, u64>,
    pages: u64,
}

impl Calls {
    fn of(log: &str) -> Calls {
        let mut calls = Calls { by_kind: BTreeMap::new(), pages: 0 };
        for line in log.lines().filter_map(call) {
            calls.pages += u64::from(line.contains("UFFDIO_COPY"));
            *calls.by_kind.entry(kind(line)).or_default() += 1;
        }
        calls
    }

    fn all(&self) -> u64 {
        self.by_kind.values().sum()
    }
}

/// What a line of strace's says after the thread's number, if it is a call's beginning.
fn call(line: &str) -> Option<&str> {
    let said = line.split_once(' ').map(|(_, said)| said.trim_start())?;
    said.starts_with(|c: char| c.is_ascii_lowercase()).then_some(said)
}

/// `read(12<anon_inode:[userfaultfd]>, …` is of the kind `read [userfaultfd]`.
fn kind(call: &str) -> String {
    let (name, rest) = call.split_once('(').unwrap_or((call, ""));
    let file = rest.split_once('<').and_then(|(number, file)| {
        let is_first = number.chars().all(|c| c.is_ascii_digit());
        file.split_once('>').filter(|_| is_first).map(|(file, _)| file.rsplit(['/', ':']).next().unwrap_or(file))
    });
    let what = rest.split(", ").nth(1).filter(|_| name == "ioctl").unwrap_or_default();
    format!("{name} {} {what}", file.unwrap_or_default()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_once_and_by_what_they_are_about() {
        let log = "\
412 epoll_wait(9<anon_inode:[eventpoll]>,  <unfinished ...>
411 read(12<anon_inode:[userfaultfd]>, \"\\22\", 256) = 32
412 <... epoll_wait resumed>[{events=EPOLLIN}], 32, -1) = 1
411 write(20</dev/infiniband/uverbs0>, \"\\21\", 32) = 32
411 ioctl(12<anon_inode:[userfaultfd]>, UFFDIO_COPY, {dst=0x7f}) = 0
411 sched_yield() = 0
411 +++ exited with 0 +++
";
        let calls = Calls::of(log);
        let kinds: Vec<_> = calls.by_kind.keys().map(String::as_str).collect();
        let wanted = [
            "epoll_wait [eventpoll]",
            "ioctl [userfaultfd] UFFDIO_COPY",
            "read [userfaultfd]",
            "sched_yield",
            "write uverbs0",
        ];
        assert_eq!((kinds.as_slice(), calls.all(), calls.pages), (wanted.as_slice(), 5, 1));
    }
}
