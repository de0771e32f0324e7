//! The spill file: the last tier, for pages that no donor has room for, and for backups where there
//! is one replica only.
//!
//! It is driven like a donor, over a [`Link`] that ends in this process: slabs are ranges of the
//! file (`fabric::file`), with leases, tags, replicas, repair and listings like all others.
//! What is special about it is when it is chosen (`book::last_tier`) and that it is read last.
//!
//! # The file
//! It belongs to one annexd: it has mode 0600, is locked while annexd or its keeper has it open,
//! and grows by one slab at a time up to its size, each slab reserved on the disk when it is leased
//! and given back when it is returned. What is in it is worth nothing without annexd's tables, so
//! an annexd that starts without any begins with an empty file, and one that ends in order leaves
//! an empty one. The next annexd after a kill goes on with the descriptor that was kept, or with
//! the file of that name if it is the same one.
//!
//! ```text
//! 0     magic "annexspl"          8
//! 8     version = 1               u32
//! 16    incarnation               u64   drawn anew whenever its content is thrown away
//! 4096  slabs, one after the other
//! ```

mod file;

pub use file::{Spill, SpillConfig, SpillError};

use crate::config::DonorConfig;
use crate::donor::dial::{DataPath, DialError, Dialed, Dialer, Fabric, Link, Welcomed};
use crate::metadata::extents::SPILL;
use annex_fabric::file::{Disk, FileConnector};
use annex_fabric::{Arena, ConnectError, Connector, Endpoint, Transport};
use annex_host::repeated;
use annex_shared::ids::{ClientId, Rkey, SessionKey};
use annex_shared::wire::{Event, Lease, Refusal, Request, VERSION, VerbsOffer, Welcome};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Leases are renewed three times in this time, which tells how much is free.
const LEASE_TTL: Duration = Duration::from_secs(3);

/// As what the pool lists it.
pub(crate) fn as_donor() -> DonorConfig {
    DonorConfig { name: Some(SPILL.to_owned()), address: SPILL.to_owned(), ..DonorConfig::default() }
}

/// Reaches donors, and the spill file as one of them.
pub(crate) struct WithSpill {
    pub donors: Arc<dyn Dialer>,
    pub spill: Arc<Spill>,
}

impl Dialer for WithSpill {
    fn dial(&self, donor: &DonorConfig, client: ClientId, slab_size: u64) -> Result<Dialed, DialError> {
        if donor.address != SPILL {
            return self.donors.dial(donor, client, slab_size);
        }
        let disk = self.spill.disk(slab_size)?;
        if disk.is_cut_off() {
            return Err(DialError::DiskHangs);
        }
        let link = SpillLink { era: disk.era(), spill: self.spill.clone(), disk, slab_size };
        let (free_slabs, capacity_slabs) = link.room();
        let welcome = Welcome {
            version: VERSION as u16,
            name: SPILL.to_owned(),
            incarnation: self.spill.incarnation(),
            session: SessionKey(0),
            slab_size,
            capacity_slabs,
            free_slabs,
            lease_ttl_ms: LEASE_TTL.as_millis() as u64,
            labels: BTreeMap::new(),
            shm_socket: None,
            held: link.held(),
            resumed: None,
            verbs: VerbsOffer::No("it is a file".to_owned()),
        };
        Ok(Dialed { link: Box::new(link), welcome })
    }

    fn fabric(&self, to: &Welcomed<'_>) -> Result<Fabric, DialError> {
        if to.donor.address != SPILL {
            return self.donors.fabric(to);
        }
        let disk = self.spill.disk(to.welcome.slab_size)?;
        let why = format!("the file {}: used last", self.spill.path().display());
        let (path, rdma_failed) = (Arc::new(FileConnector(disk)), String::new());
        Ok(Fabric { path, why, rdma_failed, is_fallback: false, regions: Vec::new() })
    }

    fn try_rdma(&self, to: &Welcomed<'_>) -> Result<(), DialError> {
        self.donors.try_rdma(to)
    }
}

impl DataPath for FileConnector {
    fn transport(&self) -> Transport {
        Connector::transport(self)
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        Connector::open(self, arena)
    }

    fn prepare(&self, _: Rkey) -> Result<(), DialError> {
        Ok(())
    }

    fn forget(&self, _: Rkey) {}
}

/// A control connection that ends here. It breaks when the disk is cut off.
struct SpillLink {
    spill: Arc<Spill>,
    disk: Arc<Disk>,
    era: u64,
    slab_size: u64,
}

impl SpillLink {
    fn held(&self) -> Vec<Lease> {
        self.disk.lent().into_iter().map(|(slab, rkey)| Lease { slab, rkey }).collect()
    }

    /// Slabs that could be lent and slabs in all; what others have put on the disk meanwhile leaves
    /// less.
    fn room(&self) -> (u32, u32) {
        let capacity = self.spill.slabs(self.slab_size);
        let fits = u32::try_from(self.spill.available() / self.slab_size).unwrap_or(u32::MAX);
        (self.disk.free(capacity).min(fits), capacity)
    }

    fn is_up(&self) -> Result<(), DialError> {
        self.disk.look();
        self.spill.tell_of_trouble();
        if self.disk.is_cut_off() || self.disk.era() != self.era { Err(DialError::DiskHangs) } else { Ok(()) }
    }

    fn lease(&self) -> Event {
        let (_, capacity) = self.room();
        match self.disk.lend(capacity) {
            Ok(Some((slab, rkey))) => Event::Leased { slabs: vec![Lease { slab, rkey }] },
            Ok(None) => Event::Refused(Refusal::Full { capacity }),
            Err(error) => {
                let path = self.spill.path().display();
                self.disk.in_trouble(format!("it can't grow: {error}"));
                repeated!(WARN, "the spill file can't grow" of "", "the spill file {path} can't grow: {error}; make room on its file system");
                Event::Refused(Refusal::Full { capacity })
            }
        }
    }
}

impl Link for SpillLink {
    fn ask(&mut self, request: &Request) -> Result<Event, DialError> {
        self.is_up()?;
        Ok(match request {
            Request::Lease { .. } => self.lease(),
            Request::Renew => {
                let (free_slabs, capacity_slabs) = self.room();
                let held = self.held().into_iter().map(|l| l.slab).collect();
                Event::Renewed { held, free_slabs, capacity_slabs }
            }
            Request::Return { slabs } => {
                slabs.iter().for_each(|slab| self.disk.take_back(*slab));
                Event::Returned
            }
            Request::Hello { .. } => return Err(DialError::Confused),
        })
    }

    fn hear(&mut self) -> Result<Option<Event>, DialError> {
        self.is_up().map(|()| None)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.disk.cut_fd()
    }
}
