//! The values of all metrics at one moment, and as OpenMetrics text.

use crate::catalogue::{Kind, Metric};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// The shortest and the longest bucket of a histogram, as powers of two of a microsecond: 1 µs to
/// about 1 s.
const DOUBLINGS: u32 = 20;

/// Values of metrics. A metric without any is shown with its name, type and help.
#[derive(Debug)]
pub struct Snapshot(Vec<Family>);

#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    samples: Vec<(Labels, Value)>,
}

type Labels = Vec<(&'static str, String)>;

/// One value.
#[derive(Clone, Debug)]
pub enum Value {
    Whole(u64),
    Real(f64),
    Histogram(Histogram),
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Whole(n)
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::Whole(n.into())
    }
}

impl From<bool> for Value {
    fn from(is_so: bool) -> Value {
        Value::Whole(is_so.into())
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Value {
        Value::Whole(n as u64)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Value {
        Value::Real(x)
    }
}

impl From<Histogram> for Value {
    fn from(histogram: Histogram) -> Value {
        Value::Histogram(histogram)
    }
}

/// Durations in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    sum: f64,
    /// Upper bounds and what lies below each and not below the one before.
    buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// From counts by doublings: (less than so many microseconds, how many).
    pub fn of_microseconds(counts: &[(u64, u64)], sum_us: f64) -> Histogram {
        let mut buckets: Vec<(f64, u64)> = (0..=DOUBLINGS).map(|n| (f64::from(1u32 << n) / 1e6, 0)).collect();
        buckets.push((f64::INFINITY, 0));
        for (below, count) in counts {
            let at = (0..=DOUBLINGS).position(|n| *below <= 1 << n).unwrap_or(buckets.len() - 1);
            buckets[at].1 += count;
        }
        Histogram { sum: sum_us / 1e6, buckets }
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum()
    }
}

impl Snapshot {
    /// Without any value yet.
    pub fn of(all: &[&'static Metric]) -> Snapshot {
        Snapshot(all.iter().map(|metric| Family { metric, samples: Vec::new() }).collect())
    }

    /// Adds a value; `labels` has one value for each of the metric's labels. A metric that is not
    /// of this catalogue is left out.
    pub fn add(&mut self, metric: &'static Metric, labels: &[&str], value: impl Into<Value>) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let labels = metric.labels.iter().zip(labels).map(|(label, value)| (*label, (*value).to_owned())).collect();
        if let Some(family) = self.0.iter_mut().find(|family| std::ptr::eq(family.metric, metric)) {
            family.samples.push((labels, value.into()));
        }
    }

    /// As OpenMetrics text.
    pub fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Only a writer could fail, and a String does not.
        let _ = text::encode(&mut text, &registry);
        text
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { metric, samples } in &self.0 {
            let (kind, name) = match metric.kind {
                Kind::Counter => (MetricType::Counter, metric.name.trim_end_matches("_total")),
                Kind::Gauge => (MetricType::Gauge, metric.name),
                Kind::Histogram => (MetricType::Histogram, metric.name),
            };
            let mut family = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for (labels, value) in samples {
                encode(family.encode_family(labels)?, metric.kind, value)?;
            }
        }
        Ok(())
    }
}

fn encode(mut sample: MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(n)) => sample.encode_counter::<NoLabelSet, u64, u64>(n, None),
        (Kind::Counter, Value::Real(x)) => sample.encode_counter::<NoLabelSet, f64, u64>(x, None),
        (_, Value::Whole(n)) => sample.encode_gauge(n),
        (_, Value::Real(x)) => sample.encode_gauge(x),
        (_, Value::Histogram(histogram)) => {
            sample.encode_histogram::<NoLabelSet>(histogram.sum, histogram.count(), &histogram.buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict;

    crate::catalogue! {
        FAULTS = Counter "faults_total" ["app"] "faults";
        RESIDENT = Gauge "resident_bytes" [] "memory";
        LATENCY = Histogram "latency_seconds" ["app"] "how long";
        NOTHING = Gauge "nothing" [] "no values";
    }

    #[test]
    fn values_come_back_from_the_text() {
        let mut snapshot = Snapshot::of(ALL);
        snapshot.add(&FAULTS, &["redis"], 7u64);
        snapshot.add(&RESIDENT, &[], 1.5);
        snapshot.add(&LATENCY, &["redis"], Histogram::of_microseconds(&[(1, 2), (16, 3), (1 << 30, 1)], 60.0));
        let text = snapshot.text();
        assert!(text.ends_with("# EOF\n"), "{text}");
        for head in ["# TYPE faults counter", "# HELP nothing no values", "# TYPE latency_seconds histogram"] {
            assert!(text.lines().any(|line| line == head), "{head} is missing: {text}");
        }
        let line = |line: &str| assert!(text.lines().any(|l| l == line), "{line} is missing: {text}");
        line("faults_total{app=\"redis\"} 7");
        line("resident_bytes 1.5");
        line("latency_seconds_count{app=\"redis\"} 6");
        line("latency_seconds_sum{app=\"redis\"} 0.00006");
        line("latency_seconds_bucket{le=\"0.000001\",app=\"redis\"} 2");
        line("latency_seconds_bucket{le=\"0.000016\",app=\"redis\"} 5");
        line("latency_seconds_bucket{le=\"1.048576\",app=\"redis\"} 5");
        line("latency_seconds_bucket{le=\"+Inf\",app=\"redis\"} 6");
        assert_eq!(strict::check(&text), Ok(()), "{text}");
    }

    #[test]
    fn a_hostile_name_stays_within_its_quotes() {
        let mut snapshot = Snapshot::of(ALL);
        snapshot.add(&FAULTS, &["a\"} 1\nfaults_total{app=\"b\\"], 7u64);
        let text = snapshot.text();
        assert_eq!(text.lines().filter(|line| line.starts_with("faults_total")).count(), 1, "{text}");
        assert!(text.contains(r#"faults_total{app="a\"} 1\nfaults_total{app=\"b\\"} 7"#), "{text}");
        assert_eq!(strict::check(&text), Ok(()), "{text}");
    }
}
