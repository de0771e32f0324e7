//! A screen as a function of what is known and where the user is: [`view`].
//!
//! From the top: what annexd is and why it does not answer, conditions, curves, donors, apps, and a
//! line with keys, a question or what came of a change. Other pages take the place of all that is
//! below the conditions: see [`super::pages`].

use super::canvas::{Canvas, Column, columns, wrap};
use super::figures::{below, percent, rate};
use super::look::{Look, Tone};
use super::model::{AppRow, DonorRow, Model, errors};
use super::order::trouble;
use super::pages;
use super::ui::{Focus, Page, Prompt, Ui};
use crate::listing;
use crate::table::count;
use annex_shared::api::{AppState, DonorState, Status, format_bytes, format_seconds};
use annex_shared::condition::Severity;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// On less than this nothing can be read.
const LEAST: (u16, u16) = (40, 10);
/// So many lines of conditions are on the overview; `c` shows all.
const CONDITIONS: usize = 5;
/// Screens lower than this need the lines of the curves for apps.
const CURVES_FROM: u16 = 16;
/// Where curves begin.
const CURVES_AT: u16 = 36;

const APPS: &[Column<AppRow>] = &[
    Column { head: "APP", width: 0, from: 0, cell: |row| row.info.name.clone() },
    Column { head: "USER", width: 10, from: 130, cell: |row| listing::user(row.info.uid) },
    Column { head: "PID", width: 12, from: 120, cell: |row| listing::pids(&row.info) },
    Column { head: "STATE", width: 9, from: 100, cell: |row| listing::state(row.info.state).into() },
    Column { head: "LIMIT", width: 10, from: 56, cell: |row| row.info.local.to_string() },
    Column { head: "LIMIT", width: 16, from: 100, cell: |row| row.info.limit_text() },
    Column { head: "RESIDENT", width: 10, from: 66, cell: |row| format_bytes(row.info.resident) },
    Column { head: "IN POOL", width: 10, from: 0, cell: |row| format_bytes(row.info.evicted) },
    Column { head: "FAULTS/S", width: 8, from: 0, cell: |row| rate(row.rates.as_ref().map(|r| r.faults)) },
    Column { head: "IN/S", width: 6, from: 110, cell: |row| rate(row.rates.as_ref().map(|r| r.pages_in)) },
    Column { head: "OUT/S", width: 6, from: 110, cell: |row| rate(row.rates.as_ref().map(|r| r.pages_out)) },
    Column { head: "P50", width: 8, from: 140, cell: |row| below(row.rates.as_ref().and_then(|r| r.latency(0.5))) },
    Column { head: "P99", width: 8, from: 50, cell: |row| below(row.rates.as_ref().and_then(|r| r.latency(0.99))) },
    Column {
        head: "STALL",
        width: 7,
        from: 0,
        cell: |row| row.rates.as_ref().map_or_else(|| "-".into(), |r| percent(r.stall)),
    },
];

const DONORS: &[Column<DonorRow>] = &[
    Column { head: "DONOR", width: 0, from: 0, cell: |row| row.info.name.clone() },
    Column { head: "ADDRESS", width: 24, from: 130, cell: |row| row.info.address.clone() },
    Column { head: "STATE", width: 8, from: 0, cell: |row| listing::donor_state(&row.info).into() },
    Column { head: "VIA", width: 5, from: 60, cell: |row| listing::via(row.info.transport) },
    Column {
        head: "SLABS",
        width: 9,
        from: 100,
        cell: |row| format!("{}/{}", row.info.slabs_held, row.info.slabs_capacity),
    },
    Column { head: "USED", width: 10, from: 50, cell: |row| format_bytes(row.info.used) },
    Column { head: "READS/S", width: 8, from: 0, cell: |row| rate(row.rates.as_ref().map(|r| r.reads)) },
    Column { head: "WRITES/S", width: 8, from: 66, cell: |row| rate(row.rates.as_ref().map(|r| r.writes)) },
    Column {
        head: "BYTES/S",
        width: 10,
        from: 110,
        cell: |row| row.rates.as_ref().map_or_else(|| "-".into(), |r| format_bytes(r.bytes as u64)),
    },
    Column { head: "P99", width: 8, from: 0, cell: |row| below(row.rates.as_ref().and_then(|r| r.p99_us)) },
    Column { head: "ERRORS", width: 6, from: 66, cell: |row| count(errors(&row.info)) },
];

/// The screen.
pub fn view(model: &Model, ui: &Ui, look: Look, area: Rect) -> Buffer {
    let mut buffer = Buffer::empty(area);
    let mut canvas = Canvas { buffer: &mut buffer, look };
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("the terminal is too small: {}x{} is the least", LEAST.0, LEAST.1);
        for (y, line) in wrap(&text, area.width, "").iter().enumerate() {
            canvas.put(0, y as u16, area.width, line, Tone::Bad);
        }
        return buffer;
    }
    let mut y = title(&mut canvas, model, ui);
    let bottom = area.height - 1;
    let Some(status) = &model.status else {
        last_line(&mut canvas, model, ui);
        return buffer;
    };
    match ui.page {
        Page::Overview => {
            y = conditions(&mut canvas, status, y);
            if area.height >= CURVES_FROM {
                y = curves(&mut canvas, model, status, y);
            }
            lists(&mut canvas, model, ui, y + 1);
        }
        page => {
            let lines = pages::lines(page, model, status, area.width, look);
            let room = usize::from(bottom.saturating_sub(y + 1));
            let first = ui.scroll.min(lines.len().saturating_sub(room));
            for (i, (text, tone)) in lines.iter().skip(first).take(room).enumerate() {
                canvas.put(0, y + 1 + i as u16, area.width, text, *tone);
            }
        }
    }
    last_line(&mut canvas, model, ui);
    buffer
}

/// As many lines as [`view`] needs to leave nothing out.
pub fn height_of_all(model: &Model, width: u16) -> u16 {
    let conditions = model.status.as_ref().map_or(0, |status| condition_lines(status, width).len());
    let rows = model.apps.len().max(1) + model.donors.len().max(1);
    (conditions + rows + 12).max(usize::from(CURVES_FROM)).min(usize::from(u16::MAX)) as u16
}

/// What annexd is, and why it does not answer. The line below.
fn title(canvas: &mut Canvas<'_>, model: &Model, ui: &Ui) -> u16 {
    let width = canvas.buffer.area.width;
    let what = match &model.status {
        Some(s) => format!("annexd {}, up {}", s.version, format_seconds(s.uptime_s)),
        None => "annex top".into(),
    };
    canvas.put(0, 0, width, &what, Tone::Heading);
    let mut sorted = format!("by {}", ui.choice.order.name());
    if ui.choice.is_reversed {
        sorted.push_str(", reversed");
    }
    if !ui.choice.filter.is_empty() {
        sorted = format!("only '{}', {sorted}", ui.choice.filter);
    }
    if ui.page == Page::Overview {
        canvas.put_right(width / 2, 0, width.div_ceil(2), &sorted, Tone::Plain);
    }
    let mut lines: Vec<(String, Tone)> = Vec::new();
    if let Some(why) = &model.away {
        lines.extend(wrap(why, width, "  ").into_iter().take(3).map(|line| (line, Tone::Bad)));
    }
    match (&model.away, &model.status) {
        (None, Some(_)) => {}
        (None, None) => lines.push(("waiting for annexd's first answer".into(), Tone::Plain)),
        (Some(_), None) => lines.push(("waiting for it".into(), Tone::Strong)),
        (Some(_), Some(_)) => lines.push(("waiting for it; below is what it said last".into(), Tone::Strong)),
    }
    for (i, (line, tone)) in lines.iter().enumerate() {
        canvas.put(0, 1 + i as u16, width, line, *tone);
    }
    1 + lines.len() as u16
}

/// Each condition in as many lines as it takes; critical ones are marked `!!`, others `!`.
pub fn condition_lines(status: &Status, width: u16) -> Vec<(String, Tone)> {
    let mut lines = Vec::new();
    for condition in &status.conditions {
        let (mark, tone) = match condition.severity {
            Severity::Critical => ("!! ", Tone::Bad),
            Severity::Degraded => ("!  ", Tone::Warn),
            Severity::Note if condition.kind.name() == "healthy" => ("   ", Tone::Good),
            Severity::Note => ("   ", Tone::Plain),
        };
        let text = wrap(&condition.message, width.saturating_sub(3), "");
        lines.extend(text.iter().enumerate().map(|(i, line)| {
            let lead = if i == 0 { mark } else { "   " };
            (format!("{lead}{line}"), tone)
        }));
    }
    lines
}

fn conditions(canvas: &mut Canvas<'_>, status: &Status, y: u16) -> u16 {
    let width = canvas.buffer.area.width;
    let lines = condition_lines(status, width);
    // A small screen needs its lines for apps.
    let room = match canvas.look.is_screen() {
        true => CONDITIONS.min(usize::from(canvas.buffer.area.height / 5)).max(1),
        false => lines.len(),
    };
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    for (i, (text, tone)) in lines.iter().take(shown).enumerate() {
        canvas.put(0, y + i as u16, width, text, *tone);
    }
    let mut y = y + shown as u16;
    if shown < lines.len() {
        canvas.put(0, y, width, &format!("   … {} more lines (c shows all)", lines.len() - shown), Tone::Plain);
        y += 1;
    }
    y
}

fn curves(canvas: &mut Canvas<'_>, model: &Model, status: &Status, y: u16) -> u16 {
    let pool = &status.pool;
    let stall = model.stall.now().map_or_else(|| "-".into(), percent);
    let used = model.used.now().map_or_else(|| "-".into(), percent);
    let used = format!("{used}, {} of {}", format_bytes(pool.used), format_bytes(pool.capacity));
    let width = canvas.buffer.area.width;
    let room = width.saturating_sub(CURVES_AT);
    let shown = usize::from(room);
    let all = [
        ("faults/s", rate(model.faults.now()), &model.faults, model.faults.highest(shown, 10.0)),
        ("stall", stall, &model.stall, model.stall.highest(shown, 0.1)),
        ("pool", used, &model.used, 1.0),
    ];
    for (i, (name, value, curve, top)) in all.into_iter().enumerate() {
        let y = y + i as u16;
        canvas.put(0, y, 9, name, Tone::Heading);
        canvas.put(9, y, CURVES_AT - 10, &value, Tone::Plain);
        canvas.curve(CURVES_AT, y, room, curve, top);
    }
    y + 3
}

fn lists(canvas: &mut Canvas<'_>, model: &Model, ui: &Ui, y: u16) {
    let area = canvas.buffer.area;
    let (apps, donors) = (ui.choice.apps(model), ui.choice.donors(model));
    // Two headings, the line between and the last line are no rows.
    let room = area.height.saturating_sub(y + 4);
    let (apps_want, donors_want) = (apps.len().max(1), donors.len().max(1));
    let donor_rows = match ui.focus {
        Focus::Apps => beside(room, donors_want, apps_want),
        Focus::Donors => room.saturating_sub(beside(room, apps_want, donors_want)),
    };
    let donors_at = Rect { x: 0, y, width: area.width, height: 1 + donor_rows };
    let apps_at = Rect { y: y + donor_rows + 2, height: 1 + room.saturating_sub(donor_rows), ..donors_at };
    let names: Vec<&str> = donors.iter().map(|row| row.info.name.as_str()).collect();
    // A frame for scripts has no selection.
    let is_live = canvas.look.is_screen();
    let of = |focus: Focus, selected: usize| (is_live && ui.focus == focus).then_some(selected);
    canvas.table(donors_at, DONORS, &donors, of(Focus::Donors, ui.selected_donor(&names)), donor_tone);
    canvas.table(apps_at, APPS, &apps, of(Focus::Apps, ui.selected_app(&apps)), app_tone);
    let nothing = |all: usize, none: &'static str| if all == 0 { none } else { "nothing has such a name" };
    if donors.is_empty() {
        canvas.put(2, donors_at.y + 1, area.width, nothing(model.donors.len(), "no donors configured"), Tone::Plain);
    }
    if apps.is_empty() {
        let none = "no apps (annex run and annex attach make them)";
        canvas.put(2, apps_at.y + 1, area.width, nothing(model.apps.len(), none), Tone::Plain);
    }
}

/// How many of `room` lines the list gets that the user is not in: a third, or what the other one
/// leaves.
fn beside(room: u16, wanted: usize, other: usize) -> u16 {
    let left = usize::from(room).saturating_sub(other);
    wanted.min(left.max(usize::from(room / 3)).max(1)) as u16
}

fn app_tone(row: &AppRow) -> Tone {
    match row.stall_now() {
        stall if stall >= 0.5 => Tone::Bad,
        stall if stall >= 0.1 => Tone::Warn,
        _ if !row.info.note.is_empty() => Tone::Warn,
        _ if row.info.state == AppState::Detaching => Tone::Strong,
        _ => Tone::Plain,
    }
}

fn donor_tone(row: &DonorRow) -> Tone {
    match trouble(row) {
        0 => Tone::Plain,
        _ if row.info.state == DonorState::Lost => Tone::Bad,
        _ => Tone::Warn,
    }
}

/// A question, what came of a change, why the selected app is above its limit, or the keys.
fn last_line(canvas: &mut Canvas<'_>, model: &Model, ui: &Ui) {
    if !canvas.look.is_screen() {
        return;
    }
    let keys = match ui.page {
        Page::Overview if ui.focus == Focus::Donors => "q quit  ? help  Tab apps  s sort  / filter",
        Page::Overview => "q quit  ? help  Tab donors  s sort  / filter  Enter details  l limit  d detach",
        Page::App(_) => "Esc back  l limit  d detach  q quit",
        Page::Conditions | Page::Help => "Esc back  q quit",
    };
    let (text, tone) = match (&ui.prompt, &ui.said) {
        (Prompt::Filter, _) => {
            (format!("only names with: {}_  (Enter keeps it, Esc shows all)", ui.choice.filter), Tone::Strong)
        }
        (Prompt::Limit { app, typed, error }, _) if error.is_empty() => {
            (format!("new limit of {app} (512M, 2G, 50%; Esc leaves it): {typed}_"), Tone::Strong)
        }
        (Prompt::Limit { typed, error, .. }, _) => (format!("{error}: {typed}_"), Tone::Bad),
        (Prompt::Detach { app, evicted }, _) => {
            (format!("detach {app} and bring {} back? (y/n)", format_bytes(*evicted)), Tone::Strong)
        }
        (Prompt::None, Some(said)) => (said.text.clone(), if said.is_error { Tone::Bad } else { Tone::Strong }),
        (Prompt::None, None) => match note(model, ui) {
            Some(note) => (note, Tone::Warn),
            None => (keys.to_owned(), Tone::Plain),
        },
    };
    let Rect { width, height, .. } = canvas.buffer.area;
    // A long answer takes the lines above the last one too.
    let lines = if columns(&text) <= width { vec![text] } else { wrap(&text, width, "  ") };
    let first = height.saturating_sub(lines.len() as u16).max(1);
    for (i, line) in lines.iter().enumerate() {
        let padded = format!("{line:<0$}", usize::from(width));
        canvas.put(0, first + i as u16, width, &padded, tone);
    }
}

fn note(model: &Model, ui: &Ui) -> Option<String> {
    if ui.page != Page::Overview || ui.focus != Focus::Apps {
        return None;
    }
    let rows = ui.choice.apps(model);
    let row = rows.get(ui.selected_app(&rows))?;
    (!row.info.note.is_empty()).then(|| format!("{}: {}", row.info.name, row.info.note))
}

#[cfg(test)]
mod tests {
    use super::super::look::Paint;
    use super::super::scripted::{app, donor, event, status, two_apps};
    use super::super::ui::Said;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::style::Color;
    use std::time::Duration;

    fn colours() -> Look {
        Look::of(|name| match name {
            "TERM" => Some("xterm".into()),
            "LANG" => Some("C.UTF-8".into()),
            _ => None,
        })
    }

    fn drawn(model: &Model, ui: &Ui, look: Look, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let shown = view(model, ui, look, Rect::new(0, 0, width, height));
        let draw = terminal.draw(|frame| frame.buffer_mut().clone_from(&shown));
        draw.unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let rows = buffer.content().chunks(usize::from(buffer.area.width));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    fn screen(model: &Model, ui: &Ui, width: u16, height: u16) -> Vec<String> {
        lines(&drawn(model, ui, colours(), width, height))
    }

    fn press(ui: &mut Ui, model: &Model, keys: &str) {
        for c in keys.chars() {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            ui.press(KeyEvent::new(code, KeyModifiers::NONE), model);
        }
    }

    #[test]
    fn a_classic_terminal_has_all_of_it() {
        let said = screen(&two_apps(), &Ui::default(), 80, 24);
        let expected = [
            "annexd 0.1.0, up 2 h 1 min                                         by what hurts",
            "!! AT RISK: 3 of 16 extents have one copy left, whose donor's failure would lose",
            "   their pages; 192 MiB to copy, about 4 s left",
            "!  not up: rack2-db9",
            "   … 2 more lines (c shows all)",
            "faults/s 500                                                                   █",
            "stall    5.0 %                                                                 ▄",
            "pool     50 %, 1 GiB of 2 GiB                                                 ▄▄",
            "",
            "  DONOR                 STATE   VIA       USED  READS/S WRITES/S      P99 ERRORS",
            "  rack2-db9              lost   tcp    700 MiB        0        0        -      0",
            "  rack1-db7                up   tcp    700 MiB      800        0   <32 µs      0",
            "",
            "  APP                      LIMIT   RESIDENT    IN POOL FAULTS/S      P99   STALL",
            "> redis                      50%    768 MiB    256 MiB      500  <128 µs   5.0 %",
            "  sort                       50%    768 MiB    256 MiB        0        -     0 %",
        ];
        assert_eq!(said[..expected.len()], expected);
        assert_eq!(said.len(), 24);
        assert_eq!(said[23], "q quit  ? help  Tab donors  s sort  / filter  Enter details  l limit  d detach");
    }

    #[test]
    fn a_large_terminal_has_more_columns() {
        let said = screen(&two_apps(), &Ui::default(), 200, 50);
        let has =
            |words: &[&str]| said.iter().any(|line| line.split_whitespace().collect::<Vec<_>>().starts_with(words));
        let apps =
            ["APP", "USER", "PID", "STATE", "LIMIT", "RESIDENT", "IN", "POOL", "FAULTS/S", "IN/S", "OUT/S", "P50"];
        assert!(has(&apps), "{said:#?}");
        assert!(has(&["DONOR", "ADDRESS", "STATE", "VIA", "SLABS", "USED", "READS/S"]), "{said:#?}");
        assert!(has(&["rack1-db7", "10.0.0.7:7411", "up", "tcp", "16/56", "700", "MiB", "800"]), "{said:#?}");
        assert!(has(&[">", "redis", "root", "702", "+1", "running", "50%"]), "{said:#?}");
        let encrypted =
            "   pages go to rack1-db7 over the network without encryption or authentication: keep it a trusted one";
        assert_eq!((said[3].as_str(), said.len()), (encrypted, 50));
    }

    #[test]
    fn an_app_has_a_page_of_its_own() {
        let (mut model, mut ui) = (two_apps(), Ui::default());
        model.tell(vec![event("redis", "the pool is full"), event("sort", "the pool is full")]);
        press(&mut ui, &model, "\n");
        let said = screen(&model, &ui, 80, 24);
        let expected = [
            "annexd 0.1.0, up 2 h 1 min",
            "",
            "redis (id 2), running",
            "user       root",
            "processes  702 802",
            "memory     768 MiB resident, may keep 50%; 256 MiB in the pool",
            "faults/s   500        █",
            "stall      5.0 %      ▄",
            "latency    now p50 <128 µs, p99 <128 µs; since the attach p50 98.0 µs, p99 110",
            "           µs, longest 300 µs",
            "pages      1.0k in and 500 out a second; 2.0k in and 1.0k out since the attach",
            "           (5 needed no write, 3 were all zero)",
            "prefetch   1.0k pages; 90 % of the guesses were right",
            "",
            "donors of the pool, the slowest first",
            "  rack2-db9: lost, p99 -, 0 errors; not on this host: tcp",
            "  rack1-db7: up, p99 <32 µs, 0 errors; not on this host: tcp",
            "",
            "events, the newest first",
            "2023-11-14T22:13:20Z app_over_limit redis: the pool is full",
        ];
        assert_eq!(said[..expected.len()], expected);
    }

    #[test]
    fn all_conditions_and_warnings_have_a_page() {
        let (mut model, mut ui) = (two_apps(), Ui::default());
        model.tell(vec![event("redis", "first")]);
        press(&mut ui, &model, "c");
        let said = screen(&model, &ui, 80, 24);
        let expected = [
            "conditions",
            "at_risk: AT RISK: 3 of 16 extents have one copy left, whose donor's failure",
            "  would lose their pages; 192 MiB to copy, about 4 s left",
            "donor_away: not up: rack2-db9",
            "insecure: pages go to rack1-db7 over the network without encryption or",
            "  authentication: keep it a trusted one",
            "",
            "warnings",
            "the spill file is off",
            "",
            "events, the newest first",
            "2023-11-14T22:13:20Z app_over_limit redis: first",
        ];
        assert_eq!(said[2..2 + expected.len()], expected);
    }

    #[test]
    fn an_annexd_that_is_away_is_said_above_what_it_said_last() {
        let mut model = Model::default();
        model.lose("annexd is not running: nothing answers on /run/annex/annexd.sock".into());
        let said = screen(&model, &Ui::default(), 80, 24);
        assert_eq!(said[1], "annexd is not running: nothing answers on /run/annex/annexd.sock");
        assert_eq!(said[2], "waiting for it");
        let mut model = two_apps();
        model.lose("annexd is not running".into());
        let said = screen(&model, &Ui::default(), 80, 24);
        assert_eq!(said[1..3], ["annexd is not running", "waiting for it; below is what it said last"]);
        let redis = said.iter().find(|line| line.contains("redis")).unwrap();
        assert!(redis.contains("768 MiB") && redis.ends_with("-       -"), "{redis}");
    }

    #[test]
    fn questions_and_refusals_are_on_the_last_lines() {
        let (model, mut ui) = (two_apps(), Ui::default());
        press(&mut ui, &model, "d");
        assert_eq!(screen(&model, &ui, 80, 24)[23], "detach redis and bring 256 MiB back? (y/n)");
        press(&mut ui, &model, "nl50");
        assert_eq!(screen(&model, &ui, 80, 24)[23], "new limit of redis (512M, 2G, 50%; Esc leaves it): 50_");
        press(&mut ui, &model, "\n");
        let said = screen(&model, &ui, 80, 24).join("\n");
        assert!(said.contains("bad limit '50'") && said.ends_with("50_"), "{said}");
        let text = "may not change redis: it belongs to user 0, you are user 65534: ask as root".into();
        let mut ui = Ui::default();
        ui.said = Some(Said { text, is_error: true });
        assert!(screen(&model, &ui, 80, 24)[23].starts_with("may not change redis: it belongs to user 0"));
    }

    #[test]
    fn a_note_of_the_selected_app_takes_the_place_of_the_keys() {
        let mut model = two_apps();
        model.apps.iter_mut().for_each(|app| app.info.note = "the pool is full".into());
        assert_eq!(screen(&model, &Ui::default(), 80, 24)[23], "redis: the pool is full");
    }

    #[test]
    fn without_colours_marks_tell_the_same() {
        let mono = Look::of(|name| (name == "NO_COLOR" || name == "TERM").then(|| "1".into()));
        assert_eq!(mono.paint, Paint::Mono);
        let buffer = drawn(&two_apps(), &Ui::default(), mono, 80, 24);
        assert!(buffer.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        let said = lines(&buffer);
        assert!(said[1].starts_with("!! AT RISK") && said.iter().any(|line| line.starts_with("> redis")), "{said:?}");
        let plain = Look::of(|_| None);
        let buffer = drawn(&two_apps(), &Ui::default(), plain, 80, 24);
        assert!(buffer.content().iter().all(|cell| cell.modifier.is_empty() && cell.fg == Color::Reset));
        assert!(lines(&buffer).iter().any(|line| line.starts_with("> redis")));
    }

    #[test]
    fn a_limit_that_is_found_is_told_from_a_fixed_one_where_there_is_room() {
        let mut redis = app(1, "redis", 0);
        redis["local"] = "512M".into();
        redis["auto"] = serde_json::json!({"target": 0.01, "stall": 0.07, "doing": "raised: waited 7 % of 1 %"});
        let mut model = Model::default();
        model.take(status(&[redis], &[]), Duration::from_secs(1));
        let mut ui = Ui::default();
        let row = |ui: &Ui, width| screen(&model, ui, width, 24).into_iter().find(|line| line.starts_with("> redis"));
        assert!(row(&ui, 120).is_some_and(|line| line.contains(" auto (512 MiB) ")));
        assert!(row(&ui, 80).is_some_and(|line| line.contains(" 512 MiB ") && !line.contains("auto")));
        ui.press(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE), &model);
        let page = screen(&model, &ui, 80, 24);
        let line = "limit      stall 7 %, target 1 %; raised: waited 7 % of 1 %";
        assert!(page.iter().any(|l| l == line), "{page:#?}");
    }

    #[test]
    fn more_rows_than_fit_follow_the_selection() {
        let mut model = Model::default();
        let apps: Vec<_> = (0..200).map(|n| app(n, &format!("app{n:03}"), 0)).collect();
        let donors: Vec<_> = (0..1000).map(|n| donor(&format!("donor{n:03}"), "up", 0)).collect();
        model.take(status(&apps, &donors), Duration::from_secs(1));
        let mut ui = Ui::default();
        let said = screen(&model, &ui, 80, 24);
        assert!(said.iter().any(|line| line.starts_with("  DONOR 1-") && line.contains(" of 1000 ")), "{said:#?}");
        ui.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE), &model);
        let said = screen(&model, &ui, 80, 24);
        assert!(said.iter().any(|line| line.starts_with("> app199 ")), "{said:#?}");
        assert!(said.iter().any(|line| line.contains("-200 of 200 ")), "{said:#?}");
        press(&mut ui, &model, "\t/donor99");
        ui.press(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE), &model);
        assert!(screen(&model, &ui, 80, 24).iter().any(|line| line.trim() == "nothing has such a name"));
    }

    #[test]
    fn names_from_others_command_no_terminal() {
        let mut model = Model::default();
        model.take(status(&[app(1, "a\x1b[2J\n\u{202e}b", 0)], &[donor("d\u{9b}1m", "up", 0)]), Duration::ZERO);
        let buffer = drawn(&model, &Ui::default(), colours(), 80, 24);
        let odd = |c: char| annex_shared::printable::is_control(c);
        assert!(buffer.content().iter().all(|cell| !cell.symbol().contains(odd)));
        assert!(lines(&buffer).iter().any(|line| line.contains("a\\u{1b}[2J")));
    }

    #[test]
    fn every_size_is_drawn_without_harm() {
        let model = two_apps();
        for (width, height) in [(1, 1), (39, 30), (40, 10), (60, 12), (79, 23), (300, 9), (500, 120)] {
            for keys in ["", "\n", "c", "?", "/x", "l", "d"] {
                let mut ui = Ui::default();
                press(&mut ui, &model, keys);
                assert_eq!(screen(&model, &ui, width, height).len(), usize::from(height));
            }
        }
        assert!(screen(&model, &Ui::default(), 39, 30)[0].starts_with("the terminal is too small: 40x10"));
    }

    #[test]
    fn nothing_is_configured_and_nothing_runs() {
        let mut model = Model::default();
        model.take(status(&[], &[]), Duration::ZERO);
        let said = screen(&model, &Ui::default(), 80, 24);
        assert!(said.iter().any(|line| line.contains("no donors configured")), "{said:#?}");
        assert!(said.iter().any(|line| line.contains("no apps (annex run")), "{said:#?}");
    }
}
