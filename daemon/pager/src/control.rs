//! What the control plane may ask of the pager, and for whom.

use annex_shared::api::{ApiError, AppInfo, AttachRequest, Local, Progress, RegionRequest, UserInfo, WorkersInfo};

/// Who asks: the peer of a control connection, as the kernel recorded it at `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// To what belongs to this user wholly.
    pub confined: bool,
}

/// What the control plane asks of the pager. Calls may block for as long as the work takes; they
/// run on blocking threads.
pub trait Apps: Send + Sync + 'static {
    /// Starts to manage a process, a process about to exec, or a unit.
    fn attach(&self, request: &AttachRequest, caller: Caller) -> Result<AppInfo, ApiError>;
    /// Starts to manage a region of the process that asks.
    fn open_region(&self, request: &RegionRequest, caller: Caller) -> Result<AppInfo, ApiError>;
    /// Brings an app back wholly into local memory and lets go of it.
    fn detach(&self, app: u64, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError>;
    fn set_limit(&self, app: u64, local: Local) -> Result<AppInfo, ApiError>;
    fn apps(&self) -> Vec<AppInfo>;
    /// Finds an app by name, id or the PID of one of its processes.
    fn find(&self, name: &str) -> Option<AppInfo>;
    /// The ordinary users who have apps, with what they take and may take.
    fn users(&self) -> Vec<UserInfo>;
    fn workers(&self) -> WorkersInfo;
    /// Memory of the page tables, in bytes.
    fn overhead_bytes(&self) -> u64;
    /// What has stopped making progress, in words; `None` while all is well.
    fn stalled(&self) -> Option<String>;
    /// Detaches everything, for an orderly stop; an error says what is missing.
    fn detach_all(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError>;
}
