//! annexd, as far as it decides which pages are local: faults bring pages and, where they are a
//! stream, those ahead ([`Prefetcher`]); above its high watermark an app is evicted from down to
//! the low one, in batches.
//!
//! Faithful in what decides: untouched neighbours come with a page that is new, a batch has so many
//! pages and spans, and slots are contiguous where pages left together, since a fault reads eight
//! stretches of slots at most. Not modelled: time. A batch is over at once.

use crate::policy::memory::{Step, Trace};
use annex_pager::policy::{PageIdx, Prefetcher, WIDEST_APART};

/// Pages that a batch moves at most, and with how many calls.
pub const BATCH: usize = 512;
pub const MOST_SPANS: usize = 40;
/// A new page brings its neighbours in this many.
const AROUND: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The program never had it, or gave it back.
    None,
    Local,
    Evicted,
}

/// The pages of a program.
pub struct Pages {
    pub places: Vec<Place>,
    pub local: usize,
    pub evicted: usize,
    /// Hand's work.
    pub scanned: u64,
}

/// Which pages go: told of everything that annexd sees, and of nothing else.
pub trait Chooser {
    fn is_new(&mut self, page: u32);
    fn comes_back(&mut self, page: u32, alone: bool);
    /// The page was in memory, or was out.
    fn is_gone(&mut self, page: u32, was_local: bool);
    /// Up to `want` pages that are local, in the order in which they are to go. None: nothing.
    fn batch(&mut self, pages: &mut Pages, want: usize) -> Vec<u32>;
    /// These have left.
    fn have_left(&mut self, left: &[u32]);
}

/// What it cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Pages that were brought back.
    pub brought: u64,
    /// Times that the program waited for one.
    pub faults: u64,
    pub evicted: u64,
    pub spans: u64,
    pub scanned: u64,
}

/// Runs a trace with so many pages local at most. `each` is told the cost so far before each step.
pub fn run(trace: &Trace, limit: usize, chooser: &mut dyn Chooser, mut each: impl FnMut(usize, &Cost)) -> Cost {
    let places = vec![Place::None; trace.end as usize];
    let exists = existing(trace);
    let pages = Pages { places, local: 0, evicted: 0, scanned: 0 };
    let slots = vec![0; trace.end as usize];
    let has_copy = vec![false; trace.end as usize];
    let mut model = Model {
        pages,
        slots,
        has_copy,
        exists,
        next_slot: 0,
        prefetcher: Prefetcher::default(),
        chooser,
        limit,
        cost: Cost::default(),
    };
    for (i, step) in trace.steps().enumerate() {
        each(i, &model.cost);
        model.step(step);
    }
    model.cost.scanned = model.pages.scanned;
    model.cost
}

/// The pages that a trace ever uses: its mappings.
fn existing(trace: &Trace) -> Vec<bool> {
    let mut exists = vec![false; trace.end as usize];
    for step in trace.steps() {
        if let Step::Read(page) | Step::Write(page) = step {
            exists[page as usize] = true;
        }
    }
    exists
}

struct Model<'a> {
    pages: Pages,
    slots: Vec<u32>,
    has_copy: Vec<bool>,
    exists: Vec<bool>,
    next_slot: u32,
    prefetcher: Prefetcher,
    chooser: &'a mut dyn Chooser,
    limit: usize,
    cost: Cost,
}

impl Model<'_> {
    fn step(&mut self, step: Step) {
        match step {
            Step::Gone(page) => {
                let before = std::mem::replace(&mut self.pages.places[page as usize], Place::None);
                match before {
                    Place::None => return,
                    Place::Local => self.pages.local -= 1,
                    Place::Evicted => self.pages.evicted -= 1,
                }
                self.has_copy[page as usize] = false;
                self.chooser.is_gone(page, before == Place::Local);
            }
            Step::Read(page) | Step::Write(page) => {
                let is_write = matches!(step, Step::Write(_));
                match self.pages.places[page as usize] {
                    Place::Local => {}
                    Place::None => self.zero_fill(page),
                    Place::Evicted => self.fault(page, is_write),
                }
                if is_write {
                    self.has_copy[page as usize] = false;
                }
                self.evict();
            }
        }
    }

    fn zero_fill(&mut self, page: u32) {
        let end = (page / AROUND + 1) * AROUND;
        for page in page..end.min(self.exists.len() as u32) {
            if self.pages.places[page as usize] != Place::None || !self.exists[page as usize] {
                break;
            }
            self.pages.places[page as usize] = Place::Local;
            self.pages.local += 1;
            self.chooser.is_new(page);
        }
    }

    fn fault(&mut self, page: u32, is_write: bool) {
        let places = &self.pages.places;
        let is_out = |page: PageIdx| places.get(page.0 as usize) == Some(&Place::Evicted);
        let asked = PageIdx(page.into());
        let plan = self.prefetcher.plan(asked, is_out);
        let room = self.limit.saturating_sub(self.pages.local) as u32;
        let most = if plan.is_scan() { plan.pages } else { plan.pages.min(room.max(1)) };
        let (mut last, mut stretches, mut ahead, mut covered) = (self.slots[page as usize], 1, 0u32, most);
        let mut brought = vec![page];
        for nth in 1..most {
            let Some(next) = plan.nth(asked, nth) else {
                covered = nth;
                break;
            };
            if !is_out(next) {
                continue;
            }
            let slot = self.slots[next.0 as usize];
            if !(plan.is_scan() && slot.abs_diff(last) == 1) {
                if stretches == WIDEST_APART {
                    covered = nth;
                    break;
                }
                stretches += 1;
            }
            last = slot;
            ahead |= 1 << nth;
            brought.push(next.0 as u32);
        }
        let next = plan.nth(asked, covered);
        self.prefetcher.brought(ahead, next.unwrap_or(asked), next.is_some_and(is_out));
        self.cost.faults += 1;
        self.cost.brought += brought.len() as u64;
        let alone = brought.len() == 1;
        for page in brought {
            self.pages.places[page as usize] = Place::Local;
            self.pages.local += 1;
            self.pages.evicted -= 1;
            self.has_copy[page as usize] = true;
            self.chooser.comes_back(page, alone);
        }
        if is_write {
            self.has_copy[page as usize] = false;
        }
    }

    fn evict(&mut self) {
        let gap = (self.limit / 64).max(1);
        if self.pages.local <= self.limit - gap {
            return;
        }
        let low = self.limit - 2 * gap;
        while self.pages.local > low {
            let want = (self.pages.local - low).clamp(64.min(gap), BATCH);
            let mut left = self.chooser.batch(&mut self.pages, want);
            if left.is_empty() {
                return;
            }
            left.sort_unstable();
            self.cost.spans += 1 + left.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
            for page in &left {
                let page = *page as usize;
                assert_eq!(self.pages.places[page], Place::Local, "page {page} leaves and is not there");
                self.pages.places[page] = Place::Evicted;
                if !self.has_copy[page] {
                    self.slots[page] = self.next_slot;
                    self.next_slot += 1;
                }
            }
            self.pages.local -= left.len();
            self.pages.evicted += left.len();
            self.cost.evicted += left.len() as u64;
            self.chooser.have_left(&left);
        }
    }
}
