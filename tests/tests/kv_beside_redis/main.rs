//! The same commands to a real Redis 7 and to ours: every reply must be the same, byte for byte.
//!
//! Each test makes up random sequences of commands of one family over a few keys; what fails is
//! shrunk to the shortest sequence that still does. Replies that tell the time are compared with a
//! margin, replies without an order are sorted.
//!
//! Needs `redis-server` (Debian: `redis-server`) and fails without it.

mod commands;
mod fuzz;
mod memory;
mod ours;
mod redis;
mod table;
mod words;

use commands::*;
use ours::Ours;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use redis::Redis;
use std::cell::RefCell;
use words::{on_first, on_two};

/// A command and the database that it is sent to.
type Step = (u8, Vec<Vec<u8>>);

#[test]
fn values_and_expiries_are_as_beside_redis() {
    compare("set", false, 600, on_first(prop_oneof![3 => set(), 2 => getex(), 2 => expire(), 3 => looking()]));
}

#[test]
fn strings_are_as_beside_redis() {
    compare("strings", false, 500, on_first(prop_oneof![1 => set(), 4 => strings(), 1 => looking()]));
}

#[test]
fn numbers_are_as_beside_redis() {
    compare("numbers", false, 1500, on_first(numbers()));
}

#[test]
fn keys_in_two_databases_are_as_beside_redis() {
    compare("keys", false, 500, on_two(prop_oneof![2 => set(), 1 => expire(), 5 => keys(), 2 => looking()]));
}

#[test]
fn bits_are_as_beside_redis() {
    compare("bits", false, 800, on_first(bits()));
}

#[test]
fn bit_fields_are_as_beside_redis() {
    compare("fields", false, 800, on_first(fields()));
}

#[test]
fn common_subsequences_are_as_beside_redis() {
    compare("lcs", false, 400, on_first(lcs()));
}

#[test]
fn patterns_are_as_beside_redis() {
    compare("patterns", false, 800, on_first(patterns()));
}

#[test]
fn all_of_it_is_as_beside_redis_in_resp3() {
    let all = prop_oneof![set(), getex(), looking(), strings(), numbers(), keys(), bits(), fields(), lcs()];
    compare("resp3", true, 400, on_two(all));
}

/// How far from each other two integers may be if they tell the time.
fn margin(step: &[Vec<u8>]) -> i64 {
    match String::from_utf8_lossy(&step[0]).to_ascii_lowercase().as_str() {
        "ttl" | "expiretime" => 3,
        "pttl" | "pexpiretime" => 3000,
        _ => 0,
    }
}

fn is_alike(step: &[Vec<u8>], a: &[u8], b: &[u8]) -> bool {
    if a == b {
        return true;
    }
    let number = |reply: &[u8]| std::str::from_utf8(reply).ok()?.strip_prefix(':')?.trim_end().parse::<i64>().ok();
    match (number(a), number(b)) {
        (Some(a), Some(b)) if a >= 0 && b >= 0 => a.abs_diff(b) <= margin(step) as u64,
        _ => is_unordered(step) && sorted(a) == sorted(b),
    }
}

fn is_unordered(step: &[Vec<u8>]) -> bool {
    step[0].eq_ignore_ascii_case(b"keys") || step[0].eq_ignore_ascii_case(b"scan")
}

/// The lines of a reply: keys made up here hold no line breaks.
fn sorted(reply: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = reply.split(|c| *c == b'\n').collect();
    lines.sort();
    lines
}

fn show(step: &Step) -> String {
    step.1.iter().map(|argument| format!("\"{}\"", argument.escape_ascii())).collect::<Vec<_>>().join(" ")
}

/// Sends sequences of these commands to both and compares the replies. `PROPTEST_CASES` makes it
/// more or fewer of them, in proportion to its default of 256.
fn compare(name: &str, resp3: bool, cases: u32, command: impl Strategy<Value = Step>) {
    let Some(redis) = Redis::start(name, resp3) else { return };
    let redis = RefCell::new(redis);
    let ours = RefCell::new(Ours::start(resp3));
    let default = Config::default();
    let cases = cases * default.cases / 256;
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..default });
    let outcome = runner.run(&proptest::collection::vec(command, 1..30), |steps| {
        let theirs = redis.borrow_mut().run(&steps);
        let answers = ours.borrow_mut().run(&steps);
        for ((step, theirs), ours) in steps.iter().zip(theirs).zip(answers) {
            if !is_alike(&step.1, &theirs, &ours) {
                let shown: Vec<String> = steps.iter().map(show).collect();
                return Err(TestCaseError::fail(format!(
                    "{} in db {}: redis says {}, we say {}, after\n{}",
                    show(step),
                    step.0,
                    theirs.escape_ascii(),
                    ours.escape_ascii(),
                    shown.join("\n")
                )));
            }
        }
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        // The steps are in the reason, legibly.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(error) => panic!("{error}"),
    }
}
