//! When a key was last used, or how often: 24 bits in its index entry. And who goes first when
//! memory is short.
//!
//! With an LFU policy: 16 bits of minutes and 8 bits of a counter that grows the more slowly the
//! larger it is and is counted down for every minute without use. Otherwise: seconds. Whatever the
//! policy was when a key was last used, the bits are read as the policy of now has them.

use super::clock::UnixMs;
use super::index::Entry;

/// What goes when memory is short, by Redis' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    NoEviction,
    AllKeysLru,
    AllKeysLfu,
    AllKeysRandom,
    VolatileLru,
    VolatileLfu,
    VolatileRandom,
    VolatileTtl,
}

const NAMES: [(&str, Policy); 8] = [
    ("noeviction", Policy::NoEviction),
    ("allkeys-lru", Policy::AllKeysLru),
    ("allkeys-lfu", Policy::AllKeysLfu),
    ("allkeys-random", Policy::AllKeysRandom),
    ("volatile-lru", Policy::VolatileLru),
    ("volatile-lfu", Policy::VolatileLfu),
    ("volatile-random", Policy::VolatileRandom),
    ("volatile-ttl", Policy::VolatileTtl),
];

/// A fresh key's counter: it gets a chance to be used.
const FRESH: u32 = 5;
const MINUTE: u64 = 60_000;
const BITS: u32 = 0xff_ffff;

impl Policy {
    pub fn named(name: &str) -> Option<Policy> {
        NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, policy)| *policy)
    }

    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, policy)| *policy == self).map_or("noeviction", |(name, _)| name)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    pub fn counts(self) -> bool {
        matches!(self, Policy::AllKeysLfu | Policy::VolatileLfu)
    }

    /// Only keys with an expiry go.
    pub fn is_volatile(self) -> bool {
        matches!(self, Policy::VolatileLru | Policy::VolatileLfu | Policy::VolatileRandom | Policy::VolatileTtl)
    }

    /// What a new key's entry says.
    pub fn fresh(self, now: UnixMs) -> u32 {
        if self.counts() { minutes(now) << 8 | FRESH } else { seconds(now) }
    }

    /// What an entry says after one more use; `random`: any 32 bits.
    pub fn used(self, access: u32, now: UnixMs, random: u32, log_factor: u32) -> u32 {
        if !self.counts() {
            return seconds(now);
        }
        let count = counter(access, now, 1);
        let odds = count.saturating_sub(FRESH) * log_factor + 1;
        let more = count < 255 && u64::from(random) < u64::from(u32::MAX) / u64::from(odds);
        minutes(now) << 8 | (count + u32::from(more))
    }

    /// Who goes first: the highest.
    pub fn rank(self, entry: &Entry, now: UnixMs, random: u32) -> u64 {
        match self {
            Policy::AllKeysLru | Policy::VolatileLru => idle_seconds(entry.access(), now),
            Policy::AllKeysLfu | Policy::VolatileLfu => u64::from(255 - counter(entry.access(), now, 1)),
            Policy::VolatileTtl => u64::MAX - entry.expires().unwrap_or(u64::MAX),
            Policy::AllKeysRandom | Policy::VolatileRandom | Policy::NoEviction => u64::from(random),
        }
    }
}

fn seconds(now: UnixMs) -> u32 {
    (now / 1000) as u32 & BITS
}

fn minutes(now: UnixMs) -> u32 {
    (now / MINUTE) as u32 & 0xffff
}

/// Seconds since the last use, for an entry that counts seconds.
pub fn idle_seconds(access: u32, now: UnixMs) -> u64 {
    u64::from(seconds(now).wrapping_sub(access) & BITS)
}

/// An LFU counter, less one for each `decay` minutes without use.
pub fn counter(access: u32, now: UnixMs, decay: u32) -> u32 {
    let idle = minutes(now).wrapping_sub(access >> 8) & 0xffff;
    (access & 255).saturating_sub(idle.checked_div(decay).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_survives_the_clocks_wrap() {
        let then = 0xff_fff0u64 * 1000;
        let access = Policy::AllKeysLru.fresh(then);
        assert_eq!(idle_seconds(access, then + 100_000), 100);
    }

    #[test]
    fn a_counter_grows_with_use_ever_more_slowly_and_falls_without() {
        let (policy, now) = (Policy::AllKeysLfu, 50_000 * MINUTE);
        let mut access = policy.fresh(now);
        let mut random = 1u32;
        let mut uses = |access: u32, n: u32| {
            (0..n).fold(access, |a, _| {
                random = random.wrapping_mul(1664525).wrapping_add(1013904223);
                policy.used(a, now, random, 10)
            })
        };
        access = uses(access, 100);
        let after_100 = counter(access, now, 1);
        assert!((8..25).contains(&after_100), "{after_100}");
        access = uses(access, 10_000);
        let after_10_000 = counter(access, now, 1);
        assert!((after_100 + 20..200).contains(&after_10_000), "{after_10_000}");
        assert_eq!(counter(access, now + 10 * MINUTE, 1), after_10_000 - 10);
        assert_eq!(counter(access, now + 1000 * MINUTE, 1), 0);
    }

    #[test]
    fn names_are_redis_names() {
        for (name, policy) in NAMES {
            assert_eq!(Policy::named(name), Some(policy));
            assert_eq!(policy.name(), name);
        }
        assert_eq!(Policy::named("allkeys"), None);
    }
}
