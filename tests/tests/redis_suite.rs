//! Redis 7.0's own test suite against the KV API, as far as it is about what that serves. `make
//! test-peers` gets the suite and says where it is.

use annex_tests::testbed::{Donor, Testbed};
use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "make test-peers runs it: it needs Redis' sources"]
fn redis_own_suite_passes() {
    let suite = std::env::var_os("ANNEX_REDIS_SUITE").expect("ANNEX_REDIS_SUITE says where Redis' sources are");
    let bed = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).kv(",debug=true").start();
    let address = bed.kv_address.as_deref().expect("there is a KV API");
    let (host, port) = address.split_once(':').expect("an address and a port");
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("redis/run.sh");
    let output = Command::new(run).arg(suite).args([host, port]).output().expect("run.sh starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (ok, bad) =
        (said.matches("[ok]").count() + said.matches("mok\u{1b}[0m]").count(), said.matches("err\u{1b}[0m]").count());
    println!("{ok} tests passed, {bad} failed");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(ok > 300, "only {ok} tests ran:\n{said}");
}
