use super::*;
use crate::hello::Hello;
use crate::identity::Identity;
use crate::testing::{Clock, NOW, Pki};
use crate::tls::{session_client, session_server};
use crate::verify::Nobody;
use rustls::ServerConfig;
use std::net::TcpListener;
use std::thread;

const PATIENCE: Duration = Duration::from_secs(10);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

struct Ends {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    _dirs: [tempfile::TempDir; 2],
}

fn ends(client: &Pki, server: &Pki) -> Ends {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let open =
        |pki: &Pki, dir: &tempfile::TempDir, uri: &str| Arc::new(Identity::open(pki.files(dir.path(), uri)).unwrap());
    let clock = || Arc::new(Clock::at(NOW));
    let client = open(client, &dirs[0], "annex://c/client/a");
    let server = open(server, &dirs[1], "annex://c/donor/b");
    Ends {
        client: session_client(&client, Arc::new(Nobody), clock()).unwrap(),
        server: session_server(&server, Arc::new(Nobody), clock()).unwrap(),
        _dirs: dirs,
    }
}

fn accept(socket: TcpStream, config: &Arc<ServerConfig>, by: Instant) -> Result<Stream, HandshakeError> {
    Hello::read(socket, by)?.session(config)
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nodelay(true).unwrap();
    (client, listener.accept().unwrap().0)
}

fn pair() -> (Stream, Stream) {
    let pki = Pki::new("c");
    let ends = ends(&pki, &pki);
    let (ours, theirs) = sockets();
    let server = thread::spawn(move || accept(theirs, &ends.server, soon()).unwrap());
    let client = Stream::connect(ours, &ends.client, soon()).unwrap();
    (client, server.join().unwrap())
}

fn read_exactly(stream: &Stream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut stream = stream;
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_goes_in_comes_out_at_the_other_end() {
    let (client, server) = pair();
    let sent: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
    let reader = thread::spawn(move || (read_exactly(&server, 300_000), server));
    (&client).write_all(&sent).unwrap();
    let (got, server) = reader.join().unwrap();
    assert_eq!(got, sent);
    (&server).write_all(b"thanks").unwrap();
    assert_eq!(read_exactly(&client, 6), b"thanks");
}

/// What had been read before the wait was given to TLS once more.
#[test]
fn a_read_that_waited_in_vain_spoils_nothing() {
    let (client, server) = pair();
    server.socket().set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    for round in 0..3 {
        (&client).write_all(&[round; 100]).unwrap();
        assert_eq!(read_exactly(&server, 100), [round; 100]);
        assert_eq!((&server).read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn one_thread_may_wait_for_bytes_while_another_one_writes() {
    let (client, server) = pair();
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_exactly(&client, 5));
        thread::sleep(Duration::from_millis(50));
        (&client).write_all(b"hello").unwrap();
        assert_eq!(read_exactly(&server, 5), b"hello");
        (&server).write_all(b"world").unwrap();
        assert_eq!(reader.join().unwrap(), b"world");
    });
}

#[test]
fn both_ends_have_the_same_session_and_know_each_other() {
    let (client, server) = pair();
    let (at_client, at_server) = (client.session().unwrap().unwrap(), server.session().unwrap().unwrap());
    assert_eq!(at_client.peer.name.to_string(), "annex://c/donor/b");
    assert_eq!(at_server.peer.name.to_string(), "annex://c/client/a");
    assert!(client.binding().unwrap().is_some() && client.binding().unwrap() == server.binding().unwrap());
    let (plain, _other) = sockets();
    assert!(Stream::plain(plain).session().unwrap().is_none());
}

#[test]
fn a_peer_that_does_not_read_is_not_waited_for() {
    let (client, server) = pair();
    let page = vec![7; 64 << 10];
    let mut taken = 0;
    loop {
        let n = client.send_now(&page).unwrap();
        taken += n;
        if n < page.len() {
            break;
        }
        assert!(taken < 1 << 30, "no socket has so much room");
    }
    assert!(client.is_pending());
    let reader = thread::spawn(move || read_exactly(&server, taken));
    (&client).flush().unwrap();
    assert!(!client.is_pending());
    assert!(reader.join().unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_short_read_has_left_nothing_behind() {
    let (client, server) = pair();
    for _ in 0..20 {
        (&client).write_all(&[1; 700]).unwrap();
    }
    thread::sleep(Duration::from_millis(50));
    let mut buffer = vec![0; 32 << 10];
    let mut got = 0;
    while got < 20 * 700 {
        match (&server).read(&mut buffer) {
            Ok(n) => got += n,
            Err(e) => assert_eq!(e.kind(), ErrorKind::Interrupted),
        }
    }
    server.socket().set_nonblocking(true).unwrap();
    assert_eq!((&server).read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn bytes_that_were_changed_on_the_way_never_come_out() {
    let (client, server) = pair();
    // What an attacker on the wire puts in front of the next record.
    client
        .socket()
        .write_all_raw(&[0x17, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
    (&client).write_all(b"a page").unwrap();
    let error = loop {
        match (&server).read(&mut [0; 100]) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => break other.unwrap_err(),
        }
    };
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

trait Raw {
    fn write_all_raw(&self, bytes: &[u8]);
}

impl Raw for TcpStream {
    fn write_all_raw(&self, bytes: &[u8]) {
        (&mut &*self).write_all(bytes).unwrap();
    }
}

#[test]
fn an_end_without_a_word_is_an_end() {
    let (client, server) = pair();
    (&client).write_all(b"last").unwrap();
    drop(client);
    assert_eq!(read_exactly(&server, 4), b"last");
    assert_eq!((&server).read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn a_silent_peer_costs_no_more_than_its_time() {
    let pki = Pki::new("c");
    let ends = ends(&pki, &pki);
    let (_ours, theirs) = sockets();
    let began = Instant::now();
    let refused = accept(theirs, &ends.server, Instant::now() + Duration::from_millis(200)).unwrap_err();
    assert!(matches!(refused, HandshakeError::TimedOut), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_client_that_is_refused_reads_why() {
    let (ours, theirs) = (Pki::new("c"), Pki::new("c"));
    let ends = ends(&theirs, &ours);
    // The client believes the donor's CA, but not the other way round.
    let believing = {
        let dir = tempfile::tempdir().unwrap();
        let files = theirs.files(dir.path(), "annex://c/client/a");
        let both = [&ours, &theirs].map(|pki| crate::ca::to_pem(&pki.certificate())).concat();
        crate::files::write(&files.ca, both.as_bytes(), crate::files::Secrecy::Public).unwrap();
        session_client(&Arc::new(Identity::open(files).unwrap()), Arc::new(Nobody), Arc::new(Clock::at(NOW))).unwrap()
    };
    let (client, server) = sockets();
    let server = thread::spawn(move || accept(server, &ends.server, soon()).unwrap_err().to_string());
    let client = Stream::connect(client, &believing, soon()).unwrap();
    (&client).write_all(&[0; 200]).unwrap();
    let said = loop {
        match (&client).read(&mut [0; 10]) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => break other.unwrap_err().to_string(),
        }
    };
    assert!(said.starts_with("the peer does not accept this host's certificate: its log says why"), "{said}");
    drop(client);
    let said = server.join().unwrap();
    assert!(said.contains("no certificate in the ca file has issued"), "{said}");
}

#[test]
fn what_is_no_tls_is_said_to_be_none() {
    let pki = Pki::new("c");
    let ends = ends(&pki, &pki);
    let (client, server) = sockets();
    client.write_all_raw(b"annex\0\0\0\x04\0\x01\0\0\0\0\0");
    let refused = thread::spawn(move || accept(server, &ends.server, soon()).unwrap_err().to_string());
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(refused.join().unwrap(), "what the peer sent is no TLS");
}
