//! Sequential access: how many pages to bring at once.
//!
//! A few streams are followed per address space (several threads may scan at a time). A fault where a stream was expected to go on
//! doubles its window; any other fault starts a stream of its own with a window of one page.

use super::table::PageIdx;

/// The largest window, in pages (128 KiB: past that the gain per page is small and the guess dear).
pub const WIDEST: u32 = 32;
const STREAMS: usize = 8;
/// A stream is met if the fault is this many pages past where it was expected, at most.
const SLACK: u64 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    next: u64,
    window: u32,
}

#[derive(Debug, Default)]
pub struct Streams {
    streams: [Stream; STREAMS],
    current: usize,
    victim: usize,
}

impl Streams {
    /// The window for a fault on `page`, to be followed by [`Streams::advance`].
    pub fn window(&mut self, page: PageIdx) -> u32 {
        let met = |s: &Stream| s.window > 0 && page.0 >= s.next && page.0 - s.next < SLACK;
        if let Some(i) = self.streams.iter().position(met) {
            self.current = i;
            self.streams[i].window = (self.streams[i].window * 2).min(WIDEST);
        } else {
            self.victim = (self.victim + 1) % STREAMS;
            self.current = self.victim;
            self.streams[self.current].window = 1;
        }
        self.streams[self.current].window
    }

    /// What was brought ends before `next`.
    pub fn advance(&mut self, next: PageIdx) {
        self.streams[self.current].next = next.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_interleaved_scans_both_widen_and_random_faults_do_not() {
        let mut streams = Streams::default();
        let (mut a, mut b, mut last) = (1000u64, 900_000u64, (0, 0));
        for _ in 0..6 {
            last.0 = streams.window(PageIdx(a));
            a += last.0 as u64;
            streams.advance(PageIdx(a));
            last.1 = streams.window(PageIdx(b));
            b += last.1 as u64;
            streams.advance(PageIdx(b));
        }
        assert_eq!(last, (WIDEST, WIDEST));
        for page in [5, 77_000, 33, 1_234_567] {
            assert_eq!(streams.window(PageIdx(page)), 1);
            streams.advance(PageIdx(page + 1));
        }
    }
}
