//! Which pages go next, learned from which come back: a policy for those who see faults alone.
//!
//! # What is learned
//! Nobody tells annexd that a local page was read. But it sees how soon evicted pages come back, so
//! it learns that by [`Class`]: by why a page was local, and for how long ([`Rates`]). The class
//! whose pages come back at the lowest rate goes first. So a loop keeps what fits: a page that has
//! just been read comes back a whole round later, one that has been there for a while after half a
//! round. A page that was looked up often comes back soon, and stays. When a program changes its
//! ways, what it had stays out, and that class's rate falls.
//!
//! # The two places that pages leave from
//! - Pages that have just come are *young*: they wait in a queue, for long enough to be used. At
//!   its end each goes, if its class's rate is below that of what the hand would take, or settles.
//! - The hand goes over all others in address order, and takes those of the classes with the lowest
//!   rates. The others age.
//!
//! Now and then a block of pages goes, or stays, against the rule: else nothing would be known of
//! what never leaves. Only where much comes back is anything to be gained by that.
//!
//! # What it costs
//! The four bits of a page's record, eight bytes for each 16th local page, and 15 times 256 samples.
//! Nothing on the way of a fault takes longer with more pages.
//!
//! Pure: events in, answers out. Time is counted in pages that have left. Not in annexd yet:
//! `docs/performance.md` has what the simulator says of it, and what is missing.

use crate::evict::policy::class::{Age, CLASSES, Class, Origin};
use crate::evict::policy::rates::{KEPT, Rates};
use crate::page::PageIdx;
use std::collections::VecDeque;

/// One block of pages in so many goes against the rule.
const TRIED_ONE_IN: u64 = 64;
/// Pages of a block. They go together, so that a scan meets long spans.
const BLOCK: u64 = 32;
/// The hand takes one page of so many at least.
const HAND_ONE_IN: usize = 64;
/// The hand takes classes that are, together, one page of so many that it passes.
const TAKES_ONE_IN: u64 = 8;
/// Of the local pages, the youngest of so many are not asked whether they go, and are in the queue.
const SPARED_ONE_IN: usize = 64;
const QUEUED_ONE_IN: usize = 16;
/// Less than this of what leaves comes back: nothing is tried.
const MUCH: f64 = 0.6;
/// Returns below which nothing is known.
const LEAST_RETURNS: f64 = 4.0;
/// Time is noted, in an evicted page's four bits, modulo so many parts.
const PARTS: u8 = 16;
/// Parts in which as many pages leave as are local.
const PARTS_A_ROUND: u64 = 4;

/// What becomes of a page that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Goes,
    /// Its class from now on.
    Stays(Class),
}

#[derive(Debug, Default)]
pub struct Replacement {
    rates: Rates,
    /// Local pages of each class, as far as they were told of.
    local: [u64; CLASSES],
    takes: [bool; CLASSES],
    young: VecDeque<PageIdx>,
    resident: usize,
    /// Pages that have left, and when the present part began.
    left: u64,
    part: u8,
    part_began: u64,
    /// Of late.
    recent: Recent,
    hand: Hand,
}

#[derive(Debug, Default)]
struct Recent {
    left: f64,
    came_back: f64,
}

#[derive(Debug, Default)]
struct Hand {
    /// Pages that it has to take.
    owes: f64,
    block: u64,
    blocks: u64,
}

impl Replacement {
    /// The program has a page that it did not have: its class.
    pub fn is_new(&mut self, page: PageIdx) -> Class {
        self.arrives(page, Origin::New)
    }

    /// A page was brought back, alone or with others. `bits` are those that [`Replacement::left`]
    /// gave.
    pub fn came_back(&mut self, page: PageIdx, bits: u8, alone: bool) -> Class {
        self.recent.came_back += 1.0;
        self.rates.came_back(page);
        let origin = match self.part.wrapping_sub(bits) % PARTS {
            _ if !alone => Origin::Streamed,
            0 => Origin::AfterMoment,
            1..=2 => Origin::AfterSome,
            _ => Origin::AfterLong,
        };
        self.arrives(page, origin)
    }

    fn arrives(&mut self, page: PageIdx, origin: Origin) -> Class {
        let class = Class::of(origin, Age::Young);
        self.local[class.index()] += 1;
        // Those that find no place at the end are the hand's.
        if self.young.len() >= (self.resident / QUEUED_ONE_IN).max(64) {
            self.young.pop_front();
        }
        self.young.push_back(page);
        class
    }

    /// A local page is no more.
    pub fn local_gone(&mut self, class: Class) {
        self.is_one_less(class);
    }

    /// An evicted page is no more.
    pub fn evicted_gone(&mut self, page: PageIdx) {
        self.rates.forget(page);
    }

    /// Begins a choice of `want` pages among `resident`: so many of them are the hand's to find,
    /// whatever the queue has.
    pub fn begin(&mut self, resident: usize, want: usize) -> usize {
        self.resident = resident;
        self.rates.advance(self.left, resident as u64);
        let part = (resident as u64 / PARTS_A_ROUND).max(1);
        while self.left - self.part_began >= part {
            self.part_began += part;
            self.part = (self.part + 1) % PARTS;
            self.rates.fade();
            self.recent = Recent { left: self.recent.left * KEPT, came_back: self.recent.came_back * KEPT };
        }
        self.choose_classes();
        self.hand.owes += want as f64 / HAND_ONE_IN as f64;
        let block = BLOCK as usize;
        if self.hand.owes >= BLOCK as f64 { block.min(want) } else { 0 }
    }

    fn choose_classes(&mut self) {
        let pages_of = self.hands_pages();
        let mut order: Vec<(f64, Class)> = Class::all()
            .filter(|class| pages_of[class.index()] > 0)
            .map(|class| (self.rates.likely(class), class))
            .collect();
        order.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let returns: f64 = order.iter().map(|(_, class)| self.rates.returns(*class)).sum();
        let all: u64 = pages_of.iter().sum();
        self.takes = Default::default();
        let (mut pages, mut weighted) = (0, 0.0);
        for (rate, class) in order {
            self.takes[class.index()] = true;
            pages += pages_of[class.index()];
            weighted += rate * pages_of[class.index()] as f64;
            if pages * TAKES_ONE_IN >= all {
                break;
            }
        }
        let bar = weighted / pages.max(1) as f64;
        for class in Class::all().filter(|class| class.is_young()) {
            self.takes[class.index()] = returns >= LEAST_RETURNS && self.rates.at_most(class) < bar;
        }
    }

    /// How many local pages of each class are the hand's. The young ones that are not in the queue
    /// are taken for settled, and what nobody has told of for unknown.
    fn hands_pages(&self) -> [u64; CLASSES] {
        let mut pages = self.local;
        let young: u64 = Class::all().filter(|class| class.is_young()).map(|class| self.local[class.index()]).sum();
        let passed_over = young.saturating_sub(self.young.len() as u64);
        for class in Class::all().filter(|class| class.is_young()) {
            let of_class = std::mem::take(&mut pages[class.index()]);
            pages[class.settled().index()] += of_class * passed_over / young.max(1);
        }
        pages[Class::UNKNOWN.index()] += (self.resident as u64).saturating_sub(self.local.iter().sum());
        pages
    }

    /// Whether something may be gained by going against the rule.
    fn tries(&self) -> bool {
        self.recent.came_back > self.recent.left * MUCH
    }

    /// The page that has waited longest, if it has for long enough. It may be there no more, or be
    /// young no more: then there is nothing to decide.
    pub fn next_young(&mut self) -> Option<PageIdx> {
        let is_due = self.young.len() > self.resident / SPARED_ONE_IN;
        is_due.then(|| self.young.pop_front()).flatten()
    }

    /// What becomes of a young page whose turn it is.
    pub fn grows_up(&mut self, page: PageIdx, class: Class) -> Verdict {
        let round = self.left / self.resident.max(1) as u64;
        let block = scatter((page.0 / BLOCK) ^ (round << 40));
        let against = self.tries() && block.is_multiple_of(TRIED_ONE_IN);
        if self.takes[class.index()] == against { self.stays(class, class.settled()) } else { Verdict::Goes }
    }

    /// The hand comes to a local page.
    pub fn pass(&mut self, page: PageIdx, class: Class) -> Verdict {
        if self.hand.block != page.0 / BLOCK {
            self.hand.block = page.0 / BLOCK;
            self.hand.blocks += 1;
        }
        let against = self.tries() && self.hand.blocks.is_multiple_of(TRIED_ONE_IN);
        let old = if class.is_young() { class.settled() } else { class };
        if self.takes[old.index()] || against {
            self.hand.owes = (self.hand.owes - 1.0).max(0.0);
            Verdict::Goes
        } else {
            self.stays(class, class.aged())
        }
    }

    fn stays(&mut self, from: Class, to: Class) -> Verdict {
        self.is_one_less(from);
        self.local[to.index()] += 1;
        Verdict::Stays(to)
    }

    /// Of pages that were there before, nobody was told.
    fn is_one_less(&mut self, class: Class) {
        let pages = &mut self.local[class.index()];
        *pages = pages.saturating_sub(1);
    }

    /// The policy of a child that a fork made: its pages have the same bits.
    pub fn forked(&self) -> Replacement {
        let (local, resident, part) = (self.local, self.resident, self.part);
        Replacement { local, resident, part, ..Replacement::default() }
    }

    /// A page of this class has left. Its policy bits until it comes back.
    pub fn left(&mut self, page: PageIdx, class: Class) -> u8 {
        self.is_one_less(class);
        self.rates.left(page, class);
        self.left += 1;
        self.recent.left += 1.0;
        self.part
    }
}

/// `SplitMix64`'s last step.
fn scatter(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A program that has room for so many pages, and a hand that goes over them.
    #[derive(Default)]
    struct Program {
        policy: Replacement,
        local: BTreeMap<u64, Class>,
        out: BTreeMap<u64, u8>,
        hand: u64,
        room: usize,
        faults: usize,
    }

    impl Program {
        fn with_room(room: usize) -> Program {
            Program { room, ..Program::default() }
        }

        /// Faults that these uses take.
        fn uses(&mut self, pages: impl IntoIterator<Item = u64>) -> usize {
            let before = self.faults;
            pages.into_iter().for_each(|page| self.use_page(page));
            self.faults - before
        }

        fn use_page(&mut self, page: u64) {
            if self.local.contains_key(&page) {
                return;
            }
            let class = match self.out.remove(&page) {
                Some(bits) => {
                    self.faults += 1;
                    self.policy.came_back(PageIdx(page), bits, false)
                }
                None => self.policy.is_new(PageIdx(page)),
            };
            self.local.insert(page, class);
            if self.local.len() > self.room {
                self.evict(self.room / 64);
            }
        }

        fn keep(&mut self, page: u64, class: Class) {
            self.local.insert(page, class);
        }

        fn evict(&mut self, want: usize) {
            let of_hand = self.policy.begin(self.local.len(), want);
            let mut victims = Vec::new();
            while victims.len() + of_hand < want
                && let Some(page) = self.policy.next_young()
            {
                let Some(class) = self.local.get(&page.0).copied().filter(|class| class.is_young()) else { continue };
                match self.policy.grows_up(page, class) {
                    Verdict::Goes if !victims.contains(&page.0) => victims.push(page.0),
                    Verdict::Goes => {}
                    Verdict::Stays(class) => self.keep(page.0, class),
                }
            }
            for _ in 0..4 * self.local.len() {
                if victims.len() >= want {
                    break;
                }
                let Some((page, class)) = self.local.range(self.hand..).next().map(|(page, class)| (*page, *class))
                else {
                    self.hand = 0;
                    continue;
                };
                self.hand = page + 1;
                match self.policy.pass(PageIdx(page), class) {
                    Verdict::Goes if !victims.contains(&page) => victims.push(page),
                    Verdict::Goes => {}
                    Verdict::Stays(class) => self.keep(page, class),
                }
            }
            assert!(!victims.is_empty(), "nothing to evict");
            for page in victims {
                let class = self.local.remove(&page).unwrap();
                self.out.insert(page, self.policy.left(PageIdx(page), class));
            }
        }
    }

    #[test]
    fn a_loop_keeps_the_part_of_it_that_fits() {
        let mut program = Program::with_room(3_000);
        program.uses((0..10).flat_map(|_| 0..4_000));
        let faults = program.uses((0..10).flat_map(|_| 0..4_000)) / 10;
        assert!(faults < 1_600, "{faults} faults a round, of which 1000 are needed");
    }

    #[test]
    fn what_a_scan_has_passed_leaves_before_what_is_used_again() {
        let mut program = Program::with_room(2_000);
        let round = |n: u64| (0..8_000).flat_map(move |page| [page, 100_000 + (page * 7 + n) % 1_000]);
        program.uses((0..6).flat_map(round));
        let before = program.faults;
        program.uses((6..12).flat_map(round));
        let faults = (program.faults - before) / 6;
        assert!(faults < 9_500, "{faults} faults a round, of which 7000 are the scan's at the least");
    }

    #[test]
    fn a_phase_change_settles_within_one_working_set_of_faults() {
        let mut program = Program::with_room(3_000);
        program.uses(100_000..102_000);
        program.uses((0..10).flat_map(|_| 0..4_000));
        let faults = program.uses((0..20).flat_map(|_| 100_000..102_000));
        assert!(faults < 2 * 2_000, "{faults} faults, of which 2000 bring the working set");
        assert_eq!(program.uses(100_000..102_000), 0);
    }

    #[test]
    fn what_never_comes_back_teaches_nothing_to_try() {
        let mut program = Program::with_room(3_000);
        assert_eq!(program.uses(0..50_000), 0);
        assert!(!program.policy.tries());
    }

    #[test]
    fn a_page_that_was_there_before_can_go() {
        let mut policy = Replacement::default();
        policy.begin(1_000, 64);
        assert_eq!(policy.pass(PageIdx(5), Class::UNKNOWN), Verdict::Goes);
        policy.left(PageIdx(5), Class::UNKNOWN);
    }

    #[test]
    fn a_forked_child_knows_when_its_pages_left() {
        let mut parent = Replacement::default();
        parent.begin(100, 64);
        let bits: Vec<u8> = (0..80).map(|page| parent.left(PageIdx(page), Class::UNKNOWN)).collect();
        parent.begin(100, 64);
        let mut child = parent.forked();
        assert_eq!(child.came_back(PageIdx(3), bits[3], true), parent.came_back(PageIdx(3), bits[3], true),);
    }

    #[test]
    fn what_is_gone_is_not_counted() {
        let mut policy = Replacement::default();
        policy.begin(1_000, 64);
        let classes: Vec<_> = (0..20).map(|page| policy.is_new(PageIdx(page))).collect();
        let bits = policy.left(PageIdx(0), classes[0]);
        policy.evicted_gone(PageIdx(0));
        classes[1..].iter().for_each(|class| policy.local_gone(*class));
        assert!(policy.local.iter().all(|pages| *pages == 0) && bits < PARTS);
        assert!(policy.rates.forget(PageIdx(0)).is_none());
    }
}
