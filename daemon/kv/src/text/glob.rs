//! Patterns of KEYS and SCAN: `*`, `?`, `[abc]`, `[^a-z]` and `\` before a character that means
//! itself.
//!
//! The language is the one that Redis' matcher takes, with its corners: a class that is never
//! closed ends with the pattern; a range works in either direction and compares bytes as signed;
//! nothing but the empty pattern matches an empty key. A pattern with more than a thousand separate
//! stars matches nothing that needs them all.
//!
//! Only the last star that was passed is ever tried again (an earlier one could not find more), so
//! that the time is bounded by the product of both lengths.

const MOST_STARS: usize = 1000;

pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut at, mut seen, mut stars) = (0, 0, 0);
    // Where the pattern goes on behind the last star, and how much of the text that star has left
    // of it.
    let mut retry: Option<(usize, usize)> = None;
    while seen < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at = behind_stars(pattern, at);
            if at == pattern.len() {
                return true;
            }
            stars += 1;
            if stars > MOST_STARS {
                return false;
            }
            retry = Some((at, seen));
        } else if let Some(next) = step(pattern, at, text[seen]) {
            (at, seen) = (next, seen + 1);
        } else if let Some((resume, from)) = retry {
            (at, seen) = (resume, from + 1);
            retry = Some((resume, from + 1));
        } else {
            return false;
        }
    }
    behind_stars(pattern, at) == pattern.len()
}

fn behind_stars(pattern: &[u8], at: usize) -> usize {
    at + pattern[at..].iter().take_while(|c| **c == b'*').count()
}

/// Where the pattern goes on if what stands at `at` takes this byte.
fn step(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match pattern[at..] {
        [] => None,
        [b'?', ..] => Some(at + 1),
        [b'[', ..] => class(pattern, at + 1, byte),
        [b'\\', literal, ..] => (literal == byte).then_some(at + 2),
        [literal, ..] => (literal == byte).then_some(at + 1),
    }
}

/// A class, from behind its bracket on.
fn class(pattern: &[u8], mut at: usize, byte: u8) -> Option<usize> {
    let excluded = pattern.get(at) == Some(&b'^');
    at += usize::from(excluded);
    let mut found = false;
    loop {
        match pattern[at..] {
            [] => break,
            [b'\\', literal, ..] => {
                found |= literal == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [one, b'-', other, ..] => {
                let (one, other, byte) = (one as i8, other as i8, byte as i8);
                found |= (one.min(other)..=one.max(other)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= literal == byte;
                at += 1;
            }
        }
    }
    (found != excluded).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(pattern: &str, texts: &[&str]) -> bool {
        texts.iter().all(|text| matches(pattern.as_bytes(), text.as_bytes()))
    }

    fn none(pattern: &str, texts: &[&str]) -> bool {
        texts.iter().all(|text| !matches(pattern.as_bytes(), text.as_bytes()))
    }

    #[test]
    fn stars_and_question_marks_match_as_documented() {
        assert!(all("h?llo", &["hello", "hallo", "h*llo"]) && none("h?llo", &["hllo", "heello"]));
        assert!(all("h*llo", &["hllo", "heeeello"]) && none("h*llo", &["hell", "xhllo"]));
        assert!(all("*a*b*", &["ab", "xaxbx", "ba ab"]) && none("*a*b*", &["ba", "a", "b"]));
        assert!(all("a**", &["a", "ab"]));
    }

    #[test]
    fn classes_match_as_documented() {
        assert!(all("h[ae]llo", &["hello", "hallo"]) && none("h[ae]llo", &["hillo"]));
        assert!(all("h[^e]llo", &["hallo", "h^llo"]) && none("h[^e]llo", &["hello"]));
        assert!(all("h[a-c]llo", &["hallo", "hbllo", "hcllo"]) && none("h[a-c]llo", &["hdllo"]));
        assert!(all("h[c-a]llo", &["hbllo"]));
        assert!(all("[\\]-]", &["]", "-"]));
    }

    #[test]
    fn odd_classes_match_as_they_do_in_redis() {
        assert!(none("[]", &["]", "[", "[]"]));
        assert!(all("[^", &["x"]) && none("[", &["[", "x"]));
        assert!(all("[ab", &["a", "b"]) && none("[ab", &["ab", "["]));
        assert!(all("[a-]", &["]", "^", "a"]) && none("[a-]", &["b", "-"]));
        assert!(all("[\\", &["\\"]));
    }

    #[test]
    fn a_backslash_takes_the_meaning_away() {
        assert!(all("a\\*b", &["a*b"]) && none("a\\*b", &["axb", "a\\*b"]));
        assert!(all("\\", &["\\"]));
    }

    #[test]
    fn an_empty_key_matches_nothing_but_the_empty_pattern() {
        assert!(matches(b"", b"") && !matches(b"*", b"") && !matches(b"**", b"") && !matches(b"", b"a"));
    }

    #[test]
    fn a_hostile_pattern_takes_bounded_time() {
        let began = std::time::Instant::now();
        assert!(!matches(
            "a*".repeat(900).as_bytes().iter().chain(b"b").copied().collect::<Vec<_>>().as_slice(),
            "a".repeat(30_000).as_bytes()
        ));
        assert!(!matches("*?".repeat(2000).as_bytes(), "a".repeat(3000).as_bytes()));
        assert!(began.elapsed() < std::time::Duration::from_secs(60));
    }

    /// The plain recursive meaning of a pattern without classes.
    fn by_recursion(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], text) => text.is_empty(),
            ([b'*', rest @ ..], text) => (0..=text.len()).any(|n| by_recursion(rest, &text[n..])),
            ([b'?', rest @ ..], [_, text @ ..]) => by_recursion(rest, text),
            ([c, rest @ ..], [d, text @ ..]) => c == d && by_recursion(rest, text),
            (_, []) => false,
        }
    }

    proptest! {
        #[test]
        fn backtracking_finds_what_recursion_finds(pattern in "[ab?*]{0,8}", text in "[ab]{1,10}") {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text), by_recursion(pattern, text));
        }

        #[test]
        fn no_pattern_panics(pattern: Vec<u8>, text: Vec<u8>) {
            matches(&pattern, &text);
        }

        #[test]
        fn brackets_and_backslashes_never_panic(pattern in r"[\[\]\\^*?a-]{0,20}", text in r"[\[\]\\^a-]{0,20}") {
            matches(pattern.as_bytes(), text.as_bytes());
        }
    }
}
