//! Sizes and times as people write and read them, and how much an app may keep resident: a fixed
//! limit, or one that annexd finds.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How much anonymous memory an app may keep resident: bytes, or a share of what it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Limit {
    Bytes(u64),
    /// Percent of the app's anonymous memory (resident + in the pool), 1 to 100.
    Percent(u8),
}

/// A limit below this must be written with a unit: a bare `50` was meant to be a share, or
/// megabytes.
pub const LEAST_BARE_LIMIT: u64 = 1 << 20;

/// A limit that could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("bad limit '{0}': give bytes with a unit (512M, 2G) or a share (50%)")]
    Unreadable(String),
    #[error("bad limit '{0}': that is bytes, and less than 1M; give a share ({0}%) or a unit ({0}M)")]
    NoUnit(String),
    #[error("bad limit '{0}': behind auto: stands the share of time that may be waited, 0.01% to 100% (auto:1%)")]
    Target(String),
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(s: &str) -> Result<Self, LimitError> {
        let bad = || LimitError::Unreadable(s.to_owned());
        if let Some(percent) = s.strip_suffix('%') {
            let percent = percent.trim().parse().map_err(|_| bad())?;
            return if (1..=100).contains(&percent) { Ok(Limit::Percent(percent)) } else { Err(bad()) };
        }
        let bytes = parse_bytes(s).filter(|b| *b > 0).ok_or_else(bad)?;
        let has_unit = s.contains(|c: char| c.is_ascii_alphabetic());
        if !has_unit && bytes < LEAST_BARE_LIMIT {
            return Err(LimitError::NoUnit(s.trim().to_owned()));
        }
        Ok(Limit::Bytes(bytes))
    }
}

impl TryFrom<String> for Limit {
    type Error = LimitError;

    fn try_from(s: String) -> Result<Self, LimitError> {
        s.parse()
    }
}

impl From<Limit> for String {
    fn from(limit: Limit) -> String {
        match limit {
            // What is written must be read again.
            Limit::Bytes(b) if b < LEAST_BARE_LIMIT => format!("{b}B"),
            Limit::Bytes(b) => b.to_string(),
            Limit::Percent(p) => format!("{p}%"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Bytes(b) => f.write_str(&format_bytes(*b)),
            Limit::Percent(p) => write!(f, "{p}%"),
        }
    }
}

/// The share of time that an app whose limit is found may wait for its own pages: `1%`, `0.5%`. In
/// hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StallTarget(u16);

impl StallTarget {
    /// 0.01 is 1 %.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1e4
    }
}

impl Default for StallTarget {
    fn default() -> StallTarget {
        StallTarget(100)
    }
}

impl FromStr for StallTarget {
    type Err = LimitError;

    fn from_str(s: &str) -> Result<Self, LimitError> {
        let percent = s.trim().strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
        let hundredths = percent.map(|percent| (percent * 100.0).round()).filter(|h| (1.0..=1e4).contains(h));
        hundredths.map(|h| StallTarget(h as u16)).ok_or_else(|| LimitError::Target(s.to_owned()))
    }
}

impl TryFrom<String> for StallTarget {
    type Error = LimitError;

    fn try_from(s: String) -> Result<Self, LimitError> {
        s.parse()
    }
}

impl From<StallTarget> for String {
    fn from(target: StallTarget) -> String {
        format!("{}%", f64::from(target.0) / 100.0)
    }
}

impl fmt::Display for StallTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", f64::from(self.0) / 100.0)
    }
}

/// What `--local` takes: a limit, or `auto`, `auto:1%`: annexd finds one at which the app waits for
/// its own pages no longer than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Local {
    Fixed(Limit),
    Auto(StallTarget),
}

impl FromStr for Local {
    type Err = LimitError;

    fn from_str(s: &str) -> Result<Self, LimitError> {
        match s.trim().split_once(':') {
            None if s.trim() == "auto" => Ok(Local::Auto(StallTarget::default())),
            Some(("auto", target)) => {
                target.parse().map(Local::Auto).map_err(|_| LimitError::Target(s.trim().to_owned()))
            }
            _ => s.parse().map(Local::Fixed),
        }
    }
}

impl TryFrom<String> for Local {
    type Error = LimitError;

    fn try_from(s: String) -> Result<Self, LimitError> {
        s.parse()
    }
}

impl From<Local> for String {
    fn from(local: Local) -> String {
        match local {
            Local::Fixed(limit) => limit.into(),
            Local::Auto(target) => format!("auto:{}", String::from(target)),
        }
    }
}

impl From<Limit> for Local {
    fn from(limit: Limit) -> Local {
        Local::Fixed(limit)
    }
}

/// `0 %`, `3.2 %`, `250 %`: a share, 1.0 being all.
pub fn format_share(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        p if p < 0.05 => "0 %".into(),
        p if p < 9.95 && (p * 10.0).round() % 10.0 != 0.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Reads `4096`, `512K`, `64M`, `2G`, `1T` (powers of 1024; `KiB`, `MB` and the like are taken
/// too).
pub fn parse_bytes(s: &str) -> Option<u64> {
    let s = s.trim();
    let digits = s.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(s.len());
    let (number, unit) = s.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    match number.parse::<u64>() {
        Ok(n) => n.checked_mul(1 << shift),
        Err(_) => number.parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| (n * (1u64 << shift) as f64) as u64),
    }
}

/// `1.5 GiB`, `64 MiB`, `12 KiB`, `7 B`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut n = bytes as f64;
    while n >= 1024.0 && unit + 1 < UNITS.len() {
        n /= 1024.0;
        unit += 1;
    }
    if unit == 0 || n.fract() < 0.05 { format!("{n:.0} {}", UNITS[unit]) } else { format!("{n:.1} {}", UNITS[unit]) }
}

/// `5 s`, `2 min`, `2 h 1 min`, `2 d 7 h`.
pub fn format_seconds(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, m) => format!("{m} min"),
        (0, h, m) => format!("{h} h {m} min"),
        (d, h, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_as_people_write_them() {
        assert_eq!("512M".parse(), Ok(Limit::Bytes(512 << 20)));
        assert_eq!("1.5GiB".parse(), Ok(Limit::Bytes(3 << 29)));
        assert_eq!("50%".parse(), Ok(Limit::Percent(50)));
        for bad in ["", "0", "0%", "101%", "12Q", "M", "-5M"] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn few_bytes_are_taken_with_a_unit_only() {
        let error = "50".parse::<Limit>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "bad limit '50': that is bytes, and less than 1M; give a share (50%) or a unit (50M)"
        );
        for bad in ["1048575", " 512 ", "0.5"] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
        assert_eq!("1048576".parse(), Ok(Limit::Bytes(1 << 20)));
        assert_eq!("64K".parse(), Ok(Limit::Bytes(64 << 10)));
        for limit in [Limit::Bytes(50), Limit::Bytes(64 << 10), Limit::Bytes(1 << 20), Limit::Percent(50)] {
            assert_eq!(String::from(limit).parse(), Ok(limit), "as it travels to annexd");
        }
    }

    #[test]
    fn a_limit_that_is_to_be_found_has_a_target() {
        assert_eq!("auto".parse(), Ok(Local::Auto(StallTarget(100))));
        assert_eq!("auto:0.5%".parse(), Ok(Local::Auto(StallTarget(50))));
        assert_eq!("auto:100%".parse(), Ok(Local::Auto(StallTarget(10_000))));
        assert_eq!("512M".parse(), Ok(Local::Fixed(Limit::Bytes(512 << 20))));
        for bad in ["auto:0%", "auto:200%", "auto:x", "auto:", "auto:1", "auto:nan%", "auto:-1%", "auto:0.001%"] {
            let error = bad.parse::<Local>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("bad limit '{bad}': behind auto: stands the share")), "{error}");
        }
        assert!(matches!("automatic".parse::<Local>(), Err(LimitError::Unreadable(_))));
        assert!("auto".parse::<Limit>().is_err(), "where a limit is a fixed one");
        for local in ["auto", "auto:0.05%", "50%", "64K"].map(|text| text.parse::<Local>().unwrap()) {
            assert_eq!(String::from(local).parse(), Ok(local), "as it travels to annexd");
        }
        assert_eq!("auto:2.5%".parse::<Local>().map(String::from), Ok("auto:2.5%".into()));
        assert_eq!([StallTarget(100), StallTarget(5)].map(|t| t.to_string()), ["1 %", "0.05 %"]);
    }

    #[test]
    fn shares_print_short() {
        let shares = [0.0004, 0.01, 0.032, 0.07, 0.5, 2.5];
        assert_eq!(shares.map(format_share), ["0 %", "1 %", "3.2 %", "7 %", "50 %", "250 %"]);
    }

    #[test]
    fn sizes_print_short() {
        assert_eq!(format_bytes(1 << 30), "1 GiB");
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
        assert_eq!(format_bytes(7), "7 B");
    }

    #[test]
    fn times_read_short() {
        assert_eq!([5, 125, 7300, 200_000].map(format_seconds), ["5 s", "2 min", "2 h 1 min", "2 d 7 h"]);
    }
}
