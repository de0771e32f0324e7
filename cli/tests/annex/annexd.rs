//! A real control socket with a scripted pager and pool behind it, and the `annex` binary that asks
//! it.

use annex_daemon::control::{Control, ControlSocket, Operators, server};
use annex_daemon_testbed::{ScriptedApps, ScriptedDonors};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::oneshot;

pub const NOBODY: u32 = 65534;

pub struct Annexd {
    pub apps: Arc<ScriptedApps>,
    pub pool: Arc<ScriptedDonors>,
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Annexd {
    pub fn start() -> Annexd {
        Annexd::start_in(Annexd::folder())
    }

    /// A folder that every user may look into.
    pub fn folder() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    pub fn start_in(dir: TempDir) -> Annexd {
        let apps = Arc::new(ScriptedApps::default());
        let pool = Arc::new(ScriptedDonors::default());
        let control = Control::new(apps.clone(), pool.clone(), Operators::Gid(4711), Vec::new());
        let socket = ControlSocket::bind(&dir.path().join("annexd.sock")).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::from_std(socket.listener().unwrap()).unwrap();
                server::serve(listener, control, async { drop(stopped.await) }).await;
            });
        });
        Annexd { apps, pool, dir, stop: Some(stop), thread: Some(thread) }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("annexd.sock")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annex"));
        command.arg("--socket").arg(self.socket()).args(args).stdin(Stdio::null());
        command
    }

    pub fn annex(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    /// A copy of the command that any user can reach, run as user nobody.
    pub fn command_as_nobody(&self, args: &[&str]) -> Command {
        let copy = self.dir.path().join("annex");
        // By another process: a child that is forked here meanwhile would have it open for writing,
        // and a file that anybody writes can't be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_annex")).arg(&copy).status().unwrap();
        assert!(copied.success());
        let mut command = Command::new(copy);
        command.arg("--socket").arg(self.socket()).args(args).current_dir("/").gid(NOBODY).uid(NOBODY);
        command
    }

    pub fn annex_as_nobody(&self, args: &[&str]) -> Said {
        Said::of(self.command_as_nobody(args).output().unwrap())
    }
}

impl Drop for Annexd {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: Output) -> Said {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    pub fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}
