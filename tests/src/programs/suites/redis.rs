//! Redis' own suite, with servers of its own: the suite's Tcl, each redis-server it starts and
//! their forks are one app.
//!
//! tests/redis/fetch.sh gets the suite, as for the KV API. Servers are Debian's.

use crate::programs::program::{Ended, Program, Suite, Verdict, Verdicts, tail, unprivileged};
use anyhow::ensure;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// Data types, scripts, persistence and replication: all that forks, defragments, blocks and
/// expires. Those that take minutes are left out.
const UNITS: &[&str] = &[
    "unit/type/string",
    "unit/type/incr",
    "unit/type/list",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/hash",
    "unit/type/stream",
    "unit/sort",
    "unit/expire",
    "unit/scan",
    "unit/multi",
    "unit/scripting",
    "unit/functions",
    "unit/bitops",
    "unit/geo",
    "unit/hyperloglog",
    "unit/pubsub",
    "unit/other",
    "unit/dump",
    "unit/lazyfree",
    "unit/querybuf",
    "unit/tracking",
    "unit/acl",
    "integration/rdb",
    "integration/aof",
    "integration/convert-zipmap-hash-on-load",
    "integration/replication-4",
    "integration/block-repl",
];

const QUICK: &[&str] = &["unit/type/incr", "unit/lazyfree", "unit/bitops"];

pub fn suite(dir: &Path) -> anyhow::Result<Suite> {
    let sources = dir.join("redis");
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("redis/fetch.sh");
    ensure!(Command::new(fetch).arg(&sources).status()?.success(), "Redis' suite could not be fetched");
    let programs = UNITS.iter().map(|unit| program(unit, sources.clone())).collect();
    Ok(Suite { name: "redis", local: "8M", small: true, programs })
}

fn program(unit: &'static str, sources: PathBuf) -> Program {
    let command = move |dir: &Path| {
        let mut command = unprivileged("sh", dir);
        // The suite writes beside itself.
        let script = r#"mkdir -p src && cp -r "$0/tests" "$0/runtest" . && cp -P "$0"/src/* src/ && mkdir -p tests/tmp &&
            exec ./runtest --clients 1 --single "$1" --durable --timeout 600 --tags -slow"#;
        command.args(["-c", script]).arg(&sources).arg(unit);
        command
    };
    Program {
        name: unit.into(),
        prepare: None,
        command: Box::new(command),
        read,
        limit: LIMIT,
        quick: QUICK.contains(&unit),
    }
}

/// `[ok]: name (n ms)` and `[err]: name in file`.
fn read(name: &str, ended: &Ended) -> Verdicts {
    let mut verdicts = Verdicts::from([(name.to_owned(), ended.verdict())]);
    let plain = plain(&ended.stdout);
    for line in plain.lines() {
        let (verdict, rest) = if let Some((_, rest)) = line.split_once("[ok]: ") {
            (Verdict::Passed, rest)
        } else if let Some((_, rest)) = line.split_once("[err]: ") {
            (Verdict::Failed(format!("{line}\n{}", tail(&plain))), rest)
        } else {
            continue;
        };
        let test = rest.rsplit_once(" (").map_or(rest, |(test, _)| test);
        let test = test.split_once(" in tests/").map_or(test, |(test, _)| test);
        // Numbers in a test's name are of this run.
        verdicts
            .entry(format!("{name}: {}", without_numbers(test)))
            .and_modify(|before| {
                if before.passed() {
                    *before = verdict.clone();
                }
            })
            .or_insert(verdict);
    }
    verdicts
}

fn without_numbers(name: &str) -> String {
    name.split_whitespace()
        .map(|word| if word.parse::<f64>().is_ok() { "#" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Without the colours of a terminal.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn each_test_of_a_unit_has_a_verdict() {
        let stdout = "[\u{1b}[32mok\u{1b}[0m]: SET 12 keys (3 ms)\n[\u{1b}[31merr\u{1b}[0m]: GET in tests/unit/x.tcl\n";
        let ended = Ended { status: ExitStatus::from_raw(256), stdout: stdout.into(), stderr: String::new() };
        let verdicts = read("unit/x", &ended);
        assert_eq!(verdicts["unit/x: SET # keys"], Verdict::Passed);
        assert!(matches!(verdicts["unit/x: GET"], Verdict::Failed(_)));
        assert!(matches!(verdicts["unit/x"], Verdict::Failed(_)));
    }
}
