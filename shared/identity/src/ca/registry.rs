//! What a CA knows: the certificates that it issued and the tokens that it handed out.
//!
//! Pure: nothing here reads a clock or a file. The registry only grows. A certificate that expired
//! may still be shown by a host that holds leases, so it must stay possible to revoke it.

use crate::certificate::KeyId;
use crate::names::{Label, Role};
use serde::{Deserialize, Serialize};

/// Of the file; another one is refused.
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is a {role} '{host}' already, with another key: revoke it first, or choose another name")]
    NameTaken { role: Role, host: Label },
    #[error("the key of {role} '{host}' was revoked: make a new key")]
    KeyRevoked { role: Role, host: Label },
    #[error("the key belongs to {role} '{host}': each host and role has a key of its own")]
    KeyTaken { role: Role, host: Label },
    #[error("the CA does not know this token: make one with annex ca token")]
    TokenUnknown,
    #[error("the token was used already: make a new one with annex ca token")]
    TokenUsed,
    #[error("the token is no longer valid: make a new one with annex ca token")]
    TokenExpired,
    #[error("nothing is known of '{0}': annex ca list shows all names")]
    NameUnknown(Label),
}

/// A certificate. Times are Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issued {
    /// Hexadecimal.
    pub serial: String,
    pub role: Role,
    pub host: Label,
    pub key: KeyId,
    pub issued: u64,
    pub expires: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
}

/// A token that was handed out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// SHA-256 of its secret, hexadecimal.
    pub digest: String,
    pub role: Role,
    pub host: Label,
    pub expires: u64,
    /// The key that it was used for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<KeyId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    format: u32,
    /// Of the revocation list that was signed last.
    pub list_number: u64,
    pub issued: Vec<Issued>,
    pub tokens: Vec<TokenRecord>,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry { format: FORMAT, list_number: 0, issued: Vec::new(), tokens: Vec::new() }
    }
}

impl Registry {
    pub fn parse(bytes: &[u8]) -> Result<Registry, String> {
        let registry: Registry = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        match registry.format {
            FORMAT => Ok(registry),
            other => Err(format!("it is of format {other}, and this build knows format {FORMAT}")),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a registry is data");
        bytes.push(b'\n');
        bytes
    }

    /// Whether this key may get a certificate for this name. A name belongs to the key that had it
    /// first, until that is revoked; even when its certificate has expired.
    pub fn admit(&self, role: Role, host: &Label, key: &KeyId) -> Result<(), Refusal> {
        for known in &self.issued {
            let (has_name, has_key) = (known.role == role && known.host == *host, known.key == *key);
            let (role, host) = (known.role, known.host.clone());
            match (has_name, has_key, known.revoked) {
                (_, true, Some(_)) => return Err(Refusal::KeyRevoked { role, host }),
                (true, false, None) => return Err(Refusal::NameTaken { role, host }),
                (false, true, None) => return Err(Refusal::KeyTaken { role, host }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether this key ever got a certificate for this name here.
    pub fn check_known(&self, role: Role, host: &Label, key: &KeyId) -> Result<(), Refusal> {
        match self.issued.iter().any(|c| c.role == role && c.host == *host && c.key == *key) {
            true => Ok(()),
            false => Err(Refusal::NameUnknown(host.clone())),
        }
    }

    /// A name that has a key gets no token: whoever used it would need another key.
    pub fn add_token(&mut self, record: TokenRecord, now: u64) -> Result<(), Refusal> {
        let (role, host) = (record.role, &record.host);
        if self.issued.iter().any(|c| c.role == role && c.host == *host && c.revoked.is_none()) {
            return Err(Refusal::NameTaken { role, host: host.clone() });
        }
        self.tokens.retain(|token| now <= token.expires);
        self.tokens.push(record);
        Ok(())
    }

    /// Uses a token up. The host that used it may show it once more with the same key, should the
    /// answer have been lost on the way.
    pub fn redeem(&mut self, digest: &str, key: &KeyId, now: u64) -> Result<(Role, Label), Refusal> {
        let token = self.tokens.iter_mut().find(|t| t.digest == digest).ok_or(Refusal::TokenUnknown)?;
        if token.used.is_some_and(|used| used != *key) {
            return Err(Refusal::TokenUsed);
        }
        if now > token.expires {
            return Err(Refusal::TokenExpired);
        }
        token.used = Some(*key);
        Ok((token.role, token.host.clone()))
    }

    /// Revokes every certificate of a host and takes back its tokens; `role` narrows it. Returns
    /// how many certificates were not revoked before.
    pub fn revoke(&mut self, host: &Label, role: Option<Role>, now: u64) -> Result<usize, Refusal> {
        let is_meant = |its_role: Role, its_host: &Label| its_host == host && role.is_none_or(|role| role == its_role);
        let tokens = self.tokens.len();
        self.tokens.retain(|token| !is_meant(token.role, &token.host));
        let mut is_known = self.tokens.len() < tokens;
        let mut revoked = 0;
        for certificate in self.issued.iter_mut().filter(|c| is_meant(c.role, &c.host)) {
            is_known = true;
            if certificate.revoked.is_none() {
                certificate.revoked = Some(now);
                revoked += 1;
            }
        }
        if is_known { Ok(revoked) } else { Err(Refusal::NameUnknown(host.clone())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Label {
        text.parse().unwrap()
    }

    fn key(n: u8) -> KeyId {
        KeyId::of(&[n])
    }

    fn issue(registry: &mut Registry, role: Role, host: &str, key: KeyId) {
        registry.admit(role, &label(host), &key).unwrap();
        let serial = registry.issued.len().to_string();
        registry.issued.push(Issued { serial, role, host: label(host), key, issued: 0, expires: 90, revoked: None });
    }

    fn hand_out(registry: &mut Registry, digest: &str, host: &str) -> Result<(), Refusal> {
        let record =
            TokenRecord { digest: digest.into(), role: Role::Donor, host: label(host), expires: 10, used: None };
        registry.add_token(record, 0)
    }

    #[test]
    fn a_name_stays_with_its_key() {
        let mut registry = Registry::default();
        issue(&mut registry, Role::Donor, "a", key(1));
        issue(&mut registry, Role::Donor, "a", key(1));
        issue(&mut registry, Role::Client, "a", key(2));
        assert!(matches!(registry.admit(Role::Donor, &label("a"), &key(3)), Err(Refusal::NameTaken { .. })));
        assert!(matches!(registry.admit(Role::Donor, &label("b"), &key(1)), Err(Refusal::KeyTaken { .. })));
        assert!(matches!(registry.admit(Role::Client, &label("a"), &key(1)), Err(Refusal::KeyTaken { .. })));
    }

    #[test]
    fn a_revoked_name_is_free_and_its_key_is_not() {
        let mut registry = Registry::default();
        issue(&mut registry, Role::Donor, "a", key(1));
        issue(&mut registry, Role::Donor, "a", key(1));
        assert_eq!(registry.revoke(&label("a"), None, 5), Ok(2));
        assert!(registry.issued.iter().all(|c| c.revoked == Some(5)));
        assert!(matches!(registry.admit(Role::Donor, &label("a"), &key(1)), Err(Refusal::KeyRevoked { .. })));
        assert!(matches!(registry.admit(Role::Client, &label("b"), &key(1)), Err(Refusal::KeyRevoked { .. })));
        issue(&mut registry, Role::Donor, "a", key(2));
        assert_eq!(registry.revoke(&label("a"), None, 6), Ok(1));
        assert_eq!(registry.revoke(&label("a"), None, 7), Ok(0), "again is no mistake");
        assert_eq!(registry.revoke(&label("b"), None, 7), Err(Refusal::NameUnknown(label("b"))));
    }

    #[test]
    fn a_revocation_can_be_of_one_role() {
        let mut registry = Registry::default();
        issue(&mut registry, Role::Donor, "a", key(1));
        issue(&mut registry, Role::Client, "a", key(2));
        assert_eq!(registry.revoke(&label("a"), Some(Role::Client), 5), Ok(1));
        assert_eq!(registry.issued[0].revoked, None);
    }

    #[test]
    fn a_token_works_once() {
        let mut registry = Registry::default();
        hand_out(&mut registry, "t", "a").unwrap();
        assert_eq!(registry.redeem("x", &key(1), 5), Err(Refusal::TokenUnknown));
        assert_eq!(registry.redeem("t", &key(1), 5), Ok((Role::Donor, label("a"))));
        assert_eq!(registry.redeem("t", &key(2), 5), Err(Refusal::TokenUsed));
        assert_eq!(registry.redeem("t", &key(2), 50), Err(Refusal::TokenUsed));
        assert_eq!(registry.redeem("t", &key(1), 10), Ok((Role::Donor, label("a"))), "its answer was lost");
        assert_eq!(registry.redeem("t", &key(1), 11), Err(Refusal::TokenExpired));
    }

    #[test]
    fn a_revoked_host_has_no_token_left() {
        let mut registry = Registry::default();
        hand_out(&mut registry, "t", "a").unwrap();
        assert_eq!(registry.revoke(&label("a"), None, 5), Ok(0));
        assert_eq!(registry.redeem("t", &key(1), 5), Err(Refusal::TokenUnknown));
    }

    #[test]
    fn a_name_with_a_key_gets_no_token() {
        let mut registry = Registry::default();
        issue(&mut registry, Role::Donor, "a", key(1));
        assert!(matches!(hand_out(&mut registry, "t", "a"), Err(Refusal::NameTaken { .. })));
        hand_out(&mut registry, "t", "b").unwrap();
    }

    #[test]
    fn a_registry_survives_its_file_and_another_format_is_refused() {
        let mut registry = Registry::default();
        issue(&mut registry, Role::Donor, "a", key(1));
        registry.revoke(&label("a"), None, 5).unwrap();
        hand_out(&mut registry, "t", "b").unwrap();
        let bytes = registry.to_bytes();
        assert_eq!(Registry::parse(&bytes), Ok(registry));
        let newer = String::from_utf8(bytes).unwrap().replace("\"format\": 1", "\"format\": 2");
        assert!(Registry::parse(newer.as_bytes()).unwrap_err().contains("format 2"));
        assert!(
            Registry::parse(b"{\"format\": 1, \"list_number\": 0, \"issued\": [], \"tokens\": [], \"x\": 1}").is_err()
        );
    }
}
