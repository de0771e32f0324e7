//! The Debian packages, as an administrator meets them: installed, configured, upgraded while a
//! program has its memory away, removed, purged.

use crate::vm::guest::Guest;
use crate::vm::lab::{Lab, address};
use crate::vm::load::Load;
use anyhow::{Context, ensure};

/// Faults that are to be served between one disturbance and the next.
const FAULTS: u64 = 250;
/// Where the payload has the packages that were built, and a later version of them.
const THIS: &str = "/payload/packages/this";
const NEXT: &str = "/payload/packages/next";
/// What is there of annex, by name.
const TRACES: &str =
    "find / /run -xdev -path /var/log -prune -o -name '*annex*' -print | sort; getent group annex || true";

/// Installing starts nothing, upgrading stops nothing, removing stops in order, and purging leaves
/// nothing.
pub fn under_load(lab: &mut Lab) -> anyhow::Result<()> {
    lab.power_off_all();
    lab.up(2)?;
    let client = lab.client()?;
    let donors = [lab.donor(1)?, lab.donor(2)?];
    let all = [client, donors[0], donors[1]];
    for guest in all {
        without_annex(guest)?;
    }
    let before = all.iter().map(|guest| guest.sh(TRACES)).collect::<anyhow::Result<Vec<_>>>()?;

    for (donor, nth) in donors.into_iter().zip(1..) {
        install(donor, "annex-agent", &["annex-agent"])?;
        // The last one is for guests, which are smaller than what stays available by default.
        donor.sh(&format!(
            "sed -i -e 's/^listen = .*/listen = \"{}:7411\"/' -e 's/^insecure = .*/insecure = true/' \
                    -e 's/^# capacity = .*/capacity = \"256M\"/' -e 's/^# headroom = .*/headroom = \"64M\"/' /etc/annex/agent.toml
             systemctl enable --now annex-agent",
            address(nth)
        ))?;
    }
    install(client, "annexd", &["annexd", "annex"])?;
    // Emulated machines take their time to start an agent.
    client.sh(&format!(
        "sed -i -e 's/donor-a.example/{}/' -e 's/donor-b.example/{}/' -e 's/^lost_after = .*/lost_after = \"60s\"/' /etc/annex/annexd.toml
         systemctl enable --now annexd",
        address(1),
        address(2)
    ))?;

    let began = client.sh("date +%s")?.trim().to_owned();
    let load = Load::stress(client, 12)?;
    lab.wait_faults(load.name(), 2 * FAULTS)?;
    lab.wait_whole()?;
    for donor in donors {
        upgrade(donor, "annex-agent", &["annex-agent"])?;
        lab.wait_faults(load.name(), FAULTS)?;
        lab.wait_whole()?;
    }
    upgrade(client, "annexd", &["annexd", "annex"])?;
    let app = lab.wait_faults(load.name(), FAULTS)?;
    ensure!(app.evicted > 0, "the program's memory came back: {app:?}");
    let said = format!("! journalctl -u annexd --since @{began} | grep -E");
    client.sh(&format!("{said} 'gets a new replica on'")).context("an upgraded agent has what it had")?;
    client.sh(&format!("{said} 'bringing the memory of all apps back'")).context("an upgrade stops nothing")?;

    // With the program's memory away: it comes back first.
    let said = client.sh("dpkg --remove annexd annex")?;
    ensure!(said.contains("annexd: it ends when"), "what the removal waits for is not said: {said}");
    println!("{:?}", load.end()?);
    for donor in donors {
        let said = donor.sh("dpkg --remove annex-agent")?;
        ensure!(said.contains("is empty"), "what the removal waits for is not said: {said}");
    }
    for (guest, before) in all.iter().zip(before) {
        guest
            .sh("test -d /etc/annex && dpkg --purge annex annexd annex-agent && ! systemctl cat annexd annex-agent")?;
        let after = guest.sh(TRACES)?;
        ensure!(after == before, "on {} the purge leaves other files than there were:\n{before}\n{after}", guest.name);
    }
    // These guests are of no use to others.
    lab.power_off_all();
    Ok(())
}

/// Takes away what the lab has put there in place of packages.
fn without_annex(guest: &Guest) -> anyhow::Result<()> {
    guest
        .sh(&format!(
            "test -d {THIS} || {{ echo 'there are no packages: run `make deb`' >&2; exit 1; }}
             rm -rf /usr/bin/annexd /usr/bin/annex-agent /usr/bin/annex /etc/systemd/system/annex* /run/annex
             rm -f /usr/lib/sysusers.d/annex.conf /usr/lib/tmpfiles.d/annex.conf
             groupdel annex
             systemctl daemon-reload"
        ))
        .map(drop)
}

fn install(guest: &Guest, unit: &str, packages: &[&str]) -> anyhow::Result<()> {
    guest.sh(&format!("dpkg --install {}", files(THIS, packages)))?;
    let idle = format!("! systemctl is-active {unit} && ! systemctl is-enabled {unit}");
    guest.sh(&idle).context("the installation started or enabled the unit").map(drop)
}

/// Another main process, of the program that is installed now, takes over.
fn upgrade(guest: &Guest, unit: &str, packages: &[&str]) -> anyhow::Result<()> {
    guest
        .sh(&format!(
            "set -e
             main() {{ systemctl show -P MainPID {unit}; }}
             before=$(main)
             dpkg --install {}
             [ $(main) != $before ]
             systemctl is-active {unit}
             cmp /proc/$(main)/exe /usr/bin/{unit}",
            files(NEXT, packages)
        ))
        .map(drop)
}

fn files(folder: &str, packages: &[&str]) -> String {
    packages.iter().map(|package| format!("{folder}/{package}_*.deb ")).collect()
}
