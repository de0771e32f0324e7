//! Apps of a cgroup, of a container and by rule: all that is in there is paged, whenever it comes,
//! and nothing of it is lost.
//!
//! - `scene`: cgroups of the test's own, and who is in them.
//! - `containers`: cgroups with the names that runtimes give. `rules`: what nobody asks for.

mod containers;
mod rules;
mod scene;

use annex_tests::testbed::census::Census;
use annex_tests::testbed::{Testbed, bins, directory};
use scene::{Cgroup, MINUTE, Tracer, called, end, end_by, start, stress, stress_of};
use std::path::Path;
use std::process::Command;

#[test]
fn a_cgroup_is_attached_with_what_is_below_it_and_what_comes_later() {
    let bed = Testbed::builder().shm();
    let top = Cgroup::new("nested");
    let inner = top.below("inner");
    let deep = inner.below("deep");
    let first = start(&bed, "first", stress(), &top);
    let second = start(&bed, "second", stress(), &deep);
    bed.ask("attach", ["--cgroup", top.path(), "--local", "48M"]).succeeded();
    let name = top.name().to_owned();
    bed.wait_app(&name, 2 * MINUTE, |app| app.pids.len() == 2 && app.faults.major > 100);
    let third = start(&bed, "third", stress_of("rw,fork"), &inner);
    bed.wait_app(&name, 2 * MINUTE, |app| app.pids.contains(&third.pid()) && app.evicted > 96 << 20);
    for job in [first, second, third] {
        end(job);
    }
    // Empty it may get processes again, gone it can't.
    bed.wait_app(&name, MINUTE, |app| app.pids.is_empty());
    for cgroup in [deep, inner, top] {
        cgroup.end();
    }
    bed.wait_gone(&name);
    assert_eq!(bed.status().pool.used, 0);
}

#[test]
fn processes_of_other_namespaces_and_of_another_root_are_members_like_any() {
    let bed = Testbed::builder().mixed();
    let cgroup = Cgroup::new("spaces");
    let root = bed.path().join("root");
    std::fs::create_dir(&root).expect("the folder is ours");
    let unshare = |options: &[&str], behind: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(options).args(behind).arg(bins::find("annex-stress"));
        command.args(["--size", "64M", "--threads", "2", "--seconds", "0", "--features", "rw", "--dir"]);
        command.arg(directory());
        command
    };
    let enter = format!("mount --rbind / {root} && exec chroot {root} \"$@\"", root = root.display());
    let jobs = [
        ("pids", unshare(&["--pid", "--fork", "--mount-proc"], &[])),
        ("user", unshare(&["--user", "--map-root-user", "--mount"], &[])),
        ("root", unshare(&["--mount"], &["sh", "-c", &enter, "sh"])),
    ];
    let jobs = jobs.map(|(name, command)| {
        let mut within = Command::new("sh");
        let join = format!("echo 0 > {}/cgroup.procs && exec \"$@\"", cgroup.folder());
        within.args(["-c", &join, "sh"]).arg(command.get_program()).args(command.get_args());
        let mut job = bed.natively(name, within);
        job.wait_says("ready", MINUTE);
        job
    });
    bed.ask("attach", ["--cgroup", cgroup.folder(), "--name", "spaces", "--local", "48M"]).succeeded();
    let app = bed.wait_app("spaces", 2 * MINUTE, |app| app.evicted > 128 << 20 && app.faults.major > 1000);
    assert_eq!(app.pids.len(), 4, "three workloads, and the one that waits for its namespace");
    for job in jobs {
        let is_its = |pid: &&i32| **pid == job.pid() || parent(**pid) == Some(job.pid());
        let pids: Vec<i32> = app.pids.iter().filter(is_its).copied().collect();
        let workload = called(&pids, "annex-stress");
        end_by(job, workload);
    }
    cgroup.end();
    bed.wait_gone("spaces");
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// annexd must never wait for a page, nor its ancestors for long: this test is one.
#[test]
fn annexd_is_in_no_app_and_its_ancestors_are_not() {
    // Alone: what other tests start would be in this test's cgroup, too.
    let bed = Testbed::builder().alone().shm();
    let cgroup = Cgroup::new("own");
    let job = start(&bed, "busy", stress(), &cgroup);
    cgroup.take(bed.annexd.pid());
    let refused = bed.ask("attach", ["--cgroup", cgroup.path()]);
    assert_eq!(refused.code(), 7, "{refused}");
    assert!(refused.stderr.contains("has annexd itself, which must never wait"), "{refused}");
    assert!(bed.status().apps.is_empty());
    cgroup.empty();
    for pid in [job.pid(), std::process::id() as i32] {
        cgroup.take(pid);
    }
    bed.ask("attach", ["--cgroup", cgroup.path(), "--name", "busy", "--local", "24M"]).succeeded();
    let app = bed.wait_app("busy", MINUTE, |app| app.pages_evicted > 1000);
    assert!(app.pids.contains(&job.pid()) && !app.pids.contains(&(std::process::id() as i32)), "{app:?}");
    // Nor does it become one when it comes later.
    cgroup.take(bed.annexd.pid());
    bed.wait_app("busy", MINUTE, |now| now.faults.major > app.faults.major + 1000);
    assert!(!bed.app("busy").expect("it runs").pids.contains(&bed.annexd.pid()));
    cgroup.empty();
    bed.wait_app("busy", MINUTE, |app| app.pids.contains(&job.pid()));
    bed.ask("detach", ["busy"]).succeeded();
    end(job);
}

#[test]
fn a_cgroup_is_attached_whole_or_not_at_all() {
    let bed = Testbed::builder().shm();
    let cgroup = Cgroup::new("whole");
    let first = start(&bed, "first", stress(), &cgroup);
    let second = start(&bed, "second", stress(), &cgroup);
    let tracer = Tracer::of(second.pid());
    let before = Census::of(first.pid());
    let refused = bed.ask("attach", ["--cgroup", cgroup.path()]);
    assert_eq!(refused.code(), 7, "{refused}");
    assert!(refused.stderr.contains("is traced"), "{refused}");
    assert!(bed.status().apps.is_empty());
    before.assert_same(&Census::of(first.pid()));
    drop(tracer);
    for job in [first, second] {
        end(job);
    }
    cgroup.end();
}

#[test]
fn what_is_no_cgroup_is_refused_with_what_to_do() {
    let bed = Testbed::builder().shm();
    let empty = Cgroup::new("empty");
    let link = bed.path().join("link");
    std::os::unix::fs::symlink("/etc", &link).expect("the folder is ours");
    for (named, code, said) in [
        ("/no/such/cgroup", 4, "there is no cgroup /no/such/cgroup"),
        ("/", 2, "has all processes of this host"),
        ("../../etc", 2, "leads out of /sys/fs/cgroup"),
        ("/sys/fs/cgroup/../../../etc", 2, "leads out of /sys/fs/cgroup"),
        (link.to_str().expect("text"), 4, "there is no cgroup"),
        (empty.path(), 4, "has no process that could be paged"),
    ] {
        let refused = bed.ask("attach", ["--cgroup", named]);
        assert_eq!(refused.code(), code, "{named}: {refused}");
        assert!(refused.stderr.contains(said), "{named}: {refused}");
    }
    let job = start(&bed, "busy", stress(), &empty);
    bed.ask("attach", [&job.pid().to_string(), "--no-wait"]).succeeded();
    let refused = bed.ask("attach", ["--cgroup", empty.folder()]);
    assert_eq!(refused.code(), 6, "{refused}");
    assert!(Path::new(empty.folder()).exists());
    end(job);
}
