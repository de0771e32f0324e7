//! Numbers with a fraction, as INCRBYFLOAT adds them.
//!
//! Redis adds in the x87 format: a sign, 64 bits of mantissa, 15 of exponent, and writes the sum
//! with 17 digits behind the point, less the zeros at the end. A decimal sum would be nicer (0.1 +
//! 0.2 is exact there) but not the same: what comes out depends on the rounding in three places,
//! and clients compare strings. So this is that format, in software: text to the nearest number, an
//! exact sum to the nearest number, a number to text, all rounded half to even.
//!
//! Every step goes through an integer of at most about 16,500 bits, however large or small the
//! exponents are.

use num_bigint::BigUint;
use std::cmp::Ordering;

/// Bits of the mantissa.
const PRECISION: u64 = 64;
/// The exponents of the mantissa's lowest bit: of the smallest numbers, and of the largest.
const LOWEST: i64 = -16445;
const HIGHEST: i64 = 16320;
/// Texts from this length on are no numbers.
const LONGEST: usize = 5 * 1024;
/// A decimal exponent beyond this is surely out of range, however many digits stand before it.
const SURELY_OUT: i64 = 20_000;
/// Digits behind the point that are written.
const PLACES: u32 = 17;

/// A number in the x87 format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    Infinite {
        negative: bool,
    },
    /// `mantissa * 2^exponent`
    Finite {
        negative: bool,
        mantissa: u64,
        exponent: i64,
    },
}

use Extended::{Finite, Infinite};

impl Extended {
    pub const ZERO: Extended = Finite { negative: false, mantissa: 0, exponent: LOWEST };

    /// What C's `strtold` reads: decimal or hexadecimal, with or without a fraction and an
    /// exponent, or an infinity. `None`: it is something else, or not a number, or too large, or so
    /// small that nothing is left of it.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() >= LONGEST {
            return None;
        }
        let (negative, text) = match text {
            [b'-', text @ ..] => (true, text),
            [b'+', text @ ..] => (false, text),
            text => (false, text),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Infinite { negative });
        }
        let number = match text {
            [b'0', b'x' | b'X', text @ ..] => Written::parse(text, 16)?.nearest(negative),
            text => Written::parse(text, 10)?.nearest(negative),
        };
        // A written infinity is a number; one that came about by rounding is out of range.
        number.filter(|number| matches!(number, Finite { .. }))
    }

    /// The nearest number to the exact sum. `None`: infinity less infinity, which is no number.
    pub fn plus(self, other: Extended) -> Option<Extended> {
        match (self, other) {
            (Infinite { negative: a }, Infinite { negative: b }) => (a == b).then_some(self),
            (Infinite { .. }, _) => Some(self),
            (_, Infinite { .. }) => Some(other),
            (
                Finite { negative: a_negative, mantissa: a, exponent: a_exponent },
                Finite { negative: b_negative, mantissa: b, exponent: b_exponent },
            ) => {
                let exponent = a_exponent.min(b_exponent);
                let a = BigUint::from(a) << (a_exponent - exponent) as u64;
                let b = BigUint::from(b) << (b_exponent - exponent) as u64;
                let (negative, sum) = match (a_negative == b_negative, a.cmp(&b)) {
                    (true, _) => (a_negative, a + b),
                    (false, Ordering::Equal) => (false, BigUint::ZERO),
                    (false, Ordering::Greater) => (a_negative, a - b),
                    (false, Ordering::Less) => (b_negative, b - a),
                };
                Some(nearest(negative, sum, exponent, false))
            }
        }
    }

    pub fn is_finite(self) -> bool {
        matches!(self, Finite { .. })
    }
}

/// As `%.17Lf` writes it, without the zeros at the end, and without a sign before a zero.
impl std::fmt::Display for Extended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (negative, mantissa, exponent) = match *self {
            Infinite { negative } => return f.write_str(if negative { "-inf" } else { "inf" }),
            Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
        };
        let units = BigUint::from(mantissa) * BigUint::from(10u8).pow(PLACES);
        let units = if exponent >= 0 { units << exponent as u64 } else { halved(units, -exponent as u64, false) };
        let digits = format!("{:0>width$}", units.to_string(), width = PLACES as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - PLACES as usize);
        let fraction = fraction.trim_end_matches('0');
        if negative && (whole != "0" || !fraction.is_empty()) {
            f.write_str("-")?;
        }
        f.write_str(whole)?;
        if fraction.is_empty() { Ok(()) } else { write!(f, ".{fraction}") }
    }
}

/// A number as it is written: `digits * base^scale`, in hexadecimal `digits * 2^scale`.
struct Written {
    base: u32,
    digits: BigUint,
    scale: i64,
}

impl Written {
    fn parse(text: &[u8], base: u32) -> Option<Written> {
        let mark = if base == 10 { b'e' } else { b'p' };
        let (number, exponent) = match text.iter().position(|c| c.to_ascii_lowercase() == mark) {
            Some(at) => (&text[..at], parse_exponent(&text[at + 1..])?),
            None => (text, 0),
        };
        let (whole, fraction) = match number.iter().position(|c| *c == b'.') {
            Some(at) => (&number[..at], &number[at + 1..]),
            None => (number, &number[..0]),
        };
        if !whole.iter().chain(fraction).all(|c| char::from(*c).is_digit(base)) {
            return None;
        }
        let digits = BigUint::parse_bytes(&[whole, fraction].concat(), base)?;
        let per_place = if base == 10 { 1 } else { 4 };
        Some(Written { base, digits, scale: exponent - per_place * fraction.len() as i64 })
    }

    /// `None`: nothing is left of it.
    fn nearest(self, negative: bool) -> Option<Extended> {
        if self.digits == BigUint::ZERO {
            return Some(nearest(negative, self.digits, LOWEST, false));
        }
        if self.scale > SURELY_OUT {
            return Some(Infinite { negative });
        }
        // All the digits of a text of permitted length would not lift it out of there.
        if self.scale < -2 * SURELY_OUT {
            return None;
        }
        let number = if self.base == 16 {
            nearest(negative, self.digits, self.scale, false)
        } else if self.scale >= 0 {
            nearest(negative, self.digits * BigUint::from(10u8).pow(self.scale as u32), 0, false)
        } else {
            let divisor = BigUint::from(10u8).pow(-self.scale as u32);
            // As many bits in front that the quotient has more than the mantissa; what is lost is
            // told as `rest`.
            let lift = (divisor.bits() + PRECISION + 2).saturating_sub(self.digits.bits());
            let lifted = self.digits << lift;
            let quotient = &lifted / &divisor;
            let rest = lifted != &quotient * divisor;
            nearest(negative, quotient, -(lift as i64), rest)
        };
        (!matches!(number, Finite { mantissa: 0, .. })).then_some(number)
    }
}

/// The exponent behind its mark. One that does not fit is as far out as can be.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let most = 4 * SURELY_OUT;
    Some(sign * digits.iter().fold(0, |value, digit| (value * 10 + i64::from(digit - b'0')).min(most)))
}

/// The number nearest to `value * 2^exponent`, where `value` may be a little more than it says
/// (`rest`).
fn nearest(negative: bool, value: BigUint, exponent: i64, rest: bool) -> Extended {
    if value == BigUint::ZERO {
        return Finite { negative, mantissa: 0, exponent: LOWEST };
    }
    let target = (exponent + value.bits() as i64 - PRECISION as i64).max(LOWEST);
    let (value, mut exponent) = match target - exponent {
        drop if drop > 0 => (halved(value, drop as u64, rest), target),
        lift => (value << (-lift) as u64, target),
    };
    // Rounding up may have made it one bit longer: then that bit is all there is.
    let value = if value.bits() > PRECISION {
        exponent += 1;
        value >> 1u8
    } else {
        value
    };
    match value.iter_u64_digits().next() {
        Some(mantissa) if exponent <= HIGHEST => Finite { negative, mantissa, exponent },
        Some(_) => Infinite { negative },
        None => Finite { negative, mantissa: 0, exponent: LOWEST },
    }
}

/// `value / 2^times`, rounded half to even, where `value` may be a little more than it says
/// (`rest`).
fn halved(value: BigUint, times: u64, rest: bool) -> BigUint {
    if times > value.bits() {
        return BigUint::ZERO;
    }
    let kept = &value >> times;
    let half = times > 0 && value.bit(times - 1);
    let more = rest || value.trailing_zeros().is_some_and(|zeros| zeros + 1 < times);
    if half && (more || kept.bit(0)) { kept + 1u8 } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(a: &str, b: &str) -> String {
        let (a, b) = (Extended::parse(a.as_bytes()).expect(a), Extended::parse(b.as_bytes()).expect(b));
        a.plus(b).expect("a number").to_string()
    }

    #[test]
    fn sums_read_as_people_expect() {
        assert_eq!(sum("3", "1.1"), "4.1");
        assert_eq!(sum("0", "1.23"), "1.23");
        assert_eq!(sum("3.0e3", "200"), "3200");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("1.5", "-1.5"), "0");
        assert_eq!(sum("17179869184", "1.5"), "17179869185.5");
        assert_eq!(sum("-1", "0.25"), "-0.75");
        assert_eq!(sum("10.50", "0.1"), "10.6");
    }

    #[test]
    fn the_places_behind_the_seventeenth_are_rounded_away() {
        assert_eq!(sum("0", "1e-17"), "0.00000000000000001");
        assert_eq!(sum("0", "4e-18"), "0");
        assert_eq!(sum("0", "-4e-18"), "0");
        assert_eq!(sum("1", "1e-20"), "1");
    }

    #[test]
    fn large_numbers_show_the_format_they_are_kept_in() {
        assert_eq!(sum("0", "1e20"), "100000000000000000000");
        assert_eq!(sum("9223372036854775807", "1"), "9223372036854775808");
        assert_eq!(sum("0", "36893488147419103233"), "36893488147419103232");
        assert_eq!(sum("0", "0x10p1"), "32");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "", " 1", "1 ", "abc", "1e", "1e+", ".", "-", "+-1", "0x", "0xp1", "nan", "NaN", "nan(1)", "1_0", "1..2",
            "1e5000", "1e-5000", "1\0",
        ] {
            assert_eq!(Extended::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Extended::parse("1".repeat(LONGEST).as_bytes()), None);
    }

    #[test]
    fn unusual_spellings_are_numbers() {
        for (text, value) in
            [("1.", "1"), (".5", "0.5"), ("+5", "5"), ("00012", "12"), ("1E2", "100"), ("0x.8", "0.5"), ("-0", "0")]
        {
            assert_eq!(sum(text, "0"), value, "{text:?}");
        }
        assert_eq!(Extended::parse(b"-InFinity"), Some(Infinite { negative: true }));
    }

    #[test]
    fn infinities_do_not_cancel() {
        let (up, down) = (Infinite { negative: false }, Infinite { negative: true });
        assert_eq!(up.plus(down), None);
        assert_eq!(up.plus(up), Some(up));
        assert_eq!(Extended::ZERO.plus(down), Some(down));
    }

    #[test]
    fn the_largest_number_plus_itself_is_infinite() {
        let largest = Extended::parse(b"1.18973149535723176502e+4932").expect("the largest");
        assert!(largest.is_finite());
        assert_eq!(largest.plus(largest), Some(Infinite { negative: false }));
        assert_eq!(Extended::parse(b"1.18973149535723176506e+4932"), None);
    }

    #[test]
    fn the_smallest_number_is_one_and_half_of_it_is_none() {
        assert!(Extended::parse(b"3.6e-4951").is_some());
        assert_eq!(Extended::parse(b"1.8e-4951"), None);
    }

    #[test]
    fn hostile_exponents_and_lengths_take_bounded_time() {
        let began = std::time::Instant::now();
        for text in
            ["1e4932", "1e-4932", "1e999999999999999999999", "1e-999999999999999999999", "0e999999999999999999999"]
        {
            for _ in 0..50 {
                if let Some(number) = Extended::parse(text.as_bytes()) {
                    assert!(number.plus(Extended::ZERO).is_some_and(|n| n.to_string().len() < LONGEST));
                }
            }
        }
        let long = format!("{}e-5000", "9".repeat(5000));
        assert!(Extended::parse(long.as_bytes()).is_some());
        assert!(began.elapsed() < std::time::Duration::from_secs(60));
    }

    proptest! {
        #[test]
        fn integers_of_64_bits_are_exact(a: i64, b: i64) {
            let written = sum(&a.to_string(), "0");
            prop_assert_eq!(written, a.to_string());
            let exact = i128::from(a) + i128::from(b);
            if exact.unsigned_abs() < 1 << 64 {
                prop_assert_eq!(sum(&a.to_string(), &b.to_string()), exact.to_string());
            }
        }

        #[test]
        fn adding_is_commutative(
            a in "-?[0-9]{1,20}(\\.[0-9]{1,20})?(e-?[0-9]{1,4})?",
            b in "-?[0-9]{1,20}\\.[0-9]{1,20}",
        ) {
            if let (Some(a), Some(b)) = (Extended::parse(a.as_bytes()), Extended::parse(b.as_bytes())) {
                prop_assert_eq!(a.plus(b), b.plus(a));
            }
        }

        #[test]
        fn no_text_panics(text in "[-+.0-9eEpPxXinfa]{0,30}") {
            if let Some(number) = Extended::parse(text.as_bytes()) {
                let _ = number.to_string();
            }
        }
    }
}
