//! The three files by which a host is known, in a folder of their own: `annex join` and
//! `annex ca issue` make them.

use crate::failure::Failure;
use annex_cli::command::CaFiles;
use annex_identity::certificate::Facts;
use annex_identity::files::FileError;
use annex_identity::identity::{Files, facts};
use annex_identity::join::ask::Joined;
use annex_identity::key::Key;
use annex_identity::names::Role;
use annex_identity::token::Address;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Where they are to be.
pub struct HostFiles {
    dir: PathBuf,
    files: Files,
}

impl HostFiles {
    /// In a folder that has none of them, unless they may be replaced.
    pub fn of(args: &CaFiles) -> Result<HostFiles, Failure> {
        // Daemons are started in other folders.
        let dir =
            std::path::absolute(&args.to).map_err(|source| Failure::HostFiles { dir: args.to.clone(), source })?;
        let of = |name| dir.join(name);
        let files = Files { ca: of("ca.pem"), certificate: of("cert.pem"), key: of("key.pem"), revocations: None };
        let taken =
            [&files.certificate, &files.key, &files.ca].into_iter().find(|path| path.symlink_metadata().is_ok());
        if let Some(path) = taken.filter(|_| !args.replace) {
            let holder = facts(&files).ok().map(|own| own.name.to_string());
            return Err(Failure::HostFilesExist { path: path.clone(), holder });
        }
        Ok(HostFiles { dir, files })
    }

    /// Makes the folder, so that what can't be written is known before a token is used up.
    pub fn prepare(&self) -> Result<(), Failure> {
        let told = |source| Failure::HostFiles { dir: self.dir.clone(), source };
        std::fs::create_dir_all(&self.dir).map_err(told)?;
        tempfile_in(&self.dir).map_err(told)
    }

    pub fn save(&self, joined: &Joined, key: &Key) -> Result<(), FileError> {
        joined.save(&self.files, key)
    }

    /// `renew` is where the daemon renews it, and `ca` the folder of the CA if it is on this host.
    pub fn made(&self, joined: &Joined, renew: Option<&Address>, ca: Option<&Path>) -> Result<Made, Failure> {
        let own = Facts::of(&joined.certificate).map_err(|e| Failure::Garbled(e.to_string()))?;
        let path = |path: &Path| path.display().to_string();
        let (ca_file, cert, key) = (path(&self.files.ca), path(&self.files.certificate), path(&self.files.key));
        let mut lines = format!("[tls]\nca = {ca_file:?}\ncert = {cert:?}\nkey = {key:?}\n");
        lines += &renew.map_or_else(String::new, |address| format!("renew = \"{address}\"\n"));
        lines += &ca.map_or_else(String::new, |dir| format!("\n[ca]\ndir = {:?}\n", path(dir)));
        Ok(Made {
            host: own.name.to_string(),
            role: own.name.role,
            own: own.to_string(),
            ca: ca_file,
            cert,
            key,
            lines,
        })
    }
}

fn tempfile_in(dir: &Path) -> std::io::Result<()> {
    let probe = dir.join(format!(".probe.{}", std::process::id()));
    std::fs::write(&probe, "")?;
    std::fs::remove_file(probe)
}

/// What there is now.
#[derive(Serialize)]
pub struct Made {
    host: String,
    #[serde(skip)]
    role: Role,
    /// With the day on which it ends.
    #[serde(skip)]
    own: String,
    ca: String,
    cert: String,
    key: String,
    /// For the daemon's configuration file.
    #[serde(rename = "configuration")]
    lines: String,
}

impl Made {
    pub fn text(&self) -> String {
        let file = match self.role {
            Role::Donor => "/etc/annex/agent.toml",
            Role::Client => "/etc/annex/annexd.toml",
        };
        let Made { own, ca, cert, key, lines, .. } = self;
        format!("this host is {own}\nwrote {key}, {ca} and {cert}\nset in {file}:\n\n{lines}")
    }
}
