//! `annex doctor`: against a scripted annexd, a dead one, and hosts that are folders.

use crate::annexd::{Annexd, Said};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What no file of ours may hold.
const SECRET: &str = "hunter2-the-password";

/// A host whose kernel is good, and of which nothing else is known.
struct Ward {
    dir: TempDir,
    /// Agents, as far as a connection tells.
    donors: [TcpListener; 2],
}

impl Ward {
    fn new() -> Ward {
        let dir = Annexd::folder();
        let kernel = dir.path().join("root/proc/sys/kernel");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("osrelease"), "6.12.9\n").unwrap();
        Ward { dir, donors: [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap()) }
    }

    fn addresses(&self) -> [String; 2] {
        [0, 1].map(|nth: usize| self.donors[nth].local_addr().unwrap().to_string())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A configuration with both donors and a password.
    fn config(&self) -> PathBuf {
        let path = self.path("annexd.toml");
        let donors = self.addresses().map(|address| format!("[[pool.donor]]\naddress = \"{address}\"\n"));
        let kv = format!("# password = \"{SECRET}\"\n[kv]\npassword = \"{SECRET}\"\n");
        fs::write(&path, format!("{kv}{}", donors.concat())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn args(&self, more: &[&str]) -> Vec<String> {
        let (root, config) = (self.path("root"), self.config());
        let fixed = ["doctor", "--root", root.to_str().unwrap(), "--config", config.to_str().unwrap()];
        fixed.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    fn doctor(&self, annexd: &Annexd, more: &[&str]) -> Said {
        let args = self.args(more);
        annexd.annex(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// With no annexd.
    fn alone(&self, more: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annex"));
        command.arg("--socket").arg(self.path("none.sock")).args(self.args(more)).stdin(Stdio::null());
        Said::of(command.output().unwrap())
    }
}

fn well(ward: &Ward) -> Annexd {
    let annexd = Annexd::start();
    annexd.pool.heal(ward.addresses());
    annexd
}

#[test]
fn a_host_that_is_well_exits_with_0_and_each_check_has_a_number() {
    let ward = Ward::new();
    let annexd = well(&ward);
    let said = ward.doctor(&annexd, &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.starts_with("host\n  1  ok    kernel: Linux 6.12.9\n"), "{said:?}");
    for part in [
        "\nannexd\n",
        "  ok    version: annex and annexd are both ",
        "  ok    healthy: ",
        "\nconfiguration\n",
        "  WARN  donors on one host: ",
        "           remedy: name one donor a host",
        "\ndonors\n",
        "  ok    rack1-db7: 127.0.0.1:",
        " TCP connect ",
        "annexd: up over tcp (not on this host: tcp)",
        " 0 wrong (FAIL)\n",
    ] {
        assert!(said.out.contains(part), "{part:?} is missing in\n{}", said.out);
    }
    assert!(!said.out.contains('\x1b') && !said.out.contains(SECRET), "{said:?}");
}

#[test]
fn what_annexd_finds_bad_is_bad_here() {
    let ward = Ward::new();
    let said = ward.doctor(&Annexd::start(), &[]);
    assert_eq!(said.code, Some(1), "{said:?}");
    for part in ["  FAIL  at_risk: ", "  FAIL  rack2-db9: 10.0.1.9:7411", "annexd does not use it"] {
        assert!(said.out.contains(part), "{part:?} is missing in\n{}", said.out);
    }
}

#[test]
fn without_annexd_all_else_is_checked() {
    let ward = Ward::new();
    let said = ward.alone(&[]);
    assert_eq!(said.code, Some(1), "{said:?}");
    for part in [
        "kernel: Linux 6.12.9",
        "  FAIL  annexd: annexd is not running: nothing answers on ",
        "remedy: start it (systemctl start annexd)",
        "  WARN  replicas: copies: 2, donors: 2, their hosts: 1",
        "TCP connect ",
        " 1 wrong (FAIL)",
    ] {
        assert!(said.out.contains(part), "{part:?} is missing in\n{}", said.out);
    }
}

/// It said that donors show certificates, and annexd could not start without the files.
#[test]
fn files_of_tls_that_annexd_would_refuse_fail() {
    let ward = Ward::new();
    let file = ward.path("tls.toml");
    let of = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_annex"));
        command.arg("--socket").arg(ward.path("none.sock")).arg("doctor").arg("--config").arg(&file);
        Said::of(command.stdin(Stdio::null()).output().unwrap()).out
    };
    let missing =
        of("[tls]\nca = '/nonexistent/ca.pem'\ncert = '/nonexistent/cert.pem'\nkey = '/nonexistent/key.pem'\n");
    assert!(missing.contains("  FAIL  network: bad [tls]: failed to read /nonexistent/ca.pem"), "{missing}");
    let half = of("[tls]\ncert = '/nonexistent/cert.pem'\n");
    assert!(half.contains("  FAIL  network: ca is missing in [tls]"), "{half}");
}

#[test]
fn programs_get_json_with_the_same_exit_code() {
    let ward = Ward::new();
    let good: Value = ward.doctor(&well(&ward), &["--json"]).json();
    assert_eq!(good["outcome"], "warn");
    let said = ward.alone(&["--json"]);
    let bad: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &bad["outcome"]), (Some(1), &Value::from("fail")));
    let checks = bad["checks"].as_array().unwrap();
    for (nth, check) in checks.iter().enumerate() {
        assert_eq!(check["number"], nth + 1);
        assert_eq!(check["remedy"].is_string(), check["outcome"] != "ok", "{check}");
    }
}

#[test]
fn a_bundle_has_what_a_maintainer_needs_and_no_secret() {
    let ward = Ward::new();
    let bundle = ward.path("bundle.txt");
    let said = ward.doctor(&well(&ward), &["--bundle", bundle.to_str().unwrap()]);
    assert!(said.code == Some(0) && said.err.contains("read it before you send it"), "{said:?}");
    let text = fs::read_to_string(&bundle).unwrap();
    for part in ["== checks\n", "== status\n", "\"replicas\": 2", "== events\n", "== configuration", "(left out)"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(!text.contains(SECRET), "{text}");
    assert_eq!(fs::metadata(&bundle).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_bundle_that_can_not_be_written_is_said_and_nothing_is_left() {
    let ward = Ward::new();
    let full = ward.alone(&["--bundle", "/dev/full"]);
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.err.contains("failed to write the bundle /dev/full: No space left on device"), "{full:?}");
    assert!(full.out.contains("wrong (FAIL)"), "the checks are told all the same: {full:?}");

    let there = ward.path("there.txt");
    fs::write(&there, "mine").unwrap();
    let refused = ward.alone(&["--bundle", there.to_str().unwrap()]);
    assert!(refused.code == Some(2) && refused.err.contains("there.txt already"), "{refused:?}");
    assert_eq!(fs::read_to_string(&there).unwrap(), "mine");

    let nowhere = ward.path("no/such/folder.txt");
    assert_eq!(ward.alone(&["--bundle", nowhere.to_str().unwrap()]).code, Some(1));
    assert!(!nowhere.exists());
}

#[test]
fn an_ordinary_user_is_told_what_could_not_be_looked_at() {
    let ward = Ward::new();
    let annexd = well(&ward);
    let args = ward.args(&[]);
    let said = annexd.annex_as_nobody(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("WARN  file: failed to read ") && said.out.contains("sudo annex doctor"), "{said:?}");
    assert!(said.out.contains("rack1-db7"), "annexd's donors are checked all the same: {said:?}");
}

#[test]
fn a_configuration_that_is_none_is_a_failure_of_its_own() {
    let ward = Ward::new();
    let args = ward.args(&[]);
    fs::write(Path::new(&args[4]), format!("[kv]\npassword = \"{SECRET}\"\nlisten = 7\n")).unwrap();
    let said = well(&ward).annex(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("annexd.toml is no configuration: line 3: "), "{said:?}");
    assert!(!said.out.contains(SECRET), "{said:?}");
}
