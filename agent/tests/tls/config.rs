//! What the program says of a configuration with `[tls]`, without being an agent.

use annex_identity::ca::Ca;
use annex_identity::identity::Files;
use annex_identity::join::ask::Joined;
use annex_identity::key::Key;
use annex_identity::names::Role;
use annex_identity::testing::{Pki, leaf_now};
use rustls::pki_types::UnixTime;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

struct Host {
    dir: TempDir,
}

impl Host {
    /// Its certificate expires in so many days.
    fn new(days: i64) -> Host {
        let dir = tempfile::tempdir().unwrap();
        Pki::new("c").files_of(dir.path(), &leaf_now("annex://c/donor/oak", days));
        let host = Host { dir };
        let path = |name: &str| host.path(name).display().to_string();
        let (ca, cert, key, socket) = (path("ca.pem"), path("cert.pem"), path("key.pem"), path("none.sock"));
        let text = format!("control_socket = '{socket}'\n[tls]\nca = '{ca}'\ncert = '{cert}'\nkey = '{key}'\n");
        std::fs::write(host.path("agent.toml"), text).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// All that the program prints.
    fn says(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annex-agent"));
        let out = command.args(args).arg(self.path("agent.toml")).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    fn doctor(&self) -> String {
        self.says(&["doctor", "--config"])
    }
}

#[test]
fn a_good_configuration_is_told_with_the_certificates_name_and_its_end() {
    let host = Host::new(60);
    let said = host.says(&["check-config"]);
    assert!(said.contains("agent.toml: good; this host is annex://c/donor/oak until 2"), "{said}");
    let said = host.doctor();
    let line = "ok    network: clients show certificates, over TLS; this host is annex://c/donor/oak until 2";
    assert!(said.contains(line), "{said}");
}

/// Doctor said ok of all these.
#[test]
fn doctor_fails_a_certificate_that_has_expired_and_a_key_that_others_may_read() {
    let expired = Host::new(-3).doctor();
    assert!(expired.contains("FAIL  network: the certificate of annex://c/donor/oak expired 3 days ago"), "{expired}");
    let soon = Host::new(5).doctor();
    assert!(soon.contains("WARN  network: this host is annex://c/donor/oak until "), "{soon}");
    let host = Host::new(60);
    std::fs::set_permissions(host.path("key.pem"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = host.doctor();
    assert!(open.contains("FAIL  network: bad [tls]: others than its owner may read"), "{open}");
}

#[test]
fn doctor_tells_whether_hosts_can_join() {
    let host = Host::new(60);
    let with_ca = |dir: &std::path::Path| {
        let file = host.path("agent.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("[ca]").next().unwrap();
        std::fs::write(&file, format!("{text}[ca]\ndir = '{}'\n", dir.display())).unwrap();
        host.doctor()
    };
    let none = with_ca(&host.path("none"));
    assert!(none.contains("FAIL  ca: there is no CA in"), "{none}");
    let dir = host.path("ca");
    let ca = Ca::init(&dir, "c".parse().unwrap(), UnixTime::now()).unwrap();
    let other = with_ca(&dir);
    assert!(other.contains("FAIL  ca: this host's own certificate is not of the CA in"), "{other}");
    let key = Key::generate().unwrap();
    let signed = ca.sign(Role::Donor, "oak".parse().unwrap(), &key.request().unwrap(), UnixTime::now()).unwrap();
    let path = |name| host.path(name);
    let files = Files { ca: path("ca.pem"), certificate: path("cert.pem"), key: path("key.pem"), revocations: None };
    Joined { name: signed.name, certificate: signed.certificate, ca: signed.ca }.save(&files, &key).unwrap();
    let good = with_ca(&dir);
    assert!(good.contains("ok    ca: hosts of cluster c join here, with the CA in"), "{good}");
}
