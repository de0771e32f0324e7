//! `annex-vm`: annex in guests of its own. See `annex_tests::vm`.

use annex_tests::vm::inside;
use annex_tests::vm::lab::{DONORS, Lab, Settings};
use annex_tests::vm::scenarios::{ALL, MEASURES, Scenario};
use anyhow::ensure;
use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Runs scenarios on Debian guests with systemd and Soft-RoCE.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// All that prove something, unless named
    scenarios: Vec<String>,
    /// Say which there are
    #[arg(long)]
    list: bool,
    /// What image.sh has made; logs go here too
    #[arg(long, default_value = "target/vm", global = true)]
    dir: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Boot the guests, start annex on them and run what is typed: `donor1 systemctl status`, `cut
    /// donor1`, `mend donor1`; until the input ends
    Shell,
    /// Run the host's commands (inside a guest)
    #[command(hide = true)]
    Guest { port: PathBuf },
    /// Store and verify values in the redis-server here (inside a guest)
    #[command(hide = true)]
    Values(inside::Redis),
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.command {
        Some(Command::Guest { port }) => return inside::serve(&port),
        Some(Command::Values(redis)) => return redis.run(),
        Some(Command::Shell) => return shell(&mut lab(&args.dir)?),
        None => {}
    }
    if args.list {
        ALL.iter().chain(MEASURES).for_each(|s| println!("{:12} {}", s.name, s.shows));
        return Ok(());
    }
    let named = |s: &&Scenario| args.scenarios.iter().any(|name| name == s.name);
    let unknown = args.scenarios.iter().find(|name| ALL.iter().chain(MEASURES).all(|s| s.name != **name));
    ensure!(unknown.is_none(), "there is no scenario {}: see annex-vm --list", unknown.map_or("", |name| name));
    let chosen = match args.scenarios.is_empty() {
        true => ALL.iter().collect::<Vec<_>>(),
        false => ALL.iter().chain(MEASURES).filter(named).collect(),
    };
    let mut lab = lab(&args.dir)?;
    let failed: Vec<&str> =
        chosen.into_iter().filter(|scenario| !play(scenario, &mut lab)).map(|scenario| scenario.name).collect();
    ensure!(failed.is_empty(), "failed: {}; what the guests said is in {}", failed.join(", "), lab.logs().display());
    Ok(())
}

/// A lab that leaves nothing behind when this process is interrupted: guests end with it by
/// themselves, the lab's directory does not.
fn lab(dir: &Path) -> anyhow::Result<Lab> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    // Before any thread starts, so that all inherit it.
    signals.thread_block()?;
    let lab = Lab::new(dir, &dir.join("logs"))?;
    let (directory, logs) = (lab.path().to_owned(), lab.logs().to_owned());
    std::thread::spawn(move || {
        let signal = signals.wait();
        println!("interrupted; what the guests said is in {}", logs.display());
        let _ = std::fs::remove_dir_all(directory);
        std::process::exit(128 + signal.map_or(0, |signal| signal as i32));
    });
    Ok(lab)
}

/// True if it has shown what it is to show.
fn play(scenario: &Scenario, lab: &mut Lab) -> bool {
    println!("== {}: {}", scenario.name, scenario.shows);
    attempt(scenario, lab, true)
}

/// If it fails, what comes next begins with fresh guests: the next scenario, or this one once more
/// if QEMU may be blamed and is to blame.
fn attempt(scenario: &Scenario, lab: &mut Lab, may_blame: bool) -> bool {
    let Scenario { name, play, .. } = scenario;
    let started = Instant::now();
    let played = play(lab);
    let took = started.elapsed();
    let Err(error) = played else {
        println!("== {name}: shown in {took:.0?}");
        return true;
    };
    lab.running().for_each(|guest| println!("{}{}", guest.last_words(), guest.said_by_loads()));
    let blamed = lab.running().find(|guest| may_blame && guest.kernel_has_failed());
    let blamed = blamed.map(|guest| (guest.name.clone(), guest.log.clone()));
    lab.power_off_all();
    let Some((guest, log)) = blamed else {
        println!("== {name}: FAILED after {took:.0?}: {error:#}");
        return false;
    };
    println!(
        "== {name}: after {took:.0?}, {guest}'s kernel met a fault of its own, which says nothing of annex; ONCE MORE: {error:#}"
    );
    // Kept, and out of the next boot's way.
    let _ = std::fs::rename(&log, log.with_extension("fault.log"));
    attempt(scenario, lab, false)
}

fn shell(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(DONORS, &Settings::default())?;
    let names: Vec<_> = lab.running().map(|guest| guest.name.as_str()).collect();
    println!(
        "up: {}; a line is a guest's name and a command for its shell, or cut or mend and a donor's name",
        names.join(", ")
    );
    let mut lines = std::io::stdin().lock().lines();
    loop {
        print!("> ");
        std::io::stdout().flush()?;
        let Some(line) = lines.next().transpose()? else { return Ok(()) };
        let (first, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match (first, rest.strip_prefix("donor").and_then(|n| n.parse().ok()).filter(|n| (1..=DONORS).contains(n))) {
            ("", _) => {}
            ("cut", Some(nth)) => lab.cut(nth),
            ("mend", Some(nth)) => lab.mend(nth),
            _ => match lab.named(first).and_then(|guest| guest.run(rest, Duration::from_secs(600))) {
                Ok(output) => println!("{}{}exit code {}", output.stdout, output.stderr, output.code),
                Err(e) => println!("{e:#}"),
            },
        }
    }
}
