//! The command line of `annexd`. In the library, so that man pages and completions can be made of
//! it.

use crate::config::SpillFlag;
use annex_kv::KvFlag;
use annex_pager::Wait;
use annex_shared::api::Local;
use annex_shared::config::{LogFormat, TimeSpan};
use annex_shared::donor::DonorSpec;
use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

const DONOR_HELP: &str = "A donor: HOST:PORT[,transport=auto|verbs|tcp|shm][,tcp_fallback=false][,name=NAME][,faults=PLAN]; may be repeated, and replaces the file's donors [default: the file's]";

const KV_HELP: &str = "Serve the KV API (Redis protocol) there: IP:PORT or a socket's path, and behind it ,KEY=VALUE as often as needed, with memory, min, max, policy, cache, password_file, client_memory, debug or io_threads as the key, and for TLS there tls_cert, tls_key and tls_clients; may be repeated, and replaces the file's [kv] [default: none]";

/// Pages the cold memory of programs to other machines and back.
#[derive(Debug, Parser)]
#[command(name = "annexd", version)]
pub struct Flags {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Configuration file (TOML) [default: /etc/annex/annexd.toml if there is one]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Control socket [default: /run/annex/annexd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    #[arg(long = "donor", value_name = "DONOR", help = DONOR_HELP)]
    pub donors: Vec<DonorSpec>,
    /// A file on a local disk for what donors have no room for: PATH,size=SIZE [default: none]
    #[arg(long, value_name = "SPILL")]
    pub spill: Option<SpillFlag>,
    #[arg(long = "kv", value_name = "WHERE", help = KV_HELP)]
    pub kv: Vec<KvFlag>,
    /// Copies of every page, 1 to 4 [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub replicas: Option<u8>,
    /// Encrypt pages and values before they leave this host; with a spill file always [default: no]
    #[arg(long)]
    pub seal: bool,
    /// What an app may keep resident unless it is told otherwise [default: 50%]
    #[arg(long, value_name = "LIMIT")]
    pub local: Option<Local>,
    /// Threads that answer page faults; 0 = as many as suits the host [default: 0]
    #[arg(long, value_name = "COUNT")]
    pub fault_workers: Option<u32>,
    /// What fault workers do while there are no faults [default: auto]
    #[arg(long, value_enum)]
    pub wait: Option<WaitFlag>,
    /// Microseconds for which a fault worker polls for a page that it reads before it sleeps, as
    /// long as reads usually come back sooner [default: 20]
    #[arg(long, value_name = "MICROSECONDS")]
    pub busy_poll_us: Option<u32>,
    /// How long programs wait for the next annexd if this one is killed, before they are ended
    /// [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub takeover_wait: Option<TimeSpan>,
    /// Show metrics for Prometheus there, on http://ADDRESS/metrics [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Show a page for browsers there, on http://ADDRESS/ [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub web: Option<SocketAddr>,
    /// If an annexd is running, take its place: it ends, and its programs go on with this one
    #[arg(long)]
    pub take_over: bool,
    /// What to log: error, warn, info, debug, trace, or a filter such as `annex_pager=debug`
    /// [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// How to log: text, or json (an object a line) [default: the journal's way under systemd, else
    /// text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say whether a configuration file is good, and exit
    CheckConfig {
        /// The one that annexd would start with, unless named
        file: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum WaitFlag {
    /// What is measured to be better here when annexd starts
    Auto,
    /// Sleep: costs nothing, and a fault on the same CPU is answered fastest
    Block,
    /// Burn a CPU per worker to see faults from other CPUs sooner
    Spin,
}

impl From<WaitFlag> for Wait {
    fn from(flag: WaitFlag) -> Wait {
        match flag {
            WaitFlag::Auto => Wait::Auto,
            WaitFlag::Block => Wait::Block,
            WaitFlag::Spin => Wait::Spin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use clap::CommandFactory;
    use std::path::Path;

    /// What the help says that an option is unless it is given.
    fn told(option: &str) -> String {
        let flags = Flags::command();
        let option = flags.get_arguments().find(|arg| arg.get_long() == Some(option)).expect("there is such an option");
        let help = option.get_help().expect("it has a help text").to_string();
        let (_, told) = help.rsplit_once("[default: ").unwrap_or_else(|| panic!("no default is told: {help}"));
        told.trim_end_matches(']').to_owned()
    }

    #[test]
    fn the_help_tells_the_defaults_as_they_are() {
        let Config { socket, local, log, takeover_wait, pool, pager, .. } = Config::default();
        assert_eq!(Path::new(&told("socket")), socket);
        assert_eq!(told("local").parse(), Ok(local));
        assert_eq!(told("log"), log);
        assert_eq!(told("takeover-wait").parse(), Ok(takeover_wait));
        assert_eq!(told("replicas"), pool.replicas.to_string());
        assert_eq!(told("fault-workers"), pager.fault_workers.to_string());
        assert_eq!(told("busy-poll-us"), pager.busy_poll_us.to_string());
        assert_eq!((told("wait").as_str(), pager.wait), ("auto", Wait::Auto));
        for option in ["config", "donor", "spill", "kv", "metrics", "web"] {
            told(option);
        }
    }
}
