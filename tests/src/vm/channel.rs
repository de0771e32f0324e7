//! How commands get into a guest: lines of JSON over a virtio-serial port, which is a Unix socket
//! here and a device there.
//!
//! The guest says hello each time its end opens the port. Then each request has a number and gets
//! one answer with that number; many can be under way.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// To the guest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// A shell script. Past the limit its process group is killed.
    Run { number: u64, script: String, limit_ms: u64 },
    /// A file's whole content; folders above it are made.
    Put { number: u64, path: String, text: String },
}

/// From the guest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Hello,
    Done { number: u64, output: Output },
}

/// How a command ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Output {
    /// As a shell has it: 128 + the signal, 124 when it took too long.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// This end.
pub struct Channel {
    stream: Mutex<UnixStream>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    greeted: Condvar,
}

#[derive(Default)]
struct State {
    /// The guest has said hello; it is gone again when the port has closed.
    up: bool,
    closed: bool,
    next: u64,
    waiting: HashMap<u64, Sender<Output>>,
}

impl Channel {
    /// Connects to the port's socket, which is there soon after the guest was started.
    pub fn connect(path: &Path, limit: Duration) -> anyhow::Result<Channel> {
        let started = Instant::now();
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(e) if started.elapsed() > limit => {
                    return Err(e).context(format!("connecting to {}", path.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let shared = Arc::new(Shared::default());
        let lines = BufReader::new(stream.try_clone()?).lines();
        std::thread::spawn({
            let shared = shared.clone();
            move || {
                for line in lines.map_while(Result::ok) {
                    shared.hear(&line);
                }
                shared.close();
            }
        });
        Ok(Channel { stream: Mutex::new(stream), shared })
    }

    /// Until the guest runs commands.
    pub fn wait_up(&self, limit: Duration) -> anyhow::Result<()> {
        let state = self.shared.lock();
        let waited = self.shared.greeted.wait_timeout_while(state, limit, |state| !state.up && !state.closed);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(!state.closed, "the guest ended");
        anyhow::ensure!(state.up, "the guest did not come up within {limit:?}");
        Ok(())
    }

    pub fn run(&self, script: &str, limit: Duration) -> anyhow::Result<Output> {
        let limit_ms = limit.as_millis() as u64;
        let answer = self.ask(|number| Request::Run { number, script: script.into(), limit_ms })?;
        // The guest ends it at the limit and says so; one that says nothing is hung.
        receive(&answer, limit + Duration::from_secs(60))
    }

    pub fn put(&self, path: &str, text: &str) -> anyhow::Result<()> {
        let answer = self.ask(|number| Request::Put { number, path: path.into(), text: text.into() })?;
        let output = receive(&answer, Duration::from_secs(60))?;
        anyhow::ensure!(output.code == 0, "writing {path}: {}", output.stderr);
        Ok(())
    }

    fn ask(&self, request: impl FnOnce(u64) -> Request) -> anyhow::Result<Receiver<Output>> {
        let (tx, rx) = channel();
        let mut state = self.shared.lock();
        anyhow::ensure!(state.up && !state.closed, "the guest is not up");
        state.next += 1;
        let number = state.next;
        state.waiting.insert(number, tx);
        drop(state);
        let mut line = serde_json::to_vec(&request(number))?;
        line.push(b'\n');
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&line).context("sending a command to the guest")?;
        Ok(rx)
    }
}

fn receive(answer: &Receiver<Output>, limit: Duration) -> anyhow::Result<Output> {
    match answer.recv_timeout(limit) {
        Ok(output) => Ok(output),
        Err(RecvTimeoutError::Timeout) => bail!("the guest has not answered for {limit:?}: it hangs"),
        Err(RecvTimeoutError::Disconnected) => bail!("the guest, or what runs commands there, ended meanwhile"),
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, line: &str) {
        match serde_json::from_str(line) {
            Ok(Answer::Hello) => {
                let mut state = self.lock();
                // Whatever was under way is lost with the guest's end that was asked.
                state.waiting.clear();
                state.up = true;
                self.greeted.notify_all();
            }
            Ok(Answer::Done { number, output }) => {
                if let Some(tx) = self.lock().waiting.remove(&number) {
                    // Nobody may wait for it any more.
                    let _ = tx.send(output);
                }
            }
            Err(e) => eprintln!("annex-vm: a guest said what is no answer ({e}): {line}"),
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.clear();
        self.greeted.notify_all();
    }
}
