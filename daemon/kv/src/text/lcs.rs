//! The longest common subsequence of two strings, and where its runs lie in them.
//!
//! The usual table of lengths, but only its last two rows are kept, and of every cell one bit:
//! which way back from it. So the table needs a thirty-second part of the memory that the limit is
//! reckoned in.

/// Bytes of the table that a caller may ask for, reckoned as Redis does: four for each cell.
const MOST_TABLE: u64 = 512 << 20;

/// A run that both strings have: where it lies in each, first and last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub a: (u32, u32),
    pub b: (u32, u32),
}

impl Run {
    pub fn bytes(&self) -> u32 {
        self.a.1 - self.a.0 + 1
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Common {
    pub bytes: Vec<u8>,
    /// From the end to the beginning.
    pub runs: Vec<Run>,
}

/// Cells of the table for strings of these lengths; `None`: more than is permitted.
pub fn cells(a: usize, b: usize) -> Option<u64> {
    let cells = (a as u64 + 1).checked_mul(b as u64 + 1)?;
    (cells.checked_mul(4)? <= MOST_TABLE).then_some(cells)
}

/// The length alone.
pub fn length(a: &[u8], b: &[u8]) -> u32 {
    fill(a, b, |_, _, _| {})
}

pub fn common(a: &[u8], b: &[u8]) -> Common {
    let mut ups = Ups { width: b.len(), words: vec![0; (a.len() * b.len()).div_ceil(64)] };
    let length = fill(a, b, |i, j, up| {
        if up {
            ups.put(i, j);
        }
    });
    walk_back(a, b, &ups, length)
}

/// Of each cell, whether the one above it is greater than the one to its left.
struct Ups {
    width: usize,
    words: Vec<u64>,
}

impl Ups {
    fn put(&mut self, i: usize, j: usize) {
        let at = i * self.width + j;
        self.words[at / 64] |= 1 << (at % 64);
    }

    fn is(&self, i: usize, j: usize) -> bool {
        let at = i * self.width + j;
        self.words[at / 64] >> (at % 64) & 1 == 1
    }
}

/// Goes through the table row by row and tells of each cell whether the one above is greater than
/// the one to the left.
fn fill(a: &[u8], b: &[u8], mut tell: impl FnMut(usize, usize, bool)) -> u32 {
    let (mut above, mut row) = (vec![0u32; b.len() + 1], vec![0u32; b.len() + 1]);
    for (i, x) in a.iter().enumerate() {
        for (j, y) in b.iter().enumerate() {
            let (up, left) = (above[j + 1], row[j]);
            row[j + 1] = if x == y { above[j] + 1 } else { up.max(left) };
            tell(i, j, up > left);
        }
        std::mem::swap(&mut above, &mut row);
    }
    above[b.len()]
}

fn walk_back(a: &[u8], b: &[u8], ups: &Ups, length: u32) -> Common {
    let (mut i, mut j) = (a.len(), b.len());
    let mut common = Common { bytes: Vec::with_capacity(length as usize), runs: Vec::new() };
    let mut open: Option<Run> = None;
    while i > 0 && j > 0 {
        if a[i - 1] != b[j - 1] {
            common.runs.extend(open.take());
            if ups.is(i - 1, j - 1) {
                i -= 1;
            } else {
                j -= 1;
            }
            continue;
        }
        (i, j) = (i - 1, j - 1);
        common.bytes.push(a[i]);
        let (x, y) = (i as u32, j as u32);
        match &mut open {
            Some(run) if run.a.0 == x + 1 && run.b.0 == y + 1 => (run.a.0, run.b.0) = (x, y),
            _ => {
                common.runs.extend(open.take());
                open = Some(Run { a: (x, x), b: (y, y) });
            }
        }
    }
    common.runs.extend(open);
    common.bytes.reverse();
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documented_example_comes_out() {
        let found = common(b"ohmytext", b"mynewtext");
        assert_eq!(found.bytes, b"mytext");
        assert_eq!(found.runs, [Run { a: (4, 7), b: (5, 8) }, Run { a: (2, 3), b: (0, 1) }]);
        assert_eq!(length(b"ohmytext", b"mynewtext"), 6);
    }

    #[test]
    fn strings_without_anything_in_common_have_no_runs() {
        assert_eq!(common(b"abc", b"xyz"), Common::default());
        assert_eq!(common(b"", b"xyz"), Common::default());
        assert_eq!(common(b"abc", b""), Common::default());
    }

    #[test]
    fn a_table_beyond_the_limit_is_refused() {
        assert!(cells(11_584, 11_584).is_some());
        assert!(cells(11_586, 11_586).is_none());
        assert!(cells(512 << 20, 512 << 20).is_none());
        assert!(cells(usize::MAX >> 1, usize::MAX >> 1).is_none());
    }

    fn is_subsequence(part: &[u8], of: &[u8]) -> bool {
        let mut of = of.iter();
        part.iter().all(|c| of.any(|d| d == c))
    }

    proptest! {
        #[test]
        fn it_is_a_subsequence_of_both_and_its_runs_spell_it(a in "[abc]{0,30}", b in "[abc]{0,30}") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            let found = common(a, b);
            prop_assert!(is_subsequence(&found.bytes, a) && is_subsequence(&found.bytes, b));
            prop_assert_eq!(length(a, b) as usize, found.bytes.len());
            let of = |run: &Run| a[run.a.0 as usize..=run.a.1 as usize].to_vec();
            let spelt: Vec<u8> = found.runs.iter().rev().flat_map(of).collect();
            prop_assert_eq!(spelt, found.bytes);
        }
    }
}
