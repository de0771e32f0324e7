//! What a maintainer needs, in one text file: checks, versions, status, events, configuration and
//! facts about the kernel. No memory contents, and no secrets of the configuration.

use super::annexd::{Said, Silence};
use super::config::File;
use super::secrets;
use crate::events;
use crate::failure::Failure;
use annex_doctor::{Host, Report};
use annex_shared::printable::printable_lines;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

/// What the kernel tells of itself and of memory. Nothing here tells what programs do.
const FACTS: &[&str] = &[
    "proc/version",
    "etc/os-release",
    "proc/meminfo",
    "proc/swaps",
    "proc/pressure/memory",
    "proc/sys/vm/swappiness",
    "proc/sys/vm/overcommit_memory",
    "proc/sys/vm/overcommit_ratio",
    "proc/sys/vm/max_map_count",
    "proc/sys/vm/min_free_kbytes",
    "proc/sys/vm/unprivileged_userfaultfd",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/lru_gen/enabled",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/node/online",
];

pub struct Contents<'a> {
    pub report: &'a Report,
    pub answer: &'a Result<Said, Silence>,
    pub file: &'a File,
    pub host: &'a Host,
}

impl Contents<'_> {
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut part = |name: &str, body: &str| {
            // Infallible: it writes to a string.
            let _ = writeln!(text, "== {name}\n{}\n", printable_lines(body.trim_end()));
        };
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        part("annex doctor", &format!("annex {}, {now}", env!("CARGO_PKG_VERSION")));
        part("checks", &self.report.text(false));
        match self.answer {
            Ok(said) => {
                part("status", &serde_json::to_string_pretty(&said.status).unwrap_or_else(|e| e.to_string()));
                part("events", &said.events.iter().map(events::line).collect::<String>());
            }
            Err(Silence::Failed(failure)) => part("status", &failure.to_string()),
            Err(Silence::TooLong) => part("status", "annexd did not answer"),
        }
        part("configuration, without comments and secrets", &self.configuration());
        let daemon = self.answer.as_ref().ok().map(|said| format!("proc/{}", said.status.pid));
        let of_daemon =
            ["limits", "cgroup", "oom_score_adj"].map(|file| daemon.as_ref().map(|d| format!("{d}/{file}")));
        for file in FACTS.iter().map(|file| (*file).to_owned()).chain(of_daemon.into_iter().flatten()) {
            if let Ok(body) = self.host.read(&file) {
                part(&format!("/{file}"), &body);
            }
        }
        text
    }

    fn configuration(&self) -> String {
        match self.file {
            File::Absent => "none".to_owned(),
            File::Unreadable { path, source } => format!("failed to read {}: {source}", path.display()),
            File::Bad { path, .. } => format!("{} is no configuration, and is left out", path.display()),
            File::Read { path, text, .. } => match secrets::left_out(text) {
                Ok(safe) => format!("# {}\n{safe}", path.display()),
                Err(_) => format!("{} is no TOML, and is left out", path.display()),
            },
        }
    }
}

/// Writes a file that was not there, for its owner only. One that can't be finished is removed
/// again. A device or a pipe is written to as it is. Returns the number of bytes.
pub fn write(path: &Path, text: &str) -> Result<usize, Failure> {
    let failed = |source| Failure::Bundle { path: path.to_owned(), source };
    let is_stream = fs::metadata(path).is_ok_and(|found| {
        let kind = found.file_type();
        kind.is_char_device() || kind.is_fifo()
    });
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    if !is_stream {
        options.create_new(true);
    }
    let mut file = options.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Failure::BundleExists { path: path.to_owned() },
        _ => failed(source),
    })?;
    // Some file systems tell of a full disk only when they have to write.
    let written = file.write_all(text.as_bytes()).and_then(|()| if is_stream { Ok(()) } else { file.sync_all() });
    if written.is_err() && !is_stream {
        let _ = fs::remove_file(path);
    }
    written.map(|()| text.len()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_bundle_is_for_its_owner_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bundle.txt");
        assert_eq!(write(&path, "one").unwrap(), 3);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(write(&path, "two"), Err(Failure::BundleExists { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
    }

    #[test]
    fn a_disk_that_is_full_is_said() {
        let error = write(Path::new("/dev/full"), "text").unwrap_err().to_string();
        assert!(error.contains("/dev/full: No space left on device"), "{error}");
    }
}
