//! Each peer that doesn't belong is refused, and the agent's log says who it was and what to do.

use crate::bed::{ANNA, Control, Donor, Host, Lane, noise};
use annex_identity::ca::to_pem;
use annex_identity::key::Key;
use annex_identity::stream::Stream;
use annex_identity::testing::{Pki, leaf_now};
use annex_shared::ids::ClientId;
use annex_shared::wire::{Event, Refusal, Request};
use std::io::{Read, Write};
use std::net::TcpStream;

const CLIENT: &str = "annex://c/client/anna";

/// What a client reads whom the donor refuses: the alert, on its first question at the latest.
fn is_refused(host: &Host, donor: &Donor) {
    let stream = host.connect(donor.addr).expect("this side believes the donor");
    let said = Control::new(stream).hello(ANNA).expect_err("it must not be welcome").to_string();
    assert!(said.contains("the peer does not accept this host's certificate: its log says why"), "{said}");
}

#[test]
fn a_client_of_another_ca() {
    let (ours, theirs) = (Pki::new("c"), Pki::new("c"));
    let donor = Donor::secure(&ours);
    is_refused(&Host::new(&theirs, &ours, &leaf_now(CLIENT, 30)), &donor);
    donor.says(
        "the TLS handshake failed: no certificate in the ca file has issued the certificate of annex://c/client/anna",
    );
}

#[test]
fn a_donor_that_wants_to_borrow() {
    let pki = Pki::new("c");
    let donor = Donor::secure(&pki);
    is_refused(&Host::new(&pki, &pki, &leaf_now("annex://c/donor/elm", 30)), &donor);
    donor.says("annex://c/donor/elm has the wrong role: a client is expected here");
}

/// Its certificate is good, and it knows all that Anna's hello says.
#[test]
fn another_client_with_her_id() {
    let pki = Pki::new("c");
    let (donor, anna) = (Donor::secure(&pki), Host::honest(&pki));
    let mut control = Control::new(anna.connect(donor.addr).unwrap());
    let (welcome, lease) = control.settle(ANNA);
    let bert = Host::new(&pki, &pki, &leaf_now("annex://c/client/bert", 30));
    let said = Control::new(bert.connect(donor.addr).unwrap()).hello(ANNA);
    let Ok(Event::Refused(Refusal::ClientInUse { host, .. })) = &said else { panic!("{said:?}") };
    assert_eq!(host, "annex://c/client/anna");
    let mut lane = Lane::open(donor.addr, ANNA, &welcome, Some(anna.tls(&control))).unwrap();
    lane.round_trip(lease.rkey, &noise(4096), 4096).unwrap();
}

#[test]
fn a_client_whom_the_configuration_does_not_name() {
    let pki = Pki::new("c");
    let access = "[access]\nclients = ['web-*']\n[access.per_client]\n'web-2' = '2M'\n";
    let donor = Donor::with(&pki, None, access);
    let host = |name: &str| Host::new(&pki, &pki, &leaf_now(&format!("annex://c/client/{name}"), 30));
    let hello = |host: &Host, id| Control::new(host.connect(donor.addr).unwrap()).hello(id);
    let refused = |said: &_| matches!(said, Ok(Event::Refused(Refusal::NotAllowed { name })) if name == "anna");
    let said = hello(&host("anna"), ANNA);
    assert!(refused(&said), "{said:?}");
    donor.says("this donor does not lend to anna: [access] in its configuration names who may borrow");

    // The share is the name's, whatever ids it says hello with.
    let web = host("web-2");
    let mut controls = [ANNA, ClientId(ANNA.0 + 1)].map(|id| {
        let mut control = Control::new(web.connect(donor.addr).unwrap());
        let lease = control.settle(id).1;
        (control, lease)
    });
    for (control, _) in &mut controls {
        let more = control.ask(&Request::Lease { count: 1 });
        assert!(matches!(more, Ok(Event::Refused(Refusal::ClientLimit { limit: 2 }))), "{more:?}");
    }

    // Who has pages there comes back to them, and gets no more.
    donor.reload("web-*", "db");
    drop(controls);
    let mut control = Control::new(web.connect(donor.addr).unwrap());
    let said = control.hello(ANNA);
    assert!(matches!(&said, Ok(Event::Welcome(welcome)) if welcome.held.len() == 1), "{said:?}");
    let more = control.ask(&Request::Lease { count: 1 });
    assert!(matches!(&more, Ok(Event::Refused(Refusal::NotAllowed { name })) if name == "web-2"), "{more:?}");
    let newcomer = hello(&web, ClientId(ANNA.0 + 2));
    assert!(matches!(newcomer, Ok(Event::Refused(Refusal::NotAllowed { .. }))), "{newcomer:?}");
}

#[test]
fn a_client_whose_certificate_has_expired() {
    let pki = Pki::new("c");
    let donor = Donor::secure(&pki);
    is_refused(&Host::new(&pki, &pki, &leaf_now(CLIENT, -3)), &donor);
    donor.says("the certificate of annex://c/client/anna expired 3 days ago: renew it, or check the clock");
}

#[test]
fn a_client_whose_certificate_was_revoked() {
    let pki = Pki::new("c");
    let key = Key::generate().unwrap();
    let bad = pki.issue_to(&leaf_now(CLIENT, 30), &key);
    let host = Host::with(&pki, &to_pem(&bad), &key);
    let donor = Donor::with_list(&pki, Some(&pki.list(&[&bad])));
    is_refused(&host, &donor);
    donor.says("the certificate of annex://c/client/anna, or one between it and the CA, was revoked");
    // It is the list that does it.
    let donor = Donor::with_list(&pki, Some(&pki.list(&[])));
    assert!(matches!(Control::new(host.connect(donor.addr).unwrap()).hello(ANNA), Ok(Event::Welcome(_))));
}

#[test]
fn a_donor_that_the_client_does_not_believe() {
    let (ours, theirs) = (Pki::new("c"), Pki::new("c"));
    let donor = Donor::secure(&theirs);
    let refused = Host::honest(&ours).connect(donor.addr).expect_err("it is of another CA").to_string();
    assert!(refused.contains("no certificate in the ca file has issued"), "{refused}");
    donor.says("the peer does not accept this host's certificate: its log says why");
}

#[test]
fn a_client_that_speaks_plain() {
    let donor = Donor::secure(&Pki::new("c"));
    for _ in 0..5 {
        let mut client = Control::new(Stream::plain(TcpStream::connect(donor.addr).unwrap()));
        match client.hello(ANNA) {
            Ok(Event::Refused(Refusal::Malformed(said))) => {
                assert_eq!(said, "this port takes TLS only: give annexd ca, cert and key in [tls]");
            }
            other => panic!("{other:?}"),
        }
    }
    let words = "it is not encrypted, and this port takes TLS only: give the annexd there ca, cert and key in [tls]";
    donor.says(words);
    assert_eq!(donor.lines_with(words), 1, "the rest is counted");
}

#[test]
fn a_client_that_speaks_tls_to_an_agent_without() {
    let donor = Donor::plain();
    let refused = Host::honest(&Pki::new("c")).connect(donor.addr).expect_err("it has no TLS").to_string();
    assert_eq!(refused, "the peer ended the connection");
    donor.says("the peer speaks TLS, and this side does not: configure [tls] on both or on none");
}

#[test]
fn whatever_is_neither() {
    let donor = Donor::secure(&Pki::new("c"));
    let mut stream = TcpStream::connect(donor.addr).unwrap();
    stream.write_all(b"\x16GET / HTTP/1.1\r\n\r\n").unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    donor.says("the TLS handshake failed: ");
}

/// They may be at their handshakes for 5 s each, and keep nobody out.
#[test]
fn many_that_never_end_their_handshakes_keep_no_honest_client_out() {
    let pki = Pki::new("c");
    let donor = Donor::secure(&pki);
    let hello = |n: usize| &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..n % 11];
    let silent: Vec<TcpStream> = (0..300)
        .map(|n| {
            let mut stream = TcpStream::connect(donor.addr).unwrap();
            let _ = stream.write_all(hello(n));
            stream
        })
        .collect();
    let host = Host::honest(&pki);
    let began = std::time::Instant::now();
    let welcome = Control::new(host.connect(donor.addr).unwrap()).hello(ANNA);
    assert!(matches!(welcome, Ok(Event::Welcome(_))), "{welcome:?}");
    assert!(began.elapsed().as_secs() < 3, "it took {:?}", began.elapsed());
    drop(silent);
}
