//! What donors see of sealed pages: noise, and none of it twice.

use annex_tests::testbed::{Donor, Job, Testbed, bins, wait_for};
use nix::sys::signal::Signal;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const PAGE: usize = 4096;
/// Part of what the program writes into every page.
const KNOWN: &[u8] = b"must never show this to a donor";

fn program(bed: &Testbed, mib: &str) -> Job {
    let mut python = Command::new("python3");
    python.arg(bins::script("same_page.py")).arg(mib);
    let mut job = bed.run("same-page", "16M", python);
    job.wait_says("ready", 2 * MINUTE);
    job
}

fn is_paged(bed: &Testbed) {
    let evicted = bed.app("same-page").map_or(0, |app| app.pages_evicted);
    bed.wait_app("same-page", 2 * MINUTE, |app| app.pages_evicted > evicted + 20_000);
}

fn ends_well(job: Job) {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait(2 * MINUTE).succeeded();
    assert!(outcome.stdout.ends_with("all of it right\n"), "{outcome}");
}

/// All pages of a process's memfds that are not zeros.
fn lent_pages(pid: i32) -> Vec<Vec<u8>> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the agent runs");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the agent runs");
    let mut pages = Vec::new();
    for slab in maps.lines().filter(|line| line.contains("annex-slab")) {
        let (from, to) = slab.split_whitespace().next().and_then(|range| range.split_once('-')).expect("a range");
        let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).expect("an address"));
        let mut bytes = vec![0; (to - from) as usize];
        memory.read_exact_at(&mut bytes, from).expect("slabs are present");
        pages.extend(bytes.chunks_exact(PAGE).filter(|page| page.iter().any(|b| *b != 0)).map(<[u8]>::to_vec));
    }
    pages
}

fn shows(bytes: &[u8]) -> bool {
    bytes.windows(KNOWN.len()).any(|window| window == KNOWN)
}

fn donors() -> annex_tests::testbed::Builder {
    let donor = |donor: Donor| donor.capacity("512M");
    Testbed::builder().donor(donor(Donor::tcp())).donor(donor(Donor::shm()))
}

/// The same page goes to all places, before and after each death: two that are sealed alike would
/// look alike.
#[test]
fn donors_see_noise_and_nothing_twice_whenever_annexd_is_killed() {
    let mut bed = donors().seal(true).start();
    assert!(bed.ask("status", [] as [&str; 0]).succeeded().stdout.contains(", sealed"));
    let job = program(&bed, "48");
    is_paged(&bed);
    for point in ["versions-drawn:40", "page-sealed:3000", "versions-drawn:7", "batch-moved:5", "batch-written:9"] {
        bed.annexd.kill();
        bed.start_again(Some(point));
        let died = bed.annexd.wait(5 * MINUTE);
        assert!(died.is_some(), "annexd did not come by {point}: {}", bed.annexd_logs());
        bed.start_again(None);
        is_paged(&bed);
        for agent in &bed.agents {
            let pages = lent_pages(agent.pid());
            assert!(pages.len() > 5000, "{} pages are too few to prove anything", pages.len());
            assert!(!pages.iter().any(|page| shows(page)), "after a death at {point} a donor sees a page");
            let different: HashSet<_> = pages.iter().collect();
            assert_eq!(different.len(), pages.len(), "after a death at {point} two pages look alike");
        }
    }
    ends_well(job);
}

/// So that the test above is one.
#[test]
fn donors_see_pages_that_are_not_sealed() {
    let bed = donors().start();
    assert!(!bed.ask("status", [] as [&str; 0]).succeeded().stdout.contains(", sealed"));
    let job = program(&bed, "48");
    is_paged(&bed);
    for agent in &bed.agents {
        wait_for("a donor sees pages", MINUTE, || lent_pages(agent.pid()).iter().any(|page| shows(page)));
    }
    ends_well(job);
}

#[test]
fn nothing_lies_in_a_spill_file_in_clear() {
    let tiny = || Donor::shm().capacity("64M");
    let bed = Testbed::builder().donor(tiny()).donor(tiny()).spill("512M").start();
    assert!(bed.ask("status", [] as [&str; 0]).succeeded().stdout.contains(", sealed"));
    let job = program(&bed, "160");
    wait_for("pages lie in the spill file", 2 * MINUTE, || bed.status().pool.spilled > 8 << 20);
    is_paged(&bed);
    let file = std::fs::read(bed.path().join("spill")).expect("the spill file");
    let pages = || file.chunks_exact(PAGE).filter(|page| page.iter().any(|byte| *byte != 0));
    assert!(pages().count() > 1000 && !pages().any(shows));
    ends_well(job);
}
