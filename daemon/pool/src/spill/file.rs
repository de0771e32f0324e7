//! The file itself: whether it can be one, whose it is, and what it was before.

use crate::donor::dial::DialError;
use annex_fabric::file::{Disk, start_disk};
use annex_host::events::{self, EventKind};
use annex_shared::api::SPILL;
use annex_shared::config::ByteSize;
use annex_shared::ids::Incarnation;
use annex_shared::wire::Lease;
use nix::sys::statfs::{FsType, fstatfs, statfs};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"annexspl";
const VERSION: u32 = 1;
/// Where the first slab begins.
const HEADER: usize = 4096;
/// The keeper of an annexd that was killed with nothing to keep has the file open a moment longer.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// An error of the disk is told of for so long.
const TROUBLE_LATELY: Duration = Duration::from_secs(600);
const TMPFS: FsType = FsType(0x0102_1994);
const RAMFS: FsType = FsType(0x8584_58f6);

/// `[spill]` in annexd's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpillConfig {
    /// The file, on a local disk; empty = none. annexd makes it, and what is in it is nobody
    /// else's.
    pub path: PathBuf,
    /// The most bytes of pages it takes.
    pub size: ByteSize,
}

impl Default for SpillConfig {
    fn default() -> SpillConfig {
        SpillConfig { path: PathBuf::new(), size: ByteSize(0) }
    }
}

/// There can be no spill file at this path. `Display` names it.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    #[error("[spill] has a size and no path: give path = \"/var/lib/annex/spill\" or remove both")]
    NoPath,
    #[error("path = \"{}\" in [spill] is not absolute", .0.display())]
    Relative(PathBuf),
    #[error("size = {0} in [spill]: give a size of at least 64K, such as \"8G\"")]
    Size(ByteSize),
    #[error("the spill file {} can't be made: there is no directory {}; make it, on a local disk", .path.display(), .directory.display())]
    NoDirectory { path: PathBuf, directory: PathBuf },
    #[error("the spill file {} would lie in memory ({kind}), which is what it is to save: give a path on a disk", .path.display())]
    InMemory { path: PathBuf, kind: &'static str },
    #[error("the spill file {} is to take {size}, and its file system has {available} left: make size smaller or make room", .path.display())]
    NoSpace { path: PathBuf, size: ByteSize, available: ByteSize },
    #[error(
        "the file system of the spill file {} does no direct I/O, so that the file's pages would fill the memory it is to save: give a path on ext4, xfs or the like",
        .path.display()
    )]
    NoDirectIo { path: PathBuf },
    #[error("the spill file {} is another annexd's: it is locked", .0.display())]
    Locked(PathBuf),
    #[error("{} is no spill file of annex, and is not overwritten: remove it or give another path in [spill]", .0.display())]
    Foreign(PathBuf),
    #[error("pages of running programs are in another spill file than {}: give the old path in [spill] again", .0.display())]
    Moved(PathBuf),
    #[error("the spill file {} can't be opened or set up: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl SpillConfig {
    pub fn is_on(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }

    /// Checks what needs no look at the file system.
    pub fn check(&self) -> Result<(), SpillError> {
        if !self.is_on() {
            return if self.size.0 == 0 { Ok(()) } else { Err(SpillError::NoPath) };
        }
        if !self.path.is_absolute() {
            return Err(SpillError::Relative(self.path.clone()));
        }
        if self.size.0 < 64 << 10 {
            return Err(SpillError::Size(self.size));
        }
        Ok(())
    }
}

/// An open spill file.
#[derive(Debug)]
pub struct Spill {
    file: File,
    path: PathBuf,
    size: u64,
    incarnation: Incarnation,
    /// How long one I/O may take before the disk counts as hanging.
    patience: Duration,
    /// What the annexd before had leased, until the disk knows.
    inherited: Mutex<Vec<(Incarnation, Lease)>>,
    /// There as soon as the size of slabs is known.
    disk: OnceLock<(u64, Arc<Disk>)>,
    /// Of the trouble that was told last.
    told: Mutex<Option<Instant>>,
}

/// A block as direct I/O wants it.
#[repr(C, align(4096))]
struct Block([u8; HEADER]);

impl Spill {
    /// Opens the file, or makes it; `None` if none is configured. `kept` is the descriptor that the
    /// annexd before had. With `resume` what is in the file counts, since there are tables that
    /// tell what it is; else it begins empty.
    pub fn open(
        config: &SpillConfig,
        kept: Option<OwnedFd>,
        resume: bool,
        patience: Duration,
    ) -> Result<Option<Arc<Spill>>, SpillError> {
        config.check()?;
        if !config.is_on() {
            return Ok(None);
        }
        let path = config.path.clone();
        let failed = |source| SpillError::Io { path: path.clone(), source };
        let (file, resume) = match kept {
            Some(kept) => (same(File::from(kept), &path)?, true),
            None => (open(config)?, resume),
        };
        let header = match read_header(&file) {
            Ok(header) => header,
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(SpillError::Foreign(path)),
            Err(error) => return Err(failed(error)),
        };
        let incarnation = match header {
            Some(incarnation) if resume => incarnation,
            _ => {
                file.set_len(0).map_err(failed)?;
                check_space(config, &file)?;
                let incarnation = Incarnation(rand::random());
                write_header(&file, incarnation).map_err(|error| match error.raw_os_error() {
                    Some(libc::EINVAL) => SpillError::NoDirectIo { path: path.clone() },
                    _ => failed(error),
                })?;
                incarnation
            }
        };
        Ok(Some(Arc::new(Spill {
            file,
            path,
            size: config.size.0,
            incarnation,
            patience,
            inherited: Mutex::default(),
            disk: OnceLock::new(),
            told: Mutex::default(),
        })))
    }

    /// To be kept where it outlives this process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Throws away what is in it: nobody can ask for it any more.
    pub fn empty(&self) {
        if let Some((_, disk)) = self.disk.get() {
            disk.stop();
        }
        if let Err(error) = self.file.set_len(0) {
            tracing::warn!("the spill file {} can't be emptied: {error}", self.path.display());
        }
    }

    /// The last error of its disk, if that was lately.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (when, why) = self.disk.get()?.1.trouble()?;
        (when.elapsed() < TROUBLE_LATELY).then(|| self.complaint(&why))
    }

    fn complaint(&self, why: &str) -> String {
        format!("the spill file {}: {why}", self.path.display())
    }

    /// Notes an event if there is news of that.
    pub(super) fn tell_of_trouble(&self) {
        let Some((when, why)) = self.disk.get().and_then(|(_, disk)| disk.trouble()) else { return };
        if self.told.lock().replace(when) != Some(when) {
            events::record(EventKind::SpillFailed, SPILL, None, &self.complaint(&why));
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What the extent table says is leased here. Before the first [`Spill::disk`].
    pub(crate) fn inherit(&self, leases: Vec<(Incarnation, Lease)>) {
        *self.inherited.lock() = leases;
    }

    /// Slabs it has room for.
    pub(super) fn slabs(&self, slab_size: u64) -> u32 {
        u32::try_from(self.size / slab_size).unwrap_or(u32::MAX)
    }

    /// Bytes left on its file system, to annexd.
    pub(super) fn available(&self) -> u64 {
        fstatfs(&self.file).map_or(0, |s| s.blocks_available() * s.block_size() as u64)
    }

    /// The disk with slabs of that size, started at the first call.
    pub(super) fn disk(&self, slab_size: u64) -> Result<Arc<Disk>, DialError> {
        if slab_size == 0 {
            return Err(DialError::NoSlabSize);
        }
        if let Some((size, disk)) = self.disk.get() {
            return match *size == slab_size {
                true => Ok(disk.clone()),
                false => Err(DialError::SlabSize { theirs: *size, ours: slab_size }),
            };
        }
        let capacity = self.slabs(slab_size);
        if capacity == 0 {
            return Err(DialError::SpillTooSmall { size: self.size, slab: slab_size });
        }
        let inherited = std::mem::take(&mut *self.inherited.lock());
        // What is there stays, should the file have been configured smaller meanwhile.
        let regions = inherited.iter().map(|(_, l)| l.slab.0 + 1).max().unwrap_or(0).max(capacity);
        let start = || -> io::Result<Arc<Disk>> {
            let file = self.file.as_fd().try_clone_to_owned()?;
            start_disk(file, "the spill file", (HEADER as u64, slab_size, regions), self.patience)
        };
        let disk = start().map_err(DialError::SpillStart)?;
        for (incarnation, lease) in inherited {
            if incarnation == self.incarnation && !disk.adopt(lease.slab, lease.rkey) {
                tracing::error!("{} of the spill file is leased twice by the saved tables", lease.slab);
            }
        }
        disk.punch_unlent();
        Ok(self.disk.get_or_init(|| (slab_size, disk)).1.clone())
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if let Some((_, disk)) = self.disk.get() {
            disk.stop();
        }
    }
}

/// The kept descriptor, if the path still leads to its file.
fn same(kept: File, path: &Path) -> Result<File, SpillError> {
    let failed = |source| SpillError::Io { path: path.to_owned(), source };
    let (ours, theirs) = (kept.metadata().map_err(failed)?, path.metadata());
    match theirs {
        Ok(theirs) if (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()) => Ok(kept),
        _ => Err(SpillError::Moved(path.to_owned())),
    }
}

/// Opens or makes the file, as one that nobody else has.
fn open(config: &SpillConfig) -> Result<File, SpillError> {
    let path = &config.path;
    let failed = |source| SpillError::Io { path: path.clone(), source };
    let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
    if !directory.is_dir() {
        return Err(SpillError::NoDirectory { path: path.clone(), directory });
    }
    let kind = statfs(&directory).map_err(|e| failed(e.into()))?.filesystem_type();
    if let Some((_, kind)) = [(TMPFS, "tmpfs"), (RAMFS, "ramfs")].into_iter().find(|(k, _)| *k == kind) {
        return Err(SpillError::InMemory { path: path.clone(), kind });
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let opened = options.custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => SpillError::NoDirectIo { path: path.clone() },
        _ => failed(error),
    })?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(SpillError::Foreign(path.clone()));
    }
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => return Err(SpillError::Locked(path.clone())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
    if metadata.permissions().mode() & 0o777 != 0o600 {
        file.set_permissions(PermissionsExt::from_mode(0o600)).map_err(failed)?;
    }
    Ok(file)
}

fn check_space(config: &SpillConfig, file: &File) -> Result<(), SpillError> {
    let (path, size) = (config.path.clone(), config.size);
    let stat = fstatfs(file).map_err(|e| SpillError::Io { path: path.clone(), source: e.into() })?;
    let available = ByteSize(stat.blocks_available() * stat.block_size() as u64);
    if available.0 < size.0 { Err(SpillError::NoSpace { path, size, available }) } else { Ok(()) }
}

/// `None`: the file is empty. `InvalidData`: it is something else.
fn read_header(file: &File) -> io::Result<Option<Incarnation>> {
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    let mut block = Block([0; HEADER]);
    file.read_exact_at(&mut block.0, 0).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => ErrorKind::InvalidData.into(),
        _ => error,
    })?;
    let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| block.0[at + i]));
    if block.0[..8] != MAGIC || field(8) as u32 != VERSION {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(Some(Incarnation(field(16))))
}

fn write_header(file: &File, incarnation: Incarnation) -> io::Result<()> {
    let mut block = Block([0; HEADER]);
    block.0[..8].copy_from_slice(&MAGIC);
    block.0[8..12].copy_from_slice(&VERSION.to_le_bytes());
    block.0[16..24].copy_from_slice(&incarnation.0.to_le_bytes());
    file.write_all_at(&block.0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(3);

    fn config(path: impl Into<PathBuf>) -> SpillConfig {
        SpillConfig { path: path.into(), size: ByteSize(1 << 20) }
    }

    /// On a disk, unlike /tmp perhaps.
    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/var/tmp").unwrap()
    }

    fn refused(config: &SpillConfig) -> String {
        Spill::open(config, None, false, PATIENCE).unwrap_err().to_string()
    }

    #[test]
    fn none_is_configured_unless_asked_for() {
        assert!(Spill::open(&SpillConfig::default(), None, false, PATIENCE).unwrap().is_none());
    }

    #[test]
    fn a_place_that_will_not_do_is_refused_with_the_reason() {
        let dir = directory();
        let nowhere = refused(&config(dir.path().join("no/spill")));
        assert!(nowhere.contains("there is no directory") && nowhere.contains("no/spill"), "{nowhere}");
        let in_memory = refused(&config("/dev/shm/annex-spill-test"));
        assert!(in_memory.contains("would lie in memory (tmpfs)"), "{in_memory}");
        let huge = refused(&SpillConfig { size: ByteSize(1 << 60), ..config(dir.path().join("spill")) });
        assert!(huge.contains("is to take 1048576 TiB") && huge.contains("left: make size smaller"), "{huge}");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("spill"), &link).unwrap();
        assert!(refused(&config(&link)).contains("can't be opened"));
    }

    #[test]
    fn a_file_that_is_somebody_elses_is_left_alone() {
        let dir = directory();
        let path = dir.path().join("letters");
        for content in ["dear all".to_owned(), "x".repeat(10_000)] {
            std::fs::write(&path, &content).unwrap();
            assert!(refused(&config(&path)).contains("is no spill file of annex, and is not overwritten"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }

    #[test]
    fn the_file_is_locked_and_for_its_owner_alone() {
        let dir = directory();
        let config = config(dir.path().join("spill"));
        let spill = Spill::open(&config, None, false, PATIENCE).unwrap();
        assert_eq!(std::fs::metadata(&config.path).unwrap().mode() & 0o777, 0o600);
        assert!(refused(&config).contains("is another annexd's"));
        drop(spill);
        assert!(Spill::open(&config, None, false, PATIENCE).unwrap().is_some());
    }

    #[test]
    fn only_who_has_the_tables_goes_on_with_the_content() {
        let dir = directory();
        let config = config(dir.path().join("spill"));
        let open = |kept, resume| Spill::open(&config, kept, resume, PATIENCE).unwrap().unwrap();
        let first = open(None, false);
        let (incarnation, kept) = (first.incarnation, first.fd().try_clone_to_owned().unwrap());
        drop(first);
        let second = open(Some(kept), true);
        assert_eq!(second.incarnation, incarnation);
        drop(second);
        assert_eq!(open(None, true).incarnation, incarnation);
        assert_ne!(open(None, false).incarnation, incarnation);
    }

    #[test]
    fn a_kept_file_that_the_path_no_longer_names_is_not_exchanged_in_silence() {
        let dir = directory();
        let config = config(dir.path().join("spill"));
        let spill = Spill::open(&config, None, false, PATIENCE).unwrap().unwrap();
        let kept = spill.fd().try_clone_to_owned().unwrap();
        std::fs::remove_file(&config.path).unwrap();
        let error = Spill::open(&config, Some(kept), true, PATIENCE).unwrap_err().to_string();
        assert!(error.contains("are in another spill file than"), "{error}");
    }
}
