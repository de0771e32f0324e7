//! The pages beside the overview, as lines: one app, all conditions, help.

use super::canvas::wrap;
use super::figures::{below, percent, rate};
use super::look::{Look, Tone};
use super::model::{AppRow, Curve, Model, errors};
use super::order::{Choice, trouble};
use super::ui::Page;
use crate::listing;
use crate::table::count;
use annex_shared::api::{Status, format_bytes};
use annex_shared::condition::Severity;
use annex_shared::event::Event;

/// One line of a page.
pub type Text = (String, Tone);

/// So many donors are on the page of an app.
const DONORS: usize = 12;
/// So many events of an app are shown, and of all there is.
const APP_EVENTS: usize = 8;
const ALL_EVENTS: usize = 20;

const HELP: &[&str] = &[
    "faults/s  faults that needed a page from the pool, per second",
    "stall     how long threads waited for such pages: 100 % is one thread all the time",
    "P99       99 % of the faults or operations of the last moments took less than this",
    "IN POOL   what is in the pool and not resident",
    "",
    "Up, Down, PgUp, PgDn, Home, End   select; scroll a long page",
    "Tab       from apps to donors and back",
    "Enter     details of the selected app; Esc goes back",
    "s, r      sort by something else; reversed",
    "/         show only what has these letters in its name; Esc shows all",
    "l         change the limit of the selected app",
    "d         detach the selected app (asks first)",
    "c         all conditions, warnings and the last events",
    "Ctrl-L    draw all anew",
    "q, Ctrl-C quit",
];

pub fn lines(page: Page, model: &Model, status: &Status, width: u16, look: Look) -> Vec<Text> {
    match page {
        Page::Overview => Vec::new(),
        Page::App(id) => match model.app(id) {
            Some(app) => one_app(app, model, width, look),
            None => vec![("the app has ended (Esc goes back)".into(), Tone::Strong)],
        },
        Page::Conditions => all_conditions(model, status, width),
        Page::Help => HELP.iter().flat_map(|line| wrapped(line, width, "          ", Tone::Plain)).collect(),
    }
}

fn wrapped(text: &str, width: u16, indent: &str, tone: Tone) -> Vec<Text> {
    match text.contains("  ") && text.chars().count() <= usize::from(width) {
        // Columns stay where they are.
        true => vec![(text.to_owned(), tone)],
        false => wrap(text, width, indent).into_iter().map(|line| (line, tone)).collect(),
    }
}

/// `name` and what it is, at a column of its own.
fn fact(lines: &mut Vec<Text>, width: u16, name: &str, words: &str) {
    const AT: usize = 11;
    let words = wrap(words, width.saturating_sub(AT as u16), "");
    lines.extend(words.iter().enumerate().map(|(i, line)| {
        let lead = if i == 0 { name } else { "" };
        (format!("{lead:<AT$}{line}"), Tone::Plain)
    }));
}

fn one_app(app: &AppRow, model: &Model, width: u16, look: Look) -> Vec<Text> {
    let (info, rates) = (&app.info, app.rates.as_ref());
    let title = format!("{} (id {}), {}", info.name, info.id, listing::state(info.state));
    let mut lines = vec![(title, Tone::Heading)];
    if !info.note.is_empty() {
        lines.extend(wrapped(&info.note, width, "  ", Tone::Warn));
    }
    let pids: Vec<String> = info.pids.iter().map(ToString::to_string).collect();
    fact(&mut lines, width, "user", &listing::user(info.uid));
    fact(&mut lines, width, "processes", if pids.is_empty() { "none yet".into() } else { pids.join(" ") }.as_str());
    let memory = format!(
        "{} resident, may keep {}; {} in the pool",
        format_bytes(info.resident),
        info.limit_text(),
        format_bytes(info.evicted)
    );
    fact(&mut lines, width, "memory", &memory);
    let curve = |curve: &Curve, least| {
        let room = usize::from(width.saturating_sub(22));
        let top = curve.highest(room, least);
        curve.newest(room).map(|value| look.level(value, top)).collect::<String>()
    };
    if let Some(auto) = &info.auto {
        fact(&mut lines, width, "limit", &listing::auto_words(auto));
    }
    let faults = rate(rates.map(|r| r.faults));
    lines.push((format!("{:<11}{faults:<10} {}", "faults/s", curve(&app.faults, 10.0)), Tone::Plain));
    let stall = rates.map_or_else(|| "-".into(), |r| percent(r.stall));
    lines.push((format!("{:<11}{stall:<10} {}", "stall", curve(&app.stall, 0.1)), Tone::Plain));
    let now = format!(
        "now p50 {}, p99 {}; since the attach p50 {}, p99 {}, longest {}",
        below(rates.and_then(|r| r.latency(0.5))),
        below(rates.and_then(|r| r.latency(0.99))),
        listing::microseconds(info.faults.p50_us),
        listing::microseconds(info.faults.p99_us),
        listing::microseconds(info.faults.max_us)
    );
    fact(&mut lines, width, "latency", &now);
    let flow = format!(
        "{} in and {} out a second; {} in and {} out since the attach ({} needed no write, {} were all zero)",
        rate(rates.map(|r| r.pages_in)),
        rate(rates.map(|r| r.pages_out)),
        count(info.pages_in),
        count(info.pages_evicted),
        count(info.pages_clean),
        count(info.pages_zero)
    );
    fact(&mut lines, width, "pages", &flow);
    let ahead = match info.prefetch_samples {
        0 => format!("{} pages; not judged yet", count(info.pages_prefetched)),
        n => format!(
            "{} pages; {} of the guesses were right",
            count(info.pages_prefetched),
            percent(info.prefetch_hits as f64 / n as f64)
        ),
    };
    fact(&mut lines, width, "prefetch", &ahead);
    lines.push((String::new(), Tone::Plain));
    lines.push(("donors of the pool, the slowest first".into(), Tone::Heading));
    for donor in Choice::default().donors(model).into_iter().take(DONORS) {
        let tone = if trouble(donor) == 0 { Tone::Plain } else { Tone::Bad };
        let (name, state) = (&donor.info.name, listing::donor_state(&donor.info));
        let p99 = below(donor.rates.as_ref().and_then(|r| r.p99_us));
        let text = format!("  {name}: {state}, p99 {p99}, {} errors; {}", count(errors(&donor.info)), donor.info.why);
        lines.extend(wrapped(&text, width, "    ", tone));
    }
    let events: Vec<&Event> =
        model.events.iter().rev().filter(|event| event.subject == info.name).take(APP_EVENTS).collect();
    tell_events(&mut lines, &events, width);
    lines
}

fn all_conditions(model: &Model, status: &Status, width: u16) -> Vec<Text> {
    let mut lines = vec![("conditions".to_owned(), Tone::Heading)];
    for condition in &status.conditions {
        let tone = match condition.severity {
            Severity::Critical => Tone::Bad,
            Severity::Degraded => Tone::Warn,
            Severity::Note => Tone::Plain,
        };
        lines.extend(wrapped(&format!("{}: {}", condition.kind, condition.message), width, "  ", tone));
    }
    if !status.warnings.is_empty() {
        lines.push((String::new(), Tone::Plain));
        lines.push(("warnings".to_owned(), Tone::Heading));
    }
    for warning in &status.warnings {
        lines.extend(wrapped(warning, width, "  ", Tone::Plain));
    }
    let events: Vec<&Event> = model.events.iter().rev().take(ALL_EVENTS).collect();
    tell_events(&mut lines, &events, width);
    lines
}

fn tell_events(lines: &mut Vec<Text>, events: &[&Event], width: u16) {
    if events.is_empty() {
        return;
    }
    lines.push((String::new(), Tone::Plain));
    lines.push(("events, the newest first".into(), Tone::Heading));
    for event in events {
        let line = crate::events::line(event);
        let (time, what) = line.trim_end().split_once("  ").unwrap_or(("", &line));
        lines.extend(wrapped(
            &format!("{time} {}", what.split_whitespace().collect::<Vec<_>>().join(" ")),
            width,
            "  ",
            Tone::Plain,
        ));
    }
}
