//! Reads of pages that were reported written, by the rules of `hedging`: one whose donor hangs gets
//! company, and is not told that its page is lost.

use super::*;
use crate::io::hedging::{Asked, Choice, Late, Patience, ReadSource, Verdict};
use crate::io::latency::Quantile;

const PATIENCE: Patience = Patience { most: Duration::from_millis(500), least: Duration::from_millis(2) };
/// Attempts beyond the first that all reads together have room for.
const SPARE: usize = 4;
/// A read whose page a donor in reach has, unasked, for so long waits in vain: two attempts had all
/// their time, and the lane has looked.
const IN_VAIN: Duration = Duration::from_millis(2500);

/// One READ under way.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    index: u8,
    generation: u16,
    donor: usize,
    key: u64,
    connection: annex_agent::lease::ConnectionId,
    posted: Instant,
    /// It was late, and what is to be done about that was done.
    is_hedged: bool,
}

struct Read {
    slot: u32,
    content: u32,
    asked: Asked,
    /// The older one first.
    attempts: Vec<Attempt>,
    /// Places that were asked and are not waited for any more.
    relieved: u8,
    /// It was to have company when nobody or no room was there for that: attempts get it once.
    is_alone: bool,
    /// Since when somebody has the page who is in reach and not asked.
    in_vain_since: Option<Instant>,
}

/// A lane's reads, and what it knows of donors.
pub(super) struct Reader {
    reads: Vec<Read>,
    /// Attempts that go on without their read, and keep their pages.
    orphans: Vec<Attempt>,
    spare: usize,
    latency_ns: Vec<u64>,
    quantiles: Vec<Quantile>,
}

impl Reader {
    /// Half of them know already how long their donors take.
    pub fn new(donors: usize, seed: u64) -> Reader {
        let mut quantiles: Vec<Quantile> = (0..donors).map(|_| Quantile::default()).collect();
        if seed.is_multiple_of(2) {
            quantiles.iter_mut().for_each(|q| (0..64).for_each(|_| q.observe(20_000)));
        }
        Reader { reads: Vec::new(), orphans: Vec::new(), spare: SPARE, latency_ns: vec![20_000; donors], quantiles }
    }

    /// annexd was killed.
    pub fn forget(&mut self) {
        self.reads.clear();
        self.orphans.clear();
        self.spare = SPARE;
    }

    /// Nothing is under way any more, and all pages are where they were.
    pub fn rests(&self) {
        assert!(self.reads.is_empty(), "{} reads never end", self.reads.len());
        assert_eq!((self.orphans.len(), self.spare), (0, SPARE), "spare pages are gone");
    }

    fn late_ns(&self, donor: usize) -> u64 {
        self.quantiles[donor].late_ns()
    }
}

impl World<'_> {
    pub(super) fn begin_read(&mut self) {
        let first = self.draw(self.acknowledged.len());
        let all = (first..self.acknowledged.len()).chain(0..first);
        let Some(slot) = all.into_iter().find(|slot| self.acknowledged[*slot] != 0) else { return };
        self.references[slot] += 1;
        let asked = Asked { only: None, good: None, tries: [0; REPLICA_ENTRIES], busy: [None; 2] };
        let (slot, content) = (slot as u32, self.acknowledged[slot]);
        let (attempts, relieved) = (Vec::new(), 0);
        let read = Read { slot, content, asked, attempts, relieved, is_alone: false, in_vain_since: None };
        self.reader.reads.push(read);
        let at = self.reader.reads.len() - 1;
        self.read_on(at);
    }

    /// Some attempt ends, or a lane looks for late ones.
    pub(super) fn go_on_reading(&mut self) {
        if self.reader.reads.is_empty() || self.draw(4) == 0 {
            // Operations take some time.
            let micros = 20 + self.draw(200) as u64;
            self.wait(Duration::from_micros(micros), None);
            return self.hedge();
        }
        let at = self.draw(self.reader.reads.len());
        self.end_attempts(at);
    }

    /// Time passes: all that can end has, and the lane looks.
    pub(super) fn read_all(&mut self) {
        for at in (0..self.reader.reads.len()).rev() {
            self.end_attempts(at);
        }
        let mut orphans = std::mem::take(&mut self.reader.orphans);
        orphans.retain(|orphan| self.is_stuck(orphan));
        self.reader.orphans = orphans;
        self.hedge();
        for at in 0..self.reader.reads.len() {
            self.look_for_vain(at);
        }
        let used: usize = self.reader.reads.iter().map(|r| r.attempts.len().saturating_sub(1)).sum();
        self.reader.spare = SPARE - used - self.reader.orphans.len();
    }

    /// It neither ends nor fails.
    fn is_stuck(&self, attempt: &Attempt) -> bool {
        let d = &self.donors[attempt.donor];
        d.absence.hang.is_some() && d.connected && d.connection == attempt.connection && !self.is_given_up(attempt)
    }

    fn is_given_up(&self, attempt: &Attempt) -> bool {
        let waits = self.now - attempt.posted;
        waits >= absences::OP_TIMEOUT || self.donors[attempt.donor].absence.is_silent && waits >= absences::LATE
    }

    fn end_attempts(&mut self, at: usize) {
        for n in (0..self.reader.reads[at].attempts.len()).rev() {
            let attempt = self.reader.reads[at].attempts[n];
            if self.is_stuck(&attempt) {
                continue;
            }
            let slot = self.reader.reads[at].slot;
            let d = &self.donors[attempt.donor];
            let is_broken = !d.connected || d.connection != attempt.connection;
            let found = self.slab(attempt.donor, attempt.key).map(|bytes| bytes[(slot % SLOTS) as usize]);
            // A device that is being taken away refuses access to what its agent holds. Not beside
            // a donor that hangs: company is given to a read once.
            let none_hangs = self.donors.iter().all(|d| d.absence.hang.is_none());
            let is_refused = self.draw(40) == 0 && none_hangs && self.can_spare(attempt.donor);
            let found = found.filter(|_| !is_broken && !is_refused);
            let read = &mut self.reader.reads[at];
            if found == Some(read.content) {
                return self.end_read(at, n);
            }
            read.attempts.remove(n);
            // The older one is late, and has no company any more.
            read.attempts[..n].iter_mut().for_each(|older| older.is_hedged = false);
            read.asked.tries[usize::from(attempt.index)] += 1;
            let hangs = self.donors[attempt.donor].absence.hang.is_some();
            if found.is_none() && !is_broken && !hangs {
                self.refused(ExtentId(slot / SLOTS), &attempt);
            }
        }
        if self.reader.reads[at].attempts.is_empty() {
            self.read_on(at);
        }
    }

    /// Access was refused: its agent is to say whether it holds it still.
    fn refused(&mut self, extent: ExtentId, attempt: &Attempt) {
        if self.table.mark_stale(extent, attempt.index, attempt.generation) {
            self.send(News::Away(extent, attempt.index, attempt.generation));
        }
    }

    /// The attempt has brought the page. Others go on alone while they are under way.
    fn end_read(&mut self, at: usize, n: usize) {
        let mut read = self.reader.reads.swap_remove(at);
        let winner = read.attempts.remove(n);
        let took = (self.now - winner.posted).as_nanos() as u64;
        self.reader.quantiles[winner.donor].observe(took + 20_000);
        let latency = &mut self.reader.latency_ns[winner.donor];
        *latency = *latency - *latency / 8 + (took + 20_000) / 8;
        self.reader.orphans.extend(read.attempts);
        self.references[read.slot as usize] -= 1;
        self.tally.saw(Seen::Read);
    }

    fn read_on(&mut self, at: usize) {
        if self.attempt(at) != Choice::None {
            return;
        }
        let Read { slot, asked, .. } = &self.reader.reads[at];
        let (slot, asked) = (*slot, *asked);
        let extent = ExtentId(slot / SLOTS);
        // The lane's own rule: while nobody is live it waits for what comes; else for whoever has
        // it.
        let comes = |(_, r): (u8, &Replica)| is_unready(r.state);
        let has_it = |(n, r): (u8, &Replica)| {
            r.state.is_kept() && self.table.next_missed(extent, n, slot % SLOTS) != Some(slot % SLOTS)
        };
        let replicas = self.table.replicas(extent);
        let may_come = replicas.is_some_and(|r| r.iter().any(has_it) || r.live() == 0 && r.iter().any(comes));
        // Nobody keeps what its owner has released since.
        let is_kept = self.acknowledged[slot as usize] == self.reader.reads[at].content;
        assert!(
            may_come || !is_kept,
            "slot {slot} was reported written, and its reader is told that it is lost: {asked:?}"
        );
        if !may_come {
            self.reader.reads.swap_remove(at);
            self.references[slot as usize] -= 1;
            return;
        }
        // Tried as often as it is tried, or to be had when its replica is back.
        self.reader.reads[at].asked.tries = [0; REPLICA_ENTRIES];
    }

    fn attempt(&mut self, at: usize) -> Choice {
        let read = &self.reader.reads[at];
        let extent = ExtentId(read.slot / SLOTS);
        let Some(replicas) = self.table.replicas(extent) else { return Choice::None };
        let asked = Asked { busy: [0, 1].map(|n| read.attempts.get(n).map(|a| a.index)), ..read.asked };
        let nobody_else = replicas.live() == 0;
        let is_filled = |n: u8, r: &Replica| {
            let may_be_asked = nobody_else || self.spill == Some(r.donor.0.into());
            r.state.is_filled() && may_be_asked && self.table.has(extent, n, read.slot % SLOTS)
        };
        let open = replicas.iter().filter(|(n, r)| asked.may_ask(*n, r.state, is_filled(*n, r)));
        let candidate = |(index, r): (u8, &Replica)| {
            let donor = usize::from(r.donor.0);
            let to_it = |a: &&Attempt| a.donor == donor;
            let all = self.reader.reads.iter().flat_map(|r| &r.attempts).chain(&self.reader.orphans);
            ReadSource {
                index,
                is_usable: self.donors[donor].reachable,
                is_spill: self.spill == Some(donor),
                latency_ns: self.reader.latency_ns[donor],
                outstanding: all.filter(to_it).count(),
            }
        };
        let choice = asked.choose(open.map(candidate), false);
        if let Choice::Replica(index) = choice {
            let r = self.table.replica(extent, index);
            let donor = usize::from(r.donor.0);
            let (connection, posted) = (self.donors[donor].connection, self.now);
            let (generation, key, is_hedged) = (r.generation, r.rkey.0, false);
            let attempt = Attempt { index, generation, donor, key, connection, posted, is_hedged };
            self.reader.reads[at].attempts.push(attempt);
        }
        choice
    }

    /// The lane gives company to reads whose time is up.
    fn hedge(&mut self) {
        for at in 0..self.reader.reads.len() {
            for n in 0..self.reader.reads[at].attempts.len().min(2) {
                let read = &self.reader.reads[at];
                let Some(attempt) = read.attempts.get(n).copied().filter(|a| !a.is_hedged) else { continue };
                if self.now < PATIENCE.due(attempt.posted, self.reader.late_ns(attempt.donor)) {
                    continue;
                }
                let late = Late {
                    is_bound: false,
                    has_company: read.attempts.len() == 2,
                    is_youngest: n + 1 == read.attempts.len(),
                    live: self.table.replicas(ExtentId(read.slot / SLOTS)).map_or(0, |r| r.live()),
                    has_spare: self.reader.spare > 0,
                };
                self.reader.reads[at].attempts[n].is_hedged = true;
                self.carry_out_verdict(at, late.verdict());
            }
        }
    }

    fn carry_out_verdict(&mut self, at: usize, verdict: Verdict) {
        match verdict {
            Verdict::Wait => return,
            Verdict::NoRoom => return self.reader.reads[at].is_alone = true,
            Verdict::Accompany => self.tally.saw(Seen::Hedged),
            Verdict::Relieve => {
                let older = self.reader.reads[at].attempts.remove(0);
                self.reader.reads[at].relieved |= 1 << older.index;
                self.reader.orphans.push(older);
                self.tally.saw(Seen::Relieved);
            }
        }
        match self.attempt(at) {
            Choice::Replica(_) => self.reader.spare -= 1,
            Choice::Wait | Choice::None => self.reader.reads[at].is_alone = true,
        }
    }

    /// A read does not wait for a donor that hangs while another has the page.
    fn look_for_vain(&mut self, at: usize) {
        let read = &self.reader.reads[at];
        let extent = ExtentId(read.slot / SLOTS);
        let is_unasked = |n: u8| read.relieved & 1 << n == 0 && read.attempts.iter().all(|a| a.index != n);
        let could_give = |(n, r): (u8, &Replica)| r.state == ReplicaState::Live && is_unasked(n) && self.is_sure(r);
        let in_vain = !read.is_alone && self.table.replicas(extent).is_some_and(|r| r.iter().any(could_give));
        let now = self.now;
        let read = &mut self.reader.reads[at];
        match in_vain {
            true => _ = read.in_vain_since.get_or_insert(now),
            false => read.in_vain_since = None,
        }
        // While all of annexd was held up it looked at nothing; from its next attempt on it has its
        // time again.
        let since = read.in_vain_since.max(read.attempts.iter().map(|a| a.posted).max());
        assert!(
            !in_vain || since.is_none_or(|since| now - since < IN_VAIN),
            "a read of slot {} waits for {:?} since {since:?}, and others have the page",
            read.slot,
            read.attempts
        );
    }
}
