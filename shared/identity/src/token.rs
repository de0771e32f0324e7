//! A token: what a host joins with, as one word that a person can copy.
//!
//! `annex1.` and then, in base64 for URLs:
//!
//! ```text
//!  0  SHA-256 of the CA's certificate    32
//! 32  secret                             32
//! 64  number of addresses                 1
//!     each address: its length            1, then HOST:PORT
//!     the first bytes of SHA-256 of all before   4
//! ```
//!
//! The hash lets the joiner know the CA before it says the secret. The checksum finds a slip in
//! copying; it keeps nobody out. The CA keeps SHA-256 of the secret only.

use crate::certificate::sha256;
use aws_lc_rs::rand;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "annex1.";
const CHECKSUM: usize = 4;
/// More would not help a person who copies it.
const MOST_ADDRESSES: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("this is no token: one begins with {PREFIX}")]
    Prefix,
    #[error("the token is damaged: copy all of it, without blanks")]
    Damaged,
    #[error("bad address '{0}': give HOST:PORT")]
    Address(String),
    #[error("a token needs 1 to {MOST_ADDRESSES} addresses, not {0}")]
    Addresses(usize),
    #[error("failed to draw a random number")]
    Random,
}

/// Where the agent beside the CA listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(String);

impl TryFrom<String> for Address {
    type Error = TokenError;

    fn try_from(text: String) -> Result<Address, TokenError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Address {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Address {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Address, TokenError> {
        let is_good = text.len() <= 255
            && text.bytes().all(|b| b.is_ascii_graphic())
            && text.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty()
                    && port.bytes().all(|b| b.is_ascii_digit())
                    && port.parse().is_ok_and(|port: u16| port > 0)
            });
        if is_good { Ok(Address(text.into())) } else { Err(TokenError::Address(text.into())) }
    }
}

/// What the joiner shows to the CA, once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn draw() -> Result<Secret, TokenError> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| TokenError::Random)?;
        Ok(Secret(bytes))
    }

    /// What the CA keeps of it.
    pub fn digest(&self) -> String {
        HEXLOWER.encode(&sha256(&self.0))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    ca: [u8; 32],
    secret: Secret,
    addresses: Vec<Address>,
}

impl Token {
    pub fn new(ca: [u8; 32], secret: Secret, addresses: Vec<Address>) -> Result<Token, TokenError> {
        match addresses.len() {
            1..=MOST_ADDRESSES => Ok(Token { ca, secret, addresses }),
            other => Err(TokenError::Addresses(other)),
        }
    }

    /// SHA-256 of the CA's certificate.
    pub fn ca(&self) -> &[u8; 32] {
        &self.ca
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Not `Display`: a token must not be printed by chance.
    pub fn reveal(&self) -> String {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.ca);
        bytes.extend_from_slice(&self.secret.0);
        // `new` and `Address` have seen to it that both lengths fit.
        bytes.push(self.addresses.len() as u8);
        for address in &self.addresses {
            bytes.push(address.0.len() as u8);
            bytes.extend_from_slice(address.0.as_bytes());
        }
        let checksum = sha256(&bytes);
        bytes.extend_from_slice(&checksum[..CHECKSUM]);
        format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let body = text.trim().strip_prefix(PREFIX).ok_or(TokenError::Prefix)?;
        let bytes = BASE64URL_NOPAD.decode(body.as_bytes()).map_err(|_| TokenError::Damaged)?;
        let (said, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(TokenError::Damaged)?;
        if sha256(said)[..CHECKSUM] != *checksum {
            return Err(TokenError::Damaged);
        }
        parse(said).ok_or(TokenError::Damaged)
    }
}

fn parse(bytes: &[u8]) -> Option<Token> {
    let (ca, bytes) = bytes.split_first_chunk::<32>()?;
    let (secret, bytes) = bytes.split_first_chunk::<32>()?;
    let (count, mut bytes) = bytes.split_first()?;
    let mut addresses = Vec::new();
    for _ in 0..*count {
        let (length, rest) = bytes.split_first()?;
        let (address, rest) = rest.split_at_checked(usize::from(*length))?;
        addresses.push(std::str::from_utf8(address).ok()?.parse().ok()?);
        bytes = rest;
    }
    if !bytes.is_empty() {
        return None;
    }
    Token::new(*ca, Secret(*secret), addresses).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let addresses = ["10.0.0.1:7411", "[fd00::1]:7411", "db7.example:7411"].map(|a| a.parse().unwrap());
        Token::new([7; 32], Secret::draw().unwrap(), addresses.to_vec()).unwrap()
    }

    #[test]
    fn a_token_survives_being_copied() {
        let token = token();
        let word = token.reveal();
        assert!(word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)), "{word}");
        assert_eq!(word.parse(), Ok(token.clone()));
        assert_eq!(format!("  {word}\n").parse(), Ok(token));
    }

    #[test]
    fn a_token_with_any_character_changed_left_out_or_added_is_refused() {
        let word = token().reveal();
        for at in 0..word.len() {
            let other = if word.as_bytes()[at] == b'A' { 'B' } else { 'A' };
            let changed = format!("{}{other}{}", &word[..at], &word[at + 1..]);
            let shorter = format!("{}{}", &word[..at], &word[at + 1..]);
            let longer = format!("{}A{}", &word[..at], &word[at..]);
            for text in [changed, shorter, longer] {
                assert!(text.parse::<Token>().is_err(), "{at}: {text}");
            }
        }
    }

    #[test]
    fn lengths_that_lead_out_of_the_token_are_refused() {
        let with_checksum = |said: &[u8]| {
            let bytes = [said, &sha256(said)[..CHECKSUM]].concat();
            format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes)).parse::<Token>()
        };
        let head = [7; 64];
        for tail in
            [&[][..], &[0], &[9], &[1], &[1, 200], &[1, 3, b'a', b':'], &[1, 3, b'a', b':', b'1', 0], &[1, 1, 0xff]]
        {
            assert_eq!(with_checksum(&[&head, tail].concat()), Err(TokenError::Damaged), "{tail:?}");
        }
        assert!(with_checksum(&[&head, &[1, 3, b'a', b':', b'1'][..]].concat()).is_ok());
    }

    #[test]
    fn a_token_does_not_print_its_secret() {
        let token = token();
        let secret = format!("{:?}", token.secret.0);
        assert!(!format!("{token:?}").contains(&secret));
        assert!(format!("{token:?}").contains("Secret(..)"));
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for bad in ["", "a", ":1", "a:", "a:0", "a:65536", "a:+1", "a b:1", "a:1\n"] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?}");
        }
        assert!(Token::new([0; 32], Secret::draw().unwrap(), Vec::new()).is_err());
    }
}
