//! The differences that docs/conformance.md tells of: rows of a table, `| suite | test | what
//! differs | why |`.

use std::sync::LazyLock;

const TEXT: &str = include_str!("../../../docs/conformance.md");

/// A difference that nobody can do anything about.
#[derive(Debug)]
pub struct Known {
    suite: &'static str,
    /// A `*` at its end stands for anything.
    test: &'static str,
    pub why: &'static str,
}

static ALL: LazyLock<Vec<Known>> = LazyLock::new(|| TEXT.lines().filter_map(row).collect());

/// What is known of a test.
pub fn of(suite: &str, test: &str) -> Option<&'static Known> {
    ALL.iter().find(|known| known.suite == suite && matches(known.test, test))
}

fn row(line: &'static str) -> Option<Known> {
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let [suite, test, _, why] = cells[..] else { return None };
    let known = Known { suite, test: test.trim_matches('`'), why };
    (suite != "suite" && !suite.starts_with('-')).then_some(known)
}

fn matches(pattern: &str, test: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == test, |start| test.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::suites::NAMES;

    #[test]
    fn each_known_difference_has_a_suite_and_a_reason() {
        let wrong: Vec<_> = ALL.iter().filter(|k| !NAMES.contains(&k.suite) || k.why.is_empty()).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(matches("vm*", "vm-rw") && matches("vm", "vm") && !matches("vm", "vm-rw"));
    }
}
