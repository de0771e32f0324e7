//! What an operator is told: conditions, events that survive a kill of annexd, and metrics over
//! HTTP.

use annex_shared::condition::ConditionKind;
use annex_shared::event::{Event, EventKind};
use annex_tests::testbed::{Donor, Testbed, bins, port, wait_for};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn filler(mib: &str) -> Command {
    let mut program = Command::new("python3");
    program.arg(bins::script("forked.py")).args([mib, "0"]);
    program
}

fn events(bed: &Testbed) -> Vec<Event> {
    let said = bed.annex("events", ["--json"]).output().expect("annex starts");
    serde_json::from_slice(&said.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&said.stderr)))
}

fn has(bed: &Testbed, kind: EventKind) -> bool {
    events(bed).iter().any(|event| event.kind == kind)
}

fn is_so(bed: &Testbed, kind: ConditionKind) -> bool {
    bed.status().conditions.iter().any(|condition| condition.kind == kind)
}

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("metrics are served");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it is HTTP");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert_eq!(annex_metrics::strict::check(body), Ok(()));
    body.to_owned()
}

/// The value of a series.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is missing:\n{text}")).parse().expect("a number")
}

#[test]
fn a_donor_that_goes_and_comes_is_told_of_after_a_kill_of_annexd_too() {
    // Small slabs, so that each donor has pages.
    let donor = || Donor::tcp().agent_args(&["--slab-size", "4M"]);
    let mut bed = Testbed::builder().donor(donor()).donor(donor()).donor(donor()).start();
    let mut job = bed.run("told", "32M", filler("96"));
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app("told", MINUTE, |app| app.evicted > 40 << 20);
    bed.agents[0].kill();
    wait_for("the donor to count as lost", MINUTE, || has(&bed, EventKind::DonorLost));
    wait_for("copies to be made anew", MINUTE, || has(&bed, EventKind::RepairDone));
    let before = events(&bed);
    let at = |kind| before.iter().position(|event| event.kind == kind).unwrap_or_else(|| panic!("{kind}: {before:?}"));
    assert!(at(EventKind::Started) < at(EventKind::AppAttached), "{before:?}");
    assert!(at(EventKind::DonorAway) < at(EventKind::DonorLost), "{before:?}");
    assert!(at(EventKind::RepairBegun) < at(EventKind::RepairDone), "{before:?}");
    assert!(bed.annexd.log().contains("event=\"donor_lost\""), "{}", bed.annexd.log());

    bed.annexd.kill();
    bed.start_again(None);
    wait_for("the next annexd to have taken over", MINUTE, || has(&bed, EventKind::TookOver));
    let after = events(&bed);
    // What happens again within a minute is counted where it stands.
    let what = |events: &[Event]| -> Vec<_> { events.iter().map(|e| (e.seq, e.kind, e.subject.clone())).collect() };
    assert_eq!(what(&after)[..before.len()], what(&before), "events of the annexd before are missing");
    assert!(!has(&bed, EventKind::HandedOver), "it was killed");
    bed.take_over();
    wait_for("the annexd before to have handed over", MINUTE, || has(&bed, EventKind::HandedOver));
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
    wait_for("the end of the app", MINUTE, || has(&bed, EventKind::AppEnded));
}

/// Health said "AT RISK … no donor has room", or nothing before `--check` failed.
#[test]
fn a_drain_of_one_of_two_donors_is_stuck_and_says_so() {
    let bed = Testbed::tcp();
    let mut job = bed.run("stays", "32M", filler("96"));
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app("stays", MINUTE, |app| app.evicted > 40 << 20);
    // On a busy machine a donor may just miss a write, or be slow.
    wait_for("all to be well", 2 * MINUTE, || is_so(&bed, ConditionKind::Healthy));
    let drain = |args: &[&str]| {
        let mut drain = Command::new(bins::find("annex-agent"));
        drain.arg("--control-socket").arg(bed.places[0].control_socket(&bed)).arg("drain").args(args);
        drain.output().expect("annex-agent starts")
    };
    assert!(!drain(&["--timeout", "1s"]).status.success(), "there is nowhere to go");
    wait_for("the health line to say so", MINUTE, || bed.status().health().starts_with("stuck: "));
    assert!(has(&bed, EventKind::DonorRecalls));
    assert!(drain(&["--cancel"]).status.success());
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}

#[test]
fn a_full_pool_is_a_condition_and_an_event() {
    let bed = Testbed::builder().replicas(1).donor(Donor::shm().capacity("64M")).start();
    let mut job = bed.run("fat", "32M", filler("160"));
    bed.wait_app("fat", MINUTE, |app| app.note.contains("the pool is full"));
    assert!(is_so(&bed, ConditionKind::Full), "{:?}", bed.status().conditions);
    wait_for("the events", MINUTE, || has(&bed, EventKind::PoolFull) && has(&bed, EventKind::AppOverLimit));
    job.wait_says("forked", 2 * MINUTE);
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}

/// It was healthy, and only the note of the app said that its pages stay.
#[test]
fn a_pool_of_which_only_the_keys_part_is_left_is_full() {
    let bed = Testbed::builder().replicas(1).kv("min=50%").donor(Donor::shm().capacity("128M")).start();
    let mut job = bed.run("fat", "32M", filler("192"));
    bed.wait_app("fat", MINUTE, |app| app.note.contains("what is left is kept for the KV API"));
    wait_for("the pool to be full", MINUTE, || bed.status().health().starts_with("full: what is left is kept for"));
    job.wait_says("forked", 2 * MINUTE);
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}

#[test]
fn metrics_tell_what_happens_to_an_app_and_outlive_annexd() {
    let address = port::free();
    let mut bed = Testbed::builder()
        .daemon_arg("--metrics")
        .daemon_arg(address.to_string())
        .donor(Donor::tcp())
        .donor(Donor::tcp())
        .start();
    wait_for("metrics to be served", MINUTE, || TcpStream::connect(address).is_ok());
    let mut job = bed.run("shown", "32M", filler("96"));
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app("shown", MINUTE, |app| app.evicted > 40 << 20);
    // A look is shown for a quarter of a second.
    wait_for("the pages to be shown", MINUTE, || {
        value(&scrape(address), "annexd_app_pool_bytes{app=\"shown\"}") > (40 << 20) as f64
    });
    let text = scrape(address);
    let written = value(&text, "annexd_fabric_bytes_total{transport=\"tcp\",operation=\"write\"}");
    assert!(written >= (80 << 20) as f64, "two copies: {written}");
    let writes = value(&text, "annexd_fabric_operations_total{transport=\"tcp\",operation=\"write\"}");
    let timed = value(&text, "annexd_fabric_latency_seconds_count{transport=\"tcp\",operation=\"write\"}");
    assert!(writes > 0.0 && (writes - timed).abs() < 1000.0, "{writes} writes, {timed} in the histogram");
    assert_eq!(value(&text, "annexd_donors{state=\"up\"}"), 2.0);
    assert_eq!(value(&text, "annexd_condition{condition=\"healthy\"}"), 1.0);
    assert!(value(&text, "annexd_events_total{event=\"app_attached\"}") >= 1.0);
    bed.annexd.kill();
    bed.start_again(None);
    wait_for("the next annexd to serve them", MINUTE, || TcpStream::connect(address).is_ok());
    wait_for("the app to be shown", MINUTE, || scrape(address).contains("annexd_app_pool_bytes{app=\"shown\"}"));
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
    wait_for("its faults to have ended with it", MINUTE, || !scrape(address).contains("app=\"shown\""));
}

#[test]
fn one_frame_of_top_has_what_runs_and_where_its_pages_are() {
    let bed = Testbed::tcp();
    let mut job = bed.run("framed", "32M", filler("96"));
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app("framed", MINUTE, |app| app.evicted > 40 << 20);
    let said = bed.annex("top", ["--once"]).output().expect("annex starts");
    let frame = String::from_utf8(said.stdout).expect("it is text");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(frame.contains("healthy: every page in the pool has 2 copies"), "{frame}");
    assert_eq!(frame.lines().filter(|line| line.contains(" up ") && line.contains(" tcp ")).count(), 2, "{frame}");
    let app = frame.lines().find(|line| line.trim_start().starts_with("framed ")).unwrap_or_else(|| panic!("{frame}"));
    assert!(app.contains(" running ") && app.contains(" 32 MiB ") && app.ends_with('%'), "{frame}");
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}

#[test]
fn an_agent_shows_what_it_lends() {
    let address = port::free();
    let args: &'static [&'static str] = vec!["--metrics", address.to_string().leak()].leak();
    let bed = Testbed::builder().donor(Donor::tcp().agent_args(args)).donor(Donor::tcp()).start();
    wait_for("metrics to be served", MINUTE, || TcpStream::connect(address).is_ok());
    let mut job = bed.run("lent", "32M", filler("96"));
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app("lent", MINUTE, |app| app.evicted > 40 << 20);
    wait_for("slabs to be lent", MINUTE, || value(&scrape(address), "annex_agent_lent_bytes") >= (64 << 20) as f64);
    assert_eq!(value(&scrape(address), "annex_agent_clients{state=\"connected\"}"), 1.0);
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}
