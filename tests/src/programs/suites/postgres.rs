//! PostgreSQL's regression tests: initdb, the server, its processes and psql are one app.
//!
//! tests/postgres/fetch.sh gets the tests; pg_regress and the server are Debian's. Tests that
//! need the suite's own C functions fail natively.

use crate::programs::program::{Ended, Program, Suite, Verdict, Verdicts, tail, unprivileged};
use anyhow::{Context, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// Where Debian has its versions.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The tables, and some that need nothing else: for CI.
const QUICK: &[&str] =
    &["test_setup", "boolean", "int4", "int8", "text", "strings", "numeric", "uuid", "date", "limit", "case"];

pub fn suite(dir: &Path) -> anyhow::Result<Suite> {
    let version = newest().context("postgresql is not installed")?;
    let sources = dir.join(format!("postgres-{version}"));
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("postgres/fetch.sh");
    let fetched = Command::new(fetch).arg(&sources).arg(version.to_string()).status()?;
    ensure!(fetched.success(), "the tests of PostgreSQL {version} could not be fetched");
    let tests = sources.join("src/test/regress");
    let programs = vec![
        program("a-few", version, tests.clone(), |_| QUICK.iter().map(|test| (*test).to_owned()).collect()),
        program("all", version, tests, |tests| vec![format!("--schedule={}/parallel_schedule", tests.display())]),
    ];
    Ok(Suite { name: "postgres", local: "16M", small: true, programs })
}

/// The highest major version here.
fn newest() -> Option<u32> {
    let versions = fs::read_dir(VERSIONS).ok()?.flatten();
    versions.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()
}

fn program(name: &'static str, version: u32, tests: PathBuf, which: fn(&Path) -> Vec<String>) -> Program {
    let home = Path::new(VERSIONS).join(version.to_string());
    let command = move |dir: &Path| {
        let regress = home.join("lib/pgxs/src/test/regress/pg_regress");
        let mut command = unprivileged(&regress.to_string_lossy(), dir);
        let at = |option: &str, path: &Path| format!("--{option}={}", path.display());
        command.arg(at("bindir", &home.join("bin"))).arg(at("inputdir", &tests)).arg(at("outputdir", dir));
        // Connections at once: more would wait for CPUs, not for pages.
        command.arg(at("temp-instance", &dir.join("db"))).arg(at("dlpath", dir)).arg("--max-connections=4");
        command.args(which(&tests));
        command
    };
    Program { name: name.into(), prepare: None, command: Box::new(command), read, limit: LIMIT, quick: name == "a-few" }
}

/// `test boolean ... ok 65 ms`, or indented within a group; `ok 1 - boolean 65 ms` since version
/// 16.
fn read(name: &str, ended: &Ended) -> Verdicts {
    let mut verdicts = Verdicts::from([(name.to_owned(), ended.verdict())]);
    for line in ended.stdout.lines() {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "test").collect();
        let (test, passed) = match words[..] {
            [test, "...", "ok", ..] | ["ok", _, "-" | "+", test, ..] => (test, true),
            [test, "...", "FAILED", ..] | ["not", "ok", _, "-" | "+", test, ..] => (test, false),
            _ => continue,
        };
        let verdict =
            if passed { Verdict::Passed } else { Verdict::Failed(format!("{line}\n{}", tail(&ended.stdout))) };
        verdicts.insert(format!("{name}: {test}"), verdict);
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn both_ways_of_telling_are_read() {
        let stdout = "test boolean      ... ok    65 ms\n     char     ... FAILED    5 ms\nok 1    - int4  65 ms\n";
        let ended = Ended { status: ExitStatus::from_raw(256), stdout: stdout.into(), stderr: String::new() };
        let verdicts = read("all", &ended);
        assert!(verdicts["all: boolean"].passed() && verdicts["all: int4"].passed());
        assert!(!verdicts["all: char"].passed() && !verdicts["all"].passed());
    }
}
