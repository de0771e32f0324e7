//! What a page must hold. Every page's content follows from three numbers, so that nothing but a
//! generation has to be remembered to check all of its 4096 bytes:
//!
//! ```text
//! stamp  = mix(seed, page, generation)
//! word i = stamp + i * STEP            (512 little-endian words)
//! ```
//!
//! Two pages, two generations of one page, and two halves of a torn page never look alike.

pub use annex_cli::access::dice::Dice;
use annex_cli::access::dice::{STEP, mix};
use std::fmt;

pub const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// The bytes a page must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Fresh or discarded memory.
    Zero,
    Stamp(u64),
}

impl Content {
    /// The content of `page` in its `generation`, different for every pair.
    pub fn of(seed: u64, page: u64, generation: u64) -> Content {
        Content::Stamp(mix(mix(seed ^ page.wrapping_mul(STEP)) ^ generation) | 1)
    }

    fn word(self, i: usize) -> u64 {
        match self {
            Content::Zero => 0,
            Content::Stamp(stamp) => stamp.wrapping_add((i as u64).wrapping_mul(STEP)),
        }
    }

    /// Writes the content to the page at `at`.
    ///
    /// # Safety
    /// `at` is page-aligned and 4096 writable bytes that nobody else touches meanwhile.
    pub unsafe fn fill(self, at: *mut u8) {
        // SAFETY: the caller vouches for the page; alignment follows from it.
        let words = unsafe { std::slice::from_raw_parts_mut(at.cast::<u64>(), WORDS) };
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.word(i).to_le();
        }
    }

    /// Compares every byte of the page at `at`.
    ///
    /// # Safety
    /// `at` is page-aligned and 4096 readable bytes that nobody writes meanwhile.
    pub unsafe fn check(self, at: *const u8) -> Result<(), Mismatch> {
        // SAFETY: the caller vouches for the page; alignment follows from it.
        let words = unsafe { std::slice::from_raw_parts(at.cast::<u64>(), WORDS) };
        let mut wrong = 0;
        let mut first = None;
        for (i, word) in words.iter().enumerate() {
            if u64::from_le(*word) != self.word(i) {
                wrong += 1;
                first.get_or_insert(i);
            }
        }
        let Some(i) = first else { return Ok(()) };
        Err(Mismatch {
            address: at as usize,
            offset: i * 8,
            expected: self.word(i),
            got: u64::from_le(words[i]),
            wrong_words: wrong,
            all_zero: words.iter().all(|w| *w == 0),
        })
    }

    /// Compares a page that the kernel may turn into zeros at any moment (`MADV_FREE`): each word
    /// is the old one or zero.
    ///
    /// # Safety
    /// As for [`Content::check`].
    pub unsafe fn check_or_zero(self, at: *const u8) -> Result<(), Mismatch> {
        for i in 0..WORDS {
            // SAFETY: the caller vouches for the page. Volatile: the kernel may change it between
            // two reads.
            let got = u64::from_le(unsafe { at.cast::<u64>().add(i).read_volatile() });
            if got != 0 && got != self.word(i) {
                let expected = self.word(i);
                return Err(Mismatch {
                    address: at as usize,
                    offset: i * 8,
                    expected,
                    got,
                    wrong_words: 1,
                    all_zero: false,
                });
            }
        }
        Ok(())
    }
}

/// Fills any buffer with bytes that follow from three numbers, as pages are; for values in
/// databases and files.
pub fn known_bytes(seed: u64, item: u64, generation: u64, into: &mut [u8]) {
    let content = Content::of(seed, item, generation);
    for (i, chunk) in into.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&content.word(i).to_le_bytes()[..chunk.len()]);
    }
}

/// A page that holds something else than it must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub address: usize,
    /// Of the first wrong word.
    pub offset: usize,
    pub expected: u64,
    pub got: u64,
    /// Of 512.
    pub wrong_words: usize,
    pub all_zero: bool,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { address, offset, expected, got, wrong_words, all_zero } = self;
        write!(
            f,
            "address {address:#x} offset {offset}: expected {expected:#018x}, got {got:#018x} ({wrong_words} of {WORDS} words wrong"
        )?;
        f.write_str(if *all_zero { "; the page is all zeros)" } else { ")" })
    }
}

/// The finaliser of SplitMix64.
#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([u8; PAGE]);

    #[test]
    fn one_flipped_bit_anywhere_is_seen() {
        let mut page = Page([0; PAGE]);
        let content = Content::of(1, 2, 3);
        // SAFETY: the page is ours, aligned and whole.
        unsafe { content.fill(page.0.as_mut_ptr()) };
        for bit in (0..PAGE * 8).step_by(61) {
            page.0[bit / 8] ^= 1 << (bit % 8);
            // SAFETY: as above.
            let seen = unsafe { content.check(page.0.as_ptr()) };
            assert_eq!(seen.unwrap_err().offset, bit / 8 / 8 * 8);
            page.0[bit / 8] ^= 1 << (bit % 8);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { content.check(page.0.as_ptr()) }, Ok(()));
    }

    #[test]
    fn neighbours_and_generations_differ() {
        assert_ne!(Content::of(1, 2, 3), Content::of(1, 3, 3));
        assert_ne!(Content::of(1, 2, 3), Content::of(1, 2, 4));
        assert_ne!(Content::of(1, 2, 3), Content::of(2, 2, 3));
    }
}
