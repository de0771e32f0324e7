//! Text from others (names of donors, apps, threads and programs, messages of agents) as it may go
//! to a terminal or a log.
//!
//! A name can hold an escape sequence that rewrites the screen, a line break that forges a line of
//! a log, or a mark that turns the direction of writing round. Whatever of that kind is in a text
//! is shown as `\n`, `\t` or `\u{1b}`.
//!
//! Names are made printable where they enter: those of other hosts by [`received`], those of
//! threads and programs where /proc is
//! read. What the `annex` command prints it makes printable once more, since an annexd may be
//! older than it.

use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What would change more than its own place on a screen: control characters, separators of lines,
/// marks of direction.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with each control character written as an escape. Text without any is given back as it
/// is.
pub fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(is_control) {
        false => Cow::Borrowed(text),
        true => Cow::Owned(escape(text, is_control, |c, out| out.extend(c.escape_default()))),
    }
}

/// Like [`printable`] for a text of several lines whose line breaks are our own.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_foreign = |c: char| c != '\n' && is_control(c);
    match text.contains(is_foreign) {
        false => Cow::Borrowed(text),
        true => Cow::Owned(escape(text, is_foreign, |c, out| out.extend(c.escape_default()))),
    }
}

/// JSON whose strings hold no control character raw. They stand nowhere else in JSON, but for the
/// line breaks of its layout.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_foreign = |c: char| c != '\n' && is_control(c);
    match json.contains(is_foreign) {
        false => Cow::Borrowed(json),
        true => Cow::Owned(escape(json, is_foreign, |c, out| {
            // All of them are in the basic plane.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        })),
    }
}

/// Bytes of a text from another host that are kept: it goes to logs and listings.
const LONGEST: usize = 1000;

/// For serde's `deserialize_with`: a text that comes from another host, and is [`printable`] and of
/// no more than 1000 bytes from here on.
pub fn received<'de, D: Deserializer<'de>>(input: D) -> Result<String, D::Error> {
    Ok(kept(String::deserialize(input)?))
}

/// As [`received`], where there may be none.
pub fn received_option<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    Ok(Option::deserialize(input)?.map(kept))
}

/// As [`received`], of texts by their names.
pub fn received_map<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeMap<String, String>, D::Error> {
    let texts = BTreeMap::<String, String>::deserialize(input)?;
    Ok(texts.into_iter().map(|(name, text)| (kept(name), kept(text))).collect())
}

fn kept(text: String) -> String {
    // An escape takes ten bytes for one at most.
    let start = shortened(&text, LONGEST);
    let shown = match printable(start) {
        Cow::Borrowed(_) if start.len() == text.len() => return text,
        shown => shown,
    };
    shortened(&shown, LONGEST).to_owned()
}

fn shortened(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// A name for an app, made of what others chose to call something: no control characters, no
/// blanks, no `/`, 64 characters at most.
pub fn as_name(text: &str) -> String {
    let odd = |c: char| c == '/' || c.is_whitespace() || is_control(c);
    let name: String = text.chars().take(64).map(|c| if odd(c) { '_' } else { c }).collect();
    if name.is_empty() { "app".into() } else { name }
}

fn escape(text: &str, which: impl Fn(char) -> bool, write: impl Fn(char, &mut String)) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match which(c) {
            true => write(c, &mut out),
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_nothing_else_changes() {
        assert!(matches!(printable("größe-μ 大"), Cow::Borrowed("größe-μ 大")));
        assert_eq!(printable("a\x1b[31mb\nc\td\u{9b}\u{7f}"), r"a\u{1b}[31mb\nc\td\u{9b}\u{7f}");
        assert_eq!(printable("evil\u{202e}txt.exe"), r"evil\u{202e}txt.exe");
        assert_eq!(printable_lines("a\nb\rc"), "a\nb\\rc");
    }

    #[test]
    fn json_says_the_same_as_before() {
        let name = "a\x1b]0;x\u{7}\u{9b}\u{202e}é";
        let json = serde_json::to_string_pretty(&[name]).unwrap();
        let safe = printable_json(&json);
        assert!(!safe.contains(|c| c != '\n' && is_control(c)), "{safe}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&safe).unwrap(), [name]);
    }

    /// A donor's name could have a megabyte, and was said with every line about it.
    #[test]
    fn what_others_say_is_short_once_it_is_here() {
        assert_eq!(kept("größe".into()), "größe");
        assert_eq!(kept("x".repeat(1000)).len(), 1000);
        for long in ["x", "é", "大", "\x1b", "\u{10ffff}\n"].map(|text| text.repeat(100_000)) {
            let kept = kept(long);
            assert!((990..=1000).contains(&kept.len()) && !kept.contains(is_control), "{}", kept.len());
        }
        // What was kept is kept as it is.
        let escaped = kept("\n".repeat(900));
        assert_eq!(kept(escaped.clone()), escaped);
    }

    #[test]
    fn a_made_up_name_can_be_typed() {
        assert_eq!(as_name("Web Content"), "Web_Content");
        assert_eq!(as_name("\x1b[2Jx/y"), "_[2Jx_y");
        assert_eq!(as_name(""), "app");
        assert_eq!(as_name(&"x".repeat(100)).len(), 64);
    }
}
