//! Cgroups that are called as runtimes call them. No runtime is needed.

use crate::scene::{Cgroup, MINUTE, end, start, stress};
use annex_tests::testbed::{Testbed, wait_for};
use std::time::Duration;

/// An id of a container that begins so, and that no other test has.
fn id(begins: &str) -> String {
    format!("{begins}{:0>1$x}", std::process::id(), 64 - begins.len())
}

#[test]
fn a_container_is_found_by_the_beginning_of_its_id_and_again_when_it_is_restarted() {
    let bed = Testbed::builder().shm();
    let (one, other) = (id("a11e0"), id("a11e1"));
    let scope = format!("libpod-{one}.scope");
    let container = Cgroup::called(&scope);
    let beside = Cgroup::called(&format!("docker-{other}.scope"));
    let payload = container.below("container");
    let first = start(&bed, "first", stress(), &payload);
    let second = start(&bed, "second", stress(), &beside);
    for (named, code, said) in [
        ("a11e", 2, "a11e is the name or the beginning of the id of 2 containers"),
        ("a11", 4, "no container a11 is running"),
        ("b11e0", 4, "no container b11e0 is running"),
    ] {
        let refused = bed.ask("attach", ["--container", named]);
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.stderr.contains(said), "{refused}");
    }
    bed.ask("attach", ["--container", &one[..12], "--local", "24M"]).succeeded();
    let app = bed.wait_app(&one[..12], 2 * MINUTE, |app| app.faults.major > 100 && app.evicted > 30 << 20);
    assert_eq!(app.pids, [first.pid()]);
    end(first);
    payload.end();
    container.end();
    bed.wait_app(&one[..12], MINUTE, |app| app.pids.is_empty());
    // Longer than annexd takes to see that the cgroup is gone.
    std::thread::sleep(Duration::from_secs(2));
    // The same container once more.
    let container = Cgroup::called(&scope);
    let again = start(&bed, "again", stress(), &container);
    let restarted = bed.wait_app(&one[..12], 2 * MINUTE, |app| app.pids == [again.pid()] && app.evicted > 30 << 20);
    assert_eq!(restarted.id, app.id);
    end(again);
    container.end();
    // It is not started again.
    wait_for("the ended container's app to end", 2 * MINUTE, || bed.app(&one[..12]).is_none());
    end(second);
    beside.end();
}

#[test]
fn a_container_is_attached_by_rule_each_time_that_it_starts() {
    let name = format!("web{}", std::process::id());
    let bed = crate::rules::with_rules(&format!("[[app]]\ncontainer = '{name}'\nlocal = '24M'\nname = 'shop'\n"));
    let scope = format!("lxc.payload.{name}");
    for _ in 0..2 {
        let container = Cgroup::called(&scope);
        let job = start(&bed.testbed, "web", stress(), &container);
        bed.testbed.wait_app("shop", 2 * MINUTE, |app| app.pids == [job.pid()] && app.faults.major > 100);
        end(job);
        container.end();
    }
    wait_for("the ended container's app to end", Duration::from_secs(120), || bed.testbed.app("shop").is_none());
}
