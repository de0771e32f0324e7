//! A state as the search wants it: copied, shown, and told from others by what matters for what
//! comes: moments relative to now, and keys, connections, incarnations and sessions by which ones
//! are equal.

use super::*;
use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};

impl World {
    /// All that matters for what comes, by numbers that are the same for states that are.
    fn essence(&self) -> Vec<u64> {
        let mut names = Names::default();
        let mut out = Vec::with_capacity(64);
        let book = &self.book;
        let left = |until: Moment| self.now.until(until).as_nanos() as u64;
        out.push(names.incarnation(book.incarnation));
        for place in &book.slabs.places {
            let (tag, client, name) = match *place {
                Place::Vacant => (0, 0, 0),
                Place::Spare => (1, 0, 0),
                Place::Filling { client, connection } => (2, client.0, names.connection(connection)),
                Place::Lent { client, rkey } => (3, client.0, names.key(rkey)),
                Place::Cleaning { keep } => (4, u64::from(keep), 0),
                Place::Retired => (5, 0, 0),
            };
            out.extend([tag, client, name]);
        }
        for (client, claim) in &book.claims {
            let connection = claim.connection.map_or(0, |connection| names.connection(connection));
            out.extend([100 + client.0, names.session(claim.session), connection, left(claim.deadline)]);
            out.extend([names.incarnation(claim.seen), claim.base.map_or(0, |base| names.incarnation(base))]);
            let bits = |slabs: &BTreeSet<SlabId>| slabs.iter().map(|slab| 1u64 << slab.0).sum::<u64>();
            out.extend([bits(&claim.held), bits(&claim.gone)]);
        }
        out.extend([200 + book.recalls.len() as u64, book.keys.len() as u64, u64::from(book.draining)]);
        book.recalls.iter().for_each(|(slab, until)| out.extend([u64::from(slab.0), left(*until)]));
        for client in &self.clients {
            match &client.link {
                None => out.push(300),
                Some((connection, welcome)) => {
                    out.extend([301, names.connection(*connection)]);
                    if let Some(Welcome { incarnation, resumed, session, held }) = welcome {
                        out.extend([names.incarnation(*incarnation), names.session(*session)]);
                        out.push(resumed.map_or(0, |resumed| names.incarnation(resumed)));
                        held.iter().for_each(|l| out.extend([400 + u64::from(l.slab.0), names.key(l.rkey)]));
                    }
                }
            }
            match client.stale {
                None => out.push(500),
                Some((connection, request)) => {
                    let request = match request {
                        None => 0,
                        Some(Request::Hello) => 1,
                        Some(Request::Lease) => 2,
                        Some(Request::Renew) => 3,
                        Some(Request::Return(s)) => 4 + s as u64,
                    };
                    out.extend([501, names.connection(connection), request]);
                }
            }
            out.extend([names.incarnation(client.incarnation), client.restarts.into(), left(client.until)]);
            for (known, slab) in client.knows.iter().zip(&self.slabs) {
                let known = known.map(|(term, key)| [1 + u64::from(term == slab.term), names.key(key)]);
                out.extend(known.unwrap_or_default());
            }
        }
        for slab in &self.slabs {
            let open = slab.open.map(|(client, key, until)| [client.0, names.key(key), left(until)]);
            out.extend(open.unwrap_or_default());
            let (saved, lease) = slab.saved.map_or((0, 0), |(client, lease)| (client.0, names.lease(lease)));
            let chore = slab.chore.map_or(0, |keep| 1 + u64::from(keep));
            out.extend([saved, lease, chore, slab.bytes.map_or(0, |client| client.0)]);
            out.extend([slab.wanted.map_or(u64::MAX, left), slab.holders.into()]);
        }
        for (client, claim) in &self.saved {
            out.extend([600 + client.0, names.incarnation(claim.seen), left(claim.until)]);
        }
        out.extend([u64::from(self.outlived), self.broken.map_or(0, |rule| rule.len() as u64)]);
        out
    }

    pub fn has_changed_hands(&self) -> bool {
        self.slabs.iter().any(|s| s.holders.count_ones() as usize == self.clients.len())
    }

    pub fn has_outlived_an_agent(&self) -> bool {
        self.outlived && self.slabs.iter().any(|s| s.open.is_some())
    }

    pub fn is_deceived(&self) -> bool {
        let known = self.clients.iter().flat_map(|client| client.knows.iter().zip(&self.slabs));
        let is_over = |(_, key): (Term, Rkey), slab: &Slab| slab.open.is_none_or(|(_, open, _)| open != key);
        known.filter_map(|(known, slab)| Some(((*known)?, slab))).any(|(known, slab)| is_over(known, slab))
    }
}

impl Clone for World {
    fn clone(&self) -> World {
        let Book { limits, incarnation, closing, draining, .. } = self.book;
        let book = Book {
            limits,
            incarnation,
            slabs: self.book.slabs.clone(),
            claims: self.book.claims.clone(),
            keys: self.book.keys.clone(),
            recalls: self.book.recalls.clone(),
            closing,
            draining,
            // Far beyond what the other one may still draw.
            draw: counting_from(u64::from(self.last_key) + (1 << 16)),
            actions: self.book.actions.clone(),
        };
        World {
            book,
            limits: self.limits,
            now: self.now,
            counted: self.counted,
            last_key: self.last_key,
            clients: self.clients.clone(),
            slabs: self.slabs.clone(),
            saved: self.saved.clone(),
            outlived: self.outlived,
            broken: self.broken,
        }
    }
}

impl Debug for World {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let World { now, clients, slabs, saved, broken, .. } = self;
        write!(f, "{now:?} {clients:?} {slabs:?} {saved:?} {broken:?}")
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

/// Numbers in the order of their first appearance, one row for each kind.
#[derive(Default)]
struct Names {
    keys: Vec<Rkey>,
    leases: Vec<LeaseNumber>,
    connections: Vec<ConnectionId>,
    incarnations: Vec<Incarnation>,
    sessions: Vec<SessionKey>,
}

impl Names {
    fn key(&mut self, key: Rkey) -> u64 {
        name(&mut self.keys, key) << 32 | self.lease(key.lease())
    }

    fn lease(&mut self, lease: LeaseNumber) -> u64 {
        name(&mut self.leases, lease)
    }

    fn connection(&mut self, connection: ConnectionId) -> u64 {
        name(&mut self.connections, connection)
    }

    fn incarnation(&mut self, incarnation: Incarnation) -> u64 {
        name(&mut self.incarnations, incarnation)
    }

    fn session(&mut self, session: SessionKey) -> u64 {
        name(&mut self.sessions, session)
    }
}

fn name<T: PartialEq>(known: &mut Vec<T>, item: T) -> u64 {
    let at = known.iter().position(|k| *k == item).unwrap_or(known.len());
    if at == known.len() {
        known.push(item);
    }
    at as u64 + 1
}
