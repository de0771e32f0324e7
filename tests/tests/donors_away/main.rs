//! One and two of two, three and four donors are killed, hung, cut off or drained, with one, two
//! and three copies of everything, under load. While a donor is left that has room, no write of the
//! KV API is refused or takes longer than a second, whatever its policy; no key is evicted in vain;
//! and nothing that was acknowledged is lost, unless all that had it were killed. A program's pages
//! go out and come in all the same, and no byte of them is wrong.
//!
//! A part of the cases runs with every other test. All of them, with a table of what came of them:
//! `cargo test --release --workspace --test donors_away -- --ignored --nocapture --test-threads 1`.
//! `ANNEX_AWAY="2 of 3 donors hung"` names those with these words, and `ANNEX_AWAY_BEDS` says how
//! many run side by side.

mod case;
mod kv;
mod load;
mod paged;
mod returning;
mod waiting;

use annex_tests::testbed::Turn;
use case::{Case, FAULTS, Fault};
use kv::Policy;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

const POLICIES: [Policy; 2] = [Policy::NoEviction, Policy::AllKeysLru];
/// A write that takes longer than a second must do so again and again: others may keep the machine
/// busy.
const TRIES: usize = 4;

fn beds() -> usize {
    std::env::var("ANNEX_AWAY_BEDS").map_or(4, |n| n.parse().expect("ANNEX_AWAY_BEDS is a number"))
}

fn is_asked_for(case: &Case) -> bool {
    case.to_string().contains(&std::env::var("ANNEX_AWAY").unwrap_or_default())
}

/// What is wrong with a case, if anything; says what came of it.
fn judge(case: &Case, policy: Policy) -> Result<(), String> {
    for left in (0..TRIES).rev() {
        let outcome = kv::run(case, policy);
        let mut faults = outcome.faults(case);
        println!("{}", outcome.line(case, policy));
        if faults.is_empty() && outcome.is_slow() {
            if left > 0 {
                continue;
            }
            faults.push(format!("a write took {:?}, each of {TRIES} times", outcome.met.slowest));
        }
        return match faults.is_empty() {
            true => Ok(()),
            false => Err(format!("{case}, {policy}: {}\n{}", faults.join("; "), outcome.log)),
        };
    }
    Ok(())
}

/// What is wrong with it for a program, if anything; says what came of it.
fn judge_paged(case: &Case) -> Result<(), String> {
    let outcome = paged::run(case);
    println!("{}", outcome.line(case));
    let faults = outcome.faults(case);
    if faults.is_empty() { Ok(()) } else { Err(format!("{case}: {}\n{}", faults.join("; "), outcome.log)) }
}

/// Several side by side.
fn judge_all<T: fmt::Debug + Send>(
    cases: impl IntoIterator<Item = T>,
    judge: impl Fn(&T) -> Result<(), String> + Sync,
) {
    let _turn = Turn::alone();
    let (cases, faults) = (Mutex::new(cases.into_iter().collect::<VecDeque<T>>()), Mutex::new(Vec::new()));
    let next = || cases.lock().expect("nobody panics with it").pop_front();
    let work = || {
        while let Some(case) = next() {
            let judged = catch_unwind(AssertUnwindSafe(|| judge(&case)));
            let judged = judged.unwrap_or_else(|_| Err(format!("{case:?} panicked")));
            faults.lock().expect("nobody panics with it").extend(judged.err());
        }
    };
    std::thread::scope(|scope| (0..beds()).for_each(|_| drop(scope.spawn(work))));
    let faults = faults.into_inner().expect("nobody panicked with it");
    assert!(faults.is_empty(), "{} cases failed:\n{}", faults.len(), faults.join("\n"));
}

/// Each size with each fault, by turns one donor and two, and each policy.
#[test]
fn the_kv_api_takes_writes_as_long_as_a_donor_has_room() {
    let sizes = [(2, 1), (2, 2), (3, 2), (4, 3)];
    let mut cases = Vec::new();
    for (n, (donors, replicas)) in sizes.into_iter().enumerate() {
        for (m, fault) in FAULTS.into_iter().enumerate() {
            let away = if donors > 2 { 1 + (n + m) % 2 } else { 1 };
            cases.push((Case { donors, replicas, fault, away }, POLICIES[(n + m / 2) % 2]));
        }
    }
    println!("{}", kv::HEAD);
    judge_all(cases, |(case, policy)| judge(case, *policy));
}

#[test]
fn a_program_goes_on_paging_as_long_as_a_donor_has_room() {
    let sizes = [(2, 2, 1), (3, 3, 2)];
    let reached = FAULTS.into_iter().flat_map(|fault| sizes.map(|size| (fault, size)));
    let waited_for = [Fault::Killed, Fault::Hung].map(|fault| (fault, (2, 1, 1)));
    let cases = reached.chain(waited_for);
    let cases = cases.map(|(fault, (donors, replicas, away))| Case { donors, replicas, fault, away });
    println!("{}", paged::HEAD);
    judge_all(cases, judge_paged);
}

#[test]
#[ignore = "it takes ten minutes"]
fn every_case_of_the_kv_api() {
    let cases = Case::all().filter(is_asked_for).flat_map(|case| POLICIES.map(|policy| (case, policy)));
    println!("{}", kv::HEAD);
    judge_all(cases, |(case, policy)| judge(case, *policy));
}

#[test]
#[ignore = "it takes ten minutes"]
fn every_case_of_a_program() {
    println!("{}", paged::HEAD);
    judge_all(Case::all().filter(is_asked_for), judge_paged);
}
