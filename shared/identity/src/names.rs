//! The name in a certificate: the URI `annex://CLUSTER/ROLE/NAME`.
//!
//! There is one way to write a name. Whatever differs from it is refused, so that two names which
//! look alike are never taken for the same.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const SCHEME: &str = "annex:";
/// Of a cluster or a host, as of a part of a DNS name.
const LONGEST: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("bad name '{0}': give 1 to 63 of the characters a-z 0-9 - . _ with a letter or digit first and last")]
    Label(String),
    #[error("bad role '{0}': give donor or client")]
    Role(String),
    #[error("bad identity '{0}': it must be annex://CLUSTER/ROLE/NAME")]
    Uri(String),
}

/// What a host may do: lend memory, or use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Donor,
    Client,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Donor => "donor",
            Role::Client => "client",
        })
    }
}

impl FromStr for Role {
    type Err = NameError;

    fn from_str(word: &str) -> Result<Role, NameError> {
        match word {
            "donor" => Ok(Role::Donor),
            "client" => Ok(Role::Client),
            other => Err(NameError::Role(other.into())),
        }
    }
}

/// The name of a cluster, or of a host in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(String);

impl Label {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Label {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Label, NameError> {
        let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
        let is_outer = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = text.as_bytes();
        let is_good = bytes.len() <= LONGEST
            && is_outer(bytes.first())
            && is_outer(bytes.last())
            && bytes.iter().all(|b| is_inner(*b));
        if is_good { Ok(Label(text.into())) } else { Err(NameError::Label(text.into())) }
    }
}

impl TryFrom<String> for Label {
    type Error = NameError;

    fn try_from(text: String) -> Result<Label, NameError> {
        text.parse()
    }
}

impl From<Label> for String {
    fn from(label: Label) -> String {
        label.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Who a certificate speaks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name {
    pub cluster: Label,
    pub role: Role,
    pub host: Label,
}

impl Name {
    /// False for the URIs that other systems put into the same certificate.
    pub fn is_ours(uri: &str) -> bool {
        uri.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Name, NameError> {
        let bad = || NameError::Uri(uri.into());
        let parts = uri.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("//")).ok_or_else(bad)?;
        let mut parts = parts.split('/');
        let (Some(cluster), Some(role), Some(host), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        Ok(Name { cluster: cluster.parse()?, role: role.parse()?, host: host.parse()? })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}//{}/{}/{}", self.cluster, self.role, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_as_it_is_read() {
        for uri in [
            "annex://c/donor/a",
            "annex://prod.eu-1/client/web_07.rack-3",
            &format!("annex://{0}/donor/{0}", "x".repeat(63)),
        ] {
            assert_eq!(uri.parse::<Name>().unwrap().to_string(), uri);
        }
    }

    #[test]
    fn anything_but_the_one_way_to_write_a_name_is_refused() {
        for uri in [
            "",
            "annex:",
            "annex://",
            "annex://c/donor",
            "annex://c/donor/",
            "annex://c//a",
            "annex:///donor/a",
            "annex://c/donor/a/",
            "annex://c/donor/a/b",
            "annex://C/donor/a",
            "annex://c/Donor/a",
            "annex://c/donor/A",
            "ANNEX://c/donor/a",
            "annex:/c/donor/a",
            "https://c/donor/a",
            "annex://c/admin/a",
            "annex://c/donor/-a",
            "annex://c/donor/a.",
            "annex://c/donor/..",
            "annex://c/donor/a b",
            "annex://c/donor/a\n",
            " annex://c/donor/a",
            "annex://c/donor/a?x",
            "annex://c/donor/a#x",
            "annex://c/donor/%61",
            "annex://u@c/donor/a",
            "annex://c:1/donor/a",
            "annex://c/donor/ä",
            "annex://c/donor/a\0",
            &format!("annex://c/donor/{}", "x".repeat(64)),
        ] {
            assert!(uri.parse::<Name>().is_err(), "{uri:?}");
        }
    }

    #[test]
    fn a_foreign_uri_is_told_from_one_of_ours_that_is_wrong() {
        assert!(Name::is_ours("annex://c/donor/a") && Name::is_ours("Annex:x"));
        assert!(!Name::is_ours("spiffe://c/donor/a") && !Name::is_ours("annexe://x") && !Name::is_ours(""));
    }

    #[test]
    fn a_label_from_a_file_is_checked_too() {
        assert!(serde_json::from_str::<Label>("\"db7\"").is_ok());
        assert!(serde_json::from_str::<Label>("\"../db7\"").is_err());
    }
}
