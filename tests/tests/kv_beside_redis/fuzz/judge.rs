//! Whether two answers are the same, but for what differs between any two servers or two moments:
//! see `reasons`.

use super::peer::Answer;
use super::step::Step;

/// Milliseconds or seconds between two answers that tell the time.
const MARGIN: i64 = 3000;
/// Every lifetime in use is longer, in whatever unit, and hardly another number is.
const LONG: i64 = 50_000;

pub fn are_alike(step: &Step, theirs: &Answer, ours: &Answer) -> bool {
    theirs.is_closed == ours.is_closed
        && theirs.replies.len() == ours.replies.len()
        && theirs.replies.iter().zip(&ours.replies).all(|(theirs, ours)| is_alike(step, theirs, ours))
}

/// Whether two keys' values are: expiries tell the time.
pub fn are_the_same_content(theirs: &[u8], ours: &[u8]) -> bool {
    let (a, b) = (lines(theirs), lines(ours));
    a.len() == b.len() && a.iter().zip(&b).enumerate().all(|(nth, (a, b))| a == b || (nth == 1 && are_near(a, b)))
}

fn is_alike(step: &Step, theirs: &[u8], ours: &[u8]) -> bool {
    if theirs == ours {
        return true;
    }
    // What a transaction was made of is not looked up.
    let about = |words: &[&str]| step.has(words) || step.has(&["exec"]);
    let (mut a, mut b) = (lines(theirs), lines(ours));
    let tells_time = step.has(&["ttl", "pttl", "expiretime", "pexpiretime", "lastsave", "object"]);
    let is_of_the_server = step.has(&["time", "usage"]);
    let alike = |nth: usize, a: &[u8], b: &[u8]| {
        a == b
            || (tells_time && are_near(a, b))
            || (is_of_the_server && number(a).is_some() && number(b).is_some())
            || (step.has(&["exec"]) && number(a).is_some_and(|a| a > LONG) && are_near(a, b))
            || (step.has(&["hello", "exec"]) && nth > 0 && lines(theirs)[nth - 1] == b"id\r" && number(b).is_some())
    };
    if a.len() == b.len() && a.iter().zip(&b).enumerate().all(|(nth, (a, b))| alike(nth, a, b)) {
        return true;
    }
    a.sort();
    b.sort();
    about(&["keys", "scan", "config", "command"]) && a == b
}

fn lines(reply: &[u8]) -> Vec<&[u8]> {
    reply.split(|byte| *byte == b'\n').collect()
}

fn number(line: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    text.strip_prefix(':').unwrap_or(text).parse().ok()
}

fn are_near(a: &[u8], b: &[u8]) -> bool {
    matches!((number(a), number(b)), (Some(a), Some(b)) if a >= 0 && b >= 0 && a.abs_diff(b) <= MARGIN as u64)
}
