//! annexd's configuration: a TOML file, flags over it, and defaults under both.
//!
//! ```toml
//! local = "50%"                  # what an app may keep resident unless it is told otherwise
//!
//! [tls]                          # without it only donors on loopback are safe from others
//! ca = "/etc/annex/ca.pem"
//! cert = "/etc/annex/cert.pem"
//! key = "/etc/annex/key.pem"
//!
//! [pool]
//! replicas = 2
//!
//! [[pool.donor]]
//! address = "donor-a.example:7411"
//!
//! [spill]                        # the last tier; none unless configured
//! path = "/var/lib/annex/spill"
//! size = "8G"
//! ```

use annex_host::log;
use annex_identity::config::{TlsConfig, TlsConfigError};
use annex_kv::KvConfig;
use annex_metrics::MetricsConfig;
use annex_pager::{PagerConfig, RuleConfig, RuleError, UsersConfig, parse_rules};
use annex_pool::{PoolConfig, SpillConfig};
use annex_shared::api::{Limit, Local, SOCKET};
use annex_shared::config::{ByteSize, ConfigError as FileError, LogFormat, TimeSpan, load};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Read if it exists and no other file is named.
pub const DEFAULT_FILE: &str = "/etc/annex/annexd.toml";
/// More threads than this only get into each other's way.
const MAX_WORKERS: u32 = 256;
const MAX_BUSY_POLL_US: u32 = 10_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the `annex` command reaches annexd.
    pub socket: PathBuf,
    /// What an app may keep resident unless `annex run --local` or `annex limit` says otherwise.
    pub local: Local,
    /// What is logged, as tracing's filters are written: `info`, `warn`, `annex_pool=debug`.
    pub log: String,
    /// How; the journal's way under systemd and text elsewhere if absent.
    pub log_format: Option<LogFormat>,
    /// Should annexd be killed, how long its programs wait for the next one before they are ended.
    pub takeover_wait: TimeSpan,
    /// Who this host is to donors, and whom it believes.
    pub tls: TlsConfig,
    pub pool: PoolConfig,
    pub spill: SpillConfig,
    pub pager: PagerConfig,
    pub users: UsersConfig,
    /// What is attached as it appears.
    pub app: Vec<RuleConfig>,
    pub kv: KvConfig,
    pub metrics: MetricsConfig,
    pub web: WebConfig,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            socket: SOCKET.into(),
            local: Local::Fixed(Limit::Percent(50)),
            log: "info".into(),
            log_format: None,
            takeover_wait: TimeSpan(Duration::from_secs(60)),
            tls: TlsConfig::default(),
            pool: PoolConfig::default(),
            spill: SpillConfig::default(),
            pager: PagerConfig::default(),
            users: UsersConfig::default(),
            app: Vec::new(),
            kv: KvConfig::default(),
            metrics: MetricsConfig::default(),
            web: WebConfig::default(),
        }
    }
}

/// `[web]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebConfig {
    /// Where the page is; nowhere if absent.
    pub listen: Option<SocketAddr>,
}

/// A configuration annexd can't start with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("bad pool configuration: {0}")]
    Pool(#[from] annex_pool::ConfigError),
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    #[error(transparent)]
    Kv(#[from] annex_kv::ConfigError),
    #[error(transparent)]
    Spill(#[from] annex_pool::SpillError),
    #[error(
        "busy_poll_us = {0} in [pager]: give 0 (none) to {MAX_BUSY_POLL_US}: faults wait while a worker does nothing but poll"
    )]
    BusyPoll(u32),
    #[error("fault_workers = {0} in [pager]: give 0 (automatic) to {MAX_WORKERS}")]
    FaultWorkers(u32),
    #[error(
        "replicas = {replicas} in [pool] needs {replicas} donors and {donors} is all there are: add a [[pool.donor]], or set replicas = {donors}"
    )]
    TooFewDonors { donors: usize, replicas: u8 },
    #[error("listen = \"{0}\" in [metrics] and in [web]: give each a port of its own")]
    OneAddress(SocketAddr),
    #[error("socket is empty: give a path such as {SOCKET}")]
    NoSocket,
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(transparent)]
    Log(#[from] log::FilterError),
}

impl Config {
    /// The file's configuration, or the default one if none is named and the usual one doesn't
    /// exist.
    pub fn of_file(named: Option<&Path>) -> Result<Config, ConfigError> {
        match named {
            Some(path) => Ok(load(path)?),
            None if Path::new(DEFAULT_FILE).exists() => Ok(load(Path::new(DEFAULT_FILE))?),
            None => Ok(Config::default()),
        }
    }

    /// Checks what the types can't express.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.pool.check()?;
        self.tls.files()?;
        self.spill.check()?;
        self.kv.check()?;
        parse_rules(&self.app)?;
        if self.pager.busy_poll_us > MAX_BUSY_POLL_US {
            return Err(ConfigError::BusyPoll(self.pager.busy_poll_us));
        }
        if self.pager.fault_workers > MAX_WORKERS {
            return Err(ConfigError::FaultWorkers(self.pager.fault_workers));
        }
        if self.socket.as_os_str().is_empty() {
            return Err(ConfigError::NoSocket);
        }
        match self.web.listen {
            Some(address) if address.port() > 0 && self.metrics.listen == Some(address) => {
                return Err(ConfigError::OneAddress(address));
            }
            _ => {}
        }
        log::filter(&self.log)?;
        Ok(())
    }

    /// Refuses what annexd starts with, but can't put a page anywhere with. Donors may come at run
    /// time, so having none is no mistake, and a spill file serves alone.
    pub fn check_completeness(&self) -> Result<(), ConfigError> {
        let (donors, replicas) = (self.pool.donors.len(), self.pool.replicas);
        let has_spill = !self.spill.path.as_os_str().is_empty();
        if donors > 0 && donors < usize::from(replicas) && !has_spill {
            return Err(ConfigError::TooFewDonors { donors, replicas });
        }
        Ok(())
    }
}

/// `--spill PATH,size=SIZE`.
#[derive(Clone, Debug, PartialEq)]
pub struct SpillFlag(pub SpillConfig);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("give PATH,size=SIZE, such as /var/lib/annex/spill,size=8G")]
pub struct SpillFlagError;

impl FromStr for SpillFlag {
    type Err = SpillFlagError;

    fn from_str(flag: &str) -> Result<SpillFlag, SpillFlagError> {
        let (path, size) = flag.rsplit_once(",size=").ok_or(SpillFlagError)?;
        let size = annex_shared::api::parse_bytes(size).map(ByteSize).ok_or(SpillFlagError)?;
        Ok(SpillFlag(SpillConfig { path: path.into(), size }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = annex_shared::config::parse(text, Path::new("annexd.toml")).map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn the_shipped_example_is_accepted_and_changes_nothing_but_the_donors() {
        let mut example = parse(include_str!("../../systemd/annexd.toml")).unwrap();
        assert_eq!(example.pool.donors.len(), 2);
        example.pool.donors.clear();
        assert_eq!(example, Config::default());
    }

    #[test]
    fn the_default_limit_can_be_one_that_is_found() {
        assert_eq!(parse("local = 'auto'").unwrap().local, "auto:1%".parse().unwrap());
        assert_eq!(parse("local = 'auto:0.5%'").unwrap().local, "auto:0.5%".parse().unwrap());
        let error = parse("local = 'auto:0%'").unwrap_err();
        assert!(error.contains("bad limit 'auto:0%'"), "{error}");
        assert!(parse("[users]\npool_bytes = 'auto'").is_err(), "that is no app's limit");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        for (text, key, near) in [
            ("sokcet = '/x'", "sokcet", "socket"),
            ("[pool]\nreplica = 2", "pool.replica", "replicas"),
            ("[[pool.donor]]\nadress = 'a:1'", "adress", "address"),
            ("[spill]\nsiz = '1G'", "spill.siz", "size"),
            ("[users]\napp = 1", "users.app", "apps"),
            ("[[app]]\nunti = 'a'", "app[0].unti", "unit"),
            ("[pager]\nfault_worker = 1", "pager.fault_worker", "fault_workers"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(key) && error.contains(&format!("did you mean '{near}'?")), "{error}");
        }
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (text, part) in [
            ("local = '12Q'", "bad limit '12Q'"),
            ("[pool]\nreplicas = 9", "replicas = 9"),
            ("[tls]\nca = '/ca.pem'\nkey = '/key.pem'", "cert is missing in [tls]"),
            ("[tls]\nrenew = 'ca.example'", "bad address 'ca.example': give HOST:PORT"),
            ("[tls]\nrenew = 'ca.example:7411'", "ca is missing in [tls]"),
            ("[ca]\ndir = '/etc/annex/ca'", "unknown key 'ca'"),
            ("[pager]\nwait = 'pray'", "unknown variant `pray`"),
            ("[pager]\nbusy_poll_us = 20000", "busy_poll_us = 20000 in [pager]"),
            ("[pager]\nfault_workers = 1000", "fault_workers = 1000 in [pager]"),
            ("[users]\npool_bytes = '75'", "give a share (75%) or a unit (75M)"),
            ("log = 'annex=loud'", "bad log filter 'annex=loud'"),
            ("log = 'bogus'", "there is no log level 'bogus': give error, warn, info, debug, trace or off"),
            ("local = '50'", "give a share (50%) or a unit (50M)"),
            ("[[pool.donor]]\naddress = 'a:0'", "donor address 'a:0'"),
            ("socket = ''", "socket is empty"),
            ("[[app]]\nunit = 'a'\n[[app]]\nlocal = '1G'", "[[app]] number 2 says nothing of what to attach"),
            ("[[app]]\nunit = 'a'\ncommand = 'b'", "[[app]] number 1 has unit and command"),
            ("[[app]]\nunit = 'a[.service'", "bad pattern unit = \"a[.service\" in [[app]] number 1"),
            ("[[app]]\nunit = 'a'\nlocal = '12Q'", "bad limit '12Q'"),
            ("[web]\nlisten = 'localhost:9502'", "invalid socket address"),
            (
                "[metrics]\nlisten = '127.0.0.1:9500'\n[web]\nlisten = '127.0.0.1:9500'",
                "listen = \"127.0.0.1:9500\" in [metrics] and in [web]",
            ),
            ("[spill]\nsize = '8G'", "[spill] has a size and no path"),
            ("[spill]\npath = 'spill'\nsize = '8G'", "is not absolute"),
            ("[spill]\npath = '/var/tmp/spill'", "size = 0 B in [spill]"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_spill_file_can_be_given_as_a_flag() {
        let spill = "/a,b,size=8G".parse::<SpillFlag>().unwrap().0;
        assert_eq!(spill, SpillConfig { path: "/a,b".into(), size: ByteSize(8 << 30) });
        assert!("/a".parse::<SpillFlag>().is_err());
    }
}
