//! The index: for each key of one database where its record is, when it expires, and when it was
//! last used. 32 bytes and a control byte per key, at a load of 7/16 to 7/8; the keys themselves
//! are in the records.
//!
//! Keys are spread over [`SHARDS`] small hash tables by the first bits of their hash. Each table
//! grows by itself, so that no growth moves more than a small part of all keys, and SCAN goes
//! through keys in the order of their hash, which no growth changes.

use super::clock::UnixMs;
use super::db::{DATABASES, Db};
use super::hash::KeyHash;
use super::log_pages::{LogPageIdx, RecordAddr, units_of};
use super::record::{HEADER, Header, UNIT};
use hashbrown::HashTable;
use std::ops::Range;

const SHARD_BITS: u32 = 12;
pub const SHARDS: usize = 1 << SHARD_BITS;
/// A cursor of SCAN is so many first bits of a hash: few enough for clients that take it for a
/// floating-point number.
const CURSOR_BITS: u32 = 48;
const UNIT_MASK: u32 = 63;
const EXPIRY_BITS: u32 = 47;
const FAR: u64 = 1 << 63;
const ACCESS_SHIFT: u32 = 8;

/// What the index knows of a key.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    high: u64,
    /// Bit 63 clear: bits 0 to 46 are when it expires (0: never), the rest the record's tag. Set:
    /// all other bits are when, and there is no tag.
    expires: u64,
    low: u32,
    log_page: u32,
    /// Of the record.
    bytes: u32,
    /// Bits 0 to 5: the unit at which the record begins; 8 to 31: access.
    meta: u32,
}

impl Entry {
    pub fn new(header: &Header, addr: RecordAddr, access: u32) -> Entry {
        let meta = access << ACCESS_SHIFT | u32::from(addr.unit);
        let (hash, bytes) = (header.hash, header.bytes());
        let expires = match header.expires.unwrap_or(0) {
            far if far >> EXPIRY_BITS != 0 => FAR | far,
            near => u64::from(header.tag()) << EXPIRY_BITS | near,
        };
        Entry { high: hash.high, expires, low: hash.low, log_page: addr.log_page.0, bytes, meta }
    }

    pub fn hash(&self) -> KeyHash {
        KeyHash { high: self.high, low: self.low }
    }

    pub fn addr(&self) -> RecordAddr {
        RecordAddr { log_page: LogPageIdx(self.log_page), unit: (self.meta & UNIT_MASK) as u8 }
    }

    /// Bytes of the record, with its header and its key.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Where the record lies, from the beginning of its log page: ends beyond the log page if it
    /// goes on in the next one.
    pub fn span(&self) -> Range<u32> {
        let from = u32::from(self.addr().unit) * UNIT as u32;
        from..from + self.bytes
    }

    /// Units that the record has to itself.
    pub fn units(&self) -> u32 {
        units_of(self.bytes)
    }

    pub fn expires(&self) -> Option<UnixMs> {
        let bits = if self.expires & FAR == 0 { EXPIRY_BITS } else { 63 };
        Some(self.expires & ((1 << bits) - 1)).filter(|at| *at != 0)
    }

    /// By which the record is told from older ones in its place.
    pub fn tag(&self) -> Option<u16> {
        (self.expires & FAR == 0).then_some((self.expires >> EXPIRY_BITS) as u16)
    }

    pub fn is_expired(&self, now: UnixMs) -> bool {
        self.expires().is_some_and(|at| at <= now)
    }

    /// 24 bits, whose meaning is `usage`'s.
    pub fn access(&self) -> u32 {
        self.meta >> ACCESS_SHIFT
    }

    pub fn set_access(&mut self, access: u32) {
        self.meta = access << ACCESS_SHIFT | (self.meta & UNIT_MASK);
    }

    /// Bytes of the value of the key whose entry this is.
    pub fn value_bytes(&self, key: &[u8]) -> u64 {
        u64::from(self.bytes).saturating_sub((HEADER + key.len()) as u64)
    }

    fn cursor(&self) -> u64 {
        self.high >> (64 - CURSOR_BITS)
    }
}

/// The keys of one database.
#[derive(Default)]
pub struct Index {
    /// None before the first key.
    shards: Vec<HashTable<Entry>>,
    len: u64,
    volatile: u64,
}

fn shard_of(hash: KeyHash) -> usize {
    (hash.high >> (64 - SHARD_BITS)) as usize
}

/// The bits that chose the shard say nothing within it.
fn within(high: u64) -> u64 {
    high.rotate_left(SHARD_BITS)
}

impl Index {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Keys with an expiry.
    pub fn volatile(&self) -> u64 {
        self.volatile
    }

    /// Bytes of memory in use.
    pub fn bytes(&self) -> u64 {
        let tables: usize = self.shards.iter().map(HashTable::allocation_size).sum();
        (tables + self.shards.capacity() * size_of::<HashTable<Entry>>()) as u64
    }

    pub fn find(&self, hash: KeyHash) -> Option<&Entry> {
        self.shards.get(shard_of(hash))?.find(within(hash.high), |e| e.hash() == hash)
    }

    pub fn find_mut(&mut self, hash: KeyHash) -> Option<&mut Entry> {
        self.shards.get_mut(shard_of(hash))?.find_mut(within(hash.high), |e| e.hash() == hash)
    }

    /// Enters a key, in place of what was known of it.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        if self.shards.is_empty() {
            self.shards.resize_with(SHARDS, HashTable::new);
        }
        self.volatile += u64::from(entry.expires().is_some());
        if let Some(there) = self.find_mut(entry.hash()) {
            let old = std::mem::replace(there, entry);
            self.volatile -= u64::from(old.expires().is_some());
            return Some(old);
        }
        self.shards[shard_of(entry.hash())].insert_unique(within(entry.high), entry, |e| within(e.high));
        self.len += 1;
        None
    }

    pub fn remove(&mut self, hash: KeyHash) -> Option<Entry> {
        let shard = self.shards.get_mut(shard_of(hash))?;
        let (entry, _) = shard.find_entry(within(hash.high), |e| e.hash() == hash).ok()?.remove();
        if shard.len() < shard.capacity() / 8 {
            shard.shrink_to(shard.len() * 2, |e| within(e.high));
        }
        self.len -= 1;
        self.volatile -= u64::from(entry.expires().is_some());
        Some(entry)
    }

    /// The keys of one shard, in no order.
    pub fn shard(&self, nth: usize) -> impl Iterator<Item = &Entry> {
        self.shards.get(nth % SHARDS).into_iter().flatten()
    }

    /// The next `count` keys or a few more from a cursor on, and the cursor to go on from; 0: there
    /// are no more.
    pub fn scan(&self, cursor: u64, count: usize, found: &mut Vec<Entry>) -> u64 {
        let first = (cursor >> (CURSOR_BITS - SHARD_BITS)) as usize;
        for shard in self.shards.iter().skip(first) {
            let from = found.len();
            found.extend(shard.iter().filter(|e| e.cursor() >= cursor));
            found[from..].sort_unstable_by_key(Entry::cursor);
            if found.len() >= count {
                // Those with the same cursor come together, so that the next one leaves none out.
                let mut end = count.max(1);
                while end < found.len() && found[end].cursor() == found[end - 1].cursor() {
                    end += 1;
                }
                let next = found[end - 1].cursor() + 1;
                found.truncate(end);
                return if next >> CURSOR_BITS == 0 { next } else { 0 };
            }
        }
        0
    }

    /// Any key, each as likely as the others, for 64 random bits.
    pub fn any(&self, random: u64) -> Option<&Entry> {
        let mut nth = random.checked_rem(self.len)? as usize;
        let shard = self.shards.iter().find(|shard| {
            let is_it = nth < shard.len();
            nth -= if is_it { 0 } else { shard.len() };
            is_it
        })?;
        shard.iter().nth(nth)
    }

    /// Takes some keys out, of which nobody cares which: at least one if there is one.
    pub fn drain_some(&mut self, taken: &mut Vec<Entry>) {
        while let Some(shard) = self.shards.pop() {
            if !shard.is_empty() {
                self.len -= shard.len() as u64;
                taken.extend(shard);
                return;
            }
        }
        self.volatile = 0;
    }
}

/// The indexes of all databases.
pub type Indexes = [Index; DATABASES as usize];

/// Where a database's index is.
pub fn at(db: Db) -> usize {
    usize::from(db.0 % DATABASES)
}

#[cfg(test)]
mod tests {
    use super::super::hash::HashKey;
    use super::super::record::HEADER;
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn entry(n: u32, expires: Option<u64>) -> Entry {
        let hash = HashKey([1, 2]).hash(&n.to_le_bytes());
        let header = Header::new(Db(0), u64::from(n), expires, hash, b"", &vec![0; n as usize]);
        Entry::new(&header, RecordAddr { log_page: LogPageIdx(n), unit: (n % 64) as u8 }, n & 0xff_ffff)
    }

    #[test]
    fn an_entry_knows_when_its_key_expires_and_its_records_tag() {
        for expires in [None, Some(1), Some(1_800_000_000_000), Some((1 << 47) - 1)] {
            let hash = HashKey([1, 2]).hash(b"k");
            let header = Header::new(Db(0), 9, expires, hash, b"k", b"v");
            let entry = Entry::new(&header, RecordAddr { log_page: LogPageIdx(1), unit: 2 }, 3);
            assert_eq!((entry.expires(), entry.tag()), (expires, Some(header.tag())));
        }
        // What expires in some thousand years has no tag.
        for expires in [1 << 47, i64::MAX as u64] {
            assert_eq!((entry(1, Some(expires)).expires(), entry(1, Some(expires)).tag()), (Some(expires), None));
        }
    }

    #[test]
    fn an_entry_takes_32_bytes() {
        assert_eq!(size_of::<Entry>(), 32);
    }

    proptest! {
        #[test]
        fn an_index_is_a_map(changes in proptest::collection::vec((0u32..300, any::<bool>(), any::<bool>()), 0..2000)) {
            let mut index = Index::default();
            let mut model = BTreeMap::new();
            for (n, inserts, expires) in changes {
                let fresh = entry(n, expires.then_some(7));
                let old = if inserts { index.insert(fresh) } else { index.remove(fresh.hash()) };
                let expected = if inserts { model.insert(n, expires) } else { model.remove(&n) };
                prop_assert_eq!(old.map(|e| e.expires().is_some()), expected);
            }
            prop_assert_eq!(index.len(), model.len() as u64);
            prop_assert_eq!(index.volatile(), model.values().filter(|v| **v).count() as u64);
            for n in 0..300 {
                let found = index.find(entry(n, None).hash());
                let wanted = (n, n + HEADER as u32, n);
                prop_assert_eq!(found.map(|e| (e.addr().log_page.0, e.bytes(), e.access())), model.get(&n).map(|_| wanted));
            }
        }

        #[test]
        fn a_scan_finds_every_key_that_stays_whatever_comes_and_goes(count in 1usize..50, changes in proptest::collection::vec((1000u32..3000, any::<bool>()), 0..3000)) {
            let mut index = Index::default();
            (0..500).for_each(|n| assert!(index.insert(entry(n, None)).is_none()));
            let mut changes = changes.into_iter();
            let (mut cursor, mut seen) = (0, BTreeSet::new());
            loop {
                let mut found = Vec::new();
                cursor = index.scan(cursor, count, &mut found);
                seen.extend(found.iter().map(|e| e.addr().log_page.0));
                if cursor == 0 {
                    break;
                }
                for (n, inserts) in changes.by_ref().take(100) {
                    let _ = if inserts { index.insert(entry(n, None)) } else { index.remove(entry(n, None).hash()) };
                }
            }
            prop_assert!((0..500).all(|n| seen.contains(&n)));
        }
    }

    #[test]
    fn any_key_is_drawn_as_often_as_the_others() {
        let mut index = Index::default();
        assert!(index.any(9).is_none());
        (0..10).for_each(|n| assert!(index.insert(entry(n, None)).is_none()));
        let mut random = 1u64;
        let mut draw = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            index.any(random >> 8).unwrap().addr().log_page.0
        };
        let mut drawn = [0; 10];
        (0..10_000).for_each(|_| drawn[draw() as usize] += 1);
        assert!(drawn.iter().all(|times| (800..1200).contains(times)), "{drawn:?}");
    }

    #[test]
    fn an_index_is_drained_piece_by_piece() {
        let mut index = Index::default();
        (0..5000).for_each(|n| assert!(index.insert(entry(n, Some(1))).is_none()));
        let mut taken = Vec::new();
        let mut pieces = 0;
        while index.len() > 0 {
            index.drain_some(&mut taken);
            pieces += 1;
        }
        assert_eq!(taken.len(), 5000);
        assert!(pieces > 100);
    }
}
