//! How much memory this host can spare: the kernel's own estimate of what is available, less what stays at home.
//!
//! Inside a container the cgroup's limit can be far below the machine's memory; the smaller of the two counts.

use crate::config::{HUGE_PAGE, Hugepages};
use std::fs;
use std::io;
use std::path::Path;

/// The host's memory at one moment, in bytes (huge pages: in pages of 2 MiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    pub total: u64,
    /// Can be allocated without swapping (`MemAvailable`), and within the cgroup's limit.
    pub available: u64,
    pub huge_total: u64,
    pub huge_free: u64,
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
    /// Reads `/proc/meminfo` and, if there is one, the cgroup's limit.
    pub fn now() -> io::Result<HostMemory> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let mut host = HostMemory::parse(&text).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo lacks MemTotal or MemAvailable")
        })?;
        if let Some((limit, used)) = cgroup_limit() {
            host.total = host.total.min(limit);
            host.available = host.available.min(limit.saturating_sub(used));
        }
        Ok(host)
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
