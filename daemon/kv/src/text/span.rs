//! Ranges `start … end` of a string, both included, where negative numbers count from the end.

/// The part of `len` that is meant, first and last. `None`: nothing.
///
/// What lies before the beginning is the beginning, what lies behind the end is the end.
pub fn within(start: i64, end: i64, len: u64) -> Option<(u64, u64)> {
    let from_front = |n: i64| if n >= 0 { n as u64 } else { len.saturating_sub(n.unsigned_abs()) };
    let (start, end) = (from_front(start), from_front(end).min(len.checked_sub(1)?));
    (start <= end).then_some((start, end))
}

/// A range whose ends both count from the end and are in the wrong order: GETRANGE and BITCOUNT
/// find nothing in it, even where both ends lie before the beginning.
pub fn is_reversed(start: i64, end: i64) -> bool {
    start < 0 && end < 0 && start > end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn negative_ends_count_from_the_end() {
        assert_eq!(within(-3, -1, 10), Some((7, 9)));
        assert_eq!(within(0, -1, 10), Some((0, 9)));
        assert_eq!(within(-100, 3, 10), Some((0, 3)));
    }

    #[test]
    fn what_lies_outside_is_cut_off() {
        assert_eq!(within(5, 100, 10), Some((5, 9)));
        assert_eq!(within(10, 100, 10), None);
        assert_eq!(within(5, 4, 10), None);
        assert_eq!(within(i64::MIN, i64::MAX, 10), Some((0, 9)));
        assert_eq!(within(0, 0, 0), None);
        assert_eq!(within(-20, -30, 10), Some((0, 0)));
        assert!(is_reversed(-20, -30));
    }

    proptest! {
        #[test]
        fn a_span_never_leaves_the_string(start: i64, end: i64, len in 0u64..1 << 32) {
            if let Some((first, last)) = within(start, end, len) {
                prop_assert!(first <= last && last < len);
            }
        }
    }
}
