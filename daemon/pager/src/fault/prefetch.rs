//! Which pages the app is likely to want next, from where it faults. Pure: faults in, plans out.
//!
//! A few streams are followed per address space (several threads may scan at a time). Each has a
//! stride and a window: a fault where a stream was expected to go on doubles its window; any other
//! fault starts a stream of its own, with a window of one page and the guess that it goes on with
//! the next page. If [`AGREE`] faults in a row come at equal distances from one another, that
//! distance is the stride, forwards or backwards. It counts only where something that is evicted
//! was jumped over: a scan of memory that is partly resident faults at distances, too.
//!
//! # How right the guesses are
//! Nobody tells an outsider whether a resident page was ever read. But each plan ends somewhere,
//! and the page that would come next by the same guess is the plan's *sample*: it is not brought,
//! so it faults if it is wanted. If that fault comes, the plan was right; if the stream jumps over
//! it, or ends, all that the plan brought counts as useless. Of a stream that ends within a plan
//! this counts too much. It would count too little where the accesses go by the plan's own length,
//! so one plan in [`CUT_ONE_IN`] ends early, anywhere. Samples cost no fault of their own, and cut
//! plans one in 32.
//!
//! # What bounds the useless ones
//! Each page brought without being asked for is paid for from a *credit*, and paid back when its
//! plan proves right. Each page that was wanted earns a tenth of a page. So what samples call
//! useless is at most a tenth of what is read, and [`ALLOWANCE`] pages, whatever the app does;
//! after a program changed its ways, guesses may be short for a while.

use crate::page::PageIdx;

/// The largest window, in pages (128 KiB: past that the gain per page is small and the guess dear).
pub const WIDEST: u32 = 32;
/// The same for pages that are apart: each is a read and an install of its own.
pub const WIDEST_APART: u32 = 8;
const STREAMS: usize = 8;
/// A stream is met if the fault is this many strides past where it was expected, at most.
const SLACK: i64 = 4;
/// The largest stride that is looked for, in pages.
const FARTHEST: i64 = 64;
/// Equal distances in a row that make a stride.
const AGREE: u8 = 3;
const CUT_ONE_IN: u32 = 16;
/// Pages that may be out for nothing before any page has earned its tenth: every stream's widest
/// window.
const ALLOWANCE: u32 = STREAMS as u32 * WIDEST;
/// Credit is counted in parts of a page.
const PARTS: u32 = 10;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The fault that it was met at last.
    last: i64,
    stride: i64,
    /// 0: no stream.
    window: u32,
    /// Where it is expected: the sample.
    next: i64,
    /// Whether that page can fault.
    sampled: bool,
    /// Which pages of the last plan were brought beside the one asked for: bit n is the nth.
    ahead: u32,
    /// The distance between the last two faults, and how many in a row were equal.
    distance: i64,
    agree: u8,
}

const NONE: Stream = Stream { last: 0, stride: 1, window: 0, next: 0, sampled: false, ahead: 0, distance: 0, agree: 0 };

/// What to bring for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// From each page to the next; may be negative.
    pub stride: i64,
    /// The page that is asked for included.
    pub pages: u32,
    /// So many pages that an earlier plan brought proved right just now.
    pub proved: u32,
}

impl Plan {
    /// Page by page, in either direction.
    pub fn is_scan(&self) -> bool {
        self.stride.abs() == 1
    }

    /// The `nth` page of a plan for `page`; 0 is that page itself.
    pub fn nth(&self, page: PageIdx, nth: u32) -> Option<PageIdx> {
        page.0.checked_add_signed(self.stride * i64::from(nth)).map(PageIdx)
    }
}

#[derive(Debug)]
pub struct Prefetcher {
    streams: [Stream; STREAMS],
    /// Whose plan is being carried out.
    current: Option<usize>,
    victim: usize,
    plans: u32,
    /// In parts of a page.
    credit: u32,
}

impl Default for Prefetcher {
    fn default() -> Prefetcher {
        Prefetcher { streams: [NONE; STREAMS], current: None, victim: 0, plans: 0, credit: ALLOWANCE * PARTS }
    }
}

impl Prefetcher {
    /// What to bring for a fault on `page`, to be followed by [`Prefetcher::brought`]. `is_out`:
    /// whether a page is evicted.
    pub fn plan(&mut self, page: PageIdx, is_out: impl Fn(PageIdx) -> bool) -> Plan {
        let page = page.0 as i64;
        let met = (0..STREAMS).filter_map(|i| Some((self.streams[i].met(page)?, i))).min();
        let i = met.map_or_else(|| self.start(page), |(_, i)| i);
        let stream = &mut self.streams[i];
        let (mut paid_back, mut proved) = (0, 0);
        match met {
            Some((Met::Again, _)) => {
                // The stream is where it was.
                self.current = None;
                return Plan { stride: 1, pages: 1, proved: 0 };
            }
            Some((Met::There, _)) => {
                paid_back = stream.ahead.count_ones();
                proved = if stream.sampled { paid_back } else { 0 };
                stream.widen();
                stream.agree = 0;
            }
            Some((Met::Past, _)) => {
                let alone = stream.ahead == 0;
                if stream.sampled {
                    stream.window = (stream.window / 2).max(1);
                } else {
                    paid_back = stream.ahead.count_ones();
                    stream.widen();
                }
                if alone {
                    stream.look_for_stride(page, is_out);
                }
            }
            Some((Met::Within, _)) => (stream.window, stream.agree) = (1, 0),
            Some((Met::Near, _)) => stream.look_for_stride(page, is_out),
            None => {}
        }
        stream.last = page;
        let (stride, window) = (stream.stride, stream.window);
        self.current = Some(i);
        self.credit = (self.credit + 1 + (PARTS + 1) * paid_back).min(ALLOWANCE * PARTS);
        Plan { stride, pages: self.pages(window), proved }
    }

    /// What became of the plan: it ends before `next`, which can fault or not, and brought these
    /// pages beside the one asked for (bit n: the nth). How many of them the sample speaks for.
    pub fn brought(&mut self, ahead: u32, next: PageIdx, sampled: bool) -> u32 {
        let Some(i) = self.current else { return 0 };
        let stream = &mut self.streams[i];
        (stream.next, stream.ahead, stream.sampled) = (next.0 as i64, ahead, sampled);
        let pages = ahead.count_ones();
        self.credit = self.credit.saturating_sub(PARTS * pages);
        if sampled { pages } else { 0 }
    }

    /// A stream that goes on with the next page, in the place of another.
    fn start(&mut self, page: i64) -> usize {
        self.victim = (self.victim + 1) % STREAMS;
        self.streams[self.victim] = Stream { last: page, window: 1, ..NONE };
        self.victim
    }

    /// What can be paid for of a window, cut short now and then.
    fn pages(&mut self, window: u32) -> u32 {
        let pages = window.min(1 + self.credit / PARTS);
        if pages == 1 {
            return 1;
        }
        self.plans = self.plans.wrapping_add(1);
        if self.plans.is_multiple_of(CUT_ONE_IN) { 1 + self.plans / CUT_ONE_IN % pages } else { pages }
    }
}

/// How a fault lies to a stream; of several streams the first of these counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    /// Where it was expected.
    There,
    /// On the same page as the last, by another thread or another try; or on one that was resident
    /// when the last plan went over it, and is not now.
    Again,
    /// A few strides later than expected.
    Past,
    /// On one that the last plan brought: it never came, or is out again.
    Within,
    /// Near the last fault of a stream that has found nothing yet.
    Near,
}

impl Stream {
    fn met(&self, page: i64) -> Option<Met> {
        let in_line = (page - self.next) % self.stride == 0;
        let (past, since) = ((page - self.next) / self.stride, (page - self.last) / self.stride);
        if self.window == 0 {
            None
        } else if page == self.next {
            Some(Met::There)
        } else if page == self.last {
            Some(Met::Again)
        } else if in_line && (1..SLACK).contains(&past) {
            Some(Met::Past)
        } else if in_line && past < 0 && since > 0 {
            let was_brought = self.ahead >> (since as u32 % WIDEST) & 1 == 1;
            Some(if was_brought { Met::Within } else { Met::Again })
        } else {
            (self.window == 1 && (page - self.last).abs() <= FARTHEST).then_some(Met::Near)
        }
    }

    fn widen(&mut self) {
        let widest = if self.stride.abs() == 1 { WIDEST } else { WIDEST_APART };
        self.window = (self.window * 2).min(widest);
    }

    /// Takes the distance from the last fault into account, which brought that page alone.
    fn look_for_stride(&mut self, page: i64, is_out: impl Fn(PageIdx) -> bool) {
        let distance = page - self.last;
        let mut between = (1..distance.abs()).map(|n| PageIdx((page - distance.signum() * n) as u64));
        if distance.abs() > 1 && !between.any(is_out) {
            return;
        }
        self.agree = if distance == self.distance { (self.agree + 1).min(AGREE) } else { 1 };
        self.distance = distance;
        if self.agree == AGREE {
            (self.stride, self.window) = (distance, 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// An app whose pages are all evicted at first.
    #[derive(Default)]
    struct Reader {
        prefetcher: Prefetcher,
        resident: BTreeSet<u64>,
        /// Pages that were brought without being asked for, and whether they were used since.
        ahead: BTreeMap<u64, bool>,
        faults: usize,
        samples: u32,
        proved: u32,
    }

    impl Reader {
        fn reads(&mut self, pages: impl IntoIterator<Item = u64>) -> &mut Reader {
            pages.into_iter().for_each(|page| self.read(page));
            self
        }

        fn read(&mut self, page: u64) {
            self.ahead.entry(page).and_modify(|used| *used = true);
            if self.resident.insert(page) {
                self.faults += 1;
                let plan = self.prefetcher.plan(PageIdx(page), |page| !self.resident.contains(&page.0));
                let pages = (1..plan.pages).filter_map(|nth| Some((nth, plan.nth(PageIdx(page), nth)?.0)));
                let ahead: Vec<(u32, u64)> = pages.filter(|(_, page)| self.resident.insert(*page)).collect();
                let next = plan.nth(PageIdx(page), plan.pages).unwrap();
                let sampled = !self.resident.contains(&next.0);
                self.samples += self.prefetcher.brought(ahead.iter().map(|(nth, _)| 1 << nth).sum(), next, sampled);
                self.proved += plan.proved;
                self.ahead.extend(ahead.into_iter().map(|(_, page)| (page, false)));
            }
        }

        fn useless(&self) -> usize {
            self.ahead.values().filter(|used| !**used).count()
        }
    }

    /// Each page of a plan was brought.
    fn all(plan: Plan) -> u32 {
        (1..plan.pages).map(|nth| 1 << nth).sum()
    }

    fn dice(seed: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(seed), |n| {
            Some(n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407))
        })
        .map(|n| n >> 33)
    }

    #[test]
    fn a_scan_faults_once_in_a_window() {
        let mut reader = Reader::default();
        reader.reads(1_000..11_000);
        assert!(reader.faults < 10_000 / 29, "{} faults", reader.faults);
    }

    #[test]
    fn a_scan_backwards_faults_once_in_a_window() {
        let mut reader = Reader::default();
        reader.reads((1_000..11_000).rev());
        assert!(reader.faults < 10_000 / 29, "{} faults", reader.faults);
    }

    #[test]
    fn every_stride_is_found_in_both_directions() {
        for stride in (2..=64).flat_map(|stride| [stride, -stride]) {
            let mut reader = Reader::default();
            reader.reads((0..1_000).map(|n| (100_000 + n * stride) as u64));
            assert!(reader.faults < 1_000 / 7, "stride {stride}: {} faults", reader.faults);
            assert!(reader.useless() <= 8, "stride {stride}: {} useless pages", reader.useless());
        }
    }

    /// Every 64th page is out, then every second, then none is resident: the distances are those of
    /// what is out.
    #[test]
    fn a_scan_of_what_is_partly_resident_is_not_a_stride() {
        let mut reader = Reader::default();
        reader.resident.extend((0..10_000).filter(|page| page % 64 != 0));
        reader.resident.extend((10_000..20_000).filter(|page| page % 2 != 0));
        reader.reads(0..20_000);
        let before = reader.faults;
        reader.reads(20_000..30_000);
        assert!(reader.faults - before < 10_000 / 29, "{} faults", reader.faults - before);
    }

    #[test]
    fn a_page_that_leaves_right_before_the_scan_comes_by_does_not_narrow_it() {
        let mut reader = Reader::default();
        reader.resident.extend((1..100).map(|n| n * 300));
        for page in 0..30_000 {
            reader.resident.remove(&(page % 300 / 299 * (page + 1)));
            reader.read(page);
        }
        assert!(reader.faults < 30_000 / 29 + 100, "{} faults", reader.faults);
    }

    #[test]
    fn interleaved_streams_are_told_apart() {
        let mut reader = Reader::default();
        for n in 0..1_000 {
            reader.reads([10_000 + n, 500_000 + 7 * n, 900_000 - n]);
        }
        assert!(reader.faults < 1_000 / 7 + 2 * (1_000 / 25), "{} faults", reader.faults);
    }

    #[test]
    fn random_faults_bring_next_to_nothing() {
        let mut reader = Reader::default();
        reader.reads(dice(1).take(20_000).map(|n| n % 1_000_000));
        assert!(reader.ahead.len() < 200, "{} pages", reader.ahead.len());
    }

    #[test]
    fn a_page_that_many_threads_wait_for_does_not_end_its_stream() {
        let mut streams = Prefetcher::default();
        let mut page = PageIdx(100);
        let mut faults_often = || {
            let plan = streams.plan(page, |_| true);
            streams.brought(all(plan), page.plus(u64::from(plan.pages)), true);
            for _ in 0..5 {
                assert_eq!(streams.plan(page, |_| true).pages, 1);
                streams.brought(0, page.plus(1), true);
            }
            page = page.plus(u64::from(plan.pages));
            plan.pages
        };
        let pages: Vec<_> = (0..6).map(|_| faults_often()).collect();
        assert_eq!(pages, [1, 2, 4, 8, 16, 32]);
    }

    #[test]
    fn a_stride_is_not_forgotten_when_pages_leave_before_they_are_read() {
        let mut reader = Reader::default();
        reader.reads((0..101).map(|n| n * 7));
        // In the middle of what the last plan brought.
        reader.resident.clear();
        let before = reader.faults;
        reader.reads((101..116).map(|n| n * 7));
        assert!(reader.faults - before <= 5, "1, 2, 4 and 8 pages, and a plan that is cut: {}", reader.faults - before);
    }

    #[test]
    fn a_scan_that_begins_anew_finds_its_way_again_after_its_pages_left() {
        let mut reader = Reader::default();
        for _ in 0..10 {
            reader.reads(0..2_000);
            reader.resident.clear();
        }
        assert!(reader.faults < 20_000 / 25, "{} faults", reader.faults);
    }

    /// Runs of a few pages here and there look like streams until they end.
    #[test]
    fn guesses_that_fail_cost_a_tenth_of_what_is_read_and_the_allowance_at_most() {
        let mut reader = Reader::default();
        let runs = dice(3).take(40_000).map(|n| (n % 100_000_000) * 8);
        reader.reads(runs.flat_map(|first| first..first + 5));
        let read = reader.resident.len();
        assert!(reader.useless() <= read / 10 + ALLOWANCE as usize, "{} of {read}", reader.useless());
    }

    /// Reads 60 % of the pages in order, at random.
    #[test]
    fn what_samples_say_is_not_better_than_what_was_used() {
        let mut reader = Reader::default();
        reader.reads((0..200_000).zip(dice(5)).filter(|(_, n)| n % 10 < 6).map(|(page, _)| page));
        let (useless, brought) = (reader.useless() as f64, reader.ahead.len() as f64);
        let told = 1.0 - f64::from(reader.proved) / f64::from(reader.samples);
        assert!(told >= useless / brought * 0.9, "samples say {told}, it was {useless} of {brought}");
        assert!(useless <= 0.1 * reader.resident.len() as f64 + f64::from(ALLOWANCE), "{useless}");
    }

    /// Every 32nd page is where the widest window ends: each plan would seem right.
    #[test]
    fn accesses_by_the_windows_own_length_do_not_pass_for_a_scan() {
        let mut reader = Reader::default();
        reader.reads((0..63).chain((63..100_000).step_by(32)));
        assert!(reader.useless() < 1_000, "{} of {}", reader.useless(), reader.ahead.len());
    }

    #[test]
    fn two_interleaved_scans_both_widen_and_random_faults_do_not() {
        let mut streams = Prefetcher::default();
        let mut pages_at = |page: u64| {
            let plan = streams.plan(PageIdx(page), |_| true);
            streams.brought(all(plan), PageIdx(page + u64::from(plan.pages)), true);
            plan.pages
        };
        let (mut a, mut b, mut last) = (1000u64, 900_000u64, (0, 0));
        for _ in 0..6 {
            last = (pages_at(a), pages_at(b));
            a += u64::from(last.0);
            b += u64::from(last.1);
        }
        assert_eq!(last, (WIDEST, WIDEST));
        for page in [5, 77_000, 33, 1_234_567] {
            assert_eq!(pages_at(page), 1);
        }
    }
}
