//! stress-ng: every stressor of six classes, one at a time, verifying what it does.
//! <https://github.com/ColinIanKing/stress-ng>

use crate::programs::program::{Ended, Program, Suite, Verdict, Verdicts, tail, unprivileged};
use anyhow::{Context, ensure};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const CLASSES: [&str; 6] = ["memory", "vm", "os", "scheduler", "filesystem", "network"];

/// Seconds that a stressor works.
const SECONDS: u32 = 1;

/// The most that one may take natively: some look at their time rarely.
const LIMIT: Duration = Duration::from_secs(60);

/// Exit codes of stress-ng for what a machine lacks.
const NO_RESOURCE: i32 = 3;
const NOT_IMPLEMENTED: i32 = 4;

/// What is left out, and why. All run as nobody, in a second; what needs root says so itself and
/// is skipped.
const LEFT_OUT: &[(&str, &[&str])] = &[
    ("takes as much memory as the machine has", &["dev-shm", "oom-pipe", "resources", "mmapfork", "vforkmany"]),
    ("touches swap", &["swap", "pageswap"]),
    ("has the kernel load modules", &["af-alg", "dccp", "sctp", "binderfs", "tun"]),
    ("mounts", &["bind-mount", "umount", "ramfs"]),
    (
        "needs hardware or touches it",
        &["bad-ioctl", "cpu-online", "dev", "efivar", "kvm", "memhotplug", "pci", "physpage", "sysfs"],
    ),
    ("sets clocks", &["clock", "rtc"]),
    ("ends or resets machines", &["reboot", "watchdog"]),
    ("slows all CPUs down, or has one for itself", &["lockbus", "softlockup", "cyclic"]),
    ("runs random instructions, never the same twice", &["opcode"]),
    ("needs a library of the caller's", &["plugin"]),
];

/// What needs a bound on its address space: it goes on until it is refused.
const GREEDY: &[&str] = &["bigheap", "brk", "env", "malloc", "mmapmany", "remap", "stack", "zombie"];

/// What only root may do, and what harms nobody.
const AS_ROOT: &[&str] = &["userfaultfd"];

/// Sizes; each is given if this stress-ng has it.
const SIZES: &[(&str, &str)] = &[
    ("--vm-bytes", "64M"),
    ("--vm-rw-bytes", "32M"),
    ("--vm-splice-bytes", "16M"),
    ("--mmap-bytes", "64M"),
    ("--malloc-bytes", "64M"),
    ("--memfd-bytes", "32M"),
    ("--memfd-fds", "16"),
    ("--memrate-bytes", "32M"),
    ("--mmaphuge-mmaps", "16"),
    ("--mremap-bytes", "32M"),
    ("--msync-bytes", "16M"),
    ("--shm-bytes", "8M"),
    ("--shm-objs", "8"),
    ("--shm-segs", "8"),
    ("--shm-sysv-bytes", "8M"),
    ("--shm-sysv-segs", "4"),
    ("--userfaultfd-bytes", "16M"),
    ("--pagemove-bytes", "16M"),
    ("--copy-file-bytes", "128M"),
    ("--fallocate-bytes", "16M"),
    ("--fiemap-bytes", "16M"),
    ("--hdd-bytes", "16M"),
    ("--iomix-bytes", "16M"),
    ("--readahead-bytes", "16M"),
    ("--revio-bytes", "16M"),
    ("--seek-size", "16M"),
    ("--sync-file-bytes", "16M"),
    ("--forkheavy-procs", "128"),
    ("--loadavg-max", "64"),
    ("--pthread-max", "256"),
    ("--zombie-max", "256"),
];

/// Memory moved, shared, forked, protected, given back; threads, signals, and calls with buffers.
const QUICK: &[&str] = &[
    "vm",
    "vm-rw",
    "vm-addr",
    "vm-segv",
    "mmap",
    "mremap",
    "munmap",
    "mprotect",
    "madvise",
    "malloc",
    "brk",
    "stack",
    "fork",
    "vfork",
    "clone",
    "exec",
    "pthread",
    "daemon",
    "zombie",
    "sigsegv",
    "sigfd",
    "ptrace",
    "userfaultfd",
    "futex",
    "memfd",
    "shm",
    "pipe",
    "sockpair",
    "io-uring",
    "usersyscall",
    "qsort",
    "tree",
];

pub fn suite() -> anyhow::Result<Suite> {
    let mut names = BTreeSet::new();
    for class in CLASSES {
        let said = said(&["--class", &format!("{class}?")])?;
        let (_, list) = said.split_once("stressors:").with_context(|| format!("stress-ng lists no class {class}"))?;
        names.extend(list.split_whitespace().map(str::to_owned));
    }
    let left_out = |name: &String| LEFT_OUT.iter().any(|(_, names)| names.contains(&name.as_str()));
    names.retain(|name| !left_out(name));
    ensure!(QUICK.iter().all(|quick| names.contains(*quick)), "this stress-ng lacks stressors: {names:?}");
    // Not by its help, which names an option that it does not have.
    let taken = |option, size| {
        let output = Command::new("stress-ng").args([option, size, "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let sizes = SIZES.iter().filter(|(option, size)| taken(option, size));
    let sizes: Vec<&str> = sizes.flat_map(|(option, size)| [*option, *size]).collect();
    Ok(Suite {
        name: "stress-ng",
        local: "1M",
        small: true,
        programs: names.into_iter().map(|name| program(name, &sizes)).collect(),
    })
}

fn said(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("stress-ng").args(args).output().context("stress-ng is not installed")?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn program(name: String, sizes: &[&'static str]) -> Program {
    let (stressor, sizes) = (name.clone(), sizes.to_vec());
    let command = move |dir: &Path| {
        let mut command = match AS_ROOT.contains(&stressor.as_str()) {
            true => Command::new("prlimit"),
            false => unprivileged("prlimit", dir),
        };
        command.args(["--nproc=2000", "--fsize=1073741824"]);
        if GREEDY.contains(&stressor.as_str()) {
            command.arg("--as=536870912");
        }
        command.args(["stress-ng", &format!("--{stressor}"), "1", "--verify", "--oomable", "--no-rand-seed"]);
        command.args(["--timeout", &format!("{SECONDS}s"), "--temp-path"]).arg(dir).args(&sizes);
        command
    };
    let quick = QUICK.contains(&name.as_str());
    Program { name, prepare: None, command: Box::new(command), read, limit: LIMIT, quick }
}

fn read(name: &str, ended: &Ended) -> Verdicts {
    let said = format!("{}{}", ended.stdout, ended.stderr);
    let complains = |line: &&str| [" fail: ", " error: ", "skipp", " warn: "].iter().any(|word| line.contains(word));
    let complaints: Vec<&str> = said.lines().filter(complains).collect();
    let why = || format!("{}\n{}", complaints.join("\n"), tail(&said));
    let verdict = match ended.status.code() {
        Some(0) if said.lines().any(|line| line.contains("skipping") || line.contains("be skipped")) => {
            Verdict::Skipped(why())
        }
        Some(0) => Verdict::Passed,
        Some(NO_RESOURCE | NOT_IMPLEMENTED) => Verdict::Skipped(why()),
        _ => Verdict::Failed(format!("{:?}: {}", ended.status, why())),
    };
    Verdicts::from([(name.to_owned(), verdict)])
}
