//! A real redis-server, filled with values that are known from their keys and verified byte by
//! byte. The client speaks just enough of Redis's protocol, pipelined.

use crate::stress::content::known_bytes;
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SEED: u64 = 0x7265_6469;
/// Commands sent before their answers are read.
const PIPELINE: u64 = 128;

/// The command line of a server that listens on a Unix socket in `dir` and saves only when told.
pub fn server(dir: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--rdbcompression", "no"]);
    command.args(["--logfile", "", "--dbfilename", "dump.rdb", "--dir"]).arg(dir);
    command.arg("--unixsocket").arg(socket(dir));
    command
}

pub fn socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

/// How many values, of which size.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    pub count: u64,
    pub bytes: usize,
}

impl Values {
    pub fn of_total(total: u64, bytes: usize) -> Values {
        Values { count: total / bytes as u64, bytes }
    }

    pub fn total(&self) -> u64 {
        self.count * self.bytes as u64
    }
}

/// Compared values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    pub verified: u64,
    pub wrong: u64,
}

impl std::ops::AddAssign for Verdict {
    fn add_assign(&mut self, other: Verdict) {
        self.verified += other.verified;
        self.wrong += other.wrong;
    }
}

/// A connection, and the generation that each value has.
pub struct Client {
    stream: BufReader<UnixStream>,
    values: Values,
    generations: Vec<u8>,
    line: Vec<u8>,
}

impl Client {
    /// Connects, waiting until the server is there and has loaded its data.
    pub fn connect(dir: &Path, values: Values, limit: Duration) -> anyhow::Result<Client> {
        let started = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(socket(dir)) {
                stream.set_read_timeout(Some(Duration::from_secs(120)))?;
                let generations = vec![0; values.count as usize];
                let mut client =
                    Client { stream: BufReader::with_capacity(1 << 18, stream), values, generations, line: Vec::new() };
                if client.command(&["PING"]).is_ok_and(|answer| answer == "PONG") {
                    return Ok(client);
                }
            }
            ensure!(started.elapsed() < limit, "redis-server did not answer within {limit:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The generation that each value has now.
    pub fn generations(&self) -> Vec<u8> {
        self.generations.clone()
    }

    /// Expects these generations: of a server that loaded a dump which was taken at that moment.
    pub fn expect(&mut self, generations: Vec<u8>) {
        self.generations = generations;
    }

    /// Gives the values in `range` a new generation. `step` 16 changes every 16th. `pause` is asked
    /// between batches and may end it early with an error.
    pub fn store(
        &mut self,
        range: std::ops::Range<u64>,
        step: usize,
        mut pause: impl FnMut(u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        let mut value = vec![0; self.values.bytes];
        let items: Vec<u64> = range.step_by(step).collect();
        for chunk in items.chunks(PIPELINE as usize) {
            batch.clear();
            for item in chunk {
                let generation = &mut self.generations[*item as usize];
                *generation = generation.wrapping_add(1);
                known_bytes(SEED, *item, u64::from(*generation), &mut value);
                let key = format!("value:{item}");
                write!(batch, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len())?;
                batch.extend_from_slice(&value);
                batch.extend_from_slice(b"\r\n");
            }
            self.stream.get_mut().write_all(&batch).context("sending SETs")?;
            for item in chunk {
                let answer = self.answer().with_context(|| format!("SET of value {item}"))?;
                ensure!(answer == b"OK", "SET of value {item}: {}", String::from_utf8_lossy(&answer));
            }
            pause(chunk.last().copied().unwrap_or(0))?;
        }
        Ok(())
    }

    /// Reads the values in `range` back and compares every byte.
    pub fn verify(
        &mut self,
        range: std::ops::Range<u64>,
        mut pause: impl FnMut(u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<Verdict> {
        let mut verdict = Verdict::default();
        let mut expected = vec![0; self.values.bytes];
        let mut batch = Vec::new();
        let mut first = range.start;
        while first < range.end {
            let last = (first + PIPELINE).min(range.end);
            batch.clear();
            for item in first..last {
                let key = format!("value:{item}");
                write!(batch, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())?;
            }
            self.stream.get_mut().write_all(&batch).context("sending GETs")?;
            for item in first..last {
                let got = self.answer().with_context(|| format!("GET of value {item}"))?;
                known_bytes(SEED, item, u64::from(self.generations[item as usize]), &mut expected);
                verdict.verified += 1;
                if got != expected {
                    verdict.wrong += 1;
                    let at = got.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(got.len());
                    eprintln!("WRONG VALUE {item}: {} bytes, first difference at {at}", got.len());
                }
            }
            pause(last)?;
            first = last;
        }
        Ok(verdict)
    }

    /// One command and its answer as text.
    pub fn command(&mut self, words: &[&str]) -> anyhow::Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        Ok(String::from_utf8_lossy(&self.answer()?).into_owned())
    }

    /// Whether the last BGSAVE has ended, and well.
    pub fn background_save_done(&mut self) -> anyhow::Result<bool> {
        let info = self.command(&["INFO", "persistence"])?;
        if info.contains("rdb_bgsave_in_progress:1") {
            return Ok(false);
        }
        ensure!(info.contains("rdb_last_bgsave_status:ok"), "BGSAVE failed:\n{info}");
        Ok(true)
    }

    fn answer(&mut self) -> anyhow::Result<Vec<u8>> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        let line = self.line.strip_suffix(b"\r\n").context("redis-server closed the connection")?;
        let (kind, rest) = line.split_first().context("an empty answer")?;
        match kind {
            b'+' | b':' => Ok(rest.to_vec()),
            b'-' => bail!("redis-server said {}", String::from_utf8_lossy(rest)),
            b'$' => {
                let length: i64 = std::str::from_utf8(rest)?.parse()?;
                let Ok(length) = usize::try_from(length) else { return Ok(b"(nil)".to_vec()) };
                let mut value = vec![0; length + 2];
                self.stream.read_exact(&mut value)?;
                value.truncate(length);
                Ok(value)
            }
            other => bail!("an answer of kind {:?}", char::from(*other)),
        }
    }
}
