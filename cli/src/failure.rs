//! Everything that can go wrong, as the user reads it, and the exit codes.

use annex_cli::command::{CANNOT_RUN, USAGE};
use annex_identity::ca::CaError;
use annex_identity::ca::registry::Refusal;
use annex_identity::files::FileError;
use annex_identity::join::ask::JoinError;
use annex_identity::names::Name;
use annex_identity::token::{Address, TokenError};
use annex_shared::api::{ApiError, ErrorCode};
use annex_shared::printable::{printable, printable_json};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

const NOT_EXECUTABLE: u8 = 126;
const COMMAND_NOT_FOUND: u8 = 127;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// annexd said no.
    #[error(transparent)]
    Refused(#[from] ApiError),
    #[error("annexd is not running: nothing answers on {}", .socket.display())]
    NotRunning { socket: PathBuf },
    #[error("failed to connect to annexd on {}: {source}", .socket.display())]
    Connect { socket: PathBuf, source: io::Error },
    #[error("lost the connection to annexd: {0}")]
    Lost(String),
    #[error("annexd's answer makes no sense: {0}")]
    Garbled(String),
    #[error("the app '{0}' has ended")]
    Ended(String),
    #[error("failed to run '{command}': {}", if .source.kind() == io::ErrorKind::NotFound { "command not found".into() } else { .source.to_string() })]
    Exec { command: String, source: io::Error },
    #[error("failed to measure '{cell}': {why}")]
    Workload { cell: String, why: String },
    #[error("failed to run the command: its arguments hold a zero byte")]
    ZeroByte,
    #[error("failed to write the output: {0}")]
    Output(#[source] io::Error),
    #[error("annex top needs a terminal, and {0} is none")]
    NotTerminal(&'static str),
    #[error("failed to use the terminal: {0}")]
    Terminal(#[source] io::Error),
    #[error("failed to set up the connection to annexd: {0}")]
    Setup(#[source] io::Error),
    #[error(transparent)]
    Ca(#[from] CaError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("failed to read the token from standard input: {0}")]
    Input(#[source] io::Error),
    #[error("failed to join at {at}: {why}")]
    Join { at: Address, why: JoinError },
    #[error("failed to join: {}", each(.0))]
    JoinNowhere(Vec<(Address, JoinError)>),
    #[error("failed to make files in {}: {source}", .dir.display())]
    HostFiles { dir: PathBuf, source: io::Error },
    #[error(
        "there is a file {} already{}",
        .path.display(),
        .holder.as_ref().map_or_else(String::new, |holder| format!(", and this host is {holder} by it"))
    )]
    HostFilesExist { path: PathBuf, holder: Option<String> },
    #[error("{host} has a certificate now, and it could not be kept: {why}")]
    Unsaved { host: Name, why: FileError },
    #[error("failed to write the bundle {}: {source}", .path.display())]
    Bundle { path: PathBuf, source: io::Error },
    #[error("there is a file {} already, and a bundle replaces none", .path.display())]
    BundleExists { path: PathBuf },
    #[error("failed to read the request {}: {why}", .path.display())]
    Csr { path: PathBuf, why: String },
    #[error("there is no process {0}, or it has no memory of its own")]
    NoProcess(i32),
    #[error("this kernel does not tell which memory is cold: it has no /proc/PID/clear_refs")]
    NoClearRefs,
}

/// What each of several addresses has led to.
fn each(failures: &[(Address, JoinError)]) -> String {
    failures.iter().map(|(at, why)| format!("{at}: {why}")).collect::<Vec<_>>().join("; ")
}

impl Failure {
    pub fn kind(&self) -> ErrorCode {
        match self {
            Failure::Refused(error) => error.kind,
            Failure::NotRunning { .. } | Failure::Lost(_) => ErrorCode::Unavailable,
            Failure::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => ErrorCode::Forbidden,
            Failure::Ended(_) | Failure::Exec { .. } | Failure::NoProcess(_) => ErrorCode::NotFound,
            Failure::NoClearRefs => ErrorCode::Unsupported,
            Failure::Ca(error) => match error {
                CaError::Missing(_) | CaError::Refused(Refusal::NameUnknown(_)) => ErrorCode::NotFound,
                CaError::File(FileError::Read { source, .. } | FileError::Write { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    ErrorCode::Forbidden
                }
                CaError::File(_) | CaError::Damaged { .. } => ErrorCode::Internal,
                CaError::Exists(_) | CaError::TokenLife | CaError::Refused(_) | CaError::Key(_) | CaError::Token(_) => {
                    ErrorCode::BadRequest
                }
            },
            Failure::ZeroByte
            | Failure::Csr { .. }
            | Failure::NotTerminal(_)
            | Failure::BundleExists { .. }
            | Failure::Token(_)
            | Failure::HostFilesExist { .. }
            | Failure::Join { why: JoinError::Refused(_), .. } => ErrorCode::BadRequest,
            Failure::Join { .. } | Failure::JoinNowhere(_) => ErrorCode::Unavailable,
            Failure::HostFiles { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                ErrorCode::Forbidden
            }
            Failure::Bundle { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => ErrorCode::Forbidden,
            Failure::Connect { .. }
            | Failure::Bundle { .. }
            | Failure::Garbled(_)
            | Failure::HostFiles { .. }
            | Failure::Input(_)
            | Failure::Output(_)
            | Failure::Setup(_)
            | Failure::Terminal(_)
            | Failure::Unsaved { .. }
            | Failure::Workload { .. } => ErrorCode::Internal,
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Failure::Refused(error) => error.remedy.clone(),
            Failure::NotRunning { .. } => {
                "start it (systemctl start annexd), or name its socket with --socket; programs that it paged wait for the \
                 next one as long as takeover_wait says"
                    .into()
            }
            Failure::Lost(_) => "see annexd's log (journalctl -u annexd)".into(),
            Failure::Garbled(_) => {
                "annex and annexd must be of the same version (annex --version, annexd --version)".into()
            }
            Failure::Csr { .. } => "make one as docs/commands.md shows (annex ca sign)".into(),
            Failure::NotTerminal(_) => "annex top --once prints one frame as text".into(),
            Failure::Bundle { .. } => "nothing is left of it; give --bundle a file elsewhere".into(),
            Failure::BundleExists { .. } => "give --bundle another name, or remove that file".into(),
            Failure::Join { why: JoinError::Unreached(_), .. } | Failure::JoinNowhere(_) => {
                "start the agent beside the CA, open its port to this host, or name another way there with --address"
                    .into()
            }
            Failure::HostFiles { .. } => "run it as root, or give another folder with --to".into(),
            Failure::HostFilesExist { .. } => {
                "give another folder with --to (a host that is donor and client has two), or --replace".into()
            }
            Failure::Unsaved { host, .. } => {
                format!("mend that, annex ca revoke {} beside the CA, and join with a new token", host.host)
            }
            Failure::NoClearRefs => {
                "use one with CONFIG_PROC_PAGE_MONITOR, which distributions have; or attach with --local auto".into()
            }
            Failure::Ca(CaError::Exists(_)) => "use it, or give another folder with --dir".into(),
            _ => String::new(),
        }
    }

    /// What went wrong and what to do, in one sentence.
    pub fn sentence(&self) -> String {
        match self.remedy() {
            remedy if remedy.is_empty() => self.to_string(),
            remedy => format!("{self}: {remedy}"),
        }
    }

    /// Prints it to standard error.
    pub fn report(&self, json: bool) {
        let (message, remedy) = (self.to_string(), self.remedy());
        if json {
            let error = ApiError { kind: self.kind(), message, remedy };
            eprintln!("{}", printable_json(&serde_json::json!({ "error": error }).to_string()));
        } else {
            eprintln!("annex: {}", printable(&message));
            if !remedy.is_empty() {
                eprintln!("  remedy: {}", printable(&remedy));
            }
        }
    }

    /// The one place where failures become exit codes. The codes of `annex run` must stay out of
    /// its command's way.
    pub fn exit_code(&self, running: bool) -> ExitCode {
        if let Failure::Exec { source, .. } = self {
            let missing = source.kind() == io::ErrorKind::NotFound;
            return ExitCode::from(if missing { COMMAND_NOT_FOUND } else { NOT_EXECUTABLE });
        }
        ExitCode::from(if running { CANNOT_RUN } else { code(self.kind()) })
    }
}

fn code(kind: ErrorCode) -> u8 {
    match kind {
        ErrorCode::Internal => 1,
        ErrorCode::BadRequest => USAGE,
        ErrorCode::Unavailable => 3,
        ErrorCode::NotFound => 4,
        ErrorCode::Forbidden => 5,
        ErrorCode::AlreadyAttached => 6,
        ErrorCode::Unsuitable => 7,
        ErrorCode::Unsupported => 8,
        ErrorCode::NoDonors => 9,
        ErrorCode::NoMemory => 10,
    }
}
