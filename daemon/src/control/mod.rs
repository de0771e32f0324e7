//! The control plane: what people and programs may ask of a running annexd, over HTTP + JSON on a Unix socket.
//!
//! - [`socket`]: the listening socket; replaces a stale one, refuses to displace a live annexd.
//! - [`access`]: who the peer is and what it may do. Pure decisions on credentials the kernel vouches for.
//! - [`server`]: the routes of [`annex_shared::api`], and nothing but: every request ends in one call of a trait below.
//! - `progress`: the answer of a long operation, line by line.
//! - [`pool`]: the pool as seen from here.
//! - [`stop`]: the orderly stop, which brings every page back before annexd goes.
//! - [`host`]: what annexd needs of its host, checked and set up at start.
//!
//! The control plane knows the pager as [`Apps`] and the pool as [`Donors`]; both can be scripted, and the tests here and
//! those of the `annex` command do that. It runs on one tokio thread that sleeps while nobody asks; calls into the
//! traits may block and so run on tokio's blocking threads, never on that one. No data-plane thread waits for it.

pub mod access;
pub mod host;
pub mod pool;
mod progress;
pub mod scripted;
pub mod server;
pub mod socket;
pub mod stop;
#[cfg(test)]
mod tests;
pub mod watchdog;

pub use access::Operators;
pub use server::Control;
pub use socket::{BindError, ControlSocket};

use crate::kv::Kv;
use annex_shared::api::{
    ApiError, AppInfo, AttachRequest, DonorInfo, DonorRequest, KvInfo, Limit, PoolInfo, Progress, RegionRequest,
    SlabInfo, WorkersInfo,
};

/// Who asks: the peer of a control connection, as the kernel recorded it at `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// To what belongs to this user wholly: see [`access::Authority`].
    pub confined: bool,
}

/// What the control plane asks of the pager. Calls may block for as long as the work takes; they run on blocking threads.
pub trait Apps: Send + Sync + 'static {
    /// Starts to manage a process, a process about to exec, or a unit.
    fn attach(&self, request: &AttachRequest, caller: Caller) -> Result<AppInfo, ApiError>;
    /// Starts to manage a region of the process that asks.
    fn open_region(&self, request: &RegionRequest, caller: Caller) -> Result<AppInfo, ApiError>;
    /// Brings an app back wholly into local memory and lets go of it.
    fn detach(&self, app: u64, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError>;
    fn set_limit(&self, app: u64, limit: Limit) -> Result<AppInfo, ApiError>;
    fn apps(&self) -> Vec<AppInfo>;
    /// Finds an app by name, id or the PID of one of its processes.
    fn find(&self, name: &str) -> Option<AppInfo>;
    fn workers(&self) -> WorkersInfo;
    /// Memory of the page tables, in bytes.
    fn overhead_bytes(&self) -> u64;
    /// What has stopped making progress, in words; `None` while all is well.
    fn stalled(&self) -> Option<String>;
    /// Detaches everything, for an orderly stop; an error says what is missing.
    fn detach_all(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError>;
}

/// What the control plane asks of the KV API.
pub trait Keys: Send + Sync + 'static {
    fn info(&self) -> KvInfo;
}

impl Keys for Kv {
    fn info(&self) -> KvInfo {
        Kv::info(self)
    }
}

/// What the control plane asks of the pool.
pub trait Donors: Send + Sync + 'static {
    fn donors(&self) -> Vec<DonorInfo>;
    fn add_donor(&self, request: &DonorRequest) -> Result<DonorInfo, ApiError>;
    /// Begins to; what lies there is moved elsewhere first.
    fn remove_donor(&self, name: &str) -> Result<DonorInfo, ApiError>;
    fn slabs(&self) -> Vec<SlabInfo>;
    fn info(&self) -> PoolInfo;
    fn warnings(&self) -> Vec<String>;
    /// Whether enough donors are up to take pages; the error names those that are missing and why.
    fn is_usable(&self) -> Result<(), ApiError>;
    fn replicas(&self) -> u8;
    /// Memory annexd uses for the pool's tables, in bytes.
    fn metadata_bytes(&self) -> u64;
}
