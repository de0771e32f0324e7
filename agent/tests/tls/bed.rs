//! An agent's program with TLS, what it says in its log, and clients with certificates of their
//! own.

use annex_fabric::tcp::TcpConnector;
use annex_fabric::{Arena, Connector, Endpoint, ErrorKind, Op, OpKind, SessionTls};
use annex_identity::identity::{Files, Identity};
use annex_identity::key::Key;
use annex_identity::stream::{HandshakeError, Stream};
use annex_identity::testing::{Params, Pki, leaf_now};
use annex_identity::tls::session_client;
use annex_identity::verify::Nobody;
use annex_identity::{ca, files};
use annex_shared::ids::{ClientId, RemoteAddr, Rkey};
use annex_shared::preamble::Preamble;
use annex_shared::wire::{Event, FrameError, Frames, Lease, Request, VERSION, Welcome, write_frame};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustls::ClientConfig;
use rustls::time_provider::DefaultTimeProvider;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const ANNA: ClientId = ClientId(0xa);
pub const SLAB: u32 = 1 << 20;
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Polls for something that has no event to wait for.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running agent, killed when dropped.
pub struct Donor {
    child: Child,
    pub addr: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    pub files: Option<Files>,
    dir: tempfile::TempDir,
}

impl Donor {
    /// With a certificate of this PKI.
    pub fn secure(pki: &Pki) -> Donor {
        Donor::with_list(pki, None)
    }

    /// With a revocation list, too.
    pub fn with_list(pki: &Pki, list: Option<&[u8]>) -> Donor {
        Donor::with(pki, list, "")
    }

    /// With more lines of configuration at its end.
    pub fn with(pki: &Pki, list: Option<&[u8]>, more: &str) -> Donor {
        let dir = tempfile::tempdir().unwrap();
        let mut files = pki.files_of(dir.path(), &leaf_now("annex://c/donor/oak", 30));
        if let Some(list) = list {
            let path = dir.path().join("crl.pem");
            fs::write(&path, list).unwrap();
            files.revocations = Some(path);
        }
        Donor::start(dir, Some(files), "", more)
    }

    pub fn plain() -> Donor {
        Donor::start(tempfile::tempdir().unwrap(), None, "", "")
    }

    /// With a certificate, and for clients without as well.
    pub fn also_plain(pki: &Pki) -> Donor {
        let dir = tempfile::tempdir().unwrap();
        let files = pki.files_of(dir.path(), &leaf_now("annex://c/donor/oak", 30));
        Donor::start(dir, Some(files), "also_plain = true\n", "")
    }

    /// `first` and `more` are lines of its configuration.
    fn start(dir: tempfile::TempDir, files: Option<Files>, first: &str, more: &str) -> Donor {
        let config = dir.path().join("agent.toml");
        let mut text =
            format!("{first}capacity = '8M'\nslab_size = '1M'\nheadroom = 0\nshm_socket = ''\ncontrol_socket = ''\n");
        if let Some(Files { ca, certificate, key, revocations }) = &files {
            let (ca, certificate, key) = (ca.display(), certificate.display(), key.display());
            text += &format!("[tls]\nca = '{ca}'\ncert = '{certificate}'\nkey = '{key}'\n");
            text += &revocations.as_ref().map_or_else(String::new, |list| format!("crl = '{}'\n", list.display()));
        }
        fs::write(&config, text + more).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_annex-agent"))
            .args(["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains(" lends up to ")).expect("it starts");
        let addr = line.split(" on ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let to = log.clone();
        std::thread::spawn(move || lines.for_each(|line| to.lock().unwrap().push(line)));
        Donor { child, addr, log, files, dir }
    }

    /// Waits until the log has these words.
    pub fn says(&self, words: &str) {
        wait_until(words, || self.lines_with(words) > 0);
    }

    /// Has it read its configuration again, with `from` replaced by `to`.
    pub fn reload(&self, from: &str, to: &str) {
        let config = self.dir.path().join("agent.toml");
        let text = fs::read_to_string(&config).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&config, text.replace(from, to)).unwrap();
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGHUP).unwrap();
        self.says("configuration reloaded");
    }

    pub fn lines_with(&self, words: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent's log: {:#?}", self.log.lock().unwrap());
        }
    }
}

/// A client's certificate, and the CA that it believes.
pub struct Host {
    config: Arc<ClientConfig>,
    _dir: tempfile::TempDir,
}

impl Host {
    /// Shows a certificate of `pki` and believes the donors of `believes`.
    pub fn new(pki: &Pki, believes: &Pki, params: &Params) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let files = pki.files_of(dir.path(), params);
        let cas = [pki, believes].map(|pki| ca::to_pem(&pki.certificate())).concat();
        files::write(&files.ca, cas.as_bytes(), files::Secrecy::Public).unwrap();
        Host::of(dir, files)
    }

    pub fn honest(pki: &Pki) -> Host {
        Host::new(pki, pki, &leaf_now("annex://c/client/anna", 30))
    }

    /// With this very certificate.
    pub fn with(pki: &Pki, certificate: &str, key: &Key) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let files = pki.files_of(dir.path(), &leaf_now("annex://c/client/anna", 30));
        files::write(&files.certificate, certificate.as_bytes(), files::Secrecy::Public).unwrap();
        files::write(&files.key, key.to_pem().as_bytes(), files::Secrecy::Private).unwrap();
        Host::of(dir, files)
    }

    fn of(dir: tempfile::TempDir, files: Files) -> Host {
        let identity = Arc::new(Identity::open(files).unwrap());
        let config = session_client(&identity, Arc::new(Nobody), Arc::new(DefaultTimeProvider)).unwrap();
        Host { config, _dir: dir }
    }

    pub fn connect(&self, addr: SocketAddr) -> Result<Stream, HandshakeError> {
        Stream::connect(TcpStream::connect(addr).unwrap(), &self.config, soon())
    }

    pub fn tls(&self, control: &Control) -> Arc<SessionTls> {
        let session = control.frames.stream().session().unwrap().expect("it is TLS");
        Arc::new(SessionTls::new(self.config.clone(), session.key))
    }
}

/// A control connection.
pub struct Control {
    frames: Frames<Stream>,
}

impl Control {
    pub fn new(stream: Stream) -> Control {
        stream.socket().set_read_timeout(Some(PATIENCE)).unwrap();
        // Whoever is refused may be hung up on already.
        let _ = Preamble::Control.write_to(&mut &stream);
        Control { frames: Frames::new(stream) }
    }

    pub fn ask(&mut self, request: &Request) -> Result<Event, FrameError> {
        let _ = write_frame(&mut self.frames.stream(), request);
        self.frames.read().map(|event| event.expect("it answers in time"))
    }

    pub fn hello(&mut self, client: ClientId) -> Result<Event, FrameError> {
        let (host, boot_id) = ("here".to_owned(), String::new());
        self.ask(&Request::Hello { version: VERSION as u16, client, host, boot_id, slab_size: 0 })
    }

    /// Says hello and leases a slab.
    pub fn settle(&mut self, client: ClientId) -> (Welcome, Lease) {
        let Ok(Event::Welcome(welcome)) = self.hello(client) else { panic!("it is not welcome") };
        let Ok(Event::Leased { slabs }) = self.ask(&Request::Lease { count: 1 }) else { panic!("nothing is leased") };
        (welcome, slabs[0])
    }
}

/// A lane with an arena of one slab.
pub struct Lane {
    arena: Arc<Arena>,
    endpoint: Box<dyn Endpoint>,
}

impl Lane {
    pub fn open(
        addr: SocketAddr,
        client: ClientId,
        welcome: &Welcome,
        tls: Option<Arc<SessionTls>>,
    ) -> Result<Lane, String> {
        let arena = Arc::new(Arena::new(SLAB as usize).unwrap());
        let connector = TcpConnector::new(addr, client, welcome.incarnation, welcome.session, PATIENCE).with_tls(tls);
        let endpoint = connector.open(&arena).map_err(|e| e.to_string())?;
        Ok(Lane { arena, endpoint })
    }

    /// Writes `bytes` to the start of a slab and reads them back, in operations of `piece` bytes
    /// that travel together.
    pub fn round_trip(&mut self, rkey: Rkey, bytes: &[u8], piece: usize) -> Result<(), ErrorKind> {
        // SAFETY: no operation is outstanding.
        unsafe { self.arena.bytes_mut(0, bytes.len()) }.copy_from_slice(bytes);
        self.run(OpKind::Write, rkey, bytes.len(), piece)?;
        // SAFETY: as above.
        unsafe { self.arena.bytes_mut(0, bytes.len()) }.fill(0);
        self.run(OpKind::Read, rkey, bytes.len(), piece)?;
        // SAFETY: as above.
        assert!(unsafe { self.arena.bytes(0, bytes.len()) } == bytes, "other bytes came back");
        Ok(())
    }

    fn run(&mut self, kind: OpKind, rkey: Rkey, len: usize, piece: usize) -> Result<(), ErrorKind> {
        let mut done = Vec::new();
        let ops = len.div_ceil(piece);
        for at in (0..len).step_by(piece) {
            let (tag, len) = (at as u64, piece.min(len - at) as u32);
            self.endpoint.post(Op { tag, kind, local: at, len, rkey, addr: RemoteAddr(at as u64) }).unwrap();
        }
        self.endpoint.ring();
        wait_until("all operations", || {
            self.endpoint.poll(&mut done);
            done.len() == ops
        });
        done.iter().try_for_each(|completion| completion.result)
    }
}

/// Bytes that look like nothing else.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn replace_pair(pki: &Pki, files: &Files, uri: &str) {
    let dir = tempfile::tempdir().unwrap();
    let new = pki.files_of(dir.path(), &leaf_now(uri, 30));
    let copy = |from: &Path, to: &Path, secrecy| files::write(to, &fs::read(from).unwrap(), secrecy).unwrap();
    copy(&new.key, &files.key, files::Secrecy::Private);
    copy(&new.certificate, &files.certificate, files::Secrecy::Public);
}
