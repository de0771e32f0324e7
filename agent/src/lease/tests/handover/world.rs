//! One state of the search: the book, what its owner does for it, and clients that follow the
//! protocol.

mod state;

use super::*;

const TTL: Duration = Duration::from_nanos(2);
const SPAN: Duration = Duration::from_nanos(1);

/// The rules, as they are named when one is broken.
const TWICE: &str = "a slab is lent to one client at a time";
const KEY_TWICE: &str = "a key is drawn once";
const DIRTY: &str = "a slab is clean before it is lent";
const OVER: &str = "a key is dead when its lease is over";
const DEADLINE: &str = "the next deadline lies ahead, and before the first thing that ends";
const ANSWER: &str = "an answer lists what the client holds";
const VOUCHED: &str = "what a welcome calls the same bytes are the same bytes";
const LOST: &str = "a restarted agent loses nothing";
const BELIEVED: &str = "what a client believes after it was told what it holds is so";

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Hello,
    Lease,
    Renew,
    Return(usize),
}

/// What the agent's host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chore {
    Tick,
    Clean(usize),
    Fill { slab: usize, is_filled: bool },
    Trim,
    Recall { slab: usize, at_once: bool },
    Drain,
    StopDraining,
}

/// One step. The agent lives on, or dies after so many of the actions that the step brought, before
/// it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A request on the client's connection is answered.
    Ask(usize, Request, Fate),
    /// A data connection is admitted: only now the client takes its welcome up.
    Admit(usize, Fate),
    /// The client gives its connection up while this is on its way.
    GiveUp(usize, Option<Request>),
    /// What was on its way on the connection given up arrives.
    Late(usize, Fate),
    /// The agent sees the end of the connection given up.
    End(usize, Fate),
    Host(Chore, Fate),
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lives,
    Dies(usize),
}

/// A lease, numbered by the world: the same one as long as the slab's bytes stay.
type Term = u64;

#[derive(Clone, Debug)]
struct Welcome {
    incarnation: Incarnation,
    resumed: Option<Incarnation>,
    session: SessionKey,
    held: Vec<Lease>,
}

#[derive(Clone, Debug)]
struct Client {
    /// Its connection, and a welcome that it has not taken up.
    link: Option<(ConnectionId, Option<Welcome>)>,
    /// A connection it gave up, of which the agent does not know the end.
    stale: Option<(ConnectionId, Option<Request>)>,
    /// What it believes to hold, under keys of this incarnation.
    knows: Vec<Option<(Term, Rkey)>>,
    incarnation: Incarnation,
    /// Agents that started since it took that up.
    restarts: u8,
    /// When its leases end by its own words to the agent.
    until: Moment,
}

#[derive(Clone, Debug, Default)]
struct Slab {
    open: Option<(ClientId, Rkey, Moment)>,
    saved: Option<(ClientId, LeaseNumber)>,
    chore: Option<bool>,
    /// Whose bytes are in it.
    bytes: Option<ClientId>,
    wanted: Option<Moment>,
    term: Term,
    holders: u8,
}

pub(super) struct World {
    book: Book,
    limits: Limits,
    now: Moment,
    /// Random bits, connections and terms are counted.
    counted: u64,
    /// Of keys this half tells which is the newer one: the other one is the lease's.
    last_key: u32,
    clients: Vec<Client>,
    slabs: Vec<Slab>,
    saved: BTreeMap<ClientId, SavedClaim>,
    outlived: bool,
    pub broken: Option<&'static str>,
}

fn id(client: usize) -> ClientId {
    ClientId(client as u64 + 1)
}

fn slab(index: usize) -> SlabId {
    SlabId(index as u32)
}

impl World {
    pub fn new(case: &Case) -> World {
        let limits = Limits { capacity: case.slabs as u32, per_client: case.slabs as u32, ttl: TTL, keep: case.keep };
        let client = Client {
            link: None,
            stale: None,
            knows: vec![None; case.slabs],
            incarnation: Incarnation(0),
            restarts: 0,
            until: Moment(0),
        };
        World {
            book: Book::new(limits, Incarnation(1), counting_from(0)),
            limits,
            now: Moment(1),
            counted: 1 << 24,
            last_key: 0,
            clients: vec![client; case.clients],
            slabs: vec![Slab::default(); case.slabs],
            saved: BTreeMap::new(),
            outlived: false,
            broken: None,
        }
    }

    fn must(&mut self, holds: bool, rule: &'static str) {
        if !holds {
            self.broken.get_or_insert(rule);
        }
    }

    fn connection(&mut self) -> ConnectionId {
        self.counted += 1;
        ConnectionId(self.counted)
    }

    // ---- what states are the same ----

    // ---- what can happen ----

    pub fn events(&self, case: &Case, events: &mut Vec<Event>) {
        if self.broken.is_some() {
            return;
        }
        let fates: Vec<Fate> = match case.kills {
            true => [Fate::Lives].into_iter().chain((0..8).map(Fate::Dies)).collect(),
            false => vec![Fate::Lives],
        };
        let mut each = |event: &dyn Fn(Fate) -> Event| events.extend(fates.iter().map(|fate| event(*fate)));
        for (c, client) in self.clients.iter().enumerate() {
            let mut requests = vec![Request::Lease, Request::Renew];
            let knows = client.knows.iter().enumerate().filter(|(_, known)| known.is_some());
            requests.extend(knows.map(|(slab, _)| Request::Return(slab)));
            match &client.link {
                None => each(&|fate| Event::Ask(c, Request::Hello, fate)),
                Some((_, Some(_))) => each(&|fate| Event::Admit(c, fate)),
                Some((_, None)) => requests.iter().for_each(|r| each(&|fate| Event::Ask(c, *r, fate))),
            }
            if client.stale.is_some_and(|(_, request)| request.is_some()) {
                each(&|fate| Event::Late(c, fate));
            }
            if client.stale.is_some() {
                each(&|fate| Event::End(c, fate));
            }
        }
        each(&|fate| Event::Host(Chore::Tick, fate));
        for (s, slab) in self.slabs.iter().enumerate() {
            if slab.chore.is_some() {
                each(&|fate| Event::Host(Chore::Clean(s), fate));
            }
            if let Place::Filling { .. } = self.book.slabs.places[s] {
                each(&|fate| Event::Host(Chore::Fill { slab: s, is_filled: true }, fate));
                if case.pressure {
                    each(&|fate| Event::Host(Chore::Fill { slab: s, is_filled: false }, fate));
                }
            }
            if case.pressure && slab.open.is_some() {
                each(&|fate| Event::Host(Chore::Recall { slab: s, at_once: true }, fate));
                each(&|fate| Event::Host(Chore::Recall { slab: s, at_once: false }, fate));
            }
        }
        if case.pressure {
            each(&|fate| Event::Host(Chore::Trim, fate));
            let drain = if self.book.is_draining() { Chore::StopDraining } else { Chore::Drain };
            each(&|fate| Event::Host(drain, fate));
        }
        if case.network {
            for (c, client) in self.clients.iter().enumerate().filter(|(_, client)| client.stale.is_none()) {
                match &client.link {
                    None => events.push(Event::GiveUp(c, Some(Request::Hello))),
                    Some((_, welcome)) => {
                        events.push(Event::GiveUp(c, None));
                        if welcome.is_none() {
                            events.push(Event::GiveUp(c, Some(Request::Lease)));
                            events.push(Event::GiveUp(c, Some(Request::Renew)));
                            events.extend((0..case.slabs).map(|s| Event::GiveUp(c, Some(Request::Return(s)))));
                        }
                    }
                }
            }
        }
        events.push(Event::Pass);
    }

    /// False if this is not different from another event.
    pub fn happen(&mut self, event: Event) -> bool {
        match event {
            Event::Pass => {
                self.now = self.now.after(Duration::from_nanos(1));
                true
            }
            Event::GiveUp(c, request) => {
                let fresh = self.connection();
                let client = &mut self.clients[c];
                let connection = client.link.take().map_or(fresh, |(connection, _)| connection);
                client.stale = Some((connection, request));
                if let Some(Request::Return(s)) = request {
                    client.knows[s] = None;
                }
                true
            }
            Event::Ask(c, request, fate) => self.ask(c, request, fate),
            Event::Admit(c, fate) => self.admit(c, fate),
            Event::Late(c, fate) => self.late(c, fate),
            Event::End(c, fate) => {
                let Some((connection, _)) = self.clients[c].stale.take() else { return false };
                self.book.disconnected(id(c), connection, self.now);
                self.carry_out(fate, true)
            }
            Event::Host(chore, fate) => self.host(chore, fate),
        }
    }

    // ---- clients ----

    fn ask(&mut self, c: usize, request: Request, fate: Fate) -> bool {
        let connection = match &self.clients[c].link {
            Some((connection, _)) => *connection,
            None => self.connection(),
        };
        if let Request::Return(s) = request {
            self.clients[c].knows[s] = None;
        }
        let answer = self.request(c, connection, request);
        if !self.carry_out(fate, true) {
            return false;
        }
        if fate != Fate::Lives {
            return true;
        }
        match answer {
            Answer::Welcome(welcome, claim) => {
                self.save(claim);
                self.clients[c].link = Some((connection, Some(welcome)));
            }
            Answer::Leased(leases) => leases.into_iter().for_each(|lease| self.learn(c, lease)),
            Answer::Renewed(held) => {
                self.must(held == self.held_by(c), ANSWER);
                for s in 0..self.slabs.len() {
                    if !held.contains(&slab(s)) {
                        self.clients[c].knows[s] = None;
                    } else if let Some((_, key)) = self.clients[c].knows[s] {
                        self.must(self.slabs[s].open.is_some_and(|(_, open, _)| open == key), BELIEVED);
                    }
                }
            }
            Answer::Nothing => {}
            Answer::Superseded => self.clients[c].link = None,
        }
        true
    }

    fn late(&mut self, c: usize, fate: Fate) -> bool {
        let Some((connection, Some(request))) = self.clients[c].stale else { return false };
        self.clients[c].stale = Some((connection, None));
        let answer = self.request(c, connection, request);
        if !self.carry_out(fate, true) {
            return false;
        }
        if let (Answer::Welcome(_, claim), Fate::Lives) = (answer, fate) {
            self.save(claim);
        }
        true
    }

    fn request(&mut self, c: usize, connection: ConnectionId, request: Request) -> Answer {
        let (client, now) = (id(c), self.now);
        let until = now.after(TTL);
        let answer = match request {
            Request::Hello => match self.book.hello(client, home(), connection, now) {
                Ok(Greeting { session, held, resumed, seen, until }) => {
                    let claim = SavedClaim { client, machine: home(), seen, until };
                    let incarnation = self.book.incarnation;
                    Answer::Welcome(Welcome { incarnation, resumed, session, held }, claim)
                }
                Err(_) => Answer::Nothing,
            },
            Request::Lease => {
                match self.book.lease(client, connection, 1, None, Room { slabs: self.limits.capacity, ..PLENTY }, now)
                {
                    Ok(grant) => Answer::Leased(grant.leased),
                    Err(LeaseError::Superseded(_)) => Answer::Superseded,
                    Err(_) => Answer::Nothing,
                }
            }
            Request::Renew => self.book.renew(client, connection, now).map_or(Answer::Superseded, Answer::Renewed),
            Request::Return(s) => match self.book.give_back(client, connection, &[slab(s)], now) {
                Ok(()) => Answer::Nothing,
                Err(Superseded) => Answer::Superseded,
            },
        };
        if !matches!(answer, Answer::Superseded) {
            let moves = !matches!(request, Request::Return(_));
            let client = &mut self.clients[c];
            client.until = if moves { until } else { client.until };
        }
        answer
    }

    /// The lender saves a claim after all that the hello ended.
    fn save(&mut self, claim: SavedClaim) {
        self.saved.insert(claim.client, claim);
    }

    fn learn(&mut self, c: usize, lease: Lease) {
        let s = lease.slab.0 as usize;
        self.must(self.clients[c].knows[s].is_none(), BELIEVED);
        self.clients[c].knows[s] = Some((self.slabs[s].term, lease.rkey));
    }

    /// A client opens its data connections and, once they stand, goes by the welcome.
    fn admit(&mut self, c: usize, fate: Fate) -> bool {
        let Some((connection, Some(welcome))) = self.clients[c].link.clone() else { return false };
        let Welcome { incarnation, resumed, session, held } = welcome;
        let admitted = self.book.admit(&Proof { client: id(c), incarnation, session });
        if !self.carry_out(fate, false) {
            return false;
        }
        if fate != Fate::Lives {
            return true;
        }
        if admitted.is_err() {
            self.clients[c].link = None;
            return true;
        }
        for s in 0..self.slabs.len() {
            let Some((term, key)) = self.clients[c].knows[s] else { continue };
            let found = held.iter().find(|lease| lease.slab == slab(s)).map(|lease| lease.rkey);
            let base = self.clients[c].incarnation;
            let is_same = self.slabs[s].term == term && self.slabs[s].open.is_some_and(|(holder, ..)| holder == id(c));
            self.clients[c].knows[s] = match found {
                Some(found) if base == incarnation && found == key => Some((term, key)),
                Some(found) if resumed == Some(base) && found.goes_on_from(key) => {
                    // Its lease may have ended since the welcome; then its key is dead.
                    let is_open = self.slabs[s].open.is_some_and(|(_, open, _)| open == found);
                    self.must(is_same || !is_open, VOUCHED);
                    Some((term, found))
                }
                _ => {
                    self.must(!is_same || self.clients[c].restarts > 1, LOST);
                    None
                }
            };
        }
        let client = &mut self.clients[c];
        (client.link, client.incarnation, client.restarts) = (Some((connection, None)), incarnation, 0);
        true
    }

    // ---- the agent ----

    fn host(&mut self, chore: Chore, fate: Fate) -> bool {
        let now = self.now;
        let mut filled = None;
        match chore {
            Chore::Tick => self.book.tick(now),
            Chore::Clean(s) => {
                let Some(keep) = self.slabs[s].chore.take() else { return false };
                self.slabs[s].bytes = None;
                self.book.cleaned(slab(s), keep);
            }
            Chore::Fill { slab: s, is_filled } => {
                let place = self.book.slabs.places[s];
                let lease = self.book.filled(slab(s), is_filled, now);
                if let (Place::Filling { client, connection }, Some(lease)) = (place, lease) {
                    let c = client.0 as usize - 1;
                    self.clients[c].until = now.after(TTL);
                    let is_waited_for = self.clients[c].link.as_ref().is_some_and(|(link, _)| *link == connection);
                    filled = is_waited_for.then_some((c, lease));
                }
            }
            Chore::Trim => self.book.trim(0),
            Chore::Recall { slab: s, at_once } => {
                let span = if at_once { Duration::ZERO } else { SPAN };
                self.slabs[s].wanted = Some(now.after(span));
                self.book.recall(&[slab(s)], span, now);
            }
            Chore::Drain => {
                self.slabs.iter_mut().filter(|s| s.open.is_some()).for_each(|s| s.wanted = Some(now.after(SPAN)));
                self.book.drain(SPAN, now);
            }
            Chore::StopDraining => {
                self.slabs.iter_mut().for_each(|s| s.wanted = None);
                self.book.stop_draining();
            }
        }
        let ticks = !matches!(chore, Chore::Clean(_) | Chore::Trim | Chore::StopDraining);
        if !self.carry_out(fate, ticks) {
            return false;
        }
        if let (Some((c, lease)), Fate::Lives) = (filled, fate) {
            self.learn(c, lease);
        }
        true
    }

    /// Carries out what the book wants. False if the agent can't die there, since there is nothing
    /// more to be done.
    fn carry_out(&mut self, fate: Fate, ticked: bool) -> bool {
        let actions = self.book.take_actions();
        match fate {
            Fate::Lives => actions.into_iter().for_each(|action| self.act(action, false)),
            Fate::Dies(after) if after > actions.len() => return false,
            Fate::Dies(after) => {
                actions.into_iter().take(after).for_each(|action| self.act(action, false));
                self.restart();
            }
        }
        self.look(ticked);
        true
    }

    fn act(&mut self, action: Action, resumes: bool) {
        match action {
            Action::Open { slab, client, rkey, until } => {
                self.must(rkey.0 as u32 > self.last_key, KEY_TWICE);
                self.last_key = rkey.0 as u32;
                let s = slab.0 as usize;
                self.must(self.slabs[s].open.is_none(), TWICE);
                if !resumes {
                    self.must(self.slabs[s].chore.is_none() && self.slabs[s].bytes.is_none(), DIRTY);
                    self.counted += 1;
                    self.slabs[s].term = self.counted;
                    self.slabs[s].holders |= 1 << client.0;
                }
                let slab = &mut self.slabs[s];
                slab.wanted = None;
                slab.saved = Some((client, rkey.lease()));
                // The client writes to it at once.
                slab.bytes = Some(client);
                slab.open = Some((client, rkey, until));
            }
            Action::Extend { slab, until } => {
                if let Some(open) = &mut self.slabs[slab.0 as usize].open {
                    open.2 = until;
                }
            }
            Action::Close { slab, rkey, keep } => {
                let slab = &mut self.slabs[slab.0 as usize];
                let was = slab.open.take();
                (slab.saved, slab.chore, slab.wanted) = (None, Some(keep), None);
                self.must(was.is_some_and(|(_, open, _)| open == rkey), OVER);
            }
            Action::Trim { slab } => self.slabs[slab.0 as usize].chore = Some(false),
            Action::Until { client, until } => {
                if let Some(claim) = self.saved.get_mut(&client) {
                    claim.until = until;
                }
            }
            Action::Seen { client } => {
                if let Some(claim) = self.saved.get_mut(&client) {
                    claim.seen = self.book.incarnation;
                }
            }
            Action::Forget { client } => _ = self.saved.remove(&client),
            Action::Recall { .. } | Action::Revoke { .. } | Action::Lapse { .. } | Action::Supersede { .. } => {}
        }
    }

    /// The agent is dead; another one goes on with what was saved.
    fn restart(&mut self) {
        let leases = self.slabs.iter().zip(0..);
        let lease = |(slab, n): (&Slab, u32)| {
            let (client, number) = slab.saved?;
            Some(SavedLease { slab: SlabId(n), client, number })
        };
        let leases: Vec<SavedLease> = leases.filter_map(lease).collect();
        self.outlived |= !leases.is_empty();
        for s in &mut self.slabs {
            // Memory that nobody holds is thrown away.
            let bytes = s.saved.and(s.bytes);
            (s.open, s.chore, s.wanted, s.bytes) = (None, None, None, bytes);
        }
        for (c, client) in self.clients.iter_mut().enumerate() {
            (client.link, client.stale) = (None, None);
            client.restarts = client.restarts.saturating_add(1).min(2);
            if leases.iter().any(|lease| lease.client == id(c)) {
                client.until = client.until.max(self.now.after(TTL));
            }
        }
        self.saved.retain(|client, _| leases.iter().any(|lease| lease.client == *client));
        self.counted += 1 << 24;
        let next = Incarnation(self.book.incarnation.0 + 1);
        let saved = Saved { claims: self.saved.values().cloned().collect(), leases };
        self.book = Book::resume(self.limits, next, counting_from(self.counted), saved, self.now);
        for action in self.book.take_actions() {
            self.act(action, true);
        }
    }

    // ---- what must hold ----

    fn held_by(&self, c: usize) -> Vec<SlabId> {
        let mine = |(s, held): (usize, &Slab)| held.open.is_some_and(|(holder, ..)| holder == id(c)).then(|| slab(s));
        self.slabs.iter().enumerate().filter_map(mine).collect()
    }

    fn look(&mut self, ticked: bool) {
        let lent = self.slabs.iter().filter(|s| s.open.is_some()).count();
        self.must(self.book.lent() as usize == lent, TWICE);
        let mut first: Option<Moment> = None;
        for s in 0..self.slabs.len() {
            let Some((client, rkey, until)) = self.slabs[s].open else { continue };
            self.must(self.book.slabs.places[s] == Place::Lent { client, rkey }, TWICE);
            self.must(self.book.keys.contains(&rkey), KEY_TWICE);
            self.must(until <= self.clients[client.0 as usize - 1].until, OVER);
            let ends = self.slabs[s].wanted.map_or(until, |wanted| wanted.min(until));
            first = Some(first.map_or(ends, |first| first.min(ends)));
            self.must(!ticked || ends > self.now, OVER);
        }
        let next = self.book.next_deadline();
        self.must(first.is_none_or(|first| next.is_some_and(|at| at <= first)), DEADLINE);
        self.must(!ticked || next.is_none_or(|at| at > self.now), DEADLINE);
    }

    /// Nobody says anything any more.
    pub fn ends(&self, case: &Case) -> bool {
        if self.broken.is_some() {
            return true;
        }
        let mut quiet = self.clone();
        for s in 0..self.slabs.len() {
            if let Place::Filling { .. } = quiet.book.slabs.places[s] {
                quiet.host(Chore::Fill { slab: s, is_filled: true }, Fate::Lives);
            }
        }
        quiet.now = quiet.now.after(TTL);
        quiet.host(Chore::Tick, Fate::Lives);
        let is_over = quiet.slabs.iter().all(|s| s.open.is_none());
        (0..self.slabs.len()).for_each(|s| _ = quiet.host(Chore::Clean(s), Fate::Lives));
        quiet.book.stop_draining();
        is_over && quiet.broken.is_none() && quiet.book.free(PLENTY) == case.slabs as u32
    }
}

enum Answer {
    Welcome(Welcome, SavedClaim),
    Leased(Vec<Lease>),
    Renewed(Vec<SlabId>),
    Nothing,
    Superseded,
}
