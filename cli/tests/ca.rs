//! `annex ca` on folders of its own. No annexd runs: none is asked.

use annex_identity::ca::Ca;
use annex_identity::certificate::{Facts, sha256};
use annex_identity::key::Key;
use annex_identity::token::Token;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Host {
    dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Host {
    fn new() -> Host {
        Host { dir: tempfile::tempdir().unwrap() }
    }

    fn with_ca() -> Host {
        let host = Host::new();
        let said = host.ca(&["init", "--cluster", "prod"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        host
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("ca")
    }

    fn ca(&self, words: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annex"));
        // A socket that nothing listens on: whoever asked annexd would fail.
        command.args(["--socket", "/nonexistent/annexd.sock", "ca", "--dir"]).arg(self.path()).args(words);
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    /// A request for a certificate, as a file.
    fn request(&self, name: &str, key: &Key) -> String {
        let body = data_encoding::BASE64.encode(&key.request().unwrap());
        let path = self.dir.path().join(name);
        fs::write(&path, format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n"))
            .unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn sign(&self, role: &str, name: &str, key: &Key) -> Said {
        self.ca(&["sign", &self.request(name, key), "--role", role, "--name", name])
    }
}

fn key() -> Key {
    Key::generate().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_ca_is_made_once_and_its_key_is_for_its_owner() {
    let host = Host::with_ca();
    assert_eq!((mode(&host.path()), mode(&host.path().join("ca-key.pem"))), (0o700, 0o600));
    assert_eq!(Ca::open(&host.path()).unwrap().cluster().as_str(), "prod");
    let certificate = fs::read(host.path().join("ca.pem")).unwrap();
    let again = host.ca(&["init"]);
    assert!(
        again.code == Some(2) && again.err.contains("there is a CA in") && again.err.contains("remedy: "),
        "{again:?}"
    );
    assert_eq!(fs::read(host.path().join("ca.pem")).unwrap(), certificate);
}

#[test]
fn a_folder_without_a_ca_is_told() {
    let said = Host::new().ca(&["list"]);
    assert!(said.code == Some(4) && said.err.contains("make one with annex ca init"), "{said:?}");
}

#[test]
fn names_and_roles_are_checked() {
    let host = Host::with_ca();
    for words in [
        &["init", "--cluster", "Prod"][..],
        &["token", "--role", "admin", "--name", "a", "--address", "h:1"],
        &["token", "--role", "donor", "--name", "../a", "--address", "h:1"],
        &["token", "--role", "donor", "--name", "a", "--address", "h"],
        &["token", "--role", "donor", "--name", "a"],
        &["token", "--role", "donor", "--name", "a", "--address", "h:1", "--valid", "721h"],
        &["token", "--role", "donor", "--name", "a", "--address", "h:1", "--valid", "0s"],
        &["revoke", "A"],
    ] {
        assert_eq!(host.ca(words).code, Some(2), "{words:?}");
    }
}

#[test]
fn a_token_carries_the_ca_and_the_addresses_and_is_listed_until_it_is_used() {
    let host = Host::with_ca();
    let words = ["token", "--role", "client", "--name", "web-1", "--address", "10.0.0.1:7411", "--address", "h:7411"];
    let said = host.ca(&words);
    let token: Token = said.out.parse().unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let ca = Ca::open(&host.path()).unwrap();
    assert_eq!(*token.ca(), sha256(ca.certificate()));
    assert_eq!(token.addresses().iter().map(|a| a.as_str()).collect::<Vec<_>>(), ["10.0.0.1:7411", "h:7411"]);
    let listed = host.ca(&["list"]);
    assert!(listed.out.contains("web-1  client  token") && listed.out.contains("minutes"), "{listed:?}");
    ca.redeem(token.secret(), &key().request().unwrap(), rustls::pki_types::UnixTime::now()).unwrap();
    let listed = host.ca(&["list"]);
    assert!(listed.out.contains("web-1  client  good") && !listed.out.contains("token"), "{listed:?}");
}

#[test]
fn a_request_is_signed_for_the_name_that_was_said() {
    let host = Host::with_ca();
    let key = key();
    let said = host.sign("donor", "db7", &key);
    let certificate = CertificateDer::from_pem_slice(said.out.as_bytes()).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let facts = Facts::of(&certificate).unwrap();
    assert_eq!((facts.name.to_string().as_str(), facts.key), ("annex://prod/donor/db7", key.id()));
    let json = host.ca(&["sign", &host.request("db7", &key), "--role", "donor", "--name", "db7", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["name"], "annex://prod/donor/db7");
    assert_eq!(json["ca"], fs::read_to_string(host.path().join("ca.pem")).unwrap());
}

/// What docs/commands.md tells to type on a host.
#[test]
fn a_request_of_openssl_is_signed() {
    let host = Host::with_ca();
    let (key, csr) = (host.dir.path().join("key.pem"), host.dir.path().join("host.csr"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/"]);
    let output = match openssl.arg("-keyout").arg(&key).arg("-out").arg(&csr).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && std::env::var_os("ANNEX_SKIP_NOTHING").is_none() => {
            eprintln!("SKIPPED: there is no openssl here");
            return;
        }
        other => other.unwrap(),
    };
    assert!(output.status.success(), "{output:?}");
    let said = host.ca(&["sign", csr.to_str().unwrap(), "--role", "client", "--name", "web-1"]);
    let certificate = CertificateDer::from_pem_slice(said.out.as_bytes()).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let key = Key::from_pem(&fs::read_to_string(key).unwrap()).unwrap();
    assert_eq!(Facts::of(&certificate).unwrap().key, key.id());
}

#[test]
fn what_is_no_request_is_told_and_nothing_is_issued() {
    let host = Host::with_ca();
    let path = host.dir.path().join("host.csr");
    fs::write(&path, "nonsense").unwrap();
    let said = host.ca(&["sign", path.to_str().unwrap(), "--role", "donor", "--name", "a"]);
    assert!(said.code == Some(2) && said.err.contains("it is no CSR in PEM"), "{said:?}");
    let missing = host.ca(&["sign", "/nonexistent.csr", "--role", "donor", "--name", "a"]);
    assert!(missing.code == Some(1) && missing.err.contains("failed to read /nonexistent.csr"), "{missing:?}");
    assert!(Ca::open(&host.path()).unwrap().registry().unwrap().issued.is_empty());
}

#[test]
fn a_name_belongs_to_one_key_until_it_is_revoked() {
    let host = Host::with_ca();
    assert_eq!(host.sign("donor", "a", &key()).code, Some(0));
    let taken = host.sign("donor", "a", &key());
    assert!(taken.code == Some(2) && taken.err.contains("revoke it first"), "{taken:?}");
    assert_eq!(host.sign("client", "a", &key()).code, Some(0), "another role is another name");
    let revoked = host.ca(&["revoke", "a", "--role", "donor"]);
    assert!(revoked.code == Some(0) && revoked.out.starts_with("revoked 1 certificates of a\n"), "{revoked:?}");
    let listed = host.ca(&["list"]).out;
    assert!(listed.contains("a     donor   revoked") && listed.contains("a     client  good"), "{listed}");
    assert_eq!(host.sign("donor", "a", &key()).code, Some(0));
    let unknown = host.ca(&["revoke", "nobody"]);
    assert!(unknown.code == Some(4) && unknown.err.contains("annex ca list"), "{unknown:?}");
}

#[test]
fn errors_are_json_where_that_is_asked_for() {
    let said = Host::new().ca(&["--json", "list"]);
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    assert_eq!(error["error"]["kind"], "not_found");
}
