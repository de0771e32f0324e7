//! What a rule names and could not be attached: tried again after ever longer pauses, and told of
//! once for each reason. Time is a parameter.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// What was not tried again for so long is not there any more.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// So many lines a minute, whatever fails.
const LINES: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// What a rule names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A PID and its start.
    Process(i32, u64),
    /// A folder and the kernel's number for it.
    Cgroup(PathBuf, u64),
    /// Whatever has the name that the rule of this number gives.
    Named(usize),
}

struct Trouble {
    why: String,
    next: Instant,
    pause: Duration,
}

#[derive(Default)]
pub struct Troubles {
    known: HashMap<Subject, Trouble>,
    /// Since when lines are counted, and how many there were.
    lines: Option<(Instant, u32)>,
}

/// What is to be said of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    Nothing,
    This,
    /// That there are more than are told of.
    TooMany,
}

impl Troubles {
    pub fn may_try(&self, subject: &Subject, now: Instant) -> bool {
        self.known.get(subject).is_none_or(|trouble| trouble.next <= now)
    }

    pub fn succeeded(&mut self, subject: &Subject) {
        self.known.remove(subject);
    }

    pub fn failed(&mut self, subject: Subject, why: &str, now: Instant) -> Say {
        self.known.retain(|_, trouble| now.saturating_duration_since(trouble.next) < FORGOTTEN);
        let before = self.known.remove(&subject);
        let pause = before.as_ref().map_or(FIRST_PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        let is_told = before.is_some_and(|before| before.why == why);
        self.known.insert(subject, Trouble { why: why.to_owned(), next: now + pause, pause });
        if is_told {
            return Say::Nothing;
        }
        let (since, lines) = self.lines.filter(|(since, _)| now.duration_since(*since) < MINUTE).unwrap_or((now, 0));
        self.lines = Some((since, lines + 1));
        match lines {
            ..LINES => Say::This,
            LINES => Say::TooMany,
            _ => Say::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_and_tried_again_after_ever_longer_pauses() {
        let mut troubles = Troubles::default();
        let subject = Subject::Process(7, 1);
        let mut now = Instant::now();
        assert!(troubles.may_try(&subject, now));
        assert_eq!(troubles.failed(subject.clone(), "traced", now), Say::This);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let failed = now;
            while !troubles.may_try(&subject, now) {
                now += Duration::from_secs(1);
            }
            pauses.push((now - failed).as_secs());
            assert_eq!(troubles.failed(subject.clone(), "traced", now), Say::Nothing);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]);
        assert_eq!(troubles.failed(subject.clone(), "32-bit", now), Say::This, "that is news");
        troubles.succeeded(&subject);
        assert!(troubles.may_try(&subject, now));
    }

    #[test]
    fn many_failures_are_no_storm_of_lines() {
        let mut troubles = Troubles::default();
        let now = Instant::now();
        let mut fail = |pid, now| troubles.failed(Subject::Process(pid, 1), "32-bit", now);
        let said: Vec<Say> = (0..1000).map(|pid| fail(pid, now)).collect();
        assert_eq!(said.iter().filter(|said| **said == Say::This).count(), 20);
        assert_eq!(said.iter().filter(|said| **said == Say::TooMany).count(), 1);
        assert_eq!(fail(2000, now + MINUTE), Say::This);
        // Who was tried last so long ago is not there any more.
        fail(2001, now + 2 * FORGOTTEN);
        assert_eq!(troubles.known.len(), 1);
    }
}
