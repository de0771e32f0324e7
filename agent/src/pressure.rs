//! How much memory this host can spare: the kernel's own estimate of what is available, less what
//! stays at home.
//!
//! Where the kernel tells of stalls (`/proc/pressure/memory`), those are read too; what follows
//! from it all is in [`crate::recall`].
//!
//! Inside a container the cgroup's limit can be far below the machine's memory; the smaller of the
//! two counts.

use crate::hugepages::{HUGE_PAGE, Hugepages};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the numbers come from: `/proc`, or files of the same form in a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    proc: PathBuf,
}

impl Default for Host {
    fn default() -> Host {
        Host { proc: PathBuf::from("/proc") }
    }
}

impl Host {
    /// Reads `meminfo` and `pressure/memory` in this folder instead of `/proc`.
    pub fn of(proc: PathBuf) -> Host {
        Host { proc }
    }

    /// Reads `/proc/meminfo` and, if there is one, the cgroup's limit.
    pub fn memory(&self) -> io::Result<HostMemory> {
        let text = fs::read_to_string(self.proc.join("meminfo"))?;
        let mut host = HostMemory::parse(&text).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo lacks MemTotal or MemAvailable")
        })?;
        if *self == Host::default()
            && let Some((limit, used)) = cgroup_limit()
        {
            host.total = host.total.min(limit);
            host.available = host.available.min(limit.saturating_sub(used));
        }
        Ok(host)
    }

    /// What decides about recalls.
    pub fn sample(&self) -> io::Result<Sample> {
        let available = self.memory()?.available;
        let stall = fs::read_to_string(self.proc.join("pressure/memory")).ok().and_then(|text| parse_stall(&text));
        Ok(Sample { available, stall })
    }
}

/// `some avg10`, in percent.
fn parse_stall(text: &str) -> Option<f32> {
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_whitespace().find_map(|f| f.strip_prefix("avg10="))?.parse().ok()
}

/// The host's memory at one moment, in bytes (huge pages: in pages of 2 MiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    pub total: u64,
    /// Can be allocated without swapping (`MemAvailable`), and within the cgroup's limit.
    pub available: u64,
    pub huge_total: u64,
    pub huge_free: u64,
}

/// What decides about recalls, at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Bytes.
    pub available: u64,
    /// `some avg10` in percent; `None` if this kernel doesn't tell.
    pub stall: Option<f32>,
}

/// What can be allocated for lending now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// New slabs.
    pub slabs: u32,
    /// For the refusal's text.
    pub available_mib: u64,
    pub headroom_mib: u64,
}

impl HostMemory {
    /// This host's.
    pub fn now() -> io::Result<HostMemory> {
        Host::default().memory()
    }

    fn parse(meminfo: &str) -> Option<HostMemory> {
        let number = |name: &str| {
            let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        // Huge pages of another default size are not used.
        let two_mib = number("Hugepagesize") == Some(HUGE_PAGE >> 10);
        let huge = |name| number(name).filter(|_| two_mib).unwrap_or(0);
        Some(HostMemory {
            total: number("MemTotal")? << 10,
            available: number("MemAvailable")? << 10,
            huge_total: huge("HugePages_Total"),
            huge_free: huge("HugePages_Free").saturating_sub(huge("HugePages_Rsvd")),
        })
    }

    /// How many more slabs of `slab_size` can be lent if `headroom` bytes stay free.
    pub fn room(&self, slab_size: u64, headroom: u64, hugepages: Hugepages) -> Room {
        let small = self.available.saturating_sub(headroom) / slab_size;
        let huge = self.huge_free * HUGE_PAGE / slab_size;
        let (slabs, available, headroom) = match hugepages {
            Hugepages::Off => (small, self.available, headroom),
            Hugepages::Auto => (small + huge, self.available, headroom),
            Hugepages::TwoMib => (huge, self.huge_free * HUGE_PAGE, 0),
        };
        Room {
            slabs: u32::try_from(slabs).unwrap_or(u32::MAX),
            available_mib: available >> 20,
            headroom_mib: headroom >> 20,
        }
    }
}

/// Limit and use of the tightest memory cgroup this process is in, if any.
fn cgroup_limit() -> Option<(u64, u64)> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (root, own, limit, used) = membership.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let path = path.trim_start_matches('/').to_owned();
        match controllers {
            "" => Some((Path::new("/sys/fs/cgroup"), path, "memory.max", "memory.current")),
            c if c.split(',').any(|c| c == "memory") => {
                Some((Path::new("/sys/fs/cgroup/memory"), path, "memory.limit_in_bytes", "memory.usage_in_bytes"))
            }
            _ => None,
        }
    })?;
    let number = |file: &Path| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    // A limit anywhere above binds too. "max", the unlimited one, is no number.
    root.join(own)
        .ancestors()
        .take_while(|dir| dir.starts_with(root))
        .filter_map(|dir| Some((number(&dir.join(limit))?, number(&dir.join(used))?)))
        .min_by_key(|(limit, used)| limit.saturating_sub(*used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\nHugePages_Total:       8\n\
                           HugePages_Free:        6\nHugePages_Rsvd:        2\nHugepagesize:       2048 kB\n";

    #[test]
    fn meminfo_is_read_in_bytes() {
        let host = HostMemory::parse(MEMINFO).unwrap();
        assert_eq!(host, HostMemory { total: 16 << 20, available: 8 << 20, huge_total: 8, huge_free: 4 });
        assert_eq!(HostMemory::parse("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn stalls_are_read_where_the_kernel_tells_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::of(dir.path().to_owned());
        assert!(host.sample().is_err());
        fs::write(dir.path().join("meminfo"), MEMINFO).unwrap();
        assert_eq!(host.sample().unwrap(), Sample { available: 8 << 20, stall: None });
        fs::create_dir(dir.path().join("pressure")).unwrap();
        let text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
        fs::write(dir.path().join("pressure/memory"), text).unwrap();
        assert_eq!(host.sample().unwrap().stall, Some(12.5));
    }

    #[test]
    fn what_stays_at_home_is_not_lent() {
        let host = HostMemory { total: 16 << 20, available: 8 << 20, huge_total: 8, huge_free: 4 };
        assert_eq!(host.room(2 << 20, 3 << 20, Hugepages::Off).slabs, 2);
        assert_eq!(host.room(2 << 20, 9 << 20, Hugepages::Off).slabs, 0);
        assert_eq!(host.room(2 << 20, 3 << 20, Hugepages::Auto).slabs, 6);
        assert_eq!(host.room(2 << 20, 9 << 20, Hugepages::TwoMib).slabs, 4);
    }

    #[test]
    fn this_host_has_memory() {
        let host = HostMemory::now().unwrap();
        assert!(host.total >= host.available && host.available > 0);
    }
}
