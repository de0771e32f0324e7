//! Integers of 1 to 64 bits anywhere in a string, as BITFIELD keeps them: highest bit first,
//! negative ones as two's complement.

use super::bits;
use super::integer;

/// What happens to a number that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// How an integer is kept: `u1` to `u63`, `i1` to `i64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    signed: bool,
    bits: u8,
}

impl Kind {
    pub fn parse(text: &[u8]) -> Option<Kind> {
        let (signed, most, bits) = match text {
            [b'i', bits @ ..] => (true, 64, bits),
            [b'u', bits @ ..] => (false, 63, bits),
            _ => return None,
        };
        let bits = integer::parse(bits).filter(|bits| (1..=most).contains(bits))?;
        Some(Kind { signed, bits: bits as u8 })
    }

    pub fn bits(self) -> u64 {
        u64::from(self.bits)
    }

    fn least(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn greatest(self) -> i128 {
        if self.signed { (1 << (self.bits - 1)) - 1 } else { (1 << self.bits) - 1 }
    }

    /// The integer whose lowest bits these are.
    fn of_bits(self, raw: u64) -> i64 {
        let shift = 64 - u32::from(self.bits);
        if self.signed { ((raw << shift) as i64) >> shift } else { (raw << shift >> shift) as i64 }
    }

    /// The number as it will be kept. `None`: it does not fit and that is a failure.
    pub fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        if (self.least()..=self.greatest()).contains(&number) {
            return Some(number as i64);
        }
        match overflow {
            Overflow::Wrap => Some(self.of_bits(number as u64)),
            Overflow::Saturate => Some(number.clamp(self.least(), self.greatest()) as i64),
            Overflow::Fail => None,
        }
    }

    /// What a SET means by its argument: an unsigned kind takes a negative one for the large number
    /// with the same bits.
    pub fn meant(self, argument: i64) -> i128 {
        if self.signed { i128::from(argument) } else { i128::from(argument as u64) }
    }

    /// The integer at a bit offset. What lies behind the end is 0.
    pub fn read(self, bytes: &[u8], offset: u64) -> i64 {
        let bits = (offset..offset + self.bits()).map(|bit| u64::from(bits::is_set(bytes, bit)));
        self.of_bits(bits.fold(0, |raw, bit| raw << 1 | bit))
    }

    /// Writes an integer that fits at a bit offset; all its bits must lie within.
    pub fn write(self, bytes: &mut [u8], offset: u64, value: i64) {
        for n in 0..self.bits() {
            bits::put(bytes, offset + n, value as u64 >> (self.bits() - 1 - n) & 1 == 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind(text: &str) -> Kind {
        Kind::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn kinds_that_do_not_exist_are_refused() {
        for text in ["", "i", "u", "i0", "u0", "u64", "i65", "I8", "x8", "i-1", "i08", "8", "u 8"] {
            assert_eq!(Kind::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!((kind("i64").bits(), kind("u63").bits(), kind("u1").bits()), (64, 63, 1));
    }

    #[test]
    fn an_overflow_wraps_saturates_or_fails() {
        assert_eq!(kind("u8").fit(257, Overflow::Wrap), Some(1));
        assert_eq!(kind("u8").fit(-1, Overflow::Wrap), Some(255));
        assert_eq!(kind("u8").fit(257, Overflow::Saturate), Some(255));
        assert_eq!(kind("u8").fit(-5, Overflow::Saturate), Some(0));
        assert_eq!(kind("i8").fit(128, Overflow::Wrap), Some(-128));
        assert_eq!(kind("i8").fit(-200, Overflow::Saturate), Some(-128));
        assert_eq!(kind("i64").fit(i128::from(i64::MAX) + 1, Overflow::Wrap), Some(i64::MIN));
        assert_eq!(kind("i64").fit(i128::from(i64::MAX) + 1, Overflow::Fail), None);
    }

    #[test]
    fn the_bits_lie_highest_first_across_bytes() {
        let mut bytes = [0, 0];
        kind("u5").write(&mut bytes, 7, 23);
        assert_eq!(bytes, [0b0000_0001, 0b0111_0000]);
        assert_eq!(kind("i5").read(&bytes, 7), -9);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_else_changes(
            signed: bool,
            width in 1u8..=63,
            offset in 0u64..100,
            number: i64,
            mut bytes in proptest::collection::vec(any::<u8>(), 21),
        ) {
            let kind = Kind { signed, bits: width };
            let value = kind.fit(i128::from(number), Overflow::Wrap).expect("wrapping never fails");
            let before = bytes.clone();
            kind.write(&mut bytes, offset, value);
            prop_assert_eq!(kind.read(&bytes, offset), value);
            for bit in (0..168).filter(|bit| !(offset..offset + kind.bits()).contains(bit)) {
                prop_assert_eq!(bits::is_set(&bytes, bit), bits::is_set(&before, bit));
            }
        }
    }
}
