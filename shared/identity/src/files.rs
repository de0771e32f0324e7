//! Files that are written whole or not at all, and folders that nobody else may look into.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Certificates and keys are small. A file above this is none.
const LARGEST: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("failed to read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to write {}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("others than its owner may read {}: chmod {wanted:o} it", .path.display())]
    Open { path: PathBuf, wanted: u32 },
}

/// Whether others may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    Private,
    Public,
}

impl Secrecy {
    fn mode(self) -> u32 {
        match self {
            Secrecy::Private => 0o600,
            Secrecy::Public => 0o644,
        }
    }
}

pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let read = || {
        let file = File::open(path)?;
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LARGEST { Err(io::Error::from(io::ErrorKind::FileTooLarge)) } else { Ok(bytes) }
    };
    read().map_err(|source| FileError::Read { path: path.to_owned(), source })
}

/// A file that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    pub path: &'a Path,
    pub bytes: &'a [u8],
    pub secrecy: Secrecy,
}

/// Writes a file beside its place and moves it there. After a crash the old or the new one is
/// there, never a part.
pub fn write(path: &Path, bytes: &[u8], secrecy: Secrecy) -> Result<(), FileError> {
    write_together(&[Content { path, bytes, secrecy }])
}

/// Writes several files in the same way. None is moved to its place before all are written: a full
/// disk or a folder that may not be written to changes nothing.
pub fn write_together(contents: &[Content<'_>]) -> Result<(), FileError> {
    let told = |path: &Path, source| FileError::Write { path: path.to_owned(), source };
    let mut written = Vec::new();
    for content in contents {
        written.push(Beside::write(content).map_err(|source| told(content.path, source))?);
    }
    for (content, beside) in contents.iter().zip(written) {
        beside.replace(content.path).map_err(|source| told(content.path, source))?;
    }
    Ok(())
}

/// A whole file that is not in its place yet; removed if it never gets there.
struct Beside {
    path: PathBuf,
}

impl Beside {
    fn write(content: &Content<'_>) -> io::Result<Beside> {
        let name = content.path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let path = folder(content.path).join(hidden);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mode = content.secrecy.mode();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        let beside = Beside { path };
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content.bytes)?;
        file.sync_all()?;
        Ok(beside)
    }

    fn replace(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        File::open(folder(path))?.sync_all()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Gone already once it was moved.
        let _ = fs::remove_file(&self.path);
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a folder for its owner alone. One that is there must be so already.
pub fn private_dir(path: &Path) -> Result<(), FileError> {
    let make = || {
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    };
    make().map_err(|source| FileError::Write { path: path.to_owned(), source })?;
    check_private(path)
}

/// A key that others can read is no secret any more.
pub fn check_private(path: &Path) -> Result<(), FileError> {
    let metadata = fs::metadata(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    if metadata.mode() & 0o077 != 0 {
        let wanted = if metadata.is_dir() { 0o700 } else { 0o600 };
        return Err(FileError::Open { path: path.to_owned(), wanted });
    }
    Ok(())
}

/// Held until it is dropped: one process at a time changes the files of a folder.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    pub fn take(path: &Path) -> Result<Lock, FileError> {
        let take = || {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
            file.lock()?;
            Ok(Lock { _file: file })
        };
        take().map_err(|source| FileError::Write { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_to_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        fs::write(&path, "old").unwrap();
        write(&path, b"new", Secrecy::Private).unwrap();
        assert_eq!((read(&path).unwrap().as_slice(), mode(&path)), (&b"new"[..], 0o600));
        write(&path, b"newer", Secrecy::Public).unwrap();
        assert_eq!((read(&path).unwrap().as_slice(), mode(&path)), (&b"newer"[..], 0o644));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_that_can_not_be_replaced_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("is-a-folder");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), "").unwrap();
        assert!(write(&path, b"new", Secrecy::Private).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_several_files_none_changes_if_one_can_not_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("missing/two"));
        fs::write(&one, "old").unwrap();
        let content = |path| Content { path, bytes: b"new", secrecy: Secrecy::Public };
        let refused = write_together(&[content(&one), content(&two)]).unwrap_err();
        assert!(refused.to_string().contains("missing/two"), "{refused}");
        assert_eq!(read(&one).unwrap(), b"old");
        fs::create_dir(dir.path().join("missing")).unwrap();
        write_together(&[content(&one), content(&two)]).unwrap();
        assert_eq!((read(&one).unwrap(), read(&two).unwrap()), (b"new".to_vec(), b"new".to_vec()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside them");
    }

    #[test]
    fn what_others_may_read_is_not_taken_for_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        private_dir(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        let above = mode(&dir.path().join("a"));
        assert!(above & 0o050 != 0, "the folder above is an ordinary one: {above:o}");
        private_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        let said = private_dir(&path).unwrap_err().to_string();
        assert!(said.ends_with("chmod 700 it"), "{said}");
    }

    #[test]
    fn a_file_that_never_ends_is_not_read_to_its_end() {
        assert!(matches!(read(Path::new("/dev/zero")), Err(FileError::Read { .. })));
    }
}
