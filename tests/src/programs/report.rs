//! What is said: a line for each program while it goes on, a table in the end.

use super::comparison::{Agreement, Compared, Row};
use std::fmt::Write;

/// The first line of what was said in its place is enough for a line.
const SHORT: usize = 160;

/// A program's line, and one more for each of its tests that differs.
pub fn line(program: &str, row: &Row) -> String {
    let natively = row.tests.iter().filter(|test| test.native.0 > 0).count();
    let same = row.tests.iter().filter(|test| test.agreement == Agreement::Same).count();
    let mut text = format!(
        "{program}: {} run, {natively} pass natively, {same} under annex; {:.1} s and {:.1} s, {} pages out, {} back",
        row.tests.len(),
        row.native_seconds,
        row.annex_seconds,
        row.pages_out,
        row.pages_back
    );
    let quiet = [Agreement::Same, Agreement::NotNatively];
    for test in row.tests.iter().filter(|test| !quiet.contains(&test.agreement)) {
        let said: String = test.said.lines().filter(|line| !line.is_empty()).take(3).collect::<Vec<_>>().join(" / ");
        let said: String = said.chars().take(SHORT).collect();
        // Writing to a string can't fail.
        let _ = write!(text, "\n    {:?} {}: {}", test.agreement, counts(test), said);
    }
    text
}

fn counts(test: &Compared) -> String {
    let ((np, nr), (ap, ar)) = (test.native, test.annex);
    format!("{} ({np} of {nr} natively, {ap} of {ar} under annex)", test.test)
}

pub const HEAD: &str = "| suite | tests | pass natively | pass under annex | known | unsteady | differ | pages out | pages back |\n\
                        | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

/// A suite's line of the table in Markdown.
pub fn summary(suite: &str, rows: &[Row]) -> String {
    let tests = || rows.iter().flat_map(|row| &row.tests);
    let count = |of: &[Agreement]| tests().filter(|test| of.contains(&test.agreement)).count();
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    format!(
        "| {suite} | {} | {} | {} | {} | {} | {} | {} | {} |",
        tests().count(),
        tests().filter(|test| test.native.0 > 0).count(),
        count(&[Agreement::Same]),
        count(&[Agreement::Known]),
        count(&[Agreement::Unsteady, Agreement::UnsteadyNatively]),
        count(&[Agreement::Differs]),
        sum(|row| row.pages_out),
        sum(|row| row.pages_back),
    )
}

/// The tests that pass natively and not under annex, with all that was said.
pub fn findings(rows: &[Row]) -> Vec<String> {
    let differs = rows.iter().flat_map(|row| &row.tests).filter(|test| test.agreement == Agreement::Differs);
    differs.map(|test| format!("{} {}\n{}", test.suite, counts(test), test.said)).collect()
}
