//! The table is a map from pages to records.

use super::layout::*;
use super::*;
use crate::page::PageIdx;
use annex_shared::ids::SlotIdx;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn a_covered_chunk_is_given_back_and_used_again() {
    let mut table = Table::new(1, 1).unwrap();
    let far = PageIdx::of(0x7fff_ff00_0000);
    table.set(far, Record::Evicted(SlotIdx(MAX_SLOT))).unwrap();
    assert_eq!(table.record(far), Record::Evicted(SlotIdx(MAX_SLOT)));
    let mut released = Vec::new();
    table.clear(PageIdx(0), Table::everything().1, |slot| released.push(slot));
    assert_eq!((released, table.evicted(), table.record(far)), (vec![SlotIdx(MAX_SLOT)], 0, Record::None));
    table.set(PageIdx(5), Record::Removed).unwrap();
    assert_eq!(table.words.read(12), 1, "the freed chunk is used again");
    assert_eq!(table.record(PageIdx(6)), Record::None, "and carries nothing over");
}

#[test]
fn neighbours_have_policies_of_their_own() {
    let mut table = Table::new(1, 1).unwrap();
    table.ensure(PageIdx(510), 4).unwrap();
    for page in 510..514 {
        table.set_policy(PageIdx(page), page as u8);
    }
    table.set_policy(PageIdx(511), 0);
    let found: Vec<u8> = (510..514).map(|p| table.policy(PageIdx(p))).collect();
    assert_eq!(found, [510u64 as u8 & 15, 0, 512u64 as u8 & 15, 513u64 as u8 & 15]);
    assert_eq!(table.record(PageIdx(511)), Record::None, "records lie elsewhere");
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, u32),
    Clear(u64, u64),
}

proptest! {
    #[test]
    fn the_table_is_a_map_from_pages_to_records(
        steps in proptest::collection::vec(prop_oneof![
            (0u64..3000, 0u32..50).prop_map(|(p, r)| Step::Set(p, r)),
            (0u64..3000, 0u64..1500).prop_map(|(p, n)| Step::Clear(p, n)),
        ], 1..200)
    ) {
        let mut table = Table::new(1, 1).unwrap();
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(page, r) => {
                    let record = match r { 0 => Record::None, 1 => Record::Removed, 2..20 => Record::Clean(SlotIdx(r)), _ => Record::Evicted(SlotIdx(r)) };
                    let before = table.set(PageIdx(page), record).unwrap();
                    let expected = if record == Record::None { model.remove(&page) } else { model.insert(page, record) };
                    prop_assert_eq!(before, expected.unwrap_or(Record::None));
                }
                Step::Clear(page, n) => {
                    let mut released = Vec::new();
                    table.clear(PageIdx(page), PageIdx(page + n), |s| released.push(s));
                    let gone: Vec<_> = model.range(page..page + n).map(|(p, r)| (*p, *r)).collect();
                    gone.iter().for_each(|(p, _)| { model.remove(p); });
                    prop_assert_eq!(released, gone.iter().filter_map(|(_, r)| r.slot()).collect::<Vec<_>>());
                }
            }
            let mut walked = Vec::new();
            let (start, end) = Table::everything();
            table.walk(start, end, |p, r| walked.push((p.0, r)));
            prop_assert_eq!(&walked, &model.iter().map(|(p, r)| (*p, *r)).collect::<Vec<_>>());
            let evicted = model.values().filter(|r| matches!(r, Record::Evicted(_))).count() as u64;
            prop_assert_eq!(table.evicted(), evicted);
        }
    }
}
