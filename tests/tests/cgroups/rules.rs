//! Rules: what they name is attached as it appears, through the deaths of annexd. What was detached
//! by hand is left alone.

use crate::scene::{Cgroup, MINUTE, Tracer, end, start, stress};
use annex_tests::testbed::{Job, Testbed, directory, nobody};
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A testbed whose annexd has a configuration file.
pub struct Bed {
    pub testbed: Testbed,
    file: PathBuf,
    pub folder: TempDir,
}

pub fn with_rules(rules: &str) -> Bed {
    let folder = tempfile::Builder::new().prefix("annex-rules-").tempdir_in(directory()).expect("a folder on a disk");
    with_rules_in(folder, rules)
}

fn with_rules_in(folder: TempDir, rules: &str) -> Bed {
    let file = folder.path().join("annexd.toml");
    std::fs::write(&file, rules).expect("the folder is ours");
    let testbed = Testbed::builder().daemon_arg("--config").daemon_arg(file.display().to_string()).shm();
    Bed { testbed, file, folder }
}

impl Bed {
    /// What `systemctl reload` does.
    fn reload(&mut self, rules: &str) {
        std::fs::write(&self.file, rules).expect("the folder is ours");
        self.testbed.annexd.signal(Signal::SIGUSR1);
        self.testbed.annexd.wait(MINUTE).expect("annexd hands over");
        self.testbed.start_again(None);
    }
}

fn is_paged(bed: &Testbed, cgroup: &Cgroup, job: &Job) {
    bed.wait_app(cgroup.name(), 2 * MINUTE, |app| app.pids == [job.pid()] && app.faults.major > 100);
}

#[test]
fn what_a_rule_names_is_attached_as_it_appears_and_what_was_detached_is_left_alone() {
    let me = std::process::id();
    let rule = format!("[[app]]\ncgroup = '/annextest-ruled-{me}-*'\nlocal = '24M'\n");
    let mut bed = with_rules(&rule);
    let cgroups: Vec<Cgroup> = (0..2).map(|_| Cgroup::new("ruled")).collect();
    let jobs: Vec<Job> = cgroups.iter().map(|cgroup| start(&bed.testbed, "busy", stress(), cgroup)).collect();
    for (cgroup, job) in cgroups.iter().zip(&jobs) {
        is_paged(&bed.testbed, cgroup, job);
    }
    // Through a death of annexd.
    bed.testbed.start_again(None);
    for (cgroup, job) in cgroups.iter().zip(&jobs) {
        is_paged(&bed.testbed, cgroup, job);
    }
    bed.testbed.ask("detach", [cgroups[0].name()]).succeeded();
    let mut later = Vec::new();
    // That a cgroup which has come since is attached shows that rules were followed since.
    for kill in [false, true] {
        if kill {
            bed.testbed.start_again(None);
        }
        let cgroup = Cgroup::new("ruled");
        let job = start(&bed.testbed, "later", stress(), &cgroup);
        is_paged(&bed.testbed, &cgroup, &job);
        assert!(bed.testbed.app(cgroups[0].name()).is_none(), "it was detached by hand: {}", bed.testbed.annexd.log());
        later.push((cgroup, job));
    }
    // Nor does it count when annexd was stopped in order.
    bed.testbed.annexd.signal(Signal::SIGTERM);
    bed.testbed.annexd.wait(2 * MINUTE).expect("annexd stops");
    bed.testbed.start_again(None);
    for (cgroup, job) in &later {
        is_paged(&bed.testbed, cgroup, job);
    }
    assert!(bed.testbed.app(cgroups[0].name()).is_none(), "it was detached by hand: {}", bed.testbed.annexd.log());
    // By hand it is attached all the same, and then it is an app like any.
    bed.testbed.ask("attach", ["--cgroup", cgroups[0].path(), "--local", "24M"]).succeeded();
    is_paged(&bed.testbed, &cgroups[0], &jobs[0]);
    for (cgroup, job) in cgroups.into_iter().zip(jobs).chain(later) {
        end(job);
        cgroup.end();
    }
}

#[test]
fn a_process_is_attached_by_its_command_and_its_user() {
    let folder = tempfile::Builder::new().prefix("annex-rules-").tempdir_in(directory()).expect("a folder on a disk");
    let program = nobody::copy("annex-stress", folder.path(), 0o755);
    let run = || {
        let mut command = Command::new(&program);
        command.args(stress().get_args());
        command
    };
    let path = program.display();
    let rules = format!(
        "[[app]]\ncommand = '{path}'\nuser = '{}'\nname = 'theirs'\n\n[[app]]\ncommand = '{path}'\nuser = 'root'\nlocal = '24M'\nname = 'ours'\n",
        nobody::UID
    );
    let mut bed = with_rules_in(folder, &rules);
    let natively = |bed: &Bed, name: &str| {
        let mut job = bed.testbed.natively(name, run());
        job.wait_says("ready", MINUTE);
        job
    };
    let first = natively(&bed, "first");
    bed.testbed.wait_app("ours", 2 * MINUTE, |app| app.pids == [first.pid()] && app.faults.major > 100);
    bed.testbed.ask("detach", ["ours"]).succeeded();
    // It became that program after it was looked at.
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 3; exec \"$@\"", "sh"]).arg(&program).args(stress().get_args());
    let mut second = bed.testbed.natively("second", shell);
    second.wait_says("ready", MINUTE);
    bed.testbed.wait_app("ours", 2 * MINUTE, |app| app.pids == [second.pid()] && app.faults.major > 100);
    bed.testbed.start_again(None);
    let third = natively(&bed, "third");
    // The name is taken.
    bed.testbed.wait_app("ours-2", 2 * MINUTE, |app| app.pids == [third.pid()] && app.faults.major > 100);
    let apps = bed.testbed.status().apps;
    assert!(apps.iter().all(|app| app.name != "theirs" && !app.pids.contains(&first.pid())), "{apps:?}");
    for job in [first, second, third] {
        end(job);
    }
    assert!(bed.folder.path().exists());
}

#[test]
fn a_reload_adds_a_rule() {
    let mut bed = with_rules("");
    let cgroup = Cgroup::new("added");
    let job = start(&bed.testbed, "busy", stress(), &cgroup);
    assert!(bed.testbed.status().apps.is_empty());
    bed.reload(&format!(
        "[[app]]\nunit = '{}*'\n[[app]]\ncgroup = '{}'\nlocal = '24M'\n",
        "no-such-unit",
        cgroup.path()
    ));
    is_paged(&bed.testbed, &cgroup, &job);
    // Without the rule the app is there until it ends.
    bed.reload("");
    is_paged(&bed.testbed, &cgroup, &job);
    end(job);
    cgroup.end();
}

#[test]
fn what_can_not_be_attached_is_told_once_and_attached_when_it_can_be() {
    let folder = tempfile::Builder::new().prefix("annex-rules-").tempdir_in(directory()).expect("a folder on a disk");
    let program = nobody::copy("annex-stress", folder.path(), 0o755);
    let bed = with_rules_in(folder, &format!("[[app]]\ncommand = '{}'\nlocal = '24M'\n", program.display()));
    let mut job = bed.testbed.natively("traced", {
        // It is that program, and another has hold of it, before a rule can have.
        let mut shell = Command::new("sh");
        let wait = "while :; do while read -r key value; do \
                    [ $key = TracerPid: ] && [ $value != 0 ] && exec \"$@\"; \
                    done < /proc/$$/status; done";
        shell.args(["-c", wait, "sh"]);
        shell.arg(&program).args(stress().get_args());
        shell
    });
    let tracer = Tracer::of(job.pid());
    job.wait_says("ready", MINUTE);
    let told = |bed: &Bed| bed.testbed.annexd.log().matches("attaches nothing: ").count();
    annex_tests::testbed::wait_for("a word of what can't be attached", MINUTE, || told(&bed) == 1);
    // Tried again, and not told again.
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert_eq!(told(&bed), 1, "{}", bed.testbed.annexd.log());
    assert!(bed.testbed.annexd.log().contains("is traced by process"), "{}", bed.testbed.annexd.log());
    drop(tracer);
    bed.testbed.wait_app("annex-stress", 2 * MINUTE, |app| app.faults.major > 100);
    end(job);
}
