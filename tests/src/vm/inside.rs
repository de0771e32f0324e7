//! What runs inside a guest: the far end of the [`channel`](super::channel), started by the guest's
//! systemd; and the redis client, which is started by that.

use super::channel::{Answer, Output, Request};
use crate::redis::{Client, Values, Verdict};
use anyhow::Context;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What to do with the guest's redis-server; prints the verdict as JSON.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Redis {
    #[arg(long)]
    pub megabytes: u64,
    /// Store the values, each anew
    #[arg(long)]
    pub store: bool,
    /// Verify all values that often
    #[arg(long, default_value_t = 1)]
    pub verify: u32,
    /// Store that often, and verify each time; without storing: expect the values that were stored
    /// that often
    #[arg(long, default_value_t = 1)]
    pub times: u8,
    /// The server is the KV API of annexd
    #[arg(long)]
    pub kv: bool,
}

impl Default for Redis {
    fn default() -> Redis {
        Redis { megabytes: 16, store: false, verify: 1, times: 1, kv: false }
    }
}

impl Redis {
    /// Where the server's socket is.
    pub const DIR: &str = "/var/tmp/redis";
    /// And where that of the KV API is, when it goes by the same name.
    pub const DIR_OF_KV: &str = "/run/annex";
    /// Bytes per value.
    const VALUE: usize = 3000;

    pub fn arguments(&self) -> String {
        let flag = |is: bool, name: &'static str| if is { name } else { "" };
        let (store, kv) = (flag(self.store, "--store"), flag(self.kv, "--kv"));
        format!("--megabytes {} {store} {kv} --verify {} --times {}", self.megabytes, self.verify, self.times)
    }

    pub fn run(&self) -> anyhow::Result<()> {
        let values = Values::of_total(self.megabytes << 20, Redis::VALUE);
        let dir = if self.kv { Redis::DIR_OF_KV } else { Redis::DIR };
        let mut client = Client::connect(Path::new(dir), values, Duration::from_secs(60))?;
        let mut verdict = Verdict::default();
        match self.store {
            true => {
                for time in 1..=self.times {
                    client.store(0..values.count, 1, |_| Ok(()))?;
                    if time < self.times {
                        verdict += client.verify(0..values.count, |_| Ok(()))?;
                    }
                }
            }
            // What so many stores from nothing have made of each.
            false => client.expect(vec![self.times; values.count as usize]),
        }
        for _ in 0..self.verify {
            verdict += client.verify(0..values.count, |_| Ok(()))?;
        }
        println!("{}", serde_json::to_string(&verdict)?);
        Ok(())
    }
}

/// Exit code of what took too long, as `timeout` has it.
const TOO_LATE: i32 = 124;

/// Serves the port until it closes.
pub fn serve(port: &Path) -> anyhow::Result<()> {
    let file =
        File::options().read(true).write(true).open(port).with_context(|| format!("opening {}", port.display()))?;
    let answers = Arc::new(Mutex::new(file.try_clone()?));
    say(&answers, &Answer::Hello);
    for line in BufReader::new(file).lines() {
        let request: Request = serde_json::from_str(&line?).context("a request")?;
        let answers = answers.clone();
        std::thread::spawn(move || {
            let (number, output) = match request {
                Request::Run { number, script, limit_ms } => (number, run(&script, Duration::from_millis(limit_ms))),
                Request::Put { number, path, text } => (number, put(Path::new(&path), &text)),
            };
            let output = output.unwrap_or_else(|e| Output { code: 125, stderr: format!("{e:#}"), ..Output::default() });
            say(&answers, &Answer::Done { number, output });
        });
    }
    Ok(())
}

fn say(answers: &Mutex<File>, answer: &Answer) {
    let mut line = serde_json::to_vec(answer).expect("answers are plain data");
    line.push(b'\n');
    let written = answers.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
    if let Err(e) = written {
        eprintln!("failed to answer the host: {e}");
    }
}

/// Output goes to files: what a script leaves running may hold them open for as long as it likes.
fn run(script: &str, limit: Duration) -> anyhow::Result<Output> {
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).current_dir("/root").env("HOME", "/root");
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?).process_group(0);
    let mut child = command.spawn().context("starting the shell")?;
    let started = Instant::now();
    let code = loop {
        if let Some(status) = child.try_wait()? {
            break status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        if started.elapsed() > limit {
            // The group is there as long as its leader has not been waited for.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            child.wait()?;
            break TOO_LATE;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Ok(Output { code, stdout: text(&mut out)?, stderr: text(&mut err)? })
}

fn text(file: &mut File) -> std::io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(file, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn put(path: &Path, text: &str) -> anyhow::Result<Output> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)?;
    Ok(Output::default())
}
