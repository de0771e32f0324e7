//! Checks, their numbers, and how they are printed.

use annex_shared::printable::printable;
use serde::Serialize;
use std::fmt::Write;
use std::io::IsTerminal;

/// How a check came out, from good to bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    #[default]
    Ok,
    /// It works, and may not always; or it could not be looked at.
    Warn,
    /// Something does not work.
    Fail,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Warn => "WARN",
            Outcome::Fail => "FAIL",
        }
    }

    /// Green, yellow, red.
    fn colour(self) -> &'static str {
        match self {
            Outcome::Ok => "\x1b[32m",
            Outcome::Warn => "\x1b[33m",
            Outcome::Fail => "\x1b[1;31m",
        }
    }
}

/// What one look found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at, in a word or two.
    pub name: String,
    pub outcome: Outcome,
    /// What is, in one line.
    pub message: String,
    /// What to do, in one line; none if the outcome is `Ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    pub fn ok(name: impl Into<String>, message: impl Into<String>) -> Check {
        Check { name: name.into(), outcome: Outcome::Ok, message: message.into(), remedy: None }
    }

    pub fn warn(name: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check::bad(Outcome::Warn, name.into(), message.into(), remedy.into())
    }

    pub fn fail(name: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check::bad(Outcome::Fail, name.into(), message.into(), remedy.into())
    }

    fn bad(outcome: Outcome, name: String, message: String, remedy: String) -> Check {
        Check { name, outcome, message, remedy: Some(remedy) }
    }
}

/// A check with its place in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Numbered {
    pub number: usize,
    pub area: String,
    #[serde(flatten)]
    pub check: Check,
}

/// All checks of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The worst of all.
    pub outcome: Outcome,
    pub checks: Vec<Numbered>,
}

impl Report {
    /// Appends the checks of one area, such as `host`.
    pub fn add(&mut self, area: &str, checks: impl IntoIterator<Item = Check>) {
        for check in checks {
            self.outcome = self.outcome.max(check.outcome);
            self.checks.push(Numbered { number: self.checks.len() + 1, area: area.to_owned(), check });
        }
    }

    /// What the command exits with: 1 if something fails.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.outcome == Outcome::Fail)
    }

    /// As people read it: a heading for each area, a line for each check and one for its remedy,
    /// and how many came out how.
    pub fn text(&self, coloured: bool) -> String {
        let mut text = String::new();
        let mut area = None;
        for Numbered { number, area: of, check } in &self.checks {
            if area.replace(of) != Some(of) {
                let gap = if text.is_empty() { "" } else { "\n" };
                let _ = writeln!(text, "{gap}{}", printable(of));
            }
            let (on, off) = if coloured { (check.outcome.colour(), "\x1b[0m") } else { ("", "") };
            let (name, message) = (printable(&check.name), printable(&check.message));
            let _ = writeln!(text, "{number:>3}  {on}{:<4}{off}  {name}: {message}", check.outcome.word());
            if let Some(remedy) = &check.remedy {
                let _ = writeln!(text, "           remedy: {}", printable(remedy));
            }
        }
        let count = |outcome| self.checks.iter().filter(|c| c.check.outcome == outcome).count();
        let (ok, warn, fail) = (count(Outcome::Ok), count(Outcome::Warn), count(Outcome::Fail));
        let _ = writeln!(text, "\n{ok} ok, {warn} to look at (WARN), {fail} wrong (FAIL)");
        text
    }
}

/// Colours are for people who look at a terminal that has them.
pub fn is_coloured() -> bool {
    let told = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_dumb = told("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_dumb && told("NO_COLOR").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.add("host", [Check::ok("kernel", "Linux 6.12"), Check::warn("swap", "in use", "use less")]);
        report.add("donors", [Check::fail("oak\x1b[2J", "does not answer", "start it")]);
        report
    }

    #[test]
    fn checks_are_numbered_through_and_say_what_to_do() {
        assert_eq!(
            report().text(false),
            "host\n  1  ok    kernel: Linux 6.12\n  2  WARN  swap: in use\n           remedy: use less\n\n\
             donors\n  3  FAIL  oak\\u{1b}[2J: does not answer\n           remedy: start it\n\n\
             1 ok, 1 to look at (WARN), 1 wrong (FAIL)\n"
        );
        assert!(report().text(true).contains("\x1b[1;31mFAIL\x1b[0m"));
    }

    #[test]
    fn only_a_failure_is_an_exit_code() {
        assert_eq!(report().exit_code(), 1);
        let mut mild = Report::default();
        mild.add("host", [Check::warn("swap", "in use", "use less")]);
        assert_eq!((mild.exit_code(), mild.outcome), (0, Outcome::Warn));
    }

    #[test]
    fn programs_get_the_same() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["outcome"], "fail");
        assert_eq!(json["checks"][1]["outcome"], "warn");
        assert_eq!(json["checks"][1]["remedy"], "use less");
        assert_eq!(json["checks"][2]["number"], 3);
        assert_eq!(json["checks"][0].get("remedy"), None);
    }
}
