//! What keeps RDMA from working where there is a device, met as people meet it.

use super::verbs::over;
use crate::vm::guest::Guest;
use crate::vm::lab::{DEVICE, Lab, Settings};
use crate::vm::load::Load;
use annex_shared::api::Status;
use annex_shared::transport::Transport;
use anyhow::ensure;

/// Faults that are to be served in each state.
const FAULTS: u64 = 200;
/// A line of annexd's file that does not fit this machine, and what the donor's reason says then.
const AT_THE_CLIENT: [(&str, &str); 4] = [
    ("device = \"mlx5_7\"", "no RDMA device 'mlx5_7' here; there are: rxe0, rxe1: set device to one of these"),
    ("device = \"rxe1\"", "port 1 of RDMA device rxe1 is DOWN: set its network interface up"),
    (
        "device = \"rxe0\"\nport = 2",
        "RDMA device rxe0 has no port 2: it has 1, numbered from 1; set port to one of them",
    ),
    ("gid_index = 99", "has no GID at gid_index = 99; it has 0 ("),
];
/// The same in the agent's file.
const AT_THE_DONOR: [(&str, &str); 2] = [
    ("device = \"mlx5_7\"", "the donor offers no RDMA (\"no RDMA device 'mlx5_7' here; there are: rxe0: set device"),
    // The link's own address, from which no way leads to the client's.
    ("gid_index = 0", "set gid_index to an address in the peer's network, and look whether it answers `ping -I fe80:"),
];
const DROP_IN: &str = "/run/systemd/system/annexd.service.d/unlocked.conf";

/// Each time the pages go on over TCP, `annex status` says why, and RDMA is back when the trouble
/// is over.
pub fn of_verbs(lab: &mut Lab) -> anyhow::Result<()> {
    lab.up(2)?;
    [1, 2].iter().try_for_each(|nth| lab.lend(*nth, ""))?;
    unlockable(lab)?;
    lab.block_roce(1);
    lab.borrow(&[1, 2], &Settings::default())?;
    let status = lab.wait_status("tcp to the donor behind a firewall", |s| {
        over(s, Transport::Tcp) == 1 && over(s, Transport::Verbs) == 1
    })?;
    says(&status, Transport::Tcp, "UDP port 4791")?;
    let load = Load::stress(lab.client()?, 12)?;
    lab.wait_faults("load", FAULTS)?;
    lab.block_roce(2);
    let status = lab.wait_status("tcp to both donors", |s| over(s, Transport::Tcp) == 2)?;
    says(&status, Transport::Tcp, "UDP port 4791")?;
    lab.wait_faults("load", FAULTS)?;
    lab.mend(1);
    lab.mend(2);
    lab.wait_status("verbs to both donors", |s| over(s, Transport::Verbs) == 2)?;
    lab.wait_faults("load", FAULTS)?;

    let client = lab.client()?;
    client.sh("ip link set eth0 down; sleep 3; ip link set eth0 up")?;
    lab.wait_status("verbs to both donors, with the port up again", |s| over(s, Transport::Verbs) == 2)?;
    lab.wait_faults("load", FAULTS)?;
    println!("{:?}", load.end()?);
    lab.wait_whole()?;
    let log = client.sh("journalctl --no-pager -u annexd")?;
    let said = log.lines().find(|line| line.contains("RDMA device rxe0: port 1 went down"));
    ensure!(said.is_some(), "the log does not tell of the port: {log}");
    // What was on its way to both donors when the port went down went back into the program.
    ensure!(!log.contains(" gone: "), "pages that nobody misses are said to be gone: {log}");
    Ok(())
}

/// What is configured wrongly, on either side, is said with what to set it to, and TCP makes do
/// meanwhile.
pub fn of_settings(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(1, &Settings::default())?;
    lab.wait_status("verbs to the donor", |s| over(s, Transport::Verbs) == 1)?;
    let (client, donor) = (lab.client()?, lab.donor(1)?);
    // A second device, whose port is down as long as its interface is.
    client
        .sh("modprobe dummy numdummies=0; ip link add dummy0 type dummy; rdma link add rxe1 type rxe netdev dummy0")?;
    let annexd = Configured::new(client, "annexd", "/etc/annex/annexd.toml")?;
    let agent = Configured::new(donor, "annex-agent", "/etc/annex/agent.toml")?;
    for (line, words) in AT_THE_CLIENT {
        annexd.set("[pool.verbs]", line)?;
        is_said(lab, line, words)?;
    }
    annexd.set("[pool.verbs]", "device = \"rxe0\"")?;
    for (line, words) in AT_THE_DONOR {
        agent.set("[verbs]", line)?;
        is_said(lab, line, words)?;
    }
    agent.set("[verbs]", "")?;
    lab.wait_status("verbs with nothing wrong any more", |s| over(s, Transport::Verbs) == 1)?;

    client.sh("rdma link delete rxe1; ip link delete dummy0; rdma link delete rxe0; systemctl restart annexd")?;
    is_said(lab, "no device", "no RDMA device here (`rdma link` lists none): load its driver")?;
    client.sh(&format!("rdma link add {DEVICE} type rxe netdev eth0"))?;
    lab.wait_status("verbs with the device back", |s| over(s, Transport::Verbs) == 1).map(drop)
}

/// A program on a guest, and its configuration as it was found.
struct Configured<'a> {
    guest: &'a Guest,
    unit: &'a str,
    file: &'a str,
    found: String,
}

impl<'a> Configured<'a> {
    fn new(guest: &'a Guest, unit: &'a str, file: &'a str) -> anyhow::Result<Configured<'a>> {
        Ok(Configured { guest, unit, file, found: guest.sh(&format!("cat {file}"))? })
    }

    /// Restarts it with these lines below a heading of what was found.
    fn set(&self, heading: &str, lines: &str) -> anyhow::Result<()> {
        self.guest.put(self.file, &self.found.replacen(heading, &format!("{heading}\n{lines}"), 1))?;
        self.guest.sh(&format!("systemctl restart {}", self.unit)).map(drop)
    }
}

/// TCP is used, and these words are in the reason.
fn is_said(lab: &Lab, of: &str, words: &str) -> anyhow::Result<()> {
    let said = |s: &Status| over(s, Transport::Tcp) == 1 && s.donors.iter().any(|d| d.why.contains(words));
    let status = lab.wait_status(&format!("{words:?} to be said of {of:?}"), said)?;
    says(&status, Transport::Tcp, words)
}

/// Without the right to lock memory, and to raise the limit on it, annexd does not start, and says
/// what it needs: what a device works on is locked too.
fn unlockable(lab: &Lab) -> anyhow::Result<()> {
    let client = lab.client()?;
    client.put(DROP_IN, "[Service]\nCapabilityBoundingSet=~CAP_IPC_LOCK CAP_SYS_RESOURCE\nLimitMEMLOCK=64K\n")?;
    client.sh("systemctl daemon-reload")?;
    ensure!(lab.borrow(&[1, 2], &Settings::default()).is_err(), "annexd started with 64 KiB of lockable memory");
    let said = client.sh("journalctl --no-pager -u annexd | grep 'failed to lock'")?;
    println!("{}", said.trim_end());
    ensure!(said.contains("LimitMEMLOCK=infinity"), "no remedy: {said}");
    client.sh(&format!("rm {DROP_IN}; systemctl daemon-reload; systemctl reset-failed")).map(drop)
}

/// Every donor that is reached this way says so, with these words among the reasons.
fn says(status: &Status, transport: Transport, words: &str) -> anyhow::Result<()> {
    for donor in status.donors.iter().filter(|d| d.transport == Some(transport)) {
        println!("{}: {}", donor.name, donor.why);
        ensure!(donor.why.contains(words), "it does not say {words:?}: {}", donor.why);
    }
    Ok(())
}
