//! What an operator is told of keys that go when annexd is stopped in order.

use super::support::TestServer;
use annex_tests::testbed::wait_for;
use nix::sys::signal::Signal;
use std::time::Duration;

#[test]
fn that_a_stop_in_order_drops_the_keys_is_said_before_and_how_many_it_was_after() {
    let mut server = TestServer::start();
    let mut wire = server.connect();
    let warning = "goes when annexd is stopped in order";
    let said = |server: &TestServer| {
        let text = server.bed.ask::<&str>("kv", []).succeeded().stdout;
        // Its lines are broken anywhere.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let before = said(&server);
    assert!(!before.contains(warning), "there are no keys yet: {before}");
    wire.talk("MSET a 1 b 2 c 3", "+OK\r\n");
    // What it tells is looked at every so often.
    wait_for("the keys to be known", Duration::from_secs(20), || said(&server).contains("keys: 3"));
    let before = said(&server);
    assert!(before.contains(warning), "{before}");

    server.bed.annexd.signal(Signal::SIGTERM);
    assert!(server.bed.annexd.wait(Duration::from_secs(20)).expect("it ends").success());
    let log = server.bed.annexd_logs();
    assert!(log.contains("the KV API's 3 keys go with annexd: it was stopped in order"), "{log}");
}
