//! What annexd needs of its host: checked before anything is touched, then set up.
//!
//! annexd must never wait for a page of its own, since it may be the one who has to bring it: its
//! memory is locked (as it is touched, so that sparse tables stay sparse), and it is the last
//! process the kernel should kill to make room.

use crate::heap;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, UsageWho, getrlimit, getrusage, setrlimit};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

/// The oldest kernel with UFFDIO_MOVE.
const OLDEST_KERNEL: (u32, u32) = (6, 8);
const OOM_SCORE_ADJ: i32 = -900;
/// Descriptors annexd asks for: each app's processes hold a handful.
const WANTED_FILES: u64 = 1 << 20;

/// Capability numbers of linux/capability.h.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;

/// A host annexd can't run on, or not with the rights it was given.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(
        "this kernel is {release}, annexd needs 6.8 or newer: older ones can't take a page out of a running process without a race (UFFDIO_MOVE is missing)"
    )]
    OldKernel { release: String },
    #[error("annexd lacks {capability}, which it needs {purpose}: run it as root")]
    Capability { capability: &'static str, purpose: &'static str },
    #[error(
        "/dev/userfaultfd is missing: the kernel was built without CONFIG_USERFAULTFD, or /dev lacks the device (in a container, pass it in)"
    )]
    NoUserfaultfd,
    #[error(
        "failed to lock annexd's memory: {0}; it needs CAP_IPC_LOCK or an unlimited RLIMIT_MEMLOCK (LimitMEMLOCK=infinity in its unit)"
    )]
    Lock(#[source] io::Error),
}

/// Checks what can be known without trying.
pub fn check() -> Result<(), HostError> {
    let release = kernel_release();
    if kernel_version(&release).is_some_and(|v| v < OLDEST_KERNEL) {
        return Err(HostError::OldKernel { release });
    }
    check_capabilities(effective_capabilities().unwrap_or(0))?;
    if !fs::exists("/dev/userfaultfd").unwrap_or(false) {
        return Err(HostError::NoUserfaultfd);
    }
    Ok(())
}

/// Raises limits, locks all memory annexd has and will have, and moves annexd to the end of the OOM
/// killer's list. Returns what could not be had and is not vital.
pub fn settle_in() -> Result<Vec<String>, HostError> {
    let mut warnings = Vec::new();
    heap::settle_in();
    let memlock = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    if memlock.is_err() && !has(effective_capabilities().unwrap_or(0), 14) {
        // With a limit and no CAP_IPC_LOCK the lock would hold now and fail some later allocation.
        return Err(HostError::Lock(io::Error::from(nix::errno::Errno::EPERM)));
    }
    let flags =
        MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    mlockall(flags).map_err(|errno| HostError::Lock(errno.into()))?;
    if setrlimit(Resource::RLIMIT_NOFILE, WANTED_FILES, WANTED_FILES).is_err()
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_err()
    {
        warnings.push("failed to raise the limit of open files: few apps will fit (LimitNOFILE)".into());
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ.to_string()) {
        warnings.push(format!(
            "failed to lower annexd's OOM score: {error}; under memory pressure the kernel may kill annexd, and all its apps with it (OOMScoreAdjust={OOM_SCORE_ADJ} in its unit)"
        ));
    }
    Ok(warnings)
}

/// Overwrites what stands behind `mark` on the command line, which everybody on this host may read.
/// Whoever looked before has seen it.
pub fn hide_from_command_line(mark: &str, word: &str) -> io::Result<()> {
    let marked = [mark.as_bytes(), word.as_bytes()].concat();
    let line = fs::read("/proc/self/cmdline")?;
    let stat = fs::read_to_string("/proc/self/stat")?;
    // proc_pid_stat(5): arg_start is field 48; the second may hold blanks and ends with the last
    // parenthesis.
    let start =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(48 - 3)?.parse::<u64>().ok());
    let start = start.filter(|start| *start > 0).ok_or(io::ErrorKind::Unsupported)?;
    let memory = fs::OpenOptions::new().write(true).open("/proc/self/mem")?;
    for (at, _) in line.windows(marked.len()).enumerate().filter(|(_, part)| *part == marked) {
        memory.write_all_at(&vec![b'x'; word.len()], start + (at + mark.len()) as u64)?;
    }
    Ok(())
}

/// `uname -r`.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
}

/// CPU time annexd has used since its start.
pub fn cpu_seconds() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    })
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn has(capabilities: u64, capability: u32) -> bool {
    capabilities & (1 << capability) != 0
}

fn check_capabilities(capabilities: u64) -> Result<(), HostError> {
    if !has(capabilities, CAP_SYS_PTRACE) {
        return Err(HostError::Capability { capability: "CAP_SYS_PTRACE", purpose: "to reach into the apps' memory" });
    }
    if !has(capabilities, CAP_DAC_READ_SEARCH) && !has(capabilities, CAP_DAC_OVERRIDE) {
        return Err(HostError::Capability {
            capability: "CAP_DAC_READ_SEARCH",
            purpose: "to read the page maps of other users' processes",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart_by_number() {
        assert_eq!(kernel_version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(kernel_version("6.8-rc1"), Some((6, 8)));
        assert_eq!(kernel_version("5.15.0-119-generic"), Some((5, 15)));
        assert_eq!(kernel_version("unknown"), None);
        assert!(kernel_version("6.7.12") < Some(OLDEST_KERNEL));
        assert!(kernel_version("6.18.0") > Some(OLDEST_KERNEL));
    }

    #[test]
    fn a_missing_capability_is_named_with_its_purpose() {
        assert!(check_capabilities(u64::MAX).is_ok());
        let error = check_capabilities(0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "annexd lacks CAP_SYS_PTRACE, which it needs to reach into the apps' memory: run it as root"
        );
        assert!(check_capabilities(1 << CAP_SYS_PTRACE).unwrap_err().to_string().contains("CAP_DAC_READ_SEARCH"));
        assert!(check_capabilities(1 << CAP_SYS_PTRACE | 1 << CAP_DAC_OVERRIDE).is_ok());
    }
}
