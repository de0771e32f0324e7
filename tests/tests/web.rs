//! The page: over HTTP, and in a browser.

use annex_shared::api::{DonorInfo, DonorRequest};
use annex_tests::testbed::browser::{Browser, SIZE};
use annex_tests::testbed::process::Process;
use annex_tests::testbed::{Donor, Job, Testbed, api, bins, port, wait_for};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Three donors, two copies, and the page at an address.
fn bed() -> (Testbed, SocketAddr) {
    let address = port::free();
    // Small slabs, so that each donor has pages.
    let donor = || Donor::tcp().agent_args(&["--slab-size", "4M"]);
    let bed = Testbed::builder().daemon_arg("--web").daemon_arg(address.to_string());
    let bed = bed.donor(donor()).donor(donor()).donor(donor()).start();
    wait_for("the page to be served", MINUTE, || TcpStream::connect(address).is_ok());
    (bed, address)
}

/// A program that has most of its memory in the pool.
fn paged(bed: &Testbed, name: &str) -> Job {
    let mut program = Command::new("python3");
    program.arg(bins::script("forked.py")).args(["96", "0"]);
    let mut job = bed.run(name, "32M", program);
    job.wait_says("forked", 2 * MINUTE);
    bed.wait_app(name, MINUTE, |app| app.evicted > 40 << 20);
    job
}

fn verified(job: Job) {
    job.signal(Signal::SIGUSR1);
    job.wait(2 * MINUTE).succeeded();
}

/// Head and body of an answer.
fn ask(address: SocketAddr, request: &str) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(MINUTE))?;
    stream.write_all(format!("{request}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((head.to_owned(), body.to_owned()))
}

fn get(address: SocketAddr, path: &str) -> Value {
    let (head, body) = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}")).expect("it is served");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("content-type: application/json\r\n"), "{head}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn state(address: SocketAddr) -> Value {
    get(address, "/api/state")
}

fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array().expect("a list").iter().find(|one| one["name"] == name)
}

fn has_kind(list: &Value, kind: &str) -> bool {
    list.as_array().expect("a list").iter().any(|one| one["kind"] == kind)
}

#[test]
fn what_the_page_asks_for_tells_of_a_dead_donor_and_goes_on_after_a_kill_of_annexd() {
    let (mut bed, address) = bed();
    let job = paged(&bed, "shown");
    let before = state(address);
    let app = named(&before["apps"], "shown").expect("the app is there");
    assert!(app["evicted"].as_u64() > Some(40 << 20) && app["limit"] == 32 << 20, "{app}");
    assert_eq!((&before["donors_up"], &before["severity"]), (&json!(3), &json!("note")), "{before}");
    let donor = named(&before["donors"], "tcp0").expect("the donor is there");
    assert_eq!((&donor["state"], &donor["transport"]), (&json!("up"), &json!("tcp")), "{donor}");
    wait_for("two looks at the app", MINUTE, || {
        let curves = get(address, "/api/curves");
        named(&curves["apps"], "shown").is_some_and(|app| {
            let lengths = ["resident", "p99_us", "waited"].map(|column| app[column].as_array().map(Vec::len));
            let faults = app["faults"].as_array().expect("a list");
            assert!(faults.len() <= curves["at"].as_array().expect("a list").len());
            assert_eq!(lengths, [Some(faults.len()); 3], "{app}");
            faults.len() >= 2 && faults.last().is_some_and(Value::is_number)
        })
    });
    let last = state(address)["curves_ms"].as_u64().expect("there was a look");
    let newer = get(address, &format!("/api/curves?after={last}"));
    assert!(newer["at"].as_array().is_some_and(|at| at.iter().all(|at| at.as_u64() > Some(last))), "{newer}");

    bed.agents[0].kill();
    wait_for("the donor to be lost", MINUTE, || {
        let state = state(address);
        let is_away = named(&state["donors"], "tcp0").is_some_and(|donor| donor["state"] == "lost");
        is_away && has_kind(&state["conditions"], "donor_away") && has_kind(&state["events"], "donor_lost")
    });
    let status = bed.status();
    let after = state(address);
    let kinds: Vec<&str> = status.conditions.iter().map(|condition| condition.kind.name()).collect();
    assert!(kinds.contains(&"donor_away"), "{kinds:?}");
    assert_eq!(after["donors"][0]["name"], "tcp0", "what is not up comes first");

    bed.annexd.kill();
    assert!(ask(address, "GET / HTTP/1.1").is_err(), "nobody is there");
    bed.start_again(None);
    wait_for("the next annexd to serve it", MINUTE, || TcpStream::connect(address).is_ok());
    wait_for("the app to be shown", MINUTE, || named(&state(address)["apps"], "shown").is_some());
    let again = state(address);
    assert_ne!(again["pid"], before["pid"]);
    assert!(has_kind(&again["events"], "took_over") && has_kind(&again["events"], "donor_lost"), "{again}");
    verified(job);
}

#[test]
fn whatever_is_asked_nothing_is_done_and_nobody_is_held_up() {
    let (bed, address) = bed();
    let status = |request: &str| ask(address, request).map(|(head, _)| head[9..12].to_owned()).expect("an answer");
    let (head, page) = ask(address, "GET / HTTP/1.1\r\nHost: localhost").expect("the page");
    assert!(head.starts_with("HTTP/1.1 200 OK") && page.starts_with("<!doctype html>"), "{head}");
    for header in [
        "content-type: text/html; charset=utf-8",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
    ] {
        assert!(head.contains(header), "{header} is missing: {head}");
    }
    assert!(!head.contains("unsafe") && head.contains("frame-ancestors 'none'"), "{head}");
    let (put, words) =
        ask(address, "PUT /api/state HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0").expect("an answer");
    assert!(put.starts_with("HTTP/1.1 405 ") && put.contains("allow: GET, HEAD\r\n"), "{put}");
    assert_eq!(words, "the page can only be read: use GET\n");
    assert_eq!(status("DELETE /v1/apps/shown HTTP/1.1\r\nHost: localhost"), "404");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost"), "404");
    assert_eq!(status("GET /api/state HTTP/1.1\r\nHost: evil.example"), "403");

    // More than may be connected: half of them ask and never read.
    let silent: Vec<TcpStream> = (0..40)
        .map(|nth| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            let said = if nth % 2 == 0 { "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" } else { "GET / HT" };
            stream.write_all(said.as_bytes()).expect("there is room for a line");
            stream
        })
        .collect();
    assert_eq!(state(address)["donors_up"], 3);
    for mut stream in silent {
        stream.set_read_timeout(Some(MINUTE)).expect("a time");
        let mut rest = Vec::new();
        // A connection that is cut off counts as ended too.
        let ended = stream.read_to_end(&mut rest);
        assert!(!ended.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock), "a silent client is kept");
    }
    assert!(bed.status().conditions.iter().any(|condition| condition.kind.name() == "healthy"));
}

#[test]
fn an_address_that_cannot_be_had_is_said_and_had_later() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it is bound");
    let bed = Testbed::builder().daemon_arg("--web").daemon_arg(address.to_string()).tcp();
    let why = format!("failed to listen on {address} for the page: Address already in use");
    wait_for("the warning", MINUTE, || bed.status().warnings.iter().any(|warning| warning.starts_with(&why)));
    drop(taken);
    wait_for("the page", MINUTE, || ask(address, &format!("GET / HTTP/1.1\r\nHost: {address}")).is_ok());
    wait_for("the warning to go", MINUTE, || !bed.status().warnings.iter().any(|warning| warning.starts_with(&why)));

    let said = Command::new(bins::find("annexd")).args(["--web", "localhost:9502"]).output().expect("annexd starts");
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(2) && words.contains("invalid value 'localhost:9502' for '--web"), "{words}");
}

const BAD_NAME: &str = "<img/src=x/onerror=document.title=1>";

/// What others have named, in all the places that it comes to: a donor, an app, events.
fn add_bad_names(bed: &Testbed) -> Process {
    let request = DonorRequest {
        address: "127.0.0.1:1".into(),
        name: Some(BAD_NAME.into()),
        transport: None,
        tcp_fallback: None,
        faults: None,
    };
    let _: DonorInfo = api::send(&bed.socket, "POST", "/v1/donors", &request).expect("the donor is taken");
    let program = bed.path().join("<s>app");
    std::fs::write(&program, "#!/bin/sh\nsleep 600\n").expect("the testbed's directory is ours");
    let may_run = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, may_run).expect("the file is ours");
    let mut run = bed.annex("run", ["--"]);
    run.arg(program);
    let process = Process::start("bad-name", run, bed.path());
    wait_for("the app", MINUTE, || bed.app("<s>app").is_some());
    process
}

/// The width and height of a PNG.
fn measured(file: &Path) -> (u32, u32) {
    let bytes = std::fs::read(file).expect("there is a picture");
    assert!(bytes.starts_with(b"\x89PNG\r\n"), "it is no PNG");
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    (number(16), number(20))
}

fn donor_is(state: &str) -> String {
    format!("document.querySelector('[data-donor=tcp0]')?.dataset.state === '{state}'")
}

#[test]
fn a_browser_shows_it_sees_a_donor_die_and_waits_for_annexd() {
    let (mut bed, address) = bed();
    let dir = bed.path().to_owned();
    let Some(mut browser) = Browser::start(&dir) else { return };
    let job = paged(&bed, "shown");
    let bad = add_bad_names(&bed);
    browser.open(&format!("http://{address}/"));
    browser.wait_for("the donor", MINUTE, &donor_is("up"));
    let looks = "Number(document.querySelector('[data-app=shown] [data-curve=\"Faults/s\"]')?.dataset.looks)";
    browser.wait_for("a curve", MINUTE, &format!("{looks} >= 2"));
    assert_eq!(browser.value("document.querySelectorAll('[data-app=shown] polyline.line').length > 0"), true);
    assert!(browser.text("[data-app=shown]").contains("limit 32 MiB"), "{}", browser.text("[data-app=shown]"));
    assert!(browser.text("#tiles").contains("3 of 4 up"), "{}", browser.text("#tiles"));

    // Names are text.
    browser.wait_for("the bad donor", MINUTE, &format!("document.body.innerText.includes({})", json!(BAD_NAME)));
    browser.wait_for("the bad app", MINUTE, "!!document.querySelector('[data-app=\"<s>app\"]')");
    assert_eq!(browser.value("document.querySelectorAll('main img, main s').length"), 0);
    assert_ne!(browser.value("document.title"), "1");

    // A curve tells what it was where somebody points at it.
    let middle = "(() => { const box = document.querySelector('[data-app=shown] svg').getBoundingClientRect(); \
                  return [Math.round(box.right) - 2, Math.round(box.top) + 10] })()";
    let at = browser.value(middle);
    browser.move_mouse(at[0].as_i64().expect("a number"), at[1].as_i64().expect("a number"));
    browser.wait_for(
        "what it was then",
        MINUTE,
        "/ · \\d\\d:\\d\\d/.test(document.querySelector('td.hover')?.innerText)",
    );
    browser.move_mouse(1, 1);

    for scheme in ["dark", "light"] {
        browser.prefer(scheme);
        let file = dir.join(format!("{scheme}.png"));
        browser.screenshot(&file);
        assert_eq!(measured(&file), SIZE);
    }
    assert_eq!(browser.console(), [], "the console has something to say");

    bed.agents[0].kill();
    browser.wait_for("the dead donor", MINUTE, &donor_is("lost"));
    browser.wait_for("its event", MINUTE, "!!document.querySelector('[data-event=donor_lost]')");
    assert!(browser.text("#conditions").contains("not up: tcp0"), "{}", browser.text("#conditions"));
    assert_eq!(browser.console(), [], "the console has something to say");

    let kept = browser.value(looks).as_u64().expect("a number");
    bed.annexd.kill();
    browser.wait_for("annexd's end to be said", MINUTE, "document.body.classList.contains('gone')");
    let gone = browser.text("#gone");
    assert!(gone.starts_with("annexd does not answer since "), "{gone}");
    assert!(browser.text("[data-app=shown]").contains("limit 32 MiB"), "what was last known stays");
    bed.start_again(None);
    browser.wait_for("the page to go on", MINUTE, "!document.body.classList.contains('gone')");
    browser.wait_for("its event", MINUTE, "!!document.querySelector('[data-event=took_over]')");
    browser.wait_for("a curve that goes on", MINUTE, &format!("{looks} > {kept}"));
    // That nobody answered is in the console, and nothing else.
    let others: Vec<_> = browser.console().into_iter().filter(|(source, _)| source != "network").collect();
    assert_eq!(others, [], "the console has something to say");
    drop(bad);
    verified(job);
}

/// Touches its memory at random, in waves: MiB, and seconds from one wave to the next.
const WAVES: &str = "
import math, os, random, sys, time
data = bytearray(os.urandom(int(sys.argv[1]) << 20))
wave, began = float(sys.argv[2]), time.monotonic()
print('begun', flush=True)
while True:
    height = 0.55 - 0.45 * math.cos(2 * math.pi * (time.monotonic() - began) / wave)
    reach = int(len(data) * (0.3 + 0.7 * height))
    for _ in range(int(220 * height)):
        data[random.randrange(reach)] ^= 1
    time.sleep(0.1)
";

/// The picture in docs/operations.md: three programs for a quarter of an hour, then a donor dies.
/// `ANNEX_PICTURE=FILE` says where it goes.
#[test]
#[ignore = "takes a quarter of an hour, to make a picture for the manual"]
fn a_picture_for_the_manual() {
    let (mut bed, address) = bed();
    let dir = bed.path().to_owned();
    let Some(mut browser) = Browser::start(&dir) else { return };
    let program = |mib: &str, wave: &str| {
        let mut program = Command::new("python3");
        program.args(["-c", WAVES, mib, wave]);
        program
    };
    let jobs: Vec<Job> =
        [("cache", "96M", "192", "420"), ("index", "48M", "160", "240"), ("report", "32M", "96", "660")]
            .into_iter()
            .map(|(name, local, mib, wave)| bed.run(name, local, program(mib, wave)))
            .collect();
    let seconds = std::env::var("ANNEX_PICTURE_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(900);
    std::thread::sleep(Duration::from_secs(seconds * 2 / 3));
    bed.agents[1].kill();
    wait_for("copies to be made anew", 2 * MINUTE, || has_kind(&state(address)["events"], "repair_done"));
    bed.start_agent_again(1);
    std::thread::sleep(Duration::from_secs(seconds / 3));
    browser.open(&format!("http://{address}/"));
    browser.wait_for("the donor", MINUTE, &donor_is("up"));
    bed.agents[0].kill();
    browser.wait_for("the dead donor", MINUTE, &donor_is("lost"));
    browser.wait_for("its event", MINUTE, "!!document.querySelector('[data-event=donor_lost]')");
    let file = std::env::var_os("ANNEX_PICTURE").map_or_else(|| dir.join("page.png"), Into::into);
    browser.prefer("light");
    browser.screenshot(&file);
    assert_eq!(measured(&file), SIZE);
    browser.prefer("dark");
    browser.screenshot(&file.with_extension("dark.png"));
    for job in jobs {
        job.signal(Signal::SIGKILL);
    }
}
