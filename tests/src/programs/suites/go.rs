//! The tests of Go's standard library, a package at a time: Debian's golang-go and golang-src.
//! What runs under annex is the test program alone.

use crate::programs::program::{Ended, NOBODY, Program, Suite, Verdict, Verdicts, tail, unprivileged};
use anyhow::{Context, ensure};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

/// How often each test is run: most packages take a few milliseconds. The slow ones once.
const TIMES: u32 = 10;
const SLOW: &[&str] = &["runtime", "net", "os/signal", "time", "math/big", "strconv"];

const PACKAGES: &[&str] = &[
    "runtime",
    "runtime/debug",
    "sync",
    "sync/atomic",
    "os",
    "os/exec",
    "os/signal",
    "net",
    "syscall",
    "io",
    "bufio",
    "bytes",
    "sort",
    "strings",
    "strconv",
    "encoding/json",
    "encoding/gob",
    "compress/flate",
    "container/heap",
    "context",
    "math/big",
    "reflect",
    "regexp",
    "time",
    "crypto/sha256",
];

const QUICK: &[&str] = &["sync", "os/signal", "sort", "bytes"];

pub fn suite(dir: &Path) -> anyhow::Result<Suite> {
    let root = Command::new("go").args(["env", "GOROOT"]).output().context("golang-go is not installed")?;
    let root = PathBuf::from(String::from_utf8_lossy(&root.stdout).trim());
    let built = dir.join("go");
    fs::create_dir_all(&built)?;
    chown(&built, Some(NOBODY), Some(NOBODY))?;
    let program = |package: &&'static str| program(package, &root, built.clone());
    Ok(Suite { name: "go", local: "4M", small: false, programs: PACKAGES.iter().map(program).collect() })
}

fn build(package: &str, test: &Path, built: &Path) -> anyhow::Result<()> {
    if test.is_file() {
        return Ok(());
    }
    println!("building the tests of Go's {package}");
    let mut go = unprivileged("go", built);
    go.args(["test", "-c", "-o"]).arg(test).arg(package);
    ensure!(with_cache(&mut go, built).status()?.success(), "the tests of {package} do not build");
    Ok(())
}

/// Some tests build programs.
fn with_cache<'a>(go: &'a mut Command, built: &Path) -> &'a mut Command {
    go.env("GOCACHE", built.join("cache")).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "auto").env("GOPROXY", "off")
}

fn program(package: &'static str, root: &Path, built: PathBuf) -> Program {
    let (test, sources) = (built.join(package.replace('/', "-")), root.join("src").join(package));
    let prepare = {
        let (test, built) = (test.clone(), built.clone());
        move || build(package, &test, &built)
    };
    let times = if SLOW.contains(&package) { 1 } else { TIMES };
    let command = move |dir: &Path| {
        let mut command = unprivileged(&test.to_string_lossy(), dir);
        command.current_dir(&sources).args(["-test.short", "-test.v", "-test.timeout=20m"]);
        command.arg(format!("-test.count={times}"));
        // Else they are too small to be paged.
        command.env("GOGC", "off").env("GOMEMLIMIT", "64MiB");
        with_cache(&mut command, &built);
        command
    };
    Program {
        name: package.into(),
        prepare: Some(Box::new(prepare)),
        command: Box::new(command),
        read,
        limit: LIMIT,
        quick: QUICK.contains(&package),
    }
}

/// `--- PASS: TestName (0.00s)`; what is indented is a part of a test.
fn read(name: &str, ended: &Ended) -> Verdicts {
    let mut verdicts = Verdicts::from([(name.to_owned(), ended.verdict())]);
    for line in ended.stdout.lines() {
        // A test's output may end without a newline.
        let Some((_, said)) = line.split_once("--- ").filter(|(before, _)| !before.starts_with(' ')) else { continue };
        let Some((word, test)) = said.split_once(": ") else { continue };
        let verdict = match word {
            "PASS" => Verdict::Passed,
            "SKIP" => Verdict::Skipped(line.into()),
            "FAIL" => Verdict::Failed(format!("{line}\n{}", around(&ended.stdout, line))),
            _ => continue,
        };
        let test = test.split_whitespace().next().unwrap_or(test);
        // Each comes several times: it passes if it always does.
        let before = verdicts.entry(format!("{name}: {test}")).or_insert(Verdict::Passed);
        if before.passed() {
            *before = verdict;
        }
    }
    verdicts
}

/// What was said about a test, which stands before and after its verdict.
fn around(said: &str, line: &str) -> String {
    let (before, after) = said.split_once(line).unwrap_or((said, ""));
    format!("{}\n{}", tail(before), after.lines().take(12).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn each_test_of_a_package_has_a_verdict() {
        let stdout =
            "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- FAIL: TestB/part (0.00s)\n--- FAIL: TestB (0.01s)\n";
        let ended = Ended { status: ExitStatus::from_raw(256), stdout: stdout.into(), stderr: String::new() };
        let verdicts = read("sync", &ended);
        assert_eq!(verdicts["sync: TestA"], Verdict::Passed);
        assert!(matches!(verdicts["sync: TestB"], Verdict::Failed(_)));
        assert_eq!(verdicts.len(), 3);
    }
}
