//! The slot table alone: counts, free maps, and what is right to read from a slot.

use super::*;
use annex_shared::ids::ClientId;
use proptest::prelude::*;

const PER_EXTENT: u32 = 256;

fn tables() -> (ExtentTable, SlotTable) {
    let extents = ExtentTable::create(ClientId(1)).unwrap();
    extents.fix_slots_per_extent(PER_EXTENT);
    let slots = SlotTable::create().unwrap();
    slots.adopt(ExtentId(0), PER_EXTENT);
    slots.adopt(ExtentId(1), PER_EXTENT);
    (extents, slots)
}

#[test]
fn references_from_many_threads_free_the_slot_exactly_once() {
    let (extents, slots) = tables();
    let run = slots.take(ExtentId(1), PER_EXTENT, 16).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..2000 {
                    assert!(run.slots().all(|slot| slots.retain(slot)));
                    assert!(run.slots().all(|slot| slots.release(&extents, slot)));
                }
            });
        }
    });
    assert!(run.slots().all(|slot| slots.references(slot) == 1));
    assert_eq!(slots.free_count(ExtentId(1)), PER_EXTENT - 16);
    assert!(run.slots().all(|slot| slots.release(&extents, slot)));
    assert_eq!(slots.free_count(ExtentId(1)), PER_EXTENT);
    assert!(!slots.release(&extents, run.first), "a free slot was freed again");
    assert!(!slots.retain(run.first), "a free slot was brought back to life");
    let nonsense = SlotIdx(1 << SLOT_BITS | run.first.0);
    assert!(!slots.retain(nonsense) && !slots.release(&extents, nonsense));
}

#[test]
fn a_slot_that_very_many_share_is_free_when_the_last_lets_go() {
    let (extents, slots) = tables();
    let slot = slots.take(ExtentId(0), PER_EXTENT, 1).unwrap().first;
    for _ in 0..70_000 {
        assert!(slots.retain(slot));
    }
    for left in (0..=70_000).rev() {
        assert!(slots.release(&extents, slot));
        assert_eq!(slots.references(slot), left);
    }
    assert_eq!(slots.free_count(ExtentId(0)), PER_EXTENT);
}

/// What a donor gives for a slot is nothing but what was written to it: no page with the same
/// CRC32C, no page of another slot, none of another day; sealed or not.
#[test]
fn no_other_page_is_right() {
    for seals in [false, true] {
        let (_, mut slots) = tables();
        slots.set_sealing(seals);
        let run = slots.take(ExtentId(1), PER_EXTENT, 2).unwrap();
        let [slot, other] = [run.first, SlotIdx(run.first.0 + 1)];
        let write = |slot: SlotIdx, byte: u8| {
            let mut page = [byte; PAGE_SIZE];
            slots.prepare(SlotRun { first: slot, count: 1 }, &mut page);
            page
        };
        let others = write(other, 2);
        let yesterdays = write(slot, 1);
        let todays = write(slot, 3);
        assert!(slots.is_right(slot, &todays));
        assert_eq!(todays == [3; PAGE_SIZE], !seals);

        // The generator of CRC32C with its 33 bits, reflected: added to any page it leaves the
        // sum as it was.
        let mut forged = todays;
        let generator = 0x1_05ec_76f1u64.to_le_bytes();
        forged[100..108].iter_mut().zip(generator).for_each(|(byte, g)| *byte ^= g);
        assert!(forged != todays && checksum(&forged) == checksum(&todays));
        for wrong in [forged, others, yesterdays, [0; PAGE_SIZE]] {
            assert!(!slots.is_right(slot, &wrong));
            let mut opened = wrong;
            assert!(!slots.open_page(slot, &mut opened) && opened == wrong);
        }
        let mut opened = todays;
        assert!(slots.open_page(slot, &mut opened) && opened == [3; PAGE_SIZE]);
        assert!(slots.holds(slot, &[3; PAGE_SIZE]) && !slots.holds(slot, &[1; PAGE_SIZE]));
    }
}

/// Two pages sealed under one version would give away how they differ.
#[test]
fn no_two_writes_are_sealed_alike() {
    let (_, mut slots) = tables();
    let mut seen = std::collections::HashSet::new();
    for round in 0..4 {
        slots.set_sealing(true);
        let run = slots.take(ExtentId(1), PER_EXTENT, 8).unwrap();
        for _ in 0..2 {
            let mut pages = vec![0; 8 * PAGE_SIZE];
            slots.prepare(run, &mut pages);
            assert!(pages.chunks_exact(16).all(|block| seen.insert(block.to_owned())), "round {round}");
            slots.take_back(run, &mut pages);
            assert!(pages.iter().all(|byte| *byte == 0));
        }
        run.slots().for_each(|slot| slots.set_references(slot, 0));
        slots.abandon(ExtentId(1), PER_EXTENT);
        // The annexd before was killed.
        slots = SlotTable::open(slots.fd().try_clone_to_owned().unwrap()).unwrap();
        slots.adopt(ExtentId(1), PER_EXTENT);
    }
}

#[test]
fn pages_sealed_before_are_opened_by_an_annexd_that_seals_none() {
    let (_, mut slots) = tables();
    slots.set_sealing(true);
    let run = slots.take(ExtentId(1), PER_EXTENT, 1).unwrap();
    let mut page = [9; PAGE_SIZE];
    slots.prepare(run, &mut page);
    let next = SlotTable::open(slots.fd().try_clone_to_owned().unwrap()).unwrap();
    assert!(next.open_page(run.first, &mut page) && page == [9; PAGE_SIZE]);
    next.prepare(run, &mut page);
    assert!(page == [9; PAGE_SIZE] && next.open_page(run.first, &mut page));
}

#[test]
fn an_extent_given_back_takes_no_memory_and_comes_back_free() {
    let extents = ExtentTable::create(ClientId(1)).unwrap();
    extents.fix_slots_per_extent(16384);
    let slots = SlotTable::create().unwrap();
    slots.adopt(ExtentId(3), 16384);
    let ready = slots.resident();
    let run = slots.take(ExtentId(3), 16384, 16384).unwrap();
    slots.prepare(run, &mut vec![7; run.count as usize * PAGE_SIZE]);
    run.slots().for_each(|s| assert!(slots.release(&extents, s)));
    let used = slots.resident();
    slots.abandon(ExtentId(3), 16384);
    assert_eq!([ready, used].map(|bytes| bytes - slots.resident()), [16384 / 2, 16384 * 17 / 2]);
    assert_eq!(slots.free_count(ExtentId(3)), 0);
    slots.adopt(ExtentId(3), 16384);
    assert_eq!(slots.free_count(ExtentId(3)), 16384);
    assert!(!slots.is_right(run.first, &[7; PAGE_SIZE]));
}

#[test]
fn a_table_of_version_2_is_copied_and_its_pages_are_right_until_they_are_written_anew() {
    const PER_EXTENT: u32 = 512;
    let old_counts = older::LEN - SLOTS / 2;
    let old = Mapped::create("test", older::LEN).unwrap();
    let page = [3; PAGE_SIZE];
    for slot in [512, 513] {
        old.u8(old_counts + slot / 2).fetch_or(if slot == 512 { 1 } else { 15 << 4 }, Relaxed);
        old.u32(slot * 4).store(checksum(&page), Relaxed);
    }
    let table = SlotTable::open(old.fd().try_clone_to_owned().unwrap()).unwrap();
    table.adopt(ExtentId(1), PER_EXTENT);
    let [first, second] = [512, 513].map(SlotIdx);
    assert_eq!([first, second].map(|slot| table.references(slot)), [1, 15]);
    assert_eq!(table.free_count(ExtentId(1)), PER_EXTENT - 2);
    assert!(table.is_right(first, &page) && !table.is_right(first, &[4; PAGE_SIZE]));

    table.prepare(SlotRun { first, count: 1 }, &mut [4; PAGE_SIZE]);
    assert!(table.is_right(first, &[4; PAGE_SIZE]) && !table.is_right(first, &page));
    assert!(table.is_right(second, &page));
    assert_eq!(old.u32(512 * 4).load(Relaxed), checksum(&page), "the old table is only read");
}

proptest! {
    #[test]
    fn free_maps_recomputed_from_the_counts_are_those_that_were_kept(
        steps in prop::collection::vec((any::<bool>(), 1u32..40, any::<prop::sample::Index>()), 1..60)
    ) {
        let (extents, slots) = tables();
        let mut held: Vec<SlotIdx> = Vec::new();
        for (take, n, which) in steps {
            if take {
                if let Some(run) = slots.take(ExtentId(1), PER_EXTENT, n) {
                    held.extend(run.slots());
                }
            } else if !held.is_empty() {
                let slot = held.swap_remove(which.index(held.len()));
                prop_assert!(slots.release(&extents, slot));
            }
        }
        let next = SlotTable::open(slots.fd().try_clone_to_owned().unwrap()).unwrap();
        next.adopt(ExtentId(1), PER_EXTENT);
        prop_assert_eq!(next.free_count(ExtentId(1)), PER_EXTENT - held.len() as u32);
        prop_assert_eq!(next.free_count(ExtentId(1)), slots.free_count(ExtentId(1)));
        let bits = |t: &SlotTable| -> Vec<u64> {
            t.map_of(ExtentId(1)).get().unwrap().words.iter().map(|w| w.load(Relaxed)).collect()
        };
        prop_assert_eq!(bits(&next), bits(&slots));
    }

    #[test]
    fn the_run_found_is_the_next_one_cut_to_what_is_wanted(
        words in prop::collection::vec(prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)], 1..5),
        want in 1u32..140,
        bounds in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let bits: Vec<bool> = words.iter().flat_map(|w| (0..64).map(move |b| w >> b & 1 == 1)).collect();
        let (a, b) = (bounds.0.index(bits.len() + 1), bounds.1.index(bits.len() + 1));
        let (from, to) = (a.min(b), a.max(b));
        let start = (from..to).find(|at| bits[*at]);
        let expected = start.map(|at| {
            let len = bits[at..to].iter().take_while(|b| **b).count() as u32;
            (at as u32, len.min(want))
        });
        let words: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        prop_assert_eq!(next_run(&words, from as u32, to as u32, want), expected);
    }
}
