//! The replicas of an extent: what each is good for, and what it lacks. All of it is in the extent
//! table, and every change here is ordered such that a kill between any two stores leaves a true
//! picture.
//!
//! [`ReplicaState`] draws the states and says what each is good for. The coordinator makes a backup
//! syncing when no donor's replica is there to take the writes, and a syncing or live one a backup
//! when there is one again.
//!
//! An entry's *generation* changes whenever it stands for another slab, key or incarnation, so that
//! whoever acts on an old picture is recognised. The fields behind the word change only while the
//! word says unused or stale, under a new generation: a reader that finds the same word before and
//! after has read what belongs together.
//!
//! # What holds
//! **For every slot whose write was reported done, each replica that is not lost either has the
//! content, or its missed bit for the slot is set, or the slot lies in its *copying* range.**
//! Replicas that are live have it; a live one with a bit set exists only while somebody is about to
//! turn it into a syncing one, and counts as one when found at a take-over.
//!
//! ## Writes
//! A lane stores the tags, then looks at the replicas, then posts to those that are live or
//! syncing. When all operations of the write are completed it looks *again*
//! ([`ExtentTable::settle`]), and marks the slots as missed in every entry that did not take the
//! write in its present generation, whatever the reason: it failed, it was stale, it was added
//! after the first look. If such an entry is found live after the marks are set, it is turned into
//! syncing. Only then is the write reported done.
//!
//! ## Filling
//! One thread copies, to syncing replicas and to backups alike: a backup is one that no
//! lane looks at, so that every write that is settled marks it. For a piece of the bitmap: store
//! the copying range; clear the bits; then, slot by slot: take a reference (a slot that is free
//! needs nothing, nor does one whose only write failed: its owner has the bytes back); read it from
//! a live replica, verified against the slot table; write it to the syncing one alone; see that the
//! slot's tag is still that of the bytes written. What failed is marked again; then the range
//! is cleared. A replica goes live when no bit and no range is left, and a look *after* it went
//! live finds none either.
//!
//! Why that is enough, for a slot *s*, a write *w* of it, and a replica *j* that is being filled:
//! - Slots are written out of place: reserved, written once, referred to, freed. While the filler
//!   holds a reference the slot is not reserved anew, so the only write that can overlap is the
//!   first one, if it has not been settled yet.
//! - *w* was settled before the filler cleared the bit: the reference keeps the content, a live
//!   replica has it, its tag is stored: the verified read gets it.
//! - *w* settles after the bit was cleared, and *j* did not take it: settling sets the bit again,
//!   and *j* does not go live with it. If *j* went live between the lane's look and its mark, the
//!   lane finds it live after the mark and turns it back. Either the mark or the state is seen
//!   first by one of both (sequentially consistent fences between each one's store and load), so at
//!   least one acts.
//! - *j* takes *w*, and the filler writes to *s* too. The filler read bytes that matched the
//!   tag it saw. If that was *w*'s, both write the same. If it was the one before, from the
//!   slot's last use, then *w* had not stored its tag; if it does before the filler's last
//!   look, the filler marks the slot and copies it again; if after, *w*'s bytes are posted after
//!   the filler's write was complete, and stay.
//! - A lane that had looked before *j* was published does not write to it. Its tag was stored
//!   before it looked, and the filler looks at tags after *j* was published: so the filler
//!   sees it and its read waits for the content (a mismatch is tried again later). Besides, the
//!   second look when it settles marks the slot.
//! - A write of the filler whose end was not seen is like any other: the connection is broken and
//!   the next one fences it; the slot is marked, and not reused until the write can't come any
//!   more.
//!
//! ## Kills
//! Bits are cleared only inside a copying range that is stored before; at a take-over the range's
//! slots are marked. Syncing replicas and backups are found as stale, and go on with what is marked
//! when their donor confirms the lease. An entry is given to a new replica in this order: word
//! unused under the new generation, all bits set, fields, word syncing. A replica that comes back
//! under a new key: word stale under the new generation, key, incarnation, word syncing; killed in
//! between, its fields don't fit what the agent says and it is lost, or they do and it is complete.

use crate::metadata::extents::{ExtentTable, SLOT_BITS};
use crate::metadata::replica::{REPLICA_ENTRIES, Replica, ReplicaState, Replicas};
use annex_shared::ids::{ExtentId, Incarnation, Rkey, SlabId};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

const WORD: usize = 0;
const SLAB: usize = 4;
const INCARNATION: usize = 8;
const RKEY: usize = 16;
const COPYING: usize = 24;
/// What a write did at each entry: the generation in which the entry took all of it.
pub(crate) type Took = [Option<u16>; REPLICA_ENTRIES];

/// A write that was looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// A live replica has it.
    pub held: bool,
    /// These entries were live without it and are syncing now, by bit.
    pub fell_behind: u8,
}

impl ExtentTable {
    /// The replicas of a live extent.
    #[inline]
    pub fn replicas(&self, extent: ExtentId) -> Option<Replicas> {
        let mut found = None;
        if self.is_live(extent) {
            let all = found.insert(Replicas { items: [Replica::of_word(0); REPLICA_ENTRIES] });
            (0..).zip(&mut all.items).for_each(|(n, item)| self.read(extent, n, item));
        }
        found
    }

    /// What is in an entry.
    #[inline]
    pub fn replica(&self, extent: ExtentId, index: u8) -> Replica {
        let mut replica = Replica::of_word(0);
        self.read(extent, index, &mut replica);
        replica
    }

    /// To where it is wanted: a copy of what was stored field by field just before makes the
    /// processor wait.
    #[inline]
    fn read(&self, extent: ExtentId, index: u8, replica: &mut Replica) {
        let field = self.narrow(extent, index, WORD);
        loop {
            let word = field.load(Acquire);
            *replica = Replica::of_word(word);
            if replica.state == ReplicaState::Unused {
                return;
            }
            replica.slab = SlabId(self.narrow(extent, index, SLAB).load(Relaxed));
            replica.incarnation = Incarnation(self.wide(extent, index, INCARNATION).load(Relaxed));
            replica.rkey = Rkey(self.wide(extent, index, RKEY).load(Relaxed));
            fence(Acquire);
            // Only a change in this very moment makes another round.
            if field.load(Relaxed) == word {
                return;
            }
        }
    }

    /// The live extents.
    pub fn live(&self) -> impl Iterator<Item = (ExtentId, Replicas)> {
        self.ids().filter_map(|e| self.replicas(e).map(|r| (e, r)))
    }

    // ---- changes of state ----

    /// Never to be read again. True if it counted for something until now and is still the one that
    /// was meant.
    pub fn mark_lost(&self, extent: ExtentId, index: u8, generation: u16) -> bool {
        self.turn(extent, index, Some(generation), ReplicaState::is_kept, ReplicaState::Lost)
    }

    /// Neither read nor written until it syncs again.
    pub fn mark_stale(&self, extent: ExtentId, index: u8, generation: u16) -> bool {
        self.turn(extent, index, Some(generation), ReplicaState::is_there, ReplicaState::Stale)
    }

    /// Its bytes are elsewhere now, and its slab goes back. False if fewer than so many `others`
    /// are live, whatever the coordinator has heard: then it is stale and has what it has. It steps
    /// back before it looks, and who settles a write marks before they look: one of the two sees
    /// what the other did.
    pub fn remove_replica(&self, extent: ExtentId, index: u8, generation: u16, others: usize) -> bool {
        self.mark_stale(extent, index, generation);
        fence(SeqCst);
        if self.live_beside(extent, index) < others {
            return false;
        }
        self.turn(extent, index, Some(generation), |s| s != ReplicaState::Unused, ReplicaState::Unused)
    }

    /// Puts a replica with no content into an entry that is free, syncing or as a backup. Its
    /// generation.
    pub fn add_replica(&self, extent: ExtentId, index: u8, replica: &Replica, to: ReplicaState) -> Option<u16> {
        let before = self.replica(extent, index);
        if before.state.is_kept() {
            return None;
        }
        let generation = before.next_generation();
        let mut next = Replica { state: ReplicaState::Unused, generation, ..*replica };
        self.narrow(extent, index, WORD).store(next.word(), SeqCst);
        fence(SeqCst);
        self.mark_all(extent, index);
        self.fill_in(extent, index, replica);
        next.state = to;
        self.narrow(extent, index, WORD).store(next.word(), SeqCst);
        fence(SeqCst);
        Some(generation)
    }

    /// A replica that was stale is written again, or follows; what it missed is marked. One that
    /// followed is written from now on, or one that was written follows. If it turns out that there
    /// is nobody live to follow it is syncing: else no write would be held until the coordinator
    /// hears of that. Like [`ExtentTable::remove_replica`] it looks after it has stepped back. The
    /// replica as it is now, unless it is lost.
    pub fn resync(&self, extent: ExtentId, index: u8, to: ReplicaState) -> Option<Replica> {
        let from = |s: ReplicaState| match to {
            ReplicaState::Backup => s.is_kept(),
            _ => matches!(s, ReplicaState::Stale | ReplicaState::Backup),
        };
        self.turn(extent, index, None, from, to);
        // A lane that looked before goes on as if nothing had happened: what it does not write here
        // it marks.
        fence(SeqCst);
        if to == ReplicaState::Backup && self.live_beside(extent, index) == 0 {
            self.turn(extent, index, None, |s| s == ReplicaState::Backup, ReplicaState::Syncing);
            fence(SeqCst);
        }
        Some(self.replica(extent, index)).filter(|now| now.state.is_filled())
    }

    /// A replica's bytes came through its agent's restart: same slab, new key. The replica as it is
    /// now.
    pub fn resume(&self, extent: ExtentId, index: u8, incarnation: Incarnation, rkey: Rkey) -> Option<Replica> {
        let before = self.replica(extent, index);
        if !before.state.is_kept() {
            return None;
        }
        let generation = before.next_generation();
        let mut next = Replica { state: ReplicaState::Stale, generation, ..before };
        // Lanes may turn it into lost meanwhile; then it stays lost.
        let word = self.narrow(extent, index, WORD);
        word.fetch_update(SeqCst, SeqCst, |w| Replica::of_word(w).state.is_kept().then_some(next.word())).ok()?;
        fence(SeqCst);
        self.wide(extent, index, RKEY).store(rkey.0, Relaxed);
        self.wide(extent, index, INCARNATION).store(incarnation.0, Relaxed);
        let away = next.word();
        next.state = ReplicaState::Syncing;
        word.compare_exchange(away, next.word(), SeqCst, SeqCst).ok()?;
        fence(SeqCst);
        Some(Replica { incarnation, rkey, ..next })
    }

    /// Makes a syncing replica live if it lacks nothing.
    pub fn go_live(&self, extent: ExtentId, index: u8, generation: u16) -> bool {
        if !self.lacks_nothing(extent, index) {
            return false;
        }
        let is_syncing = |s| s == ReplicaState::Syncing;
        if !self.turn(extent, index, Some(generation), is_syncing, ReplicaState::Live) {
            return false;
        }
        fence(SeqCst);
        self.lacks_nothing(extent, index) || !self.fall_behind(extent, index)
    }

    /// Makes a syncing replica live though it lacks something that nobody has. The number of slots
    /// it lacks, of those that `of` lets through. `None`: it can get something from another one
    /// that is syncing, however long that takes, and is left as it is.
    pub fn promote(&self, extent: ExtentId, index: u8, of: impl Fn(u32, u64) -> u64) -> Option<u32> {
        if self.could_get_more(extent, index) {
            return None;
        }
        let generation = self.replica(extent, index).generation;
        self.end_copy(extent, index, generation, &[], &[]);
        let lacking = self.missed_count(extent, index, of);
        self.words(extent, 0, self.slots()).for_each(|(word, mask)| {
            self.missed_word(index, word).fetch_and(!mask, AcqRel);
        });
        let is_syncing = |s| s == ReplicaState::Syncing;
        self.turn(extent, index, Some(generation), is_syncing, ReplicaState::Live).then_some(lacking)
    }

    fn could_get_more(&self, extent: ExtentId, index: u8) -> bool {
        let Some(replicas) = self.replicas(extent) else { return false };
        let others = replicas.iter().filter(|(n, r)| *n != index && r.state == ReplicaState::Syncing);
        let others: Vec<u8> = others.map(|(n, _)| n).collect();
        let lacks = |slot: &u32| !self.has(extent, index, *slot);
        (0..self.slots()).filter(lacks).any(|slot| others.iter().any(|n| self.has(extent, *n, slot)))
    }

    // ---- what is missed ----

    /// The second look at a write, when all its operations are completed. See the module's header.
    pub fn settle(&self, extent: ExtentId, first: u32, count: u32, took: &Took) -> Settled {
        let mut settled = Settled { held: false, fell_behind: 0 };
        fence(SeqCst);
        let Some(replicas) = self.replicas(extent) else { return settled };
        for (n, replica) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
            if took[usize::from(n)] != Some(replica.generation) && self.mark(extent, n, first, count) {
                settled.fell_behind |= 1 << n;
            }
        }
        // Looked at after all is marked: one that has stepped back by now may have counted on one
        // that is fell_behind here. See `remove_replica`.
        fence(SeqCst);
        let has_it =
            |(n, r): (u8, &Replica)| took[usize::from(n)] == Some(r.generation) && r.state == ReplicaState::Live;
        settled.held = self.replicas(extent).is_some_and(|replicas| replicas.iter().any(has_it));
        settled
    }

    /// Marks slots as missed. True if the replica was live until now.
    pub fn mark(&self, extent: ExtentId, index: u8, first: u32, count: u32) -> bool {
        for (word, mask) in self.words(extent, first, count) {
            self.missed_word(index, word).fetch_or(mask, AcqRel);
        }
        fence(SeqCst);
        self.fall_behind(extent, index)
    }

    /// The first missed slot from offset `from` on.
    pub fn next_missed(&self, extent: ExtentId, index: u8, from: u32) -> Option<u32> {
        let slots = self.slots();
        let found = self.words(extent, from, slots.saturating_sub(from)).find_map(|(word, mask)| {
            let bits = self.missed_word(index, word).load(Acquire) & mask;
            (bits != 0).then(|| word * 64 + bits.trailing_zeros())
        });
        found.map(|slot| slot & (slots - 1))
    }

    /// It has the content of a slot whose write was reported done: it is neither marked as missing
    /// it nor is it just being copied.
    pub fn has(&self, extent: ExtentId, index: u8, slot: u32) -> bool {
        let is_missed = || {
            let mut words = self.words(extent, slot, 1);
            words.any(|(word, mask)| self.missed_word(index, word).load(Acquire) & mask != 0)
        };
        let is_copied = || {
            let (first, count) = self.copying(extent, index);
            slot.wrapping_sub(first) < count
        };
        // A copy that ended without it has marked it before it let go of the range.
        !is_missed() && !is_copied() && !is_missed()
    }

    pub fn lacks_nothing(&self, extent: ExtentId, index: u8) -> bool {
        self.wide(extent, index, COPYING).load(Acquire) == 0 && self.next_missed(extent, index, 0).is_none()
    }

    /// How many slots are missed, of those that `of` (given a word's number and its missed bits)
    /// lets through. All of a range that is being copied count: the copy may fail.
    pub fn missed_count(&self, extent: ExtentId, index: u8, of: impl Fn(u32, u64) -> u64) -> u32 {
        let missed = |word| self.missed_word(index, word).load(Acquire);
        let waiting: u32 =
            self.words(extent, 0, self.slots()).map(|(word, mask)| of(word, missed(word) & mask).count_ones()).sum();
        let (first, count) = self.copying(extent, index);
        let copied = self.words(extent, first, count).map(|(word, mask)| of(word, !missed(word) & mask).count_ones());
        waiting + copied.sum::<u32>()
    }

    // ---- copying ----

    /// Takes the missed bits of a range, to be copied now. Appends the offsets taken. Only one
    /// range per replica at a time.
    pub fn begin_copy(&self, extent: ExtentId, index: u8, first: u32, count: u32, taken: &mut Vec<u32>) {
        self.recover_copy(extent, index);
        let count = count.min(self.slots().saturating_sub(first));
        self.wide(extent, index, COPYING).store(u64::from(first) | u64::from(count) << 32, SeqCst);
        for (word, mask) in self.words(extent, first, count) {
            let mut bits = self.missed_word(index, word).fetch_and(!mask, AcqRel) & mask;
            while bits != 0 {
                taken.push((word * 64 + bits.trailing_zeros()) & (self.slots() - 1));
                bits &= bits - 1;
            }
        }
        // Whatever is looked at from here on is looked at after the bits were cleared.
        fence(SeqCst);
    }

    /// Ends it; `failed` were not copied, nor were those that `nobody` had, or none was if the
    /// entry stands for another replica by now. True if the replica was live until now.
    ///
    /// A copy into a replica that is live was met by [`ExtentTable::promote`], which has given up
    /// what nobody has: to mark that again would make it syncing again, and promoted again, for
    /// ever. What failed for another reason may have been overwritten by the copy.
    pub fn end_copy(&self, extent: ExtentId, index: u8, generation: u16, failed: &[u32], nobody: &[u32]) -> bool {
        fence(SeqCst);
        let mut fell_behind = false;
        let replica = self.replica(extent, index);
        if replica.generation != generation {
            fell_behind |= self.recover_copy(extent, index);
        }
        let given_up = replica.generation == generation && replica.state == ReplicaState::Live;
        let nobody = if given_up { &[] } else { nobody };
        for slot in failed.iter().chain(nobody) {
            fell_behind |= self.mark(extent, index, *slot, 1);
        }
        self.wide(extent, index, COPYING).store(0, SeqCst);
        fell_behind
    }

    /// The range that is being copied: its first slot and how many.
    fn copying(&self, extent: ExtentId, index: u8) -> (u32, u32) {
        let range = self.wide(extent, index, COPYING).load(Acquire);
        let (first, count) = (range as u32, (range >> 32) as u32);
        (first, count.min(self.slots().saturating_sub(first)))
    }

    fn recover_copy(&self, extent: ExtentId, index: u8) -> bool {
        let (first, count) = self.copying(extent, index);
        if count == 0 {
            return false;
        }
        let fell_behind = self.mark(extent, index, first, count);
        self.wide(extent, index, COPYING).store(0, SeqCst);
        fell_behind
    }

    // ---- taking over ----

    /// After a kill: what was being filled, or is live and lacks something, waits for its donor's
    /// word.
    pub(crate) fn settle_in(&self) {
        if self.slots() == 0 {
            return;
        }
        for (extent, replicas) in self.live() {
            for (n, _) in replicas.iter().filter(|(_, r)| r.state.is_kept()) {
                self.recover_copy(extent, n);
                let whole = self.next_missed(extent, n, 0).is_none();
                let unfit = |s: ReplicaState| s.is_filled() || (s == ReplicaState::Live && !whole);
                self.turn(extent, n, None, unfit, ReplicaState::Stale);
            }
        }
    }

    /// Writes a new extent's entry, while the extent is not live.
    pub(crate) fn found(&self, extent: ExtentId, index: u8, replica: Option<&Replica>) {
        let before = self.replica(extent, index);
        let Some(replica) = replica else {
            let vacant = Replica { state: ReplicaState::Unused, ..before };
            return self.narrow(extent, index, WORD).store(vacant.word(), Relaxed);
        };
        let mut next = Replica { state: ReplicaState::Unused, generation: before.next_generation(), ..*replica };
        self.narrow(extent, index, WORD).store(next.word(), SeqCst);
        fence(SeqCst);
        self.wide(extent, index, COPYING).store(0, Relaxed);
        for (word, mask) in self.words(extent, 0, self.slots()) {
            self.missed_word(index, word).fetch_and(!mask, Relaxed);
        }
        self.fill_in(extent, index, replica);
        next.state = replica.state;
        self.narrow(extent, index, WORD).store(next.word(), Release);
    }

    fn fill_in(&self, extent: ExtentId, index: u8, replica: &Replica) {
        self.narrow(extent, index, SLAB).store(replica.slab.0, Relaxed);
        self.wide(extent, index, INCARNATION).store(replica.incarnation.0, Relaxed);
        self.wide(extent, index, RKEY).store(replica.rkey.0, Relaxed);
    }

    /// A live replica that lacks something is syncing. True if it was live until now.
    fn fall_behind(&self, extent: ExtentId, index: u8) -> bool {
        self.turn(extent, index, None, |s| s == ReplicaState::Live, ReplicaState::Syncing)
    }

    fn live_beside(&self, extent: ExtentId, index: u8) -> usize {
        let is_other = |(n, r): &(u8, &Replica)| *n != index && r.state == ReplicaState::Live;
        self.replicas(extent).map_or(0, |replicas| replicas.iter().filter(is_other).count())
    }

    fn turn(
        &self,
        extent: ExtentId,
        index: u8,
        generation: Option<u16>,
        from: impl Fn(ReplicaState) -> bool,
        to: ReplicaState,
    ) -> bool {
        let change = |word| {
            let replica = Replica::of_word(word);
            let fits = from(replica.state) && generation.is_none_or(|g| g == replica.generation);
            fits.then(|| Replica { state: to, ..replica }.word())
        };
        self.narrow(extent, index, WORD).fetch_update(SeqCst, SeqCst, change).is_ok()
    }

    fn mark_all(&self, extent: ExtentId, index: u8) {
        for (word, mask) in self.words(extent, 0, self.slots()) {
            self.missed_word(index, word).fetch_or(mask, AcqRel);
        }
    }

    fn slots(&self) -> u32 {
        self.slots_per_extent().unwrap_or(0)
    }

    /// The words that hold the bits of some slots of an extent, each with a mask of those bits.
    fn words(&self, extent: ExtentId, first: u32, count: u32) -> impl Iterator<Item = (u32, u64)> + use<> {
        let from = u64::from(extent.0) * u64::from(self.slots()) + u64::from(first);
        let to = (from + u64::from(count)).min(1 << SLOT_BITS);
        (from / 64..to.div_ceil(64)).map(move |word| {
            let low = from.saturating_sub(word * 64).min(63);
            let high = (to - word * 64).min(64);
            (word as u32, u64::MAX << low & u64::MAX >> (64 - high))
        })
    }
}

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod tests;
