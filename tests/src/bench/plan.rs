//! What is to be measured.

use super::contender::Contender;
use super::{advise, pause, programs};
use crate::access::Pattern;
use serde::Serialize;
use std::path::PathBuf;

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub bytes: u64,
    /// Measured in each cell, after half as long to settle.
    pub seconds: f64,
    pub rounds: usize,
    pub contenders: Vec<Contender>,
    pub cells: Vec<Cell>,
    pub pause: Option<pause::Plan>,
    pub advise: Option<advise::Plan>,
    pub programs: Option<programs::Plan>,
    /// The program that is the contender of that name.
    pub umap: Option<PathBuf>,
    pub results: PathBuf,
}

/// What one contender does once per round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cell {
    pub pattern: Pattern,
    pub threads: usize,
    pub resident_percent: u64,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cell { pattern, threads, resident_percent } = self;
        write!(
            f,
            "{:<10} {resident_percent:>3}%  {threads} thread{}",
            pattern.name(),
            if *threads == 1 { " " } else { "s" }
        )
    }
}

impl Cell {
    /// Every pattern at every share on each number of threads.
    pub fn all(patterns: &[Pattern], threads: &[usize], resident: &[u64]) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &pattern in patterns {
            for &threads in threads {
                cells.extend(resident.iter().map(|&resident_percent| Cell { pattern, threads, resident_percent }));
            }
        }
        cells
    }

    /// What the bars ask for: every pattern at a half and a quarter; a second thread where it is
    /// faults alone that are measured; three quarters where the plot of shares needs it.
    pub fn usual() -> Vec<Cell> {
        let mut cells = Cell::all(&Pattern::ALL, &[1], &[50, 25]);
        cells.extend(Cell::all(&[Pattern::Random], &[2], &[50, 25]));
        cells.extend(Cell::all(&[Pattern::Zipf], &[1], &[75]));
        cells.sort_unstable();
        cells
    }
}

impl Plan {
    /// What this contender does in this round.
    pub fn cells_of(&self, contender: Contender, round: usize) -> Vec<Cell> {
        let mut cells = self.cells.clone();
        match contender {
            // All in memory is the same at every share.
            Contender::Ram => cells.iter_mut().for_each(|cell| cell.resident_percent = 100),
            Contender::Readahead => cells.retain(|cell| cell.pattern == Pattern::Sequential),
            // So slow that one round of the plain patterns says enough.
            Contender::Disk => {
                let plain = [Pattern::Random, Pattern::Sequential, Pattern::Zipf];
                cells.retain(|cell| round == 0 && cell.threads == 1 && plain.contains(&cell.pattern));
            }
            _ => {}
        }
        cells.sort_unstable();
        cells.dedup();
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            bytes: 1 << 20,
            seconds: 1.0,
            rounds: 5,
            contenders: Contender::ALL.to_vec(),
            cells: Cell::usual(),
            pause: None,
            advise: None,
            programs: None,
            umap: None,
            results: PathBuf::new(),
        }
    }

    #[test]
    fn memory_alone_runs_each_pattern_once_whatever_the_shares() {
        let cells = plan().cells_of(Contender::Ram, 0);
        assert_eq!(cells.len(), Pattern::ALL.len() + 1, "{cells:?}");
        assert!(cells.iter().all(|cell| cell.resident_percent == 100));
    }

    #[test]
    fn the_disk_runs_in_one_round_only() {
        let plan = plan();
        assert!(!plan.cells_of(Contender::Disk, 0).is_empty());
        assert!(plan.cells_of(Contender::Disk, 1).is_empty());
        assert_eq!(plan.cells_of(Contender::AnnexShm, 4), plan.cells);
    }
}
