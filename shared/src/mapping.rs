//! What /proc/PID/smaps says of a program's mappings, and which of them can be paged.
//!
//! annexd asks before it takes pages out of a mapping, `annex advise` before anything is attached.
//! Both ask here ([`Mapping::obstacle`]), so that advice is never about memory that stays.

use std::fmt;

/// Mappings smaller than this are left alone: they cost more than they bring.
pub const SMALLEST: u64 = 64 << 10;

/// What [`SmapsEntry::flags`] has beside the kernel's flags where a mapping has pages of its own,
/// swapped out or not.
pub const HAS_PAGES: [u8; 2] = *b"++";

/// Flags in smaps that make a mapping none of our business: I/O, raw PFNs, wiped or dropped on fork
/// (secrets), memory tagging, shadow stack, not to be dumped or copied for a reason.
const SPECIAL: [[u8; 2]; 6] = [*b"io", *b"pf", *b"wf", *b"mt", *b"ss", *b"sl"];

/// The names of annex's own processes, whose memory must never be waited for.
pub const NEVER_PAGED: [&str; 6] =
    ["annexd", "annexd-fdkeeper", "annex-agent", "agent-fdkeeper", "annex-tracer", "annex-stub"];

/// A line of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// `rwxp` or `rwxs`, as four bytes.
    pub access: [u8; 4],
    pub inode: u64,
    /// The path or `[heap]`, `[stack]`, `[anon:name]`…; empty for anonymous memory.
    pub name: String,
}

/// Why a mapping stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// Shared between processes: memfds, /dev/shm, System V.
    Shared,
    /// Of a file: its pages can be read again from there.
    File,
    /// The kernel's own (`[vdso]`), or of a device.
    Kernel,
    /// `mlock`: the program wants it resident.
    Locked,
    /// Pages of a huge-page file system.
    Hugetlb,
    /// The main thread's stack.
    Stack,
    /// With a flag that says hands off: left out of forks, tagged, a shadow stack.
    Special,
    /// Executable, read-only or inaccessible now.
    NotWritable,
    /// Too small to be worth it ([`SMALLEST`]).
    Small,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Shared => "shared memory",
            Obstacle::File => "file-backed",
            Obstacle::Kernel => "the kernel's",
            Obstacle::Locked => "locked",
            Obstacle::Hugetlb => "huge-page files",
            Obstacle::Stack => "stack",
            Obstacle::Special => "left out of forks or otherwise special",
            Obstacle::NotWritable => "executable or not writable",
            Obstacle::Small => "small mappings",
        })
    }
}

impl Mapping {
    pub fn parse(line: &str) -> Option<Mapping> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let access = fields.next()?.as_bytes().try_into().ok()?;
        let (_offset, _device) = (fields.next()?, fields.next()?);
        let inode = fields.next()?.parse().ok()?;
        let name = fields.next().unwrap_or("").trim().to_owned();
        let start = u64::from_str_radix(start, 16).ok()?;
        Some(Mapping { start, end: u64::from_str_radix(end, 16).ok()?, access, inode, name })
    }

    /// Private, writable, anonymous: of the kind that could be paged (its flags in smaps decide
    /// further).
    pub fn is_private_anonymous(&self) -> bool {
        self.is_readable_anonymous() && self.access == *b"rw-p"
    }

    /// Private, anonymous, and not executable; it may be read-only.
    pub fn is_readable_anonymous(&self) -> bool {
        matches!(&self.access, b"rw-p" | b"r--p") && self.is_anonymous()
    }

    /// Private, anonymous, and not accessible now.
    pub fn is_inaccessible_anonymous(&self) -> bool {
        self.access == *b"---p" && self.is_anonymous()
    }

    /// No file, and nothing of the kernel's.
    pub fn is_anonymous(&self) -> bool {
        self.inode == 0 && (self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:"))
    }

    /// What keeps its pages from being taken out, given its flags; `None`: they can be.
    pub fn obstacle(&self, flags: &[[u8; 2]]) -> Option<Obstacle> {
        if let Some(special) = special(flags) {
            return Some(special);
        }
        match () {
            () if self.access[3] == b's' => Some(Obstacle::Shared),
            () if self.name == "[stack]" => Some(Obstacle::Stack),
            () if self.inode == 0 && self.name.starts_with('[') && !self.is_anonymous() => Some(Obstacle::Kernel),
            () if !self.is_anonymous() => Some(Obstacle::File),
            () if !self.is_private_anonymous() => Some(Obstacle::NotWritable),
            () if self.end - self.start < SMALLEST => Some(Obstacle::Small),
            () => None,
        }
    }
}

/// What the flags alone forbid, whatever the mapping is: anything but `None` is left alone.
pub fn special(flags: &[[u8; 2]]) -> Option<Obstacle> {
    let has = |flag: &[u8; 2]| flags.contains(flag);
    match () {
        () if has(b"lo") => Some(Obstacle::Locked),
        () if has(b"ht") => Some(Obstacle::Hugetlb),
        () if has(b"gd") => Some(Obstacle::Stack),
        () if SPECIAL.iter().any(has) => Some(Obstacle::Special),
        () => None,
    }
}

/// A mapping with what smaps tells of it. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmapsEntry {
    pub mapping: Mapping,
    /// The kernel's two-letter flags (`VmFlags`), and [`HAS_PAGES`].
    pub flags: Vec<[u8; 2]>,
    pub rss: u64,
    /// Resident, each page divided by the number of processes that have it.
    pub pss: u64,
    /// Touched since the accessed bits were cleared last (`/proc/PID/clear_refs`).
    pub referenced: u64,
    /// Resident pages that belong to no file.
    pub anonymous: u64,
    /// Of these, in huge pages.
    pub huge: u64,
    /// Of hugetlbfs, which `rss` does not count.
    pub hugetlb: u64,
    pub swap: u64,
}

impl SmapsEntry {
    /// Somebody has registered it with a userfaultfd.
    pub fn has_userfaultfd(&self) -> bool {
        [b"um", b"uw", b"ui"].iter().any(|flag| self.flags.contains(flag))
    }

    fn of(mapping: Mapping) -> SmapsEntry {
        let (rss, pss, referenced, anonymous, huge, hugetlb, swap) = (0, 0, 0, 0, 0, 0, 0);
        SmapsEntry { mapping, flags: Vec::new(), rss, pss, referenced, anonymous, huge, hugetlb, swap }
    }
}

/// The entries of /proc/PID/smaps. One that is cut off is left out.
pub fn smaps(text: &str) -> Vec<SmapsEntry> {
    let mut found = Vec::new();
    let mut current: Option<SmapsEntry> = None;
    for line in text.lines() {
        if line.as_bytes().first().is_some_and(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b)) {
            current = Mapping::parse(line).map(SmapsEntry::of);
            continue;
        }
        let (Some(entry), Some((key, value))) = (current.as_mut(), line.split_once(':')) else { continue };
        let size = match key {
            "Rss" => &mut entry.rss,
            "Pss" => &mut entry.pss,
            "Referenced" => &mut entry.referenced,
            "Anonymous" => &mut entry.anonymous,
            "AnonHugePages" => &mut entry.huge,
            "Private_Hugetlb" | "Shared_Hugetlb" => &mut entry.hugetlb,
            "Swap" => &mut entry.swap,
            "VmFlags" => {
                // The last line of a mapping.
                let flags = value.split_ascii_whitespace().filter_map(|flag| flag.as_bytes().try_into().ok());
                let has_pages = entry.anonymous + entry.swap > 0;
                entry.flags = flags.chain(has_pages.then_some(HAS_PAGES)).collect();
                found.extend(current.take());
                continue;
            }
            _ => continue,
        };
        let kib = value.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
        *size += kib << 10;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str, flags: &str) -> SmapsEntry {
        let text = format!("{line}\nRss: 12 kB\nPss: 6 kB\nReferenced: 8 kB\nAnonymous: 12 kB\nVmFlags: {flags} \n");
        smaps(&text).pop().expect("one mapping")
    }

    #[test]
    fn map_lines_read_as_the_kernel_writes_them() {
        let heap =
            Mapping::parse("55d0c0a00000-55d0c0b21000 rw-p 00000000 00:00 0                          [heap]").unwrap();
        assert_eq!((heap.start, heap.end, heap.name.as_str()), (0x55d0_c0a0_0000, 0x55d0_c0b2_1000, "[heap]"));
        assert!(heap.is_private_anonymous());
        let file = Mapping::parse("7f0000000000-7f0000001000 rw-p 00001000 08:01 1234 /usr/lib/with space.so").unwrap();
        assert_eq!((file.inode, file.name.as_str()), (1234, "/usr/lib/with space.so"));
        assert!(!file.is_private_anonymous());
    }

    #[test]
    fn sizes_and_flags_belong_to_their_mapping() {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let all = smaps(&text);
        assert_eq!(all.len(), text.lines().filter(|line| line.starts_with("VmFlags")).count());
        let stack = all.iter().find(|entry| entry.mapping.name == "[stack]").unwrap();
        assert!(stack.rss > 0 && stack.anonymous > 0 && stack.flags.contains(&HAS_PAGES), "{stack:?}");
        let made = entry("7f0000000000-7f0000100000 rw-p 00000000 00:00 0 ", "rd wr mr mw me ac sd");
        assert_eq!((made.rss, made.pss, made.referenced, made.anonymous), (12288, 6144, 8192, 12288));
        assert_eq!(made.flags.last(), Some(&HAS_PAGES));
        // The file was read while the process ended.
        assert_eq!(smaps("7f0000000000-7f0000100000 rw-p 00000000 00:00 0 \nRss: 12 kB\n"), []);
    }

    #[test]
    fn what_can_not_be_taken_has_a_reason() {
        const PLAIN: &str = "rd wr mr mw me ac sd";
        let at = |rest: &str| format!("7f0000000000-7f0000100000 {rest}");
        let cases = [
            (at("rw-p 00000000 00:00 0 "), PLAIN, None),
            (at("rw-p 00000000 00:00 0      [heap]"), PLAIN, None),
            (at("rw-p 00000000 00:00 0      [anon:glibc: malloc]"), PLAIN, None),
            ("7f0000000000-7f0000008000 rw-p 00000000 00:00 0 ".into(), PLAIN, Some(Obstacle::Small)),
            (at("rw-p 00000000 00:00 0 "), "rd wr lo ac", Some(Obstacle::Locked)),
            (at("rw-p 00000000 00:00 0      [stack]"), "rd wr gd ac", Some(Obstacle::Stack)),
            (at("rw-p 00000000 00:00 0 "), "rd wr wf", Some(Obstacle::Special)),
            (at("rw-p 00000000 00:0f 77     /anon_hugepage (deleted)"), "rd wr ht", Some(Obstacle::Hugetlb)),
            (at("rw-s 00000000 00:01 1024   /memfd:pool (deleted)"), "rd wr sh", Some(Obstacle::Shared)),
            (at("rw-s 00000000 00:01 3      /SYSV00000000 (deleted)"), "rd wr sh", Some(Obstacle::Shared)),
            (at("rw-p 00001000 08:01 1234   /usr/lib/a.so"), "rd wr ac", Some(Obstacle::File)),
            (at("r-xp 00000000 00:00 0      [vdso]"), "rd ex", Some(Obstacle::Kernel)),
            (at("rwxp 00000000 00:00 0 "), "rd wr ex ac", Some(Obstacle::NotWritable)),
            (at("r--p 00000000 00:00 0 "), "rd ac", Some(Obstacle::NotWritable)),
        ];
        for (line, flags, why) in cases {
            let entry = entry(&line, flags);
            assert_eq!(entry.mapping.obstacle(&entry.flags), why, "{line} {flags}");
        }
    }

    #[test]
    fn a_mapping_with_a_userfaultfd_is_told() {
        let line = "7f0000000000-7f0000100000 rw-p 00000000 00:00 0 ";
        assert!(entry(line, "rd wr um").has_userfaultfd());
        assert!(!entry(line, "rd wr ac").has_userfaultfd());
    }
}
