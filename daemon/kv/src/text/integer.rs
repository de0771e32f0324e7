//! Integers as the protocol writes them.
//!
//! There is one way to write each number: a value that INCR accepts is the value that INCR would
//! have written. So no plus sign, no leading zero, no space, no minus zero.

/// The number that is written there; `None` if it is none, or is beyond 64 bits.
pub fn parse(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    digits.iter().try_fold(0i64, |value, digit| {
        let digit = i64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        // A negative number is built downwards, since the smallest has no positive counterpart.
        let step = if negative { -digit } else { digit };
        value.checked_mul(10)?.checked_add(step)
    })
}

/// A cursor of SCAN: unsigned, and lenient as C's `strtoul` is (a sign is allowed, nothing at all
/// is 0, a zero byte ends it).
pub fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = text.split(|byte| *byte == 0).next()?;
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0u64, |value, digit| {
        let digit = u64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        value.checked_mul(10)?.checked_add(digit)
    })?;
    Some(if negative { value.wrapping_neg() } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_canonical_form_is_a_number() {
        for text in ["", "-", "+1", "01", "-0", "-01", " 1", "1 ", "1.0", "1e3", "0x1", "00", "--1", "1\0", "٣"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_numbers_and_what_follows_is_not() {
        assert_eq!(parse(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse(b"9223372036854775808"), None);
        assert_eq!(parse(b"-9223372036854775809"), None);
        assert_eq!(parse(b"18446744073709551617"), None);
    }

    #[test]
    fn a_cursor_may_be_beyond_the_signed_range() {
        assert_eq!(parse_cursor(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_cursor(b"18446744073709551616"), None);
        assert_eq!(parse_cursor(b"-1"), Some(u64::MAX));
        assert_eq!(parse_cursor(b""), Some(0));
        assert_eq!(parse_cursor(b"+"), None);
        assert_eq!(parse_cursor(b"12x"), None);
        assert_eq!(parse_cursor(b"\x001"), Some(0));
        assert_eq!(parse_cursor(b"12\0x"), Some(12));
    }

    proptest! {
        #[test]
        fn every_number_is_read_as_it_is_written(n: i64) {
            prop_assert_eq!(parse(n.to_string().as_bytes()), Some(n));
        }

        #[test]
        fn what_is_read_is_written_the_same(text in "[-+ 0-9]{0,21}") {
            if let Some(n) = parse(text.as_bytes()) {
                prop_assert_eq!(n.to_string(), text);
            }
        }
    }
}
