//! Extent tables of older layout versions, copied into one of the present version. The old
//! descriptor is only read.

use crate::metadata::extents::{EXTENT_AT, ExtentTable, LIVE, MAX_EXTENTS, TableError, layout_version};
use crate::metadata::replica::{Replica, ReplicaState};
use annex_host::mapped::Mapped;
use annex_shared::ids::{ClientId, DonorId, ExtentId, Incarnation, Rkey, SlabId};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Version 1: 128 bytes per extent, up to four replicas, live or lost.
const EXTENT_LEN: usize = 128;
const REPLICA_AT: usize = 16;
const REPLICA_LEN: usize = 24;
const REPLICAS: u32 = 4;
const LEN: usize = EXTENT_AT + MAX_EXTENTS * EXTENT_LEN;

/// Takes the extent table of the annexd before over.
pub(crate) fn open(fd: OwnedFd) -> Result<ExtentTable, TableError> {
    let map = Mapped::open("annex-extents", fd)?;
    if layout_version(&map)? != 1 {
        return ExtentTable::from_map(map);
    }
    let table = from_v1(&map)?;
    table.recover()?;
    Ok(table)
}

fn from_v1(old: &Mapped) -> Result<ExtentTable, TableError> {
    if old.size() != LEN {
        return Err(TableError::Damaged("its length is not the layout's"));
    }
    let table = ExtentTable::create(ClientId(old.u64(24).load(Relaxed)))?;
    table.copy_head(old);
    let used = old.u32(32).load(Relaxed).min(MAX_EXTENTS as u32);
    for extent in 0..used {
        let at = EXTENT_AT + extent as usize * EXTENT_LEN;
        if old.u32(at).load(Acquire) != LIVE {
            continue;
        }
        let count = old.u32(at + 4).load(Relaxed).min(REPLICAS) as usize;
        let replicas: Vec<Replica> = (0..count).map(|n| replica(old, at + REPLICA_AT + n * REPLICA_LEN)).collect();
        table.publish(ExtentId(extent), &replicas);
    }
    Ok(table)
}

fn replica(old: &Mapped, at: usize) -> Replica {
    let word = old.u32(at).load(Acquire);
    let replica = Replica::live(
        DonorId(word as u16),
        SlabId(old.u32(at + 4).load(Relaxed)),
        Incarnation(old.u64(at + 8).load(Relaxed)),
        Rkey(old.u64(at + 16).load(Relaxed)),
    );
    Replica { state: if word >> 16 == 1 { ReplicaState::Live } else { ReplicaState::Lost }, ..replica }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::extents::{DONOR_AT, MAGIC};

    /// A table as version 1 wrote it: two donors, extent 2 with a live and a lost replica, extent 3
    /// being returned.
    fn v1() -> Mapped {
        let old = Mapped::create("test", LEN).unwrap();
        for (at, value) in [(8, 1), (12, 256), (16, 256), (20, MAX_EXTENTS as u32), (32, 4)] {
            old.u32(at).store(value, Relaxed);
        }
        old.u64(24).store(42, Relaxed);
        for (i, address) in [b"a.test:1", b"b.test:1"].into_iter().enumerate() {
            old.u64(DONOR_AT + i * 256 + 8).store(u64::from_le_bytes(*address), Relaxed);
            old.u32(DONOR_AT + i * 256).store(8, Relaxed);
        }
        for (extent, state) in [(2, LIVE), (3, 2)] {
            let at = EXTENT_AT + extent * EXTENT_LEN;
            old.u32(at + 4).store(2, Relaxed);
            for (n, word) in [1 << 16, 2 << 16 | 1].into_iter().enumerate() {
                let at = at + REPLICA_AT + n * REPLICA_LEN;
                old.u32(at).store(word, Relaxed);
                old.u32(at + 4).store(7, Relaxed);
                old.u64(at + 8).store(11, Relaxed);
                old.u64(at + 16).store(13, Relaxed);
            }
            old.u32(at).store(state, Relaxed);
        }
        old.u64(0).store(MAGIC, Relaxed);
        old
    }

    #[test]
    fn a_table_of_version_1_is_taken_over_and_left_as_it_was() {
        let old = v1();
        let table = open(old.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((table.client(), table.slots_per_extent()), (ClientId(42), Some(256)));
        let donors: Vec<_> = table.donors().collect();
        assert_eq!(donors, [(DonorId(0), "a.test:1".to_owned()), (DonorId(1), "b.test:1".to_owned())]);
        let live: Vec<_> = table.live().collect();
        assert_eq!(live.len(), 1);
        assert_eq!(live[0].0, ExtentId(2));
        let states: Vec<_> = live[0].1.iter().map(|(_, r)| (r.donor.0, r.state, r.slab.0, r.rkey.0)).collect();
        assert_eq!(states, [(0, ReplicaState::Live, 7, 13), (1, ReplicaState::Lost, 7, 13)]);
        assert_eq!(old.u32(8).load(Relaxed), 1);
        assert_eq!(old.u32(EXTENT_AT + 3 * EXTENT_LEN).load(Relaxed), 2);
    }
}
