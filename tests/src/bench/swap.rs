//! Kernel swap as a contender: a swap device that is set up for the run and taken down after it,
//! and a memory cgroup that confines the program to its resident share. Nothing that was in use
//! before is touched.

use crate::testbed::{bins, directory};
use anyhow::{Context, bail, ensure};
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What the program itself needs beside its set.
const SLACK: u64 = 4 << 20;

/// Swap that is on; off again when dropped.
pub struct Swap {
    device: PathBuf,
    /// What is left to do once it is off.
    undo: Undo,
}

enum Undo {
    ResetZram,
    RemoveFile,
}

/// Swap on /dev/zram0, compressed with lz4 where there is a choice.
pub fn zram(bytes: u64) -> anyhow::Result<Swap> {
    const CONTROLS: &str = "/sys/block/zram0";
    let device = PathBuf::from("/dev/zram0");
    if !device.exists() {
        // Refused or missing: the next check says so.
        let _ = Command::new("modprobe").arg("zram").output();
    }
    ensure!(device.exists(), "there is no /dev/zram0");
    let size = fs::read_to_string(format!("{CONTROLS}/disksize")).context("reading zram0's size")?;
    ensure!(size.trim() == "0", "/dev/zram0 is in use");
    ensure!(memory_cgroups(), "there are no memory cgroups to confine a program with");
    // Kernels without lz4 keep their default.
    let _ = fs::write(format!("{CONTROLS}/comp_algorithm"), "lz4");
    fs::write(format!("{CONTROLS}/disksize"), bytes.to_string()).context("setting zram0's size")?;
    on(Swap { device, undo: Undo::ResetZram })
}

/// Swap on a file, if it is on a disk: never on memory that only looks like one.
pub fn disk(bytes: u64) -> anyhow::Result<Swap> {
    let path = directory().join(format!(".annex-bench-{}.swap", std::process::id()));
    ensure!(memory_cgroups(), "there are no memory cgroups to confine a program with");
    let filesystem = nix::sys::statfs::statfs(&directory()).context("statfs")?.filesystem_type();
    let disk = [nix::sys::statfs::EXT4_SUPER_MAGIC, nix::sys::statfs::XFS_SUPER_MAGIC].contains(&filesystem);
    ensure!(disk, "{} is on neither ext4 nor xfs", directory().display());
    let free = nix::sys::statvfs::statvfs(&directory()).context("statvfs")?;
    let free = free.blocks_available() as u64 * free.fragment_size() as u64;
    ensure!(free > bytes * 2, "{} has no room for a swap file of {bytes} bytes", directory().display());
    let mut file = fs::File::create(&path).context("creating the swap file")?;
    let swap = Swap { device: path, undo: Undo::RemoveFile };
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    // Written, not allocated: swap files may not have holes.
    let zeros = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeros).context("writing the swap file")?;
    }
    file.sync_all()?;
    on(swap)
}

fn on(swap: Swap) -> anyhow::Result<Swap> {
    let mkswap = bins::system("mkswap").or_else(|| Some("/sbin/mkswap".into()).filter(|p: &PathBuf| p.exists()));
    let mkswap = mkswap.context("mkswap is not installed")?;
    let output = Command::new(mkswap).arg(&swap.device).output()?;
    ensure!(output.status.success(), "mkswap: {}", String::from_utf8_lossy(&output.stderr));
    let path = CString::new(swap.device.as_os_str().as_bytes())?;
    // SAFETY: reads the path only.
    let answer = unsafe { libc::swapon(path.as_ptr(), 0) };
    ensure!(answer == 0, "swapon {}: {}", swap.device.display(), std::io::Error::last_os_error());
    Ok(swap)
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Ok(path) = CString::new(self.device.as_os_str().as_bytes()) {
            // Not on yet is fine. What is still in it comes back to memory.
            // SAFETY: reads the path only.
            unsafe { libc::swapoff(path.as_ptr()) };
        }
        let undone = match self.undo {
            Undo::ResetZram => fs::write("/sys/block/zram0/reset", "1"),
            Undo::RemoveFile => fs::remove_file(&self.device),
        };
        if let Err(error) = undone {
            eprintln!("failed to take {} down: {error}", self.device.display());
        }
    }
}

/// Pages the kernel has swapped out since it booted.
pub fn pages_out() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let line = text.lines().find_map(|l| l.strip_prefix("pswpout ")).context("no pswpout in /proc/vmstat")?;
    Ok(line.trim().parse()?)
}

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

fn memory_cgroups() -> bool {
    Path::new(V1).join("memory.limit_in_bytes").exists() || v2_has_memory()
}

fn v2_has_memory() -> bool {
    let list = fs::read_to_string(Path::new(V2).join("cgroup.subtree_control")).unwrap_or_default();
    list.split_whitespace().any(|controller| controller == "memory")
}

/// A memory cgroup; removed when dropped.
pub struct Confined {
    directory: PathBuf,
}

impl Confined {
    pub fn new(resident: u64) -> anyhow::Result<Confined> {
        let name = format!("annex-bench-{}", std::process::id());
        let (directory, limit) = if Path::new(V1).join("memory.limit_in_bytes").exists() {
            (Path::new(V1).join(name), "memory.limit_in_bytes")
        } else if v2_has_memory() {
            (Path::new(V2).join(name), "memory.max")
        } else {
            bail!("there are no memory cgroups");
        };
        fs::create_dir(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let confined = Confined { directory };
        fs::write(confined.directory.join(limit), (resident + SLACK).to_string()).context("setting the limit")?;
        Ok(confined)
    }

    /// The command starts inside.
    pub fn admit(&self, command: &mut Command) -> anyhow::Result<()> {
        let procs = fs::OpenOptions::new().write(true).open(self.directory.join("cgroup.procs"))?;
        // SAFETY: between fork and exec only write(2) runs, on a descriptor opened before.
        unsafe {
            command.pre_exec(move || (&procs).write_all(b"0"));
        }
        Ok(())
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // The last process may still be on its way out.
        let started = Instant::now();
        while let Err(error) = fs::remove_dir(&self.directory) {
            if started.elapsed() > Duration::from_secs(5) {
                eprintln!("failed to remove {}: {error}", self.directory.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
