//! What is sent, and how that is written down: a failure prints it so, and `cases.txt` is read so.
//!
//! A line is what one connection sends at a time: `0: "SET" "k" "\x00" ; "GET" "k"` are two
//! commands in one go over the first connection, and `1: raw "*x\r\n"` is any bytes over the second
//! one. The connections are made when they are first used, and again after one was closed.

use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

/// Connections of a sequence to each server.
pub const WIRES: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Words(Vec<Vec<u8>>),
    Raw(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub wire: usize,
    pub sent: Vec<Sent>,
}

impl Sent {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Sent::Raw(bytes) => out.extend_from_slice(bytes),
            Sent::Words(words) => {
                out.extend(format!("*{}\r\n", words.len()).bytes());
                for word in words {
                    out.extend(format!("${}\r\n", word.len()).bytes());
                    out.extend_from_slice(word);
                    out.extend(b"\r\n");
                }
            }
        }
    }

    /// Its words, in lower case. What they are in raw bytes is guessed.
    pub fn words(&self) -> Vec<Vec<u8>> {
        match self {
            Sent::Words(words) => words.iter().map(|word| word.to_ascii_lowercase()).collect(),
            Sent::Raw(bytes) => {
                let words = bytes.split(|byte| byte.is_ascii_whitespace() || *byte == b'"');
                words.filter(|word| !word.is_empty()).map(<[u8]>::to_ascii_lowercase).collect()
            }
        }
    }

    /// Whether one of its words is one of these.
    pub fn has(&self, wanted: &[&str]) -> bool {
        self.words().iter().any(|word| wanted.iter().any(|wanted| word == wanted.as_bytes()))
    }
}

impl Step {
    pub fn has(&self, wanted: &[&str]) -> bool {
        self.sent.iter().any(|sent| sent.has(wanted))
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sent::Raw(bytes) => write!(f, "raw \"{}\"", bytes.escape_ascii()),
            Sent::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("\"{}\"", word.escape_ascii())).collect();
                f.write_str(&words.join(" "))
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sent: Vec<String> = self.sent.iter().map(Sent::to_string).collect();
        f.pad(&format!("{}: {}", self.wire, sent.join(" ; ")))
    }
}

pub fn show(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

/// Reads a line. Words that need no quotes may go without.
///
/// # Panics
/// If it is no step.
pub fn parse(line: &str) -> Step {
    let (wire, sent) = line.split_once(": ").unwrap_or_else(|| panic!("no connection: {line}"));
    let wire = wire.parse().unwrap_or_else(|_| panic!("no connection: {line}"));
    assert!(wire < WIRES, "no connection: {line}");
    let mut rest = sent.chars().peekable();
    let (mut all, mut words, mut is_raw) = (Vec::new(), Vec::new(), false);
    loop {
        while rest.next_if(|c| *c == ' ').is_some() {}
        match rest.peek() {
            None | Some(';') => {
                let words = std::mem::take(&mut words);
                all.push(if std::mem::take(&mut is_raw) { Sent::Raw(words.concat()) } else { Sent::Words(words) });
                if rest.next().is_none() {
                    return Step { wire, sent: all };
                }
            }
            Some('"') => words.push(quoted(&mut rest)),
            Some(_) => {
                let mut word = String::new();
                while let Some(c) = rest.next_if(|c| *c != ' ') {
                    word.push(c);
                }
                match word.as_str() {
                    "raw" if words.is_empty() => is_raw = true,
                    _ => words.push(word.into_bytes()),
                }
            }
        }
    }
}

/// What `escape_ascii` made, behind its first quote.
fn quoted(rest: &mut Peekable<Chars<'_>>) -> Vec<u8> {
    rest.next();
    let mut bytes = Vec::new();
    loop {
        match rest.next().expect("a closing quote") {
            '"' => return bytes,
            '\\' => bytes.push(match rest.next().expect("an escaped character") {
                'n' => b'\n',
                'r' => b'\r',
                't' => b'\t',
                'x' => {
                    let digits: String = rest.by_ref().take(2).collect();
                    u8::from_str_radix(&digits, 16).expect("two digits")
                }
                other => other as u8,
            }),
            other => bytes.push(other as u8),
        }
    }
}

#[test]
fn what_is_printed_can_be_read_again() {
    let words = |words: &[&[u8]]| Sent::Words(words.iter().map(|word| word.to_vec()).collect());
    let sent = vec![words(&[b"SET", b"", b"\0\xff\r\n\"\\;: '"]), words(&[b"raw"]), Sent::Raw(b"*x\r\n ; \"".to_vec())];
    let step = Step { wire: 2, sent };
    assert_eq!(parse(&step.to_string()), step);
    assert_eq!(parse("0: GET k"), Step { wire: 0, sent: vec![words(&[b"GET", b"k"])] });
}
