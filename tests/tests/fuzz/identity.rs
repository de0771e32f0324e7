//! Tokens, certificates in PEM and DER, revocation lists, and what is said when a host joins.

use super::feed::feed;
use annex_identity::ca::{Ca, to_pem};
use annex_identity::certificate::{Facts, Validity};
use annex_identity::join::protocol::{self, Answer, Request};
use annex_identity::key::{Key, requested_key};
use annex_identity::names::Role;
use annex_identity::pem;
use annex_identity::token::{Secret, Token};
use rustls::pki_types::{CertificateDer, UnixTime};

#[test]
fn no_bytes_break_the_reader_of_tokens() {
    let address = "ca.example:7411".parse().expect("an address");
    let secret = Secret::draw().expect("random numbers");
    let token = Token::new([7; 32], secret, vec![address]).expect("a token").reveal();
    let decode = |bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Ok(token) = text.parse::<Token>()
        {
            assert_eq!(token.reveal(), text.trim());
        }
    };
    feed(&[token.into_bytes(), b"annex1-".to_vec()], decode, |len| 100 * len + (64 << 10));
}

#[test]
fn no_bytes_break_the_reader_of_certificates() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::init(&dir.path().join("ca"), "c".parse().expect("a label"), UnixTime::now()).expect("a CA");
    let key = Key::generate().expect("a key");
    let request = key.request().expect("a request");
    let host = "a".parse().expect("a label");
    let signed = ca.sign(Role::Donor, host, &request, UnixTime::now()).expect("a certificate");
    let corpus = vec![
        signed.certificate.to_vec(),
        ca.certificate().to_vec(),
        to_pem(&signed.certificate).into_bytes(),
        std::fs::read(ca.revocation_list()).expect("a list"),
        key.to_pem().into_bytes(),
        request,
    ];
    let decode = |bytes: &[u8]| {
        let der = CertificateDer::from(bytes);
        let _ = (Facts::of(&der), Validity::of(&der));
        let _ = requested_key(bytes);
        let _ = (pem::certificates(bytes), pem::key(bytes).is_ok(), pem::lists(bytes));
    };
    feed(&corpus, decode, |len| 100 * len + (256 << 10));
}

#[test]
fn no_bytes_break_what_is_said_when_a_host_joins() {
    let request = Key::generate().expect("a key").request().expect("a request");
    let secret = Secret::draw().expect("random numbers");
    let mut corpus = vec![Vec::new(); 4];
    protocol::send(&mut corpus[0], &Request::Join { secret, request: request.clone() }).expect("memory takes it");
    protocol::send(&mut corpus[1], &Request::Renew { request: request.clone() }).expect("memory takes it");
    protocol::send(&mut corpus[2], &Answer::Signed { certificate: request, ca: vec![1; 900] })
        .expect("memory takes it");
    protocol::send(&mut corpus[3], &Answer::Refused("why".into())).expect("memory takes it");
    let decode = |bytes: &[u8]| {
        let mut rest = bytes;
        if let Ok(request) = protocol::receive::<Request>(&mut rest) {
            let mut written = Vec::new();
            protocol::send(&mut written, &request).expect("what was read can be written");
            assert_eq!(protocol::receive::<Request>(&mut &written[..]).expect("it is valid"), request);
        }
        let _ = protocol::receive::<Answer>(&mut &bytes[..]);
    };
    feed(&corpus, decode, |len| 100 * len + (64 << 10));
}
