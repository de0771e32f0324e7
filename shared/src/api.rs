//! annexd's local API: HTTP + JSON on a Unix socket (`/run/annex/annexd.sock`). These types are its
//! bodies.
//!
//! | method and path | body | answer |
//! | --- | --- | --- |
//! | `GET /v1/status` | – | [`Status`] |
//! | `GET /v1/events`, `?after=SEQ` | – | `[`[`crate::event::Event`]`]`, the oldest first |
//! | `GET /v1/kv` | – | [`KvInfo`] |
//! | `GET /v1/slabs` | – | `[`[`SlabInfo`]`]` |
//! | `GET /v1/donors` | – | `[`[`DonorInfo`]`]` |
//! | `POST /v1/donors` | [`DonorRequest`] | [`DonorInfo`] |
//! | `DELETE /v1/donors/{name}` | – | [`DonorInfo`]; it is emptied first, which `GET` shows |
//! | `GET /v1/apps` | – | `[`[`AppInfo`]`]` |
//! | `POST /v1/apps` | [`AttachRequest`] | [`AppInfo`] |
//! | `POST /v1/regions` | [`RegionRequest`] | [`AppInfo`]; the region is one of the process that asks |
//! | `PUT /v1/apps/{name}/limit` | [`LimitRequest`] | [`AppInfo`] |
//! | `DELETE /v1/apps/{name}` | – | lines of [`Progress`], the last one `Done` or `Failed` |
//!
//! `{name}` is an app's name, its id, or the PID of one of its processes. An error is an
//! [`ApiError`] with a 4xx or 5xx status. The peer's credentials decide what it may do: root and
//! members of group `annex` everything, others only with processes of their own.

use crate::condition::{Condition, ConditionKind, Severity};
use crate::donor::TransportChoice;
use crate::transport::Transport;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub use crate::limit::{
    LEAST_BARE_LIMIT, Limit, LimitError, Local, StallTarget, format_bytes, format_seconds, format_share, parse_bytes,
};

/// What the spill file is called among the donors, and its address there: no `host:port`.
pub const SPILL: &str = "spill";

/// Where annexd listens unless told otherwise.
pub const SOCKET: &str = "/run/annex/annexd.sock";

/// The environment variable `annex run` sets in the command it starts; children that daemonise are
/// recognised by it. Its value is the app's id.
pub const APP_ENV: &str = "ANNEX_APP";

/// `annex run` limits its program's CPU time under a real-time policy to this plus the app's id, in
/// microseconds: a limit that nothing ever meets (146,000 years). Whatever the program starts
/// inherits it, through fork, exec and setsid, so annexd knows the app of a daemon that has left
/// its parents. (What it was started with in its environment may be overwritten: many programs put
/// a title there.)
pub const APP_MARK: u64 = 1 << 62;

/// What to manage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A running process and everything it starts from now on, and the children it has.
    Pid(i32),
    /// A process that is about to exec the program the user asked for (`annex run`): its present
    /// image is not attached.
    Launch(i32),
    /// All processes of a systemd unit's cgroup.
    Unit(String),
    /// All processes of a cgroup and of those below it: its folder, or its path from the root of
    /// the cgroups on. annexd writes the folder down.
    Cgroup(String),
    /// All processes of a container: its name, its id, or the beginning of its id.
    Container(String),
    /// A region of a process that takes its faults itself (`annex-client`), and nothing else of it.
    /// Addresses in bytes.
    Region { pid: i32, address: u64, length: u64 },
}

impl Target {
    /// Whether it is all that a cgroup has, now and later.
    pub fn is_cgroup(&self) -> bool {
        matches!(self, Target::Unit(_) | Target::Cgroup(_) | Target::Container(_))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {
    pub target: Target,
    /// Must be unique; made from the command's name if absent.
    pub name: Option<String>,
    /// What the process is about to exec ([`Target::Launch`]): the command's name, until the
    /// process has it.
    #[serde(default)]
    pub program: Option<String>,
    /// `None` = annexd's configured default.
    pub local: Option<Local>,
    /// Refuse with [`ErrorCode::NoDonors`] unless pages have somewhere to go now.
    #[serde(default)]
    pub require_donors: bool,
}

/// A region of the process that asks: a private anonymous mapping from `address` on for `length`
/// bytes. See [`crate::ring`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionRequest {
    pub address: u64,
    pub length: u64,
    /// The numbers of the ring and of the eventfd that rings for annexd, in the asking process.
    pub ring: i32,
    pub bell: i32,
    /// Must be unique; made from the process's name if absent.
    pub name: Option<String>,
    /// `None` = annexd's configured default; a share is one of the region.
    pub local: Option<Limit>,
}

/// The shortest region, in bytes: what is shorter costs more than it brings.
pub const SHORTEST_REGION: u64 = 64 << 10;
/// The longest: as much as a page table of annexd's covers.
pub const LONGEST_REGION: u64 = 2 << 40;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRequest {
    pub local: Local,
}

/// One app, as `annex apps` shows it. All sizes in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppInfo {
    /// Unique for this annexd: what `ANNEX_APP` holds.
    pub id: u64,
    pub name: String,
    /// Its processes' PIDs, the first one first.
    pub pids: Vec<i32>,
    pub uid: u32,
    /// The limit now, whether it is fixed or annexd finds it.
    pub local: Limit,
    /// Of a limit that annexd finds (`--local auto`): absent if it is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoInfo>,
    /// Anonymous memory resident now.
    pub resident: u64,
    /// In the pool and not resident.
    pub evicted: u64,
    pub state: AppState,
    /// Why eviction stands still or something is left alone, in a sentence; empty if all is well.
    pub note: String,
    pub faults: Faults,
    /// Pages evicted since attach, and how many of them needed no write because the pool still had
    /// them.
    pub pages_evicted: u64,
    pub pages_clean: u64,
    /// All-zero pages that were dropped without being sent.
    pub pages_zero: u64,
    /// Pages that came back from the pool since attach, neighbours that were read along included.
    #[serde(default)]
    pub pages_in: u64,
    /// Of those, the ones that no fault had asked for.
    #[serde(default)]
    pub pages_prefetched: u64,
    /// What of them is judged by a page that the same guess would have brought next; and what of
    /// that was right, because that page was wanted. The rest was of no use, or is not known to
    /// have been yet.
    #[serde(default)]
    pub prefetch_samples: u64,
    #[serde(default)]
    pub prefetch_hits: u64,
}

impl AppInfo {
    /// The limit as listings show it: `512 MiB`, `50%`, `auto (512 MiB)`.
    pub fn limit_text(&self) -> String {
        if self.auto.is_some() { format!("auto ({})", self.local) } else { self.local.to_string() }
    }
}

/// How annexd finds an app's limit. Shares of the time: 0.01 is 1 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoInfo {
    /// What its threads may wait for pages of the pool.
    pub target: f64,
    /// What they waited lately, all threads added up: in the last second or so.
    pub stall: f64,
    /// What is done about it and why, in a few words.
    pub doing: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AppState {
    /// `annex run` registered it and the command has not started yet, or no process has grown
    /// enough to need a stub.
    Waiting,
    Running,
    /// Being brought back.
    Detaching,
}

/// Page faults served from the pool since attach.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Faults whose page came from the pool.
    pub major: u64,
    /// Faults on pages that were never evicted, zero-filled by annexd.
    pub zero: u64,
    /// From the read of the fault message to the installed page, in microseconds (pool faults
    /// only).
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// The same as counts, as in [`TransportInfo`], and all of it together: what threads waited.
    #[serde(default)]
    pub latency_us: Vec<(u64, u64)>,
    #[serde(default)]
    pub latency_sum_us: f64,
}

/// `annex status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: i32,
    pub uptime_s: u64,
    pub kernel: String,
    pub replicas: u8,
    pub donors: Vec<DonorInfo>,
    pub pool: PoolInfo,
    pub workers: WorkersInfo,
    /// This host's certificate; absent without `[tls]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateInfo>,
    /// Memory annexd itself uses for each evicted page, in bytes; absent while nothing is evicted.
    pub overhead_per_page: Option<f64>,
    /// annexd's own CPU time since start, in seconds.
    pub cpu_s: f64,
    pub apps: Vec<AppInfo>,
    /// How it all stands, what explains most first; the health line is made of these.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// The ordinary users who have apps, and what those take.
    #[serde(default)]
    pub users: Vec<UserInfo>,
    /// Everything a user should know and might not notice: a fallback, a lost donor, a full pool.
    pub warnings: Vec<String>,
}

impl Status {
    /// In one sentence: is anything lost or at risk, and what is being done about it.
    pub fn health(&self) -> String {
        let Some((first, others)) = self.conditions.split_first() else { return "not told".to_owned() };
        match others.iter().find(|other| other.kind == ConditionKind::DonorAway) {
            Some(away) => format!("{}; {}", first.message, away.message),
            None => first.message.clone(),
        }
    }

    /// Of the worst condition: what `annex status --check` exits with.
    pub fn severity(&self) -> Severity {
        self.conditions.iter().map(|condition| condition.severity).max().unwrap_or_default()
    }
}

/// An ordinary user, and what all their apps together take and may take, in bytes (`[users]` in
/// annexd's configuration).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserInfo {
    pub uid: u32,
    pub apps: u32,
    pub apps_max: u32,
    /// Page tables.
    pub table_bytes: u64,
    pub table_max: u64,
    /// Pages that have bytes in the pool, one copy counted.
    pub pool_bytes: u64,
    pub pool_max: u64,
}

/// The KV API: what it holds and how it does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KvInfo {
    pub enabled: bool,
    /// Addresses and sockets.
    pub listens: Vec<String>,
    /// Where it can't listen, and why; each is tried again every second.
    #[serde(default)]
    pub failed: Vec<String>,
    /// Thousandths of the keys of an annexd before that are taken over; 1000: all there are.
    pub loaded: u64,
    pub keys: u64,
    /// Bytes of records, one replica counted.
    pub used: u64,
    /// Bytes of pool that they lie in: what is more than `used` is fragmentation.
    pub held: u64,
    /// What `used` may grow to; 0: as far as the pool has room.
    pub limit: u64,
    /// Bytes of the pool that are kept for it, and what it may take at most.
    #[serde(default)]
    pub pool_min: u64,
    #[serde(default)]
    pub pool_max: u64,
    /// Which keys go when `limit` or the pool's room is reached.
    pub policy: String,
    /// annexd's own memory: for the index and the table, and for values that were read lately.
    pub local: u64,
    pub cached: u64,
    pub hits: u64,
    pub misses: u64,
    /// Of the hits, those that needed no donor.
    pub cache_hits: u64,
    pub expired: u64,
    pub evicted: u64,
    /// Keys that no replica had when they were taken over.
    pub lost: u64,
    /// Connections, the bytes of annexd's memory that they hold (requests, answers, values on the
    /// way), and how many these may be; 0: any.
    #[serde(default)]
    pub clients: u64,
    #[serde(default)]
    pub client_memory: u64,
    #[serde(default)]
    pub client_memory_limit: u64,
    /// Connections that were closed because all held too much.
    #[serde(default)]
    pub clients_evicted: u64,
    /// Bytes on each donor, by its name.
    pub donors: std::collections::BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DonorInfo {
    pub name: String,
    pub address: String,
    pub state: DonorState,
    /// The transport in use and why it was chosen.
    pub transport: Option<Transport>,
    pub why: String,
    /// Pages are encrypted on their way: TCP with TLS.
    #[serde(default)]
    pub encrypted: bool,
    pub slabs_held: u32,
    pub slabs_free: u32,
    pub slabs_capacity: u32,
    /// Bytes of ours that are in use there.
    pub used: u64,
    pub reads: u64,
    pub writes: u64,
    pub errors: u64,
    pub checksum_errors: u64,
    /// Pages that gave wrong bytes here and were rewritten from another replica.
    #[serde(default)]
    pub healed: u64,
    /// It is to be removed: what lies on it is being moved elsewhere.
    #[serde(default)]
    pub draining: bool,
    /// How long reads there take lately, in microseconds: a moving mean. 0 = none within a minute.
    #[serde(default)]
    pub read_us: u64,
    /// Why it lends no slab more, by its own word; empty if it was not asked, or does lend.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refusal: String,
    /// Why RDMA, which both hosts have, is not used; empty if it is used or can't be had.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rdma_failed: String,
    /// What went over each transport since annexd started.
    #[serde(default)]
    pub traffic: Vec<TransportInfo>,
}

impl DonorInfo {
    /// It is no machine but this host's spill file.
    pub fn is_spill(&self) -> bool {
        self.address == SPILL
    }
}

/// What went over one transport to a donor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TransportInfo {
    pub transport: Transport,
    /// Connections there are now; with verbs, queue pairs.
    #[serde(default)]
    pub connections: u32,
    /// Operations that succeeded.
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Operations that failed, by the fabric's kind of error; with verbs also by the device's
    /// status (`IBV_WC_…`).
    pub errors: std::collections::BTreeMap<String, u64>,
    /// Of operations that succeeded, from posting to completion, in microseconds.
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// The same as counts: (less than so many microseconds, how many), by doublings from 1 µs;
    /// those of 0 are left out.
    pub latency_us: Vec<(u64, u64)>,
    /// Each kind of operation for itself.
    #[serde(default)]
    pub operations: Vec<OperationInfo>,
}

/// Operations of one kind that succeeded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperationInfo {
    /// `read`, `write` or `compare_swap`.
    pub operation: String,
    pub count: u64,
    pub bytes: u64,
    /// As in [`TransportInfo`].
    pub latency_us: Vec<(u64, u64)>,
    pub latency_sum_us: f64,
}

/// One more donor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DonorRequest {
    /// `host:port` of its agent.
    pub address: String,
    /// The agent's own name if absent.
    #[serde(default)]
    pub name: Option<String>,
    /// The best one if absent.
    #[serde(default)]
    pub transport: Option<TransportChoice>,
    /// Whether TCP will do where RDMA can't be had; true if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_fallback: Option<bool>,
    /// A fault plan, for tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DonorState {
    Connecting,
    Up,
    /// Was up; its replicas are lost.
    Lost,
}

/// A host's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateInfo {
    /// `annex://CLUSTER/ROLE/NAME`.
    pub name: String,
    /// In seconds since 1970.
    pub expires: u64,
    /// Both, as `annex://corp/client/web until 2027-02-26`.
    pub summary: String,
    /// What is to be known of it, such as that it expires soon; empty if nothing is.
    pub warning: String,
    /// It opens nothing new now.
    pub is_invalid: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Bytes of application memory the extents held now could take.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    pub extents: u32,
    pub degraded_extents: u32,
    /// Extents with no replica left: their pages can't be read.
    pub lost_extents: u32,
    /// Degraded extents without a live replica that wait for a donor to come back; programs that
    /// touch their pages wait too.
    #[serde(default)]
    pub waiting_extents: u32,
    /// What is written is encrypted first.
    #[serde(default)]
    pub sealed: bool,
    /// Programs get no more of it.
    pub full: bool,
    /// Why it is full and what to do about it, in a sentence; empty if it is not.
    #[serde(default)]
    pub lack: String,
    /// The second half of that: what to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lack_remedy: String,
    /// Of the degraded extents, those whose pages have one copy left.
    #[serde(default)]
    pub last_copy_extents: u32,
    /// Replicas that are being filled, or wait for their donor to come back.
    #[serde(default)]
    pub syncing_replicas: u32,
    #[serde(default)]
    pub stale_replicas: u32,
    /// Replicas that are to leave their donor (recalled, removed, evened out) and have not yet.
    #[serde(default)]
    pub moving_replicas: u32,
    /// Of those, the ones that no other donor has room for.
    #[serde(default)]
    pub stuck_replicas: u32,
    /// Bytes to be copied until every extent has all its replicas, and the seconds that takes at
    /// the configured rate.
    #[serde(default)]
    pub repair_left: u64,
    #[serde(default)]
    pub repair_eta_s: u64,
    /// Since start: bytes copied to new or returned replicas, pages rewritten after wrong bytes,
    /// pages looked at by the scrubber, reads that went to a second replica because the first was
    /// slow.
    #[serde(default)]
    pub repaired: u64,
    #[serde(default)]
    pub healed_pages: u64,
    #[serde(default)]
    pub scrubbed_pages: u64,
    #[serde(default)]
    pub hedged_reads: u64,
    /// Pages that no replica could give when they were to be copied.
    #[serde(default)]
    pub lost_pages: u64,
    /// Bytes that lie in the spill file because too few donors have room for them or are up.
    #[serde(default)]
    pub spilled: u64,
    /// The spill file, if pages lie there.
    #[serde(default)]
    pub spill_file: Option<PathBuf>,
    /// The last error of the disk under the spill file, if it is younger than ten minutes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub spill_trouble: String,
    /// Bytes that the backups in the spill file do not have yet.
    #[serde(default)]
    pub backup_lag: u64,
    /// Extents with two replicas on one host or rack, by the donors' labels.
    #[serde(default)]
    pub crowded_extents: u32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkersInfo {
    pub fault_workers: u32,
    pub wait: String,
    pub evictors: u32,
}

/// One leased slab, as `annex slabs` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SlabInfo {
    pub donor: String,
    pub slab: u32,
    pub extent: u32,
    pub replica: u8,
    pub size: u64,
    pub used: u64,
    pub transport: Option<Transport>,
    /// `live`, `syncing` (being filled), `stale` (may come back), `backup` (follows in the spill
    /// file) or `lost`.
    pub state: String,
}

/// One line of a long operation's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// `done` of `total` bytes.
    Step {
        what: String,
        done: u64,
        total: u64,
    },
    Done,
    Failed(ApiError),
}

/// What went wrong, on what, why, and what to do. `annex` prints it and exits with `exit_code`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: ErrorCode,
    /// A lower-case sentence that names the thing and the cause.
    pub message: String,
    /// What the user can do; may be empty.
    pub remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    NotFound,
    Forbidden,
    AlreadyAttached,
    /// The target can't be managed: 32-bit, traced, gone, a kernel thread.
    Unsuitable,
    /// The kernel or the host lacks something.
    Unsupported,
    NoDonors,
    /// Local memory or pool space is missing.
    NoMemory,
    BadRequest,
    /// annexd is stopping, or not there.
    Unavailable,
    Internal,
}
