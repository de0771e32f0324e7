//! `[access]`: who may borrow, and how much, by the names in clients' certificates.

use annex_shared::api::format_bytes;
use annex_shared::config::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Names of clients that may borrow; all if absent.
    pub clients: Option<Vec<Pattern>>,
    /// The most memory to lend to the clients of a name, in place of `per_client`. Of several names
    /// that fit the longest one counts.
    pub per_client: BTreeMap<Pattern, ByteSize>,
}

impl AccessConfig {
    /// Nobody's name matters.
    pub fn is_open(&self) -> bool {
        *self == AccessConfig::default()
    }

    pub fn admits(&self, name: &str) -> bool {
        self.clients.as_ref().is_none_or(|clients| clients.iter().any(|pattern| pattern.fits(name)))
    }

    /// Bytes for a name that has a limit of its own.
    pub fn limit(&self, name: &str) -> Option<u64> {
        let fitting = self.per_client.iter().filter(|(pattern, _)| pattern.fits(name));
        fitting.max_by_key(|(pattern, _)| pattern.0.len()).map(|(_, limit)| limit.0)
    }

    /// In words.
    pub fn summary(&self) -> String {
        let names = match &self.clients {
            None => "all clients".to_owned(),
            Some(clients) if clients.is_empty() => "no client".to_owned(),
            Some(clients) => clients.iter().map(|pattern| pattern.0.as_str()).collect::<Vec<_>>().join(", "),
        };
        let limits =
            self.per_client.iter().map(|(pattern, limit)| format!(", {} {}", pattern.0, format_bytes(limit.0)));
        names + &limits.collect::<String>()
    }
}

/// A name, or one with a `*` in it that stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

impl Pattern {
    fn fits(&self, name: &str) -> bool {
        match self.0.split_once('*') {
            None => self.0 == name,
            Some((start, end)) => {
                name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
            }
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Pattern, String> {
        let is_known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._*".contains(&b);
        if text.is_empty() || !text.bytes().all(is_known) || text.matches('*').count() > 1 {
            return Err(format!(
                "bad client '{text}': give the NAME of its certificate annex://CLUSTER/client/NAME, or one with a *, such as web-*"
            ));
        }
        Ok(Pattern(text))
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> AccessConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn names_are_those_given_or_fit_one_with_a_star() {
        let open = access("");
        assert!(open.is_open() && open.admits("anybody"));
        let some = access("clients = ['db', 'web-*', '*-test']");
        for (name, is_admitted) in
            [("db", true), ("db2", false), ("web-", true), ("web-1", true), ("web", false), ("a-test", true)]
        {
            assert_eq!(some.admits(name), is_admitted, "{name}");
        }
        assert!(!access("clients = ['ab*ba']").admits("aba"), "a star is no overlap");
        assert!(!access("clients = []").admits("db"));
        assert!(access("clients = ['*']").admits("db"));
    }

    #[test]
    fn of_several_limits_the_nearest_counts() {
        let access = access("[per_client]\n'*' = '1G'\n'web-*' = '2G'\n'web-7' = '3G'");
        let limits = ["db", "web-1", "web-7"].map(|name| access.limit(name).map(|bytes| bytes >> 30));
        assert_eq!(limits, [Some(1), Some(2), Some(3)]);
        assert!(access.admits("db"));
        assert_eq!(AccessConfig::default().limit("db"), None);
    }

    #[test]
    fn what_no_certificate_can_say_is_refused() {
        for bad in ["", "Web", "a b", "*-*", "annex://c/client/web"] {
            let error = toml::from_str::<AccessConfig>(&format!("clients = ['{bad}']")).unwrap_err().to_string();
            assert!(error.contains("give the NAME of its certificate"), "{error}");
        }
    }
}
