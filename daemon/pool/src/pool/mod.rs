//! The handle that the pager and the KV API hold.
//!
//! This file starts and ends the pool and makes lanes. The other files add to the handle, one
//! subject each:
//!
//! - `reserve`: which slots are taken and given up.
//! - `shares`: how programs and the KV API share the room.
//! - `members`: donors that come and go.
//! - `listings`: what listings show.
//! - `report`: what a user should know.

mod divide;
mod listings;
mod members;
mod report;
mod reserve;
mod shares;

pub use shares::Terms;

use crate::config::{ConfigError, DonorConfig, PoolConfig};
use crate::coordinator;
use crate::coordinator::news::News;
use crate::core::PoolCore;
use crate::donor::dial::{Dialer, NetDialer};
use crate::donor::view::Donor;
use crate::error::{LaneError, PoolError};
use crate::io::lane::Lane;
use crate::metadata::extents::{ExtentTable, SPILL};
use crate::metadata::recount::{References, recount};
use crate::metadata::slots::SlotTable;
use crate::spill::{Spill, WithSpill, as_donor};
use annex_identity::identity::Identity;
use annex_shared::api::DonorState;
use annex_shared::config::ByteSize;
use annex_shared::ids::ClientId;
use annex_shared::page::PAGE_SIZE;
use parking_lot::Mutex;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The pool's tables: fresh, or those of the annexd before.
pub enum PoolState<'a> {
    Fresh,
    /// Descriptors of an extent table and a slot table, as [`Pool::state_fds`] gave them.
    Saved {
        extents: OwnedFd,
        slots: OwnedFd,
        /// Tells every reference there is, once for each: what nobody refers to is free.
        references: References<'a>,
    },
}

/// See the module's header.
pub struct Pool {
    core: Arc<PoolCore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    taken_over: bool,
    shares: shares::Shares,
    identity: Option<Arc<Identity>>,
    spill: Option<Arc<Spill>>,
}

impl Pool {
    /// Starts the pool: connects to the donors in the background and waits for them a moment
    /// (`start_wait`), not for ever.
    pub fn start(config: PoolConfig, spill: Option<Arc<Spill>>, state: PoolState<'_>) -> Result<Arc<Pool>, PoolError> {
        let dialer = Arc::new(NetDialer::new(&config)?);
        Self::start_with(config, spill, state, dialer)
    }

    /// As [`Pool::start`], reaching donors through another dialer.
    pub fn start_with(
        config: PoolConfig,
        spill: Option<Arc<Spill>>,
        state: PoolState<'_>,
        mut dialer: Arc<dyn Dialer>,
    ) -> Result<Arc<Pool>, PoolError> {
        let mut config = config;
        config.check()?;
        let taken_over = matches!(state, PoolState::Saved { .. });
        let (extents, mut slots, unsettled) = match state {
            PoolState::Fresh => (ExtentTable::create(ClientId(rand::random()))?, SlotTable::create()?, Vec::new()),
            PoolState::Saved { extents, slots, references } => {
                let extents = ExtentTable::open(extents)?;
                let slots = SlotTable::open(slots)?;
                let unsettled = recount(&extents, &slots, references)?;
                (extents, slots, unsettled)
            }
        };
        // A file outlives programs and machines: nothing lies there in clear.
        slots.set_sealing(config.seal || spill.is_some());
        keep_slab_size(&mut config, &extents);
        let (donors, leaving) = Self::name_donors(&config, &extents, spill.is_some())?;
        dialer.know(extents.keys());
        let identity = dialer.identity();
        let mut spill_id = None;
        if let Some(spill) = &spill {
            let id = extents.spill().ok_or(ConfigError::TooManyDonors(config.donors.len() + 1))?;
            spill.inherit(extents.leases(id));
            spill_id = Some(id);
            dialer = Arc::new(WithSpill { donors: dialer, spill: spill.clone() });
        }
        let (coordinator, news) = mpsc::channel();
        let (repair, tasks) = mpsc::channel();
        let core = Arc::new(PoolCore::new(config, extents, slots, spill_id, coordinator, repair));
        donors.into_iter().for_each(|donor| {
            core.add_donor(donor);
        });
        if let Some(slots) = core.extents.slots_per_extent() {
            core.extents.live().for_each(|(extent, _)| core.slots.adopt(extent, slots));
        }
        let threads = coordinator::thread::start(&core, dialer, news, tasks)?;
        // A write that was under way when the annexd before ended may arrive yet.
        unsettled.into_iter().for_each(|run| core.tell(News::Discard(run)));
        let (threads, shares) = (Mutex::new(threads), shares::Shares::default());
        let pool = Arc::new(Pool { core, threads, taken_over, shares, identity, spill });
        leaving.into_iter().for_each(|donor| pool.empty(donor));
        if !taken_over {
            // Programs stand still meanwhile if there are any already; what they need waits for its
            // donor alone.
            pool.wait_for_donors();
        }
        Ok(pool)
    }

    /// A lane with an arena of `pages` page buffers. `name` is for logs.
    pub fn lane(self: &Arc<Self>, name: &str, pages: usize) -> Result<Lane, LaneError> {
        let mut lane = Lane::new(self.core.clone(), pages)?;
        // Endpoints come by mail. Those of donors that are up come at once, so a lane is ready to
        // use when its owner gets it.
        let up = self.donors().iter().filter(|d| d.state == DonorState::Up).count();
        let until = Instant::now() + self.core.config.control_timeout.0;
        let mut nothing = Vec::new();
        while lane.connected() < up && Instant::now() < until {
            lane.poll(&mut nothing);
            std::thread::sleep(Duration::from_millis(1));
        }
        tracing::debug!("lane {name}: {} of {up} donors connected", lane.connected());
        Ok(lane)
    }

    /// The tables' descriptors, to be kept where they outlive this process: (extents, slots).
    pub fn state_fds(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.core.extents.fd(), self.core.slots.fd())
    }

    /// True if the tables came from the annexd before.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// Gives everything back to the donors and ends the pool's threads. What is in the pool is
    /// lost.
    pub fn shutdown(&self) {
        self.core.stopping.store(true, Release);
        self.core.tell(News::Stop { give_back: true });
        self.join();
    }

    /// Ends the pool's threads and leaves the leases as they are, for the next annexd to take over
    /// with [`Pool::state_fds`].
    pub fn leave(&self) {
        self.core.stopping.store(true, Release);
        self.core.tell(News::Stop { give_back: false });
        self.join();
    }

    fn join(&self) {
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the pool panicked");
            }
        }
    }

    fn wait_for_donors(&self) {
        let until = Instant::now() + self.core.config.start_wait.0;
        let settled = |p: &Pool| p.core.donors().all(|d| d.view.lock().state == DonorState::Up);
        while !settled(self) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Does without a donor that the configuration names no more, as soon as what lies there is
    /// elsewhere.
    fn empty(&self, address: String) {
        match self.remove_donor(&address) {
            Ok(_) => tracing::warn!("donor {address} is not configured any more: its pages move to other donors"),
            Err(error) => tracing::warn!("donor {address} is not configured any more, and stays: {error}"),
        }
    }

    /// Gives every configured donor its number, the one it had before if there are saved tables.
    /// Also those that are not configured any more and have pages.
    fn name_donors(
        config: &PoolConfig,
        extents: &ExtentTable,
        has_spill: bool,
    ) -> Result<(Vec<Donor>, Vec<String>), PoolError> {
        for donor in &config.donors {
            extents.donor(&donor.address, false).ok_or(ConfigError::TooManyDonors(config.donors.len()))?;
        }
        // Numbered, and listed, after those that were there first.
        let spill = if has_spill { extents.spill() } else { None };
        let (mut donors, mut leaving) = (Vec::new(), Vec::new());
        for (id, address) in extents.donors() {
            let configured = config.donors.iter().find(|d| d.address == address).cloned();
            let added = || DonorConfig { address: address.clone(), ..DonorConfig::default() };
            let known = configured.or_else(|| extents.is_added_at_run_time(id).then(added));
            let known = if spill == Some(id) { Some(as_donor()) } else { known };
            let known = match known {
                None if extents.leases(id).is_empty() => None,
                None if address == SPILL => return Err(PoolError::SpillMissing),
                None => {
                    leaving.push(address.clone());
                    Some(added())
                }
                known => known,
            };
            donors.push(Donor::new(id, address, known));
        }
        Ok((donors, leaving))
    }
}

/// Pages lie in slabs of the size that they were put there with.
fn keep_slab_size(config: &mut PoolConfig, extents: &ExtentTable) {
    let configured = config.slab_size;
    let Some(slots) = extents.slots_per_extent() else { return };
    let size = ByteSize(u64::from(slots) * PAGE_SIZE as u64);
    if configured.0 != 0 && configured != size {
        tracing::warn!(
            "slab_size = {configured} in [pool] is for later: pages lie in slabs of {size}, until annexd is stopped"
        );
        config.slab_size = size;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core.stopping.store(true, Release);
        self.core.tell(News::Stop { give_back: false });
        self.join();
    }
}
