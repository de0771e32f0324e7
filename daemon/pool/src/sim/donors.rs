//! Donors: the agent's real lease book and pressure watch, what its lender does for them, and
//! annexd's end of the control connection.
//!
//! Another client leases and writes there too, so that a slab that is lent twice, or not cleaned,
//! shows as wrong bytes.

use super::absences::{Absence, GRACE};
use super::*;
use annex_agent::lease::{Action as Order, Book as Leases, ConnectionId, Limits, Machine, Saved};
use annex_agent::lease::{SavedClaim, SavedLease};
use annex_agent::pressure::Room as Memory;
use annex_agent::pressure::Sample;
use annex_agent::recall::{Candidate, Watch, order};
use annex_shared::preamble::Proof;

/// Slabs that a donor can lend.
const CAPACITY: u32 = 6;
pub(super) const ANNEXD: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);
/// What the other client writes.
const FOREIGN: u32 = u32::MAX;
const ROOM: Memory = Memory { slabs: CAPACITY, available_mib: 1000, headroom_mib: 100 };
/// A donor's memory, in slabs of a byte each: what programs of its own leave is free.
const HOST: u64 = 16;
const HEADROOM: u64 = 2;

/// A slab's memory and what the lender knows of it.
#[derive(Default)]
struct Slab {
    open: Option<(ClientId, u64, Moment)>,
    saved: Option<(ClientId, LeaseNumber)>,
    chore: Option<bool>,
    bytes: Contents,
}

pub(super) struct Donor {
    pub leases: Leases,
    watch: Watch,
    slabs: Vec<Slab>,
    saved: BTreeMap<ClientId, SavedClaim>,
    incarnation: u64,
    /// Operations reach it.
    pub reachable: bool,
    /// A control connection stands.
    pub connected: bool,
    /// The coordinator has heard that it is there.
    pub known: bool,
    /// Slabs that annexd asked for and was not answered about.
    pub asked: u32,
    pub connection: ConnectionId,
    pub session: Session,
    pub absence: Absence,
    /// What annexd's thread for the donor holds there.
    pub held: BTreeMap<SlabId, Rkey>,
    other: Option<ConnectionId>,
}

impl Donor {
    fn limits(ttl: Duration) -> Limits {
        Limits { capacity: CAPACITY, per_client: CAPACITY, ttl, keep: 2 }
    }

    pub fn new(ttl: Duration, now: Instant) -> Donor {
        Donor {
            leases: Leases::new(Self::limits(ttl), Incarnation(1), counting_from(0)),
            watch: Watch::new(HEADROOM, 1),
            slabs: (0..CAPACITY).map(|_| Slab::default()).collect(),
            saved: BTreeMap::new(),
            incarnation: 1,
            reachable: true,
            connected: false,
            known: false,
            asked: 0,
            connection: ConnectionId(0),
            session: Session::new(now),
            absence: Absence::default(),
            held: BTreeMap::new(),
            other: None,
        }
    }

    /// annexd's end of the connection is gone.
    pub fn hang_up(&mut self, now: Instant) {
        (self.connected, self.reachable, self.absence.unanswered) = (false, false, None);
        self.absence.returns.clear();
        self.session.failed(now, 0.5);
    }

    /// The slab under this key, if annexd may use it now.
    fn lent(&self, key: u64, now: Moment) -> Option<usize> {
        let may = |slab: &Slab| slab.open.is_some_and(|(who, open, until)| who == ANNEXD && open == key && until > now);
        self.slabs.iter().position(may)
    }
}

fn counting_from(first: u64) -> annex_agent::lease::Draw {
    let mut n = first;
    Box::new(move || {
        n += 1;
        // In both halves of a key.
        n << 32 | n
    })
}

fn machine(client: ClientId) -> Machine {
    Machine { host: String::new(), boot_id: client.to_string(), holder: None }
}

impl World<'_> {
    // ---- operations ----

    /// What an operation under this key would act on.
    pub(super) fn slab(&mut self, donor: usize, key: u64) -> Option<&mut Contents> {
        let now = self.moment;
        let d = &mut self.donors[donor];
        let slab = d.lent(key, now).filter(|_| d.reachable && d.absence.hang.is_none())?;
        Some(&mut d.slabs[slab].bytes)
    }

    /// The same for an operation that was given up.
    pub(super) fn slab_of_any_session(&mut self, donor: usize, key: u64) -> Option<&mut Contents> {
        let now = self.moment;
        let d = &mut self.donors[donor];
        let slab = d.lent(key, now)?;
        Some(&mut d.slabs[slab].bytes)
    }

    /// A replica's bytes, if its donor still has them for it.
    pub(super) fn bytes(&self, r: &Replica) -> Option<&Contents> {
        let d = &self.donors[usize::from(r.donor.0)];
        let slab = d.lent(r.rkey.0, self.moment).filter(|slab| *slab == r.slab.0 as usize)?;
        Some(&d.slabs[slab].bytes)
    }

    /// It is there and will stay there.
    pub(super) fn is_sure(&self, r: &Replica) -> bool {
        let d = &self.donors[usize::from(r.donor.0)];
        let is_there = d.connected && d.known && d.absence.hang.is_none();
        is_there && self.bytes(r).is_some() && !self.is_recalled(r)
    }

    pub(super) fn is_recalled(&self, r: &Replica) -> bool {
        let d = &self.donors[usize::from(r.donor.0)];
        d.leases.recalled(r.slab).is_some() || d.leases.is_closing()
    }

    // ---- annexd's thread for the donor ----

    pub(super) fn connect(&mut self, donor: usize) {
        let (now, ttl) = (self.moment, self.ttl);
        if self.donors[donor].absence.is_out() {
            return;
        }
        let connection = ConnectionId(self.fresh());
        let breaks = self.draw(6) == 0;
        let d = &mut self.donors[donor];
        (d.connected, d.reachable) = (false, false);
        let Ok(hello) = d.leases.hello(ANNEXD, machine(ANNEXD), connection, now) else { return };
        let incarnation = Incarnation(d.incarnation);
        let (seen, until) = (hello.seen, hello.until);
        self.obey(donor);
        let d = &mut self.donors[donor];
        d.saved.insert(ANNEXD, SavedClaim { client: ANNEXD, machine: machine(ANNEXD), seen, until });
        // Nothing of an earlier session comes after this.
        self.strays.retain(|stray| stray.donor != donor);
        let d = &mut self.donors[donor];
        let proof = Proof { client: ANNEXD, incarnation, session: hello.session };
        assert_eq!(d.leases.admit(&proof), Ok(()));
        let recalled = d.leases.recalled_from(ANNEXD);
        self.obey(donor);
        if breaks {
            // One data connection stands, the next one does not: it is tried anew.
            return;
        }
        let d = &mut self.donors[donor];
        (d.reachable, d.connected, d.asked, d.known, d.connection) = (true, true, 0, false, connection);
        d.held = hello.held.iter().map(|l| (l.slab, l.rkey)).collect();
        d.session.connected(self.now, ttl);
        let free = d.leases.free(ROOM);
        let (host, rack) = (None, None);
        let said = DonorUp { incarnation, resumed: hello.resumed, host, rack, held: hello.held, free };
        self.send(News::Up(donor, said));
        if self.donors[donor].leases.is_closing() {
            self.send(News::Closing(donor, GRACE));
        }
        for (slab, until) in recalled {
            self.send(News::Recalled(donor, vec![slab], now.until(until)));
        }
    }

    pub(super) fn disconnect(&mut self, donor: usize) {
        self.tell(|w| format!("{:?} donor{donor} goes", w.now));
        self.saw_fault(Seen::Disconnected);
        let (now, is_seen) = (self.moment, self.draw(2) == 0 && !self.donors[donor].absence.is_frozen());
        self.donors[donor].hang_up(self.now);
        let d = &mut self.donors[donor];
        if is_seen {
            d.leases.disconnected(ANNEXD, d.connection, now);
            self.obey(donor);
        }
        self.send(News::Down(donor));
    }

    pub(super) fn answer_lease(&mut self, donor: usize) {
        let now = self.moment;
        let d = &mut self.donors[donor];
        if d.asked == 0 || !d.connected || d.absence.is_frozen() {
            return;
        }
        d.asked -= 1;
        let connection = d.connection;
        let lease = self.lease(donor, ANNEXD, connection, now);
        let lease = lease.filter(|_| self.donors[donor].connected);
        if let Some(lease) = lease {
            self.donors[donor].held.insert(lease.slab, lease.rkey);
        }
        self.send(lease.map_or(News::Refused(donor), |lease| News::Leased(donor, lease)));
    }

    fn lease(&mut self, donor: usize, client: ClientId, connection: ConnectionId, now: Moment) -> Option<Lease> {
        let d = &mut self.donors[donor];
        let grant = d.leases.lease(client, connection, 1, None, ROOM, now);
        self.obey(donor);
        let grant = grant.ok()?;
        if let Some(lease) = grant.leased.first() {
            return Some(*lease);
        }
        let lease = self.donors[donor].leases.filled(*grant.to_fill.first()?, true, now);
        self.obey(donor);
        lease
    }

    pub(super) fn give_back(&mut self, donor: usize, leases: &[Lease]) {
        let now = self.moment;
        let d = &mut self.donors[donor];
        if d.absence.is_frozen() {
            return d.absence.returns.extend(leases);
        }
        let mine = |l: &&Lease| d.held.get(&l.slab) == Some(&l.rkey);
        let slabs: Vec<SlabId> = leases.iter().filter(mine).map(|l| l.slab).collect();
        if d.connected && !slabs.is_empty() {
            slabs.iter().for_each(|slab| _ = d.held.remove(slab));
            let answer = d.leases.give_back(ANNEXD, d.connection, &slabs, now);
            assert!(answer.is_ok(), "annexd's connection is not its newest");
            self.obey(donor);
        }
    }

    /// The next renewal is due now.
    pub(super) fn hurry(&mut self, donor: usize) {
        let now = self.now;
        self.donors[donor].session.renew_now(now);
    }

    pub(super) fn renew(&mut self, donor: usize) {
        // Asked and answered at once, unless it hangs; heard when the coordinator comes to it.
        let asked = self.now;
        match self.donors[donor].absence.is_frozen() {
            true => self.unanswered(donor),
            false => self.answer_renewal(donor, asked),
        }
    }

    pub(super) fn answer_renewal(&mut self, donor: usize, asked: Instant) {
        let now = self.moment;
        let d = &mut self.donors[donor];
        let held = d.leases.renew(ANNEXD, d.connection, now);
        self.obey(donor);
        let d = &mut self.donors[donor];
        let held = held.expect("annexd's connection is its newest");
        d.held.retain(|slab, _| held.contains(slab));
        d.session.renewed(self.now);
        let free = d.leases.free(ROOM);
        self.send(News::Renewed(donor, held, free, asked));
    }

    /// Time passes, and all that are punctual do what is due meanwhile. One of annexd's threads may
    /// be held up.
    pub(super) fn wait(&mut self, time: Duration, held_up: Option<usize>) {
        let end = self.now + time;
        while self.now < end {
            let step = (end - self.now).min(self.ttl / 3);
            self.now += step;
            self.moment.0 += step.as_nanos() as u64;
            for donor in 0..self.donors.len() {
                self.end_absence(donor);
                self.keep_house(donor);
                let d = &self.donors[donor];
                if d.connected && Some(donor) != held_up && d.session.next(self.now) == Step::Renew {
                    self.renew(donor);
                }
            }
        }
    }

    // ---- the agent ----

    /// The janitor.
    pub(super) fn keep_house(&mut self, donor: usize) {
        let now = self.moment;
        let d = &mut self.donors[donor];
        if d.absence.is_frozen() {
            return;
        }
        if d.leases.next_deadline().is_some_and(|at| at <= now) {
            d.leases.tick(now);
            self.obey(donor);
        }
        let d = &mut self.donors[donor];
        for (n, slab) in (0..).zip(&mut d.slabs) {
            if let Some(keep) = slab.chore.take() {
                slab.bytes = [0; SLOTS as usize];
                d.leases.cleaned(SlabId(n), keep);
            }
        }
        self.obey(donor);
    }

    pub(super) fn restart(&mut self, donor: usize, with_bytes: bool) {
        self.tell(|w| format!("{:?} donor{donor} restarts, bytes {with_bytes}", w.now));
        self.saw_fault(Seen::Restarted);
        self.disconnect(donor);
        self.strays.retain(|stray| stray.donor != donor);
        let first = self.fresh() << 16;
        let now = self.moment;
        let limits = Donor::limits(self.ttl);
        let d = &mut self.donors[donor];
        d.incarnation += 1;
        d.other = None;
        (d.absence.hang, d.absence.ends) = (None, None);
        let mut leases = Vec::new();
        for (n, slab) in (0..).zip(&mut d.slabs) {
            slab.saved = slab.saved.filter(|_| with_bytes);
            match slab.saved {
                Some((client, number)) => leases.push(SavedLease { slab: SlabId(n), client, number }),
                None => *slab = Slab::default(),
            }
            slab.open = None;
        }
        d.saved.retain(|client, _| leases.iter().any(|l| l.client == *client));
        let saved = Saved { claims: d.saved.values().cloned().collect(), leases };
        d.leases = Leases::resume(limits, Incarnation(d.incarnation), counting_from(first), saved, now);
        self.carry_on(donor, true);
    }

    /// Programs on the donor's host take memory or give it back.
    pub(super) fn press(&mut self, donor: usize) {
        let own = self.draw(HOST as usize) as u64;
        // One replica and a backup that follows bear no recall that leaves the backup no time to
        // take over.
        let shortest = if self.replicas == 1 { 2000 } else { 0 };
        let within = Duration::from_millis(shortest + self.draw(20_000) as u64);
        let now = self.moment;
        let d = &mut self.donors[donor];
        let free = HOST.saturating_sub(own + u64::from(d.leases.with_memory()));
        let verdict = d.watch.look(Sample { available: free, stall: None }, d.leases.coming(), now);
        if verdict.trim {
            d.leases.trim(0);
        }
        let lent = d.leases.lent_slabs().into_iter().filter(|(slab, _)| d.leases.recalled(*slab).is_none());
        let candidate = |(slab, client)| Candidate { slab, client, leased: now, used: None };
        let mut wanted = order(lent.map(candidate).collect(), now);
        wanted.truncate(verdict.recall as usize);
        if !wanted.is_empty() {
            self.tally.saw(Seen::Pressed);
        }
        d.leases.recall(&wanted, within, now);
        self.obey(donor);
    }

    /// It is emptied for maintenance, or that is over.
    pub(super) fn drain(&mut self, donor: usize, on: bool) {
        let now = self.moment;
        let d = &mut self.donors[donor];
        match on {
            true => {
                self.tally.saw(Seen::Drained);
                d.leases.drain(Duration::from_secs(8), now);
            }
            false => d.leases.stop_draining(),
        }
        self.obey(donor);
    }

    pub(super) fn is_draining(&self, donor: usize) -> bool {
        self.donors[donor].leases.is_draining()
    }

    /// The other client says hello, leases, returns, or is not heard of.
    pub(super) fn intrude(&mut self, donor: usize) {
        let now = self.moment;
        let (what, connection) = (self.draw(4), ConnectionId(self.fresh()));
        let d = &mut self.donors[donor];
        let held = d.slabs.iter().position(|slab| slab.open.is_some_and(|(who, ..)| who == OTHER));
        match (d.other, held) {
            (None, _) => {
                if let Ok(hello) = d.leases.hello(OTHER, machine(OTHER), connection, now) {
                    d.other = Some(connection);
                    let (seen, until) = (hello.seen, hello.until);
                    self.obey(donor);
                    let claim = SavedClaim { client: OTHER, machine: machine(OTHER), seen, until };
                    self.donors[donor].saved.insert(OTHER, claim);
                }
            }
            (Some(connection), None) if what > 0 => {
                if let Some(lease) = self.lease(donor, OTHER, connection, now) {
                    self.donors[donor].slabs[lease.slab.0 as usize].bytes = [FOREIGN; SLOTS as usize];
                }
            }
            (Some(connection), Some(slab)) if what > 1 => {
                _ = d.leases.give_back(OTHER, connection, &[SlabId(slab as u32)], now);
                self.obey(donor);
            }
            _ => d.other = None,
        }
    }

    /// Carries out what the lease book wants.
    pub(super) fn obey(&mut self, donor: usize) {
        self.carry_on(donor, false);
    }

    fn carry_on(&mut self, donor: usize, resumes: bool) {
        let now = self.moment;
        let d = &mut self.donors[donor];
        for order in d.leases.take_actions() {
            match order {
                Order::Open { slab: id, client, rkey, until } => {
                    let slab = &mut d.slabs[id.0 as usize];
                    assert!(slab.open.is_none(), "{id} of donor{donor} is lent twice");
                    let is_clean = slab.chore.is_none() && slab.bytes == [0; SLOTS as usize];
                    assert!(resumes || is_clean, "{id} of donor{donor} is lent before it is clean");
                    (slab.open, slab.saved) = (Some((client, rkey.0, until)), Some((client, rkey.lease())));
                }
                Order::Extend { slab, until } => {
                    let slab = &mut d.slabs[slab.0 as usize];
                    slab.open = slab.open.map(|(client, key, _)| (client, key, until));
                }
                Order::Close { slab, keep, .. } => {
                    let slab = &mut d.slabs[slab.0 as usize];
                    (slab.open, slab.saved, slab.chore) = (None, None, Some(keep));
                }
                Order::Trim { slab } => d.slabs[slab.0 as usize].chore = Some(false),
                Order::Recall { connection, slabs, until } if d.connected && d.connection == connection => {
                    self.news.push_back((self.now, News::Recalled(donor, slabs, now.until(until))));
                }
                Order::Until { client, until } => {
                    if let Some(claim) = d.saved.get_mut(&client) {
                        claim.until = until;
                    }
                }
                Order::Seen { client } => {
                    if let Some(claim) = d.saved.get_mut(&client) {
                        claim.seen = Incarnation(d.incarnation);
                    }
                }
                Order::Forget { client } => _ = d.saved.remove(&client),
                Order::Recall { .. } | Order::Revoke { .. } | Order::Lapse { .. } | Order::Supersede { .. } => {}
            }
        }
    }
}
