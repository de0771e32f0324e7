//! The programs: how each is started, and what shows that it did its work.

use crate::stress::content::Dice;
use crate::testbed::bins;
use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Serialize;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// redis-server, asked for values by Zipf: requests per second.
    Redis,
    /// PageRank on a made-up graph.
    Graph,
    /// GNU sort of lines of text.
    Sort,
    /// A data job in plain Python.
    Python,
    /// Queries on tables that SQLite holds in memory.
    Sqlite,
}

impl Program {
    /// Those that are soon done first, the one that a bar is about last: it has what time they
    /// leave.
    pub const ALL: [Program; 5] = [Program::Graph, Program::Sqlite, Program::Sort, Program::Python, Program::Redis];

    pub fn name(self) -> &'static str {
        match self {
            Program::Redis => "redis",
            Program::Graph => "graph",
            Program::Sort => "sort",
            Program::Python => "python",
            Program::Sqlite => "sqlite",
        }
    }

    /// The command that runs in `directory`, where what it needs is laid out. `size` is in percent
    /// of the usual.
    pub fn command(self, directory: &Path, size: u64) -> anyhow::Result<Command> {
        let sized = |usual: u64| usual * size / 100;
        let mut command = match self {
            Program::Redis => {
                let mut redis = Command::new(installed("redis-server")?);
                redis.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
                redis
            }
            Program::Graph => {
                let mut graph = Command::new(bins::find("annex-access"));
                graph.args(["graph", "--nodes", &sized(1 << 20).to_string()]);
                graph
            }
            Program::Sort => {
                let (lines, sorted) = (directory.join("lines"), directory.join(SORTED));
                if !lines.exists() {
                    lay_out(&lines, sized(1 << 19)).with_context(|| format!("writing {}", lines.display()))?;
                }
                let mut sort = Command::new(installed("sort")?);
                sort.args(["--parallel=1", "--buffer-size=1G", "--output"]).args([sorted, lines]);
                sort
            }
            Program::Python => {
                let mut python = Command::new(interpreter()?);
                python.args(["-c", include_str!("job.py"), &sized(250_000).to_string()]);
                python
            }
            Program::Sqlite => {
                let mut sqlite = Command::new(installed("sqlite3")?);
                let queries = include_str!("queries.sql").replace("ROWS", &sized(400_000).to_string());
                sqlite.args([":memory:", &queries]);
                sqlite
            }
        };
        command.current_dir(directory).envs([("LC_ALL", "C"), ("PYTHONHASHSEED", "0")]);
        Ok(command)
    }

    /// What the program came to: the same each time, or it went wrong.
    pub fn proof(self, directory: &Path, stdout: &str) -> anyhow::Result<String> {
        if self != Program::Sort {
            ensure!(!stdout.trim().is_empty(), "{} said nothing", self.name());
            return Ok(stdout.to_owned());
        }
        let (mut file, mut hash, mut buffer) =
            (File::open(directory.join(SORTED))?, DefaultHasher::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hash.finish().to_string()),
                count => hash.write(&buffer[..count]),
            }
        }
    }
}

const SORTED: &str = "sorted";

fn installed(name: &str) -> anyhow::Result<PathBuf> {
    bins::system(name).with_context(|| format!("{name} is not installed: run `make setup`"))
}

/// The interpreter itself: what `python3` names may be a script that looks for it.
fn interpreter() -> anyhow::Result<PathBuf> {
    let said = Command::new(installed("python3")?).args(["-c", "import sys; print(sys.executable)"]).output()?;
    ensure!(said.status.success(), "python3 does not run: {}", String::from_utf8_lossy(&said.stderr));
    Ok(String::from_utf8(said.stdout)?.trim().into())
}

fn lay_out(path: &Path, lines: u64) -> anyhow::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut dice = Dice::new(1);
    for _ in 0..lines {
        writeln!(file, "{:016x} {:016x} {:032x}", dice.roll(), dice.roll(), dice.roll())?;
    }
    Ok(file.into_inner()?.sync_all()?)
}
