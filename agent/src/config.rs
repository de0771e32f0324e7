//! What an agent is told: the TOML file, the command line, and the defaults that make it run with
//! neither.
//!
//! [`Config`] is as written. [`Config::resolve`] holds it against the machine and gives [`Terms`],
//! in which every number is checked and final; the rest of the agent knows only those.

use crate::access::AccessConfig;
use crate::hugepages::{HUGE_PAGE, Hugepages};
use crate::lease::Limits;
use crate::pressure::{Host, HostMemory};
use annex_fabric::verbs::DeviceChoice;
use annex_host::log;
use annex_identity::ca::Ca;
use annex_identity::config::{TlsConfig, TlsConfigError};
use annex_identity::identity::{Files, Identity};
use annex_identity::join::signer::{SignerError, open_ca};
use annex_identity::names;
use annex_identity::token::Address;
use annex_metrics::MetricsConfig;
use annex_shared::api::format_bytes;
use annex_shared::config::{ByteSize, ConfigError, LogFormat, TimeSpan};
use annex_shared::wire::{AGENT_PORT, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The most slabs that the agent's unit lets it keep (`FileDescriptorStoreMax=`).
const KEPT_SLABS: u32 = 16384;

/// Where clients on the same host find the agent's memory, unless configured.
pub const SHM_SOCKET: &str = "/run/annex/agent.sock";

/// The configuration file's keys. All are optional.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Address and port for control and data connections; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Allows an address other than loopback without `[tls]`: nothing is encrypted or authenticated
    /// then.
    pub insecure: bool,
    /// Beside TLS takes connections without it, as long as not all clients have certificates.
    pub also_plain: bool,
    /// What clients and listings call this donor; the host name if absent.
    pub name: Option<String>,
    /// The most memory to lend; a quarter of the machine's if absent.
    pub capacity: Option<ByteSize>,
    /// Bytes per slab.
    pub slab_size: ByteSize,
    /// The most memory to lend to one client; all of it if absent.
    pub per_client: Option<ByteSize>,
    /// Available memory that stays with this host; the larger of 512 MiB and 5 % of the machine's
    /// if absent.
    pub headroom: Option<ByteSize>,
    pub hugepages: Hugepages,
    /// Allocates the whole capacity at start and keeps it, instead of slab by slab as they are
    /// lent.
    pub prefault: bool,
    /// Free slabs kept allocated, so that the next lease needs no new memory.
    pub spare_slabs: u32,
    /// A lease that its client does not renew for this long is over. Longer than a client may stand
    /// still without being gone: a virtual machine that is moved or suspended, an annexd whose
    /// programs wait for the next one.
    pub lease_ttl: TimeSpan,
    /// How long clients get to move their pages elsewhere when this host needs a slab back.
    pub recall_deadline: TimeSpan,
    /// How long clients get to bring their pages home when the agent stops.
    pub grace: TimeSpan,
    /// Unix socket over which clients on this host map slabs; empty = none.
    pub shm_socket: PathBuf,
    /// Unix socket for `annex-agent status` and `drain`; empty = none. If absent it lies beside
    /// `shm_socket`.
    pub control_socket: Option<PathBuf>,
    /// Unix socket of the process that holds the agent's memory while the agent is restarted; empty
    /// = none. systemd does that by itself.
    pub keeper: PathBuf,
    /// Connections of clients at once, of all kinds.
    pub max_connections: u32,
    /// Failure-domain labels, such as `rack = "r7"`.
    pub labels: BTreeMap<String, String>,
    /// What is logged, as tracing's filters are written: `info`, `warn`, `annex_agent=debug`.
    pub log: String,
    /// How; the journal's way under systemd and text elsewhere if absent.
    pub log_format: Option<LogFormat>,
    pub tls: TlsConfig,
    pub ca: CaConfig,
    pub access: AccessConfig,
    pub verbs: VerbsConfig,
    pub metrics: MetricsConfig,
    /// Where this host's memory is looked at; tests look elsewhere.
    #[serde(skip)]
    pub host: Host,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), AGENT_PORT),
            insecure: false,
            also_plain: false,
            name: None,
            capacity: None,
            slab_size: ByteSize(64 << 20),
            per_client: None,
            headroom: None,
            hugepages: Hugepages::Off,
            prefault: false,
            spare_slabs: 4,
            lease_ttl: TimeSpan(Duration::from_secs(120)),
            recall_deadline: TimeSpan(Duration::from_secs(30)),
            grace: TimeSpan(Duration::from_secs(2)),
            shm_socket: PathBuf::from(SHM_SOCKET),
            control_socket: None,
            keeper: PathBuf::new(),
            max_connections: 1024,
            labels: BTreeMap::new(),
            log: "info".to_owned(),
            log_format: None,
            tls: TlsConfig::default(),
            ca: CaConfig::default(),
            access: AccessConfig::default(),
            verbs: VerbsConfig::default(),
            metrics: MetricsConfig::default(),
            host: Host::default(),
        }
    }
}

/// `[ca]`: a CA of `annex ca` on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaConfig {
    /// Its folder: hosts join at this agent, and renew their certificates. Absent: it signs none.
    pub dir: Option<PathBuf>,
}

/// `[verbs]`: RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VerbsConfig {
    /// Offers RDMA whenever there is a device for it; one that appears later counts, too. False:
    /// never.
    pub enabled: bool,
    /// As `ibv_devices` lists it. Absent: the first with a port that is up.
    pub device: Option<String>,
    /// From 1. Absent: the first that is up.
    pub port: Option<u8>,
    /// Index in the port's table of GIDs. Absent: RoCE v2 with an IPv4 address, or the nearest to
    /// that.
    pub gid_index: Option<u8>,
}

impl Default for VerbsConfig {
    fn default() -> VerbsConfig {
        VerbsConfig { enabled: true, device: None, port: None, gid_index: None }
    }
}

impl VerbsConfig {
    fn choice(self) -> Option<DeviceChoice> {
        let VerbsConfig { enabled, device, port, gid_index } = self;
        enabled.then_some(DeviceChoice { device, port, gid_index })
    }
}

/// A configuration that can't work on this machine.
#[derive(Debug, thiserror::Error)]
pub enum BadConfig {
    #[error(transparent)]
    File(#[from] ConfigError),
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    #[error(
        "listen = \"{0}\" is not a loopback address, and connections are neither encrypted nor authenticated: \
         set ca, cert and key in [tls], or listen on 127.0.0.1, or set insecure = true if the network is trusted"
    )]
    Exposed(SocketAddr),
    #[error("capacity {} is more than this machine's memory ({}): lend less", format_bytes(*.capacity), format_bytes(*.total))]
    OverMemory { capacity: u64, total: u64 },
    #[error(
        "capacity {} is less than one slab ({}): raise capacity or lower slab_size",
        format_bytes(*.capacity),
        format_bytes(*.slab)
    )]
    UnderSlab { capacity: u64, slab: u64 },
    #[error("per_client {} is less than one slab ({}): no client could lease anything", format_bytes(*.limit), format_bytes(*.slab))]
    PerClientUnderSlab { limit: u64, slab: u64 },
    #[error("slab_size {size} is not a multiple of {unit} bytes between 64 KiB and 1 GiB")]
    SlabSize { size: u64, unit: u64 },
    #[error("lease_ttl {0} is out of range: 100ms to 1h")]
    LeaseTtl(TimeSpan),
    #[error("recall_deadline {0} is out of range: 100ms to 1h")]
    RecallDeadline(TimeSpan),
    #[error("max_connections is 0: no client could connect")]
    NoConnections,
    #[error(
        "hugepages = \"2M\", but this host has no 2 MiB pages reserved: raise vm.nr_hugepages ({need} for the whole \
         capacity), or set hugepages = \"auto\" or \"off\""
    )]
    NoHugepages { need: u64 },
    #[error("name '{0}' is too long: 64 bytes at most")]
    Name(String),
    #[error(
        "dir is set in [ca], and hosts join over TLS only: set ca, cert and key in [tls] too (annex ca issue makes them)"
    )]
    CaWithoutTls,
    #[error("also_plain is set, and without TLS all is plain: set ca, cert and key in [tls] too, or take it out")]
    AlsoPlainWithoutTls,
    #[error("also_plain is set together with [access], which goes by the names in certificates: take one of them out")]
    AlsoPlainWithAccess,
    #[error(
        "[access] goes by the names in clients' certificates, and there are none without TLS: set ca, cert and key in [tls] too"
    )]
    AccessWithoutTls,
    #[error("per_client in [access] has {} for a name, less than one slab ({}): set clients, if it is to get nothing", format_bytes(*.limit), format_bytes(*.slab))]
    AccessUnderSlab { limit: u64, slab: u64 },
    #[error(transparent)]
    Log(#[from] log::FilterError),
}

/// What the agent lends and how, final.
#[derive(Clone, Debug)]
pub struct Terms {
    pub listen: SocketAddr,
    pub name: String,
    pub slab_size: u64,
    pub capacity_slabs: u32,
    /// What `capacity_slabs` can be raised to while the agent runs.
    pub most_slabs: u32,
    pub per_client_slabs: u32,
    pub headroom: u64,
    pub hugepages: Hugepages,
    pub prefault: bool,
    /// Free slabs that keep their memory.
    pub keep_slabs: u32,
    pub lease_ttl: Duration,
    pub recall_deadline: Duration,
    pub grace: Duration,
    /// `None`: shm is not offered.
    pub shm_socket: Option<PathBuf>,
    /// True if the socket's path is the default one: that it can't be had is then a warning only.
    pub shm_is_default: bool,
    /// `None`: there are no `status` and `drain`.
    pub control_socket: Option<PathBuf>,
    pub control_is_default: bool,
    /// `None`: systemd keeps the memory, or nobody does.
    pub keeper: Option<PathBuf>,
    pub max_connections: usize,
    /// `None`: nothing is encrypted.
    pub tls: Option<Files>,
    /// Whether connections without TLS are taken beside those with it.
    pub also_plain: bool,
    /// Where the certificate is renewed. `None`: at this agent itself if it signs, else nowhere.
    pub renew: Option<Address>,
    /// The CA's folder. `None`: this agent signs nothing.
    pub ca: Option<PathBuf>,
    pub access: AccessConfig,
    pub labels: BTreeMap<String, String>,
    pub log: String,
    pub log_format: Option<LogFormat>,
    /// `None`: RDMA is not offered.
    pub verbs: Option<DeviceChoice>,
    /// Where metrics are shown.
    pub metrics: Option<SocketAddr>,
    pub host: Host,
}

impl Terms {
    /// The most slabs that the clients of a name may hold, if it is not `per_client`; a refusal if
    /// they may hold none.
    pub fn share_of(&self, name: Option<&str>) -> Result<Option<u32>, Refusal> {
        let Some(name) = name else { return Ok(None) };
        if !self.access.admits(name) {
            return Err(Refusal::NotAllowed { name: name.to_owned() });
        }
        let slabs = |bytes| u32::try_from(bytes / self.slab_size).unwrap_or(u32::MAX);
        Ok(self.access.limit(name).map(slabs))
    }

    /// What the lease book goes by.
    pub fn limits(&self) -> Limits {
        Limits {
            capacity: self.capacity_slabs,
            per_client: self.per_client_slabs,
            ttl: self.lease_ttl,
            keep: self.keep_slabs,
        }
    }

    /// Who this donor is, if there is to be TLS.
    pub fn identity(&self) -> Result<Option<Arc<Identity>>, TlsConfigError> {
        self.tls.clone().map(|files| annex_identity::config::open(files, names::Role::Donor)).transpose()
    }

    /// The CA for which it signs.
    pub fn open_ca(&self, identity: Option<&Identity>) -> Result<Option<Ca>, SignerError> {
        self.ca.as_deref().zip(identity).map(|(dir, identity)| open_ca(dir, identity)).transpose()
    }
}

impl Config {
    /// Reads a configuration file.
    pub fn load(path: &Path) -> Result<Config, BadConfig> {
        Ok(annex_shared::config::load(path)?)
    }

    /// Where `annex-agent status` and `drain` find the agent: beside the socket for shm, unless
    /// configured.
    pub fn control_path(&self) -> Option<PathBuf> {
        if let Some(path) = &self.control_socket {
            return Some(path.clone()).filter(|p| !p.as_os_str().is_empty());
        }
        let shm = if self.shm_socket.as_os_str().is_empty() { Path::new(SHM_SOCKET) } else { &self.shm_socket };
        let mut name = shm.file_stem().unwrap_or_default().to_owned();
        name.push("-control.sock");
        Some(shm.with_file_name(name))
    }

    /// Checks the configuration against the machine.
    pub fn resolve(self, host: &HostMemory, host_name: &str) -> Result<Terms, BadConfig> {
        let tls = self.tls.files()?;
        if !self.listen.ip().is_loopback() && !self.insecure && tls.is_none() {
            return Err(BadConfig::Exposed(self.listen));
        }
        if self.ca.dir.is_some() && tls.is_none() {
            return Err(BadConfig::CaWithoutTls);
        }
        if self.also_plain && tls.is_none() {
            return Err(BadConfig::AlsoPlainWithoutTls);
        }
        if self.also_plain && !self.access.is_open() {
            return Err(BadConfig::AlsoPlainWithAccess);
        }
        let slab = self.slab_size.0;
        let unit = if self.hugepages == Hugepages::Off { 4096 } else { HUGE_PAGE };
        if !(64 << 10..=1 << 30).contains(&slab) || !slab.is_multiple_of(unit) {
            return Err(BadConfig::SlabSize { size: slab, unit });
        }
        let capacity = self.capacity.map_or(host.total / 4, |c| c.0);
        if capacity > host.total {
            return Err(BadConfig::OverMemory { capacity, total: host.total });
        }
        if capacity < slab {
            return Err(BadConfig::UnderSlab { capacity, slab });
        }
        let per_client = self.per_client.map_or(capacity, |c| c.0);
        if per_client < slab {
            return Err(BadConfig::PerClientUnderSlab { limit: per_client, slab });
        }
        if !self.access.is_open() && tls.is_none() {
            return Err(BadConfig::AccessWithoutTls);
        }
        if let Some(limit) = self.access.per_client.values().map(|limit| limit.0).find(|limit| *limit < slab) {
            return Err(BadConfig::AccessUnderSlab { limit, slab });
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.lease_ttl.0) {
            return Err(BadConfig::LeaseTtl(self.lease_ttl));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.recall_deadline.0) {
            return Err(BadConfig::RecallDeadline(self.recall_deadline));
        }
        if self.max_connections == 0 {
            return Err(BadConfig::NoConnections);
        }
        if self.hugepages == Hugepages::TwoMib && host.huge_total == 0 {
            return Err(BadConfig::NoHugepages { need: capacity / HUGE_PAGE });
        }
        log::filter(&self.log)?;
        let (control_socket, control_is_default) = (self.control_path(), self.control_socket.is_none());
        let name = self.name.unwrap_or_else(|| host_name.to_owned());
        if name.len() > 64 {
            return Err(BadConfig::Name(name));
        }
        // Fits: capacity is at most the machine's memory and a slab at least 64 KiB.
        let slabs = |bytes: u64| u32::try_from(bytes / slab).unwrap_or(u32::MAX);
        let capacity_slabs = slabs(capacity);
        Ok(Terms {
            listen: self.listen,
            name,
            slab_size: slab,
            capacity_slabs,
            most_slabs: slabs(host.total).min(KEPT_SLABS).max(capacity_slabs),
            per_client_slabs: slabs(per_client).min(capacity_slabs),
            headroom: self.headroom.map_or((512 << 20).max(host.total / 20), |h| h.0),
            hugepages: self.hugepages,
            prefault: self.prefault,
            keep_slabs: if self.prefault { capacity_slabs } else { self.spare_slabs },
            lease_ttl: self.lease_ttl.0,
            recall_deadline: self.recall_deadline.0,
            grace: self.grace.0,
            control_socket,
            control_is_default,
            shm_is_default: self.shm_socket == Path::new(SHM_SOCKET),
            shm_socket: (!self.shm_socket.as_os_str().is_empty()).then_some(self.shm_socket),
            keeper: (!self.keeper.as_os_str().is_empty()).then_some(self.keeper),
            max_connections: self.max_connections as usize,
            tls,
            also_plain: self.also_plain,
            renew: self.tls.renew,
            ca: self.ca.dir,
            access: self.access,
            labels: self.labels,
            log: self.log,
            log_format: self.log_format,
            verbs: self.verbs.choice(),
            metrics: self.metrics.listen,
            host: self.host,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostMemory = HostMemory { total: 16 << 30, available: 8 << 30, huge_total: 0, huge_free: 0 };

    fn resolve(change: impl FnOnce(&mut Config)) -> Result<Terms, String> {
        let mut config = Config::default();
        change(&mut config);
        config.resolve(&HOST, "here").map_err(|e| e.to_string())
    }

    #[test]
    fn without_a_word_it_lends_a_quarter_on_loopback() {
        let terms = resolve(|_| {}).unwrap();
        assert!(terms.listen.ip().is_loopback());
        assert_eq!(terms.capacity_slabs, 64);
        assert_eq!(terms.per_client_slabs, 64);
        assert_eq!(terms.headroom, (16 << 30) / 20);
        assert_eq!(terms.name, "here");
    }

    #[test]
    fn every_default_reads_back_from_toml() {
        let text = toml::to_string(&Config::default()).unwrap();
        assert_eq!(annex_shared::config::parse::<Config>(&text, Path::new("x")).unwrap(), Config::default());
    }

    #[test]
    fn what_can_not_work_is_refused_with_the_cause_and_the_remedy() {
        let no = |change: fn(&mut Config)| resolve(change).unwrap_err();
        assert_eq!(
            no(|c| c.listen = "0.0.0.0:7411".parse().unwrap()),
            "listen = \"0.0.0.0:7411\" is not a loopback address, and connections are neither encrypted nor \
             authenticated: set ca, cert and key in [tls], or listen on 127.0.0.1, or set insecure = true if the \
             network is trusted"
        );
        assert_eq!(
            no(|c| c.capacity = Some(ByteSize(64 << 30))),
            "capacity 64 GiB is more than this machine's memory (16 GiB): lend less"
        );
        assert_eq!(
            no(|c| c.capacity = Some(ByteSize(1 << 20))),
            "capacity 1 MiB is less than one slab (64 MiB): raise capacity or lower slab_size"
        );
        assert!(no(|c| c.per_client = Some(ByteSize(5))).contains("no client could lease anything"));
        assert!(no(|c| c.slab_size = ByteSize(100_000)).contains("multiple of 4096"));
        assert!(no(|c| c.lease_ttl = TimeSpan(Duration::ZERO)).contains("lease_ttl 0s is out of range"));
        assert!(no(|c| c.hugepages = Hugepages::TwoMib).contains("raise vm.nr_hugepages (2048"));
        let open = "0.0.0.0:1".parse().unwrap();
        assert_eq!(
            resolve(|c| (c.listen, c.tls.ca) = (open, Some("/ca".into()))).unwrap_err(),
            "cert is missing in [tls]: give ca, cert and key, or none of them"
        );
        let whole = || TlsConfig {
            ca: Some("a".into()),
            cert: Some("b".into()),
            key: Some("c".into()),
            ..TlsConfig::default()
        };
        assert!(resolve(|c| (c.listen, c.tls) = (open, whole())).is_ok());
        assert!(resolve(|c| (c.listen, c.insecure) = ("0.0.0.0:1".parse().unwrap(), true)).is_ok());
        assert!(no(|c| c.ca.dir = Some("/ca".into())).starts_with("dir is set in [ca], and hosts join over TLS only"));
        assert!(no(|c| c.also_plain = true).starts_with("also_plain is set, and without TLS all is plain"));
        assert!(resolve(|c| (c.also_plain, c.tls) = (true, whole())).is_ok());
        assert!(resolve(|c| (c.ca.dir, c.tls) = (Some("/ca".into()), whole())).is_ok());
    }

    #[test]
    fn the_control_socket_lies_beside_the_one_for_shm() {
        let of = |shm: &str, own: Option<&str>| {
            let config = Config { shm_socket: shm.into(), control_socket: own.map(PathBuf::from), ..Config::default() };
            config.control_path().map(|p| p.display().to_string())
        };
        assert_eq!(of(SHM_SOCKET, None).unwrap(), "/run/annex/agent-control.sock");
        assert_eq!(of("/x/two.sock", None).unwrap(), "/x/two-control.sock");
        assert_eq!(of("", None).unwrap(), "/run/annex/agent-control.sock");
        assert_eq!(of("", Some("/y")).unwrap(), "/y");
        assert_eq!(of("/x/two.sock", Some("")), None);
    }

    #[test]
    fn rdma_is_offered_unless_switched_off() {
        let choice = |text: &str| {
            let config = annex_shared::config::parse::<Config>(text, Path::new("agent.toml")).unwrap();
            config.resolve(&HOST, "here").unwrap().verbs
        };
        assert_eq!(choice(""), Some(DeviceChoice::default()));
        assert_eq!(choice("[verbs]\nenabled = false\ndevice = \"rxe0\""), None);
        let full = choice("[verbs]\ndevice = \"rxe0\"\nport = 1\ngid_index = 3").unwrap();
        assert_eq!((full.device.as_deref(), full.port, full.gid_index), (Some("rxe0"), Some(1), Some(3)));
    }

    #[test]
    fn an_unknown_key_in_the_file_is_refused() {
        let e = annex_shared::config::parse::<Config>("capasity = \"4G\"", Path::new("agent.toml")).unwrap_err();
        assert_eq!(e.to_string(), "agent.toml:1: unknown key 'capasity'; did you mean 'capacity'?");
    }
}
