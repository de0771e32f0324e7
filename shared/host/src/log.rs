//! Where a daemon's log goes, and in which form.
//!
//! | form | where | when |
//! | --- | --- | --- |
//! | journal | systemd's journal, with priorities and fields | stderr is the journal's (`JOURNAL_STREAM`), and no format is asked for |
//! | text | stderr, a line each, coloured on a terminal | else, or asked for |
//! | JSON | stderr, an object a line | asked for |
//!
//! Fields of a line stand in the journal as `ANNEX_…`. A journal that can't be reached costs a
//! warning, and the log goes to stderr as text.
//!
//! What is logged can be changed while the daemon runs ([`Log::set_filter`]); the form can't.

use annex_shared::config::{LogFormat, LogLevelError, check_log_filter};
use nix::sys::stat::fstat;
use std::io::{self, IsTerminal};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type Output = Box<dyn Layer<Filtered> + Send + Sync>;

/// What the names of fields begin with in the journal.
const PREFIX: &str = "ANNEX";

/// As syslog's levels are used: `info` is no notice.
const PRIORITIES: PriorityMappings = PriorityMappings {
    error: Priority::Error,
    warn: Priority::Warning,
    info: Priority::Informational,
    debug: Priority::Debug,
    trace: Priority::Debug,
};

/// A daemon's log while it runs.
pub struct Log(reload::Handle<EnvFilter, Registry>);

/// What is to be logged can't be understood.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("bad log filter '{filter}': {source}")]
    Level { filter: String, source: LogLevelError },
    #[error("bad log filter '{filter}': {source}; give a level (info, debug) or target=level pairs")]
    Syntax { filter: String, source: tracing_subscriber::filter::ParseError },
}

/// What `info`, `warn` or `annex_pool=debug` let through.
///
/// # Errors
/// The text is no filter, or has a level that there is not.
pub fn filter(text: &str) -> Result<EnvFilter, FilterError> {
    let named = || text.to_owned();
    check_log_filter(text).map_err(|source| FilterError::Level { filter: named(), source })?;
    EnvFilter::try_new(text).map_err(|source| FilterError::Syntax { filter: named(), source })
}

impl Log {
    /// Starts the log of this process. `format`: what is asked for, if anything is.
    ///
    /// # Panics
    /// If there is one already.
    pub fn start(filter: EnvFilter, format: Option<LogFormat>) -> Log {
        let (filter, handle) = reload::Layer::new(filter);
        let (output, unreached) = output(format);
        tracing_subscriber::registry().with(filter).with(output).init();
        if let Some(error) = unreached {
            tracing::warn!("the journal can't be reached ({error}): the log goes to stderr");
        }
        Log(handle)
    }

    /// From now on this is logged.
    pub fn set_filter(&self, filter: EnvFilter) {
        // Fails if the log is gone, which lives as long as the process.
        let _ = self.0.reload(filter);
    }
}

/// Where lines go, and why not to the journal if they should.
fn output(format: Option<LogFormat>) -> (Output, Option<io::Error>) {
    match format {
        Some(LogFormat::Json) => {
            let json = fmt::layer().with_writer(io::stderr).json().flatten_event(true);
            (Box::new(json.with_current_span(false).with_span_list(false)), None)
        }
        Some(LogFormat::Text) => (text(), None),
        None if is_journal() => match tracing_journald::layer() {
            Ok(journal) => {
                (Box::new(journal.with_field_prefix(Some(PREFIX.into())).with_priority_mappings(PRIORITIES)), None)
            }
            Err(error) => (text(), Some(error)),
        },
        None => (text(), None),
    }
}

fn text() -> Output {
    let text = fmt::layer().with_writer(io::stderr).with_target(false);
    match is_journal() {
        // The journal has its own clock.
        true => Box::new(text.with_ansi(false).without_time()),
        false => Box::new(text.with_ansi(io::stderr().is_terminal())),
    }
}

/// True if what is written to stderr goes to systemd's journal.
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(io::stderr()).is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
}
