//! The command line. In the library, so that man pages and completions can be made of it.

use crate::access::Pattern;
use annex_identity::names::{Label, Role};
use annex_identity::token::Address;
use annex_shared::api::{Limit, Local, SOCKET, parse_bytes};
use annex_shared::config::{TimeSpan, UnitError};
use annex_shared::donor::{DonorSpec, TransportChoice};
use clap::{ArgGroup, Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A command line that makes no sense.
pub const USAGE: u8 = 2;
/// `annex run` failed before the command started (as env, timeout and docker say it).
pub const CANNOT_RUN: u8 = 125;

/// What `annex --help` says about exit codes.
const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 internal error, 2 bad usage or request, 3 annexd not running or stopping,
4 not found, 5 not allowed, 6 attached already, 7 process unsuitable, 8 host unsuitable,
9 no donors, 10 not enough memory. annex run: the command's own; 125 annex failed before
it started, 126 it can't be executed, 127 it was not found.";

/// Let programs use the idle memory of other machines.
#[derive(Debug, Parser)]
#[command(name = "annex", version, after_help = EXIT_CODES, subcommand_required = true)]
pub struct Cli {
    /// annexd's control socket
    #[arg(long, global = true, value_name = "PATH", default_value = SOCKET, display_order = 100)]
    pub socket: PathBuf,
    /// Print JSON, errors included
    #[arg(long, global = true, display_order = 101)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command whose cold memory goes to other machines
    ///
    /// The command takes this process's place: its exit code, signals and terminal are its own. Its
    /// children belong to the app too.
    Run(RunArgs),
    /// Take a running process, a systemd unit, a container or a cgroup
    #[command(override_usage = "annex attach [OPTIONS] <PID|--unit <UNIT>|--container <NAME>|--cgroup <PATH>>")]
    Attach(AttachArgs),
    /// Bring all memory of an app back and let go of it
    Detach {
        /// The app's name or id, or the PID of one of its processes
        app: String,
    },
    /// Change how much memory an app may keep resident
    Limit {
        /// The app's name or id, or the PID of one of its processes
        app: String,
        /// Bytes with a unit (512M, 2G), a share of its memory (50%), or auto, auto:1%: as little
        /// as it can have and wait for its pages no longer than that
        local: Local,
    },
    /// List the apps
    Apps,
    /// Show donors, pool, apps, and what needs attention
    Status {
        /// Exit with 0 if all is well, 1 if copies, donors or room are missing, 2 if pages are
        /// lost, out of reach or down to
        /// their last copy
        #[arg(long)]
        check: bool,
    },
    /// Watch donors, apps and the pool, what hurts most first
    ///
    /// Needs a terminal, unless --once or --json is given. ? shows the keys.
    Top(TopArgs),
    /// Show what happened: donors that went and came, repairs, lost pages, apps stopped
    ///
    /// annexd keeps the last thousand events, also when it is killed or replaced while apps run.
    Events(EventsArgs),
    /// Look for what is wrong with this host, annexd, its configuration and its donors
    ///
    /// Each check is ok, WARN or FAIL, with what to do. Changes nothing, and works without annexd.
    /// Exits with 1 if something fails.
    Doctor(DoctorArgs),
    /// Find programs with cold memory, before anything is attached
    ///
    /// Looks at what running programs touch for a while, and tells which of them to attach with
    /// what limit. It needs no annexd and no donors. Root sees all programs, a user their own.
    /// Programs are not stopped and not changed.
    Advise(AdviseArgs),
    /// Measure what programs would see: memory touched in RAM, and with a part of it resident
    ///
    /// Uses the donors that annexd has now, and checks every page. Takes about two minutes unless
    /// told otherwise.
    Bench(BenchArgs),
    /// One run of `bench`
    #[command(hide = true)]
    BenchPattern(PatternArgs),
    /// Show what the KV API holds and how it does
    Kv,
    /// List the slabs leased from donors
    Slabs,
    /// List the donors, add one, or remove one
    Donors {
        #[command(subcommand)]
        change: Option<DonorsCommand>,
    },
    /// Get this host's certificate with a token of `annex ca token`
    ///
    /// Makes a key, which never leaves this host, and asks the agent beside the CA. The token tells
    /// what this host becomes: a donor or a client. A host that is both joins twice, each time with
    /// a token of its own and into a folder of its own, such as --to /etc/annex/tls/client.
    Join(JoinArgs),
    /// Issue and revoke the certificates by which hosts know each other
    ///
    /// Works on a folder of this host. annexd is not asked.
    Ca(CaArgs),
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// What `annex ca token` has printed; - reads it from standard input
    pub token: String,
    #[command(flatten)]
    pub files: CaFiles,
    /// Ask there; may be repeated [default: where the token says]
    #[arg(long = "address", value_name = "HOST:PORT")]
    pub addresses: Vec<Address>,
}

/// Where a host's key and certificates go.
#[derive(Debug, Args)]
pub struct CaFiles {
    /// The folder for key.pem, cert.pem and ca.pem
    #[arg(long, value_name = "DIR", default_value = "/etc/annex/tls")]
    pub to: PathBuf,
    /// Replace the files that are there
    #[arg(long)]
    pub replace: bool,
}

#[derive(Debug, Args)]
pub struct CaArgs {
    /// The CA's folder
    #[arg(long, global = true, value_name = "DIR", default_value = "/etc/annex/ca", display_order = 99)]
    pub dir: PathBuf,
    #[command(subcommand)]
    pub command: CaCommand,
}

#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Make a CA
    Init {
        /// The cluster's name: a host believes only hosts of its own
        #[arg(long, default_value = "annex", value_name = "NAME")]
        cluster: Label,
    },
    /// Make a token with which one host can join
    Token {
        /// What the host may do: donor or client [default: none, one must be given]
        #[arg(long)]
        role: Role,
        /// What to call the host [default: none, one must be given]
        #[arg(long)]
        name: Label,
        /// How long the token may be used, 30 days at most
        #[arg(long, default_value = "1h", value_name = "TIME")]
        valid: TimeSpan,
        /// Where the agent beside the CA listens; may be repeated [default: none, one must be
        /// given]
        #[arg(long = "address", required = true, value_name = "HOST:PORT")]
        addresses: Vec<Address>,
    },
    /// Make a key and a certificate for this host itself
    ///
    /// Other hosts join with a token, at the agent of this one.
    Issue {
        /// What the host may do: donor or client [default: none, one must be given]
        #[arg(long)]
        role: Role,
        /// What to call the host [default: none, one must be given]
        #[arg(long)]
        name: Label,
        #[command(flatten)]
        files: CaFiles,
    },
    /// Sign a request for a certificate (CSR) and print the certificate
    Sign {
        /// The request, in PEM
        csr: PathBuf,
        /// What the host may do: donor or client [default: none, one must be given]
        #[arg(long)]
        role: Role,
        /// What to call the host [default: none, one must be given]
        #[arg(long)]
        name: Label,
    },
    /// List the certificates and the tokens that were not used
    List,
    /// Revoke all certificates of a host, and its tokens
    Revoke {
        /// The host's name
        name: Label,
        /// Revoke only those of this role: donor or client [default: both]
        #[arg(long)]
        role: Option<Role>,
    },
}

#[derive(Debug, Subcommand)]
pub enum DonorsCommand {
    /// Use the memory of one more donor from now on
    Add {
        // No doc comment: its brackets would be links.
        #[arg(
            help = "Its agent's address, HOST:PORT, with options as annexd's --donor takes them: HOST:PORT[,transport=auto|verbs|tcp|shm][,tcp_fallback=false][,name=NAME]"
        )]
        donor: DonorSpec,
        /// What to call it [default: the agent's own name]
        #[arg(long)]
        name: Option<String>,
        /// auto (the best one), verbs, tcp or shm [default: auto]
        #[arg(long)]
        transport: Option<TransportChoice>,
    },
    /// Move what lies on a donor elsewhere and do without it
    Remove {
        /// The donor's name or address
        donor: String,
    },
}

/// What `run` and `attach` have in common.
#[derive(Debug, Args)]
pub struct AppArgs {
    /// Memory the app may keep resident: bytes with a unit (512M, 2G), a share (50%), or auto,
    /// auto:1%: as little as it can have and wait for its pages no longer than that [default:
    /// annexd's, which is 50% unless configured]
    #[arg(long, value_name = "LIMIT")]
    pub local: Option<Local>,
    /// What to call the app [default: the program's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Refuse while too few donors are up to page to [default: it keeps its pages until they are]
    #[arg(long)]
    pub require_donors: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub app: AppArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one frame as text and end; with --json, what it is made of
    #[arg(long)]
    pub once: bool,
    /// How often annexd is asked, 1s to 1h; with --once, the time that rates are of
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens from now on, until interrupted; survives annexd being replaced
    #[arg(long, short)]
    pub follow: bool,
    /// Only what is younger than this: 30s, 10m, 2h [default: all]
    #[arg(long, value_name = "TIME")]
    pub since: Option<TimeSpan>,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Also write all that a maintainer needs to this new file, without secrets [default: none]
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// annexd's configuration file [default: /etc/annex/annexd.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Look at the /proc, /sys and /dev that lie beneath this folder
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

#[derive(Debug, Args)]
pub struct AdviseArgs {
    /// Look at these processes and their children only
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
    /// How long to look, 1s to 24h. Memory that is not touched meanwhile is cold
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = sampling)]
    pub time: Duration,
    /// Leave out programs with less anonymous memory than this, unless their PID is given
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub least: u64,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Memory that is touched
    #[arg(long, default_value = "512M", value_parser = size)]
    pub size: u64,
    /// What may stay resident of it, one after the other
    #[arg(long, value_name = "LIMIT", value_delimiter = ',', default_value = "50%,25%")]
    pub local: Vec<Limit>,
    /// How it is touched, one after the other
    #[arg(long, value_delimiter = ',', default_value = "random,sequential,zipf")]
    pub patterns: Vec<Pattern>,
    /// Each on a part of the memory and a CPU of its own
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Measured at a time, after half as long to settle
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    pub seconds: f64,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
}

#[derive(Debug, Args)]
pub struct PatternArgs {
    pub pattern: Pattern,
    #[arg(long, value_parser = size)]
    pub size: u64,
    #[arg(long, value_parser = seconds)]
    pub seconds: f64,
    #[arg(long)]
    pub threads: usize,
    #[arg(long)]
    pub seed: u64,
}

fn size(text: &str) -> Result<u64, &'static str> {
    parse_bytes(text).filter(|bytes| *bytes >= 1 << 20).ok_or("give a size such as 512M; 1M is the least")
}

fn interval(text: &str) -> Result<Duration, String> {
    span(text, 3600, "give 1s to 1h")
}

fn sampling(text: &str) -> Result<Duration, String> {
    span(text, 24 * 3600, "give 1s to 24h")
}

/// From a second to so many.
fn span(text: &str, most: u64, otherwise: &str) -> Result<Duration, String> {
    let span: TimeSpan = text.parse().map_err(|bad: UnitError| bad.to_string())?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(most);
    if bounds.contains(&span.0) { Ok(span.0) } else { Err(otherwise.into()) }
}

fn seconds(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|s| (0.01..=3600.0).contains(s)).ok_or("give seconds, 0.01 to 3600")
}

#[derive(Debug, Args)]
#[group(skip)]
#[command(group(ArgGroup::new("what").required(true).args(["pid", "unit", "container", "cgroup"])))]
pub struct AttachArgs {
    /// The process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// A systemd unit: all processes of its cgroup
    #[arg(long, value_name = "UNIT")]
    pub unit: Option<String>,
    /// A container, by its name, its id, or 4 digits and more of its id: all its processes
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// A cgroup and those below it: its folder, or its path as /proc/PID/cgroup shows it
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
    #[command(flatten)]
    pub app: AppArgs,
    /// Return at once instead of waiting until the app is down to its limit
    #[arg(long)]
    pub no_wait: bool,
}

/// Prints a usage error, help or the version. `annex run` fails with its own code, since 2 may be
/// the command's.
pub fn explain(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    let runs = subcommand(std::env::args_os().skip(1)).is_some_and(|word| word == "run");
    ExitCode::from(if runs { CANNOT_RUN } else { USAGE })
}

/// The first word that is neither an option nor an option's value, on a line that clap could not
/// make sense of.
fn subcommand(mut words: impl Iterator<Item = OsString>) -> Option<OsString> {
    while let Some(word) = words.next() {
        if word == "--socket" {
            words.next();
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            return Some(word);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &[&str]) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line).map(|cli| cli.command)
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_with_a_value_tells_its_default() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let takes_value = |arg: &&clap::Arg| arg.get_long().is_some() && arg.get_action().takes_values();
            for option in command.get_arguments().filter(takes_value) {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                // There is no usual target.
                let is_target = ["unit", "container", "cgroup"].contains(&option.get_id().as_str());
                let tells = is_target || help.contains("[default: ") || !option.get_default_values().is_empty();
                assert!(tells && !help.is_empty(), "{} --{}: {help}", command.get_name(), option.get_id());
            }
            commands.extend(command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned());
        }
    }

    #[test]
    fn the_commands_own_options_are_left_to_it() {
        for line in [
            &["annex", "run", "--local", "1G", "--", "sort", "--json", "-u"][..],
            &["annex", "run", "--local", "1G", "sort", "--json", "-u"][..],
        ] {
            let Ok(Command::Run(run)) = parse(line) else { panic!("{line:?}") };
            assert_eq!(run.command, ["sort", "--json", "-u"]);
            assert_eq!(run.app.local, Some(Local::Fixed(Limit::Bytes(1 << 30))));
        }
    }

    #[test]
    fn the_subcommand_is_found_behind_options() {
        for line in [&["run", "x"][..], &["--json", "run"], &["--socket", "/x", "run"], &["--socket=/x", "run"]] {
            assert_eq!(subcommand(line.iter().map(OsString::from)), Some("run".into()), "{line:?}");
        }
        assert_eq!(subcommand(["--socket", "run"].iter().map(OsString::from)), None);
    }

    #[test]
    fn an_attach_needs_one_target() {
        assert!(parse(&["annex", "attach"]).is_err());
        assert!(parse(&["annex", "attach", "0"]).is_err());
        assert!(parse(&["annex", "attach", "7", "--unit", "a.service"]).is_err());
        assert!(parse(&["annex", "attach", "--container", "web", "--cgroup", "/a"]).is_err());
        assert!(parse(&["annex", "attach", "7", "--no-wait"]).is_ok());
        assert!(parse(&["annex", "attach", "--container", "web"]).is_ok());
        assert!(parse(&["annex", "attach", "--cgroup", "/system.slice/a.service"]).is_ok());
        assert!(parse(&["annex", "attach", "--unit", "a.service", "--local", "25%"]).is_ok());
    }
}
