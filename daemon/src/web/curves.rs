//! How apps did in the last hour: a look at each every [`EVERY`], [`LOOKS`] of them, for
//! [`APPS`] apps. In go what the pager tells of its apps and the time. Out come columns for the
//! page. Pure.
//!
//! What is kept takes 1.6 MB at most. It begins anew with annexd; a page that is open keeps what
//! it has.

use annex_shared::api::AppInfo;
use annex_shared::rates::{between, per_second, percentile, waited_share};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// From one look to the next.
pub const EVERY: Duration = Duration::from_secs(10);
/// An hour.
pub const LOOKS: usize = 360;
/// So many apps have curves: those with most memory.
pub const APPS: usize = 100;

#[derive(Default)]
pub struct Curves {
    /// When each look was, in milliseconds since 1970.
    at: VecDeque<u64>,
    last: Option<Instant>,
    apps: BTreeMap<u64, Curve>,
}

/// One app's, up to the last look.
struct Curve {
    name: String,
    before: Counters,
    looks: VecDeque<Look>,
}

/// What only grows.
struct Counters {
    faults: u64,
    waited_us: f64,
    latency_us: Vec<(u64, u64)>,
}

impl Counters {
    fn of(app: &AppInfo) -> Counters {
        let faults = &app.faults;
        Counters { faults: faults.major, waited_us: faults.latency_sum_us, latency_us: faults.latency_us.clone() }
    }
}

#[derive(Clone, Copy)]
struct Look {
    resident: u64,
    pool: u64,
    /// `None` at the first look.
    rates: Option<Rates>,
}

/// Of the time since the look before.
#[derive(Clone, Copy)]
struct Rates {
    faults: f32,
    /// None: there was no fault.
    p99_us: Option<u32>,
    waited: f32,
}

/// What the page is told. The last value of each column belongs to the last time.
#[derive(Debug, PartialEq, Serialize)]
pub struct Columns<'a> {
    pub every_ms: u64,
    pub at: Vec<u64>,
    pub apps: Vec<AppColumns<'a>>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct AppColumns<'a> {
    pub id: u64,
    pub name: &'a str,
    /// In bytes.
    pub resident: Vec<u64>,
    pub pool: Vec<u64>,
    /// Faults served from the pool, per second.
    pub faults: Vec<Option<f64>>,
    /// The bound below which 99 of 100 of these faults lie.
    pub p99_us: Vec<Option<u32>>,
    /// How long threads waited: 1 is one thread all the time.
    pub waited: Vec<Option<f64>>,
}

impl Curves {
    /// One more look, at `now`, which is `now_ms` by the clock.
    pub fn add(&mut self, apps: &[AppInfo], now_ms: u64, now: Instant) {
        let elapsed = self.last.replace(now).map(|last| now.saturating_duration_since(last)).unwrap_or_default();
        push(&mut self.at, now_ms);
        let mut kept: Vec<&AppInfo> = apps.iter().collect();
        kept.sort_by_key(|app| (std::cmp::Reverse(app.resident + app.evicted), app.id));
        kept.truncate(APPS);
        self.apps.retain(|id, _| kept.iter().any(|app| app.id == *id));
        for app in kept {
            let counters = Counters::of(app);
            let curve = self.apps.entry(app.id).or_insert_with(|| Curve {
                name: app.name.clone(),
                before: Counters::of(app),
                looks: VecDeque::new(),
            });
            let rates = if curve.looks.is_empty() { None } else { Rates::of(&curve.before, &counters, elapsed) };
            push(&mut curve.looks, Look { resident: app.resident, pool: app.evicted, rates });
            curve.before = counters;
        }
    }

    /// When the last look was.
    pub fn last_ms(&self) -> Option<u64> {
        self.at.back().copied()
    }

    /// All looks after that time, in milliseconds since 1970.
    pub fn after(&self, ms: u64) -> Columns<'_> {
        let at: Vec<u64> = self.at.iter().rev().take_while(|at| **at > ms).copied().collect();
        let looks = at.len();
        let apps = self.apps.iter().map(|(id, curve)| curve.last(*id, looks)).collect();
        Columns { every_ms: EVERY.as_millis() as u64, at: at.into_iter().rev().collect(), apps }
    }
}

impl Rates {
    fn of(before: &Counters, now: &Counters, elapsed: Duration) -> Option<Rates> {
        let faults = per_second(before.faults, now.faults, elapsed)?;
        let p99_us = percentile(&between(&before.latency_us, &now.latency_us), 0.99);
        Some(Rates {
            faults: faults as f32,
            p99_us: p99_us.map(|us| u32::try_from(us).unwrap_or(u32::MAX)),
            waited: waited_share(before.waited_us, now.waited_us, elapsed) as f32,
        })
    }
}

impl Curve {
    fn last(&self, id: u64, looks: usize) -> AppColumns<'_> {
        let last = || self.looks.iter().skip(self.looks.len().saturating_sub(looks));
        let rates = || last().map(|look| look.rates);
        AppColumns {
            id,
            name: &self.name,
            resident: last().map(|look| look.resident).collect(),
            pool: last().map(|look| look.pool).collect(),
            faults: rates().map(|rates| rates.map(|r| rounded(r.faults, 10.0))).collect(),
            p99_us: rates().map(|rates| rates.and_then(|r| r.p99_us)).collect(),
            waited: rates().map(|rates| rates.map(|r| rounded(r.waited, 10_000.0))).collect(),
        }
    }
}

fn rounded(value: f32, parts: f64) -> f64 {
    (f64::from(value) * parts).round() / parts
}

fn push<T>(looks: &mut VecDeque<T>, look: T) {
    if looks.len() == LOOKS {
        looks.pop_front();
    }
    looks.push_back(look);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn app(id: u64, resident: u64, faults: u64, waited_us: f64, latency_us: &[(u64, u64)]) -> AppInfo {
        serde_json::from_value(json!({"id": id, "name": format!("app{id}"), "pids": [1], "uid": 0, "local": "25%",
            "resident": resident, "evicted": 8192, "state": "running", "note": "", "pages_evicted": 0,
            "pages_clean": 0, "pages_zero": 0, "faults": {"major": faults, "zero": 0, "p50_us": 0.0, "p99_us": 0.0,
                "max_us": 0.0, "latency_us": latency_us, "latency_sum_us": waited_us}}))
        .unwrap()
    }

    /// One look after the other, from 1000 ms on.
    fn looked(looks: &[Vec<AppInfo>]) -> Curves {
        let (mut curves, start) = (Curves::default(), Instant::now());
        for (nth, apps) in looks.iter().enumerate() {
            curves.add(apps, 1000 + 10_000 * nth as u64, start + EVERY * nth as u32);
        }
        curves
    }

    #[test]
    fn a_curve_is_what_came_between_two_looks() {
        let curves = looked(&[
            vec![app(1, 4096, 100, 1e6, &[(16, 100)])],
            vec![app(1, 8192, 350, 6e6, &[(16, 347), (512, 3)])],
            vec![app(1, 8192, 350, 6e6, &[(16, 347), (512, 3)])],
        ]);
        let columns = curves.after(0);
        assert_eq!(columns.at, [1000, 11_000, 21_000]);
        let app = &columns.apps[0];
        assert_eq!((app.id, app.name, app.resident.as_slice()), (1, "app1", &[4096, 8192, 8192][..]));
        assert_eq!(app.faults, [None, Some(25.0), Some(0.0)]);
        assert_eq!(app.p99_us, [None, Some(512), None]);
        assert_eq!(app.waited, [None, Some(0.5), Some(0.0)]);
    }

    #[test]
    fn only_what_is_new_is_told_to_one_that_knows_the_rest() {
        let apps = || vec![app(1, 4096, 1, 0.0, &[])];
        let late = || vec![app(1, 4096, 1, 0.0, &[]), app(2, 4096, 1, 0.0, &[])];
        let curves = looked(&[apps(), apps(), late()]);
        let columns = curves.after(1000);
        assert_eq!(columns.at, [11_000, 21_000]);
        assert_eq!(columns.apps[0].resident.len(), 2);
        // Its values belong to the last times.
        assert_eq!(columns.apps[1].resident.len(), 1);
        assert_eq!(curves.after(21_000).at, [0u64; 0]);
        assert_eq!(curves.last_ms(), Some(21_000));
    }

    #[test]
    fn an_hour_of_a_hundred_apps_is_the_most_that_is_kept() {
        let (mut curves, start) = (Curves::default(), Instant::now());
        let apps: Vec<AppInfo> = (0..120).map(|id| app(id, 4096 * id, 0, 0.0, &[])).collect();
        for nth in 0..LOOKS as u32 + 5 {
            curves.add(&apps, u64::from(nth), start + EVERY * nth);
        }
        let columns = curves.after(0);
        assert_eq!((columns.at.len(), columns.at[0]), (LOOKS, 5));
        let ids: Vec<u64> = columns.apps.iter().map(|app| app.id).collect();
        assert_eq!(ids, (20..120).collect::<Vec<u64>>(), "those with most memory");
        assert!(columns.apps.iter().all(|app| app.resident.len() == LOOKS));
        // A VecDeque doubles.
        let size = LOOKS.next_power_of_two() * APPS * size_of::<Look>();
        assert!(size < 1_650_000, "{size}");
    }

    #[test]
    fn an_app_that_has_ended_is_forgotten() {
        let curves = looked(&[vec![app(1, 4096, 1, 0.0, &[])], vec![]]);
        assert_eq!(curves.after(0).apps, []);
    }
}
