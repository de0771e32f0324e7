//! A testbed, and what an operator reads off it. Each of these waits until it is said.

use annex_shared::condition::ConditionKind;
use annex_shared::event::{Event, EventKind};
use annex_tests::testbed::{Builder, Job, Testbed, api, bins, port};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

pub const MINUTE: Duration = Duration::from_secs(60);
const ALERTS: &str = include_str!("../../../packaging/monitoring/alerts.yml");

pub struct Scene {
    pub bed: Testbed,
    metrics: SocketAddr,
}

impl Scene {
    pub fn start(builder: Builder) -> Scene {
        let metrics = port::free();
        let bed = builder.daemon_arg("--metrics").daemon_arg(metrics.to_string()).start();
        let scene = Scene { bed, metrics };
        scene.config("");
        scene
    }

    /// What the configuration file says that doctor reads: annexd itself has its arguments.
    pub fn config(&self, text: &str) {
        fs::write(self.bed.path().join("annexd.toml"), text).expect("the testbed's directory is ours");
    }

    /// A program that touches three times its limit, over and over.
    pub fn load(&self) -> Job {
        let mut command = Command::new(bins::find("annex-stress"));
        command.args([
            "--size",
            "48M",
            "--threads",
            "1",
            "--seconds",
            "0",
            "--features",
            "rw",
            "--stall",
            "600",
            "--dir",
        ]);
        command.arg(self.bed.path());
        let mut job = self.bed.run("load", "16M", command);
        job.stop_watching();
        job.wait_says("ready", 2 * MINUTE);
        job
    }

    /// A program that fills so many MiB, and reads them at SIGUSR1.
    pub fn load_of(&self, mib: &str, local: &str) -> Job {
        let mut program = Command::new("python3");
        program.arg(bins::script("forked.py")).args([mib, "0"]);
        let mut job = self.bed.run("load", local, program);
        job.stop_watching();
        job.wait_says("forked", 2 * MINUTE);
        job
    }

    #[track_caller]
    pub fn condition(&self, kind: ConditionKind, cause: &[&str], remedy: &str) {
        until(&format!("the condition {kind} with {cause:?} and {remedy:?}"), || {
            let all = self.bed.status().conditions;
            let is_it = |c: &&annex_shared::condition::Condition| {
                c.kind == kind && has(&c.message, cause) && c.remedy.contains(remedy)
            };
            all.iter().find(is_it).map(drop).ok_or_else(|| format!("{all:#?}"))
        });
    }

    /// What `annex status` prints has all of these.
    #[track_caller]
    pub fn status(&self, parts: &[&str]) {
        until(&format!("{parts:?} in annex status"), || {
            let said = self.bed.ask("status", [] as [&str; 0]).stdout;
            if has(&said, parts) { Ok(()) } else { Err(said) }
        });
    }

    #[track_caller]
    pub fn event(&self, kind: EventKind, subject: &str, cause: &str) {
        until(&format!("the event {kind} of {subject} with {cause:?}"), || {
            let events: Vec<Event> = api::fetch(&self.bed.socket, "/v1/events").map_err(|e| e.to_string())?;
            let is_it = |e: &&Event| e.kind == kind && e.subject == subject && e.cause.contains(cause);
            events.iter().find(is_it).map(drop).ok_or_else(|| format!("{events:#?}"))
        });
    }

    /// `annex doctor` has a check of this name that is not ok.
    #[track_caller]
    pub fn doctor(&self, name: &str, cause: &[&str], remedy: &str) {
        self.doctor_with(&[], name, cause, remedy);
    }

    #[track_caller]
    pub fn doctor_with(&self, args: &[&str], name: &str, cause: &[&str], remedy: &str) {
        until(&format!("{name}, {cause:?} and {remedy:?} from doctor"), || {
            found(&self.doctors(args), name, cause, remedy)
        });
    }

    /// `annex doctor` has a check of this name that is ok.
    #[track_caller]
    pub fn doctor_ok(&self, name: &str, part: &str) {
        let said = self.doctors(&[]);
        let checks = said["checks"].as_array().expect("a list");
        let is_ok = |c: &Value| {
            c["name"] == name && c["outcome"] == "ok" && c["message"].as_str().is_some_and(|said| said.contains(part))
        };
        assert!(checks.iter().any(is_ok), "{name} is not ok: {said:#}");
    }

    fn doctors(&self, args: &[&str]) -> Value {
        let config = self.bed.path().join("annexd.toml");
        let mut command = self.bed.annex("doctor", ["--json", "--config"]);
        let said = command.arg(config).args(args).output().expect("annex starts");
        serde_json::from_slice(&said.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&said.stderr)))
    }

    /// The same of `annex-agent doctor` on a donor's host.
    #[track_caller]
    pub fn agent_doctor(&self, nth: usize, name: &str, cause: &[&str], remedy: &str) {
        let place = &self.bed.places[nth];
        let program = bins::find("annex-agent");
        until(&format!("{name}, {cause:?} and {remedy:?} from the agent's doctor"), || {
            let mut command = match &place.meminfo {
                Some(meminfo) => meminfo.inside(&program),
                None => Command::new(&program),
            };
            command.arg("--control-socket").arg(place.control_socket(&self.bed)).args(["doctor", "--json"]);
            let said = command.output().expect("annex-agent starts");
            let said: Value = serde_json::from_slice(&said.stdout).map_err(|e| format!("{e}: {said:?}"))?;
            found(&said, name, cause, remedy)
        });
    }

    /// These rules of alerts.yml would fire, once their time is over, by what annexd shows.
    #[track_caller]
    pub fn alerts(&self, names: &[&str]) {
        names.iter().for_each(|name| fires(name, self.metrics));
    }

    /// The same by what the first donor shows.
    #[track_caller]
    pub fn agent_alerts(&self, names: &[&str]) {
        let address = self.bed.places[0].metrics.expect("the donors show metrics");
        names.iter().for_each(|name| fires(name, address));
    }
}

fn has(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

/// Tries until it is so.
#[track_caller]
fn until(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    while let Err(instead) = look() {
        assert!(started.elapsed() < MINUTE, "waited in vain for {what}; instead: {instead}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn found(report: &Value, name: &str, cause: &[&str], remedy: &str) -> Result<(), String> {
    let text = |check: &Value, field: &str| check[field].as_str().unwrap_or_default().to_owned();
    let is_it = |check: &&Value| {
        check["name"] == name
            && check["outcome"] != "ok"
            && has(&text(check, "message"), cause)
            && text(check, "remedy").contains(remedy)
    };
    let checks = report["checks"].as_array().ok_or("no checks")?;
    checks.iter().find(is_it).map(drop).ok_or_else(|| format!("{report:#}"))
}

/// The expression of a rule, as far as this file needs it: a series beside a number, or how much a
/// counter has grown, which begins with 0. `up` is whether anything is shown.
#[track_caller]
fn fires(alert: &str, address: SocketAddr) {
    let rule = ALERTS.split("- alert: ").find(|rule| rule.starts_with(&format!("{alert}\n")));
    let expression = rule.and_then(|rule| rule.lines().find_map(|line| line.trim().strip_prefix("expr: ")));
    let expression = expression.unwrap_or_else(|| panic!("there is no alert {alert}"));
    until(&format!("the alert {alert} ({expression})"), || {
        let shown = scrape(address);
        let so = match expression.rsplit_once(' ').expect("a comparison") {
            ("up{job=\"annex\"} ==", "0") => shown.is_none(),
            (left, number) => {
                let (series, relation) = left.rsplit_once(' ').expect("a comparison");
                let series = series.trim_start_matches("increase(").trim_end_matches("[15m])");
                let value = shown.as_ref().and_then(|text| value(text, series));
                match (relation, value, number.parse::<f64>().expect("a number")) {
                    ("==", Some(value), number) => (value - number).abs() < f64::EPSILON,
                    (">", Some(value), number) => value > number,
                    _ => false,
                }
            }
        };
        if so { Ok(()) } else { Err(shown.unwrap_or_else(|| "nothing is shown".into())) }
    });
}

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?.parse().ok()
}

fn scrape(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}
