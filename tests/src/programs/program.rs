//! One command of a suite: how it is started, and what its output says of each of its tests.

use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Who runs what must not run as root: `nobody` of Debian. Such a program can't hurt the machine.
pub const NOBODY: u32 = 65534;

/// How much of an output is kept for messages, in characters.
const TAIL: usize = 1500;

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "why")]
pub enum Verdict {
    Passed,
    /// It needs what this machine lacks.
    Skipped(String),
    Failed(String),
    /// It had not ended when its time was up, or annexd did not let go of it; with where threads
    /// were.
    Hung(String),
}

impl Verdict {
    pub fn passed(&self) -> bool {
        *self == Verdict::Passed
    }

    /// Why it did not pass; empty if it did.
    pub fn why(&self) -> &str {
        match self {
            Verdict::Passed => "",
            Verdict::Skipped(why) | Verdict::Failed(why) | Verdict::Hung(why) => why,
        }
    }
}

/// By the tests' names. A program as a whole is a test too, with the program's name.
pub type Verdicts = BTreeMap<String, Verdict>;

/// A program that has come to its end.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// By the exit status alone.
    pub fn verdict(&self) -> Verdict {
        if self.status.success() { Verdict::Passed } else { Verdict::Failed(self.last_words()) }
    }

    /// How it ended and the end of what it said.
    pub fn last_words(&self) -> String {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        format!("{how}\n{}\n{}", tail(&self.stdout), tail(&self.stderr))
    }
}

pub fn tail(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(TAIL);
    text.chars().skip(skipped).collect()
}

/// A command of a suite.
pub struct Program {
    pub name: String,
    /// Builds what it needs, if that is not there yet.
    pub prepare: Option<Box<dyn Fn() -> anyhow::Result<()>>>,
    /// The command line, to be run in an empty directory of its own.
    pub command: Box<dyn Fn(&Path) -> Command>,
    /// What is said of each test, the program itself included.
    pub read: fn(&str, &Ended) -> Verdicts,
    /// The most that it may take natively.
    pub limit: Duration,
    /// CI runs it.
    pub quick: bool,
}

/// The programs of one origin.
pub struct Suite {
    pub name: &'static str,
    /// How much local memory each has, unless the command line says so.
    pub local: &'static str,
    /// Its programs are too small to be paged: something is preloaded that makes them larger.
    pub small: bool,
    pub programs: Vec<Program>,
}

/// `program`, run by nobody, in `dir`.
pub fn unprivileged(program: &str, dir: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}")).args(["--clear-groups", program]);
    command.current_dir(dir).env("HOME", dir).env("TMPDIR", dir);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_program_says_how_it_ended() {
        let ended = Ended { status: ExitStatus::from_raw(9), stdout: "so far".into(), stderr: String::new() };
        assert!(ended.verdict().why().starts_with("signal 9\nso far"));
    }
}
