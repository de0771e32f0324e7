//! What belongs to a control session, and what an expired certificate costs: nothing that is up.

use crate::bed::{ANNA, Control, Donor, Host, Lane, SLAB, noise, replace_pair, wait_until};
use annex_fabric::SessionTls;
use annex_identity::stream::Stream;
use annex_identity::testing::{Pki, leaf_now};
use annex_shared::ids::ClientId;
use annex_shared::preamble::{AdmitError, AnswerError, Preamble, Proof, read_answer};
use annex_shared::wire::{Event, Refusal};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

const BERT: ClientId = ClientId(0xb);

#[test]
fn what_is_written_comes_back_in_operations_of_any_size() {
    let pki = Pki::new("c");
    let (donor, host) = (Donor::secure(&pki), Host::honest(&pki));
    let mut control = Control::new(host.connect(donor.addr).unwrap());
    let (welcome, lease) = control.settle(ANNA);
    let mut lane = Lane::open(donor.addr, ANNA, &welcome, Some(host.tls(&control))).unwrap();
    let bytes = noise(SLAB as usize);
    for piece in [4096, 5000, 16 << 10, 100_000, 1 << 20] {
        lane.round_trip(lease.rkey, &bytes, piece).unwrap();
    }
    donor.says("annex://c/client/anna said hello; it holds");
}

#[test]
fn lanes_of_one_session_work_side_by_side() {
    let pki = Pki::new("c");
    let (donor, host) = (Donor::secure(&pki), Host::honest(&pki));
    let mut control = Control::new(host.connect(donor.addr).unwrap());
    let (welcome, lease) = control.settle(ANNA);
    let tls = host.tls(&control);
    let mut lanes: Vec<Lane> =
        (0..3).map(|_| Lane::open(donor.addr, ANNA, &welcome, Some(tls.clone())).unwrap()).collect();
    let bytes = noise(64 << 10);
    for lane in &mut lanes {
        lane.round_trip(lease.rkey, &bytes, 4096).unwrap();
    }
    drop(lanes);
    // The next one fences those that have ended.
    Lane::open(donor.addr, ANNA, &welcome, Some(tls)).unwrap().round_trip(lease.rkey, &bytes, 4096).unwrap();
}

/// While hosts move to TLS one after the other.
#[test]
fn with_also_plain_a_client_moves_to_tls_with_its_leases_and_never_back() {
    let pki = Pki::new("c");
    let (donor, host) = (Donor::also_plain(&pki), Host::honest(&pki));
    let plain = || Control::new(Stream::plain(TcpStream::connect(donor.addr).unwrap()));
    let bytes = noise(64 << 10);
    let mut control = plain();
    let (welcome, lease) = control.settle(ANNA);
    Lane::open(donor.addr, ANNA, &welcome, None).unwrap().round_trip(lease.rkey, &bytes, 4096).unwrap();
    drop(control);

    let mut control = Control::new(host.connect(donor.addr).unwrap());
    let Ok(Event::Welcome(welcome)) = control.hello(ANNA) else { panic!("it is not welcome") };
    let held: Vec<_> = welcome.held.iter().map(|lease| lease.slab).collect();
    assert_eq!(held, [lease.slab]);
    let rkey = welcome.held[0].rkey;
    let mut lane = Lane::open(donor.addr, ANNA, &welcome, Some(host.tls(&control))).unwrap();
    lane.round_trip(rkey, &bytes, 4096).unwrap();

    // Not even with the session key, which only she knows.
    assert!(Lane::open(donor.addr, ANNA, &welcome, None).is_err(), "pages of a session with TLS go in clear");
    donor.says("it shows the proof of another kind of connection");
    let said = plain().hello(ANNA);
    assert!(matches!(said, Ok(Event::Refused(Refusal::NeedsTls))), "{said:?}");
    lane.round_trip(rkey, &bytes, 4096).unwrap();
    // Others are served without TLS still.
    plain().settle(BERT);
}

/// Another client of the cluster, with all that it could overhear in the days without TLS.
#[test]
fn a_stolen_session_key_opens_nothing() {
    let pki = Pki::new("c");
    let donor = Donor::secure(&pki);
    let anna = Host::honest(&pki);
    let bert = Host::new(&pki, &pki, &leaf_now("annex://c/client/bert", 30));
    let mut of_anna = Control::new(anna.connect(donor.addr).unwrap());
    let (welcome, lease) = of_anna.settle(ANNA);
    let mut of_bert = Control::new(bert.connect(donor.addr).unwrap());
    of_bert.settle(BERT);
    let refused = Lane::open(donor.addr, ANNA, &welcome, Some(bert.tls(&of_bert))).err().expect("it is Anna's");
    assert!(refused.contains("does not belong to the client's control session"), "{refused}");
    let stranger = Lane::open(donor.addr, ClientId(0xc), &welcome, Some(bert.tls(&of_bert))).err().unwrap();
    assert!(stranger.contains("it knows no session of this client"), "{stranger}");
    // Nor does the key itself, inside TLS.
    let mut stream = bert.connect(donor.addr).unwrap();
    let proof = Proof { client: ANNA, incarnation: welcome.incarnation, session: welcome.session };
    for preamble in [Preamble::Data(proof), Preamble::Verbs(proof)] {
        let mut stream = bert.connect(donor.addr).unwrap();
        preamble.write_to(&mut stream).unwrap();
        let refused = read_answer(&mut stream);
        assert!(matches!(refused, Err(AnswerError::Refused(AdmitError::NotOffered))), "{refused:?}");
    }
    Preamble::Shm(proof).write_to(&mut stream).unwrap();
    assert!(matches!(read_answer(&mut stream), Err(AnswerError::Refused(AdmitError::NotOffered))));
    // Nor outside of it.
    assert!(Lane::open(donor.addr, ANNA, &welcome, None).is_err());
    let mut lane = Lane::open(donor.addr, ANNA, &welcome, Some(anna.tls(&of_anna))).unwrap();
    lane.round_trip(lease.rkey, &noise(4096), 4096).unwrap();
}

/// A session that was superseded opens no more lanes; the new one does.
#[test]
fn the_key_of_an_earlier_session_opens_nothing_after_the_next_hello() {
    let pki = Pki::new("c");
    let (donor, host) = (Donor::secure(&pki), Host::honest(&pki));
    let mut first = Control::new(host.connect(donor.addr).unwrap());
    let (welcome, lease) = first.settle(ANNA);
    let old: Arc<SessionTls> = host.tls(&first);
    let mut second = Control::new(host.connect(donor.addr).unwrap());
    let Ok(Event::Welcome(anew)) = second.hello(ANNA) else { panic!("it is not welcome") };
    let refused = Lane::open(donor.addr, ANNA, &welcome, Some(old)).err().unwrap();
    assert!(refused.contains("does not belong to the client's control session"), "{refused}");
    let mut lane = Lane::open(donor.addr, ANNA, &anew, Some(host.tls(&second))).unwrap();
    lane.round_trip(lease.rkey, &noise(4096), 4096).unwrap();
}

#[test]
fn a_certificate_that_expires_ends_no_session_and_its_holder_may_come_back() {
    let pki = Pki::new("c");
    let donor = Donor::secure(&pki);
    let mut params = leaf_now("annex://c/client/anna", 0);
    params.not_after += Duration::from_secs(3);
    let host = Host::new(&pki, &pki, &params);
    let mut control = Control::new(host.connect(donor.addr).unwrap());
    let (welcome, lease) = control.settle(ANNA);
    let mut lane = Lane::open(donor.addr, ANNA, &welcome, Some(host.tls(&control))).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    // One with a certificate as old as Anna's, and no lease.
    let stranger = Host::new(&pki, &pki, &params);
    assert!(Control::new(stranger.connect(donor.addr).unwrap()).hello(BERT).is_err());
    donor.says("expired");
    let bytes = noise(64 << 10);
    lane.round_trip(lease.rkey, &bytes, 4096).unwrap();
    let mut another = Lane::open(donor.addr, ANNA, &welcome, Some(host.tls(&control))).unwrap();
    another.round_trip(lease.rkey, &bytes, 4096).unwrap();
    drop(control);
    let mut back = Control::new(host.connect(donor.addr).unwrap());
    let Ok(Event::Welcome(welcome)) = back.hello(ANNA) else { panic!("it holds a lease") };
    assert_eq!(welcome.held, [lease]);
}

#[test]
fn a_replaced_certificate_is_shown_from_then_on_and_ends_nothing() {
    let pki = Pki::new("c");
    let (donor, host) = (Donor::secure(&pki), Host::honest(&pki));
    let mut control = Control::new(host.connect(donor.addr).unwrap());
    let (welcome, lease) = control.settle(ANNA);
    let mut lane = Lane::open(donor.addr, ANNA, &welcome, Some(host.tls(&control))).unwrap();
    let shown = || host.connect(donor.addr).unwrap().session().unwrap().unwrap().peer.key;
    let before = shown();
    replace_pair(&pki, donor.files.as_ref().unwrap(), "annex://c/donor/oak");
    wait_until("the agent to look at its files", || shown() != before);
    donor.says("the changed files of annex://c/donor/oak are in use from now on");
    lane.round_trip(lease.rkey, &noise(4096), 4096).unwrap();
    Lane::open(donor.addr, ANNA, &welcome, Some(host.tls(&control))).unwrap();
}
