//! What keeps RDMA from working where there is a device, met as people meet it.

use super::verbs::over;
use crate::vm::lab::{Lab, Settings};
use crate::vm::load::Load;
use annex_shared::api::Status;
use annex_shared::fabric::Transport;
use anyhow::ensure;

/// Faults that are to be served in each state.
const FAULTS: u64 = 200;
const DROP_IN: &str = "/run/systemd/system/annexd.service.d/unlocked.conf";

/// Each time the pages go on over TCP, `annex status` says why, and RDMA is back when the trouble is over.
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

/// Without the right to lock memory, and to raise the limit on it, annexd does not start, and says what it needs: what a device works on is locked too.
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
