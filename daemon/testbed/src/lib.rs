//! A pager and a pool that follow a script, for the tests of the control plane and of the `annex`
//! command.

use annex_daemon::control::{Apps, Caller, Donors};
use annex_shared::api::{
    ApiError, AppInfo, AppState, AttachRequest, AutoInfo, CertificateInfo, DonorInfo, DonorRequest, DonorState,
    ErrorCode, Faults, Limit, Local, OperationInfo, PoolInfo, Progress, RegionRequest, SlabInfo, Target, TransportInfo,
    UserInfo, WorkersInfo,
};
use annex_shared::transport::Transport;
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;

/// What every scripted app has resident when it is attached.
pub const RESIDENT: u64 = 1 << 30;

/// A pager without processes. Each look at the apps moves half of what is above an app's limit to
/// the pool.
pub struct ScriptedApps {
    script: Mutex<Script>,
    stops: watch::Sender<u32>,
}

#[derive(Default)]
struct Script {
    apps: Vec<AppInfo>,
    next_id: u64,
    attach_error: Option<ApiError>,
    detach_error: Option<ApiError>,
    stops_to_refuse: u32,
    hold: Option<Receiver<()>>,
    detach_hold: Option<Receiver<()>>,
    is_held: bool,
    /// Apps shrink by this at each look instead of by half of what is above their limit.
    step: Option<u64>,
    last_caller: Option<Caller>,
    panic_on_limit: bool,
}

impl Default for ScriptedApps {
    fn default() -> Self {
        ScriptedApps { script: Mutex::new(Script { next_id: 1, ..Script::default() }), stops: watch::Sender::new(0) }
    }
}

/// Holds something up until it is dropped.
pub struct Hold {
    _release: Sender<()>,
}

impl ScriptedApps {
    /// Adds an app as if it had been attached.
    pub fn add(&self, name: &str, pid: i32, uid: u32) -> AppInfo {
        let mut script = self.script.lock();
        let app = AppInfo {
            id: script.next_id,
            name: name.into(),
            pids: vec![pid],
            uid,
            local: Limit::Percent(50),
            auto: None,
            resident: RESIDENT,
            evicted: 0,
            state: AppState::Running,
            note: String::new(),
            faults: Faults { major: 1234, zero: 7, p50_us: 8.5, p99_us: 21.25, max_us: 300.0, ..Faults::default() },
            pages_evicted: 0,
            pages_clean: 0,
            pages_zero: 0,
            pages_in: 2345,
            pages_prefetched: 1111,
            prefetch_samples: 1000,
            prefetch_hits: 990,
        };
        script.next_id += 1;
        script.apps.push(app.clone());
        app
    }

    pub fn fail_attach(&self, error: ApiError) {
        self.script.lock().attach_error = Some(error);
    }

    pub fn fail_detach(&self, error: ApiError) {
        self.script.lock().detach_error = Some(error);
    }

    /// Makes the next change of a limit panic.
    pub fn panic_on_limit(&self) {
        self.script.lock().panic_on_limit = true;
    }

    /// The next `n` orderly stops are refused for lack of memory.
    pub fn refuse_stops(&self, n: u32) {
        self.script.lock().stops_to_refuse = n;
    }

    /// The next orderly stop waits until the hold is dropped.
    pub fn hold_stops(&self) -> Hold {
        let (tx, rx) = channel();
        self.script.lock().hold = Some(rx);
        Hold { _release: tx }
    }

    /// The next detach waits half way until the hold is dropped.
    pub fn hold_detach(&self) -> Hold {
        let (tx, rx) = channel();
        self.script.lock().detach_hold = Some(rx);
        Hold { _release: tx }
    }

    /// Whether a detach waits now.
    pub fn is_held(&self) -> bool {
        self.script.lock().is_held
    }

    /// From now on apps shrink by so many bytes at each look.
    pub fn shrink_by(&self, bytes: u64) {
        self.script.lock().step = Some(bytes);
    }

    pub fn stops_tried(&self) -> u32 {
        *self.stops.borrow()
    }

    pub async fn wait_for_stops(&self, n: u32) {
        let _ = self.stops.subscribe().wait_for(|tried| *tried >= n).await;
    }

    /// Who attached last.
    pub fn last_caller(&self) -> Option<Caller> {
        self.script.lock().last_caller
    }

    fn refused(message: &str) -> ApiError {
        ApiError {
            kind: ErrorCode::NoMemory,
            message: message.into(),
            remedy: "free memory on this host, or end some of the apps".into(),
        }
    }
}

impl Apps for ScriptedApps {
    fn attach(&self, request: &AttachRequest, caller: Caller) -> Result<AppInfo, ApiError> {
        let (pid, made_up) = match &request.target {
            Target::Pid(pid) | Target::Launch(pid) => (*pid, format!("app{pid}")),
            Target::Unit(name) | Target::Cgroup(name) | Target::Container(name) => (1, name.clone()),
            Target::Region { pid, .. } => (*pid, format!("region{pid}")),
        };
        {
            let mut script = self.script.lock();
            script.last_caller = Some(caller);
            if let Some(error) = script.attach_error.take() {
                return Err(error);
            }
            if script.apps.iter().any(|app| app.pids.contains(&pid)) {
                return Err(ApiError {
                    kind: ErrorCode::AlreadyAttached,
                    message: format!("process {pid} is attached already"),
                    remedy: String::new(),
                });
            }
        }
        let name = request.name.as_deref().or(request.program.as_deref()).unwrap_or(&made_up);
        let app = self.add(name, pid, caller.uid);
        match request.local {
            Some(local) => self.set_limit(app.id, local),
            None => Ok(app),
        }
    }

    fn open_region(&self, request: &RegionRequest, caller: Caller) -> Result<AppInfo, ApiError> {
        let RegionRequest { address, length, name, local, .. } = request.clone();
        let target = Target::Region { pid: caller.pid, address, length };
        let local = local.map(Local::from);
        self.attach(&AttachRequest { target, name, program: None, local, require_donors: true }, caller)
    }

    fn users(&self) -> Vec<UserInfo> {
        Vec::new()
    }

    fn detach(&self, app: u64, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError> {
        let error = self.script.lock().detach_error.take();
        let hold = self.script.lock().detach_hold.take();
        progress(Progress::Step { what: "bringing back".into(), done: 0, total: 512 << 20 });
        if let Some(hold) = hold {
            self.script.lock().is_held = true;
            let _ = hold.recv();
            self.script.lock().is_held = false;
        }
        for done in [0, 256 << 20, 512 << 20] {
            progress(Progress::Step { what: "bringing back".into(), done, total: 512 << 20 });
        }
        error.map_or_else(
            || {
                self.script.lock().apps.retain(|a| a.id != app);
                Ok(())
            },
            Err,
        )
    }

    fn set_limit(&self, app: u64, local: Local) -> Result<AppInfo, ApiError> {
        let mut script = self.script.lock();
        assert!(!std::mem::take(&mut script.panic_on_limit), "the script says so");
        let found = script.apps.iter_mut().find(|a| a.id == app);
        let app = found.ok_or_else(|| ApiError {
            kind: ErrorCode::NotFound,
            message: format!("app {app} has ended"),
            remedy: String::new(),
        })?;
        app.auto = match local {
            Local::Fixed(limit) => {
                app.local = limit;
                None
            }
            Local::Auto(target) => {
                Some(AutoInfo { target: target.share(), stall: 0.002, doing: "lowering: waited 0.2 % of 1 %".into() })
            }
        };
        Ok(app.clone())
    }

    fn apps(&self) -> Vec<AppInfo> {
        let mut script = self.script.lock();
        let step = script.step;
        for app in &mut script.apps {
            let total = app.resident + app.evicted;
            let limit = match app.local {
                Limit::Bytes(bytes) => bytes,
                Limit::Percent(percent) => total * u64::from(percent) / 100,
            };
            let above = app.resident.saturating_sub(limit);
            let now = if above > 4096 { step.unwrap_or(above / 2).min(above) } else { above };
            app.resident -= now;
            app.evicted += now;
            app.pages_evicted += now / 4096;
        }
        script.apps.clone()
    }

    fn find(&self, name: &str) -> Option<AppInfo> {
        let script = self.script.lock();
        let number: Option<u64> = name.parse().ok();
        let matches = |app: &&AppInfo| {
            app.name == name || number.is_some_and(|n| app.id == n || app.pids.iter().any(|pid| *pid as u64 == n))
        };
        script.apps.iter().find(matches).cloned()
    }

    fn workers(&self) -> WorkersInfo {
        WorkersInfo { fault_workers: 2, wait: "block".into(), evictors: 1 }
    }

    fn stalled(&self) -> Option<String> {
        None
    }

    fn overhead_bytes(&self) -> u64 {
        0
    }

    fn detach_all(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), ApiError> {
        let hold = self.script.lock().hold.take();
        if let Some(hold) = hold {
            let _ = hold.recv();
        }
        progress(Progress::Step { what: "bringing back".into(), done: 1, total: 1 });
        let refused = {
            let mut script = self.script.lock();
            let refused = script.stops_to_refuse > 0;
            script.stops_to_refuse = script.stops_to_refuse.saturating_sub(1);
            if !refused {
                script.apps.clear();
            }
            refused
        };
        self.stops.send_modify(|n| *n += 1);
        if refused { Err(ScriptedApps::refused("512 MiB of local memory are missing")) } else { Ok(()) }
    }
}

/// A pool with two donors, one of them lost until it is healed.
#[derive(Default)]
pub struct ScriptedDonors {
    error: Mutex<Option<ApiError>>,
    healed: Mutex<Option<[String; 2]>>,
}

impl ScriptedDonors {
    pub fn fail(&self, error: ApiError) {
        *self.error.lock() = Some(error);
    }

    /// Both donors are up from now on, at these addresses, and every page has its copies.
    pub fn heal(&self, addresses: [String; 2]) {
        *self.healed.lock() = Some(addresses);
    }
}

impl Donors for ScriptedDonors {
    fn donors(&self) -> Vec<DonorInfo> {
        let up = DonorInfo {
            name: "rack1-db7".into(),
            address: "10.0.0.7:7411".into(),
            state: DonorState::Up,
            transport: Some(Transport::Tcp),
            why: "not on this host: tcp".into(),
            encrypted: false,
            slabs_held: 16,
            slabs_free: 40,
            slabs_capacity: 56,
            used: 700 << 20,
            reads: 1_234_567,
            writes: 2_345_678,
            errors: 0,
            checksum_errors: 0,
            healed: 0,
            draining: false,
            read_us: 0,
            refusal: String::new(),
            rdma_failed: String::new(),
            traffic: Vec::new(),
        };
        let lost = DonorInfo {
            name: "rack2-db9".into(),
            address: "10.0.1.9:7411".into(),
            state: DonorState::Lost,
            transport: None,
            why: "connection refused".into(),
            ..up.clone()
        };
        if let Some([first, second]) = self.healed.lock().clone() {
            let other = DonorInfo { name: lost.name, address: second, ..up.clone() };
            return vec![DonorInfo { address: first, ..up }, other];
        }
        vec![up, lost]
    }

    fn add_donor(&self, request: &DonorRequest) -> Result<DonorInfo, ApiError> {
        let donor = self.donors().remove(0);
        let name = request.name.clone().unwrap_or_else(|| request.address.clone());
        Ok(DonorInfo { name, address: request.address.clone(), ..donor })
    }

    fn remove_donor(&self, name: &str) -> Result<DonorInfo, ApiError> {
        let found = self.donors().into_iter().find(|d| d.name == name);
        found.map(|d| DonorInfo { draining: true, ..d }).ok_or_else(|| ApiError {
            kind: ErrorCode::NotFound,
            message: format!("there is no donor {name}"),
            remedy: "annex donors lists them".into(),
        })
    }

    fn traffic(&self) -> Vec<TransportInfo> {
        let read = OperationInfo {
            operation: "read".into(),
            count: 3,
            bytes: 12288,
            latency_us: vec![(8, 2), (16, 1)],
            latency_sum_us: 20.0,
        };
        vec![TransportInfo {
            transport: Transport::Verbs,
            connections: 2,
            reads: 3,
            writes: 0,
            bytes_read: 12288,
            bytes_written: 0,
            errors: [("IBV_WC_RETRY_EXC_ERR".to_owned(), 1)].into(),
            p50_us: 6.0,
            p99_us: 12.0,
            max_us: 12.0,
            latency_us: read.latency_us.clone(),
            operations: vec![read],
        }]
    }

    fn slabs(&self) -> Vec<SlabInfo> {
        vec![SlabInfo {
            donor: "rack1-db7".into(),
            slab: 3,
            extent: 1,
            replica: 0,
            size: 64 << 20,
            used: 12 << 20,
            transport: Some(Transport::Tcp),
            state: "live".into(),
        }]
    }

    fn certificate(&self) -> Option<CertificateInfo> {
        None
    }

    fn info(&self) -> PoolInfo {
        let degraded = if self.healed.lock().is_some() { 0 } else { 16 };
        PoolInfo {
            capacity: 1 << 30,
            used: 700 << 20,
            extents: 16,
            degraded_extents: degraded,
            last_copy_extents: degraded,
            ..PoolInfo::default()
        }
    }

    fn warnings(&self) -> Vec<String> {
        if self.healed.lock().is_some() {
            return Vec::new();
        }
        vec!["donor rack2-db9 (10.0.1.9:7411) is lost: connection refused; 16 extents have one copy less".into()]
    }

    fn is_usable(&self) -> Result<(), ApiError> {
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    fn replicas(&self) -> u8 {
        2
    }

    fn metadata_bytes(&self) -> u64 {
        1 << 20
    }
}
