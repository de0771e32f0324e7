//! The API over a real socket, with a scripted pager and pool behind it.

mod events;
mod stop;

use annex_daemon::control::*;
use annex_daemon_testbed::{RESIDENT, ScriptedApps, ScriptedDonors};
use annex_shared::api::*;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::oneshot;

const NOBODY: u32 = 65534;
/// A group id that stands for `annex`.
const OPERATORS: u32 = 4711;

struct Annexd {
    apps: Arc<ScriptedApps>,
    pool: Arc<ScriptedDonors>,
    control: Arc<Control>,
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Annexd {
    fn start() -> Annexd {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("annexd.sock");
        let apps = Arc::new(ScriptedApps::default());
        let pool = Arc::new(ScriptedDonors::default());
        let control = Control::new(apps.clone(), pool.clone(), Operators::Gid(OPERATORS), Vec::new());
        let socket = ControlSocket::bind(&path).unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = control.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::from_std(socket.listener().unwrap()).unwrap();
                server::serve(listener, served, async { drop(stopped.await) }).await;
            });
        });
        Annexd { apps, pool, control, path, stop: Some(stop), thread: Some(thread), _dir: dir }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        let len = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nhost: annexd\r\ncontent-length: {len}\r\n\r\n{body}").unwrap();
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            // annexd hangs up on a body that is too long without reading it: the answer comes
            // first, then a reset.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset && !bytes.is_empty() => {}
            ended => drop(ended.unwrap()),
        }
        Answer::parse(std::str::from_utf8(&bytes).unwrap())
    }

    /// Asks from a thread with another user's credentials: the kernel keeps them per thread, and
    /// records those of the thread that connects.
    fn ask_as(&self, uid: u32, groups: &[u32], method: &str, path: &str, body: &str) -> Answer {
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                become_user(uid, groups);
                self.ask(method, path, body)
            });
            asking.join().unwrap()
        })
    }
}

impl Drop for Annexd {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Changes the calling thread's credentials, and no other thread's.
fn become_user(uid: u32, groups: &[u32]) {
    // SAFETY: plain system calls on numbers and on a live slice; the raw calls, unlike libc's,
    // concern this thread alone.
    let results = unsafe {
        [
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()),
            libc::syscall(libc::SYS_setresgid, uid, uid, uid),
            libc::syscall(libc::SYS_setresuid, uid, uid, uid),
        ]
    };
    assert_eq!(results, [0; 3], "this test must run as root: it plays another user");
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    fn parse(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Answer { status, body: if chunked { unchunk(body) } else { body.into() } }
    }

    fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    fn error(&self) -> ApiError {
        assert!(self.status >= 400, "{self:?}");
        self.json()
    }
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}

/// A process of user `nobody`, killed when dropped.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn of(uid: u32) -> Sleeper {
        use std::os::unix::process::CommandExt;
        Sleeper(std::process::Command::new("sleep").arg("60").uid(uid).gid(uid).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn status_tells_donors_pool_apps_and_overhead() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 100, 0);
    let status: Status = annexd.ask("GET", "/v1/status", "").json();
    assert_eq!((status.pid, status.replicas), (std::process::id() as i32, 2));
    assert_eq!(status.donors.len(), 2);
    assert_eq!(status.apps[0].name, "redis");
    assert_eq!(status.warnings.len(), 1);
    // A quarter GiB is out after one look, and the tables take 1 MiB.
    assert_eq!(status.overhead_per_page, Some((1 << 20) as f64 / 65536.0));
}

#[test]
fn an_attach_reaches_the_pager_with_the_callers_credentials() {
    let annexd = Annexd::start();
    let me = std::process::id();
    let answer = annexd.ask("POST", "/v1/apps", &format!(r#"{{"target":{{"pid":{me}}},"name":"db","local":"512M"}}"#));
    let app: AppInfo = answer.json();
    assert_eq!((app.name.as_str(), app.local), ("db", Limit::Bytes(512 << 20)));
    assert_eq!(annexd.apps.last_caller(), Some(Caller { pid: me as i32, uid: 0, gid: 0, confined: false }));
    let again = annexd.ask("POST", "/v1/apps", &format!(r#"{{"target":{{"pid":{me}}}}}"#));
    assert_eq!((again.status, again.error().kind), (409, ErrorCode::AlreadyAttached));
}

#[test]
fn a_limit_changes_by_name_id_or_pid() {
    let annexd = Annexd::start();
    let id = annexd.apps.add("redis", 4242, 0).id;
    for (name, limit) in [("redis".to_owned(), "256M"), (id.to_string(), "25%"), ("4242".into(), "1G")] {
        let answer = annexd.ask("PUT", &format!("/v1/apps/{name}/limit"), &format!(r#"{{"local":"{limit}"}}"#));
        assert_eq!(answer.json::<AppInfo>().local, limit.parse().unwrap());
    }
}

#[test]
fn a_limit_can_be_found_until_another_is_asked_for() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 4242, 0);
    let ask = |local: &str| annexd.ask("PUT", "/v1/apps/redis/limit", &format!(r#"{{"local":"{local}"}}"#));
    let app = ask("auto:0.5%").json::<AppInfo>();
    assert_eq!((app.local, app.auto.map(|auto| auto.target)), (Limit::Percent(50), Some(0.005)));
    let refused = ask("auto:0%");
    assert_eq!((refused.status, refused.error().kind), (400, ErrorCode::BadRequest));
    assert_eq!(ask("64M").json::<AppInfo>().auto, None);
}

#[test]
fn a_detach_streams_its_steps_and_ends_with_done() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 100, 0);
    let answer = annexd.ask("DELETE", "/v1/apps/redis", "");
    let lines: Vec<Progress> = answer.body.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(matches!(lines[0], Progress::Step { done: 0, total: 536_870_912, .. }), "{lines:?}");
    assert_eq!((lines.len(), lines.last()), (5, Some(&Progress::Done)));
    assert_eq!(annexd.ask("DELETE", "/v1/apps/redis", "").status, 404);
}

#[test]
fn a_failed_detach_ends_with_the_error() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 100, 0);
    let error = ApiError { kind: ErrorCode::NoMemory, message: "1 GiB is missing".into(), remedy: "free it".into() };
    annexd.apps.fail_detach(error.clone());
    let answer = annexd.ask("DELETE", "/v1/apps/redis", "");
    let last = answer.body.lines().last().unwrap();
    assert_eq!(serde_json::from_str::<Progress>(last).unwrap(), Progress::Failed(error));
    assert_eq!(annexd.apps.apps().len(), 1);
}

#[test]
fn an_ordinary_user_sees_and_manages_their_own_apps_only() {
    let annexd = Annexd::start();
    annexd.apps.add("theirs", 100, NOBODY);
    annexd.apps.add("roots", 200, 0);
    let ask = |method: &str, path: &str, body: &str| annexd.ask_as(NOBODY, &[], method, path, body);
    let names = |apps: Vec<AppInfo>| apps.into_iter().map(|a| a.name).collect::<Vec<_>>();
    assert_eq!(names(ask("GET", "/v1/apps", "").json()), ["theirs"]);
    assert_eq!(names(ask("GET", "/v1/status", "").json::<Status>().apps), ["theirs"]);
    assert_eq!(ask("PUT", "/v1/apps/theirs/limit", r#"{"local":"1G"}"#).status, 200);
    for path in ["/v1/apps/roots", "/v1/apps/200"] {
        assert_eq!(ask("DELETE", path, "").error().kind, ErrorCode::NotFound);
        assert_eq!(ask("PUT", &format!("{path}/limit"), r#"{"local":"1G"}"#).error().kind, ErrorCode::NotFound);
    }
    assert_eq!(ask("DELETE", "/v1/apps/theirs", "").status, 200);
    assert_eq!(names(annexd.ask("GET", "/v1/apps", "").json()), ["roots"]);
}

#[test]
fn an_ordinary_user_attaches_their_own_processes_only() {
    let annexd = Annexd::start();
    let (theirs, roots) = (Sleeper::of(NOBODY), Sleeper::of(0));
    let ask = |target: String| annexd.ask_as(NOBODY, &[], "POST", "/v1/apps", &format!(r#"{{"target":{target}}}"#));
    for kind in ["pid", "launch"] {
        let error = ask(format!(r#"{{"{kind}":{}}}"#, roots.pid())).error();
        assert_eq!(error.kind, ErrorCode::Forbidden);
        let expected = format!("may not attach process {}: it belongs to user 0, you are user {NOBODY}", roots.pid());
        assert_eq!(error.message, expected);
    }
    assert_eq!(ask(r#"{"unit":"nginx.service"}"#.into()).error().kind, ErrorCode::Forbidden);
    assert_eq!(ask(r#"{"pid":2147483647}"#.into()).error().message, "there is no process 2147483647");
    assert!(annexd.apps.last_caller().is_none(), "a refused request reached the pager");
    assert_eq!(ask(format!(r#"{{"pid":{}}}"#, theirs.pid())).status, 200);
}

#[test]
fn members_of_the_operators_group_may_do_everything() {
    let annexd = Annexd::start();
    annexd.apps.add("roots", 200, 0);
    let apps: Vec<AppInfo> = annexd.ask_as(NOBODY, &[7, OPERATORS], "GET", "/v1/apps", "").json();
    assert_eq!(apps.len(), 1);
    assert_eq!(annexd.ask_as(NOBODY, &[OPERATORS], "DELETE", "/v1/apps/roots", "").status, 200);
}

#[test]
fn without_usable_donors_nothing_is_attached_that_requires_them() {
    let annexd = Annexd::start();
    let error = ApiError {
        kind: ErrorCode::NoDonors,
        message: "2 donors are needed, 0 are up".into(),
        remedy: "start annex-agent on a.example".into(),
    };
    annexd.pool.fail(error.clone());
    let answer = annexd.ask("POST", "/v1/apps", r#"{"target":{"pid":1},"require_donors":true}"#);
    assert_eq!((answer.status, answer.error()), (503, error));
    assert!(annexd.apps.last_caller().is_none());
    assert_eq!(annexd.ask("POST", "/v1/apps", r#"{"target":{"pid":1}}"#).status, 200);
}

#[test]
fn while_stopping_nothing_is_attached() {
    let annexd = Annexd::start();
    annexd.control.set_stopping(true);
    let error = annexd.ask("POST", "/v1/apps", r#"{"target":{"pid":1}}"#).error();
    assert_eq!(error.kind, ErrorCode::Unavailable);
    assert_eq!(annexd.ask("GET", "/v1/status", "").status, 200);
}

#[test]
fn every_bad_request_is_answered_in_json() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 100, 0);
    let huge = format!(r#"{{"target":{{"pid":1}},"name":"{}"}}"#, "x".repeat(100_000));
    let cases = [
        ("GET", "/v2/status", "", ErrorCode::NotFound, "there is no GET /v2/status"),
        ("POST", "/v1/status", "", ErrorCode::NotFound, "there is no POST /v1/status"),
        ("POST", "/v1/apps", "{", ErrorCode::BadRequest, "failed to read the request"),
        ("POST", "/v1/apps", r#"{"target":{"pid":1},"locl":"1G"}"#, ErrorCode::BadRequest, "unknown field `locl`"),
        ("POST", "/v1/apps", r#"{"target":{"pid":1},"local":"12Q"}"#, ErrorCode::BadRequest, "bad limit '12Q'"),
        ("POST", "/v1/apps", r#"{"target":{"pid":1},"name":"12"}"#, ErrorCode::BadRequest, "for an id or a PID"),
        ("POST", "/v1/apps", r#"{"target":{"pid":1},"name":"a b"}"#, ErrorCode::BadRequest, "only letters"),
        ("POST", "/v1/apps", &huge, ErrorCode::BadRequest, "failed to read the request"),
        ("PUT", "/v1/apps/redis/limit", r#"{"local":"0%"}"#, ErrorCode::BadRequest, "bad limit '0%'"),
        ("PUT", "/v1/apps/nope/limit", r#"{"local":"1G"}"#, ErrorCode::NotFound, "there is no app 'nope'"),
        ("DELETE", "/v1/apps/no%20pe", "", ErrorCode::NotFound, "there is no app 'no pe'"),
    ];
    for (method, path, body, kind, message) in cases {
        let error = annexd.ask(method, path, body).error();
        assert_eq!(error.kind, kind, "{method} {path} {error:?}");
        assert!(error.message.contains(message), "{method} {path}: {}", error.message);
    }
}

#[test]
fn a_failure_inside_annexd_is_an_answer_not_the_end() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 100, 0);
    annexd.apps.panic_on_limit();
    let answer = annexd.ask("PUT", "/v1/apps/redis/limit", r#"{"local":"1G"}"#);
    assert_eq!((answer.status, answer.error().kind), (500, ErrorCode::Internal));
    assert_eq!(annexd.ask("GET", "/v1/apps", "").json::<Vec<AppInfo>>()[0].resident, RESIDENT * 3 / 4);
}

#[test]
fn one_user_can_not_take_all_connections() {
    let annexd = Annexd::start();
    std::thread::scope(|scope| {
        let hoarder = scope.spawn(|| {
            become_user(NOBODY, &[]);
            let connect = || UnixStream::connect(&annexd.path).unwrap();
            let held: Vec<UnixStream> = (0..server::CONNECTIONS_PER_USER).map(|_| connect()).collect();
            // The next one is hung up on: the end of file comes without a request.
            let mut one_more = connect();
            // Well before the server would hang up on anyone who says nothing.
            one_more.set_read_timeout(Some(server::HEADER_TIMEOUT / 2)).unwrap();
            let refused = one_more.read(&mut [0; 1]).unwrap();
            (held, refused)
        });
        let (held, refused) = hoarder.join().unwrap();
        assert_eq!(refused, 0);
        assert_eq!(annexd.ask("GET", "/v1/status", "").status, 200);
        drop(held);
    });
}

#[test]
fn a_client_that_hangs_up_does_not_stop_a_detach() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 100, 0);
    let mut stream = UnixStream::connect(&annexd.path).unwrap();
    stream.write_all(b"DELETE /v1/apps/redis HTTP/1.1\r\nhost: annexd\r\n\r\n").unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    drop(stream);
    let gone = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        annexd.apps.apps().is_empty()
    });
    assert!(gone);
}
