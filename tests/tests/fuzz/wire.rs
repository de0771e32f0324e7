//! What an agent and a client send each other: control frames, preambles, operations over TCP, and
//! requests for shared memory.

use super::feed::feed;
use annex_fabric::shm::protocol;
use annex_fabric::tcp::frame;
use annex_shared::ids::{ClientId, Incarnation, RemoteAddr, Rkey, SessionKey, SlabId};
use annex_shared::preamble::{self, LaneProof, MAC_LEN, Preamble, Proof};
use annex_shared::wire::{Event, Frames, Lease, Refusal, Request, VerbsOffer, Welcome, encode_frame};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn requests() -> Vec<Request> {
    // A new message does not compile until it is among these.
    let named = |request: &Request| match request {
        Request::Hello { .. } | Request::Lease { .. } | Request::Renew | Request::Return { .. } => {}
    };
    let hello = Request::Hello {
        version: 4,
        client: ClientId(7),
        host: "a".into(),
        boot_id: "6c1e4b52-0000-4000-8000-000000000000".into(),
        slab_size: 64 << 20,
    };
    let all = vec![
        hello,
        Request::Lease { count: 3 },
        Request::Renew,
        Request::Return { slabs: (0..40).map(SlabId).collect() },
    ];
    all.iter().for_each(named);
    all
}

fn events() -> Vec<Event> {
    let named = |event: &Event| match event {
        Event::Welcome(_) | Event::Leased { .. } | Event::Renewed { .. } | Event::Returned => {}
        Event::Refused(_) | Event::Closing { .. } | Event::Recall { .. } => {}
    };
    let lease = |n| Lease { slab: SlabId(n), rkey: Rkey(0x1234_5678_9abc_def0) };
    let welcome = Welcome {
        version: 4,
        name: "donor".into(),
        incarnation: Incarnation(1),
        session: SessionKey(u128::MAX),
        slab_size: 64 << 20,
        capacity_slabs: 10,
        free_slabs: 3,
        lease_ttl_ms: 60_000,
        labels: [("rack".to_owned(), "r1".to_owned())].into(),
        shm_socket: Some("/run/annex/agent.sock".into()),
        verbs: VerbsOffer::No("there is no device".into()),
        held: (0..4).map(lease).collect(),
        resumed: Some(Incarnation(9)),
    };
    let all = vec![
        Event::Welcome(welcome),
        Event::Leased { slabs: (0..30).map(lease).collect() },
        Event::Renewed { held: (0..300).map(SlabId).collect(), free_slabs: 1, capacity_slabs: 400 },
        Event::Returned,
        Event::Refused(Refusal::HostPressure { available_mib: 1, headroom_mib: 2 }),
        Event::Refused(Refusal::ClientInUse { host: "\x1b[2Jh".into(), ends_in_s: 3 }),
        Event::Refused(Refusal::Malformed("why".into())),
        Event::Closing { grace_ms: 10_000 },
        Event::Recall { slabs: vec![SlabId(5); 20], deadline_ms: 1 },
    ];
    all.iter().for_each(named);
    all
}

fn encoded<T: Serialize>(messages: &[T]) -> Vec<Vec<u8>> {
    messages.iter().map(|message| encode_frame(message).expect("a valid message")).collect()
}

/// Reads all messages; each is written as one that reads the same.
fn decode<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let mut frames = Frames::new(bytes).at_most(64 << 10);
    while let Ok(Some(message)) = frames.read::<T>() {
        let written = encode_frame(&message).expect("what was read can be written");
        let again: T = Frames::new(&written[..]).read().expect("it is valid").expect("it is whole");
        assert_eq!(encode_frame(&again).expect("as before"), written);
    }
}

/// A message's lists and texts take several times the bytes that they came in: an id of one byte
/// has eight, and a text its own allocation. Then twice for the second reading.
fn bound(len: usize) -> usize {
    100 * len + (256 << 10)
}

#[test]
fn no_bytes_break_the_reader_of_requests() {
    feed(&encoded(&requests()), decode::<Request>, bound);
}

#[test]
fn no_bytes_break_the_reader_of_events() {
    feed(&encoded(&events()), decode::<Event>, bound);
}

#[test]
fn no_bytes_break_the_reader_of_preambles() {
    let proof = Proof { client: ClientId(1), incarnation: Incarnation(2), session: SessionKey(3) };
    let lane = LaneProof { client: ClientId(1), incarnation: Incarnation(2), lane: 4, mac: [5; MAC_LEN] };
    let preambles = [
        Preamble::Control,
        Preamble::Data(proof),
        Preamble::Shm(proof),
        Preamble::Verbs(proof),
        Preamble::SecureData(lane),
        Preamble::SecureVerbs(lane),
    ];
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    for preamble in preambles {
        let mut bytes = Vec::new();
        preamble.write_to(&mut bytes).expect("memory takes it");
        corpus.push(bytes);
    }
    for answer in [Ok(77), Err(preamble::AdmitError::WrongProof)] {
        let mut bytes = Vec::new();
        preamble::write_answer(&mut bytes, answer).expect("memory takes it");
        corpus.push(bytes);
    }
    let decode = |mut bytes: &[u8]| {
        let _ = preamble::read_answer(&mut &bytes[..]);
        let whole = bytes;
        if let Ok(preamble) = Preamble::read_from(&mut bytes) {
            let mut written = Vec::new();
            preamble.write_to(&mut written).expect("memory takes it");
            // Its version may be an older one than this build writes.
            assert_eq!(written[10..], whole[10..whole.len() - bytes.len()]);
        }
    };
    feed(&corpus, decode, |_| 4096);
}

#[test]
fn no_bytes_break_the_reader_of_operations() {
    let request = frame::Request {
        verb: frame::Verb::CompareSwap,
        len: 8,
        rkey: Rkey(1),
        addr: RemoteAddr(2),
        seq: 3,
        expect: 4,
        swap: 5,
    };
    let answer = frame::Answer { status: frame::Status::Done, verb: frame::Verb::Read, len: 4096, seq: 1, value: 0 };
    let (mut asked, mut answered) = ([0; frame::REQUEST_LEN], [0; frame::ANSWER_LEN]);
    request.encode(&mut asked);
    answer.encode(&mut answered);
    let mut shm = Vec::new();
    protocol::Request::Slab(Rkey(9)).write_to(&mut shm).expect("memory takes it");
    let decode = |bytes: &[u8]| {
        if let Some(header) = bytes.first_chunk()
            && let Ok(request) = frame::Request::parse(header)
        {
            let mut written = [0; frame::REQUEST_LEN];
            request.encode(&mut written);
            assert_eq!(written, *header);
        }
        if let Some(header) = bytes.first_chunk()
            && let Ok(answer) = frame::Answer::parse(header)
        {
            let mut written = [0; frame::ANSWER_LEN];
            answer.encode(&mut written);
            assert_eq!(written, *header);
        }
        let mut rest = bytes;
        while let Ok(Some(request)) = protocol::Request::read_from(&mut rest) {
            let mut written = Vec::new();
            request.write_to(&mut written).expect("memory takes it");
            let read = bytes.len() - rest.len();
            assert_eq!(written, bytes[read - written.len()..read]);
        }
    };
    feed(&[asked.to_vec(), answered.to_vec(), shm], decode, |_| 4096);
}
