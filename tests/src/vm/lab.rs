//! The guests together: a client and donors at one switch, each with annex installed as a package
//! would install it.

use super::guest::{Guest, Machine};
use super::image::Images;
use super::inside::Redis;
use super::switch::Switch;
use annex_shared::api::{AppInfo, DonorState, Status};
use anyhow::{Context, bail, ensure};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// As many as there are replicas, and one to repair onto.
pub const DONORS: usize = 3;
/// Soft-RoCE's device.
pub const DEVICE: &str = "rxe0";

/// How annexd is to be configured, where our example would not do.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Put into each donor's table.
    pub of_donors: &'static str,
    /// Emulated machines take their time to start an agent.
    pub lost_after: &'static str,
    /// With the KV API, on a socket where `inside::Redis` finds it.
    pub kv: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { of_donors: "", lost_after: "60s", kv: false }
    }
}

pub struct Lab {
    // Dropped in this order: the guests end before their sockets go.
    guests: Vec<Option<Guest>>,
    switch: Switch,
    images: Images,
    logs: PathBuf,
    dir: TempDir,
}

impl Lab {
    /// No guest runs yet. `images`: what `image.sh` has made; `logs` is emptied.
    pub fn new(images: &Path, logs: &Path) -> anyhow::Result<Lab> {
        let dir = tempfile::Builder::new().prefix("annex-vm-").tempdir()?;
        if logs.exists() {
            std::fs::remove_dir_all(logs)?;
        }
        std::fs::create_dir_all(logs)?;
        let logs = logs.canonicalize()?;
        let images = Images::prepare(images, dir.path())?;
        let switch = Switch::new(1 + DONORS, dir.path())?;
        Ok(Lab { guests: (0..=DONORS).map(|_| None).collect(), switch, images, logs, dir })
    }

    /// The client and that many donors, with annex running on all.
    pub fn start(&mut self, donors: usize, settings: &Settings) -> anyhow::Result<()> {
        self.up(donors)?;
        let all: Vec<usize> = (1..=donors).collect();
        all.iter().try_for_each(|nth| self.lend(*nth, ""))?;
        self.borrow(&all, settings)
    }

    /// Where sockets and the payload are, for as long as the lab lives.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where the guests' consoles go.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// The client, and the donors 1 to `donors`, running, with nothing of annex started.
    pub fn up(&mut self, donors: usize) -> anyhow::Result<()> {
        let mut booted = Vec::new();
        for n in 0..=donors {
            self.switch.mend(n);
            if self.guests[n].is_none() {
                self.guests[n] = Some(self.boot(n)?);
                booted.push(n);
            }
        }
        for n in booted {
            let guest = self.guest(n)?;
            guest.wait_up()?;
            install(guest, n)?;
        }
        for n in 0..=donors {
            clear(self.guest(n)?)?;
        }
        Ok(())
    }

    fn boot(&self, n: usize) -> anyhow::Result<Guest> {
        let (cpus, megabytes) = if n == 0 { (2, 1024) } else { (1, 640) };
        Guest::boot(&Machine {
            name: &name(n),
            number: n,
            wire: self.switch.socket(n),
            cpus,
            megabytes,
            images: &self.images,
            dir: self.dir.path(),
            logs: &self.logs,
        })
    }

    pub fn client(&self) -> anyhow::Result<&Guest> {
        self.guest(0)
    }

    /// Donors count from 1.
    pub fn donor(&self, nth: usize) -> anyhow::Result<&Guest> {
        ensure!(nth > 0, "donors count from 1");
        self.guest(nth)
    }

    fn guest(&self, n: usize) -> anyhow::Result<&Guest> {
        self.guests.get(n).and_then(Option::as_ref).with_context(|| format!("{} is off", name(n)))
    }

    /// By its name, which is its host name too.
    pub fn named(&self, name: &str) -> anyhow::Result<&Guest> {
        self.running().find(|guest| guest.name == name).with_context(|| format!("no guest {name} runs"))
    }

    pub fn running(&self) -> impl Iterator<Item = &Guest> {
        self.guests.iter().flatten()
    }

    /// Takes a donor's power away.
    pub fn power_off(&mut self, nth: usize) -> anyhow::Result<()> {
        self.guests[nth].take().with_context(|| format!("{} is off", name(nth)))?.power_off();
        Ok(())
    }

    pub fn power_off_all(&mut self) {
        self.guests.iter_mut().filter_map(Option::take).for_each(Guest::power_off);
    }

    /// From now on, what is sent to and from a donor is lost.
    pub fn cut(&self, nth: usize) {
        self.switch.cut(nth);
    }

    /// From now on, what is sent to and from a donor over RoCE is lost, and nothing else.
    pub fn block_roce(&self, nth: usize) {
        self.switch.block_roce(nth);
    }

    pub fn mend(&self, nth: usize) {
        self.switch.mend(nth);
    }

    /// Starts a donor's agent with our example of a configuration, and `more` after it.
    pub fn lend(&self, nth: usize, more: &str) -> anyhow::Result<()> {
        let example = include_str!("../../../systemd/agent.toml");
        let own = format!(
            "listen = \"{}:7411\"\ninsecure = true\ncapacity = \"256M\"\nheadroom = \"64M\"\nslab_size = \"16M\"\n",
            address(nth)
        );
        let kept = example.lines().filter(|line| !line.starts_with("listen") && !line.starts_with("insecure"));
        let config = format!("{own}{more}\n{}\n", kept.collect::<Vec<_>>().join("\n"));
        let donor = self.donor(nth)?;
        donor.put("/etc/annex/agent.toml", &config)?;
        donor.sh("annex-agent check-config /etc/annex/agent.toml && systemctl start annex-agent").map(drop)
    }

    /// Starts annexd with our example of a configuration and these donors, and waits until all are
    /// up.
    pub fn borrow(&self, donors: &[usize], settings: &Settings) -> anyhow::Result<()> {
        let example = include_str!("../../../systemd/annexd.toml");
        let (above, _) = example.split_once("[[pool.donor]]").context("the example has donors")?;
        let Settings { of_donors, lost_after, kv } = settings;
        let table = |nth: &usize| {
            format!("[[pool.donor]]\naddress = \"{}:7411\"\nname = \"{}\"\n{of_donors}\n", address(*nth), name(*nth))
        };
        let above = above.replace("lost_after = \"5s\"", &format!("lost_after = \"{lost_after}\""));
        let above = match donors.len() {
            1 => above.replace("replicas = 2", "replicas = 1"),
            _ => above,
        };
        // A refused SET ends the client: two donors that are slow at a time are not to look as if
        // both were away.
        let above = if *kv { above.replace("away_after = \"300ms\"", "away_after = \"3s\"") } else { above };
        let of_kv = format!("[kv]\nenabled = true\nlisten = []\nsocket = \"{}/redis.sock\"\n", Redis::DIR_OF_KV);
        let more = if *kv { &of_kv } else { "" };
        let config = format!("{above}{}{more}", donors.iter().map(table).collect::<String>());
        let client = self.client()?;
        client.put("/etc/annex/annexd.toml", &config)?;
        client.sh("annexd check-config /etc/annex/annexd.toml && systemctl start annexd")?;
        let up = donors.len();
        self.wait_status("all donors to be up", |s| s.donors.iter().filter(|d| d.state == DonorState::Up).count() == up)
            .map(drop)
    }

    pub fn status(&self) -> anyhow::Result<Status> {
        let text = self.client()?.sh("annex status --json")?;
        serde_json::from_str(&text).with_context(|| format!("annex status --json: {text}"))
    }

    pub fn app(&self, name: &str) -> anyhow::Result<AppInfo> {
        let status = self.status()?;
        status.apps.into_iter().find(|app| app.name == name).with_context(|| format!("annexd has no app {name}"))
    }

    /// Until annexd has served that many more faults of the app, counted from now.
    pub fn wait_faults(&self, app: &str, more: u64) -> anyhow::Result<AppInfo> {
        let served = |s: &Status| s.apps.iter().find(|a| a.name == app).map(|a| a.faults.major);
        let before = served(&self.wait_status(&format!("app {app}"), |s| served(s).is_some())?).unwrap_or(0);
        let so = |s: &Status| served(s).is_some_and(|n| n >= before + more);
        self.wait_status(&format!("{more} more faults of app {app}"), so)?;
        self.app(app)
    }

    /// Until all replicas of every page are there, on donors that are up.
    pub fn wait_whole(&self) -> anyhow::Result<Status> {
        self.wait_status("every page to have all its replicas", |s| {
            let pool = &s.pool;
            let missing = pool.degraded_extents + pool.syncing_replicas + pool.stale_replicas + pool.moving_replicas;
            missing + pool.lost_extents == 0 && pool.lost_pages == 0
        })
    }

    /// Until the status is so; while annexd does not answer it is not. Two minutes at most.
    pub fn wait_status(&self, what: &str, so: impl Fn(&Status) -> bool) -> anyhow::Result<Status> {
        let started = Instant::now();
        loop {
            let status = self.status();
            match status {
                Ok(status) if so(&status) => return Ok(status),
                status if started.elapsed() > Duration::from_secs(120) => {
                    bail!("waited in vain for {what}: {status:#?}")
                }
                _ => std::thread::sleep(Duration::from_millis(300)),
            }
        }
    }
}

/// `client`, `donor1`, `donor2`…
pub fn name(n: usize) -> String {
    if n == 0 { "client".into() } else { format!("donor{n}") }
}

pub fn address(n: usize) -> String {
    format!("10.77.0.{}", n + 1)
}

/// Puts annex where a package would put it, and gives the guest its address and its RDMA device.
fn install(guest: &Guest, n: usize) -> anyhow::Result<()> {
    let script = format!(
        "set -e
         install -m755 /payload/bin/annexd /payload/bin/annex-agent /payload/bin/annex /usr/bin/
         install -Dm644 /payload/systemd/sysusers.d/annex.conf /usr/lib/sysusers.d/annex.conf
         install -Dm644 /payload/systemd/tmpfiles.d/annex.conf /usr/lib/tmpfiles.d/annex.conf
         install -Dm644 -t /etc/systemd/system /payload/systemd/*.service
         systemd-sysusers annex.conf
         systemd-tmpfiles --create annex.conf
         systemctl daemon-reload
         ip addr add {}/24 dev eth0
         ip link set eth0 mtu 4200 up
         modprobe -a rdma_ucm rdma_rxe
         rdma link add {DEVICE} type rxe netdev eth0
         until ibv_devinfo -d {DEVICE} | grep -q PORT_ACTIVE; do sleep 0.2; done",
        address(n)
    );
    guest.sh(&script).map(drop)
}

/// Stops what a scenario before has left, hard.
fn clear(guest: &Guest) -> anyhow::Result<()> {
    guest
        .sh("systemctl kill -s SIGKILL 'load*' redis values 2>/dev/null
             systemctl stop 'load*' redis values 2>/dev/null
             systemctl stop annexd annex-agent 2>/dev/null
             systemctl reset-failed
             rm -rf /run/annex/* /run/load* /run/values*")
        .map(drop)
}
