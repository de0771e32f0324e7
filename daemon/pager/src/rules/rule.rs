//! One rule, as it stands in the configuration and as it is followed.

use super::glob::{Glob, GlobError};
use annex_shared::api::Local;
use serde::{Deserialize, Serialize};
use std::fmt;

/// `[[app]]` in annexd's configuration: what is attached as it appears.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleConfig {
    /// Units of systemd, by their name.
    pub unit: Option<String>,
    /// Cgroups, by their path from the root on.
    pub cgroup: Option<String>,
    /// A container, as `annex attach --container` takes it.
    pub container: Option<String>,
    /// Processes, by the path of their executable, or by a name.
    pub command: Option<String>,
    /// Of those only this user's: a name or a number.
    pub user: Option<String>,
    /// `None` = as without a rule.
    pub local: Option<Local>,
    /// What to call the app.
    pub name: Option<String>,
}

/// A rule that can't be followed. Rules are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("[[app]] number {0} says nothing of what to attach: give it unit, cgroup, container or command")]
    NoSelector(usize),
    #[error("[[app]] number {number} has {first} and {second}: give each an [[app]] of its own")]
    TwoSelectors { number: usize, first: &'static str, second: &'static str },
    #[error("bad pattern {key} = \"{pattern}\" in [[app]] number {number}: {source}")]
    Pattern { number: usize, key: &'static str, pattern: String, source: GlobError },
    #[error(
        "cgroup = \"{pattern}\" in [[app]] number {number}: give a path from the root on, such as /system.slice/web-*"
    )]
    Path { number: usize, pattern: String },
    #[error("user = \"{user}\" in [[app]] number {number} is for rules with command only")]
    User { number: usize, user: String },
    #[error(
        "name = \"{name}\" in [[app]] number {number}: a name has 1 to {LONGEST_NAME} letters, digits and . _ - @ : +, and is no number"
    )]
    Name { number: usize, name: String },
    #[error("there are {0} [[app]] tables, and {MOST} is the most")]
    TooMany(usize),
}

const LONGEST_NAME: usize = 64;
const MOST: usize = 1000;

/// A rule that can be followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub selector: Selector,
    pub local: Option<Local>,
    pub name: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Selector {
    Unit(Glob),
    Cgroup(Glob),
    Container(String),
    Command { glob: Glob, user: Option<String> },
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.selector {
            Selector::Unit(glob) => write!(f, "unit = \"{glob}\""),
            Selector::Cgroup(glob) => write!(f, "cgroup = \"{glob}\""),
            Selector::Container(name) => write!(f, "container = \"{name}\""),
            Selector::Command { glob, .. } => write!(f, "command = \"{glob}\""),
        }
    }
}

/// # Errors
/// One of them can't be followed.
pub fn parse(rules: &[RuleConfig]) -> Result<Vec<Rule>, RuleError> {
    if rules.len() > MOST {
        return Err(RuleError::TooMany(rules.len()));
    }
    rules.iter().enumerate().map(|(index, rule)| rule.parse(index + 1)).collect()
}

impl RuleConfig {
    fn parse(&self, number: usize) -> Result<Rule, RuleError> {
        let selectors = [
            ("unit", &self.unit),
            ("cgroup", &self.cgroup),
            ("container", &self.container),
            ("command", &self.command),
        ];
        let mut given = selectors.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let (key, pattern) = given.next().ok_or(RuleError::NoSelector(number))?;
        if let Some((second, _)) = given.next() {
            return Err(RuleError::TwoSelectors { number, first: key, second });
        }
        if let Some(user) = self.user.clone().filter(|_| key != "command") {
            return Err(RuleError::User { number, user });
        }
        if let Some(name) = self.name.clone().filter(|name| !is_name(name)) {
            return Err(RuleError::Name { number, name });
        }
        let glob = |pattern: &str| {
            let bad = |source| RuleError::Pattern { number, key, pattern: pattern.to_owned(), source };
            Glob::new(pattern).map_err(bad)
        };
        let selector = match key {
            // As on the command line.
            "unit" if !pattern.is_empty() && !pattern.contains('.') => {
                Selector::Unit(glob(&format!("{pattern}.service"))?)
            }
            "unit" => Selector::Unit(glob(pattern)?),
            "cgroup" if !pattern.is_empty() && !pattern.starts_with('/') => {
                return Err(RuleError::Path { number, pattern: pattern.clone() });
            }
            "cgroup" => Selector::Cgroup(glob(pattern)?),
            // A name, in which nothing stands for something else. It is as little empty as a
            // pattern.
            "container" => glob(&pattern.replace('[', "")).map(|_| Selector::Container(pattern.clone()))?,
            _ => Selector::Command { glob: glob(pattern)?, user: self.user.clone() },
        };
        Ok(Rule { selector, local: self.local, name: self.name.clone() })
    }
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@:+".contains(c);
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_plain) && !name.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(change: impl FnOnce(&mut RuleConfig)) -> Result<Rule, String> {
        let mut config = RuleConfig::default();
        change(&mut config);
        parse(&[config]).map(|mut rules| rules.remove(0)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_rule_has_one_selector() {
        let unit = one(|rule| rule.unit = Some("redis@*".into())).unwrap();
        assert_eq!(unit.to_string(), r#"unit = "redis@*.service""#);
        let none = one(|rule| rule.name = Some("a".into())).unwrap_err();
        assert!(none.contains("[[app]] number 1 says nothing of what to attach"), "{none}");
        let two = one(|rule| (rule.unit, rule.command) = (Some("a".into()), Some("b".into()))).unwrap_err();
        assert!(two.contains("number 1 has unit and command"), "{two}");
    }

    #[test]
    fn what_can_not_be_followed_is_refused_by_name() {
        let bad = one(|rule| rule.command = Some("a[".into())).unwrap_err();
        assert!(bad.contains(r#"bad pattern command = "a[" in [[app]] number 1: its [ is not closed"#), "{bad}");
        for empty in ["unit", "cgroup", "container", "command"] {
            let bad = one(|rule| {
                let key = match empty {
                    "unit" => &mut rule.unit,
                    "cgroup" => &mut rule.cgroup,
                    "container" => &mut rule.container,
                    _ => &mut rule.command,
                };
                *key = Some(String::new());
            });
            assert!(bad.unwrap_err().contains("it is empty"), "{empty}");
        }
        let path = one(|rule| rule.cgroup = Some("system.slice/*".into())).unwrap_err();
        assert!(path.contains("give a path from the root on"), "{path}");
        let user = one(|rule| (rule.unit, rule.user) = (Some("a".into()), Some("b".into()))).unwrap_err();
        assert!(user.contains("is for rules with command only"), "{user}");
        for bad in ["", "7", "a/b", "a b"] {
            let name = one(|rule| (rule.unit, rule.name) = (Some("a".into()), Some(bad.into()))).unwrap_err();
            assert!(name.contains("letters, digits and"), "{name}");
        }
        assert!(one(|rule| rule.container = Some("odd[name".into())).is_ok());
    }
}
