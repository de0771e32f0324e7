//! What `annex top` knows: the last answer of annexd, what the one before it tells about the time
//! between them, and how that went on for some minutes.
//!
//! In go answers and the time at which they came. Out come rows with rates. Nothing here asks
//! annexd, reads a clock or draws.

use annex_shared::api::{AppInfo, DonorInfo, Status};
use annex_shared::event::Event;
use annex_shared::rates::{between, per_second, percentile, together, waited_share};
use std::collections::VecDeque;
use std::time::Duration;

/// So many values of each curve are kept: four minutes at one a second.
const VALUES: usize = 240;
/// So many events are kept for the pages that show some.
const EVENTS: usize = 200;

/// The last values of one curve, the newest at the end.
#[derive(Clone, Debug, Default)]
pub struct Curve(VecDeque<f64>);

impl Curve {
    pub fn push(&mut self, value: f64) {
        if self.0.len() == VALUES {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    /// The newest `n`, or as many as there are.
    pub fn newest(&self, n: usize) -> impl Iterator<Item = f64> {
        self.0.iter().skip(self.0.len().saturating_sub(n)).copied()
    }

    /// The highest of the newest `n`, and `least` if all are lower: noise does not fill a line.
    pub fn highest(&self, n: usize, least: f64) -> f64 {
        self.newest(n).fold(least, f64::max)
    }

    pub fn now(&self) -> Option<f64> {
        self.0.back().copied()
    }
}

/// What an app did between the last two answers.
#[derive(Clone, Debug, PartialEq)]
pub struct AppRates {
    /// Faults served from the pool, per second.
    pub faults: f64,
    /// How long its threads waited for pages: 1.0 is one thread all the time.
    pub stall: f64,
    /// Pages per second that came from the pool and went to it.
    pub pages_in: f64,
    pub pages_out: f64,
    /// Of these faults: (less than so many microseconds, how many).
    pub latency_us: Vec<(u64, u64)>,
}

impl AppRates {
    fn of(before: &AppInfo, now: &AppInfo, elapsed: Duration) -> Option<AppRates> {
        Some(AppRates {
            faults: per_second(before.faults.major, now.faults.major, elapsed)?,
            stall: waited_share(before.faults.latency_sum_us, now.faults.latency_sum_us, elapsed),
            pages_in: per_second(before.pages_in, now.pages_in, elapsed)?,
            pages_out: per_second(before.pages_evicted, now.pages_evicted, elapsed)?,
            latency_us: between(&before.faults.latency_us, &now.faults.latency_us),
        })
    }

    /// The bound in microseconds below which this share of the faults lies.
    pub fn latency(&self, share: f64) -> Option<u64> {
        percentile(&self.latency_us, share)
    }
}

#[derive(Clone, Debug)]
pub struct AppRow {
    pub info: AppInfo,
    /// `None` until there are two answers of the same annexd.
    pub rates: Option<AppRates>,
    pub faults: Curve,
    pub stall: Curve,
}

impl AppRow {
    pub fn stall_now(&self) -> f64 {
        self.rates.as_ref().map_or(0.0, |rates| rates.stall)
    }

    pub fn faults_now(&self) -> f64 {
        self.rates.as_ref().map_or(0.0, |rates| rates.faults)
    }
}

/// What a donor did between the last two answers.
#[derive(Clone, Debug, PartialEq)]
pub struct DonorRates {
    /// Operations per second.
    pub reads: f64,
    pub writes: f64,
    /// Bytes per second, in both directions.
    pub bytes: f64,
    /// Operations that failed and pages with wrong bytes, per second.
    pub errors: f64,
    /// Below this many microseconds lie 99 % of the operations.
    pub p99_us: Option<u64>,
}

impl DonorRates {
    fn of(before: &DonorInfo, now: &DonorInfo, elapsed: Duration) -> Option<DonorRates> {
        let bytes = |d: &DonorInfo| d.traffic.iter().map(|t| t.bytes_read + t.bytes_written).sum();
        let latencies = |d: &DonorInfo| together(d.traffic.iter().map(|t| t.latency_us.as_slice()));
        Some(DonorRates {
            reads: per_second(before.reads, now.reads, elapsed)?,
            writes: per_second(before.writes, now.writes, elapsed)?,
            bytes: per_second(bytes(before), bytes(now), elapsed)?,
            errors: per_second(errors(before), errors(now), elapsed)?,
            p99_us: percentile(&between(&latencies(before), &latencies(now)), 0.99),
        })
    }
}

/// What failed at a donor since annexd started.
pub fn errors(donor: &DonorInfo) -> u64 {
    donor.errors + donor.checksum_errors
}

#[derive(Clone, Debug)]
pub struct DonorRow {
    pub info: DonorInfo,
    pub rates: Option<DonorRates>,
}

impl DonorRow {
    pub fn p99_now(&self) -> u64 {
        self.rates.as_ref().and_then(|rates| rates.p99_us).unwrap_or(0)
    }

    pub fn operations_now(&self) -> f64 {
        self.rates.as_ref().map_or(0.0, |rates| rates.reads + rates.writes)
    }
}

#[derive(Debug, Default)]
pub struct Model {
    /// The last answer. Its apps and donors are in the rows.
    pub status: Option<Status>,
    taken_at: Duration,
    pub apps: Vec<AppRow>,
    pub donors: Vec<DonorRow>,
    /// Of all apps together.
    pub faults: Curve,
    pub stall: Curve,
    /// The share of the pool that is used: 1.0 is all of it.
    pub used: Curve,
    /// The newest at the end.
    pub events: VecDeque<Event>,
    /// Why annexd does not answer now. What else is here is what it said last.
    pub away: Option<String>,
}

impl Model {
    /// annexd's answer, and how long after some fixed moment it came.
    pub fn take(&mut self, mut status: Status, now: Duration) {
        let is_same = self.status.as_ref().is_some_and(|before| before.pid == status.pid);
        let elapsed = now.saturating_sub(self.taken_at);
        let (old_apps, old_donors) = (std::mem::take(&mut self.apps), std::mem::take(&mut self.donors));
        for info in std::mem::take(&mut status.apps) {
            let old = old_apps.iter().find(|old| old.info.id == info.id);
            let rates = old.filter(|_| is_same).and_then(|old| AppRates::of(&old.info, &info, elapsed));
            let (mut faults, mut stall) = old.map(|old| (old.faults.clone(), old.stall.clone())).unwrap_or_default();
            if let Some(rates) = &rates {
                faults.push(rates.faults);
                stall.push(rates.stall);
            }
            self.apps.push(AppRow { info, rates, faults, stall });
        }
        for info in std::mem::take(&mut status.donors) {
            let old = old_donors.iter().find(|old| old.info.name == info.name);
            let rates = old.filter(|_| is_same).and_then(|old| DonorRates::of(&old.info, &info, elapsed));
            self.donors.push(DonorRow { info, rates });
        }
        if is_same {
            self.faults.push(self.apps.iter().map(AppRow::faults_now).sum());
            self.stall.push(self.apps.iter().map(AppRow::stall_now).sum());
        }
        self.used.push(status.pool.used as f64 / status.pool.capacity.max(1) as f64);
        (self.status, self.taken_at, self.away) = (Some(status), now, None);
    }

    /// annexd does not answer, and why.
    pub fn lose(&mut self, why: String) {
        for app in &mut self.apps {
            app.rates = None;
        }
        for donor in &mut self.donors {
            donor.rates = None;
        }
        self.away = Some(why);
    }

    /// What happened since the last such call.
    pub fn tell(&mut self, events: Vec<Event>) {
        self.events.extend(events);
        let surplus = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..surplus);
    }

    pub fn app(&self, id: u64) -> Option<&AppRow> {
        self.apps.iter().find(|app| app.info.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripted::{app, donor, status};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn two_answers_make_rates_and_one_makes_none() {
        let mut model = Model::default();
        model.take(status(&[app(1, "redis", 1000)], &[donor("oak", "up", 100)]), SECOND);
        assert!(model.apps[0].rates.is_none() && model.donors[0].rates.is_none());
        assert_eq!(model.faults.now(), None);

        model.take(status(&[app(1, "redis", 3000)], &[donor("oak", "up", 500)]), 3 * SECOND);
        let rates = model.apps[0].rates.as_ref().unwrap();
        assert_eq!((rates.faults, rates.latency(0.99)), (1000.0, Some(128)));
        // Scripted faults take 100 µs each.
        assert!((rates.stall - 0.1).abs() < 1e-9, "{rates:?}");
        let rates = model.donors[0].rates.as_ref().unwrap();
        assert_eq!((rates.reads, rates.bytes, rates.p99_us), (200.0, 200.0 * 4096.0, Some(32)));
        assert_eq!(model.faults.now(), Some(1000.0));
    }

    #[test]
    fn another_annexd_begins_to_count_anew_and_curves_go_on() {
        let mut model = Model::default();
        model.take(status(&[app(1, "redis", 1000)], &[]), SECOND);
        model.take(status(&[app(1, "redis", 2000)], &[]), 2 * SECOND);
        model.lose("annexd is not running".into());
        assert!(model.apps[0].rates.is_none() && model.away.is_some());

        let mut next = status(&[app(1, "redis", 5000)], &[]);
        next.pid += 1;
        model.take(next, 9 * SECOND);
        assert!(model.apps[0].rates.is_none() && model.away.is_none());
        assert_eq!(model.apps[0].faults.now(), Some(1000.0));
    }

    #[test]
    fn apps_that_ended_leave_nothing_behind() {
        let mut model = Model::default();
        model.take(status(&[app(1, "redis", 0), app(2, "sort", 0)], &[]), SECOND);
        model.take(status(&[app(2, "sort", 10)], &[]), 2 * SECOND);
        assert_eq!(model.apps.len(), 1);
        assert!(model.app(1).is_none() && model.app(2).is_some());
    }

    #[test]
    fn curves_are_bounded() {
        let mut curve = Curve::default();
        (0..1000).for_each(|n| curve.push(f64::from(n)));
        assert_eq!(curve.newest(usize::MAX).count(), VALUES);
        assert_eq!(curve.newest(2).collect::<Vec<_>>(), [998.0, 999.0]);
    }
}
