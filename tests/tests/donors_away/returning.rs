//! All donors are away for a while, and come back one after the other: what is written then is
//! refused soon, and no key goes for it.

use crate::TRIES;
use crate::kv::evicted;
use crate::load::{BOUND, Load};
use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed, Turn, wait_for};
use nix::sys::signal::Signal;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than an operation may take (3 s), and than donors are waited for (`lost_after`, 5 s).
const AWAY: Duration = Duration::from_millis(6500);
/// Between their returns.
const APART: Duration = Duration::from_millis(1500);

/// How long the slowest write took, and how much of that the machine was not ours.
fn leave_and_return(replicas: u8) -> (Duration, Duration) {
    let donor = || Donor::tcp().capacity("160M").agent_args(&["--slab-size", "4M"]);
    let bed = Testbed::builder().beside_others().replicas(replicas).donor(donor()).donor(donor());
    let bed = bed.kv(",policy=allkeys-lru").start();
    let mut load = Load::fill(&bed.kv_socket());
    wait_for("all is whole", MINUTE, || bed.status().pool.degraded_extents == 0);
    load.start();
    std::thread::sleep(APART);
    bed.agents.iter().for_each(|agent| agent.signal(Signal::SIGSTOP));
    std::thread::sleep(AWAY);
    for agent in &bed.agents {
        agent.signal(Signal::SIGCONT);
        let mut wire = Wire::unix(&bed.kv_socket()).expect("the KV API listens");
        wait_for("writes to be taken", MINUTE, || wire.ask(&["SET", "probe", "x"]).expect("an answer") == b"+OK\r\n");
        std::thread::sleep(APART);
    }
    let met = load.end();
    let lost: Vec<&String> = met.gone.iter().chain(&met.stale).chain(&met.wrong).collect();
    let log = bed.annexd_logs();
    assert!(!met.refused.is_empty(), "no write was refused while no donor was there");
    assert_eq!(evicted(&bed), 0, "keys were evicted in vain\n{log}");
    assert!(lost.is_empty() && met.unreadable.is_empty(), "{lost:?} {:?}\n{log}", met.unreadable);
    println!("R = {replicas}: {} refused, slowest {:?} at {:.1?}", met.refused.len(), met.slowest, met.slowest_at);
    (met.slowest, met.stall)
}

/// A write that takes longer than a second must do so again and again: others may keep the machine
/// busy.
fn is_quick(replicas: u8) {
    let _turn = Turn::alone();
    let mut tries = Vec::new();
    let is_quick = (0..TRIES).any(|_| {
        tries.push(leave_and_return(replicas));
        tries.last().is_some_and(|(slowest, stall)| *slowest <= BOUND + *stall)
    });
    assert!(is_quick, "a write took longer than {BOUND:?} each time: {tries:?}");
}

#[test]
fn keys_with_one_copy_stay_when_all_donors_come_back() {
    is_quick(1);
}

#[test]
fn keys_with_two_copies_stay_when_all_donors_come_back() {
    is_quick(2);
}
