//! The KV API over TLS.

use annex_tests::testbed::{Donor, Testbed, bins, port, wait_for};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const SECRET: &str = "nobody-on-the-wire-reads-this";

/// Certificates as people make them, and an annexd that shows one.
struct Server {
    files: tempfile::TempDir,
    address: SocketAddr,
    bed: Testbed,
}

fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output();
    output.unwrap_or_else(|error| panic!("{program} does not start: {error}"))
}

fn openssl(args: &[&str]) {
    let output = run("openssl", args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A CA as `NAME.ca`, and by it a certificate and a key as `NAME.cert` and `NAME.key`.
fn make_certificate(dir: &Path, name: &str) {
    let at = |what: &str| dir.join(format!("{name}.{what}")).display().to_string();
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let ca = ["req", "-x509", "-subj", "/CN=a CA", "-keyout", &at("ca.key"), "-out", &at("ca")];
    openssl(&[&ca[..], &key].concat());
    let leaf =
        ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
    let by = ["-CA", &at("ca"), "-CAkey", &at("ca.key"), "-keyout", &at("key"), "-out", &at("cert")];
    openssl(&[&["req", "-x509", "-subj", "/CN=localhost"][..], &key, &leaf, &by].concat());
}

impl Server {
    fn start() -> Server {
        Server::with("")
    }

    fn with(more: &str) -> Server {
        let files = tempfile::tempdir().expect("a folder");
        ["server", "other", "client"].iter().for_each(|name| make_certificate(files.path(), name));
        let at = |name: &str| files.path().join(name).display().to_string();
        let address = port::free();
        let more = more.replace("CLIENTS", &at("client.ca"));
        let flag = format!("{address},tls_cert={},tls_key={}{more}", at("server.cert"), at("server.key"));
        let builder = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).daemon_arg("--kv").daemon_arg(flag);
        let bed = builder.kv("").start();
        wait_for("the KV API to listen", MINUTE, || TcpStream::connect(address).is_ok());
        Server { files, address, bed }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn cli(&self, address: SocketAddr, more: &[&str]) -> String {
        let (port, ca) = (address.port().to_string(), self.file("server.ca").display().to_string());
        let tls = ["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", &ca];
        let output = run("redis-cli", &[&tls[..], more].concat());
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
    }

    fn script(&self, what: &str, files: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(bins::script("kv_tls.py")).args([what, &self.address.port().to_string()]);
        command.args(files.iter().map(|name| self.file(name)));
        command
    }

    fn said(&self, what: &str, files: &[&str]) -> String {
        let output = self.script(what, files).output().expect("python3");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
    }
}

/// Passes on what comes, and keeps it.
fn tap(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (address, seen) = (listener.local_addr().expect("an address"), Arc::<Mutex<Vec<u8>>>::default());
    let kept = seen.clone();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(to).expect("it listens");
            let ways = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
            for (from, to) in ways {
                let (mut from, mut to, kept) = (from.expect("a socket"), to.expect("a socket"), kept.clone());
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        kept.lock().expect("no panic").extend_from_slice(&buffer[..count]);
                        if to.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (address, seen)
}

#[test]
fn redis_clients_are_served_over_tls_and_the_wire_tells_nothing() {
    let server = Server::start();
    let (through, seen) = tap(server.address);
    assert_eq!(server.cli(through, &["set", "key", SECRET]), "OK");
    assert_eq!(server.cli(through, &["get", "key"]), SECRET);
    let is_seen = |seen: &Mutex<Vec<u8>>| {
        let seen = seen.lock().expect("no panic");
        assert!(!seen.is_empty(), "nothing went that way");
        seen.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
    };
    assert!(!is_seen(&seen));
    let plain = server.bed.kv_address.as_deref().expect("there is a KV API").parse().expect("an address");
    let (through, seen) = tap(plain);
    run("redis-cli", &["-p", &through.port().to_string(), "get", "key"]);
    assert!(is_seen(&seen), "the tap does not see what goes by in clear");

    let list = server.cli(server.address, &["client", "list"]);
    assert!(list.contains("addr=127.0.0.1:") && list.contains(&format!("laddr={}", server.address)), "{list}");
    let listens = server.bed.annex("kv", [""; 0]).output().expect("annex starts");
    let listens = String::from_utf8_lossy(&listens.stdout).into_owned();
    assert!(listens.contains(&format!("{} (TLS)", server.address)), "{listens}");
}

#[test]
fn large_values_and_the_last_answer_come_whole_over_tls() {
    let server = Server::start();
    assert_eq!(server.said("large", &["server.ca"]), "all right");
    let port = server.address.port().to_string();
    let ca = server.file("server.ca").display().to_string();
    let args = ["-p", &port, "--tls", "--cacert", &ca, "-t", "set,get", "-n", "20000", "-P", "16", "-c", "20", "-q"];
    let output = run("redis-benchmark", &args);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("GET: "), "{said}");
}

#[test]
fn who_does_not_belong_there_is_not_served() {
    let server = Server::with(",tls_clients=CLIENTS");
    let refused = |files: &[&str]| {
        let said = server.said("ping", files);
        assert!(said.contains("Error") && !said.contains("PONG"), "{files:?}: {said}");
    };
    assert_eq!(server.said("ping", &["server.ca", "client.cert", "client.key"]), "+PONG");
    // Another server's CA, no certificate, and one of another CA.
    refused(&["other.ca", "client.cert", "client.key"]);
    refused(&["server.ca"]);
    refused(&["server.ca", "other.cert", "other.key"]);
    let mut plain = TcpStream::connect(server.address).expect("it listens");
    plain.write_all(b"PING\r\n").expect("it listens");
    let mut said = Vec::new();
    // Closed with an alert, or with what was sent unread.
    _ = plain.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).contains("PONG"), "{said:?}");
    wait_for("the log to tell why", MINUTE, || server.bed.annexd.log().contains("with the KV API failed: "));
}

#[test]
fn hundreds_of_handshakes_that_do_not_end_keep_nobody_out() {
    let server = Server::start();
    assert_eq!(server.said("half_open", &["server.ca"]), "+PONG");
    wait_for("the oldest to be closed", MINUTE, || server.bed.annexd.log().contains("the oldest made way for another"));
}

#[test]
fn a_new_certificate_is_shown_as_soon_as_its_key_is_there_too() {
    let server = Server::start();
    let first = server.said("serial", &["server.ca"]);
    let put = |name: &str| {
        let (new, place) = (server.file(&format!("other.{name}")), server.file(&format!("server.{name}")));
        std::fs::rename(new, place).expect("a file");
    };
    put("cert");
    wait_for("half of a pair to be refused", MINUTE, || server.bed.annexd.log().contains("is not the key of"));
    assert_eq!(server.said("serial", &["server.ca"]), first);
    put("key");
    wait_for("the new pair to be taken", MINUTE, || server.bed.annexd.log().contains("changed TLS files are in use"));
    let second = server.said("serial", &["other.ca"]);
    assert!(second != first && !second.contains("Error"), "{second}");
}

#[test]
fn annexd_stops_though_a_client_reads_nothing() {
    let mut server = Server::start();
    let mut script = server.script("unread", &["server.ca"]);
    let mut client = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    let mut said = [0; 5];
    client.stdout.as_mut().expect("a pipe").read_exact(&mut said).expect("it asks");
    server.bed.annexd.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(server.bed.annexd.wait(MINUTE).is_some_and(|status| status.success()), "{}", server.bed.annexd.log());
    client.stdin.take();
    client.wait().expect("our child");
}

#[test]
fn files_for_tls_that_are_no_good_are_said_before_annexd_starts() {
    let dir = tempfile::tempdir().expect("a folder");
    make_certificate(dir.path(), "server");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let check = |kv: &str| {
        let output = run(&bins::find("annexd").display().to_string(), &["--kv", kv, "check-config", "/dev/null"]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let good = format!("127.0.0.1:1,tls_cert={},tls_key={}", at("server.cert"), at("server.key"));
    assert!(check(&good).0, "{}", check(&good).1);
    let (is_good, said) = check(&format!("127.0.0.1:1,tls_cert={},tls_key={}", at("server.cert"), at("server.ca.key")));
    assert!(!is_good && said.contains("is not the key of"), "{said}");
    let (is_good, said) = check(&format!("127.0.0.1:1,tls_cert={}", at("server.cert")));
    assert!(!is_good && said.contains("has tls_listen and no tls_key"), "{said}");
}
