//! Bits of a string. Bit 0 is the highest of the first byte; behind the end all bits are 0.

/// What BITOP does to its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    And,
    Or,
    Xor,
    Not,
}

fn mask(bit: u64) -> u8 {
    0x80 >> (bit & 7)
}

pub fn is_set(bytes: &[u8], bit: u64) -> bool {
    usize::try_from(bit >> 3).ok().and_then(|at| bytes.get(at)).is_some_and(|byte| byte & mask(bit) != 0)
}

/// Sets a bit that lies within; true if it was set before.
pub fn put(bytes: &mut [u8], bit: u64, set: bool) -> bool {
    let was = is_set(bytes, bit);
    if let Some(byte) = usize::try_from(bit >> 3).ok().and_then(|at| bytes.get_mut(at)) {
        *byte = if set { *byte | mask(bit) } else { *byte & !mask(bit) };
    }
    was
}

/// How many bits are set from bit `first` to bit `last`, both included and within.
pub fn count(bytes: &[u8], first: u64, last: u64) -> u64 {
    let (from, to) = ((first >> 3) as usize, (last >> 3) as usize);
    let before = !(mask(first) | (mask(first) - 1));
    let behind = mask(last) - 1;
    let (words, rest) = bytes[from..=to].as_chunks::<8>();
    let all: u64 = words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum();
    let all = all + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
    all - u64::from((bytes[from] & before).count_ones()) - u64::from((bytes[to] & behind).count_ones())
}

/// The first bit from `first` to `last`, both included and within, that is set (or is not).
pub fn find(bytes: &[u8], set: bool, first: u64, last: u64) -> Option<u64> {
    // The first byte by itself, then whole bytes that can't hold one are skipped.
    let head = (first | 7).min(last);
    if let Some(found) = (first..=head).find(|bit| is_set(bytes, *bit) == set) {
        return Some(found);
    }
    if head == last {
        return None;
    }
    let from = ((head + 1) >> 3) as usize;
    let barren = if set { 0x00 } else { 0xff };
    let rest = bytes.get(from..=(last >> 3) as usize)?;
    let skipped = rest.as_chunks::<32>().0.iter().take_while(|chunk| **chunk == [barren; 32]).count() * 32;
    let at = from + skipped + rest[skipped..].iter().position(|byte| *byte != barren)?;
    let start = (at as u64) << 3;
    (start..=last.min(start + 7)).find(|bit| is_set(bytes, *bit) == set)
}

/// A string as long as the longest source.
pub fn combine(operation: Operation, sources: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let longest = sources.iter().map(|source| source.as_ref().len()).max().unwrap_or(0);
    let mut result = sources.first().map_or(Vec::new(), |source| {
        let mut first = Vec::with_capacity(longest);
        first.extend_from_slice(source.as_ref());
        first
    });
    result.resize(longest, 0);
    if operation == Operation::Not {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    for source in sources.iter().skip(1).map(AsRef::as_ref) {
        let pairs = result.iter_mut().zip(source);
        match operation {
            Operation::And => {
                pairs.for_each(|(byte, other)| *byte &= other);
                result[source.len()..].fill(0);
            }
            Operation::Or => pairs.for_each(|(byte, other)| *byte |= other),
            Operation::Xor => pairs.for_each(|(byte, other)| *byte ^= other),
            Operation::Not => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bit_0_is_the_highest_of_the_first_byte() {
        assert!(is_set(b"\x80", 0) && !is_set(b"\x80", 1) && !is_set(b"\x80", 8) && !is_set(b"\x80", u64::MAX));
        let mut bytes = [0, 0];
        assert!(!put(&mut bytes, 9, true));
        assert_eq!(bytes, [0, 0x40]);
        assert!(put(&mut bytes, 9, false));
        assert_eq!(bytes, [0, 0]);
    }

    #[test]
    fn shorter_sources_are_filled_up_with_zeros() {
        assert_eq!(combine(Operation::And, &[&b"\xff\xff\xff"[..], b"\x0f"]), b"\x0f\0\0");
        assert_eq!(combine(Operation::And, &[&b"\x0f"[..], b"\xff\xff\xff"]), b"\x0f\0\0");
        assert_eq!(combine(Operation::Or, &[&b"\x01"[..], b"\x10\xaa"]), b"\x11\xaa");
        assert_eq!(combine(Operation::Xor, &[&b"\x01"[..], b"\x01\xaa", b""]), b"\x00\xaa");
        assert_eq!(combine(Operation::Not, &[&b"\x0f\x00"[..]]), b"\xf0\xff");
        assert_eq!(combine(Operation::And, &[&b""[..]]), b"");
    }

    #[test]
    fn a_bit_far_behind_is_found() {
        let mut bytes = vec![0xff; 1000];
        assert_eq!(find(&bytes, false, 3, 7999), None);
        for bit in [0, 7, 8, 255, 256, 271, 272, 5000, 7999] {
            put(&mut bytes, bit, false);
            assert_eq!(find(&bytes, false, 0, 7999), Some(bit));
            assert_eq!(find(&bytes, false, bit, bit), Some(bit));
            put(&mut bytes, bit, true);
        }
    }

    proptest! {
        #[test]
        fn counting_and_finding_agree_with_looking_at_every_bit(
            bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 1..40),
            first: prop::sample::Index,
            distance in prop_oneof![0usize..20, 0usize..320],
            set: bool,
        ) {
            let all = bytes.len() * 8;
            let first = first.index(all);
            let (first, last) = (first as u64, (first + distance).min(all - 1) as u64);
            let ones = (first..=last).filter(|bit| is_set(&bytes, *bit)).count() as u64;
            prop_assert_eq!(count(&bytes, first, last), ones);
            prop_assert_eq!(find(&bytes, set, first, last), (first..=last).find(|bit| is_set(&bytes, *bit) == set));
        }
    }
}
