//! Programs under annex in a guest, which know what their memory must hold: the stress program, and
//! a redis-server full of known values. They run as transient units, so the guest's systemd says
//! how they ended.

use super::guest::Guest;
use super::inside::Redis;
use crate::redis::Verdict;
use anyhow::{Context, ensure};
use std::path::Path;
use std::time::Duration;

/// How long a load may take to come to its end once it was asked to, verifying everything once
/// more.
const END: Duration = Duration::from_secs(600);

/// A program that runs as the unit and the app of the same name.
pub struct Load<'a> {
    guest: &'a Guest,
    name: &'static str,
}

/// What the stress program says at its end.
#[derive(Debug, serde::Deserialize)]
pub struct Summary {
    pub checks: u64,
    pub errors: u64,
}

impl<'a> Load<'a> {
    /// Starts the stress program with that much memory, a quarter of it resident, until it is asked
    /// to end.
    pub fn stress(guest: &'a Guest, megabytes: u64) -> anyhow::Result<Load<'a>> {
        let program =
            format!("/payload/bin/annex-stress --size {megabytes}M --threads 2 --seconds 0 --stall 150 --dir /var/tmp");
        start(guest, "load", megabytes / 4, &program)
    }

    /// Starts a program that reads and writes random pages of that much memory, a quarter of it
    /// resident, until it is killed.
    pub fn accesses(guest: &'a Guest, megabytes: u64) -> anyhow::Result<Load<'a>> {
        let program = format!("/payload/bin/annex-access pattern zipf --size {megabytes}M --seconds 3600");
        start(guest, "load", megabytes / 4, &program)
    }

    /// Starts a program that reads random pages of that much memory, a quarter of it resident,
    /// until it is killed.
    pub fn reads(guest: &'a Guest, megabytes: u64) -> anyhow::Result<Load<'a>> {
        let program = format!("/payload/bin/annex-access pattern random --size {megabytes}M --seconds 3600");
        start(guest, "load", megabytes / 4, &program)
    }

    /// Another of that name can be started afterwards.
    pub fn kill(self) -> anyhow::Result<()> {
        let script = "systemctl kill -s SIGKILL $1
                      while systemctl -q is-active $1; do sleep 0.1; done
                      systemctl reset-failed $1 || true";
        self.guest.sh(&format!("set -- {}; {script}", self.name)).map(drop)
    }

    /// Starts a redis-server that is to hold so many values, a quarter of that resident.
    pub fn redis(guest: &'a Guest, megabytes: u64) -> anyhow::Result<Load<'a>> {
        let server = crate::redis::server(Path::new(Redis::DIR));
        let words = std::iter::once(server.get_program()).chain(server.get_args());
        let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
        guest.sh(&format!("mkdir -p {}", Redis::DIR))?;
        start(guest, "redis", megabytes / 4, &words.join(" "))
    }

    /// A load that was started earlier.
    pub fn running(guest: &'a Guest, name: &'static str) -> Load<'a> {
        Load { guest, name }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Ends the stress program: how much it has checked. No byte was wrong.
    pub fn end(self) -> anyhow::Result<Summary> {
        self.guest.sh(&format!("systemctl kill --kill-whom=main -s SIGTERM {}", self.name))?;
        let summary: Summary = self.said()?;
        ensure!(summary.errors == 0 && summary.checks > 0, "{} found wrong bytes: {summary:?}", self.name);
        Ok(summary)
    }

    pub fn is_running(&self) -> anyhow::Result<bool> {
        Ok(self.guest.sh(&format!("systemctl is-active {} || true", self.name))?.trim() == "active")
    }

    /// What values that were begun have come to, when they come to their end. None was wrong.
    pub fn verdict(self) -> anyhow::Result<Verdict> {
        let verdict: Verdict = self.said()?;
        ensure!(verdict.wrong == 0, "wrong values: {verdict:?}");
        Ok(verdict)
    }

    /// What it says at its end, which is a good one.
    fn said<T: serde::de::DeserializeOwned>(&self) -> anyhow::Result<T> {
        let Load { guest, name } = self;
        guest.sh_within(END, &format!("while [ ! -s /run/{name}.code ]; do sleep 0.3; done"))?;
        let said = guest.sh(&format!("cat /run/{name}.out"))?;
        let code = guest.sh(&format!("cat /run/{name}.code"))?;
        let error = guest.sh(&format!("cat /run/{name}.err"))?;
        ensure!(code.trim() == "0", "{name} failed with {}: {said}{error}", code.trim());
        serde_json::from_str(&said).with_context(|| format!("{name} said {said}{error}"))
    }
}

/// Stores values in the guest's redis-server, or verifies those stored.
pub fn values(guest: &Guest, redis: &Redis) -> anyhow::Result<Verdict> {
    let said =
        guest.sh_within(Duration::from_secs(240), &format!("/payload/bin/annex-vm values {}", redis.arguments()))?;
    let verdict: Verdict = serde_json::from_str(&said).with_context(|| said.clone())?;
    ensure!(verdict.wrong == 0, "redis-server gave wrong values: {verdict:?}");
    Ok(verdict)
}

/// The same, and goes on with it beside what else happens.
pub fn begin_values<'a>(guest: &'a Guest, redis: &Redis) -> anyhow::Result<Load<'a>> {
    run(guest, "values", &format!("/payload/bin/annex-vm values {}", redis.arguments()))
}

fn start<'a>(guest: &'a Guest, name: &'static str, megabytes: u64, program: &str) -> anyhow::Result<Load<'a>> {
    run(guest, name, &format!("annex run --local {megabytes}M --name {name} -- {program}"))
}

fn run<'a>(guest: &'a Guest, name: &'static str, program: &str) -> anyhow::Result<Load<'a>> {
    guest.sh(&format!(
        "rm -f /run/{name}.*
         systemd-run --quiet --unit={name} -p Type=exec -p StandardOutput=file:/run/{name}.out -p StandardError=file:/run/{name}.err \
         -p 'ExecStopPost=/bin/sh -c \"echo $EXIT_STATUS >/run/{name}.code\"' \
         {program}"
    ))?;
    Ok(Load { guest, name })
}
