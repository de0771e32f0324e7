//! Patterns for names and paths.
//!
//! `*` stands for any characters but `/`, `**` for any at all, `?` for one but `/`, and `[a-z]`,
//! `[!a-z]` for one of some. Everything else stands for itself, a backslash too: systemd writes
//! such into the names of units.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    This(char),
    One,
    Set {
        is_none_of: bool,
        ranges: Vec<(char, char)>,
    },
    Many,
    /// Beyond a `/`, too.
    All,
}

/// It is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("it is empty")]
    Empty,
    #[error("its [ is not closed")]
    Open,
    #[error("its set [] has no characters")]
    EmptySet,
    #[error("a range in its set ends before it begins")]
    Range,
}

impl Glob {
    /// # Errors
    /// It is empty, or a set of characters is none.
    pub fn new(text: &str) -> Result<Glob, GlobError> {
        let mut parts = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(char) = chars.next() {
            parts.push(match char {
                '*' if chars.next_if_eq(&'*').is_some() => Part::All,
                '*' => Part::Many,
                '?' => Part::One,
                '[' => set(&mut chars)?,
                this => Part::This(this),
            });
        }
        if parts.is_empty() {
            return Err(GlobError::Empty);
        }
        Ok(Glob { text: text.to_owned(), parts })
    }

    /// Whether it stands for this text as a whole. Takes time in proportion to both.
    pub fn matches(&self, text: &str) -> bool {
        // After each character: which parts may be next.
        let mut next = vec![false; self.parts.len() + 1];
        next[0] = true;
        self.skip(&mut next);
        for char in text.chars() {
            let mut then = vec![false; next.len()];
            for (at, part) in self.parts.iter().enumerate().filter(|(at, _)| next[*at]) {
                match part {
                    Part::Many | Part::All => then[at] |= *part == Part::All || char != '/',
                    other => then[at + 1] |= other.takes(char),
                }
            }
            self.skip(&mut then);
            next = then;
        }
        next[self.parts.len()]
    }

    /// What stands for many stands for none, too.
    fn skip(&self, next: &mut [bool]) {
        for (at, part) in self.parts.iter().enumerate() {
            if next[at] && matches!(part, Part::Many | Part::All) {
                next[at + 1] = true;
            }
        }
    }

    /// Whether it is about paths.
    pub fn has_slash(&self) -> bool {
        self.text.contains('/')
    }
}

impl Part {
    fn takes(&self, char: char) -> bool {
        match self {
            Part::This(this) => *this == char,
            Part::One => char != '/',
            Part::Set { is_none_of, ranges } => {
                char != '/' && ranges.iter().any(|(from, to)| (*from..=*to).contains(&char)) != *is_none_of
            }
            Part::Many | Part::All => false,
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is behind a `[`. A `]` that comes first is one of the set.
fn set(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Part, GlobError> {
    let is_none_of = chars.next_if(|char| matches!(char, '!' | '^')).is_some();
    let mut ranges = Vec::new();
    loop {
        let from = chars.next().ok_or(GlobError::Open)?;
        if from == ']' && !ranges.is_empty() {
            return Ok(Part::Set { is_none_of, ranges });
        }
        if from == ']' && chars.peek().is_none() {
            return Err(GlobError::EmptySet);
        }
        let mut ahead = chars.clone();
        let to = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(to)) if to != ']' => {
                *chars = ahead;
                to
            }
            _ => from,
        };
        if to < from {
            return Err(GlobError::Range);
        }
        ranges.push((from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, text: &str) -> bool {
        Glob::new(glob).unwrap().matches(text)
    }

    #[test]
    fn a_pattern_stands_for_the_whole_text() {
        for (glob, text) in [
            ("redis.service", "redis.service"),
            ("redis@*.service", "redis@6379.service"),
            ("redis@*.service", "redis@.service"),
            ("/system.slice/web-*", "/system.slice/web-1.service"),
            ("/**/x", "/a/b/c/x"),
            ("**", "/a/b"),
            ("a?c", "abc"),
            ("[a-cx]1", "x1"),
            ("[!a]1", "b1"),
            ("[]]", "]"),
            ("[a-]", "-"),
            (r"a\x2db", r"a\x2db"),
            ("größe-*", "größe-大"),
            ("*a*b*", "xxaxxbxx"),
        ] {
            assert!(matches(glob, text), "{glob} for {text}");
        }
        for (glob, text) in [
            ("redis", "redis2"),
            ("redis", "aredis"),
            ("/system.slice/*", "/system.slice/a.service/b"),
            ("/a?b", "/a/b"),
            ("[!a]", "/"),
            ("[a-c]", "d"),
            ("a*", "b"),
            ("*", "a/b"),
        ] {
            assert!(!matches(glob, text), "{glob} for {text}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        assert_eq!(Glob::new(""), Err(GlobError::Empty));
        assert_eq!(Glob::new("a[b"), Err(GlobError::Open));
        assert_eq!(Glob::new("a[]"), Err(GlobError::EmptySet));
        assert_eq!(Glob::new("[z-a]"), Err(GlobError::Range));
    }

    #[test]
    fn no_text_takes_long() {
        let glob = "*a".repeat(200);
        assert!(!matches(&glob, &format!("{}b", "a".repeat(2000))));
    }
}
