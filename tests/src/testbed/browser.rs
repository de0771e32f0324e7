//! A headless Chromium, for tests of the page. `tests/programs/browser.py` speaks WebDriver to it.

use super::bins;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// What a screenshot measures, in pixels.
pub const SIZE: (u32, u32) = (1280, 800);

pub struct Browser {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Browser {
    /// Starts one that keeps its files in `dir`; `None`, said loudly, where there is none.
    ///
    /// # Panics
    /// When there is none and nothing may be skipped, or it does not start.
    pub fn start(dir: &Path) -> Option<Browser> {
        let runs = |program: &str| {
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        if !runs("chromedriver") || !runs("chromium") {
            assert!(
                std::env::var_os("ANNEX_SKIP_NOTHING").is_none(),
                "chromium or chromedriver is missing: make setup"
            );
            eprintln!("SKIPPED: there is no chromium or no chromedriver here (make setup)");
            return None;
        }
        let mut command = Command::new("python3");
        command.arg(bins::script("browser.py")).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Chromium keeps more there than in its profile.
        command.env("HOME", dir).env("XDG_CONFIG_HOME", dir.join("config")).env("XDG_CACHE_HOME", dir.join("cache"));
        let mut child = command.spawn().expect("python3 starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        Some(Browser { child, input, output: BufReader::new(output) })
    }

    fn ask(&mut self, what: &Value) -> Value {
        let input = self.input.as_mut().expect("it is open until the end");
        writeln!(input, "{what}").expect("the browser runs");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the browser runs");
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{what}: {e} in {line:?}"));
        if let Some(error) = answer.get("error") {
            panic!("{what}: {error}");
        }
        answer
    }

    /// # Panics
    /// When the browser is gone or refuses; so do all others.
    pub fn open(&mut self, url: &str) {
        self.ask(&json!(["open", url]));
    }

    /// What an expression of JavaScript is on the page.
    pub fn value(&mut self, expression: &str) -> Value {
        self.ask(&json!(["eval", format!("return {expression}")]))
    }

    /// The text of the first element that a selector finds; empty if there is none.
    pub fn text(&mut self, selector: &str) -> String {
        let value = self.value(&format!("document.querySelector({})?.innerText ?? ''", json!(selector)));
        value.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, what: &str, limit: Duration, expression: &str) {
        let started = Instant::now();
        while self.value(expression) != json!(true) {
            let shown = self.text("body");
            assert!(started.elapsed() < limit, "waited {limit:?} in vain for {what}; the page shows:\n{shown}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The console's lines since the last time, as (source, whole line).
    pub fn console(&mut self) -> Vec<(String, String)> {
        let lines: Vec<[String; 3]> = serde_json::from_value(self.ask(&json!(["log"]))).expect("three texts each");
        lines.into_iter().map(|[level, source, text]| (source.clone(), format!("{level} {source}: {text}"))).collect()
    }

    pub fn screenshot(&mut self, file: &Path) {
        self.ask(&json!(["screenshot", file]));
    }

    /// What `prefers-color-scheme` says: `dark` or `light`.
    pub fn prefer(&mut self, scheme: &str) {
        self.ask(&json!(["scheme", scheme]));
    }

    pub fn move_mouse(&mut self, x: i64, y: i64) {
        self.ask(&json!(["move", x, y]));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.input = None;
        let _ = self.child.wait();
    }
}
