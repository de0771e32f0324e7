//! CPython's regression tests, a module at a time: of Debian's Python, as libpython3.X-testsuite
//! has them.

use crate::programs::program::{Ended, Program, Suite, Verdict, Verdicts, unprivileged};
use anyhow::{Context, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Debian's, whatever else the caller's path has.
const PYTHON: &str = "/usr/bin/python3";

/// The most that a module may take natively. Those that take longer are not compared.
const LIMIT: Duration = Duration::from_secs(60);

/// What is left out, and why.
const LEFT_OUT: &[(&str, &[&str])] = &[
    (
        "takes more than a minute natively",
        &["test_multiprocessing_spawn", "test_multiprocessing_forkserver", "test_tools"],
    ),
    ("walks over several times its local memory all the time, and takes that long", &["test_lzma", "test_weakref"]),
    ("builds, or installs from a network", &["test_ensurepip", "test_peg_generator", "test_venv", "test_distutils"]),
    ("attaches a debugger, which a paged program can't have", &["test_gdb"]),
    ("looks at the machine's clock and time zones", &["test_time", "test_timeout"]),
];

/// What forks, uses threads, maps memory, sends signals, starts programs, reads and writes, and
/// lets go of memory.
const QUICK: &[&str] = &[
    "test_fork1",
    "test_gc",
    "test_mmap",
    "test_thread",
    "test_threadsignals",
    "test_posix",
    "test_popen",
    "test_list",
    "test_memoryio",
    "test_dict",
];

pub fn suite() -> anyhow::Result<Suite> {
    let output = Command::new(PYTHON).args(["-m", "test", "--list-tests"]).output();
    let output = output.with_context(|| format!("{PYTHON} is not installed"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = said.lines().filter(|name| name.starts_with("test_")).collect();
    ensure!(names.len() > 100, "Debian's libpython3.X-testsuite is not installed: {PYTHON} has {} tests", names.len());
    let left_out = |name: &str| LEFT_OUT.iter().any(|(_, names)| names.contains(&name));
    let programs = names.into_iter().filter(|name| !left_out(name)).map(program).collect();
    Ok(Suite { name: "cpython", local: "16M", small: true, programs })
}

fn program(name: &str) -> Program {
    let module = name.to_owned();
    let command = move |dir: &Path| {
        let mut command = unprivileged(PYTHON, dir);
        // It must not ask for more than a program of this size is given here, nor for what is not
        // its own.
        command.args(["-m", "test", "-u", "none", &module]);
        command
    };
    Program {
        name: name.into(),
        prepare: None,
        command: Box::new(command),
        read,
        limit: LIMIT,
        quick: QUICK.contains(&name),
    }
}

fn read(name: &str, ended: &Ended) -> Verdicts {
    let skipped = ["tests skipped:", "test skipped:", "NO TESTS RAN", "NO TEST RUN"];
    let verdict = match ended.verdict() {
        Verdict::Passed if skipped.iter().any(|words| ended.stdout.contains(words)) => {
            Verdict::Skipped(ended.last_words())
        }
        Verdict::Failed(_) => Verdict::Failed(format!("{}\n{}", complaints(&ended.stderr), ended.last_words())),
        verdict => verdict,
    };
    Verdicts::from([(name.to_owned(), verdict)])
}

/// Which of a module's tests failed, and by which exception.
fn complaints(said: &str) -> String {
    let starts = ["ERROR: ", "FAIL: ", "OSError", "AssertionError", "MemoryError", "Fatal Python error"];
    let lines = said.lines().filter(|line| starts.iter().any(|start| line.starts_with(start)));
    lines.take(12).collect::<Vec<_>>().join("\n")
}
