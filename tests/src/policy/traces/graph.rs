//! Graphs: the edges lie in order, what belongs to nodes is wanted in none. An edge takes 16 bytes,
//! as where it has a weight.

use crate::policy::memory::{Array, Memory};
use crate::policy::traces::dice::Dice;

const DEGREE: usize = 16;
const EDGE: u64 = 16;

/// As [`graph`](crate::access::graph) does it for `annex-bench --programs`.
pub fn page_rank(memory: &Memory) {
    const NODES: usize = 150_000;
    let mut dice = Dice(4);
    let mut sources: Array<u32> = memory.array(NODES * DEGREE, EDGE);
    (0..sources.len()).for_each(|i| sources.set(i, popular(&mut dice, NODES)));
    let mut links: Array<u32> = memory.array(NODES, 8);
    for i in 0..sources.len() {
        let node = sources.get(i) as usize;
        let n = links.get(node) + 1;
        links.set(node, n);
    }
    let (mut ranks, mut shares) = (memory.array::<f64>(NODES, 24), memory.array::<f64>(NODES, 24));
    for _ in 0..10 {
        for node in 0..NODES {
            let share = ranks.get(node) / f64::from(links.get(node).max(1));
            shares.set(node, share);
        }
        for node in 0..NODES {
            let rank = (0..DEGREE).map(|edge| shares.get(sources.get(node * DEGREE + edge) as usize)).sum();
            ranks.set(node, rank);
        }
    }
}

fn popular(dice: &mut Dice, nodes: usize) -> u32 {
    let roll = dice.roll();
    let product = ((roll >> 32) * (roll & 0xffff_ffff)) >> 32;
    let rank = (product as usize * nodes) >> 32;
    (rank.wrapping_mul(2_654_435_761) % nodes) as u32
}

/// Breadth first from five nodes, over edges that mostly lead to nodes near by.
pub fn breadth_first(memory: &Memory) {
    const NODES: usize = 180_000;
    let mut dice = Dice(5);
    let mut edges: Array<u32> = memory.array(NODES * DEGREE, EDGE);
    for i in 0..edges.len() {
        let near = i / DEGREE + dice.below(5_000);
        let to = if dice.is_in(8) { dice.below(NODES) } else { near % NODES };
        edges.set(i, to as u32);
    }
    let mut depths: Array<u32> = memory.array(NODES, 32);
    let mut queue: Array<u32> = memory.array(NODES, 8);
    for search in 0..5 {
        (0..NODES).for_each(|node| depths.set(node, 0));
        let start = dice.below(NODES);
        depths.set(start, 1);
        queue.set(0, start as u32);
        let (mut first, mut end) = (0, 1);
        while first < end {
            let node = queue.get(first) as usize;
            let depth = depths.get(node);
            first += 1;
            for edge in 0..DEGREE {
                let to = edges.get(node * DEGREE + edge) as usize;
                if depths.get(to) == 0 {
                    depths.set(to, depth + 1);
                    queue.set(end, to as u32);
                    end += 1;
                }
            }
        }
        assert!(end > NODES / 2, "search {search} found {end} nodes");
    }
}
