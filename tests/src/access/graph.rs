//! PageRank on a graph made up from a seed: a few pages popular, the edges read in order, the ranks
//! in none. As graph programs go; and its ranks must add up to one.

use crate::stress::content::Dice;
use anyhow::ensure;

/// Edges that lead to each node.
const DEGREE: usize = 16;
const DAMPING: f64 = 0.85;

/// The sum of all ranks and the highest one, after so many passes.
pub fn page_rank(nodes: usize, passes: usize) -> anyhow::Result<(f64, f64)> {
    ensure!(nodes > 0 && nodes <= u32::MAX as usize, "a graph of {nodes} nodes");
    let mut dice = Dice::new(1);
    // The product of two is often low: a few nodes have most of the links that lead away.
    let sources: Vec<u32> = (0..nodes * DEGREE).map(|_| popular(&mut dice, nodes)).collect();
    let mut links = vec![0u32; nodes];
    sources.iter().for_each(|node| links[*node as usize] += 1);
    let mut ranks = vec![1.0 / nodes as f64; nodes];
    let mut shares = vec![0.0; nodes];
    for _ in 0..passes {
        // Who links to nobody links to all.
        let mut lost = 0.0;
        for ((share, rank), links) in shares.iter_mut().zip(&ranks).zip(&links) {
            *share = if *links == 0 { 0.0 } else { rank / f64::from(*links) };
            lost += if *links == 0 { *rank } else { 0.0 };
        }
        let base = (1.0 - DAMPING + DAMPING * lost) / nodes as f64;
        for (rank, sources) in ranks.iter_mut().zip(sources.chunks_exact(DEGREE)) {
            *rank = base + DAMPING * sources.iter().map(|node| shares[*node as usize]).sum::<f64>();
        }
    }
    let sum: f64 = ranks.iter().sum();
    ensure!((sum - 1.0).abs() < 1e-6, "WRONG RANKS: they add up to {sum}");
    Ok((sum, ranks.into_iter().fold(0.0, f64::max)))
}

fn popular(dice: &mut Dice, nodes: usize) -> u32 {
    let roll = dice.roll();
    let product = ((roll >> 32) * (roll & 0xffff_ffff)) >> 32;
    // Popular ones lie anywhere.
    let rank = (product as usize * nodes) >> 32;
    (rank.wrapping_mul(2_654_435_761) % nodes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_add_up_and_some_are_higher() {
        let (sum, highest) = page_rank(1000, 5).unwrap();
        assert!((sum - 1.0).abs() < 1e-9 && highest > 1.1 / 1000.0, "{sum} {highest}");
    }
}
