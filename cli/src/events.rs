//! `annex events`: what happened, a line each, and what happens from now on.

use crate::client::Client;
use crate::command::EventsArgs;
use crate::failure::Failure;
use crate::output::{print, show};
use annex_shared::event::Event;
use annex_shared::printable::{printable, printable_json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often annexd is asked for more.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub fn events(client: &Client, args: &EventsArgs, json: bool) -> Result<(), Failure> {
    let since = args.since.map_or(0, |span| now_ms().saturating_sub(span.0.as_millis() as u64));
    let mut events = client.events(0)?;
    let mut last = events.last().map_or(0, |event| event.seq);
    events.retain(|event| event.last_ms >= since);
    if !args.follow {
        return show(json, &events, |events| match events.as_slice() {
            [] => "no events\n".to_owned(),
            events => events.iter().map(line).collect(),
        });
    }
    let mut is_away = false;
    loop {
        for event in &events {
            if !print(&if json { json_line(event)? } else { line(event) })? {
                return Ok(());
            }
        }
        std::thread::sleep(LOOK_EVERY);
        events = match client.events(last) {
            Ok(events) => {
                is_away = false;
                events
            }
            // The next annexd knows what happened meanwhile.
            Err(away @ (Failure::NotRunning { .. } | Failure::Lost(_))) => {
                if !std::mem::replace(&mut is_away, true) {
                    eprintln!("annex: {}; waiting for it", printable(&away.to_string()));
                }
                Vec::new()
            }
            Err(other) => return Err(other),
        };
        if let Some(event) = events.last() {
            last = event.seq;
        }
    }
}

fn json_line(event: &Event) -> Result<String, Failure> {
    let text = serde_json::to_string(event).map_err(|error| Failure::Garbled(error.to_string()))?;
    Ok(format!("{}\n", printable_json(&text)))
}

pub fn line(event: &Event) -> String {
    let again = match event.count {
        0 | 1 => String::new(),
        n => format!(" ({n} times until {})", time(event.last_ms)),
    };
    let (subject, cause) = (printable(&event.subject), printable(&event.cause));
    format!("{}  {:<14}  {subject}: {cause}{again}\n", time(event.time_ms), event.kind.name())
}

/// In UTC, as RFC 3339 has it.
fn time(ms: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::event::EventKind;

    #[test]
    fn an_event_is_one_line_whatever_its_names_are() {
        let mut event = Event {
            seq: 1,
            kind: EventKind::DonorAway,
            subject: "oak\x1b[2J".into(),
            cause: "it does not answer\nand more".into(),
            time_ms: 1_700_000_000_000,
            last_ms: 1_700_000_061_000,
            count: 1,
            uid: None,
        };
        let said = line(&event);
        assert!(said.starts_with("2023-11-14T22:13:20Z  donor_away      oak"), "{said:?}");
        assert!(said.lines().count() == 1 && !said.contains('\x1b'), "{said:?}");
        event.count = 3;
        assert!(line(&event).ends_with(" (3 times until 2023-11-14T22:14:21Z)\n"));
    }
}
