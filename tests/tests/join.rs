//! From nothing to hosts that know each other, with the real programs: a CA, an agent beside it,
//! hosts that join with tokens, a client that borrows over TLS, and daemons that renew their
//! certificates.

use annex_identity::ca::Ca;
use annex_identity::certificate::{Facts, unix};
use annex_identity::identity::{Files, facts};
use annex_identity::join::ask::Joined;
use annex_identity::key::Key;
use annex_identity::names::Role;
use annex_tests::testbed::process::Process;
use annex_tests::testbed::{Turn, bins, directory, port, wait_for};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: u64 = 24 * 60 * 60;

/// A CA's folder, and one for each host's files and configuration.
struct Site {
    dir: TempDir,
    /// Where the agent beside the CA listens.
    beside: SocketAddr,
}

#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    #[track_caller]
    fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// It failed with this code and these words, and has written no file.
    #[track_caller]
    fn refused(self, code: i32, words: &str, folder: &Path) {
        assert!(self.code == Some(code) && self.err.contains(words), "{self:?}");
        let left: Vec<_> = fs::read_dir(folder).map(|files| files.flatten().collect()).unwrap_or_default();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// The part of a daemon's configuration that `annex join --json` gives.
fn lines(said: &str) -> String {
    let said: Value = serde_json::from_str(said).unwrap_or_else(|e| panic!("{e}: {said}"));
    said["configuration"].as_str().unwrap().to_owned()
}

impl Site {
    fn new() -> Site {
        let dir = tempfile::Builder::new().prefix("annex-join-").tempdir_in(directory()).unwrap();
        let site = Site { dir, beside: port::free() };
        site.annex(&["ca", "--dir", &site.ca(), "init", "--cluster", "prod"]).done();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn ca(&self) -> String {
        self.text("ca")
    }

    fn opened(&self) -> Ca {
        Ca::open(&self.path("ca")).unwrap()
    }

    fn annex(&self, args: &[&str]) -> Said {
        let mut command = Command::new(bins::find("annex"));
        let Output { status, stdout, stderr } = command.args(args).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    fn token(&self, role: &str, name: &str) -> String {
        let (ca, at) = (self.ca(), self.beside.to_string());
        let words = ["ca", "--dir", &ca, "token", "--role", role, "--name", name, "--address", &at];
        self.annex(&words).done().trim().to_owned()
    }

    /// Into a folder of this name.
    fn join(&self, token: &str, folder: &str) -> Said {
        self.annex(&["join", token, "--json", "--to", &self.text(folder)])
    }

    fn agent(&self, name: &str, address: SocketAddr, lines: &str) -> Process {
        let config = self.path(&format!("{name}.toml"));
        let text = format!(
            "listen = '{address}'\nname = '{name}'\ncapacity = '256M'\nslab_size = '4M'\nheadroom = 0\n\
             shm_socket = ''\ncontrol_socket = ''\n{lines}"
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(bins::find("annex-agent"));
        command.arg("--config").arg(config);
        let mut agent = Process::start(name, command, self.dir.path());
        wait_for("the agent to start", MINUTE, || {
            assert!(agent.is_running(), "{}", agent.log());
            agent.stderr().contains(" lends up to ")
        });
        agent
    }

    /// The donor on the CA's host.
    fn start_beside(&self) -> Process {
        let words = ["ca", "--dir", &self.ca(), "issue", "--json", "--role", "donor", "--name", "oak", "--to"];
        let made = self.annex(&[&words[..], &[&self.text("oak")]].concat()).done();
        self.agent("oak", self.beside, &lines(&made))
    }

    /// A host's files with a certificate that it got so many days ago.
    fn issued(&self, role: Role, name: &str, days_ago: u64) -> (Files, String) {
        let folder = self.path(name);
        fs::create_dir_all(&folder).unwrap();
        let of = |file| folder.join(file);
        let files = Files { ca: of("ca.pem"), certificate: of("cert.pem"), key: of("key.pem"), revocations: None };
        let (key, at) = (Key::generate().unwrap(), unix(now() - days_ago * DAY));
        let signed = self.opened().sign(role, name.parse().unwrap(), &key.request().unwrap(), at).unwrap();
        Joined { name: signed.name, certificate: signed.certificate, ca: signed.ca }.save(&files, &key).unwrap();
        let (ca, cert, key) = (files.ca.display(), files.certificate.display(), files.key.display());
        let lines = format!("[tls]\nca = '{ca}'\ncert = '{cert}'\nkey = '{key}'\n");
        (files, lines)
    }

    fn annexd(&self, lines: &str, donors: &[SocketAddr]) -> Process {
        let (config, socket) = (self.path("annexd.toml"), self.text("annexd.sock"));
        let mut text = format!("socket = '{socket}'\n{lines}\n[pool]\nreplicas = 2\n");
        for donor in donors {
            text += &format!("[[pool.donor]]\naddress = '{donor}'\ntransport = 'tcp'\n");
        }
        fs::write(&config, text).unwrap();
        let mut command = Command::new(bins::find("annexd"));
        command.arg("--config").arg(config);
        Process::start("annexd", command, self.dir.path())
    }
}

fn expires(files: &Files) -> u64 {
    facts(files).unwrap().validity.not_after.as_secs()
}

fn own(files: &Files) -> Facts {
    facts(files).unwrap()
}

#[test]
fn hosts_join_with_tokens_and_a_client_borrows_over_tls() {
    let _turn = Turn::shared();
    let site = Site::new();
    let _oak = site.start_beside();
    let elm = lines(&site.join(&site.token("donor", "elm"), "elm").done());
    assert!(elm.contains(&format!("renew = \"{}\"", site.beside)), "{elm}");
    let mode = |file: &str| fs::metadata(site.path(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("elm/key.pem"), mode("elm/cert.pem"), mode("elm/ca.pem")), (0o600, 0o644, 0o644));
    let address = port::free();
    let _elm = site.agent("elm", address, &elm);
    let web = lines(&site.join(&site.token("client", "web"), "web").done());
    let mut annexd = site.annexd(&web, &[site.beside, address]);

    let socket = site.text("annexd.sock");
    let donors = || -> Value {
        let said = site.annex(&["donors", "--json", "--socket", &socket]);
        serde_json::from_str(&said.out).unwrap_or_default()
    };
    wait_for("both donors to be up", MINUTE, || {
        assert!(annexd.is_running(), "{}", annexd.log());
        donors().as_array().is_some_and(|all| all.len() == 2 && all.iter().all(|donor| donor["state"] == "up"))
    });
    assert!(donors().as_array().unwrap().iter().all(|donor| donor["encrypted"] == true), "{}", donors());
    // Each page that comes back is looked at.
    let bench = ["bench", "--socket", &socket, "--size", "32M", "--local", "25%", "--patterns", "random"];
    let measured = site.annex(&[&bench[..], &["--seconds", "0.1", "--rounds", "1"]].concat());
    assert_eq!(measured.code, Some(0), "{measured:?}\n{}", annexd.log());
    let lent = |donor: &Value| donor["slabs_held"].as_u64().is_some_and(|slabs| slabs > 0);
    assert!(donors().as_array().unwrap().iter().all(lent), "{}", donors());

    let listed = site.annex(&["ca", "--dir", &site.ca(), "list"]).done();
    for line in ["oak   donor   good", "elm   donor   good", "web   client  good"] {
        assert!(listed.contains(line), "{listed}");
    }
    assert!(!listed.contains("token"), "{listed}");
}

/// What `annex join` says where it fails, and that nothing is left of it.
#[test]
fn a_host_that_can_not_join_reads_why_and_has_no_files() {
    let site = Site::new();
    let oak = site.start_beside();
    let (to, of) = (site.path("new"), |token: &str| site.join(token, "new"));

    let token = site.token("donor", "elm");
    of(&token[..token.len() - 1]).refused(2, "the token is damaged", &to);
    of("nonsense").refused(2, "this is no token", &to);

    site.join(&token, "elm").done();
    of(&token).refused(2, "the CA refused: the token was used already", &to);
    // Its files are there, and nothing is asked of anybody.
    let again = site.join(&site.token("client", "both"), "elm");
    assert!(again.code == Some(2) && again.err.contains("and this host is annex://prod/donor/elm by it"), "{again:?}");
    assert_eq!(own(&files_in(&site.path("elm"))).name.to_string(), "annex://prod/donor/elm");

    let address = vec![site.beside.to_string().parse().unwrap()];
    let (name, hour) = ("late".parse().unwrap(), Duration::from_secs(3600));
    let expired = site.opened().token(Role::Donor, name, hour, address, unix(now() - 7200)).unwrap().reveal();
    of(&expired).refused(2, "the token is no longer valid", &to);

    // A token of another CA leads to this agent: it hears no secret, and the token stays good.
    let mut other = Site::new();
    other.beside = site.beside;
    let theirs = other.token("donor", "ash");
    of(&theirs).refused(3, "it does not have the CA of the token", &to);
    wait_for("the agent to have been told", MINUTE, || oak.stderr().contains("a host that joins was lost"));
    assert!(other.annex(&["ca", "--dir", &other.ca(), "list"]).done().contains("ash   donor  token"));

    // Revoked before it was used.
    let taken_back = site.token("donor", "ash");
    site.annex(&["ca", "--dir", &site.ca(), "revoke", "ash"]).done();
    of(&taken_back).refused(2, "the CA does not know this token", &to);

    let nobody = port::free();
    let alone = site.token("donor", "fir");
    site.annex(&["join", &alone, "--to", &site.text("new"), "--address", &nobody.to_string()]).refused(
        3,
        "nothing answers there: Connection refused",
        &to,
    );
    // One of several is enough, whichever it is.
    let addresses = ["--address", &nobody.to_string(), "--address", &site.beside.to_string()];
    site.annex(&[&["join", &alone, "--to", &site.text("fir")], &addresses[..]].concat()).done();
}

fn files_in(folder: &Path) -> Files {
    let of = |file| folder.join(file);
    Files { ca: of("ca.pem"), certificate: of("cert.pem"), key: of("key.pem"), revocations: None }
}

#[test]
fn an_agent_that_does_not_sign_says_so() {
    let site = Site::new();
    let (_, lines) = site.issued(Role::Donor, "oak", 0);
    let oak = site.agent("oak", site.beside, &lines);
    let (to, token) = (site.path("new"), site.token("donor", "elm"));
    site.join(&token, "new").refused(3, "the agent there signs no certificates", &to);
    wait_for("the agent's log", MINUTE, || oak.stderr().contains("this agent signs none: set dir in [ca]"));
    let plain = port::free();
    let _plain = site.agent("plain", plain, "");
    let said = site.annex(&["join", &token, "--to", &site.text("new"), "--address", &plain.to_string()]);
    said.refused(3, "the agent there ended the connection: has it [tls]?", &to);
}

#[test]
fn an_agent_does_not_start_with_a_ca_that_is_not_its_own() {
    let (site, other) = (Site::new(), Site::new());
    let (_, lines) = other.issued(Role::Donor, "oak", 0);
    let config = site.path("agent.toml");
    fs::write(&config, format!("shm_socket = ''\ncontrol_socket = ''\n{lines}[ca]\ndir = '{}'\n", site.ca())).unwrap();
    for words in [&["check-config"][..], &["--config"]] {
        let output = Command::new(bins::find("annex-agent")).args(words).arg(&config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("bad [ca]: this host's own certificate is not of the CA in"), "{said}");
    }
}

/// 64 of the 90 days have gone: more than two thirds, also for whoever is late on purpose.
#[test]
fn daemons_renew_their_certificates_at_the_agent_beside_the_ca() {
    let site = Site::new();
    let old = 64;
    let (oak_files, oak_lines) = site.issued(Role::Donor, "oak", old);
    let (elm_files, elm_lines) = site.issued(Role::Donor, "elm", old);
    let (web_files, web_lines) = site.issued(Role::Client, "web", old);
    let (ash_files, ash_lines) = site.issued(Role::Donor, "ash", old);
    let (fir_files, fir_lines) = site.issued(Role::Donor, "fir", old);
    let key = fs::read(&elm_files.key).unwrap();
    site.annex(&["ca", "--dir", &site.ca(), "revoke", "ash"]).done();
    let renew = format!("renew = '{}'\n", site.beside);

    // The agent beside the CA needs no `renew`: it asks itself.
    let oak = site.agent("oak", site.beside, &format!("{oak_lines}[ca]\ndir = '{}'\n", site.ca()));
    let addresses = [port::free(), port::free(), port::free()];
    let elm = site.agent("elm", addresses[0], &format!("{elm_lines}{renew}"));
    let ash = site.agent("ash", addresses[1], &format!("{ash_lines}{renew}"));
    let _fir = site.agent("fir", addresses[2], &fir_lines);
    let annexd = site.annexd(&format!("{web_lines}{renew}"), &[site.beside, addresses[0]]);
    for (who, files, daemon) in [("oak", &oak_files, &oak), ("elm", &elm_files, &elm), ("web", &web_files, &annexd)] {
        wait_for(&format!("{who} to take a new certificate"), MINUTE, || {
            daemon.stderr().contains(&format!("/{who} are in use from now on"))
        });
        assert!(expires(files) > now() + 89 * DAY, "{who}: {}", own(files));
    }
    assert_eq!(fs::read(&elm_files.key).unwrap(), key, "its key stays");
    wait_for("the revoked one to be refused", MINUTE, || {
        ash.stderr().contains("it is tried again: the CA refused: the key of donor 'ash' was revoked: make a new key")
    });
    let before = now() + 30 * DAY;
    assert!(expires(&ash_files) < before && expires(&fir_files) < before, "neither got another one");
}
