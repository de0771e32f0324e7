//! CHANGELOG.md as Debian wants it: one entry for each version, with its day.

use anyhow::Context;
use std::fmt::Write;

pub const OURS: &str = include_str!("../../../CHANGELOG.md");
/// As in the packages' own metadata.
const MAINTAINER: &str = "The annex authors <annex@annex.invalid>";

/// Each `## 1.2.3 (2026-01-31)` with the list below it.
///
/// # Errors
/// A heading is not of that form, or there is none.
pub fn debian(changelog: &str) -> anyhow::Result<String> {
    let mut out = String::new();
    for part in changelog.split("\n## ").skip(1) {
        let (heading, text) = part.split_once('\n').unwrap_or((part, ""));
        let form = || format!("CHANGELOG.md: '## {heading}' is not of the form '## 1.2.3 (2026-01-31)'");
        let (version, day) =
            heading.split_once(" (").and_then(|(v, day)| Some((v, day.strip_suffix(')')?))).with_context(form)?;
        let day = rfc_2822(day).with_context(form)?;
        let _ = writeln!(out, "annex ({version}-1) unstable; urgency=medium\n");
        for line in text.lines().filter(|line| !line.is_empty()) {
            match line.strip_prefix("- ") {
                Some(item) => writeln!(out, "  * {item}"),
                None => writeln!(out, "    {}", line.trim()),
            }?;
        }
        let _ = writeln!(out, "\n -- {MAINTAINER}  {day}\n");
    }
    anyhow::ensure!(!out.is_empty(), "CHANGELOG.md has no version");
    Ok(out)
}

/// `2026-01-31` as `Sat, 31 Jan 2026 00:00:00 +0000`.
fn rfc_2822(day: &str) -> Option<String> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    // Sakamoto's method: what each month adds, with years that begin in March.
    const ADDED: [usize; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
    let mut parts = day.split('-').map(|part| part.parse::<usize>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let name = MONTHS.get(month.checked_sub(1)?)?;
    (1..=31).contains(&day).then_some(())?;
    let of_march = if month < 3 { year.checked_sub(1)? } else { year };
    let weekday = (of_march + of_march / 4 - of_march / 100 + of_march / 400 + ADDED[month - 1] + day) % 7;
    Some(format!("{}, {day:02} {name} {year} 00:00:00 +0000", DAYS[weekday]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_an_entry_with_its_day() {
        let ours = "# Changelog\n\n## 1.0.1 (2026-03-01)\n\n- One\n  of two lines.\n- Two.\n\n## 1.0.0 (2024-02-29)\n\n- Zero.\n";
        let theirs = debian(ours).expect("it is of the right form");
        let expected = format!(
            "annex (1.0.1-1) unstable; urgency=medium\n\n  * One\n    of two lines.\n  * Two.\n\n -- {MAINTAINER}  Sun, 01 Mar 2026 00:00:00 +0000\n\n\
             annex (1.0.0-1) unstable; urgency=medium\n\n  * Zero.\n\n -- {MAINTAINER}  Thu, 29 Feb 2024 00:00:00 +0000\n\n"
        );
        assert_eq!(theirs, expected);
    }

    #[test]
    fn a_heading_without_a_day_is_refused() {
        for bad in ["# C\n\n## 1.0.0\n", "# C\n\n## 1.0.0 (soon)\n", "# C\n\n## 1.0.0 (2026-13-01)\n", "# C\n"] {
            assert!(debian(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_newest_entry_is_of_the_version_that_is_built() {
        let first = format!("annex ({}-1) ", env!("CARGO_PKG_VERSION"));
        assert!(debian(OURS).expect("it is of the right form").starts_with(&first));
    }
}
