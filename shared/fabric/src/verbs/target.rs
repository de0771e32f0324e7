//! The agent's side of one control connection, as far as the device is concerned: its protection
//! domain, its queue pairs, the proof.

use super::DeviceChoice;
use super::device::{Device, DeviceError};
use super::limits;
use super::memory::{MemoryRegion, ProtectionDomain, RegisterError, Rights};
use super::protocol::{Answer, Nonce, Party};
use super::queue::{CompletionQueue, QueueCapacity, QueuePair, ReadyToReceive};
use crate::{Arena, ArenaError};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Queue pairs one connection may have: lanes of all its client's workers, with room for those that
/// are being replaced.
const QUEUE_PAIRS: usize = 256;

/// Something of what serves a connection could not be made. `Display` says what failed on this
/// machine.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error("failed to make a {what} with RDMA device {device}: {source}")]
    Make { what: &'static str, device: String, source: io::Error },
    #[error("the client has {QUEUE_PAIRS} queue pairs already")]
    TooMany,
}

/// What serves one client's connection.
#[derive(Debug)]
pub struct Target {
    /// By number. They go first.
    pairs: HashMap<u32, QueuePair<ReadyToReceive>>,
    cq: Arc<CompletionQueue>,
    proof: MemoryRegion,
    nonce: Nonce,
    domain: Arc<ProtectionDomain>,
}

impl Target {
    /// Opens the device anew: one that was removed and came back since is found again.
    pub fn open(choice: &DeviceChoice) -> Result<Target, TargetError> {
        let device = Device::open(choice)?;
        let make = |what, source| TargetError::Make { what, device: device.name().to_owned(), source };
        let domain = ProtectionDomain::new(&device).map_err(|e| make("protection domain", e))?;
        let cq = CompletionQueue::new(&device, 1).map_err(|e| make("completion queue", e))?;
        let nonce: Nonce = rand::random();
        let page = Arc::new(Arena::new(nonce.len())?);
        // SAFETY: the page is fresh and not registered yet.
        unsafe { page.bytes_mut(0, nonce.len()) }.copy_from_slice(&nonce);
        let proof = MemoryRegion::of_arena(&domain, &page, Rights::RemoteRead)?;
        Ok(Target { pairs: HashMap::new(), cq: Arc::new(cq), proof, nonce, domain })
    }

    /// Where slabs are registered for this client.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Connects a queue pair to the client's. It answers, and starts nothing.
    pub fn connect(&mut self, peer: &Party) -> Result<Answer, TargetError> {
        if self.pairs.len() >= QUEUE_PAIRS {
            return Err(TargetError::TooMany);
        }
        let device = self.domain.device();
        let make = |source| TargetError::Make { what: "queue pair", device: device.name().to_owned(), source };
        let reads = limits::reads_answered(device.limits());
        let room = QueueCapacity { sends: 1, inline: 0 };
        let (pair, _) = QueuePair::new(&self.domain, &self.cq, room, true).map_err(make)?;
        let party = pair.party(reads);
        let pair = pair.receive_from(peer, reads).map_err(make)?;
        self.pairs.insert(party.number, pair);
        Ok(Answer::Opened { party, proof: self.proof.window(), nonce: self.nonce })
    }

    /// Destroys a queue pair. When this returns, nothing that came through it touches memory any
    /// more.
    pub fn close(&mut self, number: u32) {
        self.pairs.remove(&number);
    }
}
