//! A Java program that verifies itself (tests/programs/Verify.java), with each garbage collector,
//! and the compiler: Debian's default-jdk-headless.
//!
//! A collector moves objects, protects pages, gives memory back and, as ZGC does, maps the same
//! memory at several addresses.

use crate::programs::program::{Ended, Program, Suite, Verdict, Verdicts, unprivileged};
use crate::testbed::bins;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// With 96 MiB of heap. Each is a name, and what the JVM is told.
const RUNS: &[(&str, &[&str])] = &[
    ("serial", &["-XX:+UseSerialGC"]),
    ("parallel", &["-XX:+UseParallelGC"]),
    ("g1", &["-XX:+UseG1GC"]),
    ("z", &["-XX:+UseZGC"]),
    ("g1-pretouched", &["-XX:+UseG1GC", "-XX:+AlwaysPreTouch", "-Xms96M"]),
    ("g1-interpreted", &["-XX:+UseG1GC", "-Xint"]),
    ("z-gives-back", &["-XX:+UseZGC", "-XX:+ZUncommit", "-XX:ZUncommitDelay=1", "-Xms16M"]),
    ("parallel-small-pages-of-threads", &["-XX:+UseParallelGC", "-Xss256k", "-XX:-UseCompressedOops"]),
];

const QUICK: &[&str] = &["serial", "g1"];

const ROUNDS: &str = "30000";

fn source() -> PathBuf {
    bins::script("Verify.java")
}

/// Compiles the program below `dir`, once: where its classes are.
///
/// # Errors
/// When there is no compiler, or it does not compile.
pub fn built(dir: &Path) -> anyhow::Result<PathBuf> {
    let built = dir.join("java");
    if !built.exists() {
        let mut compiler = Command::new("javac");
        compiler.arg("-d").arg(&built).arg(source());
        let compiled = compiler.status().context("default-jdk-headless is not installed")?;
        ensure!(compiled.success(), "Verify.java does not compile");
    }
    Ok(built)
}

/// The command line of a JVM, with what makes it run the program that is [`built`] there.
pub fn verify(mut java: Command, built: &Path) -> Command {
    java.args(["-Xmx96M", "-XX:-UsePerfData", "-cp"]).arg(built).args(["Verify", ROUNDS]);
    java
}

pub fn suite(dir: &Path) -> anyhow::Result<Suite> {
    let built = built(dir)?;
    let source = source();
    let mut programs: Vec<Program> = RUNS.iter().map(|(name, args)| program(name, args, built.clone())).collect();
    programs.push(Program {
        name: "javac".into(),
        prepare: None,
        command: Box::new(move |dir: &Path| {
            let mut command = unprivileged("javac", dir);
            command.args(["-J-Xmx128M", "-d"]).arg(dir).arg(&source);
            command
        }),
        read: |name, ended| Verdicts::from([(name.to_owned(), ended.verdict())]),
        limit: LIMIT,
        quick: false,
    });
    Ok(Suite { name: "java", local: "32M", small: false, programs })
}

fn program(name: &'static str, args: &'static [&'static str], built: PathBuf) -> Program {
    let command = move |dir: &Path| {
        let mut command = unprivileged("java", dir);
        command.args(args);
        verify(command, &built)
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
    let verdict = match ended.verdict() {
        Verdict::Passed if !ended.stdout.starts_with("right ") => Verdict::Failed(ended.last_words()),
        verdict => verdict,
    };
    Verdicts::from([(name.to_owned(), verdict)])
}
