//! The command line of `annex-agent`. In the library, so that man pages and completions can be made
//! of it.

use crate::config::{BadConfig, Config};
use crate::hugepages::Hugepages;
use crate::store;
use annex_shared::config::{ByteSize, LogFormat, TimeSpan};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Lends this machine's idle memory to annex clients.
#[derive(Debug, Parser)]
#[command(name = "annex-agent", version)]
pub struct Flags {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub set: Settings,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say whether a configuration file would work on this machine, and exit
    CheckConfig { file: PathBuf },
    /// Show what a running agent lends, to whom, and how its host is
    Status {
        #[arg(long)]
        json: bool,
    },
    /// Look for what keeps this machine from lending: the host, the agent, its configuration
    ///
    /// Each check is ok, WARN or FAIL, with what to do. Changes nothing, and works without an
    /// agent. Reads /etc/annex/agent.toml unless --config names another file. Exits with 1 if
    /// something fails.
    Doctor {
        #[arg(long)]
        json: bool,
    },
    /// Empty a running agent for maintenance: nothing is lent any more, clients are asked to move
    /// their pages elsewhere and return what they have. Waits until it is empty; where that is
    /// interrupted, draining goes on. Nothing is revoked, and an agent that is restarted lends
    /// again
    Drain {
        /// Lend again
        #[arg(long, conflicts_with = "timeout")]
        cancel: bool,
        /// Wait no longer than this; draining goes on [default: as long as it takes]
        #[arg(long, value_name = "TIME")]
        timeout: Option<TimeSpan>,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Hold the memory of an agent that is run without systemd while it is restarted (the agent
    /// starts this by itself)
    #[command(name = store::keeper::SUBCOMMAND)]
    Keeper {
        /// Where the agent looks for it: the `keeper` of its configuration
        socket: PathBuf,
    },
}

/// Each overrides the configuration file's key of the same name.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Configuration file (TOML) [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port to listen on [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Allow an address other than loopback, without encryption or authentication
    #[arg(long)]
    pub insecure: bool,
    /// What clients call this donor [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
    /// The most memory to lend [default: a quarter of the machine's]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<ByteSize>,
    /// Size of a slab [default: 64M]
    #[arg(long, value_name = "SIZE")]
    pub slab_size: Option<ByteSize>,
    /// The most memory to lend to one client [default: all]
    #[arg(long, value_name = "SIZE")]
    pub per_client: Option<ByteSize>,
    /// Available memory that stays with this host [default: the larger of 512M and 5 %]
    #[arg(long, value_name = "SIZE")]
    pub headroom: Option<ByteSize>,
    /// Make slabs of 2 MiB pages [default: off]
    #[arg(long, value_enum)]
    pub hugepages: Option<Hugepages>,
    /// Allocate the whole capacity at start
    #[arg(long)]
    pub prefault: bool,
    /// Free slabs kept allocated [default: 4]
    #[arg(long, value_name = "COUNT")]
    pub spare_slabs: Option<u32>,
    /// A lease that is not renewed for this long is over [default: 120s]
    #[arg(long, value_name = "TIME")]
    pub lease_ttl: Option<TimeSpan>,
    /// How long clients get to move their pages when this host needs memory back [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub recall_deadline: Option<TimeSpan>,
    /// How long clients get to bring their pages home when the agent stops [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub grace: Option<TimeSpan>,
    /// Unix socket for clients on this host; "" for none [default: /run/annex/agent.sock]
    #[arg(long, global = true, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub shm_socket: Option<PathBuf>,
    /// Unix socket for `status` and `drain`; "" for none [default: beside the one for shm]
    #[arg(long, global = true, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub control_socket: Option<PathBuf>,
    /// Unix socket of a process that holds the memory while the agent is restarted, where there
    /// is no systemd; "" for none [default: none]
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub keeper: Option<PathBuf>,
    /// Connections of clients at once [default: 1024]
    #[arg(long, value_name = "COUNT")]
    pub max_connections: Option<u32>,
    /// Show metrics for Prometheus there, on http://ADDRESS/metrics [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Failure-domain label, such as rack=r7; may be repeated [default: none]
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// What to log: error, warn, info, debug, trace, or a filter such as `annex_agent=debug`
    /// [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// How to log: text, or json (an object a line) [default: the journal's way under systemd, else
    /// text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Settings {
    /// The file's configuration with the flags over it.
    ///
    /// # Errors
    /// The file can't be read, or is no configuration.
    pub fn over_file(self) -> Result<Config, BadConfig> {
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None => Config::default(),
        };
        config.insecure |= self.insecure;
        config.prefault |= self.prefault;
        config.labels.extend(self.labels);
        config.name = self.name.or(config.name);
        config.capacity = self.capacity.or(config.capacity);
        config.per_client = self.per_client.or(config.per_client);
        config.headroom = self.headroom.or(config.headroom);
        config.listen = self.listen.unwrap_or(config.listen);
        config.slab_size = self.slab_size.unwrap_or(config.slab_size);
        config.hugepages = self.hugepages.unwrap_or(config.hugepages);
        config.spare_slabs = self.spare_slabs.unwrap_or(config.spare_slabs);
        config.lease_ttl = self.lease_ttl.unwrap_or(config.lease_ttl);
        config.recall_deadline = self.recall_deadline.unwrap_or(config.recall_deadline);
        config.grace = self.grace.unwrap_or(config.grace);
        config.shm_socket = self.shm_socket.unwrap_or(config.shm_socket);
        config.control_socket = self.control_socket.or(config.control_socket);
        config.keeper = self.keeper.unwrap_or(config.keeper);
        config.metrics.listen = self.metrics.or(config.metrics.listen);
        config.log = self.log.unwrap_or(config.log);
        config.log_format = self.log_format.or(config.log_format);
        config.max_connections = self.max_connections.unwrap_or(config.max_connections);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// What the help says that an option is unless it is given.
    fn told(option: &str) -> String {
        let flags = Flags::command();
        let option = flags.get_arguments().find(|arg| arg.get_long() == Some(option)).expect("there is such an option");
        let help = option.get_help().expect("it has a help text").to_string();
        let (_, told) = help.rsplit_once("[default: ").unwrap_or_else(|| panic!("no default is told: {help}"));
        told.trim_end_matches(']').to_owned()
    }

    /// `annex-agent drain --control-socket …` was refused: it had to stand before `drain`.
    #[test]
    fn which_agent_is_asked_may_stand_behind_what_it_is_asked() {
        for line in
            [["annex-agent", "--control-socket", "/c", "drain"], ["annex-agent", "drain", "--control-socket", "/c"]]
        {
            let flags = Flags::try_parse_from(line).expect("it is understood");
            assert_eq!(flags.set.control_socket, Some("/c".into()));
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Flags::command().debug_assert();
    }

    /// A lease was said to last 10 s, and lasts 60.
    #[test]
    fn the_help_tells_the_defaults_as_they_are() {
        let config = Config::default();
        assert_eq!(told("listen"), config.listen.to_string());
        assert_eq!(told("slab-size").parse(), Ok(config.slab_size));
        assert_eq!(told("spare-slabs"), config.spare_slabs.to_string());
        assert_eq!(told("lease-ttl").parse(), Ok(config.lease_ttl));
        assert_eq!(told("recall-deadline").parse(), Ok(config.recall_deadline));
        assert_eq!(told("grace").parse(), Ok(config.grace));
        assert_eq!(PathBuf::from(told("shm-socket")), config.shm_socket);
        assert_eq!(told("max-connections"), config.max_connections.to_string());
        assert_eq!(told("log"), config.log);
        let of_machine = [
            "config",
            "name",
            "capacity",
            "per-client",
            "headroom",
            "hugepages",
            "control-socket",
            "keeper",
            "label",
            "metrics",
            "log-format",
        ];
        for option in of_machine {
            told(option);
        }
    }
}
