//! `annex advise`: which running programs hold cold memory, before anything is attached.
//!
//! In go PIDs or none, out comes a table of programs with a limit for each. It needs no annexd; an
//! annexd that answers says which programs are attached already, and what a fault costs. Programs
//! are not stopped, and nothing of theirs changes but the accessed bits of pages.
//!
//! - [`process`]: the processes there are. [`group`]: which of them are attached as one.
//! - [`sample`]: clears the accessed bits once and looks several times; [`look`]: one look.
//! - [`estimate`]: from looks to a limit; [`cost`]: what a fault takes.
//! - [`report`]: what is found, as JSON; [`text`]: as a table.
//!
//! How to use it: docs/operations.md. Its options and its JSON: docs/commands.md.

mod cost;
mod estimate;
mod group;
mod look;
mod process;
mod report;
mod sample;
mod text;

use crate::client::Client;
use crate::failure::Failure;
use crate::interrupt;
use crate::listing;
use crate::output::show;
use annex_cli::command::AdviseArgs;
use annex_shared::api::Status;
use annex_shared::printable::printable;
use cost::Cost;
use group::Group;
use indicatif::{ProgressBar, ProgressStyle};
use nix::unistd::Uid;
use process::{LeftOut, Process};
use report::{Omitted, Program, Report, Small};
use sample::Wait;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the progress bar moves.
const TICK: Duration = Duration::from_millis(200);
/// A stub is a process in a program's address space, its child by number.
const STUB: &str = "annex-stub";

pub fn advise(client: &Client, args: &AdviseArgs, json: bool) -> Result<(), Failure> {
    if !Path::new("/proc/self/clear_refs").exists() {
        return Err(Failure::NoClearRefs);
    }
    let interrupted = interrupt::hear()?;
    let status = client.status();
    let known = Known::of(status.as_ref().ok(), process::all());
    if let Some(missing) = args.pids.iter().find(|pid| !known.processes.iter().any(|process| process.pid == **pid)) {
        return Err(Failure::NoProcess(*missing));
    }
    let mut chosen = Chosen::of(&known, args);
    let groups = std::mem::take(&mut chosen.groups);

    let cost = Cost::known(status.as_ref().ok());
    let began = Instant::now();
    let bar = progress(args.time, groups.len());
    let (sampled, is_whole) = if groups.is_empty() {
        (Vec::new(), true)
    } else {
        sample::sample(groups, args.time, |until| wait(&interrupted, &bar, began, until))
    };
    bar.finish_and_clear();

    let seconds = if sampled.is_empty() { 0.0 } else { began.elapsed().as_secs_f64() };
    let mut report = Report {
        seconds,
        interrupted: !is_whole,
        cost,
        programs: Vec::new(),
        left_out: chosen.left_out,
        small: chosen.small,
        notes: notes(&status),
    };
    for program in &sampled {
        match Program::of(program, cost.fault()) {
            Ok(program) => report.programs.push(program),
            Err(omitted) => report.left_out.push(omitted),
        }
    }
    // What is worth an attach before what is not.
    report.programs.sort_by_key(|program| {
        std::cmp::Reverse((program.command.is_some(), program.estimate.gain, program.cold, program.rss))
    });
    show(json, &report, |report| report.text(listing::width()))
}

/// What is to be known before anything is looked at.
struct Known {
    processes: Vec<Process>,
    /// The app of each process that annexd has.
    attached: HashMap<i32, Option<String>>,
    exempt: HashSet<i32>,
}

impl Known {
    fn of(status: Option<&Status>, processes: Vec<Process>) -> Known {
        let parents: HashMap<i32, i32> = processes.iter().map(|process| (process.pid, process.parent)).collect();
        // Where annexd can't be asked, its stubs tell.
        let stubs = processes.iter().filter(|process| process.name == STUB);
        let mut attached: HashMap<i32, Option<String>> = stubs.map(|stub| (stub.parent, None)).collect();
        for app in status.iter().flat_map(|status| &status.apps) {
            attached.extend(app.pids.iter().map(|pid| (*pid, Some(printable(&app.name).into_owned()))));
        }
        let own = processes.iter().filter(|process| process.is_exempt()).map(|process| process.pid);
        let mut exempt: HashSet<i32> = own.collect();
        // annexd itself, and what it descends from.
        let above = |pid: &i32| parents.get(pid).copied().filter(|parent| *parent > 0);
        exempt.extend(std::iter::successors(status.map(|status| status.pid), above).take(parents.len()));
        Known { processes, attached, exempt }
    }

    /// Why a group is not looked at, if it is not.
    fn refuses(&self, group: &Group, is_named: bool) -> Option<LeftOut> {
        let mut members = group.members.iter();
        let user = Uid::effective();
        members.find_map(|process| match () {
            () if self.exempt.contains(&process.pid) => Some(LeftOut::Exempt),
            () if self.attached.contains_key(&process.pid) => {
                Some(LeftOut::Attached(self.attached[&process.pid].clone()))
            }
            () if !user.is_root() && process.uid != user.as_raw() => Some(LeftOut::NotAllowed),
            () if process.tracer != 0 => Some(LeftOut::Traced(process.tracer)),
            () if process.is_32_bit() => Some(LeftOut::ThirtyTwoBit),
            () if is_named => None,
            () => sample::too_large(process).map(LeftOut::TooLarge),
        })
    }
}

/// What is looked at, and what is not.
#[derive(Default)]
struct Chosen {
    groups: Vec<Group>,
    left_out: Vec<Omitted>,
    small: Small,
}

impl Chosen {
    fn of(known: &Known, args: &AdviseArgs) -> Chosen {
        let mut chosen = Chosen::default();
        let own = std::process::id() as i32;
        let is_named = |pid: i32| args.pids.contains(&pid);
        // What is never paged is told of only if it was asked for.
        let listed =
            |process: &&Process| process.pid != own && (is_named(process.pid) || !known.exempt.contains(&process.pid));
        let processes: Vec<Process> = known.processes.iter().filter(listed).cloned().collect();
        let groups = group::groups(&processes, &args.pids, args.least, Uid::effective().is_root());
        let mut grouped = HashSet::new();
        for group in groups {
            if args.pids.is_empty() && group.anonymous() < args.least {
                continue;
            }
            grouped.extend(group.members.iter().map(|member| member.pid));
            match known.refuses(&group, !args.pids.is_empty()) {
                Some(why) => chosen.left_out.push(Omitted::group(&group, &why)),
                None => chosen.groups.push(group),
            }
        }
        if args.pids.is_empty() {
            for process in processes.iter().filter(|process| !grouped.contains(&process.pid)) {
                chosen.small.processes += 1;
                chosen.small.anonymous += process.anonymous;
            }
        }
        chosen
    }
}

fn notes(status: &Result<Status, Failure>) -> Vec<String> {
    let mut notes = Vec::new();
    match status {
        Ok(_) | Err(Failure::NotRunning { .. }) => {}
        Err(failure) => notes.push(format!("annexd was not asked which programs it has: {failure}")),
    }
    notes
}

fn progress(time: Duration, programs: usize) -> ProgressBar {
    let bar = ProgressBar::new(time.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos} of {len} s") {
        bar.set_style(style.progress_chars("=> "));
    }
    let what = if programs == 1 { "1 program".into() } else { format!("{programs} programs") };
    bar.set_message(format!("looking at {what}; Ctrl-C tells what there is"));
    bar
}

fn wait(interrupted: &Receiver<()>, bar: &ProgressBar, began: Instant, until: Instant) -> Wait {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Wait::Over;
        }
        match interrupted.recv_timeout(left.min(TICK)) {
            Ok(()) => return Wait::Interrupted,
            Err(RecvTimeoutError::Timeout) => bar.set_position(began.elapsed().as_secs()),
            // Nobody tells any more.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left.min(TICK)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn process(pid: i32, parent: i32, name: &str, mib: u64) -> Process {
        Process {
            pid,
            parent,
            name: name.into(),
            anonymous: mib * MIB,
            uid: Uid::effective().as_raw(),
            ..Process::default()
        }
    }

    fn args(pids: &[i32]) -> AdviseArgs {
        AdviseArgs { pids: pids.to_vec(), time: Duration::from_secs(1), least: 64 * MIB }
    }

    fn left_out(chosen: &Chosen) -> Vec<(i32, &'static str)> {
        chosen.left_out.iter().map(|omitted| (omitted.pid, omitted.kind)).collect()
    }

    /// Numbers that no process has.
    const BASE: i32 = 1 << 28;

    #[test]
    fn what_is_never_paged_is_told_of_if_it_was_asked_for() {
        let all = vec![
            process(BASE + 1, 1, "shell", 90),
            process(BASE + 2, BASE + 1, "annexd", 100),
            process(BASE + 3, 1, "annex-agent", 100),
            process(BASE + 4, 1, "db", 200),
            process(BASE + 5, 1, "tiny", 3),
        ];
        let known = Known::of(None, all);
        let chosen = Chosen::of(&known, &args(&[]));
        let looked: Vec<i32> = chosen.groups.iter().map(|group| group.members[0].pid).collect();
        assert_eq!(looked, [BASE + 4, BASE + 1]);
        assert_eq!((left_out(&chosen), chosen.small.processes), (vec![], 1));
        let asked = Chosen::of(&known, &args(&[BASE + 3, BASE + 5]));
        assert_eq!(left_out(&asked), [(BASE + 3, "exempt")]);
        assert_eq!(asked.groups.len(), 1, "however little it has");
    }

    #[test]
    fn a_program_is_left_out_if_one_of_its_processes_can_not_be_taken() {
        let traced = Process { tracer: 8, ..process(BASE + 2, BASE + 1, "worker", 5) };
        let all = vec![
            process(BASE + 1, 1, "db", 200),
            traced,
            process(BASE + 3, 1, "web", 200),
            // A stub tells where annexd can't.
            process(BASE + 4, BASE + 3, "annex-stub", 0),
        ];
        let chosen = Chosen::of(&Known::of(None, all), &args(&[]));
        assert_eq!(left_out(&chosen), [(BASE + 1, "traced"), (BASE + 3, "attached")]);
        assert!(chosen.groups.is_empty());
    }
}
