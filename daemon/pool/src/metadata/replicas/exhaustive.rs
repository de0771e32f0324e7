//! The replica table, exhaustively: every order of a lane's, the filler's and the coordinator's
//! steps on one extent with two slots, two replicas and three donors, with every fault that leaves
//! a replica to go by.
//!
//! The real table runs each step: a state's words are put into one that is kept for the search, and
//! read back. States are told apart by what matters for what comes: of generations and keys only
//! whether they are the present ones. The search goes as deep as each case says.
//!
//! # Covered
//! Two writes at a time, with tag, first look, each operation's end and second look as steps
//! of their own, and operations that fail, or are carried out without their end being seen; a donor
//! that goes out of reach and comes back with its bytes, with its bytes under new keys, or without
//! them; replicas that leave, are lost, are synced again, resume, are added anew or move elsewhere;
//! a backup that follows, is filled and is written again; a second fault while the first is
//! repaired; annexd killed between two steps.
//!
//! # Not covered
//! Kills and races inside one step (`tests`), the book that decides on the steps (`sim`: here the
//! coordinator may do anything that is allowed), more slots and donors, rewrites of slots that a
//! scrub found bad, and what `promote` gives up.

use super::*;
use annex_shared::ids::{ClientId, DonorId};
use std::hash::{Hash, Hasher};

const E: ExtentId = ExtentId(0);
const SLOTS: usize = 2;
const DONORS: usize = 3;
/// Replicas that there should be.
const WANTED: usize = 2;

thread_local! {
    static TABLE: ExtentTable = {
        let table = ExtentTable::create(ClientId(1)).unwrap();
        table.fix_slots_per_extent(SLOTS as u32);
        table.publish(E, &[]);
        table
    };
}

/// An entry's word, slab, incarnation, key, copying range and missed bits.
type Words = [u64; 6];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A lane stores the tag of a write to this slot.
    Begin(usize),
    /// It looks at the replicas and posts.
    Look(usize),
    /// The operation on this entry ends.
    Operate(usize, usize, End),
    Settle(usize),
    Release(usize),
    /// The filler takes what this entry lacks; reads, writes or passes over a slot; ends its round.
    BeginFill(usize),
    Fill,
    EndFill,
    GoLive(usize),
    Leave(usize),
    /// The coordinator has learned that the donor is back, maybe under another key; or has a backup
    /// written.
    Rejoin(usize),
    /// The coordinator believes that somebody else is live, so that the backup need only follow.
    Follow(usize),
    Lose(usize),
    Join(usize),
    Vacate(usize),
    OutOfReach(usize),
    Back(usize),
    /// Its agent starts anew, with or without the bytes.
    Restart(usize, bool),
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// Not carried out.
    Failed,
    /// Carried out; nobody saw.
    Unseen,
}

#[derive(Clone, Copy, Debug)]
struct Donor {
    reachable: bool,
    key: u64,
    /// Its only slab; `None` if it is not lent.
    bytes: Option<[u8; SLOTS]>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    slot: usize,
    content: u8,
    looked: bool,
    /// The generation and key it was posted under.
    open: [Option<(u16, u64)>; DONORS],
    done: Took,
}

#[derive(Clone, Debug)]
struct Filling {
    index: usize,
    generation: u16,
    left: Vec<u32>,
    read: Option<(u32, u8)>,
    failed: Vec<u32>,
    held: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Case {
    /// At once.
    writes: usize,
    writes_per_slot: u8,
    faults: u8,
    /// The entry of a backup.
    backup: Option<usize>,
    depth: usize,
}

#[derive(Clone, Debug)]
struct World {
    entries: [Words; DONORS],
    donors: [Donor; DONORS],
    writes: Vec<Write>,
    filling: Option<Filling>,
    references: [u8; SLOTS],
    sums: [u8; SLOTS],
    written: [u8; SLOTS],
    acknowledged: [u8; SLOTS],
    keys: u64,
    faults: u8,
    broken: Option<&'static str>,
}

fn on_table<T>(entries: &mut [Words; DONORS], run: impl FnOnce(&ExtentTable) -> T) -> T {
    TABLE.with(|table| {
        for (n, words) in (0..).zip(entries.iter()) {
            table.narrow(E, n, WORD).store(words[0] as u32, Relaxed);
            table.narrow(E, n, SLAB).store(words[1] as u32, Relaxed);
            table.wide(E, n, INCARNATION).store(words[2], Relaxed);
            table.wide(E, n, RKEY).store(words[3], Relaxed);
            table.wide(E, n, COPYING).store(words[4], Relaxed);
            table.missed_word(n, 0).store(words[5], Relaxed);
        }
        let result = run(table);
        for (n, words) in (0..).zip(entries.iter_mut()) {
            *words = [
                table.narrow(E, n, WORD).load(Relaxed).into(),
                table.narrow(E, n, SLAB).load(Relaxed).into(),
                table.wide(E, n, INCARNATION).load(Relaxed),
                table.wide(E, n, RKEY).load(Relaxed),
                table.wide(E, n, COPYING).load(Relaxed),
                table.missed_word(n, 0).load(Relaxed),
            ];
        }
        result
    })
}

fn on(donor: usize, key: u64) -> Replica {
    Replica::live(DonorId(donor as u16), SlabId(0), Incarnation(key), Rkey(key))
}

impl World {
    fn new() -> World {
        let mut entries = [[0; 6]; DONORS];
        on_table(&mut entries, |t| (0..WANTED).for_each(|d| t.found(E, d as u8, Some(&on(d, 1 + d as u64)))));
        let donor = |d: usize| Donor { reachable: true, key: 1 + d as u64, bytes: (d < WANTED).then_some([0; SLOTS]) };
        World {
            entries,
            donors: std::array::from_fn(donor),
            writes: Vec::new(),
            filling: None,
            references: [0; SLOTS],
            sums: [0; SLOTS],
            written: [0; SLOTS],
            acknowledged: [0; SLOTS],
            keys: DONORS as u64,
            faults: 0,
            broken: None,
        }
    }

    fn replica(&self, index: usize) -> Replica {
        let words = self.entries[index];
        let word = Replica::of_word(words[0] as u32);
        Replica { slab: SlabId(words[1] as u32), incarnation: Incarnation(words[2]), rkey: Rkey(words[3]), ..word }
    }

    fn state(&self, index: usize) -> ReplicaState {
        self.replica(index).state
    }

    fn missed(&self, index: usize) -> u64 {
        self.entries[index][5]
    }

    fn has_bytes(&self, index: usize) -> bool {
        self.donors[index].bytes.is_some() && self.donors[index].key == self.replica(index).rkey.0
    }

    fn is_good(&self, index: usize) -> bool {
        self.state(index) == ReplicaState::Live && self.donors[index].reachable && self.has_bytes(index)
    }

    /// Without this entry a live replica within reach is left, for every write under way too.
    fn can_spare(&self, index: usize) -> bool {
        let good = |n: &usize| *n != index && self.is_good(*n);
        let takes = |w: &Write, n: usize| {
            let generation = self.replica(n).generation;
            !w.looked || w.done[n] == Some(generation) || w.open[n].is_some_and(|(g, _)| g == generation)
        };
        (0..DONORS).any(|n| good(&n)) && self.writes.iter().all(|w| (0..DONORS).any(|n| good(&n) && takes(w, n)))
    }

    fn steps(&self, case: &Case, steps: &mut Vec<Step>) {
        if self.broken.is_some() {
            return;
        }
        for slot in 0..SLOTS {
            let room = self.writes.len() < case.writes && self.written[slot] < case.writes_per_slot;
            if self.references[slot] == 0 && room && (0..DONORS).any(|n| self.state(n) == ReplicaState::Live) {
                steps.push(Step::Begin(slot));
            }
            if self.acknowledged[slot] != 0 {
                steps.push(Step::Release(slot));
            }
        }
        for (w, write) in self.writes.iter().enumerate() {
            match write.looked {
                false => steps.push(Step::Look(w)),
                true if write.open.iter().all(Option::is_none) => steps.push(Step::Settle(w)),
                true => {}
            }
            for n in (0..DONORS).filter(|n| write.open[*n].is_some()) {
                steps.push(Step::Operate(w, n, End::Done));
                if self.faults < case.faults && self.can_spare(n) {
                    steps.extend([Step::Operate(w, n, End::Failed), Step::Operate(w, n, End::Unseen)]);
                }
            }
        }
        for n in 0..DONORS {
            if self.state(n).is_filled() && self.filling.is_none() && self.missed(n) != 0 {
                steps.push(Step::BeginFill(n));
            }
            if case.backup == Some(n) && self.state(n).is_written() {
                steps.push(Step::Follow(n));
            }
            match self.state(n) {
                ReplicaState::Syncing => steps.push(Step::GoLive(n)),
                ReplicaState::Backup if self.has_bytes(n) => steps.push(Step::Rejoin(n)),
                ReplicaState::Stale if self.donors[n].reachable && self.has_bytes(n) => steps.push(Step::Rejoin(n)),
                ReplicaState::Lost | ReplicaState::Unused if self.donors[n].reachable => steps.push(Step::Join(n)),
                _ => {}
            }
            let state = self.state(n);
            if state.is_there() && !self.donors[n].reachable {
                steps.push(Step::Leave(n));
            }
            if state.is_kept() && self.donors[n].reachable && !self.has_bytes(n) {
                steps.push(if self.donors[n].bytes.is_none() { Step::Lose(n) } else { Step::Rejoin(n) });
            }
            let lives = (0..DONORS).filter(|m| *m != n && self.is_good(*m)).count();
            if state.is_kept() && lives >= WANTED && self.writes.is_empty() {
                steps.push(Step::Vacate(n));
            }
            if !self.donors[n].reachable {
                steps.push(Step::Back(n));
            }
            if self.faults < case.faults && state.is_kept() && self.can_spare(n) {
                if self.donors[n].reachable {
                    steps.push(Step::OutOfReach(n));
                }
                steps.extend([Step::Restart(n, true), Step::Restart(n, false)]);
            }
        }
        if let Some(filling) = &self.filling {
            let is_over = filling.left.is_empty() && filling.read.is_none();
            steps.push(if is_over { Step::EndFill } else { Step::Fill });
        }
        if self.faults < case.faults {
            steps.push(Step::Kill);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin(slot) => {
                self.written[slot] += 1;
                let content = self.written[slot];
                (self.references[slot], self.sums[slot]) = (2, content);
                let write = Write { slot, content, looked: false, open: [None; DONORS], done: [None; REPLICA_ENTRIES] };
                self.writes.push(write);
            }
            Step::Look(w) => {
                self.writes[w].open = std::array::from_fn(|n| {
                    let replica = self.replica(n);
                    replica.state.is_written().then_some((replica.generation, replica.rkey.0))
                });
                self.writes[w].looked = true;
            }
            Step::Operate(w, n, end) => self.operate(w, n, end),
            Step::Settle(w) => {
                let write = self.writes.remove(w);
                let settled = on_table(&mut self.entries, |t| t.settle(E, write.slot as u32, 1, &write.done));
                self.references[write.slot] -= 1;
                match settled.held {
                    true => self.acknowledged[write.slot] = write.content,
                    false => self.references[write.slot] -= 1,
                }
            }
            Step::Release(slot) => {
                self.acknowledged[slot] = 0;
                self.references[slot] -= 1;
            }
            Step::BeginFill(index) => {
                let mut left = Vec::new();
                on_table(&mut self.entries, |t| t.begin_copy(E, index as u8, 0, SLOTS as u32, &mut left));
                let generation = self.replica(index).generation;
                self.filling =
                    Some(Filling { index, generation, left, read: None, failed: Vec::new(), held: Vec::new() });
            }
            Step::Fill => self.fill(),
            Step::EndFill => {
                let Some(filling) = self.filling.take() else { return };
                filling.held.iter().for_each(|slot| self.references[*slot] -= 1);
                let Filling { index, generation, failed, .. } = filling;
                on_table(&mut self.entries, |t| t.end_copy(E, index as u8, generation, &failed, &[]));
            }
            Step::GoLive(n) => {
                let generation = self.replica(n).generation;
                on_table(&mut self.entries, |t| t.go_live(E, n as u8, generation));
            }
            Step::Leave(n) => {
                let generation = self.replica(n).generation;
                on_table(&mut self.entries, |t| t.mark_stale(E, n as u8, generation));
            }
            Step::Rejoin(n) => {
                let (replica, donor) = (self.replica(n), self.donors[n]);
                on_table(&mut self.entries, |t| match donor.bytes {
                    None => _ = t.mark_lost(E, n as u8, replica.generation),
                    Some(_) if donor.key == replica.rkey.0 => _ = t.resync(E, n as u8, ReplicaState::Syncing),
                    Some(_) => _ = t.resume(E, n as u8, Incarnation(donor.key), Rkey(donor.key)),
                });
            }
            Step::Follow(n) => {
                on_table(&mut self.entries, |t| t.resync(E, n as u8, ReplicaState::Backup));
                let leads = (0..DONORS).any(|m| self.state(m) == ReplicaState::Live);
                self.must(leads || self.state(n) != ReplicaState::Backup, "a backup follows somebody");
            }
            Step::Lose(n) => {
                let generation = self.replica(n).generation;
                on_table(&mut self.entries, |t| t.mark_lost(E, n as u8, generation));
            }
            Step::Join(n) => {
                self.keys += 1;
                (self.donors[n].key, self.donors[n].bytes) = (self.keys, Some([0; SLOTS]));
                on_table(&mut self.entries, |t| t.add_replica(E, n as u8, &on(n, self.keys), ReplicaState::Syncing));
            }
            Step::Vacate(n) => {
                let generation = self.replica(n).generation;
                let is_removed = on_table(&mut self.entries, |t| t.remove_replica(E, n as u8, generation, WANTED));
                assert!(is_removed, "others are live");
                self.donors[n].bytes = None;
            }
            Step::OutOfReach(n) => {
                self.faults += 1;
                self.donors[n].reachable = false;
            }
            Step::Back(n) => self.donors[n].reachable = true,
            Step::Restart(n, with_bytes) => {
                self.faults += 1;
                self.keys += 1;
                // Until the coordinator has heard of it, nothing gets through.
                let bytes = self.donors[n].bytes.filter(|_| with_bytes);
                self.donors[n] = Donor { reachable: false, key: self.keys, bytes };
            }
            Step::Kill => {
                self.faults += 1;
                self.writes.clear();
                self.filling = None;
                on_table(&mut self.entries, |t| t.settle_in());
                self.references = self.acknowledged.map(|content| u8::from(content != 0));
            }
        }
        self.look();
    }

    fn operate(&mut self, w: usize, n: usize, end: End) {
        let Write { slot, content, open, .. } = self.writes[w];
        let Some((generation, key)) = open[n] else { return };
        let donor = &mut self.donors[n];
        let is_lent = donor.reachable && donor.key == key;
        let stored = match &mut donor.bytes {
            Some(bytes) if is_lent && end != End::Failed => {
                bytes[slot] = content;
                true
            }
            _ => false,
        };
        let refused = donor.reachable && (donor.bytes.is_none() || donor.key != key);
        self.writes[w].open[n] = None;
        if end != End::Done {
            self.faults += 1;
        }
        on_table(&mut self.entries, |t| match (stored, end) {
            (true, End::Done) => {}
            _ if refused => _ = t.mark_lost(E, n as u8, generation),
            _ => _ = t.mark_stale(E, n as u8, generation),
        });
        if stored && end == End::Done {
            self.writes[w].done[n] = Some(generation);
        }
    }

    /// One slot: read, then written and looked at again.
    fn fill(&mut self) {
        let Some(mut filling) = self.filling.take() else { return };
        let index = filling.index;
        if let Some((slot, content)) = filling.read.take() {
            let replica = self.replica(index);
            let fits = replica.state.is_there() && replica.generation == filling.generation;
            let target = self.donors[index].reachable && self.has_bytes(index) && fits;
            if let Some(bytes) = self.donors[index].bytes.as_mut().filter(|_| target) {
                bytes[slot as usize] = content;
            }
            if !target || self.sums[slot as usize] != content {
                filling.failed.push(slot);
            }
        } else if let Some(slot) = filling.left.pop() {
            let at = slot as usize;
            if self.references[at] > 0 {
                self.references[at] += 1;
                filling.held.push(at);
                let lives = (0..DONORS).any(|n| self.state(n) == ReplicaState::Live);
                let gives = |n: &usize| {
                    let fits = match self.state(*n) {
                        ReplicaState::Live => true,
                        ReplicaState::Syncing => !lives && self.missed(*n) & 1 << slot == 0,
                        _ => false,
                    };
                    let bytes = self.donors[*n].bytes.filter(|_| self.donors[*n].reachable && self.has_bytes(*n));
                    fits && *n != index && bytes.is_some_and(|bytes| bytes[at] == self.sums[at])
                };
                match (0..DONORS).any(|n| gives(&n)) {
                    true => filling.read = Some((slot, self.sums[at])),
                    false => filling.failed.push(slot),
                }
            }
        }
        self.filling = Some(filling);
    }

    fn must(&mut self, holds: bool, rule: &'static str) {
        if !holds {
            self.broken.get_or_insert(rule);
        }
    }

    fn look(&mut self) {
        for slot in 0..SLOTS {
            let content = self.acknowledged[slot];
            if content == 0 {
                continue;
            }
            let mut held = false;
            for n in 0..DONORS {
                let Some(bytes) = self.donors[n].bytes.filter(|_| self.state(n).is_kept()) else { continue };
                let has = bytes[slot] == content;
                // Whoever came back under another key is no replica before it was resumed or lost.
                let copied = self.filling.as_ref().is_some_and(|f| f.index == n);
                let known = self.missed(n) & 1 << slot != 0 || copied;
                self.must(has || known, "a replica lacks only what is marked or being copied");
                let is_live = self.state(n) == ReplicaState::Live;
                self.must(
                    has || !is_live || !self.has_bytes(n),
                    "a live replica has every write that was reported done",
                );
                held |= has;
            }
            self.must(held, "what was reported written is on a replica");
        }
    }

    /// Without further faults all is whole in the end.
    fn ends(&self) -> bool {
        if self.broken.is_some() {
            return true;
        }
        let mut calm = self.clone();
        for _ in 0..200 {
            let mut steps = Vec::new();
            calm.steps(&Case::default(), &mut steps);
            let lives = (0..DONORS).filter(|n| calm.is_good(*n)).count();
            let kept = (0..DONORS).filter(|n| calm.state(*n).is_kept()).count();
            let wanted = |step: &Step| match step {
                Step::Release(_) | Step::Vacate(_) => false,
                Step::Join(_) => kept < WANTED,
                Step::GoLive(n) => calm.missed(*n) == 0 && calm.entries[*n][4] == 0,
                _ => true,
            };
            match steps.into_iter().find(wanted) {
                Some(step) => calm.step(step),
                None => return lives >= WANTED && calm.broken.is_none(),
            }
        }
        false
    }

    fn essence(&self) -> Vec<u64> {
        let mut out = Vec::with_capacity(64);
        for n in 0..DONORS {
            let (replica, donor) = (self.replica(n), &self.donors[n]);
            out.extend([replica.state as u64, self.entries[n][4], self.missed(n)]);
            out.extend([u64::from(donor.reachable), u64::from(donor.key == replica.rkey.0)]);
            out.push(donor.bytes.map_or(0, |bytes| bytes.iter().fold(1, |all, b| all << 8 | u64::from(*b))));
        }
        for write in &self.writes {
            out.extend([1000 + write.slot as u64, write.content.into(), write.looked.into()]);
            for n in 0..DONORS {
                let generation = self.replica(n).generation;
                let open = write.open[n]
                    .map(|(g, key)| 4 | u64::from(g == generation) << 1 | u64::from(key == self.donors[n].key));
                let done = write.done[n].map(|g| 2 | u64::from(g == generation));
                out.extend([open.unwrap_or(0), done.unwrap_or(0)]);
            }
        }
        if let Some(f) = &self.filling {
            let is_present = f.generation == self.replica(f.index).generation;
            out.extend([2000 + f.index as u64, u64::from(is_present)]);
            out.extend(f.read.map(|(slot, content)| 3000 + u64::from(slot) * 100 + u64::from(content)));
            out.extend(f.left.iter().map(|slot| 4000 + u64::from(*slot)));
            out.extend(f.failed.iter().map(|slot| 5000 + u64::from(*slot)));
            out.extend(f.held.iter().map(|slot| 6000 + *slot as u64));
        }
        let bytes = [self.references, self.sums, self.written, self.acknowledged];
        out.extend(bytes.iter().flatten().map(|b| u64::from(*b)));
        out.extend([self.faults.into(), self.broken.map_or(0, |rule| rule.len() as u64)]);
        out
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        self.essence() == other.essence()
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.essence().hash(state);
    }
}

mod search;
