//! The agent's own control API, for who administers this host: HTTP and JSON on a Unix socket.
//!
//! | method and path | does | answer |
//! | --- | --- | --- |
//! | `GET /v1/status` | – | [`Status`] |
//! | `PUT /v1/drain` | lends nothing any more and asks for everything back | [`Status`] |
//! | `DELETE /v1/drain` | calls that off | [`Status`] |
//!
//! `curl --unix-socket /run/annex/agent-control.sock http://agent/v1/status` works. An error is an
//! [`ApiError`] with a 4xx status. Only root and the user that the agent runs as are served: the
//! socket is theirs, and the peer's credentials are looked at as well.

mod client;
mod server;
mod show;

pub use client::{CallError, call};
pub use server::{serve, status};
pub use show::{drain, print_status};

use annex_shared::api::CertificateInfo;
use annex_shared::ids::SlabId;
use serde::{Deserialize, Serialize};

/// An agent, as it sees itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub name: String,
    pub incarnation: String,
    pub address: String,
    pub shm_socket: Option<String>,
    /// The RDMA device, port and GID that are offered, or why none is.
    pub rdma: String,
    /// What keeps the memory while the agent is restarted.
    pub kept_by: String,
    /// Absent without `[tls]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateInfo>,
    pub draining: bool,
    /// It has been told to stop.
    pub closing: bool,
    pub pressure: Pressure,
    /// Why the slab that was to be made last could not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortcoming: Option<String>,
    /// Bytes.
    pub slab_size: u64,
    pub slabs: Slabs,
    pub clients: Vec<Client>,
}

/// The host's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// Nothing is lent, and slabs are recalled as needed.
    pub pressed: bool,
    /// Bytes.
    pub available: u64,
    pub headroom: u64,
    /// Share of the last ten seconds in which some program waited for memory, if the kernel tells.
    pub stall_percent: Option<f32>,
}

/// How many slabs are in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slabs {
    pub capacity: u32,
    pub lent: u32,
    /// Of those lent: wanted back.
    pub recalled: u32,
    /// Free, with memory.
    pub spare: u32,
    /// Being zeroed or freed.
    pub cleaning: u32,
    /// Free, without memory.
    pub vacant: u32,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    pub client: String,
    pub host: String,
    pub connected: bool,
    pub slabs: Vec<SlabId>,
    /// Unless it renews.
    pub leases_end_in_ms: u64,
    pub recalled: Vec<Recalled>,
}

/// A slab that is wanted back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalled {
    pub slab: SlabId,
    /// Then it is revoked. A drain extends it as long as it lasts.
    pub revoked_in_ms: u64,
}

#[cfg(test)]
impl Status {
    /// An agent that lends and has nothing to complain of.
    pub(crate) fn sample() -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            name: "oak".into(),
            incarnation: "x".into(),
            address: "10.0.0.5:7411".into(),
            shm_socket: None,
            rdma: "no RDMA device here".into(),
            kept_by: "systemd's descriptor store".into(),
            certificate: None,
            draining: false,
            closing: false,
            pressure: Pressure { pressed: false, available: 3 << 30, headroom: 1 << 30, stall_percent: None },
            shortcoming: None,
            slab_size: 64 << 20,
            slabs: Slabs { capacity: 16, lent: 2, recalled: 0, spare: 1, cleaning: 0, vacant: 13 },
            clients: Vec::new(),
        }
    }
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    pub error: String,
}
