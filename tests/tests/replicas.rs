//! One copy of each page, three, four, and donors that lend pages of 2 MiB: no byte is wrong, and
//! losing all donors but one loses nothing.

use annex_tests::testbed::{Donor, Job, Testbed, Turn, bins, directory, wait_for};
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn stress(bed: &Testbed) -> Job {
    let mut command = Command::new(bins::find("annex-stress"));
    command.args(["--size", "96M", "--threads", "2", "--seconds", "0", "--features", "rw,scan,discard,fork"]);
    command.args(["--stall", "60", "--dir"]).arg(directory());
    let mut job = bed.run("stress", "32M", command);
    job.wait_says("ready", 3 * MINUTE);
    bed.wait_app("stress", 2 * MINUTE, |app| app.pages_evicted > 20_000 && app.faults.major > 2_000);
    job
}

fn ends_well(bed: &Testbed, job: Job) {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(3 * MINUTE).succeeded();
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one line of JSON");
    assert_eq!(summary["errors"], 0, "{outcome}");
    bed.wait_gone("stress");
}

fn all_is_given_back(bed: &Testbed) {
    wait_for("every slot to be free", MINUTE, || bed.status().pool.used == 0);
}

/// Kills all donors but one while the workload goes on.
fn outlives_all_but_one_of(replicas: u8) {
    let kind = |nth: u8| if nth.is_multiple_of(2) { Donor::shm() } else { Donor::tcp() };
    // Slots that were being written on a donor that died are kept from use for one and a half times
    // this.
    let donor = |nth| kind(nth).lease_ttl("10s");
    let start = (0..replicas).fold(Testbed::builder().replicas(replicas), |bed, nth| bed.donor(donor(nth)));
    let mut bed = start.start();
    let job = stress(&bed);
    // Every page has as many copies as there are donors before any is killed.
    wait_for("all replicas to be whole", MINUTE, || {
        let pool = bed.status().pool;
        pool.degraded_extents == 0 && pool.syncing_replicas == 0
    });
    for nth in 1..usize::from(replicas) {
        bed.agents[nth].kill();
        let before = bed.app("stress").expect("it runs").faults.major;
        bed.wait_app("stress", 2 * MINUTE, |app| app.faults.major > before + 500);
    }
    ends_well(&bed, job);
    all_is_given_back(&bed);
}

#[test]
fn one_replica_is_enough_while_its_donor_lives() {
    let bed = Testbed::builder().replicas(1).donor(Donor::tcp()).donor(Donor::shm()).start();
    let job = stress(&bed);
    ends_well(&bed, job);
    all_is_given_back(&bed);
}

#[test]
fn three_replicas_outlive_two_donors() {
    outlives_all_but_one_of(3);
}

#[test]
fn four_replicas_outlive_three_donors() {
    outlives_all_but_one_of(4);
}

/// A switch that starts anew, say: nobody is heard for longer than `lost_after`, and nobody has
/// lost anything.
#[test]
fn donors_that_are_all_silent_for_a_while_are_waited_for() {
    let bed = Testbed::builder().tcp();
    let job = stress(&bed);
    bed.agents.iter().for_each(|agent| agent.signal(Signal::SIGSTOP));
    wait_for("no replica to be within reach", MINUTE, || {
        let pool = bed.status().pool;
        pool.waiting_extents == pool.extents
    });
    // lost_after is 5 s.
    std::thread::sleep(Duration::from_secs(9));
    let status = bed.status();
    assert_eq!(status.pool.lost_extents, 0);
    assert!(status.warnings.iter().any(|said| said.contains("wait, for 60s at most")), "{:?}", status.warnings);
    bed.agents.iter().for_each(|agent| agent.signal(Signal::SIGCONT));
    wait_for("all replicas to be whole", MINUTE, || {
        let pool = bed.status().pool;
        pool.degraded_extents == 0 && pool.syncing_replicas == 0
    });
    let before = bed.app("stress").expect("it runs").faults.major;
    bed.wait_app("stress", MINUTE, |app| app.faults.major > before + 500);
    ends_well(&bed, job);
}

fn huge_pages(what: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("proc(5)");
    let line = text.lines().find_map(|line| line.strip_prefix(what)).expect("the kernel has huge pages");
    line.trim().parse().expect("a number")
}

/// Huge pages of this host, as many as before when dropped.
struct Reserve {
    before: u64,
}

const RESERVE: &str = "/proc/sys/vm/nr_hugepages";

impl Reserve {
    fn of(pages: u64) -> Reserve {
        let before = huge_pages("HugePages_Total:");
        std::fs::write(RESERVE, (before + pages).to_string()).expect("root may reserve huge pages");
        let reserve = Reserve { before };
        assert!(huge_pages("HugePages_Free:") >= pages, "memory is too fragmented for {pages} huge pages");
        reserve
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = std::fs::write(RESERVE, self.before.to_string());
    }
}

const SMALL_SLABS: [&str; 4] = ["--slab-size", "32M", "--hugepages", "auto"];

#[test]
fn donors_lend_huge_pages_while_there_are_some_and_small_ones_after_that() {
    let donor = || Donor::shm().agent_args(&SMALL_SLABS);
    let _turn = Turn::alone();
    // Room for two slabs, of which each donor sets four aside when it starts.
    let reserve = Reserve::of(32);
    let free = huge_pages("HugePages_Free:");
    let mut bed = Testbed::builder().beside_others().donor(donor()).donor(donor()).start();
    let job = stress(&bed);
    let left = huge_pages("HugePages_Free:");
    assert!(left + 16 <= free, "no slab was made of huge pages: {left} of {free} are free");
    let said: String = bed.agents.iter().map(|agent| agent.log()).collect();
    assert!(said.contains("it is made of 4 KiB pages"), "{said}");
    ends_well(&bed, job);
    all_is_given_back(&bed);
    bed.annexd.kill();
    bed.agents.iter_mut().for_each(|agent| agent.kill());
    drop(reserve);
}
