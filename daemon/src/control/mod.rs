//! The control plane: what people and programs may ask of a running annexd, over HTTP + JSON on a
//! Unix socket.
//!
//! - [`socket`]: the listening socket; replaces a stale one, refuses to displace a live annexd.
//! - [`access`]: who the peer is and what it may do. Pure decisions on credentials the kernel
//!   vouches for.
//! - [`server`]: the routes of [`annex_shared::api`], and nothing but: every request ends in one
//!   call of a trait below.
//! - `progress`: the answer of a long operation, line by line.
//! - [`pool`]: the pool as seen from here.
//! - [`running`]: the annexd that runs, as its successor sees it.
//! - [`stop`]: the orderly stop, which brings every page back before annexd goes.
//! - [`host`]: what annexd needs of its host, checked and set up at start.
//!
//! The control plane knows the pager as [`Apps`] and the pool as [`Donors`]; both can be scripted,
//! and the tests here and those of the `annex` command do that. It runs on one tokio thread that
//! sleeps while nobody asks; calls into the traits may block and so run on tokio's blocking
//! threads, never on that one. No data-plane thread waits for it.

pub mod access;
pub mod host;
pub mod pool;
mod progress;
pub mod running;
pub mod server;
pub mod socket;
pub mod stop;
pub mod watchdog;

pub use access::Operators;
pub use server::Control;
pub use socket::{BindError, ControlSocket};

pub use annex_pager::control::{Apps, Caller};

use annex_kv::Kv;
use annex_shared::api::{
    ApiError, CertificateInfo, DonorInfo, DonorRequest, KvInfo, PoolInfo, SlabInfo, TransportInfo,
};

/// What the control plane asks of the KV API.
pub trait Keys: Send + Sync + 'static {
    fn info(&self) -> KvInfo;
    /// The same without the bytes on each donor, for which all log pages are looked at.
    fn counts(&self) -> KvInfo;
}

impl Keys for Kv {
    fn info(&self) -> KvInfo {
        Kv::info(self)
    }

    fn counts(&self) -> KvInfo {
        Kv::counts(self)
    }
}

/// What the control plane asks of the pool.
pub trait Donors: Send + Sync + 'static {
    fn donors(&self) -> Vec<DonorInfo>;
    fn add_donor(&self, request: &DonorRequest) -> Result<DonorInfo, ApiError>;
    /// Begins to; what lies there is moved elsewhere first.
    fn remove_donor(&self, name: &str) -> Result<DonorInfo, ApiError>;
    /// What went over each transport, to all donors that there were.
    fn traffic(&self) -> Vec<TransportInfo>;
    fn slabs(&self) -> Vec<SlabInfo>;
    fn info(&self) -> PoolInfo;
    /// This host's certificate; `None` without `[tls]`.
    fn certificate(&self) -> Option<CertificateInfo>;
    fn warnings(&self) -> Vec<String>;
    /// Whether enough donors are up to take pages; the error names those that are missing and why.
    fn is_usable(&self) -> Result<(), ApiError>;
    fn replicas(&self) -> u8;
    /// Memory annexd uses for the pool's tables, in bytes.
    fn metadata_bytes(&self) -> u64;
}
