//! `annex run`: registers this process with annexd and becomes the command by exec.
//!
//! There is no parent left to pass anything through: exit code, signals, terminal and job control
//! are the command's own. What annex must take care of is to leave no trace: its descriptors close
//! on exec, and the one signal disposition that Rust's runtime changes (SIGPIPE) is put back to
//! what it was.

use crate::client::Client;
use crate::failure::Failure;
use annex_cli::command::RunArgs;
use annex_shared::api::{APP_ENV, APP_MARK, AttachRequest, Target};
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns only if the command could not be started.
pub fn run(client: Client, args: &RunArgs) -> Result<Infallible, Failure> {
    let command = args.command.iter().map(|a| zero_ended(a.clone())).collect::<Result<Vec<_>, _>>()?;
    let program = args.command[0].to_string_lossy();
    let request = AttachRequest {
        target: Target::Launch(nix::unistd::getpid().as_raw()),
        name: args.app.name.clone(),
        // What was typed, without its folder: this process is still called annex.
        program: Path::new(&args.command[0]).file_name().map(|name| name.to_string_lossy().into_owned()),
        local: args.app.local,
        require_donors: args.app.require_donors,
    };
    let app = client.register(&request)?;
    let environment = std::env::vars_os()
        .filter(|(name, _)| name != APP_ENV)
        .chain([(OsString::from(APP_ENV), OsString::from(app.id.to_string()))])
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            zero_ended(name)
        })
        .collect::<Result<Vec<_>, _>>()?;
    leave_mark(app.id);
    restore_sigpipe();
    let Err(errno) = nix::unistd::execvpe(&command[0], &command, &environment);
    // Nothing has been started under this registration, so nothing has to be brought back.
    let _ = client.detach(&app.id.to_string(), |_, _, _| {});
    Err(Failure::Exec { command: program.into_owned(), source: io::Error::from(errno) })
}

/// See [`APP_MARK`]. Where the limit is lower already, children are known by their parents alone.
fn leave_mark(id: u64) {
    let limit = APP_MARK + id;
    let _ = setrlimit(Resource::RLIMIT_RTTIME, limit, limit);
}

fn zero_ended(text: OsString) -> Result<CString, Failure> {
    CString::new(text.into_vec()).map_err(|_| Failure::ZeroByte)
}

/// Whether SIGPIPE was ignored when this program was started.
static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before `main` and before Rust's runtime, which sets SIGPIPE to be ignored and doesn't say
/// what it found.
// SAFETY: .init_array holds pointers to functions of this type; this one only asks the kernel and
// stores a flag, and needs no runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_SIGPIPE: extern "C" fn() = {
    extern "C" fn record() {
        // SAFETY: all zeros is a valid sigaction, and a null new action makes this a query.
        let found = unsafe {
            let mut found: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut found) == 0).then_some(found)
        };
        let ignored = found.is_some_and(|action| action.sa_sigaction == libc::SIG_IGN);
        SIGPIPE_WAS_IGNORED.store(ignored, Ordering::Relaxed);
    }
    record
};

fn restore_sigpipe() {
    let found = if SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed) { SigHandler::SigIgn } else { SigHandler::SigDfl };
    // SAFETY: neither disposition runs any code of ours.
    let _ = unsafe { signal(Signal::SIGPIPE, found) };
}
