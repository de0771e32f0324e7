//! Strict TOML configuration, for annexd and annex-agent alike.
//!
//! [`load`] reads a file twice over: once as TOML into the caller's type, with toml's own messages
//! (line, column, what was expected), and before that once to look for keys that the type doesn't
//! have. The second pass runs the type's own `Deserialize` over the parsed document and asks, for
//! each table, which fields serde expects there: so no list of known keys is kept by hand, and a
//! key that is unknown is refused with the nearest known one.
//!
//! Sizes ([`ByteSize`]) and times ([`TimeSpan`]) are strings with units in files and on command
//! lines.

use crate::api::{format_bytes, parse_bytes};
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A configuration file that can't be used. The text is what the user reads.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed to read the configuration {}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}:{line}: unknown key '{key}'; {hint}", .path.display())]
    UnknownKey {
        path: PathBuf,
        line: usize,
        /// The key with the tables it is in: `pool.donor[0].adress`.
        key: String,
        hint: String,
    },
    #[error("{}:{line}: {message}", .path.display())]
    Value { path: PathBuf, line: usize, message: String },
    #[error("{}: {message}", .path.display())]
    Invalid { path: PathBuf, message: String },
}

/// Reads a configuration file. Every key in it must be one that `T` has.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// Like [`load`], with the text at hand; `path` is for the messages.
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigError> {
    let value_error = |e: toml::de::Error| match e.span() {
        Some(span) => {
            ConfigError::Value { path: path.to_owned(), line: line_of(text, &span), message: e.message().to_owned() }
        }
        None => ConfigError::Invalid { path: path.to_owned(), message: e.message().to_owned() },
    };
    let document = DeValue::Table(DeTable::parse(text).map_err(value_error)?.into_inner());
    let checked = T::deserialize(KeyCheck { value: &document, at: String::new() });
    if let Err(Finding::Unknown { key, span, known, at }) = checked {
        let hint = hint(&key, known);
        return Err(ConfigError::UnknownKey {
            path: path.to_owned(),
            line: line_of(text, &span),
            key: join(&at, &key),
            hint,
        });
    }
    let value = toml::from_str(text).map_err(value_error)?;
    match checked {
        Ok(_) => Ok(value),
        // The value pass is content with what the key pass could not walk: keys after it went
        // unchecked, so refuse.
        Err(e) => Err(ConfigError::Invalid { path: path.to_owned(), message: e.to_string() }),
    }
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    1 + text.as_bytes().iter().take(span.start).filter(|b| **b == b'\n').count()
}

fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

/// Names the nearest known key, or all of them if none is near.
fn hint(key: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|k| (strsim::damerau_levenshtein(key, k), k))
        .filter(|(distance, k)| *distance <= 1 + key.len().max(k.len()) / 3)
        .min();
    match near {
        Some((_, k)) => format!("did you mean '{k}'?"),
        None if known.is_empty() => "this table takes no keys".to_owned(),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// What the key pass stops at.
#[derive(Debug)]
enum Finding {
    Unknown {
        at: String,
        key: String,
        span: Range<usize>,
        known: &'static [&'static str],
    },
    /// Anything else that serde objects to. The value pass says it better, with its line.
    Other(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unknown { key, .. } => write!(f, "unknown key '{key}'"),
            Finding::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Finding {}

impl de::Error for Finding {
    fn custom<T: fmt::Display>(message: T) -> Finding {
        Finding::Other(message.to_string())
    }
}

/// Walks a document as a type would, and stops at a key that the type doesn't know.
struct KeyCheck<'a, 'i> {
    value: &'a DeValue<'i>,
    /// The path to `value`, empty at the top.
    at: String,
}

impl<'a, 'de> Deserializer<'de> for KeyCheck<'a, 'de> {
    type Error = Finding;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        match self.value {
            DeValue::String(s) => visitor.visit_str(s),
            DeValue::Integer(i) => match i64::from_str_radix(i.as_str(), i.radix()) {
                Ok(n) => visitor.visit_i64(n),
                Err(e) => Err(Finding::Other(format!("integer {i}: {e}"))),
            },
            DeValue::Float(x) => match x.as_str().parse() {
                Ok(x) => visitor.visit_f64(x),
                Err(e) => Err(Finding::Other(format!("number {x}: {e}"))),
            },
            DeValue::Boolean(b) => visitor.visit_bool(*b),
            DeValue::Datetime(d) => Err(Finding::Other(format!("{}: no date or time is taken here: {d}", self.at))),
            DeValue::Array(items) => {
                visitor.visit_seq(Items { items: items.iter().collect::<Vec<_>>().into_iter(), index: 0, at: self.at })
            }
            DeValue::Table(table) => visitor.visit_map(Entries::of(table, self.at)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Finding> {
        let DeValue::Table(table) = self.value else { return self.deserialize_any(visitor) };
        for (key, _) in table.iter() {
            let name: &str = key.get_ref();
            if !fields.contains(&name) {
                return Err(Finding::Unknown { at: self.at, key: name.to_owned(), span: key.span(), known: fields });
            }
        }
        visitor.visit_map(Entries::of(table, self.at))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Finding> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Finding> {
        match self.value {
            DeValue::String(s) => {
                let variant: StrDeserializer<'_, Finding> = s.as_ref().into_deserializer();
                visitor.visit_enum(variant)
            }
            DeValue::Table(table) => visitor.visit_enum(MapAccessDeserializer::new(Entries::of(table, self.at))),
            _ => self.deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}

struct Entries<'a, 'i> {
    entries: std::vec::IntoIter<(&'a str, &'a Spanned<DeValue<'i>>)>,
    value: Option<(&'a str, &'a DeValue<'i>)>,
    at: String,
}

impl<'a, 'i> Entries<'a, 'i> {
    fn of(table: &'a DeTable<'i>, at: String) -> Entries<'a, 'i> {
        let entries: Vec<_> = table.iter().map(|(k, v)| (k.get_ref().as_ref(), v)).collect();
        Entries { entries: entries.into_iter(), value: None, at }
    }
}

impl<'de> MapAccess<'de> for Entries<'_, 'de> {
    type Error = Finding;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Finding> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some((key, value.get_ref()));
        let key: StrDeserializer<'_, Finding> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Finding> {
        let Some((key, value)) = self.value.take() else {
            return Err(Finding::Other("a value was asked for before its key".to_owned()));
        };
        seed.deserialize(KeyCheck { value, at: join(&self.at, key) })
    }
}

struct Items<'a, 'i> {
    items: std::vec::IntoIter<&'a Spanned<DeValue<'i>>>,
    index: usize,
    at: String,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Finding;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Finding> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let at = format!("{}[{}]", self.at, self.index);
        self.index += 1;
        seed.deserialize(KeyCheck { value: item.get_ref(), at }).map(Some)
    }
}

/// What [`check_log_filter`] takes for a level.
const LOG_LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// A log filter that would not log what was meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no log level '{0}': give error, warn, info, debug, trace or off, or pairs of target=level such as annex_pool=debug"
)]
pub struct LogLevelError(String);

/// Refuses what tracing's filters take for the name of a target, and then log nothing: a mistyped
/// level.
pub fn check_log_filter(filter: &str) -> Result<(), LogLevelError> {
    let is_level = |word: &str| LOG_LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    // A directive about spans may have commas of its own, and is nobody's mistyped level.
    if filter.contains('[') {
        return Ok(());
    }
    for directive in filter.split(',').map(str::trim) {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level.trim());
        if !is_level(level) {
            return Err(LogLevelError(level.to_owned()));
        }
    }
    Ok(())
}

/// How the log is written where it is not left to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line of text each.
    Text,
    /// A JSON object on a line each.
    Json,
}

/// There is no such format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no log format '{0}': give text or json")]
pub struct LogFormatError(String);

impl FromStr for LogFormat {
    type Err = LogFormatError;

    fn from_str(text: &str) -> Result<LogFormat, LogFormatError> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(LogFormatError(text.to_owned())),
        }
    }
}

/// A number of bytes, read as `64M`, `2GiB` or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A span of time, read as `500ms`, `30s`, `5m` or `2h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

/// How long leases must last to outlast such an absence of annexd. It renews them every third of
/// their time, and may have gone just before.
pub fn lease_to_outlast(absence: Duration) -> Duration {
    absence * 3 / 2
}

/// Text that is no size or time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("bad size '{0}': give bytes with a unit, like 64M or 2G")]
    Size(String),
    #[error("bad time '{0}': give a number with a unit, like 500ms, 30s or 5m")]
    Time(String),
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(s: &str) -> Result<ByteSize, UnitError> {
        parse_bytes(s).map(ByteSize).ok_or_else(|| UnitError::Size(s.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_bytes(self.0))
    }
}

impl FromStr for TimeSpan {
    type Err = UnitError;

    fn from_str(s: &str) -> Result<TimeSpan, UnitError> {
        let bad = || UnitError::Time(s.to_owned());
        let text = s.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let (number, unit) = text.split_at(digits);
        let ms_each: u64 = match unit.trim() {
            "ms" => 1,
            "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            _ => return Err(bad()),
        };
        let ms = number.parse::<u64>().ok().and_then(|n| n.checked_mul(ms_each)).ok_or_else(bad)?;
        Ok(TimeSpan(Duration::from_millis(ms)))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<ByteSize, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"64M\"")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<ByteSize, E> {
                s.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(n))
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<ByteSize, E> {
                u64::try_from(n).map(ByteSize).map_err(|_| E::custom(UnitError::Size(n.to_string())))
            }
        }
        input.deserialize_any(Size)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<TimeSpan, D::Error> {
        struct Time;
        impl Visitor<'_> for Time {
            type Value = TimeSpan;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"30s\"")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<TimeSpan, E> {
                s.parse().map_err(E::custom)
            }
        }
        input.deserialize_str(Time)
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: serde::Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Top {
        listen: String,
        slab_size: Option<ByteSize>,
        pool: Pool,
        labels: std::collections::BTreeMap<String, String>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Pool {
        replicas: u8,
        donor: Vec<Donor>,
        wait: Option<Wait>,
        every: Option<TimeSpan>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Donor {
        address: String,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Wait {
        Block,
    }

    fn read(text: &str) -> Result<Top, String> {
        parse(text, Path::new("a.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn a_mistyped_log_level_is_refused_and_the_good_ones_are_named() {
        for good in ["info", "WARN", "off", "warn,annex_pool=debug", "annex_agent=trace", "[span{a=1,b=2}]=info"] {
            assert_eq!(check_log_filter(good), Ok(()), "{good}");
        }
        for (bad, level) in
            [("bogus", "bogus"), ("inof,annex_daemon=debug", "inof"), ("annex_daemon=loud", "loud"), ("", "")]
        {
            let error = check_log_filter(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("there is no log level '{level}': give error, warn, info")), "{error}");
        }
    }

    #[test]
    fn a_good_file_is_taken_whole() {
        let top = read(
            "listen = 'x'\nslab_size = \"64M\"\n[labels]\nany = 'thing'\n[pool]\nreplicas = 2\nwait = 'block'\nevery = '90s'\n\
             [[pool.donor]]\naddress = 'a:1'\n",
        )
        .unwrap();
        assert_eq!(top.slab_size, Some(ByteSize(64 << 20)));
        assert_eq!(top.pool.donor, [Donor { address: "a:1".into() }]);
        assert_eq!(top.pool.wait, Some(Wait::Block));
        assert_eq!(top.pool.every, Some(TimeSpan(Duration::from_secs(90))));
        assert_eq!(top.labels["any"], "thing");
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
        assert_eq!(read("\nlissten = 'x'\n").unwrap_err(), "a.toml:2: unknown key 'lissten'; did you mean 'listen'?");
        assert_eq!(
            read("[pool]\nreplica = 2\n").unwrap_err(),
            "a.toml:2: unknown key 'pool.replica'; did you mean 'replicas'?"
        );
        assert_eq!(
            read("[[pool.donor]]\naddress = 'a'\n[[pool.donor]]\nadress = 'b'\n").unwrap_err(),
            "a.toml:4: unknown key 'pool.donor[1].adress'; did you mean 'address'?"
        );
        assert_eq!(
            read("[pool]\nqqq = 1\n").unwrap_err(),
            "a.toml:2: unknown key 'pool.qqq'; known here: replicas, donor, wait, every"
        );
    }

    #[test]
    fn a_wrong_type_or_value_is_named_with_its_line() {
        assert_eq!(
            read("listen = 'x'\n[pool]\nreplicas = 'two'\n").unwrap_err(),
            "a.toml:3: invalid type: string \"two\", expected u8"
        );
        assert_eq!(
            read("slab_size = '64Q'").unwrap_err(),
            "a.toml:1: bad size '64Q': give bytes with a unit, like 64M or 2G"
        );
        assert_eq!(
            read("[pool]\nevery = '5'").unwrap_err(),
            "a.toml:2: bad time '5': give a number with a unit, like 500ms, 30s or 5m"
        );
        assert!(read("[pool]\nwait = 'dance'").unwrap_err().starts_with("a.toml:2: unknown variant `dance`"));
        assert!(read("listen = \n").unwrap_err().starts_with("a.toml:1: "));
    }

    #[test]
    fn a_missing_file_is_named() {
        let e = load::<Top>(Path::new("/nonexistent/annex.toml")).unwrap_err().to_string();
        assert_eq!(
            e,
            "failed to read the configuration /nonexistent/annex.toml: No such file or directory (os error 2)"
        );
    }
}
