//! annexd's configuration file, as far as [`super::lints`] look at it.
//!
//! annexd itself is strict, and `annexd check-config` says what it would refuse. This reading is
//! lenient: keys that are not looked at here are passed over, so that the file of a newer annexd
//! can be judged too.

use annex_doctor::Check;
use annex_doctor::rdma::Configured;
use annex_identity::config::TlsConfig;
use serde::Deserialize;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where annexd looks unless it is told otherwise.
const DEFAULT_FILE: &str = "/etc/annex/annexd.toml";
const NAME: &str = "file";

/// The keys that are looked at, with annexd's defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    pub takeover_wait: Option<String>,
    pub pool: Pool,
    pub spill: Spill,
    pub kv: Kv,
    pub metrics: Listener,
    pub web: Listener,
    pub tls: Tls,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Tls {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub crl: Option<PathBuf>,
    /// annexd refuses one that is no address.
    pub renew: Option<String>,
}

impl From<Tls> for TlsConfig {
    fn from(Tls { ca, cert, key, crl, renew }: Tls) -> TlsConfig {
        TlsConfig { ca, cert, key, crl, renew: renew.and_then(|address| address.parse().ok()) }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub replicas: u8,
    pub verbs: Verbs,
    #[serde(alias = "donor")]
    pub donors: Vec<Donor>,
}

/// `[pool.verbs]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Verbs {
    pub device: Option<String>,
    pub port: Option<u8>,
    pub gid_index: Option<u8>,
}

impl From<Verbs> for Configured {
    fn from(Verbs { device, port, gid_index }: Verbs) -> Configured {
        Configured { device, port, gid_index, table: "[pool.verbs]" }
    }
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { replicas: 2, verbs: Verbs::default(), donors: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Donor {
    pub name: Option<String>,
    pub address: String,
    pub transport: String,
    pub tcp_fallback: bool,
    pub faults: Option<String>,
}

impl Default for Donor {
    fn default() -> Donor {
        Donor { name: None, address: String::new(), transport: "auto".into(), tcp_fallback: true, faults: None }
    }
}

impl Donor {
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.address)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Spill {
    pub path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Kv {
    pub enabled: bool,
    pub listen: Vec<String>,
    /// Only whether there is one.
    pub password: Option<toml::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Listener {
    pub listen: Option<String>,
}

/// What was found where the file should be.
pub enum File {
    /// No file was named, and the usual one does not exist.
    Absent,
    Unreadable {
        path: PathBuf,
        source: io::Error,
    },
    /// No configuration. The text may hold secrets, and stays out of messages.
    Bad {
        path: PathBuf,
        why: String,
    },
    Read {
        path: PathBuf,
        text: String,
        config: Box<Config>,
        is_public: bool,
    },
}

pub fn read(named: Option<&Path>) -> File {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE)).to_owned();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if named.is_none() && e.kind() == io::ErrorKind::NotFound => return File::Absent,
        Err(source) => return File::Unreadable { path, source },
    };
    let is_public = std::fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0);
    match parse(&text) {
        Ok(config) => File::Read { path, text, config: Box::new(config), is_public },
        Err(why) => File::Bad { path, why },
    }
}

pub fn parse(text: &str) -> Result<Config, String> {
    toml::from_str(text).map_err(|e| {
        let line = e.span().map(|span| 1 + text[..span.start].matches('\n').count());
        match line {
            Some(line) => format!("line {line}: {}", e.message()),
            None => e.message().to_owned(),
        }
    })
}

impl File {
    pub fn config(&self) -> Option<&Config> {
        match self {
            File::Read { config, .. } => Some(config),
            _ => None,
        }
    }

    pub fn donors(&self) -> &[Donor] {
        self.config().map_or(&[], |config| &config.pool.donors)
    }

    /// Whether it can be read, and by whom.
    pub fn check(&self) -> Vec<Check> {
        let check = match self {
            File::Absent => Check::ok(NAME, format!("there is no {DEFAULT_FILE}: annexd's defaults and flags count")),
            File::Unreadable { path, source } => {
                let message = format!("failed to read {}: {source}", path.display());
                match source.kind() {
                    io::ErrorKind::PermissionDenied => Check::warn(NAME, message, "run it as root: sudo annex doctor"),
                    _ => Check::fail(NAME, message, "name the file that annexd uses with --config"),
                }
            }
            File::Bad { path, why } => {
                let remedy = format!("mend it; annexd check-config {} tells more", path.display());
                Check::fail(NAME, format!("{} is no configuration: {why}", path.display()), remedy)
            }
            File::Read { path, .. } => {
                let path = path.display();
                Check::ok(NAME, format!("{path} (annexd check-config {path} looks at every key)"))
            }
        };
        let mut checks = vec![check];
        if let File::Read { path, config, is_public: true, .. } = self
            && config.kv.password.is_some()
        {
            checks.push(Check::warn(
                "password",
                format!("the password in {} can be read by every user of this host", path.display()),
                format!("chmod o-r {}, or use password_file in [kv]", path.display()),
            ));
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_doctor::Outcome;

    #[test]
    fn what_is_looked_at_has_annexds_defaults() {
        let annexd = annex_daemon::config::Config::default();
        let ours = Config::default();
        assert_eq!(ours.pool.replicas, annexd.pool.replicas);
        assert_eq!(annexd.takeover_wait.0, annex_doctor::TAKEOVER_WAIT);
        assert_eq!(annex_daemon::config::DEFAULT_FILE, DEFAULT_FILE);
        assert!(annexd.spill.path.as_os_str().is_empty());
    }

    #[test]
    fn the_shipped_example_is_read() {
        let config = parse(include_str!("../../../systemd/annexd.toml")).unwrap();
        assert_eq!(config.pool.donors.len(), 2);
        assert_eq!(config.pool.donors[0].label(), "donor-a.example:7411");
    }

    #[test]
    fn a_file_that_is_none_is_named_with_its_line() {
        let why = parse("local = \"50%\"\n[pool]\nreplicas = \"two\"\n").unwrap_err();
        assert!(why.starts_with("line 3: "), "{why}");
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none.toml");
        assert_eq!(read(Some(&missing)).check()[0].outcome, Outcome::Fail);
        assert_eq!(File::Absent.check()[0].outcome, Outcome::Ok);
    }

    #[test]
    fn a_password_that_everybody_may_read_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("annexd.toml");
        std::fs::write(&path, "[kv]\npassword = 'hunter2'\n").unwrap();
        let outcome = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let checks = read(Some(&path)).check();
            assert!(checks.iter().all(|check| !check.message.contains("hunter2")), "{checks:?}");
            checks.last().unwrap().outcome
        };
        assert_eq!(outcome(0o644), Outcome::Warn);
        assert_eq!(outcome(0o640), Outcome::Ok);
    }
}
