//! The way to scripted agents: their dialer and control connections.

use super::agent::Agent;
use super::endpoint::Path;
use super::slab::SLAB;
use annex_pool::DonorConfig;
use annex_pool::dial::{DialError, Dialed, Dialer, Fabric, Link, Welcomed};
use annex_shared::ids::{ClientId, Incarnation, Rkey, SessionKey, SlabId};
use annex_shared::wire::{Event, Lease, Refusal, Request, VERSION, VerbsOffer, Welcome};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Dials scripted donors: the address `dN:1` is the donor with that index.
pub struct Donors {
    pub agents: Vec<Arc<Agent>>,
}

/// Which of the donors has this address.
pub fn index_of(address: &str) -> usize {
    address.trim_start_matches('d').trim_end_matches(":1").parse().unwrap()
}

impl Donors {
    fn agent(&self, donor: &DonorConfig) -> Arc<Agent> {
        self.agents[index_of(&donor.address)].clone()
    }
}

fn unreachable(address: &str) -> DialError {
    DialError::Connect { address: address.to_owned(), source: std::io::ErrorKind::ConnectionRefused.into() }
}

impl Dialer for Donors {
    fn dial(&self, donor: &DonorConfig, _: ClientId, _: u64) -> Result<Dialed, DialError> {
        let agent = self.agent(donor);
        let heard = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        let mut state = agent.0.lock();
        state.dialed += 1;
        if !state.reachable {
            return Err(unreachable(&donor.address));
        }
        state.hellos += 1;
        state.closing = None;
        state.hears.push(heard.clone());
        let welcome = Welcome {
            version: VERSION as u16,
            name: donor.address.clone(),
            incarnation: Incarnation(state.incarnation),
            session: SessionKey(1),
            slab_size: SLAB as u64,
            capacity_slabs: state.capacity,
            free_slabs: state.free(),
            lease_ttl_ms: 600,
            labels: BTreeMap::new(),
            shm_socket: None,
            verbs: VerbsOffer::No("scripted".to_owned()),
            held: state.slabs.iter().map(|(slab, (rkey, _))| Lease { slab: *slab, rkey: *rkey }).collect(),
            resumed: state.resumed,
        };
        let epoch = state.epoch;
        drop(state);
        let link = ScriptedLink { agent, epoch, heard, address: donor.address.clone() };
        Ok(Dialed { link: Box::new(link), welcome })
    }

    fn fabric(&self, to: &Welcomed<'_>) -> Result<Fabric, DialError> {
        let agent = self.agent(to.donor);
        let has_rdma = agent.with(|s| s.rdma);
        let (path, is_fallback) = (Arc::new(Path(agent)), has_rdma == Some(false));
        Ok(Fabric { path, why: "scripted".to_owned(), rdma_failed: String::new(), is_fallback, regions: Vec::new() })
    }

    fn try_rdma(&self, to: &Welcomed<'_>) -> Result<(), DialError> {
        let works = self.agent(to.donor).with(|s| s.rdma == Some(true));
        works.then_some(()).ok_or_else(|| unreachable("its device"))
    }
}

struct ScriptedLink {
    agent: Arc<Agent>,
    epoch: u64,
    heard: Arc<EventFd>,
    address: String,
}

impl Link for ScriptedLink {
    fn ask(&mut self, request: &Request) -> Result<Event, DialError> {
        while self.agent.with(|s| s.mute) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut state = self.agent.0.lock();
        if !state.reachable || state.epoch != self.epoch {
            return Err(unreachable(&self.address));
        }
        let free = state.free();
        Ok(match request {
            Request::Lease { .. } if free == 0 => Event::Refused(Refusal::Full { capacity: state.capacity }),
            Request::Lease { .. } => {
                let slab = (0..).map(SlabId).find(|s| !state.slabs.contains_key(s)).unwrap();
                let rkey = Rkey(state.next_key << 32 | state.next_key);
                state.next_key += 1;
                state.slabs.insert(slab, (rkey, vec![0; SLAB]));
                Event::Leased { slabs: vec![Lease { slab, rkey }] }
            }
            Request::Renew => Event::Renewed {
                held: state.slabs.keys().copied().collect(),
                free_slabs: free,
                capacity_slabs: state.capacity,
            },
            Request::Return { slabs } => {
                // As the real agent, it does not mind a slab that it has taken back meanwhile.
                slabs.iter().for_each(|s| drop(state.slabs.remove(s)));
                Event::Returned
            }
            Request::Hello { .. } => return Err(DialError::Confused),
        })
    }

    fn hear(&mut self) -> Result<Option<Event>, DialError> {
        let _ = self.heard.read();
        let mut state = self.agent.0.lock();
        if !state.reachable || state.epoch != self.epoch {
            return Err(unreachable(&self.address));
        }
        if let Some(deadline_ms) = state.recall.take() {
            return Ok(Some(Event::Recall { slabs: state.slabs.keys().copied().collect(), deadline_ms }));
        }
        Ok(state.closing.take().map(|grace_ms| Event::Closing { grace_ms }))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }
}
