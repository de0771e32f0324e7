//! One thread of the workload: picks a feature, takes one small step of it, checks, and again until
//! time is up.

use super::board::Shared;
use super::churn::Churn;
use super::content::Dice;
use super::family::{self, Children};
use super::moves::Moves;
use super::set::Set;
use super::touch::{SCAN_STEP, random_touch};
use super::transfer::Transfer;
use super::{Feature, Plan, Trouble, discard};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Threads that have filled their share; the last one announces the run.
static FILLED: AtomicUsize = AtomicUsize::new(0);

pub struct Worker<'a> {
    place: usize,
    plan: &'a Plan,
    set: &'a Set,
    board: Shared,
    children: &'a Children,
    dice: Dice,
    transfer: Transfer,
    churn: Churn,
    moves: Moves,
    scan_at: usize,
}

impl<'a> Worker<'a> {
    pub fn new(
        place: usize,
        plan: &'a Plan,
        set: &'a Set,
        board: Shared,
        children: &'a Children,
    ) -> Result<Worker<'a>, Trouble> {
        let seed = plan.seed.wrapping_add(place as u64 + 1);
        Ok(Worker {
            place,
            plan,
            set,
            board,
            children,
            dice: Dice::new(seed),
            transfer: Transfer::new(&plan.directory, seed, plan.features.contains(&Feature::Direct), board)?,
            churn: Churn::new(seed),
            moves: Moves::new(seed),
            scan_at: set.pages() / plan.threads * place,
        })
    }

    pub fn run(mut self) -> Result<(), Trouble> {
        self.fill_share();
        let started = Instant::now();
        let over = |started: Instant| !self.plan.duration.is_zero() && started.elapsed() > self.plan.duration;
        while !self.board.stopping() && !over(started) {
            let feature = self.choose();
            self.board.begin(self.place, feature, 0);
            if let Err(trouble) = self.step(feature) {
                // The others need not go on for the rest of the time.
                self.board.stop.store(1, Relaxed);
                return Err(trouble);
            }
            self.board.done(feature);
        }
        self.churn.check(self.board)?;
        self.moves.check(self.board)
    }

    fn fill_share(&mut self) {
        let pages = self.set.pages();
        for page in (self.place..pages).step_by(self.plan.threads) {
            if let Some(held) = self.set.hold(page, 1) {
                held.rewrite(0);
            }
            self.board.progress.fetch_add(1, Relaxed);
        }
        if FILLED.fetch_add(1, Relaxed) + 1 == self.plan.threads {
            super::board::announce(self.board);
        }
    }

    /// Cheap features come often, dear ones seldom.
    fn choose(&mut self) -> Feature {
        let weight = |feature: &Feature| match feature {
            Feature::Rw => 400,
            Feature::Io | Feature::Churn | Feature::Remap | Feature::Discard => 60,
            Feature::Scan | Feature::Direct | Feature::Free | Feature::Protect => 30,
            Feature::Threads => 10,
            Feature::Huge => 4,
            Feature::Fork | Feature::Exec => 1,
        };
        let total: usize = self.plan.features.iter().map(weight).sum();
        let mut left = self.dice.below(total);
        for feature in &self.plan.features {
            match left.checked_sub(weight(feature)) {
                Some(rest) => left = rest,
                None => return *feature,
            }
        }
        Feature::Rw
    }

    fn step(&mut self, feature: Feature) -> Result<(), Trouble> {
        match feature {
            Feature::Rw => self.read_and_write(),
            Feature::Scan => self.scan(),
            Feature::Io => self.transfer.step(self.set, &mut self.dice, self.board),
            Feature::Direct => self.transfer.direct(self.set, &mut self.dice, self.board),
            Feature::Churn => self.churn.step(&mut self.dice, self.board),
            Feature::Remap => self.moves.step(&mut self.dice, self.board),
            Feature::Discard => discard::dontneed(self.set, &mut self.dice, self.board),
            Feature::Free => discard::free(self.set, &mut self.dice, self.board),
            Feature::Protect => discard::protect(self.set, &mut self.dice, self.board),
            Feature::Huge => discard::toggle_huge(self.set, &mut self.dice),
            Feature::Fork => family::fork(self.set, &mut self.dice, self.board, self.children),
            Feature::Exec => family::exec(&mut self.dice, self.board, self.children),
            Feature::Threads => family::thread(&mut self.dice, self.board),
        }
    }

    fn read_and_write(&mut self) -> Result<(), Trouble> {
        for _ in 0..16 {
            random_touch(self.set, &mut self.dice, self.board, self.place)?;
        }
        Ok(())
    }

    /// Goes on from where the last scan step ended.
    fn scan(&mut self) -> Result<(), Trouble> {
        for _ in 0..16 {
            let count = SCAN_STEP.min(self.set.pages() - self.scan_at);
            if let Some(held) = self.set.hold(self.scan_at, count) {
                self.board.begin(self.place, Feature::Scan, self.scan_at);
                self.board.checked(held.check("a read in order")?);
            }
            self.scan_at = (self.scan_at + count) % self.set.pages();
        }
        Ok(())
    }
}
