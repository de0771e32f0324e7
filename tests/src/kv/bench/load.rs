//! What is asked of a server: which requests, for which keys, how many at a time.

use super::protocol::{Key, Kind, key};
use crate::access::zipf::Zipf;
use crate::stress::content::Dice;
use clap::ValueEnum;
use serde::Serialize;

/// Bytes of values in all, unless the keys are too many.
const SET: usize = 128 << 20;
const MOST_KEYS: usize = 500_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// Reads, each key as likely as any other.
    Get,
    /// Writes, each key as likely as any other.
    Set,
    /// Nine reads to one write; keys by Zipf with exponent 0.99.
    Mixed,
}

impl Mix {
    pub const ALL: [Mix; 3] = [Mix::Get, Mix::Set, Mix::Mixed];

    pub fn name(self) -> &'static str {
        match self {
            Mix::Get => "get",
            Mix::Set => "set",
            Mix::Mixed => "mixed",
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    pub mix: Mix,
    /// Bytes of a value.
    pub bytes: usize,
    /// Requests of a connection under way at a time.
    pub pipeline: usize,
    pub connections: usize,
}

/// How many keys there are when values are of so many bytes.
pub fn keys(bytes: usize) -> usize {
    (SET / bytes).clamp(1, MOST_KEYS)
}

/// Requests without end.
pub struct Requests {
    keys: usize,
    dice: Dice,
    draw: Draw,
}

enum Draw {
    InOrder(usize),
    Evenly(Kind),
    Mixed(Zipf),
}

impl Requests {
    /// Writes of all keys, one after the other.
    pub fn fill(bytes: usize) -> Requests {
        Requests { keys: keys(bytes), dice: Dice::new(0), draw: Draw::InOrder(0) }
    }

    /// Of a mix. `zipf` is over all keys of that size: making one takes long.
    pub fn drawn(load: Load, zipf: Zipf, seed: u64) -> Requests {
        let draw = match load.mix {
            Mix::Get => Draw::Evenly(Kind::Get),
            Mix::Set => Draw::Evenly(Kind::Set),
            Mix::Mixed => Draw::Mixed(zipf),
        };
        Requests { keys: keys(load.bytes), dice: Dice::new(seed), draw }
    }

    pub fn draw(&mut self) -> (Kind, Key) {
        let (kind, number) = match &mut self.draw {
            Draw::InOrder(next) => {
                let number = *next;
                *next = (number + 1) % self.keys;
                (Kind::Set, number)
            }
            Draw::Evenly(kind) => (*kind, self.dice.below(self.keys)),
            Draw::Mixed(zipf) => {
                let kind = if self.dice.one_in(10) { Kind::Set } else { Kind::Get };
                (kind, zipf.scattered(self.dice.roll()))
            }
        };
        (kind, key(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_fill_writes_every_key_once() {
        let mut requests = Requests::fill(16384);
        let written: std::collections::BTreeSet<_> = (0..keys(16384)).map(|_| requests.draw().1).collect();
        assert_eq!(written.len(), 8192);
        assert_eq!(requests.draw(), (Kind::Set, key(0)));
    }

    #[test]
    fn the_mix_is_one_write_in_ten_and_a_few_keys_are_most_of_it() {
        let load = Load { mix: Mix::Mixed, bytes: 16384, pipeline: 1, connections: 1 };
        let mut requests = Requests::drawn(load, Zipf::new(keys(load.bytes), 0.99), 1);
        let (mut writes, mut drawn) = (0, BTreeMap::<Key, u32>::new());
        for _ in 0..100_000 {
            let (kind, key) = requests.draw();
            writes += u32::from(kind == Kind::Set);
            *drawn.entry(key).or_default() += 1;
        }
        assert!((9_500..10_500).contains(&writes), "{writes} writes");
        let mut counts: Vec<u32> = drawn.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let tenth: u32 = counts[..819].iter().sum();
        assert!((70_000..85_000).contains(&tenth), "a tenth of the keys got {tenth}");
    }
}
