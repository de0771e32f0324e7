//! The routes of [`annex_shared::api`] over HTTP/1.1 on the control socket.
//!
//! One connection carries one request: a Unix socket connects in microseconds, and so nothing idle
//! needs to be kept. An ordinary user may hold [`CONNECTIONS_PER_USER`] connections and take
//! [`HEADER_TIMEOUT`] to say what they want, so that nobody can shut others out of a socket that
//! everyone may connect to.
//!
//! A detach answers with one JSON line per step while it runs, and goes on to its end if the client
//! hangs up.

use super::access::{Authority, Operators, Peer};
use super::progress::{self, Lines};
use super::{Apps, Caller, Donors, Keys};
use crate::conditions::{Besides, conditions};
use crate::metrics::{Sources, snapshot};
use annex_host::{event, events, repeated};
use annex_metrics::Snapshot;
use annex_metrics::http::Server;
use annex_shared::api::{
    ApiError, AppInfo, AttachRequest, DonorInfo, DonorRequest, ErrorCode, LimitRequest, RegionRequest, SlabInfo,
    Status, Target,
};
use annex_shared::event::{Event, EventKind};
use annex_shared::page::PAGE_SIZE;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Extension, Path, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// How many connections one ordinary user may have open at a time.
pub const CONNECTIONS_PER_USER: u32 = 32;
/// How long a client may take to send its request's head.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests under way may take to finish once annexd is done with its apps.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// For so long a program that annexd ended is worth a word.
const STOPPED_LATELY: Duration = Duration::from_secs(3600);
/// The largest body any request needs is a fraction of this.
const MAX_BODY: usize = 16 << 10;
const MAX_NAME: usize = 64;

/// What the routes work on.
pub struct Control {
    pub apps: Arc<dyn Apps>,
    pub pool: Arc<dyn Donors>,
    /// None: the KV API is not enabled.
    keys: OnceLock<Arc<dyn Keys>>,
    /// What is shown over HTTP: metrics, the page.
    servers: Mutex<Vec<Server>>,
    operators: Operators,
    /// What annexd could not have of its host.
    shortcomings: Vec<String>,
    started: Instant,
    stopping: AtomicBool,
}

impl Control {
    pub fn new(
        apps: Arc<dyn Apps>,
        pool: Arc<dyn Donors>,
        operators: Operators,
        shortcomings: Vec<String>,
    ) -> Arc<Control> {
        let (started, stopping) = (Instant::now(), AtomicBool::new(false));
        let (keys, servers) = (OnceLock::new(), Mutex::default());
        Arc::new(Control { apps, pool, keys, servers, operators, shortcomings, started, stopping })
    }

    /// From now on there is a KV API.
    pub fn serve_keys(&self, keys: Arc<dyn Keys>) {
        // There is one for a whole life of annexd.
        let _ = self.keys.set(keys);
    }

    /// From now on this server is warned of when it can't serve.
    pub fn show(&self, server: Server) {
        self.servers.lock().push(server);
    }

    /// How annexd stands, with the apps of all users.
    pub fn whole_status(&self) -> Status {
        self.status(Authority::Everything)
    }

    /// The values of all metrics now.
    pub fn metrics(&self) -> Snapshot {
        let status = self.whole_status();
        let (slabs, traffic) = (self.pool.slabs(), self.pool.traffic());
        let kv = self.keys.get().map(|keys| keys.counts()).unwrap_or_default();
        let sources = Sources { status: &status, slabs: &slabs, traffic: &traffic, kv: &kv, events: &events::counts() };
        snapshot(&sources)
    }

    /// While set, nothing new is attached.
    pub fn set_stopping(&self, stopping: bool) {
        self.stopping.store(stopping, Ordering::SeqCst);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn attach(&self, request: &AttachRequest, caller: Caller, authority: Authority) -> Result<AppInfo, ApiError> {
        self.may_take(request.name.as_deref(), &request.target, authority)?;
        if request.require_donors {
            self.pool.is_usable()?;
        }
        self.apps.attach(request, Caller { confined: authority != Authority::Everything, ..caller })
    }

    fn open_region(&self, request: &RegionRequest, caller: Caller, authority: Authority) -> Result<AppInfo, ApiError> {
        let RegionRequest { address, length, .. } = *request;
        self.may_take(request.name.as_deref(), &Target::Region { pid: caller.pid, address, length }, authority)?;
        self.pool.is_usable()?;
        self.apps.open_region(request, Caller { confined: authority != Authority::Everything, ..caller })
    }

    /// Whether something new may be managed.
    fn may_take(&self, name: Option<&str>, target: &Target, authority: Authority) -> Result<(), ApiError> {
        if self.is_stopping() {
            return Err(ApiError {
                kind: ErrorCode::Unavailable,
                message: "annexd is stopping and takes nothing new".into(),
                remedy: "try again when it has been started anew".into(),
            });
        }
        name.map_or(Ok(()), check_name)?;
        authority.may_attach(target)
    }

    /// The app of this name, if it exists as far as the caller is concerned.
    fn find(&self, name: &str, authority: Authority) -> Result<AppInfo, ApiError> {
        self.apps.find(name).filter(|app| authority.covers(app)).ok_or_else(|| ApiError {
            kind: ErrorCode::NotFound,
            message: match authority {
                Authority::Everything => format!("there is no app '{name}'"),
                Authority::Own(_) => format!("you have no app '{name}'"),
            },
            remedy: "annex apps lists them".into(),
        })
    }

    fn visible_apps(&self, authority: Authority) -> Vec<AppInfo> {
        let mut apps = self.apps.apps();
        apps.retain(|app| authority.covers(app));
        apps
    }

    fn status(&self, authority: Authority) -> Status {
        let mut apps = self.apps.apps();
        let evicted_pages: u64 = apps.iter().map(|app| app.evicted / PAGE_SIZE as u64).sum();
        let overhead = self.apps.overhead_bytes() + self.pool.metadata_bytes();
        apps.retain(|app| authority.covers(app));
        let mut users = self.apps.users();
        users.retain(|user| authority == Authority::Everything || authority == Authority::Own(user.uid));
        let stalled = self.apps.stalled();
        let kv_failed = self.keys.get().map(|keys| keys.counts().failed).unwrap_or_default();
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id() as i32,
            uptime_s: self.started.elapsed().as_secs(),
            kernel: super::host::kernel_release(),
            replicas: self.pool.replicas(),
            donors: self.pool.donors(),
            pool: self.pool.info(),
            certificate: self.pool.certificate(),
            workers: self.apps.workers(),
            overhead_per_page: (evicted_pages > 0).then(|| overhead as f64 / evicted_pages as f64),
            cpu_s: super::host::cpu_seconds(),
            apps,
            conditions: Vec::new(),
            users,
            warnings: self
                .shortcomings
                .iter()
                .cloned()
                .chain(stalled.clone())
                .chain(self.pool.warnings())
                .chain(kv_failed.clone())
                .chain(self.servers.lock().iter().filter_map(Server::failure))
                .collect(),
        };
        let besides = Besides { stalled, kv_failed, stopped: lately_stopped(authority) };
        status.conditions = conditions(&status, &besides);
        status
    }
}

/// Programs that annexd ended within [`STOPPED_LATELY`], as far as the caller may know.
fn lately_stopped(authority: Authority) -> Vec<String> {
    let since = events::now_ms().saturating_sub(STOPPED_LATELY.as_millis() as u64);
    let is_one = |event: &Event| event.kind == EventKind::AppStopped && event.last_ms >= since;
    let events = events::after(0).into_iter().filter(|event| is_one(event) && authority.may_know(event));
    events.map(|event| event.cause).collect()
}

/// A name must not read as an id or a PID, and must be printable on one line.
fn check_name(name: &str) -> Result<(), ApiError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@:+".contains(c);
    let why = if name.is_empty() || name.len() > MAX_NAME {
        format!("it must have 1 to {MAX_NAME} characters")
    } else if name.bytes().all(|b| b.is_ascii_digit()) {
        "a number would be taken for an id or a PID".into()
    } else if !name.chars().all(plain) {
        "only letters, digits and . _ - @ : + are allowed".into()
    } else {
        return Ok(());
    };
    Err(bad_request(format!("can't use the name {name:?}: {why}"), "choose another with --name"))
}

/// Serves until `until` resolves, then lets the requests under way finish.
pub async fn serve(listener: UnixListener, control: Arc<Control>, until: impl Future<Output = ()>) {
    let router = router(control.clone());
    let users = Arc::new(Users::default());
    let mut connections = JoinSet::new();
    tokio::pin!(until);
    loop {
        tokio::select! {
            () = &mut until => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Some((peer, permit)) = users.admit(&stream) {
                        let service = TowerToHyperService::new(router.clone().layer(Extension(peer)));
                        connections.spawn(async move {
                            let connection = http1::Builder::new()
                                .keep_alive(false)
                                .timer(TokioTimer::new())
                                .header_read_timeout(HEADER_TIMEOUT)
                                .serve_connection(TokioIo::new(stream), service);
                            // A client that hangs up in the middle is no event.
                            let _ = connection.await;
                            drop(permit);
                        });
                    }
                }
                Err(error) => {
                    repeated!(WARN, "failed to accept a control connection" of "", %error, "failed to accept a control connection");
                    // Out of descriptors, most likely: the connection stays queued, so this would
                    // spin.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            },
        }
    }
    drop(listener);
    let finish = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS, finish).await;
}

/// How many connections each ordinary user has.
#[derive(Default)]
struct Users {
    open: Mutex<HashMap<u32, u32>>,
}

/// One of a user's connections, until dropped.
struct Permit {
    users: Arc<Users>,
    uid: u32,
}

impl Users {
    fn admit(self: &Arc<Self>, stream: &UnixStream) -> Option<(Peer, Permit)> {
        let peer = match Peer::of(stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "failed to learn who connected: hung up");
                return None;
            }
        };
        let uid = peer.caller.uid;
        let mut open = self.open.lock();
        let count = open.entry(uid).or_default();
        if uid != 0 && *count >= CONNECTIONS_PER_USER {
            return None;
        }
        *count += 1;
        drop(open);
        Some((peer, Permit { users: self.clone(), uid }))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.users.open.lock();
        if let Some(count) = open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

type Shared = State<Arc<Control>>;

fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/events", get(list_events))
        .route("/v1/kv", get(kv))
        .route("/v1/slabs", get(slabs))
        .route("/v1/donors", get(list_donors).post(add_donor))
        .route("/v1/donors/{name}", axum::routing::delete(remove_donor))
        .route("/v1/apps", get(list_apps).post(attach))
        .route("/v1/regions", axum::routing::post(open_region))
        .route("/v1/apps/{name}/limit", put(set_limit))
        .route("/v1/apps/{name}", axum::routing::delete(detach))
        .method_not_allowed_fallback(unknown_route)
        .fallback(unknown_route)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(control)
}

async fn status(State(control): Shared, Extension(peer): Extension<Peer>) -> Response {
    answer(control, peer, |control, _, authority| Ok(control.status(authority))).await
}

async fn list_events(State(control): Shared, Extension(peer): Extension<Peer>, uri: Uri) -> Response {
    answer(control, peer, move |_, _, authority| {
        let mut events = events::after(after(uri.query())?);
        events.retain(|event| authority.may_know(event));
        Ok::<Vec<Event>, _>(events)
    })
    .await
}

/// The number in `after=N`; 0 if there is no query.
fn after(query: Option<&str>) -> Result<u64, ApiError> {
    let Some(query) = query else { return Ok(0) };
    query.strip_prefix("after=").and_then(|number| number.parse().ok()).ok_or_else(|| {
        bad_request(format!("can't make sense of ?{query}"), "give ?after=NUMBER of an event, or nothing")
    })
}

async fn kv(State(control): Shared, Extension(peer): Extension<Peer>) -> Response {
    answer(control, peer, |control, _, _| Ok(control.keys.get().map(|keys| keys.info()).unwrap_or_default())).await
}

async fn slabs(State(control): Shared, Extension(peer): Extension<Peer>) -> Response {
    answer(control, peer, |control, _, _| Ok::<Vec<SlabInfo>, _>(control.pool.slabs())).await
}

async fn list_donors(State(control): Shared, Extension(peer): Extension<Peer>) -> Response {
    answer(control, peer, |control, _, _| Ok::<Vec<DonorInfo>, _>(control.pool.donors())).await
}

async fn add_donor(State(control): Shared, Extension(peer): Extension<Peer>, body: RequestBody) -> Response {
    answer(control, peer, move |control, caller, authority| {
        let request: DonorRequest = parse(body)?;
        may_change_donors(authority)?;
        let donor = control.pool.add_donor(&request)?;
        tracing::info!(donor = donor.name, address = donor.address, uid = caller.uid, "added a donor");
        Ok(donor)
    })
    .await
}

async fn remove_donor(State(control): Shared, Extension(peer): Extension<Peer>, Path(name): Path<String>) -> Response {
    answer(control, peer, move |control, caller, authority| {
        may_change_donors(authority)?;
        let donor = control.pool.remove_donor(&name)?;
        tracing::info!(donor = donor.name, address = donor.address, uid = caller.uid, "removes a donor");
        Ok(donor)
    })
    .await
}

fn may_change_donors(authority: Authority) -> Result<(), ApiError> {
    match authority {
        Authority::Everything => Ok(()),
        Authority::Own(_) => Err(ApiError {
            kind: ErrorCode::Forbidden,
            message: "may not change the donors: they serve everybody on this host".into(),
            remedy: "ask as root or as a member of group annex".into(),
        }),
    }
}

async fn list_apps(State(control): Shared, Extension(peer): Extension<Peer>) -> Response {
    answer(control, peer, |control, _, authority| Ok(control.visible_apps(authority))).await
}

async fn attach(State(control): Shared, Extension(peer): Extension<Peer>, body: RequestBody) -> Response {
    answer(control, peer, move |control, caller, authority| {
        let request: AttachRequest = parse(body)?;
        let app = control.attach(&request, caller, authority)?;
        let (target, limit) = (&request.target, app.limit_text());
        event!(INFO, AppAttached of &app.name, uid app.uid, "attached {target:?} with limit {limit}, for user {}", caller.uid);
        Ok(app)
    })
    .await
}

async fn open_region(State(control): Shared, Extension(peer): Extension<Peer>, body: RequestBody) -> Response {
    answer(control, peer, move |control, caller, authority| {
        let request: RegionRequest = parse(body)?;
        let app = control.open_region(&request, caller, authority)?;
        let (length, limit) = (request.length, app.limit_text());
        event!(INFO, AppAttached of &app.name, uid app.uid, "opened a region of {length} bytes with limit {limit}, for user {}", caller.uid);
        Ok(app)
    })
    .await
}

async fn set_limit(
    State(control): Shared,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    body: RequestBody,
) -> Response {
    answer(control, peer, move |control, caller, authority| {
        let request: LimitRequest = parse(body)?;
        let app = control.find(&name, authority)?;
        let app = control.apps.set_limit(app.id, request.local)?;
        tracing::info!(app = app.id, name = app.name, limit = %app.limit_text(), uid = caller.uid, "changed the local limit");
        Ok(app)
    })
    .await
}

async fn detach(State(control): Shared, Extension(peer): Extension<Peer>, Path(name): Path<String>) -> Response {
    let caller = peer.caller;
    let found = blocking({
        let control = control.clone();
        move || control.find(&name, peer.authority(control.operators.gid()))
    });
    let app = match found.await {
        Ok(app) => app,
        Err(error) => return refusal(error),
    };
    let (mut report, lines) = progress::channel();
    tokio::task::spawn_blocking(move || {
        tracing::info!(app = app.id, name = app.name, uid = caller.uid, "detaching");
        let result = control.apps.detach(app.id, &mut |step| report.step(step));
        match &result {
            Ok(()) => {}
            Err(error) => tracing::warn!(app = app.id, name = app.name, %error, "failed to detach"),
        }
        report.end(result);
    });
    stream(lines)
}

fn stream(lines: Lines) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(lines)).into_response()
}

async fn unknown_route(method: Method, uri: Uri) -> Response {
    refusal(ApiError {
        kind: ErrorCode::NotFound,
        message: format!("there is no {method} {} in this API", uri.path()),
        remedy: format!("this is annexd {}: is the client of the same version?", env!("CARGO_PKG_VERSION")),
    })
}

type RequestBody = Result<Bytes, BytesRejection>;

fn parse<T: DeserializeOwned>(body: RequestBody) -> Result<T, ApiError> {
    let body = body.map_err(|e| bad_request(format!("failed to read the request: {e}"), ""))?;
    serde_json::from_slice(&body).map_err(|e| bad_request(format!("failed to read the request: {e}"), ""))
}

fn bad_request(message: String, remedy: &str) -> ApiError {
    ApiError { kind: ErrorCode::BadRequest, message, remedy: remedy.into() }
}

/// Runs a request where it may block, and answers with what it returned.
async fn answer<T, F>(control: Arc<Control>, peer: Peer, work: F) -> Response
where
    T: Serialize + Send + 'static,
    F: FnOnce(&Control, Caller, Authority) -> Result<T, ApiError> + Send + 'static,
{
    let run = move || work(&control, peer.caller, peer.authority(control.operators.gid()));
    match blocking(run).await {
        Ok(value) => Json(value).into_response(),
        Err(error) => refusal(error),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(ApiError {
            kind: ErrorCode::Internal,
            message: "annexd failed while it worked on this request".into(),
            remedy: "its log says where: please report it".into(),
        })
    })
}

fn refusal(error: ApiError) -> Response {
    let status = match error.kind {
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::AlreadyAttached => StatusCode::CONFLICT,
        ErrorCode::Unsuitable => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorCode::NoDonors | ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::NoMemory => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::BadRequest => StatusCode::BAD_REQUEST,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(error)).into_response()
}
