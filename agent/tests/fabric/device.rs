//! Whether this machine has an RDMA device to test with.

use annex_fabric::verbs::{Device, DeviceChoice};
use std::io::Write;

/// False, said loudly, if this machine has no RDMA device to test with; a failure where one has to
/// be there.
pub fn has_verbs() -> bool {
    match Device::open(&DeviceChoice::default()) {
        Ok(_) => true,
        Err(e) if std::env::var_os("ANNEX_REQUIRE_VERBS").is_some() => panic!("ANNEX_REQUIRE_VERBS is set, but: {e}"),
        Err(e) => {
            // Past the harness, which would keep the word of a test that passes to itself.
            let _ = writeln!(std::io::stderr(), "SKIPPED, RDMA IS NOT TESTED: {e}");
            false
        }
    }
}
