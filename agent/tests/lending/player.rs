//! A client that knows what it has a right to find, and looks: it leases, writes, reads and returns
//! while the agent may die at any moment.
//!
//! What it holds it to, whatever happens to the agent:
//! - a slab it was given is nobody else's, and all zeros;
//! - a slab it has not asked to return is still its own after a restart, with the bytes of the last
//!   write that was acknowledged;
//! - of a write whose outcome it does not know, each byte is the old or the new one;
//! - under a lease that holds, no operation is refused.

use crate::client::{Client, Data, PATIENCE, SLAB, hello};
use annex_fabric::ErrorKind;
use annex_fabric::shm::ShmConnector;
use annex_fabric::tcp::TcpConnector;
use annex_shared::ids::{ClientId, Incarnation, Rkey, SlabId};
use annex_shared::wire::{Event, Request, Welcome};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Who has which slab, as all players together know it.
pub type Registry = Arc<Mutex<BTreeMap<SlabId, ClientId>>>;

/// The agent is gone, or on its way.
#[derive(Debug)]
pub struct Gone;

/// What must be in a slab.
struct Holding {
    rkey: Rkey,
    /// The pattern's number; 0 = zeros.
    acknowledged: u64,
    /// Written since, with an unknown outcome.
    maybe: Vec<u64>,
    /// A return was asked for, with an unknown outcome.
    is_returning: bool,
}

pub struct Player {
    id: ClientId,
    is_near: bool,
    rng: StdRng,
    registry: Registry,
    held: BTreeMap<SlabId, Holding>,
    /// Incarnations that the agent may know us to have taken part in.
    seen: Vec<Incarnation>,
    next_pattern: u64,
    link: Option<Link>,
    pub operations: u64,
    pub resumed: u64,
}

struct Link {
    client: Client,
    data: Data,
    connector: Option<ShmConnector>,
    incarnation: Incarnation,
}

fn pattern(number: u64) -> Vec<u8> {
    if number == 0 {
        return vec![0; SLAB as usize];
    }
    let word = |i: u64| (number << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..SLAB / 8).flat_map(|i| word(i).to_le_bytes()).collect()
}

impl Player {
    pub fn new(id: ClientId, is_near: bool, seed: u64, registry: &Registry) -> Player {
        Player {
            id,
            is_near,
            rng: StdRng::seed_from_u64(seed),
            registry: registry.clone(),
            held: BTreeMap::new(),
            seen: Vec::new(),
            next_pattern: id.0 << 16,
            link: None,
            operations: 0,
            resumed: 0,
        }
    }

    /// Says hello to a (new) agent and checks that everything is as it should be.
    pub fn connect(&mut self, addr: SocketAddr) -> Result<(), Gone> {
        self.link = None;
        let mut client = Client::try_connect(addr).map_err(|_| Gone)?;
        let welcome = match client.try_ask(&hello(self.id)) {
            Ok(Event::Welcome(welcome)) => welcome,
            Ok(other) => panic!("expected a welcome, got {other:?}"),
            Err(_) => return Err(Gone),
        };
        self.check_books(&welcome);
        let (data, connector) = self.open(addr, &welcome)?;
        self.link = Some(Link { client, data, connector, incarnation: welcome.incarnation });
        for lease in &welcome.held {
            self.prepare(lease.rkey)?;
            self.check_bytes(lease.slab)?;
        }
        // What we did not know of (the answer was lost) or had asked to return already.
        let stray: Vec<SlabId> = self.held.iter().filter(|(_, h)| h.is_returning).map(|(slab, _)| *slab).collect();
        self.give_back(stray)
    }

    fn check_books(&mut self, welcome: &Welcome) {
        if !welcome.held.is_empty() && !self.seen.contains(&welcome.incarnation) {
            let resumed = welcome.resumed.expect("an earlier incarnation's slabs");
            assert!(self.seen.contains(&resumed), "{resumed} was not ours: {:?}", self.seen);
            self.resumed += 1;
        }
        self.seen.push(welcome.incarnation);
        let found: BTreeMap<SlabId, Rkey> = welcome.held.iter().map(|l| (l.slab, l.rkey)).collect();
        for (slab, holding) in &mut self.held {
            match found.get(slab) {
                Some(rkey) => holding.rkey = *rkey,
                None => assert!(holding.is_returning, "{slab} was lost by {}", self.id),
            }
        }
        self.held.retain(|slab, _| found.contains_key(slab));
        for (slab, rkey) in found {
            let stray = Holding { rkey, acknowledged: 0, maybe: Vec::new(), is_returning: true };
            self.held.entry(slab).or_insert(stray);
        }
    }

    fn open(&self, addr: SocketAddr, welcome: &Welcome) -> Result<(Data, Option<ShmConnector>), Gone> {
        let (incarnation, session) = (welcome.incarnation, welcome.session);
        if !self.is_near {
            let tcp = TcpConnector::new(addr, self.id, incarnation, session, PATIENCE);
            return Ok((Data::try_of(&tcp).map_err(|_| Gone)?, None));
        }
        let path = Path::new(welcome.shm_socket.as_ref().expect("shm is offered"));
        let shm = ShmConnector::connect(path, self.id, incarnation, session, PATIENCE).map_err(|_| Gone)?;
        Ok((Data::try_of(&shm).map_err(|_| Gone)?, Some(shm)))
    }

    fn prepare(&mut self, rkey: Rkey) -> Result<(), Gone> {
        match self.link.as_ref().and_then(|l| l.connector.as_ref()) {
            Some(connector) => connector.prepare(rkey).map_err(|_| Gone),
            None => Ok(()),
        }
    }

    /// One random act.
    pub fn step(&mut self) -> Result<(), Gone> {
        let slabs: Vec<SlabId> = self.held.keys().copied().collect();
        let any = (!slabs.is_empty()).then(|| slabs[self.rng.random_range(0..slabs.len())]);
        match (self.rng.random_range(0..10), any) {
            (0..=2, _) | (_, None) if slabs.len() < 3 => self.lease(),
            (0, Some(slab)) => self.give_back(vec![slab]),
            (1, _) => self.ask(&Request::Renew).map(drop),
            (3..=5, Some(slab)) => self.write(slab),
            (_, Some(slab)) => self.check_bytes(slab),
            (_, None) => Ok(()),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Event, Gone> {
        let link = self.link.as_mut().ok_or(Gone)?;
        let answer = link.client.try_ask(request).map_err(|_| Gone)?;
        self.seen = vec![link.incarnation];
        self.operations += 1;
        Ok(answer)
    }

    pub fn lease(&mut self) -> Result<(), Gone> {
        let leased = match self.ask(&Request::Lease { count: 1 })? {
            Event::Leased { slabs } => slabs,
            Event::Refused(_) => return Ok(()),
            other => panic!("expected a lease, got {other:?}"),
        };
        for lease in leased {
            let before = self.registry.lock().unwrap().insert(lease.slab, self.id);
            assert!(before.is_none(), "{} was lent to {} and to {before:?}", lease.slab, self.id);
            let holding = Holding { rkey: lease.rkey, acknowledged: 0, maybe: Vec::new(), is_returning: false };
            assert!(self.held.insert(lease.slab, holding).is_none(), "{} was lent twice", lease.slab);
            self.prepare(lease.rkey)?;
            self.check_bytes(lease.slab)?;
        }
        Ok(())
    }

    pub fn write(&mut self, slab: SlabId) -> Result<(), Gone> {
        self.next_pattern += 1;
        let number = self.next_pattern;
        let (link, holding) = (self.link.as_mut().ok_or(Gone)?, self.held.get_mut(&slab).expect("held"));
        holding.maybe.push(number);
        let key = holding.rkey;
        settled(link.data.write_bytes(key, &pattern(number)), slab)?;
        (holding.acknowledged, holding.maybe) = (number, Vec::new());
        self.operations += 1;
        Ok(())
    }

    /// The slab has the bytes it must have.
    pub fn check_bytes(&mut self, slab: SlabId) -> Result<(), Gone> {
        let (link, holding) = (self.link.as_mut().ok_or(Gone)?, self.held.get_mut(&slab).expect("held"));
        let read = link.data.read(holding.rkey);
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) => return settled(Err(e), slab),
        };
        let numbers = [holding.acknowledged].into_iter().chain(holding.maybe.iter().copied());
        let allowed: Vec<Vec<u8>> = numbers.map(pattern).collect();
        let wrong = (0..bytes.len()).find(|at| !allowed.iter().any(|pattern| pattern[*at] == bytes[*at]));
        assert_eq!(wrong, None, "{slab} of {} has a byte that was never written there", self.id);
        self.operations += 1;
        Ok(())
    }

    pub fn give_back(&mut self, slabs: Vec<SlabId>) -> Result<(), Gone> {
        if slabs.is_empty() {
            return Ok(());
        }
        for slab in &slabs {
            // From now on somebody else may get it.
            self.registry.lock().unwrap().retain(|s, owner| s != slab || *owner != self.id);
            self.held.get_mut(slab).expect("held").is_returning = true;
        }
        match self.ask(&Request::Return { slabs: slabs.clone() })? {
            Event::Returned => slabs.iter().for_each(|slab| drop(self.held.remove(slab))),
            other => panic!("expected a return, got {other:?}"),
        }
        Ok(())
    }

    /// Gives everything back.
    pub fn finish(&mut self) -> Result<(), Gone> {
        let all: Vec<SlabId> = self.held.keys().copied().collect();
        all.iter().try_for_each(|slab| self.check_bytes(*slab))?;
        self.give_back(all)
    }

    pub fn slabs(&self) -> Vec<SlabId> {
        self.held.keys().copied().collect()
    }
}

/// The only way an operation may fail under a lease that holds is that the agent is gone.
fn settled(result: Result<(), ErrorKind>, slab: SlabId) -> Result<(), Gone> {
    match result {
        Ok(()) => Ok(()),
        Err(ErrorKind::RetryExceeded | ErrorKind::Flushed) => Err(Gone),
        Err(e) => panic!("{slab}: {e} under a lease that holds"),
    }
}
