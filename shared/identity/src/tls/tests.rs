use super::*;
use crate::files::{self, Secrecy};
use crate::testing::{Clock, DAY, Everybody, NOW, Pki, leaf};
use crate::verify::Nobody;
use rustls::{ClientConnection, ServerConnection};
use std::io::{Read, Write};

/// A client and a donor with a connection between them, in memory.
pub(crate) struct Pair {
    pub client: ClientConnection,
    pub server: ServerConnection,
}

impl Pair {
    /// Of one cluster, with the handshake over.
    pub fn new() -> Pair {
        let mut pair = Pair::unfinished();
        pair.shake_hands().unwrap();
        pair
    }

    pub fn unfinished() -> Pair {
        let (client, server) =
            (Host::new(&Pki::new("c"), "annex://c/client/a"), Host::new(&Pki::new("c"), "annex://c/donor/b"));
        client.believe(&server);
        server.believe(&client);
        connect(&client, &server)
    }

    /// Runs the handshake to its end, or to what went wrong.
    pub fn shake_hands(&mut self) -> Result<(), Error> {
        for _ in 0..8 {
            self.pass_on()?;
            if !self.client.is_handshaking() && !self.server.is_handshaking() {
                self.pass_on()?;
                return Ok(());
            }
        }
        panic!("the handshake does not end");
    }

    fn pass_on(&mut self) -> Result<(), Error> {
        let mut wire = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut wire).unwrap();
        }
        let mut at_server = &wire[..];
        while !at_server.is_empty() {
            self.server.read_tls(&mut at_server).unwrap();
            self.server.process_new_packets()?;
        }
        let mut wire = Vec::new();
        while self.server.wants_write() {
            self.server.write_tls(&mut wire).unwrap();
        }
        let mut at_client = &wire[..];
        while !at_client.is_empty() {
            self.client.read_tls(&mut at_client).unwrap();
            self.client.process_new_packets()?;
        }
        Ok(())
    }
}

/// A host's identity, its clock, and who has a standing with it.
struct Host {
    _dir: tempfile::TempDir,
    identity: Arc<Identity>,
    clock: Arc<Clock>,
    standings: Arc<dyn Standings>,
}

impl Host {
    fn new(pki: &Pki, uri: &str) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let identity = Arc::new(Identity::open(pki.files(dir.path(), uri)).unwrap());
        Host { _dir: dir, identity, clock: Arc::new(Clock::at(NOW)), standings: Arc::new(Nobody) }
    }

    fn with_leases(self) -> Host {
        Host { standings: Arc::new(Everybody), ..self }
    }

    /// Takes the other one's CA into its own file.
    fn believe(&self, other: &Host) {
        let path = &self.identity.files().ca;
        let both = [files::read(path).unwrap(), files::read(&other.identity.files().ca).unwrap()].concat();
        files::write(path, &both, Secrecy::Public).unwrap();
        self.identity.reload().unwrap();
    }
}

fn connect(client: &Host, server: &Host) -> Pair {
    let from = session_client(&client.identity, client.standings.clone(), client.clock.clone()).unwrap();
    let to = session_server(&server.identity, server.standings.clone(), server.clock.clone()).unwrap();
    Pair { client: ClientConnection::new(from, any_server()).unwrap(), server: ServerConnection::new(to).unwrap() }
}

fn try_to_connect(client: &Host, server: &Host) -> Result<Pair, Error> {
    let mut pair = connect(client, server);
    pair.shake_hands().map(|()| pair)
}

fn hosts(pki: &Pki) -> (Host, Host) {
    (Host::new(pki, "annex://c/client/a"), Host::new(pki, "annex://c/donor/b"))
}

#[test]
fn both_sides_know_each_other_and_speak() {
    let (client, server) = hosts(&Pki::new("c"));
    let mut pair = try_to_connect(&client, &server).unwrap();
    assert_eq!(peer(&pair.server).unwrap(), client.identity.current().own);
    assert_eq!(peer(&pair.client).unwrap(), server.identity.current().own);
    assert_eq!(pair.client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert!(check_protocol(&pair.server, SESSION).is_ok() && check_protocol(&pair.server, JOIN).is_err());
    pair.client.writer().write_all(b"a page").unwrap();
    pair.pass_on().unwrap();
    let mut got = [0; 6];
    pair.server.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"a page");
}

#[test]
fn a_host_of_another_ca_cluster_or_role_is_refused_by_either_side() {
    let (pki, other) = (Pki::new("c"), Pki::new("c"));
    let (client, server) = hosts(&pki);
    let (foreign_client, foreign_server) = hosts(&other);
    for (client, server) in [(&client, &foreign_server), (&foreign_client, &server)] {
        assert!(try_to_connect(client, server).is_err());
    }
    // One CA may serve several clusters.
    let elsewhere = Host::new(&pki, "annex://d/client/a");
    assert!(try_to_connect(&elsewhere, &server).is_err());
    let lender = Host::new(&pki, "annex://c/donor/x");
    assert!(try_to_connect(&lender, &server).is_err(), "a donor can't borrow");
    let borrower = Host::new(&pki, "annex://c/client/x");
    assert!(try_to_connect(&client, &borrower).is_err(), "a client can't lend");
}

#[test]
fn the_refusal_says_who_and_why() {
    let pki = Pki::new("c");
    let (_, server) = hosts(&pki);
    let mut pair = connect(&Host::new(&pki, "annex://d/client/a"), &server);
    let said = reason(&pair.shake_hands().unwrap_err());
    assert_eq!(said, "annex://c/donor/b is of another cluster than d");
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let (client, server) = hosts(&Pki::new("c"));
    let mut pair = connect(&client, &server);
    let mut config = (*session_client(&client.identity, Arc::new(Nobody), client.clock.clone()).unwrap()).clone();
    config.client_auth_cert_resolver =
        Arc::new(rustls::client::AlwaysResolvesClientRawPublicKeys::new(client.identity.current().certified.clone()));
    pair.client = ClientConnection::new(Arc::new(config), any_server()).unwrap();
    assert!(pair.shake_hands().is_err());
}

#[test]
fn an_expired_client_comes_back_only_to_its_leases() {
    let pki = Pki::new("c");
    let (client, server) = hosts(&pki);
    server.clock.set(NOW + 100 * DAY);
    let said = reason(&try_to_connect(&client, &server).err().unwrap());
    assert!(said.contains("expired 10 days ago"), "{said}");
    let (client, server) = (client, server.with_leases());
    assert!(try_to_connect(&client, &server).is_ok());
}

#[test]
fn an_expired_donor_is_spoken_to_only_where_pages_lie() {
    let pki = Pki::new("c");
    let (client, server) = hosts(&pki);
    client.clock.set(NOW + 100 * DAY);
    assert!(try_to_connect(&client, &server).is_err());
    let client = client.with_leases();
    assert!(try_to_connect(&client, &server).is_ok());
}

#[test]
fn a_clock_that_is_a_day_off_costs_nobody_a_session_that_has_leases() {
    for off in [NOW - DAY, NOW + DAY] {
        let (client, server) = hosts(&Pki::new("c"));
        server.clock.set(off);
        let (client, server) = (client.with_leases(), server.with_leases());
        assert!(try_to_connect(&client, &server).is_ok());
        // Nor a session that is up: nobody looks at its certificate again.
        let mut pair = try_to_connect(&client, &server).unwrap();
        server.clock.set(NOW + 1000 * DAY);
        pair.client.writer().write_all(b"a page").unwrap();
        pair.pass_on().unwrap();
    }
}

#[test]
fn a_replaced_certificate_is_shown_at_the_next_handshake_and_ends_no_session() {
    let pki = Pki::new("c");
    let (client, server) = hosts(&pki);
    let mut before = try_to_connect(&client, &server).unwrap();
    let (certificate, key) = pki.issue(&leaf("annex://c/donor/b"));
    let paths = server.identity.files();
    files::write(&paths.key, key.to_pem().as_bytes(), Secrecy::Private).unwrap();
    assert!(server.identity.reload().is_err(), "half of a pair");
    assert!(try_to_connect(&client, &server).is_ok());
    files::write(&paths.certificate, crate::ca::to_pem(&certificate).as_bytes(), Secrecy::Public).unwrap();
    server.identity.reload().unwrap();
    // With the same configuration as before it would be the same too: it asks the identity.
    let after = try_to_connect(&client, &server).unwrap();
    assert_eq!(peer(&after.client).unwrap().key, key.id());
    before.client.writer().write_all(b"a page").unwrap();
    before.pass_on().unwrap();
}

#[test]
fn nothing_is_resumed() {
    let (client, server) = hosts(&Pki::new("c"));
    let from = session_client(&client.identity, Arc::new(Nobody), client.clock.clone()).unwrap();
    let to = session_server(&server.identity, Arc::new(Nobody), server.clock.clone()).unwrap();
    for _ in 0..3 {
        let mut pair = Pair {
            client: ClientConnection::new(from.clone(), any_server()).unwrap(),
            server: ServerConnection::new(to.clone()).unwrap(),
        };
        pair.shake_hands().unwrap();
        assert!(pair.client.early_data().is_none());
        assert_eq!(pair.client.tls13_tickets_received(), 0);
        assert_ne!(pair.client.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    }
}

#[test]
fn a_peer_that_wants_another_protocol_is_refused() {
    let (client, server) = hosts(&Pki::new("c"));
    for (protocols, is_refused_by_tls) in [(vec![JOIN.to_vec()], true), (Vec::new(), false)] {
        let mut pair = connect(&client, &server);
        let mut config = (*session_client(&client.identity, Arc::new(Nobody), client.clock.clone()).unwrap()).clone();
        config.alpn_protocols = protocols;
        pair.client = ClientConnection::new(Arc::new(config), any_server()).unwrap();
        assert_eq!(pair.shake_hands().is_err(), is_refused_by_tls);
        assert!(check_protocol(&pair.server, SESSION).is_err());
    }
}

#[test]
fn the_wire_shows_neither_name_nor_page() {
    let (client, server) = hosts(&Pki::new("c"));
    let mut pair = connect(&client, &server);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let mut wire = Vec::new();
        while pair.client.wants_write() {
            pair.client.write_tls(&mut wire).unwrap();
        }
        seen.extend_from_slice(&wire);
        let mut at = &wire[..];
        while !at.is_empty() {
            pair.server.read_tls(&mut at).unwrap();
            pair.server.process_new_packets().unwrap();
        }
        let mut wire = Vec::new();
        while pair.server.wants_write() {
            pair.server.write_tls(&mut wire).unwrap();
        }
        seen.extend_from_slice(&wire);
        let mut at = &wire[..];
        while !at.is_empty() {
            pair.client.read_tls(&mut at).unwrap();
            pair.client.process_new_packets().unwrap();
        }
        if !pair.client.is_handshaking() {
            let _ = pair.client.writer().write_all(b"a page of a program");
        }
    }
    assert!(seen.len() > 1000);
    for secret in [&b"annex://"[..], b"a page of a program"] {
        assert!(!seen.windows(secret.len()).any(|window| window == secret));
    }
}
