//! The lease book: who holds which slab until when. Pure: events and `now` go in, answers and
//! [`Action`]s come out.
//!
//! ```text
//!            lease, room            filled                  return, expiry
//!  Vacant ───────────────▶ Filling ────────▶ Lent ─────────────────────────▶ Cleaning
//!    ▲  no memory           │ failed           ▲                               │   │
//!    ├──────────────────────┘                  │ lease                         │   │
//!    │◀────────────────────────────────────────┼───────────── given back ──────┘   │
//!    └───── trim (via Cleaning) ────────── Spare ◀──────────── zeroed ─────────────┘
//! ```
//! - A slab's key is drawn anew for each lease and dies with it. It is dead (`Close`) before its
//!   slab is cleaned, and the slab is clean before it can be lent again.
//! - A client's leases have one deadline: `Hello`, `Lease` and `Renew` move it to `now` + TTL, and
//!   when it passes they all end. Every event first ends what has expired, so no answer depends on
//!   how punctual the clock's owner is.
//! - A client has one control connection that counts, the newest; requests on an older one are
//!   refused. One that breaks ends nothing: who says hello again before the deadline finds all
//!   leases under the same keys.
//! - Each hello draws a new session key. The old one opens no new data connection; data connections
//!   that are open stay, until the client's claim ends.
//! - The same client id from another machine (host name and boot id) is refused while the first
//!   one's deadline is ahead: two machines with a cloned id would otherwise write into each other's
//!   slabs. A machine that crashed and rebooted waits out its TTL.
//! - A client that lost slabs, since it was silent or did not return them, is not lent them anew
//!   before it was told (`Welcome`, `Renewed`): it goes by slab numbers there, and would take a
//!   slab that was zeroed for the one it had.
//! - A lease can be recalled: who has not returned the slab by the recall's deadline loses it,
//!   renewed or not. A recalled slab's memory goes back to the host. Recalls are not saved: a
//!   restarted agent that still wants memory asks again.
//! - While the donor is being drained nothing is lent, and all that is lent is recalled.
//! - A restarted agent makes its book with [`Book::resume`]: every saved lease goes on, under a new
//!   key and for one TTL from now, however long the agent was away. The key's upper half, the
//!   lease's number, stays: a client that has not heard that its slab was lent to it anew (it was
//!   killed meanwhile, say) sees by it that the slab is not the one that it had.
//! - A claim remembers the last incarnation in which its client took part (said anything after its
//!   hello). Each of its hellos is told that one until it leases again: a client may break off
//!   after some of its data connections were admitted, and then still goes by its old keys.

use crate::pressure::Room;
use annex_shared::ids::{ClientId, Incarnation, LeaseNumber, Rkey, SessionKey, SlabId};
use annex_shared::preamble::{AdmitError, Proof};
use annex_shared::wire::{Lease, Refusal};
use std::collections::{BTreeMap, BTreeSet, HashSet};

mod recalls;
mod slabs;
mod view;
mod words;

use slabs::{Place, Slabs};
pub use view::{ClientView, View};
pub use words::{
    Action, ConnectionId, Grant, Greeting, Holder, LeaseError, Limits, Machine, Moment, Saved, SavedClaim, SavedLease,
    Superseded,
};

/// Slabs granted for one request, so that an answer never takes long to make; the client asks
/// again.
pub const LEASE_CHUNK: u32 = 16;

/// Gives random bits.
pub type Draw = Box<dyn FnMut() -> u64 + Send + Sync>;

#[derive(Clone, Debug)]
struct Claim {
    machine: Machine,
    session: SessionKey,
    connection: Option<ConnectionId>,
    held: BTreeSet<SlabId>,
    deadline: Moment,
    seen: Incarnation,
    /// The earlier incarnation whose keys the client may still go by.
    base: Option<Incarnation>,
    /// What it lost and has not been told of: it may still count on the bytes.
    gone: BTreeSet<SlabId>,
}

/// The book.
pub struct Book {
    limits: Limits,
    incarnation: Incarnation,
    slabs: Slabs,
    claims: BTreeMap<ClientId, Claim>,
    keys: HashSet<Rkey>,
    /// Lent slabs that are wanted back, and by when.
    recalls: BTreeMap<SlabId, Moment>,
    closing: bool,
    draining: bool,
    draw: Draw,
    actions: Vec<Action>,
}

impl Book {
    /// An empty book. `draw` gives the random bits of keys.
    pub fn new(limits: Limits, incarnation: Incarnation, draw: Draw) -> Book {
        Book {
            limits,
            incarnation,
            slabs: Slabs::vacant(limits.capacity),
            claims: BTreeMap::new(),
            keys: HashSet::new(),
            recalls: BTreeMap::new(),
            closing: false,
            draining: false,
            draw,
            actions: Vec::new(),
        }
    }

    /// A book that goes on where an earlier agent's ended. Claims that hold nothing are over, and
    /// leases of nobody are none.
    pub fn resume(limits: Limits, incarnation: Incarnation, draw: Draw, saved: Saved, now: Moment) -> Book {
        let mut book = Book::new(limits, incarnation, draw);
        for SavedClaim { client, machine, seen, until } in saved.claims {
            if !saved.leases.iter().any(|lease| lease.client == client) {
                continue;
            }
            // Proves nothing to anybody until the client's hello draws another.
            let session = SessionKey(u128::from((book.draw)()) << 64 | u128::from((book.draw)()));
            let deadline = until.max(now.after(limits.ttl));
            let base = (seen != incarnation).then_some(seen);
            let (held, gone) = (BTreeSet::new(), BTreeSet::new());
            let claim = Claim { machine, session, connection: None, held, deadline, seen, base, gone };
            book.claims.insert(client, claim);
            book.actions.push(Action::Until { client, until: deadline });
        }
        for SavedLease { slab, client, number } in saved.leases {
            book.slabs.reach(slab);
            if matches!(book.slabs.place(slab), Some(Place::Vacant | Place::Retired)) {
                let rkey = book.fresh_key(Some(number));
                book.lend_under(slab, client, rkey);
            }
        }
        book
    }

    /// Other limits from now on. Leases stay as they are, also those over a lowered capacity.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.slabs.set_capacity(limits.capacity);
        self.trim(limits.keep);
    }

    /// What is to be done since the last call. Ask after every event, before anyone else does.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// A slab got its memory before anyone asked for it (prefaulting).
    pub fn stocked(&mut self, slab: SlabId) {
        if self.slabs.place(slab) == Some(Place::Vacant) {
            self.slabs.set(slab, Place::Spare);
        }
    }

    /// [`Book::hello`] where clients may show certificates: whoever has shown one comes back so.
    pub fn hello_beside_tls(
        &mut self,
        client: ClientId,
        machine: Machine,
        connection: ConnectionId,
        now: Moment,
    ) -> Result<Greeting, Refusal> {
        let has_shown_one = self.claims.get(&client).is_some_and(|claim| claim.machine.holder.is_some());
        if machine.holder.is_none() && has_shown_one {
            return Err(Refusal::NeedsTls);
        }
        self.hello(client, machine, connection, now)
    }

    /// A client introduces itself on a control connection.
    pub fn hello(
        &mut self,
        client: ClientId,
        machine: Machine,
        connection: ConnectionId,
        now: Moment,
    ) -> Result<Greeting, Refusal> {
        self.tick(now);
        // Who holds leases may come back to bring its pages home.
        if self.closing && !self.claims.contains_key(&client) {
            return Err(Refusal::Closing);
        }
        let session = SessionKey(u128::from((self.draw)()) << 64 | u128::from((self.draw)()));
        if let Some(claim) = self.claims.get_mut(&client) {
            if let Some(host) = claim.machine.other_than(&machine) {
                if claim.deadline > now {
                    let ends_in_s = now.until(claim.deadline).as_secs() + 1;
                    return Err(Refusal::ClientInUse { host: host.to_owned(), ends_in_s });
                }
                // Its leases are over already; only a silent connection kept the claim.
                self.actions.push(Action::Forget { client });
            }
            if let Some(connection) = claim.connection.take() {
                self.actions.push(Action::Supersede { connection });
            }
        }
        let deadline = now.after(self.limits.ttl);
        let claim = self.claims.entry(client).or_insert_with(|| Claim {
            machine: machine.clone(),
            session,
            connection: None,
            held: BTreeSet::new(),
            deadline,
            seen: self.incarnation,
            base: None,
            gone: BTreeSet::new(),
        });
        claim.machine = machine;
        claim.session = session;
        claim.connection = Some(connection);
        claim.gone.clear();
        let (seen, base) = (claim.seen, claim.base);
        self.extend(client, now);
        let held = self.claims[&client].held.iter();
        let held: Vec<Lease> = held.filter_map(|slab| Some(Lease { slab: *slab, rkey: self.rkey(*slab)? })).collect();
        let resumed = base.filter(|_| !held.is_empty());
        Ok(Greeting { session, held, resumed, seen, until: deadline })
    }

    /// A client wants up to `count` slabs. With all others that showed a certificate of its name it
    /// may hold `share`, `per_client` unless given. `room` says how many the host has memory for.
    pub fn lease(
        &mut self,
        client: ClientId,
        connection: ConnectionId,
        count: u32,
        share: Option<u32>,
        room: Room,
        now: Moment,
    ) -> Result<Grant, LeaseError> {
        self.tick(now);
        self.current(client, connection)?;
        self.extend(client, now);
        if self.closing {
            return Err(LeaseError::Refused(Refusal::Closing));
        }
        if self.draining {
            return Err(LeaseError::Refused(Refusal::Draining));
        }
        if count == 0 {
            return Err(LeaseError::Refused(Refusal::Malformed("a lease of no slabs".to_owned())));
        }
        let mut gone = BTreeSet::new();
        if let Some(claim) = self.claims.get_mut(&client) {
            // It asks for what it lacks, so it has gone by its welcome. From now on `held` may list
            // a slab that it held before, with other bytes.
            claim.base = None;
            gone.clone_from(&claim.gone);
        }
        let machine = &self.claims[&client].machine;
        let of_it = self.claims.iter().filter(|(id, claim)| **id == client || claim.machine.is_same_holder(machine));
        let held: u32 = of_it.map(|(id, claim)| claim.held.len() as u32 + self.slabs.filling_for(*id)).sum();
        let share = share.unwrap_or(self.limits.per_client);
        let allowed = share.saturating_sub(held);
        if allowed == 0 {
            return Err(LeaseError::Refused(Refusal::ClientLimit { limit: share }));
        }
        let want = count.min(allowed).min(LEASE_CHUNK).min(self.lendable()) as usize;

        let mut grant = Grant::default();
        for slab in self.slabs.find(Place::Spare, want, &gone) {
            grant.leased.extend(self.lend(slab, client));
        }
        let fillable = self.unspoken(room) as usize;
        let vacant = self.slabs.find(Place::Vacant, (want - grant.leased.len()).min(fillable), &gone);
        for slab in vacant {
            self.slabs.set(slab, Place::Filling { client, connection });
            grant.to_fill.push(slab);
        }
        if grant.leased.is_empty() && grant.to_fill.is_empty() {
            return Err(self.why_not(room));
        }
        Ok(grant)
    }

    fn why_not(&self, room: Room) -> LeaseError {
        if self.lendable() > 0 && self.slabs.tally.vacant > 0 {
            let Room { available_mib, headroom_mib, .. } = room;
            return LeaseError::Refused(Refusal::HostPressure { available_mib, headroom_mib });
        }
        if self.lendable() > 0 && self.is_cleaning() {
            return LeaseError::Cleaning;
        }
        LeaseError::Refused(Refusal::Full { capacity: self.limits.capacity })
    }

    /// The memory for a slab of a grant is there, or could not be had. `None`: it was not, or the
    /// client is gone and the slab stays free.
    pub fn filled(&mut self, slab: SlabId, is_filled: bool, now: Moment) -> Option<Lease> {
        self.tick(now);
        let Some(Place::Filling { client, connection }) = self.slabs.place(slab) else { return None };
        if !is_filled {
            self.slabs.set(slab, Place::Vacant);
            return None;
        }
        self.slabs.set(slab, Place::Spare);
        let is_over = self.closing || self.draining;
        if is_over || self.current(client, connection).is_err() {
            self.trim(if is_over { 0 } else { self.limits.keep });
            return None;
        }
        self.extend(client, now);
        self.lend(slab, client)
    }

    /// The client still needs its leases. The answer is what it has.
    pub fn renew(
        &mut self,
        client: ClientId,
        connection: ConnectionId,
        now: Moment,
    ) -> Result<Vec<SlabId>, Superseded> {
        self.tick(now);
        self.current(client, connection)?;
        self.extend(client, now);
        let Some(claim) = self.claims.get_mut(&client) else { return Err(Superseded) };
        claim.gone.clear();
        Ok(claim.held.iter().copied().collect())
    }

    /// The client is done with these. Slabs that it doesn't hold are skipped: returning twice is no
    /// error.
    pub fn give_back(
        &mut self,
        client: ClientId,
        connection: ConnectionId,
        slabs: &[SlabId],
        now: Moment,
    ) -> Result<(), Superseded> {
        self.tick(now);
        self.current(client, connection)?;
        for slab in slabs {
            if matches!(self.slabs.place(*slab), Some(Place::Lent { client: c, .. }) if c == client) {
                self.end(*slab);
            }
        }
        Ok(())
    }

    /// A slab is clean: zeroed if it still has memory.
    pub fn cleaned(&mut self, slab: SlabId, has_memory: bool) {
        if let Some(Place::Cleaning { .. }) = self.slabs.place(slab) {
            self.slabs.set(slab, if has_memory { Place::Spare } else { Place::Vacant });
            if has_memory && slab.0 >= self.limits.capacity {
                self.trim(self.limits.keep);
            }
        }
    }

    /// A control connection is gone. A claim without leases goes with it; one with leases waits for
    /// its deadline.
    pub fn disconnected(&mut self, client: ClientId, connection: ConnectionId, now: Moment) {
        self.tick(now);
        if let Some(claim) = self.claims.get_mut(&client)
            && claim.connection == Some(connection)
        {
            claim.connection = None;
            if claim.held.is_empty() {
                self.forget(client);
            }
        }
    }

    /// Ends what has expired.
    pub fn tick(&mut self, now: Moment) {
        self.revoke_overdue(now);
        let expired: Vec<ClientId> =
            self.claims.iter().filter(|(_, c)| c.deadline <= now).map(|(client, _)| *client).collect();
        for client in expired {
            let Some(claim) = self.claims.get_mut(&client) else { continue };
            let is_connected = claim.connection.is_some();
            let lapsed = std::mem::take(&mut claim.held);
            if !lapsed.is_empty() {
                self.actions.push(Action::Lapse { client, slabs: lapsed.len() as u32 });
            }
            lapsed.into_iter().for_each(|slab| self.take_away(slab));
            // A client that is connected and silent may come to: it keeps its session and learns
            // its losses from `Renewed`.
            if !is_connected {
                self.forget(client);
            }
        }
    }

    /// When [`Book::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Moment> {
        let pending = self.claims.values().filter(|c| !c.held.is_empty() || c.connection.is_none());
        pending.map(|c| c.deadline).chain(self.recalls.values().copied()).min()
    }

    /// Gives the memory of all spare slabs but `keep`, and of those over the capacity, back to the
    /// host.
    pub fn trim(&mut self, keep: u32) {
        let spare = self.slabs.find(Place::Spare, usize::MAX, &BTreeSet::new());
        let kept = spare.iter().take(keep as usize).take_while(|slab| slab.0 < self.limits.capacity).count();
        for slab in spare.into_iter().skip(kept) {
            self.slabs.set(slab, Place::Cleaning { keep: false });
            self.actions.push(Action::Trim { slab });
        }
    }

    /// From now on nothing is lent and nobody new is welcome.
    pub fn close(&mut self) {
        self.closing = true;
    }

    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Ends every lease.
    pub fn revoke_all(&mut self) {
        for index in 0..self.slabs.places.len() {
            self.end(SlabId(index as u32));
        }
        let clients: Vec<ClientId> = self.claims.keys().copied().collect();
        clients.into_iter().for_each(|client| self.forget(client));
    }

    /// May this proof open a data connection?
    pub fn admit(&mut self, proof: &Proof) -> Result<(), AdmitError> {
        if proof.incarnation != self.incarnation {
            return Err(AdmitError::StaleIncarnation);
        }
        let claim = self.claims.get(&proof.client).ok_or(AdmitError::UnknownClient)?;
        if claim.session != proof.session {
            return Err(AdmitError::WrongSession);
        }
        self.take_part(proof.client);
        Ok(())
    }

    /// Slabs that could be lent to somebody now.
    pub fn free(&self, room: Room) -> u32 {
        if self.closing || self.draining {
            return 0;
        }
        (self.slabs.tally.spare + self.slabs.tally.vacant.min(self.unspoken(room))).min(self.lendable())
    }

    /// Slabs lent now.
    pub fn lent(&self) -> u32 {
        self.slabs.tally.lent
    }

    /// Slabs that have memory and could be lent, or are.
    pub fn with_memory(&self) -> u32 {
        self.slabs.tally.spare + self.slabs.tally.lent
    }

    pub fn is_vacant(&self, slab: SlabId) -> bool {
        self.slabs.place(slab) == Some(Place::Vacant)
    }

    pub fn is_cleaning(&self) -> bool {
        self.slabs.tally.cleaning_kept + self.slabs.tally.cleaning_dropped > 0
    }

    /// Free slabs that have memory.
    pub fn spare(&self) -> u32 {
        self.slabs.tally.spare
    }

    /// What the capacity leaves to lend. What is lent over a lowered capacity counts, too.
    fn lendable(&self) -> u32 {
        self.limits.capacity.saturating_sub(self.slabs.tally.lent + self.slabs.tally.filling)
    }

    /// Room that no filling slab is about to take.
    fn unspoken(&self, room: Room) -> u32 {
        room.slabs.saturating_sub(self.slabs.tally.filling)
    }

    /// Fails unless this is the client's newest connection.
    fn current(&mut self, client: ClientId, connection: ConnectionId) -> Result<(), Superseded> {
        let claim = self.claims.get(&client).ok_or(Superseded)?;
        if claim.connection != Some(connection) {
            return Err(Superseded);
        }
        self.take_part(client);
        Ok(())
    }

    /// The client has said something that it could say only after it had its welcome.
    fn take_part(&mut self, client: ClientId) {
        let Some(claim) = self.claims.get_mut(&client) else { return };
        if claim.seen != self.incarnation {
            claim.seen = self.incarnation;
            self.actions.push(Action::Seen { client });
        }
    }

    fn extend(&mut self, client: ClientId, now: Moment) {
        let Some(claim) = self.claims.get_mut(&client) else { return };
        let until = now.after(self.limits.ttl);
        claim.deadline = until;
        self.actions.push(Action::Until { client, until });
        self.actions.extend(claim.held.iter().map(|slab| Action::Extend { slab: *slab, until }));
    }

    fn lend(&mut self, slab: SlabId, client: ClientId) -> Option<Lease> {
        let rkey = self.fresh_key(None);
        self.lend_under(slab, client, rkey)
    }

    fn lend_under(&mut self, slab: SlabId, client: ClientId, rkey: Rkey) -> Option<Lease> {
        let claim = self.claims.get_mut(&client)?;
        claim.held.insert(slab);
        self.actions.push(Action::Open { slab, client, rkey, until: claim.deadline });
        self.keys.insert(rkey);
        self.slabs.set(slab, Place::Lent { client, rkey });
        Some(Lease { slab, rkey })
    }

    /// Ends the lease of a slab, if there is one.
    fn end(&mut self, slab: SlabId) {
        let Some(Place::Lent { client, rkey }) = self.slabs.place(slab) else { return };
        if let Some(claim) = self.claims.get_mut(&client) {
            claim.held.remove(&slab);
        }
        self.keys.remove(&rkey);
        let is_recalled = self.recalls.remove(&slab).is_some();
        let may_keep = !self.closing && !self.draining && !is_recalled && slab.0 < self.limits.capacity;
        let keep = may_keep && self.slabs.tally.spare + self.slabs.tally.cleaning_kept < self.limits.keep;
        self.slabs.set(slab, Place::Cleaning { keep });
        self.actions.push(Action::Close { slab, rkey, keep });
    }

    /// Ends a lease that its client did not give up.
    fn take_away(&mut self, slab: SlabId) {
        if let Some(Place::Lent { client, .. }) = self.slabs.place(slab)
            && let Some(claim) = self.claims.get_mut(&client)
        {
            claim.gone.insert(slab);
        }
        self.end(slab);
    }

    fn forget(&mut self, client: ClientId) {
        if self.claims.remove(&client).is_some() {
            self.actions.push(Action::Forget { client });
        }
    }

    /// A key that is in no other use, for a lease that goes on or for a new one. 0 means "none" on
    /// the lease board, and a new lease has a number.
    fn fresh_key(&mut self, goes_on: Option<LeaseNumber>) -> Rkey {
        loop {
            let drawn = Rkey((self.draw)());
            let rkey = goes_on.map_or(drawn, |lease| Rkey::of(lease, drawn.0 as u32));
            let has_number = goes_on.is_some() || rkey.lease() != LeaseNumber(0);
            if rkey.0 != 0 && has_number && !self.keys.contains(&rkey) {
                return rkey;
            }
        }
    }

    fn rkey(&self, slab: SlabId) -> Option<Rkey> {
        match self.slabs.place(slab) {
            Some(Place::Lent { rkey, .. }) => Some(rkey),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
