//! Metrics for Prometheus: what both daemons need to show what they count.
//!
//! - [`mod@catalogue`]: which metrics there are. A daemon has one list; docs/metrics.md is held
//!   against it.
//! - [`snapshot`]: their values at one moment, and as OpenMetrics text.
//! - [`http`]: a small HTTP server. It has a thread of its own, so that no client of it can hold up
//!   anything else. annexd's page is served by it as well.
//! - [`exporter`]: the metrics, served by it.
//! - [`strict`]: whether a text is what Prometheus takes, for tests.
//!
//! Values are taken when somebody asks for them, from what the daemon counts anyway.

#![forbid(unsafe_code)]

pub mod catalogue;
pub mod exporter;
pub mod http;
pub mod snapshot;
pub mod strict;

pub use catalogue::{Kind, Metric};
pub use exporter::{MetricsConfig, export};
pub use snapshot::{Histogram, Snapshot};
