//! The `annexd` binary: start, refusal to start, signals, and that it sleeps when nobody asks.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

fn annexd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annexd"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("NOTIFY_SOCKET");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An annexd that has told its service manager that it is ready; killed if the test ends before it.
struct Running {
    child: Child,
    socket: PathBuf,
    notices: UnixDatagram,
    _dir: Option<tempfile::TempDir>,
}

impl Running {
    /// Its one donor is an address where nobody listens.
    fn start() -> Running {
        Running::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let donor = dead_address();
        let args = [&["--donor", &donor, "--log", "info"], args].concat();
        let mut running = Running::start_in(dir.path(), &args);
        running._dir = Some(dir);
        running
    }

    /// With its socket in this folder.
    fn start_in(dir: &Path, args: &[&str]) -> Running {
        let socket = dir.join("annexd.sock");
        let notify = dir.join("notify.sock");
        let _ = fs::remove_file(&notify);
        let notices = UnixDatagram::bind(&notify).unwrap();
        notices.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = annexd();
        command.arg("--socket").arg(&socket).args(args);
        let child = command.env("NOTIFY_SOCKET", &notify).spawn().unwrap();
        let mut running = Running { child, socket, notices, _dir: None };
        running.wait_for_notice("READY=1");
        running
    }

    fn wait_for_notice(&mut self, wanted: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            match self.notices.recv(&mut buffer) {
                Ok(len) => {
                    let notice = text(&buffer[..len]);
                    if notice.contains(wanted) {
                        return notice;
                    }
                }
                // A receive with a time-out is interrupted when this process was frozen for a
                // moment: nothing was said yet.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no notice {wanted}: {error}; {}", self.rest()),
            }
        }
    }

    fn rest(&mut self) -> String {
        let _ = self.child.kill();
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut said);
        }
        said
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn status(&self) -> serde_json::Value {
        self.get("/v1/status")
    }

    fn get(&self, path: &str) -> serde_json::Value {
        let answer = self.ask(&format!("GET {path} HTTP/1.1\r\nhost: annexd\r\n\r\n"));
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn end(mut self) -> Output {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "annexd does not end; {}", self.rest());
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.wait().unwrap();
        Output { status, stdout: Vec::new(), stderr: self.rest().into_bytes() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address that refuses connections: bound a moment ago, and given up.
fn dead_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn it_starts_without_its_donors_and_says_what_is_missing() {
    let annexd = Running::start();
    let status = annexd.status();
    assert_eq!(status["donors"][0]["state"], "connecting");
    let me = std::process::id();
    let body = format!(r#"{{"target":{{"pid":{me}}},"require_donors":true}}"#);
    let head = format!("POST /v1/apps HTTP/1.1\r\nhost: annexd\r\ncontent-length: {}\r\n\r\n", body.len());
    let refused = annexd.ask(&(head + &body));
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("no_donors"), "{refused}");
}

/// It was said to listen where it did not; and as long as one address was taken, it answered on
/// none.
#[test]
fn the_kv_api_says_where_it_does_not_listen_and_serves_the_rest() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, free) = (taken.local_addr().unwrap().to_string(), dead_address());
    let annexd = Running::start_with(&["--kv", &address, "--kv", &free]);
    let eventually = |what: &str, is_true: &dyn Fn(&serde_json::Value) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_true(&annexd.get("/v1/kv")) {
            assert!(Instant::now() < deadline, "never: {what}; {}", annexd.get("/v1/kv"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    eventually("it listens on the other", &|kv| kv["listens"] == serde_json::json!([free]));
    let why = annexd.get("/v1/kv")["failed"][0].as_str().unwrap().to_owned();
    assert!(why.contains(&address) && why.contains("in use") && why.contains("[kv]"), "{why}");
    assert!(annexd.status()["warnings"].to_string().contains(&address));
    let mut client = std::net::TcpStream::connect(&free).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");

    drop(taken);
    eventually("it listens on both", &|kv| {
        kv["listens"].as_array().is_some_and(|all| all.len() == 2) && kv["failed"] == serde_json::json!([])
    });
}

#[test]
fn its_memory_is_locked_and_it_is_the_last_to_be_killed_or_says_that_it_is_not() {
    let annexd = Running::start();
    let proc = PathBuf::from(format!("/proc/{}", annexd.child.id()));
    let status = fs::read_to_string(proc.join("status")).unwrap();
    let locked = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap();
    let locked: u64 = locked.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(locked > 1000, "VmLck is {locked} kB");
    // A host may withhold CAP_SYS_RESOURCE; then annexd must say so.
    let score = fs::read_to_string(proc.join("oom_score_adj")).unwrap();
    let warned = annexd.status()["warnings"].to_string().contains("failed to lower annexd's OOM score");
    assert_eq!(warned, score.trim() != "-900", "oom_score_adj is {score}");
}

#[test]
fn a_stop_is_orderly_and_leaves_no_socket() {
    let mut annexd = Running::start();
    let socket = annexd.socket.clone();
    annexd.signal(Signal::SIGTERM);
    annexd.wait_for_notice("STOPPING=1");
    let output = annexd.end();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!socket.exists());
}

#[test]
fn a_hang_up_or_a_stray_signal_does_not_end_it() {
    let annexd = Running::start();
    for signal in [Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGALRM] {
        annexd.signal(signal);
    }
    assert_eq!(annexd.status()["pid"], annexd.child.id());
    annexd.signal(Signal::SIGINT);
    assert_eq!(annexd.end().status.code(), Some(0));
}

/// What `systemctl reload annexd` does: the next annexd reads the file as it is then.
#[test]
fn a_take_over_takes_the_changed_file_and_a_broken_one_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("annexd.toml");
    let path = file.to_str().unwrap();
    let donor = |name: &str| format!("[[pool.donor]]\naddress = '{}'\nname = '{name}'\n", dead_address());
    let names = |annexd: &Running| {
        let status = annexd.status();
        let names = status["donors"].as_array().unwrap().iter().map(|donor| donor["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<String>>()
    };
    let write = |text: &str, donors: &[&str]| {
        fs::write(&file, text.to_owned() + &donors.iter().map(|name| donor(name)).collect::<String>()).unwrap();
    };
    write("[pool]\nreplicas = 1\nstart_wait = '0s'\n", &["stays", "goes"]);
    let mut first = Running::start_in(dir.path(), &["--config", path]);
    assert_eq!((names(&first), &first.status()["replicas"]), (vec!["stays".into(), "goes".into()], &1.into()));

    write("log = 'debug'\n[pool]\nreplicas = 2\nstart_wait = '0s'\n", &["stays", "comes"]);
    let mut second = Running::start_in(dir.path(), &["--config", path, "--take-over"]);
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    assert_eq!((names(&second), &second.status()["replicas"]), (vec!["stays".into(), "comes".into()], &2.into()));

    for text in ["[pool]\nreplicsa = 2\n", "[tls]\nca = '/nonexistent'\ncert = '/nonexistent'\nkey = '/nonexistent'\n"]
    {
        write(text, &[]);
        let refused = annexd().arg("--socket").arg(&second.socket).args(["--config", path, "--take-over"]).output();
        assert_eq!(refused.unwrap().status.code(), Some(78), "{text}");
    }
    assert_eq!(second.status()["pid"], second.child.id());
    assert!(second.rest().contains(" DEBUG "), "the level is that of the changed file");
}

/// systemd runs it before it has annexd hand over.
#[test]
fn check_config_refuses_a_socket_where_the_next_annexd_would_not_find_the_one_that_runs() {
    let annexd_that_runs = Running::start();
    let check = |socket: &Path| {
        let mut command = annexd();
        command.arg("--socket").arg(socket).arg("check-config").env("MAINPID", annexd_that_runs.child.id().to_string());
        command.output().unwrap()
    };
    let good = check(&annexd_that_runs.socket);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stderr));
    let refused = check(&annexd_that_runs.socket.with_file_name("other.sock"));
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(78), "{said}");
    assert!(said.contains("does not listen there"), "{said}");
}

#[test]
fn its_log_can_be_json_with_the_fields_of_an_event() {
    let mut annexd = Running::start_with(&["--log-format", "json"]);
    let log = annexd.rest();
    let line = log.lines().find(|line| line.contains("ready on")).unwrap_or_else(|| panic!("{log}"));
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["level"], &line["event"], &line["subject"]),
        (&"INFO".into(), &"started".into(), &"annexd".into())
    );
    assert!(line["timestamp"].is_string() && line["target"].is_string(), "{line}");
    assert!(line["message"].as_str().unwrap().starts_with("ready on "), "{line}");
}

#[test]
fn a_second_annexd_names_the_first() {
    let first = Running::start();
    let output = annexd().arg("--socket").arg(&first.socket).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let expected =
        format!("annexd: annexd is already running on {} as process {}\n", first.socket.display(), first.child.id());
    assert_eq!(text(&output.stderr), expected);
    assert_eq!(first.status()["pid"], first.child.id());
}

#[test]
fn its_control_thread_sleeps_while_nobody_asks() {
    let annexd = Running::start();
    annexd.status();
    let pid = annexd.child.id();
    let switches = || voluntary_switches(Path::new(&format!("/proc/{pid}/task/{pid}/status")));
    // The requests' blocking threads go after ten seconds without wakening the control thread.
    std::thread::sleep(Duration::from_millis(500));
    let before = switches();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(switches(), before);
}

fn voluntary_switches(status: &Path) -> u64 {
    let status = fs::read_to_string(status).unwrap();
    status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")).unwrap().trim().parse().unwrap()
}

#[test]
fn a_bad_configuration_is_explained_and_not_worth_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("annexd.toml");
    for (config, message) in [
        ("[pool]\nreplica = 2\n", ":2: unknown key 'pool.replica'; did you mean 'replicas'?"),
        ("local = \"12Q\"\n", ":1: bad limit '12Q': give bytes with a unit (512M, 2G) or a share (50%)"),
        ("[pool]\nreplicas = 9\n", "bad pool configuration: replicas = 9 in [pool]: give 1 to 4"),
        ("local = 50%\n", ":1:"),
    ] {
        fs::write(&file, config).unwrap();
        for args in [&["--config"][..], &["check-config"][..]] {
            let output = annexd().args(args).arg(&file).output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(78), "{said}");
            assert!(said.starts_with("annexd: ") && said.contains(message), "{said}");
        }
    }
}

#[test]
fn a_good_configuration_is_called_good() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/annexd.toml");
    let output = annexd().args(["check-config", file]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), format!("{file}: good (2 donors, 2 replicas)\n"));
}

#[test]
fn an_ordinary_user_is_told_what_annexd_needs() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("annexd");
    fs::copy(env!("CARGO_BIN_EXE_annexd"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.current_dir("/").gid(65534).uid(65534).arg("--socket").arg(dir.path().join("annexd.sock"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let expected =
        "annexd: annexd lacks CAP_SYS_PTRACE, which it needs to reach into the apps' memory: run it as root\n";
    assert_eq!(text(&output.stderr), expected);
}

/// It starts on machines without RDMA: libibverbs is loaded when it is needed, not by the dynamic
/// linker.
#[test]
fn the_program_is_not_linked_with_an_rdma_library() {
    let asked = Command::new("readelf").args(["-d", env!("CARGO_BIN_EXE_annexd")]).output().unwrap();
    let needed = String::from_utf8(asked.stdout).unwrap();
    assert!(needed.contains("Shared library: [libc.so.6]"), "{needed}");
    assert!(!needed.contains("ibverbs") && !needed.contains("rdmacm"), "{needed}");
}
