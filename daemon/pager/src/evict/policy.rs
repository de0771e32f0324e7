//! Which pages are cold.
//!
//! Linux on x86 tells an outsider nothing cheap about reads of resident pages, so recency comes
//! from the faults themselves. A clock hand goes round the address space; each full round is a
//! *lap*. A page evicted in some lap notes the lap. When it faults back, the laps in between are
//! its refault distance: the shorter, the hotter it is, and the more laps it is passed over. Heat
//! cools by one each time the hand passes. Pages that never refaulted have no heat and go first,
//! and so do those that came together: were the one of them that was asked for hotter, a scan would
//! leave a page behind in each window, and break its next pass into pieces.

/// The most laps a page is passed over.
pub const HOTTEST: u8 = 3;

/// Laps are counted modulo this: what a page's policy nibble can hold. A page that was away for a
/// multiple of it is taken for a hot one, once.
pub const LAPS: u8 = 16;

/// The heat of a page that faults back in lap `now` after it left in lap `left` (both modulo
/// [`LAPS`]).
pub fn heat_after_refault(now: u8, left: u8) -> u8 {
    match now.wrapping_sub(left) % LAPS {
        0 => HOTTEST,
        1 => 2,
        2..=4 => 1,
        _ => 0,
    }
}

/// The hand passes a page: whether it is to go, and the heat it has afterwards.
pub fn pass(heat: u8) -> (bool, u8) {
    match heat.min(HOTTEST) {
        0 => (true, 0),
        warm => (false, warm - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_comes_back_at_once_is_kept_longest() {
        let laps_kept = |heat| {
            (0..10)
                .scan(heat, |h, _| {
                    let (go, next) = pass(*h);
                    *h = next;
                    Some(go)
                })
                .take_while(|go| !go)
                .count()
        };
        assert_eq!(laps_kept(heat_after_refault(7, 7)), 3);
        assert_eq!(laps_kept(heat_after_refault(7, 6)), 2);
        assert_eq!(laps_kept(heat_after_refault(1, 15)), 1, "laps wrap");
        assert_eq!(laps_kept(heat_after_refault(12, 5)), 0);
    }
}
