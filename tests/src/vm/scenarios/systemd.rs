//! annexd and annex-agent under a real systemd: killed, upgraded, restarted, while programs page at
//! full rate.

use crate::vm::guest::Guest;
use crate::vm::lab::{Lab, Settings};
use crate::vm::load::Load;
use anyhow::{Context, ensure};

/// Faults that are to be served between one disturbance and the next.
const FAULTS: u64 = 250;
const TCP: Settings = Settings { of_donors: "transport = \"tcp\"", lost_after: "60s", kv: false };

/// However annexd ends, systemd's store has what the program's memory depends on, and the next
/// annexd goes on with it.
pub fn annexd(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(2, &TCP)?;
    let client = lab.client()?;
    let began = client.sh("date +%s")?.trim().to_owned();
    let load = Load::stress(client, 12)?;
    lab.wait_faults("load", 2 * FAULTS)?;
    for _ in 0..2 {
        // The whole control group, annexd's keeper included.
        succeeded_by_another(client, "annexd", "systemctl kill -s SIGKILL annexd")?;
        lab.wait_faults("load", FAULTS)?;
    }
    for (how, upgrade) in [("reload", false), ("restart", true)] {
        if upgrade {
            client.sh("cp /usr/bin/annexd /usr/bin/annexd.new && echo another build >>/usr/bin/annexd.new && mv /usr/bin/annexd.new /usr/bin/annexd")?;
        }
        succeeded_by_another(client, "annexd", &format!("systemctl {how} annexd"))?;
        let app = lab.wait_faults("load", FAULTS)?;
        ensure!(app.evicted > 0, "the program's memory came back: {app:?}");
    }
    client.sh("cmp /proc/$(systemctl show -P MainPID annexd)/exe /usr/bin/annexd")?;
    let stops = format!("! journalctl -u annexd --since @{began} | grep 'bringing the memory of all apps back'");
    client.sh(&stops).context("a restart is no reason to bring memory back")?;
    println!("{:?}", load.end()?);
    Ok(())
}

/// However an agent ends, the next one has the same slabs with the same bytes: nothing is made
/// anew.
pub fn agent(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(2, &TCP)?;
    let (client, donor) = (lab.client()?, lab.donor(1)?);
    let load = Load::stress(client, 12)?;
    lab.wait_faults("load", 2 * FAULTS)?;
    lab.wait_whole()?;
    let began = client.sh("date +%s")?.trim().to_owned();
    for how in ["kill -s SIGKILL", "restart"] {
        succeeded_by_another(donor, "annex-agent", &format!("systemctl {how} annex-agent"))?;
        lab.wait_faults("load", FAULTS)?;
        lab.wait_whole()?;
    }
    let rebuilt = format!("! journalctl -u annexd --since @{began} | grep 'gets a new replica on'");
    client.sh(&rebuilt).context("an agent that comes back has what it had")?;
    donor.sh("journalctl -u annex-agent -b | grep 'taken over from systemd'")?;
    println!("{:?}", load.end()?);
    Ok(())
}

/// Runs a command after which the unit has another main process.
fn succeeded_by_another(guest: &Guest, unit: &str, command: &str) -> anyhow::Result<()> {
    guest.sh(&format!(
        "main() {{ systemctl show -P MainPID {unit}; }}
         before=$(main)
         {command}
         until [ $(main) != $before ] && [ $(main) != 0 ] && systemctl -q is-active {unit}; do sleep 0.1; done"
    ))?;
    Ok(())
}
