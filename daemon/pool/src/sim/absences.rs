//! Donors that are there and do not do what they should: they hang, announce their end, or are not
//! to be used any more.
//!
//! One that hangs neither answers nor breaks off: its memory alone, or the whole host, so that its
//! agent says nothing either and leases run out unseen. It goes on where it was. An operation that
//! waits there too long makes the lane tell the coordinator; it is given up when the agent is found
//! silent, or when its time is over. If it was a write, the donor may still do it, until a new
//! session fences the old one: its slot is kept from reuse as long as that is possible.

use super::donors::ANNEXD;
use super::*;
pub(super) use crate::io::lane::LATE;

/// As in the default configuration.
pub(super) const OP_TIMEOUT: Duration = Duration::from_secs(3);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// What agents say when they are about to end.
pub(super) const GRACE: Duration = Duration::from_secs(10);

pub(super) struct Hang {
    until: Instant,
    /// The agent, too.
    is_whole: bool,
}

/// Why a donor is not what it should be, and what annexd has noticed.
#[derive(Default)]
pub(super) struct Absence {
    pub hang: Option<Hang>,
    /// When it ends, which it has announced.
    pub ends: Option<Instant>,
    pub is_removed: bool,
    /// It is to be removed when it is empty.
    pub is_to_go: bool,
    /// Lanes give up what is under way there.
    pub is_silent: bool,
    /// When a lane told of its silence.
    pub told: Option<Instant>,
    /// Since when its agent owes the answer to a renewal.
    pub unanswered: Option<Instant>,
    /// Slabs to return when it answers.
    pub returns: Vec<Lease>,
}

impl Absence {
    pub fn is_frozen(&self) -> bool {
        self.hang.as_ref().is_some_and(|hang| hang.is_whole)
    }

    /// No connection to it can be made.
    pub fn is_out(&self) -> bool {
        self.hang.is_some() || self.is_removed
    }
}

/// A write that was given up, and may still be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stray {
    pub donor: usize,
    key: u64,
    slot: u32,
    content: u32,
}

impl World<'_> {
    // ---- hanging ----

    pub(super) fn can_hang(&self, donor: usize) -> bool {
        self.donors[donor].connected && self.donors[donor].absence.hang.is_none() && self.can_spare(donor)
    }

    pub(super) fn hang(&mut self, donor: usize) {
        let is_whole = self.draw(2) == 0;
        // From what is only late to what outlives a lease.
        let most = [300, 2000, 15_000][self.draw(3)];
        let until = self.now + Duration::from_millis(50 + self.draw(most) as u64);
        self.tell(|w| format!("{:?} donor{donor} hangs until {until:?}, its agent too: {is_whole}", w.now));
        self.saw_fault(Seen::Hung);
        self.donors[donor].absence.hang = Some(Hang { until, is_whole });
    }

    /// What has lasted until now is over.
    pub(super) fn end_absence(&mut self, donor: usize) {
        let now = self.now;
        let absence = &mut self.donors[donor].absence;
        if absence.hang.take_if(|hang| hang.until <= now).is_some() {
            self.thaw(donor);
        }
        // An agent that runs does what it was given.
        while self.donors[donor].absence.hang.is_none()
            && let Some(at) = self.strays.iter().position(|stray| stray.donor == donor)
        {
            self.do_stray(at);
        }
        let d = &self.donors[donor];
        let is_empty = d.leases.lent_slabs().is_empty() && !d.absence.is_frozen();
        if d.absence.ends.is_some_and(|at| at <= now || is_empty) && !d.absence.is_frozen() {
            self.restart(donor, false);
        }
        if self.donors[donor].absence.unanswered.is_some_and(|since| now >= since + CONTROL_TIMEOUT) {
            self.tell(|w| format!("{:?} donor{donor} did not answer", w.now));
            self.donors[donor].hang_up(now);
            self.send(News::Down(donor));
        }
    }

    fn thaw(&mut self, donor: usize) {
        self.tell(|w| format!("{:?} donor{donor} goes on", w.now));
        self.donors[donor].absence.hang = None;
        self.keep_house(donor);
        let absence = &mut self.donors[donor].absence;
        let returns = std::mem::take(&mut absence.returns);
        if let Some(asked) = absence.unanswered.take() {
            self.answer_renewal(donor, asked);
        }
        self.give_back(donor, &returns);
        let late = self.writes.iter().flat_map(|w| &w.open).filter(|op| op.donor == donor);
        if late.clone().any(|op| self.now - op.since >= LATE) {
            self.tally.saw(Seen::Late);
        }
    }

    pub(super) fn unanswered(&mut self, donor: usize) {
        let now = self.now;
        self.donors[donor].absence.unanswered.get_or_insert(now);
    }

    /// The lane looks at what it waits for.
    pub(super) fn listen(&mut self) {
        for at in 0..self.writes.len() {
            for i in (0..self.writes[at].open.len()).rev() {
                let op = self.writes[at].open[i];
                let waits = self.now - op.since;
                let absence = &mut self.donors[op.donor].absence;
                if absence.hang.is_none() || waits < LATE {
                    continue;
                }
                let extent = ExtentId(self.writes[at].slot / SLOTS);
                let replica = self.table.replica(extent, op.index);
                let is_given_up = !replica.state.is_there() || replica.generation != op.generation;
                if waits >= OP_TIMEOUT || absence.is_silent && is_given_up {
                    self.writes[at].open.swap_remove(i);
                    self.writes[at].is_unknown = true;
                    self.stray(at, op);
                    self.give_up(extent, op, waits >= OP_TIMEOUT);
                } else if absence.told.is_none_or(|told| self.now - told >= LATE) {
                    absence.told = Some(self.now);
                    self.send(News::Late(op.donor));
                }
            }
        }
    }

    fn give_up(&mut self, extent: ExtentId, op: Posted, is_hung: bool) {
        if is_hung {
            self.send(News::Hung(op.donor));
        }
        if self.table.mark_stale(extent, op.index, op.generation) {
            self.send(News::Away(extent, op.index, op.generation));
        }
        // Its agent lives, but no fresh endpoint can be had.
        if !self.donors[op.donor].absence.is_frozen() && self.donors[op.donor].connected {
            self.donors[op.donor].hang_up(self.now);
            self.send(News::Down(op.donor));
        }
    }

    /// From a donor whose agent runs nothing comes late: a new connection ends the old one.
    pub(super) fn stray(&mut self, write: usize, op: Posted) {
        if self.donors[op.donor].absence.is_frozen() {
            let Write { slot, content, .. } = self.writes[write];
            self.strays.push(Stray { donor: op.donor, key: op.key, slot, content });
        }
    }

    pub(super) fn run_stray(&mut self) {
        if self.strays.is_empty() {
            return;
        }
        let at = self.draw(self.strays.len());
        if self.donors[self.strays[at].donor].absence.hang.is_none() {
            self.do_stray(at);
        }
    }

    fn do_stray(&mut self, at: usize) {
        let Stray { donor, key, slot, content } = self.strays.swap_remove(at);
        if let Some(slab) = self.slab_of_any_session(donor, key) {
            slab[(slot % SLOTS) as usize] = content;
            self.tally.saw(Seen::Strayed);
        }
    }

    // ---- ending ----

    /// It tells its clients that its memory is gone after a while. One replica and a backup need
    /// the time for the backup to take over.
    pub(super) fn close(&mut self, donor: usize) {
        let d = &mut self.donors[donor];
        if d.leases.is_closing() || d.absence.is_frozen() {
            return;
        }
        d.leases.close();
        d.absence.ends = Some(self.now + GRACE);
        self.tell(|w| format!("{:?} donor{donor} announces its end", w.now));
        self.saw_fault(Seen::Closed);
        self.send(News::Closing(donor, GRACE));
    }

    // ---- configuration ----

    /// A donor is removed, as far as enough stay; or one that was is added again.
    pub(super) fn drop_or_add(&mut self, donor: usize) {
        let stays = |(n, d): &(usize, &Donor)| {
            *n != donor && self.spill != Some(*n) && !d.absence.is_removed && !d.absence.is_to_go
        };
        let staying = self.donors.iter().enumerate().filter(stays).count();
        // Where one copy is all that is asked for, the one that stays may be on a donor that hangs
        // and of which nobody knows that yet.
        let may_drop = self.replicas > 1 || self.donors.iter().all(|d| d.absence.hang.is_none());
        let absence = &mut self.donors[donor].absence;
        if std::mem::take(&mut absence.is_removed) {
            self.tally.saw(Seen::Added);
            self.send(News::Added(donor));
        } else if !absence.is_to_go && staying >= self.replicas && may_drop {
            absence.is_to_go = true;
            self.send(News::Dropped(donor));
        }
    }

    /// The coordinator dismisses the donor's thread, which returns what it holds and ends.
    pub(super) fn removed(&mut self, donor: DonorId) {
        let is_used = |(_, r): (u8, &Replica)| r.state.is_kept() && r.donor == donor;
        assert!(!self.table.live().any(|(_, r)| r.iter().any(is_used)), "{donor} is removed and has replicas");
        let at = usize::from(donor.0);
        let held: Vec<Lease> =
            self.donors[at].held.iter().map(|(slab, rkey)| Lease { slab: *slab, rkey: *rkey }).collect();
        self.give_back(at, &held);
        let now = self.moment;
        let d = &mut self.donors[at];
        (d.absence.is_to_go, d.absence.is_removed) = (false, true);
        if d.connected {
            d.hang_up(self.now);
            if !d.absence.is_frozen() {
                d.leases.disconnected(ANNEXD, d.connection, now);
                self.obey(at);
            }
        }
    }

    /// No more faults: it is well, and used.
    pub(super) fn recover(&mut self, donor: usize) {
        self.drain(donor, false);
        if self.donors[donor].absence.hang.take().is_some() {
            self.thaw(donor);
        }
        if self.donors[donor].absence.is_removed {
            self.drop_or_add(donor);
        }
    }
}
