//! One guest: a QEMU process, its console's log, and the channel through which it is told what to
//! do.

use super::channel::{Channel, Output};
use super::image::Images;
use super::switch;
use crate::testbed::process::{Process, read_lossy};
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a guest may take to boot: seconds of work, on a machine that may have other things to
/// do.
const BOOT: Duration = Duration::from_secs(240);
/// How long a command may take that is given no limit.
const COMMAND: Duration = Duration::from_secs(120);

/// What a guest is to be.
pub struct Machine<'a> {
    pub name: &'a str,
    /// Its place at the switch.
    pub number: usize,
    pub wire: &'a Path,
    pub cpus: u32,
    pub megabytes: u32,
    pub images: &'a Images,
    /// Where its sockets are.
    pub dir: &'a Path,
    /// Where its console's log is kept.
    pub logs: &'a Path,
}

pub struct Guest {
    pub name: String,
    /// Kernel messages and journal.
    pub log: PathBuf,
    qemu: Process,
    channel: Channel,
}

impl Guest {
    /// Starts it; [`Guest::wait_up`] waits until it has booted. It ends when dropped.
    pub fn boot(machine: &Machine<'_>) -> anyhow::Result<Guest> {
        let Machine { name, images, .. } = machine;
        let socket = machine.dir.join(format!("{name}.channel"));
        // Of a boot before.
        let _ = std::fs::remove_file(&socket);
        let log = machine.logs.join(format!("{name}.log"));
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-name", name, "-nodefaults", "-display", "none", "-no-reboot"]);
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", &machine.cpus.to_string()]);
        qemu.args(["-m", &machine.megabytes.to_string()]);
        qemu.arg("-kernel").arg(images.path("vmlinuz")).arg("-initrd").arg(images.path("initrd"));
        qemu.args(["-append", &format!("console=ttyS0 panic=-1 quiet net.ifnames=0 systemd.hostname={name}")]);
        // Appended: what a boot before has said is of use too.
        qemu.arg("-chardev").arg(format!("file,id=console,append=on,path={}", log.display()));
        qemu.args(["-serial", "chardev:console", "-device", "virtio-rng-pci"]);
        let disk = |file: &str, id: &str| {
            let path = images.path(file);
            format!("file={},id={id},format=raw,if=virtio,snapshot=on,cache=unsafe", path.display())
        };
        qemu.args(["-drive", &disk("root.img", "root"), "-drive", &disk("payload.img", "payload")]);
        qemu.arg("-chardev").arg(format!("socket,id=channel,server=on,wait=off,path={}", socket.display()));
        qemu.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=channel,name=annex"]);
        qemu.args([
            "-netdev",
            &format!("stream,id=wire,server=off,addr.type=unix,addr.path={}", machine.wire.display()),
        ]);
        qemu.args(["-device", &format!("virtio-net-pci,netdev=wire,mac={}", switch::mac(machine.number))]);
        let qemu = Process::start(name, qemu, machine.dir);
        let channel = Channel::connect(&socket, Duration::from_secs(20)).with_context(|| qemu.log())?;
        Ok(Guest { name: (*name).into(), log, qemu, channel })
    }

    pub fn wait_up(&self) -> anyhow::Result<()> {
        self.channel.wait_up(BOOT).with_context(|| format!("{}\n{}", self.name, self.last_words()))
    }

    /// Runs a shell script; any exit code will do.
    pub fn run(&self, script: &str, limit: Duration) -> anyhow::Result<Output> {
        self.channel.run(script, limit).with_context(|| format!("on {}: {script}", self.name))
    }

    /// Runs a shell script that must succeed; what it wrote.
    pub fn sh(&self, script: &str) -> anyhow::Result<String> {
        self.sh_within(COMMAND, script)
    }

    pub fn sh_within(&self, limit: Duration, script: &str) -> anyhow::Result<String> {
        let Output { code, stdout, stderr } = self.run(script, limit)?;
        ensure!(code == 0, "on {}: exit code {code} of: {script}\n{stdout}{stderr}", self.name);
        Ok(stdout)
    }

    /// Writes a file.
    pub fn put(&self, path: &str, text: &str) -> anyhow::Result<()> {
        self.channel.put(path, text).with_context(|| format!("on {}", self.name))
    }

    /// The last the journal and the kernel said.
    pub fn last_words(&self) -> String {
        let text = read_lossy(&self.log);
        let lines: Vec<_> = text.lines().collect();
        format!(
            "--- {} ({}) ---\n{}\n",
            self.name,
            self.log.display(),
            lines[lines.len().saturating_sub(30)..].join("\n")
        )
    }

    /// Its kernel met a fault of its own, which no program can bring about. QEMU may: its threads
    /// of a guest with several CPUs run code that the guest's kernel has altered already, a
    /// breakpoint before 8.1, half an instruction at any time.
    pub fn kernel_has_failed(&self) -> bool {
        let log = read_lossy(&self.log);
        ["int3: 0000 [#", "double fault: 0000 [#", "Kernel panic - not syncing"].iter().any(|sign| log.contains(sign))
    }

    /// What the loads that have run on it have written, and how they ended; nothing where that
    /// can't be had any more.
    pub fn said_by_loads(&self) -> String {
        let script = "cd /run && for file in *.out *.err *.code; do [ -s $file ] && echo \"--- $file ---\" && tail -c 4000 $file; done";
        self.run(script, Duration::from_secs(20)).map_or(String::new(), |output| output.stdout)
    }

    /// Takes its power away.
    pub fn power_off(mut self) {
        self.qemu.kill();
    }
}
