//! The disks guests boot from: kernel, initramfs and root, made once by `tests/vm/image.sh`, and
//! the payload, made for each run.

use crate::testbed::bins;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is put into the guests' hands.
const PROGRAMS: [&str; 6] = ["annexd", "annex-agent", "annex", "annex-stress", "annex-access", "annex-vm"];
/// Test programs that are to run in a guest, by their paths.
pub const TESTS: &str = "ANNEX_VM_TESTS";

/// The folder of the packages that are to be installed in guests.
pub const PACKAGES: &str = "ANNEX_VM_PACKAGES";

pub struct Images {
    folder: PathBuf,
    payload: PathBuf,
}

impl Images {
    /// `folder` holds what image.sh has made; the payload goes to `dir`.
    pub fn prepare(folder: &Path, dir: &Path) -> anyhow::Result<Images> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        ensure!(
            folder.join("recipe").is_file(),
            "there is no guest image in {}: run `tests/vm/image.sh {0}`, or `make vm-test`",
            folder.display()
        );
        Ok(Images { payload: payload(dir)?, folder })
    }

    pub fn path(&self, file: &str) -> PathBuf {
        if file == "payload.img" { self.payload.clone() } else { self.folder.join(file) }
    }
}

/// `bin/`: what was built; `tests/`: test programs; `systemd/`: our units and examples;
/// `packages/this` and `packages/next`: our packages, and a later version of them.
fn payload(dir: &Path) -> anyhow::Result<PathBuf> {
    let tree = dir.join("payload");
    let (bin, tests) = (tree.join("bin"), tree.join("tests"));
    for folder in [&bin, &tests] {
        std::fs::create_dir_all(folder)?;
    }
    for program in PROGRAMS {
        strip(&bins::find(program), &bin.join(program))?;
    }
    for test in std::env::var(TESTS).unwrap_or_default().split_whitespace().map(Path::new) {
        // target/release/deps/fabric-0123456789abcdef
        let name = test.file_name().and_then(|name| name.to_str()).context("a test program's path")?;
        strip(test, &tests.join(name.rsplit_once('-').map_or(name, |(name, _)| name)))?;
    }
    if let Some(packages) = std::env::var_os(PACKAGES) {
        let (folder, script) = (tree.join("packages"), "../tests/packages/next.sh");
        std::fs::create_dir_all(&folder)?;
        succeed(Command::new("cp").arg("-r").arg(&packages).arg(folder.join("this")))?;
        let next = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
        succeed(Command::new(next).arg(&packages).arg(folder.join("next")))?;
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
    succeed(Command::new("cp").arg("-r").arg(units).arg(tree.join("systemd")))?;
    let image = dir.join("payload.img");
    let mut make = Command::new("mke2fs");
    make.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    make.args(["-q", "-t", "ext4", "-L", "payload", "-E", "root_owner=0:0", "-d"]).arg(&tree).arg(&image).arg("256M");
    succeed(&mut make)?;
    std::fs::remove_dir_all(&tree)?;
    Ok(image)
}

/// Line tables stay here: they are most of a program, and no guest needs them.
fn strip(from: &Path, to: &Path) -> anyhow::Result<()> {
    succeed(Command::new("strip").arg("--strip-debug").arg("-o").arg(to).arg(from))
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
