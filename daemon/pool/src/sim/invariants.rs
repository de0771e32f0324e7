//! What must hold after each step, and what it needs to know of pages that were reported written.

use super::*;
use std::cell::Cell;

const MOST_DONORS: usize = 6;
const MOST_SLABS: usize = 16;

impl World<'_> {
    pub(super) fn check(&mut self) {
        self.tally.saw(Seen::Checked);
        let mut slabs: [[bool; MOST_SLABS]; MOST_DONORS] = Default::default();
        for extent in (0..EXTENTS).map(ExtentId) {
            let acknowledged = self.contents(extent);
            let written = self.written(extent);
            let Some(replicas) = self.table.replicas(extent) else {
                assert!(written == 0, "{extent} is gone, with slots {written:#b}");
                continue;
            };
            let (mut donors, mut held) = (0u64, 0u64);
            for (n, r) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                assert!(donors & 1 << r.donor.0 == 0, "two replicas of {extent} on {}", r.donor);
                donors |= 1 << r.donor.0;
                let is_used = &mut slabs[usize::from(r.donor.0)][r.slab.0 as usize];
                assert!(!std::mem::replace(is_used, true), "{} of {} is used twice", r.slab, r.donor);
                // What the donor does not have under this key is found out when it is asked; such a
                // replica is as good as none.
                let Some(bytes) = self.bytes(r) else { continue };
                let mut has = written;
                if lacks_any(acknowledged, bytes) {
                    let lacks = bits(acknowledged, |n, content| content != 0 && content != bytes[n]);
                    let state = r.state;
                    has &= !lacks;
                    let unknown = lacks & !self.missed(extent, n) & !self.copied(extent, n);
                    assert!(
                        unknown == 0,
                        "replica {n} of {extent} ({state:?}) lacks slots {unknown:#b} and nobody knows"
                    );
                    assert!(state != ReplicaState::Live, "live replica {n} of {extent} lacks slots {lacks:#b}");
                }
                // One that is stale or syncing for the moment will be live again: its bytes are
                // there.
                held |= has;
            }
            let lost = written & !held;
            assert!(lost == 0, "slots {lost:#b} of {extent} were reported written and no replica has them");
        }
    }

    /// The slots of a replica that are marked as missed, by bit.
    fn missed(&self, extent: ExtentId, index: u8) -> u64 {
        let found = Cell::new(0);
        self.table.missed_count(extent, index, |_, bits| {
            found.set(found.get() | bits);
            bits
        });
        found.get() >> (extent.0 * SLOTS % 64)
    }

    /// Those that are being copied.
    fn copied(&self, extent: ExtentId, index: u8) -> u64 {
        let copying = self.copying.as_ref().filter(|c| (c.fill.extent, c.fill.index) == (extent, index));
        copying.map_or(0, |c| ((1 << (SLOTS / 2)) - 1) << c.fill.cursor)
    }

    /// The offsets in an extent where something was reported written, by bit.
    pub(super) fn written(&self, extent: ExtentId) -> u64 {
        bits(self.contents(extent), |_, content| content != 0)
    }

    /// What was reported written to an extent.
    fn contents(&self, extent: ExtentId) -> &Contents {
        &self.acknowledged.as_chunks().0[extent.0 as usize]
    }

    /// Nothing that was reported written is marked as missed.
    pub(super) fn has_all(&self, extent: ExtentId, index: u8) -> bool {
        self.written(extent) & (self.missed(extent, index) | self.copied(extent, index)) == 0
    }
}

/// The slots for whose offset and content something is so, by bit.
fn bits(contents: &Contents, is_so: impl Fn(usize, u32) -> bool) -> u64 {
    contents.iter().enumerate().fold(0, |bits, (n, content)| bits | u64::from(is_so(n, *content)) << n)
}

/// Something that was reported written is not there. Without a branch: most of what schedules do is
/// look at this.
fn lacks_any(reported: &Contents, bytes: &Contents) -> bool {
    let lacks = |(reported, byte): (&u32, &u32)| if *reported == 0 { 0 } else { reported ^ byte };
    reported.iter().zip(bytes).map(lacks).fold(0, |all, one| all | one) != 0
}
