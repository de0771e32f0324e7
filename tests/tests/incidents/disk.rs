//! A file system on a loop device that can be made to fail: the device becomes smaller than what
//! lies on it, and every access beyond its end is an I/O error.

use annex_tests::testbed::directory;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const SIZE: u64 = 512 << 20;
/// The superblock and little else.
const LEFT: u64 = 1 << 20;

pub struct Disk {
    dir: TempDir,
    device: String,
}

impl Disk {
    /// # Panics
    /// When there is no loop device or no `mkfs.ext4`.
    pub fn new() -> Disk {
        let dir = tempfile::Builder::new().prefix("annex-disk-").tempdir_in(directory()).expect("a directory");
        let image = dir.path().join("image");
        File::create(&image).and_then(|file| file.set_len(SIZE)).expect("the directory is ours");
        let image = image.to_str().expect("it is ASCII");
        run("mkfs.ext4", &["-q", image]);
        let device = run("losetup", &["--find", "--show", image]).trim().to_owned();
        let disk = Disk { dir, device };
        std::fs::create_dir(disk.path()).expect("the directory is ours");
        run("mount", &[&disk.device, disk.path().to_str().expect("it is ASCII")]);
        disk
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    pub fn fail(&self) {
        let image = File::options().write(true).open(self.dir.path().join("image")).expect("it is there");
        image.set_len(LEFT).expect("it is ours");
        run("losetup", &["--set-capacity", &self.device]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, since annexd or its keeper may have the file open for a moment more.
        for (program, arguments) in [
            ("umount", &["--lazy", &self.path().display().to_string()][..]),
            ("losetup", &["--detach", &self.device][..]),
        ] {
            let _ = Command::new(tool(program)).args(arguments).output();
        }
    }
}

/// They are in /usr/sbin, which is not in everybody's path.
fn tool(program: &str) -> PathBuf {
    annex_tests::testbed::bins::system(program).unwrap_or_else(|| Path::new(program).to_owned())
}

/// What it prints.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool(program)).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
