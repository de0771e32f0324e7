//! The files of a host, and for whom they are looked at.

use crate::report::Check;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A host, seen by its files.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// A file could not be read.
#[derive(Debug)]
pub struct Unread {
    /// As it is called on the host.
    pub path: String,
    pub source: io::Error,
}

impl Unread {
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// What can't be looked at is no failure.
    pub fn check(&self, name: &str, subject: &Subject) -> Check {
        let message = format!("unknown: failed to read {}: {}", self.path, self.source);
        let remedy = match self.source.kind() {
            io::ErrorKind::PermissionDenied => format!("run it as root: sudo {}", subject.command()),
            _ => "see that /proc and /sys are mounted, as they are outside containers".to_owned(),
        };
        Check::warn(name, message, remedy)
    }
}

impl Host {
    /// This machine.
    pub fn here() -> Host {
        Host::at("/")
    }

    /// One whose files lie beneath a folder.
    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// A file's text without blanks around it. `path` has no slash in front.
    pub fn read(&self, path: &str) -> Result<String, Unread> {
        match fs::read_to_string(self.root.join(path)) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(source) => Err(Unread { path: format!("/{path}"), source }),
        }
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.read(path).ok()?.parse().ok()
    }

    /// The names in a folder, sorted; none if there is no such folder.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.root.join(path).exists()
    }
}

/// What the host is to serve as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Donor,
}

/// Whose limits and rights count: the daemon's if it runs, else those of who asks.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    pub role: Role,
    /// Of the running daemon.
    pub pid: Option<i32>,
}

impl Subject {
    pub fn daemon(&self) -> &'static str {
        match self.role {
            Role::Client => "annexd",
            Role::Donor => "annex-agent",
        }
    }

    pub fn command(&self) -> &'static str {
        match self.role {
            Role::Client => "annex doctor",
            Role::Donor => "annex-agent doctor",
        }
    }

    /// Its folder in /proc.
    pub fn proc(&self) -> String {
        self.pid.map_or_else(|| "proc/self".to_owned(), |pid| format!("proc/{pid}"))
    }

    /// How it is named in messages.
    pub fn who(&self) -> String {
        match self.pid {
            Some(pid) => format!("{} (PID {pid})", self.daemon()),
            None => "this shell".to_owned(),
        }
    }
}
