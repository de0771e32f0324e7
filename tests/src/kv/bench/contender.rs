//! Who answers the requests. Each is started afresh for each size of values, so that none carries
//! over what an earlier size left in its memory.

use super::driver::{Driver, Tally, Until};
use super::load::{Load, Mix, Requests, keys};
use super::protocol::Protocol;
use super::raw;
use crate::testbed::process::Process;
use crate::testbed::{Donor, Testbed, bins, port};
use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Serialize;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// In the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    RedisServer,
    Memcached,
    AnnexShm,
    /// With a cache of a tenth of the data in annexd's own memory.
    AnnexShmCached,
    AnnexTcp,
    AnnexTcpCached,
    /// The bare floor: requests and answers of the same size, and nothing stored.
    Raw,
    /// The same redis-server, asked by redis-benchmark: whether our own client holds anybody up.
    RedisBenchmark,
}

impl Contender {
    pub const ALL: [Contender; 8] = [
        Contender::RedisServer,
        Contender::Memcached,
        Contender::AnnexShm,
        Contender::AnnexShmCached,
        Contender::AnnexTcp,
        Contender::AnnexTcpCached,
        Contender::Raw,
        Contender::RedisBenchmark,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Contender::RedisServer => "redis-server",
            Contender::Memcached => "memcached",
            Contender::AnnexShm => "annex shm",
            Contender::AnnexShmCached => "annex shm, 10 % cached",
            Contender::AnnexTcp => "annex tcp",
            Contender::AnnexTcpCached => "annex tcp, 10 % cached",
            Contender::Raw => "bare TCP",
            Contender::RedisBenchmark => "redis-server, by redis-benchmark",
        }
    }

    fn protocol(self) -> Protocol {
        match self {
            Contender::Memcached => Protocol::Memcached,
            Contender::Raw => Protocol::Raw,
            _ => Protocol::Resp,
        }
    }
}

/// A contender that runs; ended when dropped.
pub struct Server {
    pub contender: Contender,
    pub address: SocketAddr,
    runs: Runs,
}

enum Runs {
    /// A thread of this process.
    Here,
    // The process is dropped before its directory.
    Alone {
        process: Process,
        _directory: TempDir,
    },
    Annex {
        bed: Box<Testbed>,
    },
}

impl Server {
    /// `None`: it is a thread of this process.
    pub fn pid(&self) -> Option<i32> {
        match &self.runs {
            Runs::Here => None,
            Runs::Alone { process, .. } => Some(process.pid()),
            Runs::Annex { bed } => Some(bed.annexd.pid()),
        }
    }

    /// Starts the contender. An error says why it can't run here.
    ///
    /// # Errors
    /// A program is missing or does not start.
    pub fn start(contender: Contender, bytes: usize) -> anyhow::Result<Server> {
        let tenth = bytes * keys(bytes) / 10;
        let (address, runs) = match contender {
            Contender::RedisServer => alone("redis-server", |port| {
                let mut redis = Command::new("redis-server");
                redis.args(["--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"]);
                redis
            })?,
            Contender::Memcached => alone("memcached", |port| {
                let mut memcached = Command::new("memcached");
                memcached.args(["-l", "127.0.0.1", "-p", port, "-m", "1024", "-t", "2"]);
                // As nobody, from outside: with -u it would change over by itself, and then outlive
                // us if we are killed.
                memcached.uid(65534).gid(65534);
                memcached
            })?,
            Contender::AnnexShm => annex(Donor::shm, 0)?,
            Contender::AnnexShmCached => annex(Donor::shm, tenth)?,
            Contender::AnnexTcp => annex(Donor::tcp, 0)?,
            Contender::AnnexTcpCached => annex(Donor::tcp, tenth)?,
            Contender::Raw => (raw::start()?, Runs::Here),
            Contender::RedisBenchmark => anyhow::bail!("redis-benchmark is no server"),
        };
        Ok(Server { contender, address, runs })
    }

    /// Writes every key once.
    pub fn fill(&self, bytes: usize) -> anyhow::Result<()> {
        let load = Load { mix: Mix::Set, bytes, pipeline: 64, connections: 4 };
        let mut driver = Driver::connect(self.address, self.contender.protocol(), load)?;
        driver.run(&mut Requests::fill(bytes), Until::Requests(keys(bytes)))?;
        Ok(())
    }

    /// Runs a load for a fifth of the time to settle, then measured.
    pub fn measure(&self, load: Load, mut requests: Requests, duration: Duration) -> anyhow::Result<Tally> {
        let mut driver = Driver::connect(self.address, self.contender.protocol(), load)?;
        driver.run(&mut requests, Until::Time(duration / 5))?;
        driver.run(&mut requests, Until::Time(duration))
    }
}

fn annex(donor: fn() -> Donor, cache: usize) -> anyhow::Result<(SocketAddr, Runs)> {
    let options = format!(",cache={cache}");
    let bed = Testbed::builder().donor(donor()).donor(donor()).beside_others().kv(&options).start();
    let address = bed.kv_address.as_deref().context("no KV API")?.parse()?;
    Ok((address, Runs::Annex { bed: Box::new(bed) }))
}

/// A program of the system that listens on a port of loopback.
fn alone(name: &str, command: impl FnOnce(&str) -> Command) -> anyhow::Result<(SocketAddr, Runs)> {
    ensure!(bins::system(name).is_some(), "{name} is not installed: run `make setup`");
    let directory = tempfile::Builder::new().prefix("annex-kv-bench-").tempdir()?;
    let address = port::free();
    let mut process = Process::start(name, command(&address.port().to_string()), directory.path());
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        ensure!(process.is_running() && began.elapsed() < PATIENCE, "{name} does not listen:\n{}", process.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((address, Runs::Alone { process, _directory: directory }))
}
