//! `annex top --once`: one frame as text, or what it is made of as JSON. Nothing is left out or
//! shortened, whatever the size of the terminal.

use super::look::Look;
use super::model::Model;
use super::order::Choice;
use super::ui::Ui;
use super::view::{height_of_all, view};
use ratatui::layout::Rect;
use serde_json::{Value, json};

/// Wide enough for every column.
const WIDTH: u16 = 160;

pub fn text(model: &Model) -> String {
    let longest = |names: &mut dyn Iterator<Item = &str>| names.map(super::canvas::columns).max().unwrap_or(0);
    let apps = longest(&mut model.apps.iter().map(|row| row.info.name.as_str()));
    let donors = longest(&mut model.donors.iter().map(|row| row.info.name.as_str()));
    let width = WIDTH.saturating_add(apps.max(donors));
    let area = Rect::new(0, 0, width, height_of_all(model, width));
    let buffer = view(model, &Ui::default(), Look::PLAIN, area);
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(width)) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let end = text.trim_end().len();
    text.truncate(end);
    text.push('\n');
    text
}

/// Rates are per second. What is not known is null.
pub fn json(model: &Model) -> Value {
    let choice = Choice::default();
    let apps = choice.apps(model).into_iter().map(|row| {
        let rates = row.rates.as_ref();
        json!({
            "app": row.info,
            "faults_per_s": rates.map(|r| r.faults),
            "stall_share": rates.map(|r| r.stall),
            "pages_in_per_s": rates.map(|r| r.pages_in),
            "pages_out_per_s": rates.map(|r| r.pages_out),
            "p50_below_us": rates.and_then(|r| r.latency(0.5)),
            "p99_below_us": rates.and_then(|r| r.latency(0.99)),
        })
    });
    let donors = choice.donors(model).into_iter().map(|row| {
        let rates = row.rates.as_ref();
        json!({
            "donor": row.info,
            "reads_per_s": rates.map(|r| r.reads),
            "writes_per_s": rates.map(|r| r.writes),
            "bytes_per_s": rates.map(|r| r.bytes),
            "errors_per_s": rates.map(|r| r.errors),
            "p99_below_us": rates.and_then(|r| r.p99_us),
        })
    });
    json!({
        "conditions": model.status.as_ref().map(|status| &status.conditions),
        "pool": model.status.as_ref().map(|status| &status.pool),
        "faults_per_s": model.faults.now(),
        "stall_share": model.stall.now(),
        "apps": apps.collect::<Vec<_>>(),
        "donors": donors.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::scripted::{app, donor, status, two_apps};
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_frame_is_plain_text_with_every_row_and_every_name() {
        let text = text(&two_apps());
        assert!(text.starts_with("annexd 0.1.0, up 2 h 1 min"), "{text}");
        for part in ["!! AT RISK", "!  not up: rack2-db9", "without encryption", "\npool     50 %, 1 GiB of 2 GiB\n"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let redis = text.lines().find(|line| line.trim_start().starts_with("redis")).unwrap();
        assert!(redis.contains("500") && redis.contains("<128 µs") && redis.ends_with("5.0 %"), "{text}");
        assert!(text.is_ascii() || text.replace('µ', "u").is_ascii(), "{text}");
        assert!(!text.contains("q quit") && text.lines().all(|line| !line.ends_with(' ')), "{text}");
    }

    #[test]
    fn many_rows_are_all_there() {
        let mut model = Model::default();
        let name = |n: u64| format!("a-program-with-a-rather-long-name-that-is-not-cut-{n}");
        let apps: Vec<Value> = (0..200).map(|n| app(n, &name(n), 0)).collect();
        let donors: Vec<Value> = (0..1000).map(|n| donor(&format!("donor{n}"), "up", 0)).collect();
        model.take(status(&apps, &donors), Duration::from_secs(1));
        let text = text(&model);
        for n in 0..200 {
            assert!(text.contains(&format!("{} ", name(n))), "{n}");
        }
        assert!((0..1000).all(|n| text.contains(&format!("  donor{n} "))));
    }

    #[test]
    fn json_has_the_rates() {
        let json = json(&two_apps());
        assert_eq!(json["apps"][0]["app"]["name"], "redis");
        assert_eq!(json["apps"][0]["faults_per_s"], 500.0);
        assert_eq!(json["donors"][1]["reads_per_s"], 800.0);
        assert_eq!(json["conditions"][0]["kind"], "at_risk");
    }
}
