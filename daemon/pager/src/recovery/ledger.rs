//! The apps, written down for the annexd that comes after: what can't be read off their address
//! spaces.
//!
//! # Layout, version 1 (little-endian, offsets in bytes)
//! ```text
//! 0        magic "annexapp"                                   8
//! 8        version = 1                                        u32
//! 12       which half counts: 0 none yet, 1 or 2              u32
//! 4096     first half: length u32, CRC32C u32, then JSON in words of u32, padded with zeros
//! 8 MiB    second half, the same
//! ```
//! A change is written to the half that does not count, and then that one does.

use crate::app::App;
use annex_host::mapped::{MapError, Mapped};
use annex_shared::api::{Limit, StallTarget, Target};
use annex_shared::page::checksum;
use parking_lot::Mutex;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

const MAGIC: u64 = u64::from_le_bytes(*b"annexapp");
const VERSION: u32 = 1;
const HALVES: [usize; 2] = [4096, 8 << 20];
const ROOM: usize = (8 << 20) - 4096 - 8;
const LEN: usize = 16 << 20;

/// The ledger could not be made or taken over.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(
        "the saved list of apps has layout version {0}, this annexd knows {VERSION}: start the annexd that wrote it"
    )]
    Version(u32),
    #[error("the saved list of apps is damaged: {0}")]
    Damaged(&'static str),
}

/// An app as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub id: u64,
    pub name: String,
    pub uid: u32,
    /// Not written by every annexd.
    #[serde(default)]
    pub of_ordinary_user: bool,
    pub target: Target,
    #[serde(deserialize_with = "limit")]
    pub limit: Limit,
    /// Set if annexd finds the limit. Not written by every annexd; one that does not know it keeps
    /// the limit as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<StallTarget>,
    pub note: String,
    /// PIDs and when each was started.
    pub members: Vec<(i32, u64)>,
}

/// A limit in any form that an annexd has written. Those before took, and wrote, few bytes without
/// a unit.
fn limit<'de, D: Deserializer<'de>>(input: D) -> Result<Limit, D::Error> {
    let text = String::deserialize(input)?;
    match text.parse::<u64>() {
        Ok(bytes) => Ok(Limit::Bytes(bytes)),
        Err(_) => text.parse().map_err(D::Error::custom),
    }
}

impl Entry {
    pub fn of(app: &App) -> Entry {
        let (limit, auto) = (app.limit(), app.auto().map(|auto| auto.target));
        Entry {
            id: app.id,
            name: app.name.clone(),
            uid: app.uid,
            of_ordinary_user: app.is_of_ordinary_user(),
            target: app.target.clone(),
            limit,
            auto,
            note: app.current_note(),
            members: app.members.lock().iter().map(|m| (m.pid, m.started)).collect(),
        }
    }
}

pub struct Ledger {
    map: Mapped,
    /// What is written, so that the same is not written again.
    last: Mutex<Vec<Entry>>,
}

impl Ledger {
    pub fn create() -> Result<Ledger, LedgerError> {
        let map = Mapped::create("annex-apps", LEN)?;
        map.u32(8).store(VERSION, Relaxed);
        map.u64(0).store(MAGIC, SeqCst);
        Ok(Ledger { map, last: Mutex::default() })
    }

    /// The ledger of an annexd that is gone.
    pub fn open(fd: OwnedFd) -> Result<Ledger, LedgerError> {
        let map = Mapped::open("annex-apps", fd)?;
        if map.size() < 4096 || map.u64(0).load(Acquire) != MAGIC {
            return Err(LedgerError::Damaged("it is no list of apps"));
        }
        let version = map.u32(8).load(Relaxed);
        if version != VERSION {
            return Err(LedgerError::Version(version));
        }
        if map.size() != LEN {
            return Err(LedgerError::Damaged("its length is not the layout's"));
        }
        let last = read(&map)?;
        Ok(Ledger { map, last: Mutex::new(last) })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd()
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.last.lock().clone()
    }

    /// Writes the apps down, if anything changed.
    pub fn write(&self, apps: &[Arc<App>]) {
        let entries: Vec<Entry> = apps.iter().map(|app| Entry::of(app)).collect();
        let mut last = self.last.lock();
        if *last == entries {
            return;
        }
        let text = serde_json::to_vec(&entries).unwrap_or_default();
        if text.len() > ROOM || (text.is_empty() && !entries.is_empty()) {
            // The half that counts stays: a successor knows the apps as they were.
            tracing::error!("the list of apps is too long to be written down ({} bytes)", text.len());
            return;
        }
        let half = usize::from(self.map.u32(12).load(Relaxed) == 1);
        let at = HALVES[half];
        self.map.u32(at).store(text.len() as u32, Relaxed);
        self.map.u32(at + 4).store(checksum(&text), Relaxed);
        for (i, word) in text.chunks(4).enumerate() {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            self.map.u32(at + 8 + i * 4).store(u32::from_le_bytes(bytes), Relaxed);
        }
        self.map.u32(12).store(half as u32 + 1, SeqCst);
        *last = entries;
    }
}

fn read(map: &Mapped) -> Result<Vec<Entry>, LedgerError> {
    let half = match map.u32(12).load(Acquire) {
        0 => return Ok(Vec::new()),
        half @ (1 | 2) => HALVES[half as usize - 1],
        _ => return Err(LedgerError::Damaged("it has no third half")),
    };
    let len = map.u32(half).load(Relaxed) as usize;
    if len > ROOM {
        return Err(LedgerError::Damaged("its length is more than there is room for"));
    }
    let words = (0..len.div_ceil(4)).flat_map(|i| map.u32(half + 8 + i * 4).load(Relaxed).to_le_bytes());
    let text: Vec<u8> = words.take(len).collect();
    if checksum(&text) != map.u32(half + 4).load(Relaxed) {
        return Err(LedgerError::Damaged("its checksum is wrong"));
    }
    serde_json::from_slice(&text).map_err(|_| LedgerError::Damaged("it can't be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(id: u64, name: &str) -> Arc<App> {
        Arc::new(App::new(id, name.into(), 7, Target::Launch(3), Limit::Percent(40)).of_ordinary_user(true))
    }

    #[test]
    fn a_successor_reads_what_was_written_last() {
        let ledger = Ledger::create().unwrap();
        assert!(Ledger::open(nix::unistd::dup(ledger.fd()).unwrap()).unwrap().entries().is_empty());
        ledger.write(&[app(1, "a")]);
        ledger.write(&[app(1, "a"), app(2, "bc")]);
        let entries = Ledger::open(nix::unistd::dup(ledger.fd()).unwrap()).unwrap().entries();
        assert_eq!(entries, [Entry::of(&app(1, "a")), Entry::of(&app(2, "bc"))]);
    }

    #[test]
    fn few_bytes_without_a_unit_are_read_as_they_were_written() {
        // What an annexd wrote that took `--local 50`.
        let text = serde_json::to_string(&Entry::of(&app(1, "a"))).unwrap().replace("40%", "50");
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap().limit, Limit::Bytes(50));
    }

    #[test]
    fn that_a_limit_is_found_is_written_down_beside_the_limit() {
        let target = "0.5%".parse().unwrap();
        let found = App::new(1, "a".into(), 0, Target::Pid(1), Limit::Bytes(5 << 20)).with_auto(Some(target));
        let text = serde_json::to_string(&Entry::of(&found)).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap().auto, Some(target));
        assert!(text.contains(r#""limit":"5242880","auto":"0.5%""#), "an older annexd finds a limit: {text}");
        let fixed = serde_json::to_string(&Entry::of(&app(1, "a"))).unwrap();
        assert!(!fixed.contains("auto"), "{fixed}");
        assert_eq!(serde_json::from_str::<Entry>(&fixed).unwrap().auto, None);
    }

    #[test]
    fn another_version_and_damage_are_told_apart() {
        let ledger = Ledger::create().unwrap();
        ledger.write(&[app(1, "a")]);
        let opened = || Ledger::open(nix::unistd::dup(ledger.fd()).unwrap()).err();
        ledger.map.u32(HALVES[0] + 8).store(0, Relaxed);
        assert!(matches!(opened(), Some(LedgerError::Damaged("its checksum is wrong"))));
        ledger.map.u32(8).store(2, Relaxed);
        assert!(matches!(opened(), Some(LedgerError::Version(2))));
    }
}
