//! What annexd's policy is compared with: caches of so many pages, each with one page at a time
//! coming and going. [`opt`] knows the future and [`Lru`] every use; the others know of faults
//! alone, like annexd.

mod dip;
mod lirs;
mod list;
mod lru;
mod opt;
mod s3fifo;

pub use dip::Dip;
pub use lirs::Lirs;
pub use lru::{Fifo, Lru};
pub use opt::opt;
pub use s3fifo::S3Fifo;

use crate::policy::memory::{Step, Trace};

pub trait Cache {
    /// Uses a page; whether it was there.
    fn uses(&mut self, page: u32) -> bool;
    /// The page is no more.
    fn forgets(&mut self, page: u32);
}

/// Misses of pages that had been there before.
pub fn misses(cache: &mut dyn Cache, trace: &Trace) -> u64 {
    let mut is_known = vec![false; trace.end as usize];
    let mut misses = 0;
    for step in trace.steps() {
        match step {
            Step::Read(page) | Step::Write(page) => {
                let was_known = std::mem::replace(&mut is_known[page as usize], true);
                misses += u64::from(!cache.uses(page) && was_known);
            }
            Step::Gone(page) => {
                is_known[page as usize] = false;
                cache.forgets(page);
            }
        }
    }
    misses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::memory::Memory;

    fn a_loop(pages: u64, rounds: u64) -> Trace {
        let memory = Memory::default();
        memory.reserve(pages * 4096);
        (0..pages * rounds).for_each(|n| memory.touch(n % pages, false));
        memory.trace()
    }

    #[test]
    fn a_loop_that_does_not_fit_misses_always_but_where_a_part_is_kept() {
        let trace = a_loop(1_000, 20);
        assert_eq!(misses(&mut Lru::new(&trace, 750), &trace), 19_000);
        assert_eq!(misses(&mut Fifo::new(&trace, 750), &trace), 19_000);
        let least = opt(&trace, 750);
        assert!((4_700..4_800).contains(&least), "{least}");
        let dip = misses(&mut Dip::new(&trace, 750), &trace);
        assert!(dip < 8_000, "{dip}");
    }

    #[test]
    fn what_fits_misses_never() {
        let trace = a_loop(1_000, 5);
        let caches: [&mut dyn Cache; 5] = [
            &mut Lru::new(&trace, 1_000),
            &mut Fifo::new(&trace, 1_000),
            &mut S3Fifo::new(&trace, 1_200),
            &mut Lirs::new(&trace, 1_000),
            &mut Dip::new(&trace, 1_000),
        ];
        for cache in caches {
            assert_eq!(misses(cache, &trace), 0);
        }
        assert_eq!(opt(&trace, 1_000), 0);
    }
}
