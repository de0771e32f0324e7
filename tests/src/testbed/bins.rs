//! Where the programs are: `$ANNEX_BIN_DIR` if set, else beside the test itself in cargo's target
//! directory.

use std::path::{Path, PathBuf};

/// The path of one of the workspace's programs.
///
/// # Panics
/// When it has not been built: `cargo test -p annex-tests` builds the tests' own programs only.
pub fn find(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("/proc is mounted");
    let configured = std::env::var_os("ANNEX_BIN_DIR").map(PathBuf::from);
    // target/release/annex-demo, or target/release/deps/some_test-0123456789abcdef
    let candidates = configured.into_iter().chain(exe.ancestors().skip(1).take(2).map(PathBuf::from));
    let tried: Vec<_> = candidates.map(|dir| dir.join(name)).collect();
    tried
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .unwrap_or_else(|| panic!("{name} is not built (looked at {tried:?}): run `cargo build --release --workspace`"))
}

/// One of the scripts that tests run.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// A program of the system, if it is installed.
pub fn system(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/bin".into()])
        .map(|d| d.join(name))
        .find(|p| p.is_file())
}
