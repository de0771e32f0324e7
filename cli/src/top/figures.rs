//! Numbers in few letters.

use crate::table::count;

/// `12`, `1.2k`: a rate. `-` if it is not known.
pub fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| count(value.round() as u64))
}

/// `0 %`, `3.2 %`, `250 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        p if p < 0.05 => "0 %".into(),
        p if p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// `<64 µs`, `<16 ms`: a bound of a histogram. `-` if there was nothing to count.
pub fn below(bound_us: Option<u64>) -> String {
    match bound_us {
        None => "-".into(),
        Some(us) if us < 1000 => format!("<{us} µs"),
        Some(us) if us < 1_000_000 => format!("<{} ms", us.div_ceil(1000)),
        Some(us) => format!("<{} s", us.div_ceil(1_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0004, 0.032, 0.5, 2.5].map(percent), ["0 %", "3.2 %", "50 %", "250 %"]);
        assert_eq!([None, Some(64), Some(16384), Some(1 << 21)].map(below), ["-", "<64 µs", "<17 ms", "<3 s"]);
        assert_eq!([None, Some(0.4), Some(1234.0)].map(rate), ["-", "0", "1.2k"]);
    }
}
