//! What is found, as people read it: 80 columns, the commands to copy, and what is to be known.

use super::estimate::Verdict;
use super::report::{Omitted, Program, Report};
use crate::listing::wrap;
use crate::table::{Column, draw};
use annex_shared::api::{format_bytes, format_seconds, format_share};
use annex_shared::printable::printable;

/// Rows for programs, and for processes within one. What else there is is summed up.
const MOST_PROGRAMS: usize = 20;
const MOST_PROCESSES: usize = 4;
/// Of the programs that are left out, so many are named.
const MOST_NAMED: usize = 10;
/// Characters of a name.
const NAME: usize = 28;
/// What stays is told from so many bytes on.
const NOTABLE: u64 = 16 << 20;
/// A clearing that held up page faults so long is told, in milliseconds.
const NOTABLE_PAUSE: f64 = 50.0;

impl Report {
    pub fn text(&self, width: Option<u16>) -> String {
        let mut text = String::new();
        // `1 min` may be 119 s.
        let time = match self.seconds.round() as u64 {
            seconds @ ..600 => format!("{seconds} s"),
            seconds => format_seconds(seconds),
        };
        let interrupted = if self.interrupted { ", until it was interrupted" } else { "" };
        wrap(&mut text, width, "", &format!("looked for {time}{interrupted}; cold is what was not touched meanwhile"));
        if self.programs.is_empty() {
            text.push_str("\nno program to tell of\n");
        } else {
            text.push('\n');
            text.push_str(&self.table());
            self.advice(&mut text, width);
        }
        self.details(&mut text, width);
        text
    }

    fn table(&self) -> String {
        let columns = [
            Column::Text("PROGRAM"),
            Column::Number("RSS"),
            Column::Number("CAN GO"),
            Column::Number("COLD"),
            Column::Number("LIMIT"),
            Column::Number("LOST"),
        ];
        let mut rows = Vec::new();
        for program in self.programs.iter().take(MOST_PROGRAMS) {
            rows.push(row(program));
            if program.processes.len() > 1 {
                for member in program.processes.iter().take(MOST_PROCESSES) {
                    let name = short(&format!("  {} {}", member.pid, member.name));
                    let empty = String::new;
                    rows.push(vec![name, size(member.rss), size(member.takeable), size(member.cold), empty(), empty()]);
                }
                let others = program.processes.iter().skip(MOST_PROCESSES);
                if others.len() > 0 {
                    let sum = others.clone().fold((0, 0, 0), |s, m| (s.0 + m.rss, s.1 + m.takeable, s.2 + m.cold));
                    rows.push(rest(&format!("  {} more", others.len()), sum));
                }
            }
        }
        let others = self.programs.iter().skip(MOST_PROGRAMS);
        if others.len() > 0 {
            let sum = others.clone().fold((0, 0, 0), |s, p| (s.0 + p.rss, s.1 + p.takeable, s.2 + p.cold));
            rows.push(rest(&format!("{} more", others.len()), sum));
        }
        draw(&columns, rows, None)
    }

    /// What to type.
    fn advice(&self, text: &mut String, width: Option<u16>) {
        text.push('\n');
        let worth: Vec<&Program> = self.programs.iter().filter(|program| program.command.is_some()).collect();
        if worth.is_empty() {
            wrap(text, width, "", "nothing here is worth an attach: no program has enough cold memory that could go");
            return;
        }
        let gain = worth.iter().map(|program| program.estimate.gain).sum();
        wrap(text, width, "", &format!("to move {} to donors:", format_bytes(gain)));
        for program in worth {
            // Never broken: it is to be copied.
            text.push_str(&format!("    {}\n", printable(program.command.as_deref().unwrap_or_default())));
        }
        if self.programs.iter().any(|program| program.command.is_some() && program.estimate.verdict == Verdict::Auto) {
            let why = "annexd finds the limit, since what is cold changes fast: a fixed one would cost more than 1 % \
                       of the time";
            wrap(text, width, "auto:", why);
        }
    }

    fn details(&self, text: &mut String, width: Option<u16>) {
        text.push('\n');
        for program in self.programs.iter().take(MOST_PROGRAMS) {
            for note in notes(program) {
                wrap(text, width, &format!("{}:", title(program)), &note);
            }
        }
        self.omitted(text, width);
        if self.small.processes > 0 {
            let (processes, anonymous) = (self.small.processes, format_bytes(self.small.anonymous));
            let said = format!("{processes} processes with {anonymous} of anonymous memory together");
            wrap(text, width, "small:", &said);
        }
        for note in &self.notes {
            wrap(text, width, "note:", note);
        }
        if self.programs.iter().any(|program| program.command.is_some()) {
            let cost = format!(
                "the share of one thread's time that waits at that limit, a fault taking {:.0} µs ({})",
                self.cost.us,
                self.cost.words()
            );
            wrap(text, width, "lost:", &cost);
        }
    }

    fn omitted(&self, text: &mut String, width: Option<u16>) {
        let (others, named): (Vec<&Omitted>, Vec<&Omitted>) =
            self.left_out.iter().partition(|omitted| omitted.kind == "not_allowed");
        for omitted in named.iter().take(MOST_NAMED) {
            let Omitted { name, pid, anonymous, why, .. } = omitted;
            let lead = format!("left out: {name} ({pid}, {})", format_bytes(*anonymous));
            wrap(text, width, &lead, why);
        }
        if named.len() > MOST_NAMED {
            wrap(text, width, "left out:", &format!("{} more (--json names them)", named.len() - MOST_NAMED));
        }
        if !others.is_empty() {
            let bytes = format_bytes(others.iter().map(|omitted| omitted.anonymous).sum());
            let said = format!("{} with {bytes} belong to other users: ask as root", programs(others.len()));
            wrap(text, width, "left out:", &said);
        }
    }
}

fn programs(count: usize) -> String {
    if count == 1 { "1 program".into() } else { format!("{count} programs") }
}

/// As the row says it.
fn title(program: &Program) -> String {
    match (&program.unit, &program.container) {
        (Some(unit), _) => unit.clone(),
        (None, Some(container)) => format!("{} {} {container}", program.pid, program.name),
        (None, None) => format!("{} {}", program.pid, program.name),
    }
}

fn row(program: &Program) -> Vec<String> {
    let (limit, lost) = match program.estimate.verdict {
        Verdict::Leave => ("-".into(), "-".into()),
        verdict => {
            let limit = if verdict == Verdict::Auto { "auto".into() } else { size(program.estimate.limit) };
            (limit, program.estimate.lost.map_or_else(|| "?".into(), format_share))
        }
    };
    vec![short(&title(program)), size(program.rss), size(program.takeable), size(program.cold), limit, lost]
}

fn rest(name: &str, (rss, takeable, cold): (u64, u64, u64)) -> Vec<String> {
    vec![name.into(), size(rss), size(takeable), size(cold), String::new(), String::new()]
}

fn notes(program: &Program) -> Vec<String> {
    let mut notes = Vec::new();
    let stays: u64 = program.untakeable.iter().map(|stays| stays.bytes).sum();
    if stays >= NOTABLE && (stays >= program.rss / 10 || program.is_mostly_untakeable()) {
        let mut parts: Vec<_> = program.untakeable.iter().filter(|part| part.bytes >= stays / 20).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let parts: Vec<_> = parts.iter().map(|part| format!("{} {}", format_bytes(part.bytes), part.why)).collect();
        notes.push(format!("{} can't go: {}", format_bytes(stays), parts.join(", ")));
    }
    if program.huge >= NOTABLE && program.huge >= program.takeable / 10 {
        let huge = format_bytes(program.huge);
        notes.push(format!("{huge} are in huge pages, where one touch makes 2 MiB hot: more may be cold"));
    }
    let ended: Vec<_> = program.missed.iter().filter(|missed| missed.kind == "ended").collect();
    if !ended.is_empty() {
        let bytes = format_bytes(ended.iter().map(|missed| missed.anonymous).sum());
        notes.push(format!("{} of its processes ended meanwhile ({bytes}); they are not counted", ended.len()));
    }
    for missed in program.missed.iter().filter(|missed| missed.kind != "ended").take(2) {
        notes.push(format!("process {} {}", missed.pid, missed.why));
    }
    if program.paused_ms >= NOTABLE_PAUSE {
        notes.push(format!("page faults waited up to {:.0} ms when looking began", program.paused_ms));
    }
    notes
}

/// At most eight characters: `1.5 GiB`, `1023 MiB`.
fn size(bytes: u64) -> String {
    let text = format_bytes(bytes);
    match text.split_once(' ') {
        Some((number, unit)) if text.len() > 8 => {
            format!("{:.0} {unit}", number.parse::<f64>().unwrap_or_default())
        }
        _ => text,
    }
}

fn short(name: &str) -> String {
    let name = printable(name);
    if name.chars().count() <= NAME { name.into_owned() } else { name.chars().take(NAME - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::cost::Cost;
    use crate::advise::estimate::Estimate;
    use crate::advise::report::{Member, Small, Stays};
    use annex_shared::mapping::Obstacle;

    const MIB: u64 = 1 << 20;

    fn program(name: &str, pid: i32, verdict: Verdict) -> Program {
        let estimate =
            Estimate { limit: 1023 * MIB, gain: 300 * MIB, faults_per_s: Some(120.0), lost: Some(0.006), verdict };
        Program {
            name: name.into(),
            unit: None,
            container: None,
            pid,
            rss: 2000 * MIB,
            takeable: 1500 * MIB,
            hot: 900 * MIB,
            cold: 600 * MIB,
            huge: 0,
            untakeable: vec![
                Stays { why: Obstacle::Shared, bytes: 480 * MIB },
                Stays { why: Obstacle::Stack, bytes: MIB },
            ],
            estimate,
            command: (verdict != Verdict::Leave).then(|| format!("annex attach {pid} --local 1023M")),
            paused_ms: 3.0,
            looks: Vec::new(),
            processes: Vec::new(),
            missed: Vec::new(),
        }
    }

    fn report(programs: Vec<Program>) -> Report {
        Report {
            seconds: 59.9,
            interrupted: false,
            cost: Cost::known(None),
            programs,
            left_out: Vec::new(),
            small: Small { processes: 0, anonymous: 0 },
            notes: Vec::new(),
        }
    }

    fn omitted(kind: &'static str, why: &str) -> Omitted {
        Omitted { name: "postgres".into(), pid: 7, anonymous: 90 * MIB, kind, why: why.into() }
    }

    #[test]
    fn a_row_says_what_to_type_and_what_stays() {
        let text =
            report(vec![program("redis", 4711, Verdict::Attach), program("busy", 9, Verdict::Leave)]).text(Some(80));
        let row = text.lines().find(|line| line.starts_with("4711 redis")).expect("a row");
        let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["4711 redis", "2.0 GiB", "1.5 GiB", "600 MiB", "1023 MiB", "0.6 %"], "{text}");
        assert!(text.contains("looked for 60 s;"), "{text}");
        assert!(text.contains("\nto move 300 MiB to donors:\n    annex attach 4711 --local 1023M\n"), "{text}");
        assert!(text.contains("4711 redis: 481 MiB can't go: 480 MiB shared memory\n"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("9 busy") && line.ends_with('-')), "{text}");
        assert!(text.replace("\n    ", " ").contains("a fault taking 50 µs"), "{text}");
    }

    #[test]
    fn the_table_fits_80_columns_whatever_names_are_in_it() {
        let mut unit = program("x", 1, Verdict::Auto);
        unit.unit = Some("a-service-with-a-very-long-name-indeed-and-an-escape-\x1b[2J.service".into());
        let sized = |pid| Member {
            pid,
            name: "a-long-process-name-and-more".into(),
            rss: 1023 * MIB,
            takeable: 1023 * MIB + MIB / 2,
            hot: 0,
            cold: 1023 * MIB + MIB / 2,
        };
        unit.processes = (4_194_300..4_194_310).map(sized).collect();
        let mut all = vec![unit];
        all.extend((10..40).map(|pid| program("p", pid, Verdict::Leave)));
        let text = report(all).text(Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("…") && text.contains("  6 more") && text.contains("\n11 more"), "{text}");
        assert!(text.contains("auto:"), "{text}");
    }

    #[test]
    fn what_is_left_out_is_told_with_its_reason() {
        let mut found = report(Vec::new());
        found.left_out = vec![
            omitted("not_allowed", "belongs to another user"),
            omitted("traced", "can't be taken while process 8 traces it"),
            omitted("not_allowed", "belongs to another user"),
        ];
        found.small = Small { processes: 12, anonymous: 50 * MIB };
        found.interrupted = true;
        let text = found.text(Some(80));
        assert!(text.contains("until it was interrupted") && text.contains("no program to tell of"), "{text}");
        assert!(text.contains("left out: postgres (7, 90 MiB) can't be taken while process 8 traces it\n"), "{text}");
        assert!(text.contains("left out: 2 programs with 180 MiB belong to other users: ask as root\n"), "{text}");
        assert!(text.contains("small: 12 processes with 50 MiB"), "{text}");
    }
}
