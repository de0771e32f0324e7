//! What a metric is, apart from its values.

/// One metric. The name is as Prometheus stores it: a counter's ends with `_total`.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the daemon is started anew.
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// `catalogue! { UPTIME = Gauge "annexd_uptime_seconds" [] "since annexd started"; }` makes a
/// static for each metric, and `ALL` of them.
#[macro_export]
macro_rules! catalogue {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub static $id: $crate::Metric = $crate::Metric {
            name: $name,
            kind: $crate::Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)+

        /// All of them, in the order in which they are shown.
        pub static ALL: &[&$crate::Metric] = &[$(&$id),+];
    };
}
