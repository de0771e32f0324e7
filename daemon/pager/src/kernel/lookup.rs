//! The mapping at an address of a process, found in a microsecond where all of them take a hundred
//! (PROCMAP_QUERY, Linux 6.11; before that /proc/PID/maps is read). The numbers are those of
//! `include/uapi/linux/fs.h`.

use crate::kernel::process::{self, Mapping};
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const READABLE: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const EXECUTABLE: u64 = 1 << 2;
const SHARED: u64 = 1 << 3;
/// The mapping that has the address, or else the next one above it.
const OR_NEXT: u64 = 1 << 4;

#[repr(C)]
#[derive(Default)]
struct QueryArg {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    access: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

nix::ioctl_readwrite!(procmap_query, b'f', 17, QueryArg);

/// A process's mappings.
pub struct Lookup {
    pid: i32,
    maps: File,
}

impl Lookup {
    pub fn open(pid: i32) -> io::Result<Lookup> {
        Ok(Lookup { pid, maps: File::open(format!("/proc/{pid}/maps"))? })
    }

    /// The mapping that has the address.
    pub fn at(&self, addr: u64) -> io::Result<Option<Mapping>> {
        self.query(addr, 0)
    }

    /// That, or else the next one above.
    pub fn at_or_above(&self, addr: u64) -> io::Result<Option<Mapping>> {
        self.query(addr, OR_NEXT)
    }

    /// The mappings that end and begin at the address, if both are private, writable and anonymous.
    pub fn meet(&self, addr: u64) -> io::Result<Option<(Mapping, Mapping)>> {
        let side = |m: Option<Mapping>| m.filter(Mapping::is_private_anonymous);
        let Some(below) = side(self.at(addr - 1)?).filter(|m| m.end == addr) else { return Ok(None) };
        let Some(above) = side(self.at(addr)?).filter(|m| m.start == addr) else { return Ok(None) };
        Ok(Some((below, above)))
    }

    /// Where the mapping that has the address begins and ends, if the kernel says it at once.
    pub fn bounds(&self, addr: u64) -> Option<(u64, u64)> {
        let mut arg = QueryArg { size: size_of::<QueryArg>() as u64, addr, ..QueryArg::default() };
        // SAFETY: `arg` is the struct this ioctl takes, without room for a name.
        unsafe { procmap_query(self.maps.as_raw_fd(), &mut arg) }.ok()?;
        Some((arg.start, arg.end))
    }

    fn query(&self, addr: u64, flags: u64) -> io::Result<Option<Mapping>> {
        let mut name = [0u8; 64];
        let mut arg = QueryArg {
            size: size_of::<QueryArg>() as u64,
            flags,
            addr,
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..QueryArg::default()
        };
        // SAFETY: `arg` is the struct this ioctl takes, and its name is ours and as long as it
        // says.
        match unsafe { procmap_query(self.maps.as_raw_fd(), &mut arg) } {
            Ok(_) => {}
            Err(Errno::ENOENT) => return Ok(None),
            // Its name is long, a file's; or the kernel is older.
            Err(Errno::ENAMETOOLONG | Errno::ENOTTY) => return self.search(addr, flags),
            Err(errno) => return Err(errno.into()),
        }
        let letter = |bit, letter| if arg.access & bit != 0 { letter } else { b'-' };
        let sharing = if arg.access & SHARED != 0 { b's' } else { b'p' };
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Some(Mapping {
            start: arg.start,
            end: arg.end,
            access: [letter(READABLE, b'r'), letter(WRITABLE, b'w'), letter(EXECUTABLE, b'x'), sharing],
            inode: arg.inode,
            name: String::from_utf8_lossy(name).into_owned(),
        }))
    }

    fn search(&self, addr: u64, flags: u64) -> io::Result<Option<Mapping>> {
        let above = process::maps(self.pid)?.into_iter().find(|m| addr < m.end);
        Ok(above.filter(|m| m.start <= addr || flags == OR_NEXT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    #[test]
    fn it_finds_what_the_list_of_mappings_has() {
        let map = MmapMut::map_anon(64 * 4096).unwrap();
        let pid = std::process::id() as i32;
        let lookup = Lookup::open(pid).unwrap();
        let function = it_finds_what_the_list_of_mappings_has as *const () as u64;
        for addr in [map.as_ptr() as u64 + 5000, &raw const pid as u64, function] {
            let found = lookup.at(addr).unwrap();
            assert!(found.is_some());
            assert!(lookup.bounds(addr).is_none_or(|bounds| found.as_ref().map(|m| (m.start, m.end)) == Some(bounds)));
            assert_eq!(found, lookup.search(addr, 0).unwrap());
        }
        assert_eq!(lookup.at(4096).unwrap(), None);
        assert_eq!(lookup.search(4096, 0).unwrap(), None);
        let above = lookup.at_or_above(4096).unwrap();
        assert!(above.is_some());
        assert_eq!(above, lookup.search(4096, OR_NEXT).unwrap());
    }
}
