//! Random operations in random batches against a model: a byte array.

use crate::rig::*;
use annex_fabric::{Connector, ErrorKind, Op, OpKind};
use annex_shared::ids::RemoteAddr;
use proptest::prelude::*;
use std::sync::LazyLock;

/// The part of the slab that operations fall on, small so that they overlap; it ends where the slab
/// does.
const SPAN: usize = 40 << 10;
const START: u64 = (SLAB - SPAN) as u64;
/// Room for one operation in the arena.
const ROOM: usize = 16 << 10;

#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    at: u64,
    len: u32,
    seed: u64,
}

fn batches() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = (0u8..3, 0..SPAN as u64 + 64, 0u32..ROOM as u32, 0u64..4);
    let step = step.prop_map(|(kind, at, len, seed)| Step { kind, at, len, seed });
    prop::collection::vec(prop::collection::vec(step, 1..12), 1..8)
}

/// Operations of one batch run in order on one connection, so the model applies them in order too.
fn check(connector: &dyn Connector, donor: &Donor, batches: &[Vec<Step>]) {
    let mut lane = Lane::open(connector, 12 * ROOM);
    let mut model = pattern(99, SPAN);
    donor.table.poke(KEY, START as usize, &model);
    for batch in batches {
        let mut expected = Vec::new();
        for (i, step) in batch.iter().enumerate() {
            let (local, at) = (i * ROOM, step.at as usize);
            let (kind, len) = match step.kind {
                0 => (OpKind::Read, step.len),
                1 => (OpKind::Write, step.len),
                _ => {
                    let there = model.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()));
                    (OpKind::CompareSwap { expect: there ^ (step.seed & 1), swap: step.seed }, 8)
                }
            };
            let data = pattern(step.seed + 1, len as usize);
            lane.fill(local, &data);
            let range = at..at + len as usize;
            let (mut result, mut value, mut local_after) = (Ok(()), 0, data.clone());
            match kind {
                _ if range.end > SPAN => result = Err(ErrorKind::RemoteAccess),
                OpKind::Read => local_after = model[range].to_vec(),
                OpKind::Write => model[range].copy_from_slice(&data),
                OpKind::CompareSwap { .. } if at % 8 != 0 => result = Err(ErrorKind::RemoteAccess),
                OpKind::CompareSwap { expect, swap } => {
                    value = u64::from_le_bytes(model[range.clone()].try_into().unwrap());
                    if value == expect {
                        model[range].copy_from_slice(&swap.to_le_bytes());
                    }
                }
            }
            expected.push((local, local_after, result, value));
            let addr = RemoteAddr(START + step.at);
            lane.endpoint.post(Op { tag: i as u64, kind, local, len, rkey: KEY, addr }).unwrap();
        }
        lane.endpoint.ring();
        let mut done = lane.finish(batch.len());
        done.sort_by_key(|c| c.tag);
        for (c, (local, local_after, result, value)) in done.iter().zip(expected) {
            assert_eq!((c.result, c.value), (result, value), "{:?}", batch[c.tag as usize]);
            assert!(lane.bytes(local, local_after.len()) == local_after, "{:?}", batch[c.tag as usize]);
        }
        assert!(donor.table.peek(KEY, START as usize, SPAN) == model);
    }
}

/// One donor for all cases of a test.
static TCP: LazyLock<Donor> = LazyLock::new(Donor::start);
static SHM: LazyLock<Donor> = LazyLock::new(Donor::start);

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn tcp_does_what_the_model_does(batches in batches()) {
        check(&TCP.tcp(), &TCP, &batches);
    }

    #[test]
    fn shm_does_what_the_model_does(batches in batches()) {
        check(&SHM.shm(), &SHM, &batches);
    }
}
