//! What one ordinary user takes of annexd and of the pool: not more than they may have.

use super::{MINUTE, stress};
use annex_tests::testbed::{Job, Testbed, directory, nobody};
use nix::sys::signal::Signal;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use tempfile::NamedTempFile;

/// Pages that one look at the quota may let through.
const BATCHES: u64 = 4 << 20;

fn bed(users: &str) -> (Testbed, NamedTempFile) {
    let mut config = NamedTempFile::new_in(directory()).expect("the folder is ours");
    writeln!(config, "[users]\n{users}").expect("it is ours");
    let bed = Testbed::builder().daemon_arg("--config").daemon_arg(config.path().display().to_string()).shm();
    (bed, config)
}

fn region(bed: &Testbed, program: &Path, name: &str, size: &str) -> Job {
    let mut region = nobody::command();
    region.arg(program).arg("--socket").arg(&bed.socket).stdin(Stdio::null());
    region.args(["--name", name, "--size", size, "--local", "8M", "--threads", "1"]);
    bed.natively(name, region)
}

fn end(job: Job) {
    job.signal(Signal::SIGTERM);
    job.wait(MINUTE).succeeded();
}

#[test]
fn a_user_with_all_of_the_pool_that_they_may_have_keeps_their_pages_and_root_goes_on() {
    let (bed, _config) = bed("pool_bytes = '8M'\napps = 2");
    let program = nobody::copy("annex-region", bed.path(), 0o755);
    let (mut one, mut two) = (region(&bed, &program, "one", "64M"), region(&bed, &program, "two", "32M"));
    one.wait_says("ready", MINUTE);
    two.wait_says("ready", MINUTE);
    let told = |app: &annex_shared::api::AppInfo| app.note.contains("pool_bytes in [users]");
    bed.wait_app("one", MINUTE, told);
    bed.wait_app("two", MINUTE, told);
    // Root's is evicted beside them, and takes more of the pool than they may.
    let honest = stress("honest", &bed);
    let users = bed.status().users;
    let [user] = users[..] else { panic!("{users:?}") };
    assert_eq!((user.uid, user.apps, user.apps_max, user.pool_max), (nobody::UID, 2, 2, 8 << 20));
    assert!((1..=(8 << 20) + BATCHES).contains(&user.pool_bytes), "{user:?}");
    assert!(user.table_bytes > 0 && user.table_bytes < user.table_max, "{user:?}");
    let refused = region(&bed, &program, "three", "32M").wait(MINUTE);
    assert!(refused.stderr.contains("user 65534 has 2 apps, as many as a user may have"), "{}", refused.stderr);
    end(one);
    end(two);
    end(honest);
}

#[test]
fn a_user_whose_page_tables_take_all_that_they_may_keeps_their_pages() {
    let (bed, _config) = bed("table_bytes = '16K'");
    let program = nobody::copy("annex-region", bed.path(), 0o755);
    let mut region = region(&bed, &program, "wide", "64M");
    region.wait_says("ready", MINUTE);
    let app = bed.wait_app("wide", MINUTE, |app| app.note.contains("table_bytes in [users]"));
    assert!(app.resident > 16 << 20, "{app:?}");
    end(region);
}

#[test]
fn a_host_may_refuse_ordinary_users_programs_and_still_serve_their_regions() {
    let (bed, _config) = bed("programs = false");
    let annex = nobody::copy("annex", bed.path(), 0o755);
    let mut command = nobody::command();
    command.arg(&annex).args(["run", "--socket"]).arg(&bed.socket).args(["--", "true"]).stdin(Stdio::null());
    let refused = bed.natively("refused", command).wait(MINUTE);
    assert!(refused.stderr.contains("programs = false in [users]"), "{}", refused.stderr);
    let program = nobody::copy("annex-region", bed.path(), 0o755);
    let mut region = region(&bed, &program, "region", "32M");
    region.wait_says("ready", MINUTE);
    bed.wait_app("region", MINUTE, |app| app.pages_in > 100);
    end(region);
}
