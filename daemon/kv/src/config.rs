//! The KV API's part of annexd's configuration.
//!
//! ```toml
//! [kv]
//! enabled = true
//! listen = ["127.0.0.1:6379"]     # without a password only loopback may connect (protected mode)
//! socket = "/run/annex/kv.sock"
//! tls_listen = ["0.0.0.0:6380"]   # TLS 1.3
//! tls_cert = "/etc/annex/kv.pem"
//! tls_key = "/etc/annex/kv.key"
//! tls_clients = "/etc/annex/kv-clients.pem" # CAs, by one of which clients have a certificate
//! memory = "20G"                  # of records, one replica counted; 0: what the pool has
//! policy = "allkeys-lru"
//! password_file = "/etc/annex/kv.password"
//! client_memory = "1G"            # that all clients may make annexd hold
//! io_threads = 1                  # that send replies on a busy server; 0: none
//! pool_min = "10%"                # of the pool, kept free of programs' pages
//! pool_max = "90%"                # left to them above that
//! ```

use super::store::Policy;
use annex_identity::service::{Service, ServiceError, ServiceFiles};
use annex_shared::api::Limit;
use annex_shared::config::ByteSize;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

const MAX_IO_THREADS: u8 = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvConfig {
    pub enabled: bool,
    /// Addresses and ports to listen on.
    pub listen: Vec<SocketAddr>,
    /// A Unix socket to listen on as well.
    pub socket: Option<PathBuf>,
    /// The socket's permissions, in octal.
    pub socket_mode: String,
    /// Addresses and ports to listen on for TLS.
    pub tls_listen: Vec<SocketAddr>,
    /// The certificate that is shown there, and behind it what stands between it and its CA.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key. Nobody but its owner may read the file.
    pub tls_key: Option<PathBuf>,
    /// The CAs by one of which clients there have a certificate. Absent: they need none.
    pub tls_clients: Option<PathBuf>,
    /// What clients must give to AUTH.
    pub password: Option<String>,
    /// A file whose first line is that.
    pub password_file: Option<PathBuf>,
    /// Connections at a time.
    pub max_clients: u32,
    /// What all clients together may make annexd hold: requests, answers, and values on the way. 0:
    /// as much as they like.
    pub client_memory: ByteSize,
    /// What records may take in the pool, one replica counted, before keys are evicted or writes
    /// refused. 0: as much as the pool has.
    pub memory: ByteSize,
    /// How much of the pool programs leave to the KV API, and how much it takes at most: sizes, or
    /// parts of what the pool can hold.
    pub pool_min: Limit,
    pub pool_max: Limit,
    /// Which keys go when memory is short, by Redis' names.
    pub policy: String,
    /// annexd's own memory for values that were read lately.
    pub cache: ByteSize,
    /// DEBUG for connections from this host.
    pub debug: bool,
    /// Threads that send replies while the KV API's own is busy. Unless it is said, one where there
    /// is a second CPU.
    pub io_threads: Option<u8>,
}

impl Default for KvConfig {
    fn default() -> KvConfig {
        KvConfig {
            enabled: false,
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 6379))],
            socket: None,
            socket_mode: "0700".into(),
            tls_listen: Vec::new(),
            tls_cert: None,
            tls_key: None,
            tls_clients: None,
            password: None,
            password_file: None,
            max_clients: 10_000,
            client_memory: ByteSize(1 << 30),
            memory: ByteSize(0),
            pool_min: Limit::Percent(10),
            pool_max: Limit::Percent(90),
            policy: Policy::default().name().into(),
            cache: ByteSize(64 << 20),
            debug: false,
            io_threads: None,
        }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("[kv] is enabled and has neither an address to listen on nor a socket: give listen, tls_listen or socket")]
    Nowhere,
    #[error("[kv] has {has} and no {lacks}: TLS needs tls_listen, tls_cert and tls_key")]
    Tls { has: &'static str, lacks: &'static str },
    #[error("policy '{0}' in [kv] is none of {names}", names = Policy::names().collect::<Vec<_>>().join(", "))]
    Policy(String),
    #[error("socket_mode '{0}' in [kv] is not an octal number such as 0770")]
    Mode(String),
    #[error(
        "pool_min = {min} in [kv] is more than pool_max = {max}: the KV API can't be sure of more than it may have"
    )]
    Shares { min: Limit, max: Limit },
    #[error("max_clients = 0 in [kv] lets nobody in: give 1 or more, or set enabled = false")]
    NoClients,
    #[error("[kv] has both password and password_file: give one of them")]
    TwoPasswords,
    #[error("io_threads = {0} in [kv]: give 0 (none) to {MAX_IO_THREADS}, or leave it out")]
    IoThreads(u8),
}

/// There is no password to be had.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error("failed to read password_file {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the first line of password_file {} is empty: write the password there", path.display())]
    Empty { path: PathBuf },
}

impl KvConfig {
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.enabled && self.listen.is_empty() && self.tls_listen.is_empty() && self.socket.is_none() {
            return Err(ConfigError::Nowhere);
        }
        self.check_tls()?;
        if self.max_clients == 0 {
            return Err(ConfigError::NoClients);
        }
        if self.password.is_some() && self.password_file.is_some() {
            return Err(ConfigError::TwoPasswords);
        }
        if let Some(many) = self.io_threads.filter(|many| *many > MAX_IO_THREADS) {
            return Err(ConfigError::IoThreads(many));
        }
        let (min, max) = (self.pool_min, self.pool_max);
        let is_more = match (min, max) {
            (Limit::Bytes(min), Limit::Bytes(max)) => min > max,
            (Limit::Percent(min), Limit::Percent(max)) => min > max,
            // That depends on how much the pool has; the maximum holds.
            _ => false,
        };
        if is_more {
            return Err(ConfigError::Shares { min, max });
        }
        Policy::named(&self.policy).ok_or_else(|| ConfigError::Policy(self.policy.clone()))?;
        self.mode().map(drop)
    }

    fn check_tls(&self) -> Result<(), ConfigError> {
        let keys = [
            ("tls_listen", !self.tls_listen.is_empty()),
            ("tls_cert", self.tls_cert.is_some()),
            ("tls_key", self.tls_key.is_some()),
        ];
        let clients = ("tls_clients", self.tls_clients.is_some());
        let has = keys.iter().chain([&clients]).find(|(_, is_there)| *is_there);
        match (has, keys.iter().find(|(_, is_there)| !is_there)) {
            (Some((has, _)), Some((lacks, _))) => Err(ConfigError::Tls { has, lacks }),
            _ => Ok(()),
        }
    }

    /// What is shown to clients over TLS, if there is TLS.
    pub fn tls(&self) -> Result<Option<Service>, ServiceError> {
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let files =
            files.map(|(certificate, key)| ServiceFiles { certificate, key, clients: self.tls_clients.clone() });
        files.map(Service::open).transpose()
    }

    /// What clients must give to AUTH, from wherever it stands.
    pub fn secret(&self) -> Result<Option<String>, PasswordError> {
        let Some(path) = self.password_file.clone() else { return Ok(self.password.clone()) };
        match std::fs::read_to_string(&path) {
            Err(source) => Err(PasswordError::Unreadable { path, source }),
            Ok(text) => match text.lines().next().filter(|line| !line.is_empty()) {
                None => Err(PasswordError::Empty { path }),
                Some(line) => Ok(Some(line.into())),
            },
        }
    }

    /// The socket's permissions.
    pub fn mode(&self) -> Result<u32, ConfigError> {
        let mode = u32::from_str_radix(&self.socket_mode, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| ConfigError::Mode(self.socket_mode.clone()))
    }
}

/// `--kv WHERE[,KEY=VALUE]…`, with the keys `memory`, `min`, `max`, `policy`, `cache`,
/// `password_file`, `password`, `client_memory`, `debug`, `io_threads`, and for TLS at WHERE
/// `tls_cert`, `tls_key` and `tls_clients`. WHERE is HOST:PORT or a socket's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvFlag {
    pub config: KvConfig,
    /// As they were given.
    options: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvFlagError {
    #[error("'{0}' is neither IP:PORT nor the path of a socket")]
    Where(String),
    #[error(
        "'{0}' is not KEY=VALUE with memory, min, max, policy, cache, password_file, password, client_memory, debug, io_threads, tls_cert, tls_key or tls_clients as the key"
    )]
    Key(String),
    #[error("'{value}' is no good as {key}: {why}")]
    Value { key: String, value: String, why: String },
}

impl FromStr for KvFlag {
    type Err = KvFlagError;

    fn from_str(flag: &str) -> Result<KvFlag, KvFlagError> {
        let mut words = flag.split(',');
        let place = words.next().unwrap_or_default();
        let mut config = KvConfig { enabled: true, listen: Vec::new(), ..KvConfig::default() };
        match place.parse() {
            Ok(address) => config.listen.push(address),
            Err(_) if place.contains('/') => config.socket = Some(place.into()),
            Err(_) => return Err(KvFlagError::Where(place.into())),
        }
        let options: Vec<String> = words.map(str::to_owned).collect();
        options.iter().try_for_each(|option| set(&mut config, option))?;
        if config.tls_cert.is_some() {
            config.tls_listen = std::mem::take(&mut config.listen);
        }
        Ok(KvFlag { config, options })
    }
}

fn set(config: &mut KvConfig, option: &str) -> Result<(), KvFlagError> {
    let (key, value) = option.split_once('=').ok_or_else(|| KvFlagError::Key(option.into()))?;
    let bad = |why: String| KvFlagError::Value { key: key.into(), value: value.into(), why };
    let share = || value.parse::<Limit>().map_err(|error| bad(error.to_string()));
    let size = || value.parse::<ByteSize>().map_err(|error| bad(error.to_string()));
    match key {
        "memory" => config.memory = size()?,
        "min" => config.pool_min = share()?,
        "max" => config.pool_max = share()?,
        "cache" => config.cache = size()?,
        "policy" => config.policy = value.into(),
        "tls_cert" => config.tls_cert = Some(value.into()),
        "tls_key" => config.tls_key = Some(value.into()),
        "tls_clients" => config.tls_clients = Some(value.into()),
        "password" => config.password = Some(value.into()),
        "password_file" => config.password_file = Some(value.into()),
        "client_memory" => config.client_memory = size()?,
        "io_threads" => config.io_threads = Some(value.parse().map_err(|_| bad("give a number".into()))?),
        "debug" => config.debug = value.parse().map_err(|_| bad("give true or false".into()))?,
        _ => return Err(KvFlagError::Key(option.into())),
    }
    Ok(())
}

impl KvFlag {
    /// Listens where any of the flags says. Options hold for all of it, whichever flag has them; of
    /// one that stands in several, the last holds.
    pub fn together(flags: Vec<KvFlag>) -> Option<KvConfig> {
        let mut all = KvConfig { listen: Vec::new(), ..flags.first()?.config.clone() };
        all.tls_listen.clear();
        for KvFlag { config, options } in flags {
            all.listen.extend(config.listen);
            all.tls_listen.extend(config.tls_listen);
            all.socket = config.socket.or(all.socket);
            for option in options {
                // The flag it stands in took it.
                let _ = set(&mut all, &option);
            }
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_where_and_how() {
        let flags = [
            "127.0.0.1:7000",
            "/run/kv.sock,memory=1G,policy=allkeys-lru,cache=0,min=1G,max=70%,debug=true,io_threads=2",
        ];
        let config = KvFlag::together(flags.map(|flag| flag.parse().unwrap()).to_vec()).unwrap();
        assert_eq!(config.listen, ["127.0.0.1:7000".parse().unwrap()]);
        assert_eq!(config.socket, Some("/run/kv.sock".into()));
        assert_eq!((config.memory.0, config.cache.0, config.debug), (1 << 30, 0, true));
        assert_eq!((config.pool_min, config.pool_max), (Limit::Bytes(1 << 30), Limit::Percent(70)));
        assert_eq!(config.io_threads, Some(2));
        assert_eq!((config.enabled, config.policy.as_str()), (true, "allkeys-lru"));
        let refused = |flag: &str| flag.parse::<KvFlag>().unwrap_err();
        let with_tls = ["127.0.0.1:7001,tls_cert=/c,tls_key=/k", "127.0.0.1:7000"];
        let config = KvFlag::together(with_tls.map(|flag| flag.parse().unwrap()).to_vec()).unwrap();
        assert_eq!(config.tls_listen, ["127.0.0.1:7001".parse().unwrap()]);
        assert_eq!((config.check(), config.tls_cert), (Ok(()), Some("/c".into())));
        assert_eq!(config.listen, ["127.0.0.1:7000".parse().unwrap()]);
        let spread = ["127.0.0.1:7000,memory=1G,cache=0", "/run/kv.sock,memory=2G"];
        let config = KvFlag::together(spread.map(|flag| flag.parse().unwrap()).to_vec()).unwrap();
        assert_eq!((config.memory.0, config.cache.0, config.listen.len()), (2 << 30, 0, 1));
        assert_eq!(refused("localhost"), KvFlagError::Where("localhost".into()));
        assert_eq!(refused("127.0.0.1:1,size=1"), KvFlagError::Key("size=1".into()));
        assert!(matches!(refused("127.0.0.1:1,memory=many"), KvFlagError::Value { .. }));
    }

    #[test]
    fn a_password_is_read_from_the_first_line_of_its_file() {
        let path = std::env::temp_dir().join(format!("annex-kv-password-{}", std::process::id()));
        let flag: KvFlag = format!("127.0.0.1:1,password_file={}", path.display()).parse().unwrap();
        let secret = || flag.config.secret();
        assert!(matches!(secret(), Err(PasswordError::Unreadable { .. })));
        std::fs::write(&path, "\nsecret").unwrap();
        assert!(matches!(secret(), Err(PasswordError::Empty { .. })));
        std::fs::write(&path, "se cret\nand more\n").unwrap();
        assert_eq!(secret().unwrap().as_deref(), Some("se cret"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_cannot_work_is_refused_and_the_remedy_named() {
        let refused = |change: fn(&mut KvConfig)| {
            let mut config = KvConfig { enabled: true, ..KvConfig::default() };
            change(&mut config);
            config.check().unwrap_err()
        };
        assert_eq!(KvConfig::default().check(), Ok(()));
        assert_eq!(refused(|c| c.listen.clear()), ConfigError::Nowhere);
        assert_eq!(refused(|c| c.max_clients = 0), ConfigError::NoClients);
        let no_key = |c: &mut KvConfig| (c.tls_listen, c.tls_cert) = (c.listen.clone(), Some("/c".into()));
        assert_eq!(refused(no_key), ConfigError::Tls { has: "tls_listen", lacks: "tls_key" });
        assert_eq!(
            refused(|c| c.tls_clients = Some("/c".into())),
            ConfigError::Tls { has: "tls_clients", lacks: "tls_listen" }
        );
        let both = |c: &mut KvConfig| (c.password, c.password_file) = (Some("x".into()), Some("/y".into()));
        assert_eq!(refused(both), ConfigError::TwoPasswords);
        assert_eq!(refused(|c| c.socket_mode = "rwx".into()), ConfigError::Mode("rwx".into()));
        assert_eq!(refused(|c| c.io_threads = Some(17)), ConfigError::IoThreads(17));
        let (min, max) = (Limit::Percent(60), Limit::Percent(50));
        assert_eq!(
            refused(|c| (c.pool_min, c.pool_max) = (Limit::Percent(60), Limit::Percent(50))),
            ConfigError::Shares { min, max }
        );
        let policy = refused(|c| c.policy = "lru".into()).to_string();
        assert!(policy.contains("'lru'") && policy.contains("allkeys-lru"), "{policy}");
    }
}
