//! The KV API in one case, and what must hold of it.

use crate::case::Case;
use crate::load::{BOUND, Load, Met};
use annex_tests::kv::wire::{Wire, text};
use annex_tests::testbed::{Testbed, wait_for};
use std::fmt;
use std::time::Duration;

/// How long clients go on before the donors go.
const BEFORE: Duration = Duration::from_millis(1000);
/// For how long they are away: longer than an operation may take (3 s), and than they are waited
/// for (`lost_after`, 5 s).
const AWAY: Duration = Duration::from_millis(6500);
/// How long clients go on when they are back.
const AFTER: Duration = Duration::from_millis(1500);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    NoEviction,
    AllKeysLru,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::NoEviction => "noeviction",
            Policy::AllKeysLru => "allkeys-lru",
        })
    }
}

/// What came of it.
pub struct Outcome {
    pub met: Met,
    pub evicted: u64,
    pub log: String,
}

pub const HEAD: &str = "| case | policy | writes | slowest write, ms | began at, s | slower than 1 s | longest stall, ms | refused | \
     evicted | lost | unreadable | slowest read, ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

impl Outcome {
    /// A line of the table in Markdown.
    pub fn line(&self, case: &Case, policy: Policy) -> String {
        let Met { writes, slowest, slowest_at, slow, stall, refused, unreadable, gone, stale, slowest_read, .. } =
            &self.met;
        format!(
            "| {case} | {policy} | {writes} | {} | {:.1} | {slow} | {} | {} | {} | {} | {} | {} |",
            slowest.as_millis(),
            slowest_at.as_secs_f64(),
            stall.as_millis(),
            refused.len(),
            self.evicted,
            gone.len() + stale.len(),
            unreadable.len(),
            slowest_read.as_millis()
        )
    }

    /// What is not as it must be. A machine that is busy can only be why writes are slow.
    pub fn faults(&self, case: &Case) -> Vec<String> {
        let Met { writes, refused, unreadable, gone, stale, wrong, .. } = &self.met;
        let mut faults = Vec::new();
        let mut none = |what: &str, of: &[String]| {
            if let Some(first) = of.first() {
                faults.push(format!("{} {what}, the first: {first:?}", of.len()));
            }
        };
        none("values were wrong", wrong);
        none("keys have what they had before", stale);
        if !case.may_lose() {
            none("reads were answered with an error", unreadable);
        }
        if case.leaves_room() {
            none("writes were refused though there was room", refused);
        }
        if case.leaves_room() || !case.keeps_some_within_reach() {
            none("acknowledged writes are lost", gone);
            none("keys were evicted in vain", &vec![String::new(); self.evicted as usize]);
        }
        if *writes < 300 {
            faults.push(format!("{writes} writes are too few to prove anything"));
        }
        faults
    }

    pub fn is_slow(&self) -> bool {
        self.met.slowest > BOUND + self.met.stall
    }
}

pub fn run(case: &Case, policy: Policy) -> Outcome {
    let mut bed = case.bed().kv(&format!(",policy={policy}")).start();
    let socket = bed.kv_socket();
    let mut load = Load::fill(&socket);
    wait_for("all is whole", MINUTE, || bed.status().pool.degraded_extents == 0);
    load.start();
    std::thread::sleep(BEFORE);
    let under_way = case.strike(&mut bed);
    std::thread::sleep(AWAY);
    case.undo(&mut bed, under_way);
    std::thread::sleep(AFTER);
    let met = load.end();
    Outcome { met, evicted: evicted(&bed), log: bed.annexd_logs() }
}

pub fn evicted(bed: &Testbed) -> u64 {
    let mut wire = Wire::unix(&bed.kv_socket()).expect("the KV API listens");
    let info = text(&wire.ask(&["INFO", "stats"]).expect("an answer")).ok().flatten().expect("text");
    let info = String::from_utf8(info).expect("it is ASCII");
    let line = info.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a number")
}
