//! A donor whose host has as much memory available as the test says: the agent sees another
//! `/proc/meminfo`, in a mount namespace of its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Meminfo {
    file: PathBuf,
}

impl Meminfo {
    /// As it is on this host.
    pub fn new(file: PathBuf) -> Meminfo {
        std::fs::copy("/proc/meminfo", &file).expect("the testbed's directory is writable");
        Meminfo { file }
    }

    /// The command that runs `program` on that host.
    pub fn inside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /proc/meminfo && exec \"$@\""]);
        command.arg(&self.file).arg(program);
        command
    }

    /// So many kB are available from now on; `None`: as many as there are.
    pub fn available(&self, kb: Option<u64>) {
        let real = std::fs::read_to_string(Path::new("/proc/meminfo")).expect("proc(5)");
        let line = |line: &str| match kb {
            Some(kb) if line.starts_with("MemAvailable:") => format!("MemAvailable: {kb:>11} kB\n"),
            _ => format!("{line}\n"),
        };
        // In place: the agent's mount is of this very file.
        std::fs::write(&self.file, real.lines().map(line).collect::<String>()).expect("ours");
    }
}
