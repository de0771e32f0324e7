//! Places at which a daemon can be told to die, for tests of what its successor makes of that, or
//! to linger, for tests of races.
//!
//! `ANNEX_FAILPOINTS` has one action or several, with `;` between them. Without it a failpoint
//! costs one load.
//!
//! | action | the daemon |
//! | --- | --- |
//! | `NAME=die` or `NAME=die:N` | dies when it comes by the place for the first or the N-th time, as SIGKILL from outside would have it |
//! | `NAME=linger:MICROSECONDS` | stays there for so long, each time |

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const VARIABLE: &str = "ANNEX_FAILPOINTS";

/// What was asked for is no action.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{VARIABLE}: '{0}' is no action: give NAME=die, NAME=die:N or NAME=linger:MICROSECONDS")]
pub struct NoAction(String);

#[derive(Debug)]
enum Action {
    /// When so many more have come by.
    Die(AtomicU64),
    Linger(Duration),
}

#[derive(Debug)]
struct Armed {
    name: String,
    action: Action,
}

static ARMED: OnceLock<Vec<Armed>> = OnceLock::new();

/// Reads the environment. Before this, failpoints do nothing.
pub fn arm() -> Result<(), NoAction> {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let armed = parse(&wanted)?;
    ARMED.get_or_init(|| armed);
    Ok(())
}

fn parse(wanted: &str) -> Result<Vec<Armed>, NoAction> {
    let one = |text: &str| {
        let (name, action) = text.split_once('=')?;
        let (verb, number) = action.split_once(':').unwrap_or((action, "1"));
        let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
        let action = match verb {
            "die" => Action::Die(AtomicU64::new(number)),
            "linger" if action != verb => Action::Linger(Duration::from_micros(number)),
            _ => return None,
        };
        Some(Armed { name: name.to_owned(), action })
    };
    let texts = wanted.split(';').filter(|text| !text.is_empty());
    texts.map(|text| one(text).ok_or_else(|| NoAction(text.to_owned()))).collect()
}

/// Marks a place: dies or lingers here if that is what was asked for.
#[inline]
pub fn failpoint(name: &'static str) {
    ARMED.get().into_iter().flatten().for_each(|armed| come_by(armed, name));
}

#[cold]
fn come_by(armed: &Armed, name: &str) {
    match &armed.action {
        _ if armed.name != name => {}
        Action::Linger(time) => std::thread::sleep(*time),
        Action::Die(left) if left.fetch_sub(1, Relaxed) == 1 => {
            // What SIGKILL leaves behind is what this leaves behind: nothing is unwound or flushed.
            // SAFETY: takes numbers only.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            // The signal is on its way: nothing more may happen here.
            loop {
                std::thread::park();
            }
        }
        Action::Die(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_in_any_number() {
        let armed = parse("a-b=die;c=die:3;d=linger:50;").unwrap();
        let names: Vec<_> = armed.iter().map(|armed| armed.name.as_str()).collect();
        assert_eq!(names, ["a-b", "c", "d"]);
        assert!(matches!(&armed[0].action, Action::Die(left) if left.load(Relaxed) == 1));
        assert!(matches!(&armed[1].action, Action::Die(left) if left.load(Relaxed) == 3));
        assert!(matches!(&armed[2].action, Action::Linger(time) if *time == Duration::from_micros(50)));
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_action_is_refused() {
        for wrong in ["a", "a=", "a=live", "a=die:0", "a=die:x", "a=linger", "a=linger:"] {
            assert_eq!(parse(wrong).unwrap_err(), NoAction(wrong.to_owned()));
        }
    }
}
