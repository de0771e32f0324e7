//! What one look at a program's mappings shows. Pure.
//!
//! Pages that several processes share after a fork are divided among them, as `Pss` does: so the
//! sums of a family are right.

use annex_shared::mapping::{Obstacle, SmapsEntry};
use std::collections::BTreeMap;
use std::time::Duration;

/// Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Since the accessed bits were cleared.
    pub after: Duration,
    /// Resident; in a sum of several, each page counted once.
    pub rss: u64,
    /// What could be paged: private anonymous memory, resident.
    pub takeable: u64,
    /// Of that, what was touched since.
    pub hot: u64,
    /// Of what could be paged, in huge pages: one touch makes 2 MiB hot.
    pub huge: u64,
    /// Anonymous memory that stays, and counts towards the app's limit.
    pub kept: u64,
    /// What stays, anonymous or not.
    pub untakeable: BTreeMap<Obstacle, u64>,
}

impl Look {
    pub fn of(entries: &[SmapsEntry], after: Duration) -> Look {
        let mut look = Look { after, ..Look::default() };
        for entry in entries {
            // What a page counts that others have too.
            let share = |bytes: u64| match entry.rss {
                0 => 0,
                rss => (u128::from(bytes.min(rss)) * u128::from(entry.pss) / u128::from(rss)) as u64,
            };
            look.rss += entry.rss;
            match entry.mapping.obstacle(&entry.flags) {
                None => {
                    look.takeable += share(entry.anonymous);
                    look.hot += share(entry.referenced.min(entry.anonymous));
                    look.huge += share(entry.huge);
                }
                Some(why) => {
                    look.kept += share(entry.anonymous);
                    let bytes = entry.pss + entry.hugetlb;
                    if bytes > 0 {
                        *look.untakeable.entry(why).or_default() += bytes;
                    }
                }
            }
        }
        look
    }

    /// Untouched since the bits were cleared.
    pub fn cold(&self) -> u64 {
        self.takeable.saturating_sub(self.hot)
    }

    /// All that counts towards an app's limit.
    pub fn anonymous(&self) -> u64 {
        self.takeable + self.kept
    }

    /// Adds up looks at several processes; the time is the longest.
    pub fn sum<'a>(looks: impl IntoIterator<Item = &'a Look>) -> Look {
        let (mut sum, mut count) = (Look::default(), 0);
        for look in looks {
            count += 1;
            sum.after = sum.after.max(look.after);
            sum.takeable += look.takeable;
            sum.hot += look.hot;
            sum.huge += look.huge;
            sum.kept += look.kept;
            look.untakeable.iter().for_each(|(why, bytes)| *sum.untakeable.entry(*why).or_default() += bytes);
            sum.rss += look.rss;
        }
        if count > 1 {
            sum.rss = sum.takeable + sum.untakeable.values().sum::<u64>();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::mapping::smaps;

    const KIB: u64 = 1 << 10;

    fn look(text: &str) -> Look {
        Look::of(&smaps(text), Duration::from_secs(1))
    }

    #[test]
    fn only_private_anonymous_memory_is_hot_or_cold() {
        let text = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
Rss: 1024 kB
Pss: 1024 kB
Referenced: 256 kB
Anonymous: 1024 kB
VmFlags: rd wr mr mw me ac sd 
7f0000200000-7f0000300000 rw-s 00000000 00:01 1024   /memfd:pool (deleted)
Rss: 512 kB
Pss: 256 kB
Referenced: 512 kB
Anonymous: 0 kB
VmFlags: rd wr sh mr mw me ms 
7f0000400000-7f0000500000 rw-p 00000000 00:00 0 
Rss: 128 kB
Pss: 128 kB
Referenced: 128 kB
Anonymous: 128 kB
VmFlags: rd wr mr mw me lo ac 
7f0000600000-7f0000700000 rw-p 00001000 08:01 1234   /usr/lib/a.so
Rss: 64 kB
Pss: 40 kB
Referenced: 64 kB
Anonymous: 32 kB
VmFlags: rd wr mr mw me ac 
7f0000800000-7f0000c00000 rw-p 00000000 00:0f 77     /anon_hugepage (deleted)
Rss: 0 kB
Pss: 0 kB
Private_Hugetlb: 2048 kB
VmFlags: rd wr mr mw me ht 
";
        let found = look(text);
        assert_eq!((found.takeable, found.hot, found.cold()), (1024 * KIB, 256 * KIB, 768 * KIB));
        assert_eq!(found.rss, 1728 * KIB);
        assert_eq!(found.kept, (128 + 20) * KIB, "what is locked, and what was written of a library");
        let untakeable = [
            (Obstacle::Shared, 256 * KIB),
            (Obstacle::File, 40 * KIB),
            (Obstacle::Locked, 128 * KIB),
            (Obstacle::Hugetlb, 2048 * KIB),
        ];
        assert_eq!(found.untakeable, BTreeMap::from(untakeable));
    }

    #[test]
    fn pages_shared_after_a_fork_count_once_in_the_sum() {
        let text = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
Rss: 1024 kB
Pss: 512 kB
Referenced: 512 kB
Anonymous: 1024 kB
VmFlags: rd wr mr mw me ac sd 
";
        let one = look(text);
        let both = Look::sum([&one, &one]);
        assert_eq!((both.takeable, both.hot), (1024 * KIB, 512 * KIB));
        assert_eq!((one.rss, both.rss), (1024 * KIB, 1024 * KIB));
    }
}
