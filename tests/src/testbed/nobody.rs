//! Programs that an ordinary user runs.

use super::bins;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const UID: u32 = 65534;

/// What comes next in the command is run as user [`UID`].
///
/// # Panics
/// When setpriv(1) is not installed: `make setup` installs it.
pub fn command() -> Command {
    let setpriv = bins::system("setpriv").expect("setpriv is not installed: run `make setup`");
    let mut command = Command::new(setpriv);
    command.args([&format!("--reuid={UID}"), &format!("--regid={UID}"), "--clear-groups"]);
    command
}

/// A copy of one of our programs, where everyone can run it.
///
/// # Panics
/// When it can't be copied.
pub fn copy(name: &str, folder: &Path, mode: u32) -> PathBuf {
    let copy = folder.join(name);
    // By another process: a child that is forked here meanwhile would have it open for writing, and
    // a file that anybody writes can't be run.
    let copied = Command::new("cp").arg(bins::find(name)).arg(&copy).status().expect("cp is there");
    assert!(copied.success(), "cp: {copied}");
    fs::set_permissions(&copy, Permissions::from_mode(mode)).expect("the copy is ours");
    copy
}

/// A folder that everyone may write to.
///
/// # Panics
/// When it can't be made.
pub fn scratch(folder: &Path) -> PathBuf {
    let scratch = folder.join("scratch");
    fs::create_dir(&scratch).expect("the folder is ours");
    fs::set_permissions(&scratch, Permissions::from_mode(0o777)).expect("it is ours");
    scratch
}
