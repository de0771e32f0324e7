use super::fuzz::parse;
use super::*;
use crate::reply::{Protocol, Reply};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use std::io::IoSlice;

const LIMITS: Limits = Limits { bulk: 512 << 20, authenticated: true };
const STRANGER: Limits = Limits { bulk: 512 << 20, authenticated: false };

fn requests(text: &[u8]) -> Result<Vec<Vec<Bytes>>, String> {
    match parse([text], &LIMITS) {
        (requests, None) => Ok(requests),
        (_, Some(error)) => Err(error.to_string()),
    }
}

fn words(words: &[&str]) -> Vec<Bytes> {
    words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

fn encoded(reply: &Reply, protocol: Protocol) -> String {
    let mut output = Output::default();
    output.push(reply, protocol);
    String::from_utf8_lossy(&drain(&mut output, usize::MAX)).into_owned()
}

/// What a socket that takes `step` bytes at a time gets.
fn drain(output: &mut Output, step: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let count = output.slices(&mut slices);
        let next: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(step).collect();
        let length = next.len();
        all.extend(next);
        output.advance(length);
    }
    all
}

/// A client that always had more to read was closed after a gigabyte: all that it was ever sent was
/// counted.
#[test]
fn what_was_sent_is_memory_no_longer_than_its_buffer() {
    let mut output = Output::default();
    let reply = Reply::Bulk(Bytes::from(vec![b'x'; 10_000]));
    let length = "$10000\r\n".len() + 10_000 + 2;
    for round in 0..1000 {
        output.push(&reply, Protocol::Resp2);
        output.push(&reply, Protocol::Resp2);
        output.advance(if round == 0 { length } else { 2 * length });
        assert_eq!(output.len(), length);
        assert!(output.memory() < 8 * length, "{} bytes in round {round}", output.memory());
    }
    output.advance(length);
    assert_eq!((output.len(), output.memory()), (0, 0));
}

#[test]
fn a_multibulk_request_is_read() {
    let read = requests(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n");
    assert_eq!(read, Ok(vec![words(&["GET", "k"]), words(&["PING"])]));
}

#[test]
fn empty_requests_are_passed_over() {
    assert_eq!(requests(b"\r\n*0\r\n*-1\r\n \r\nPING\r\n"), Ok(vec![words(&["PING"])]));
}

#[test]
fn an_inline_request_is_split_as_redis_does() {
    let read = |line: &str| requests(format!("{line}\n").as_bytes()).map(|mut requests| requests.remove(0));
    assert_eq!(read("SET  k\tv\r"), Ok(words(&["SET", "k", "v"])));
    assert_eq!(read(r#"SET "a b" 'c d'"#), Ok(words(&["SET", "a b", "c d"])));
    assert_eq!(read(r#"SET "\x41\n\"" 'it\'s'"#), Ok(words(&["SET", "A\n\"", "it's"])));
    assert_eq!(read(r#"SET "" ''"#), Ok(words(&["SET", "", ""])));
    let unbalanced = Err("Protocol error: unbalanced quotes in request".to_string());
    assert_eq!(read(r#"SET "a"#), unbalanced);
    assert_eq!(read(r#"SET "a"b"#), unbalanced);
    assert_eq!(read("SET 'a"), unbalanced);
}

#[test]
fn what_is_no_request_is_refused_in_redis_words() {
    let refused = |text: &[u8]| requests(text).expect_err("it was taken");
    assert_eq!(refused(b"*x\r\n"), "Protocol error: invalid multibulk length");
    assert_eq!(refused(b"*2147483648\r\n"), "Protocol error: invalid multibulk length");
    assert_eq!(refused(b"*1\r\n:1\r\n"), "Protocol error: expected '$', got ':'");
    assert_eq!(refused(b"*1\r\n$-1\r\n"), "Protocol error: invalid bulk length");
    assert_eq!(refused(b"*1\r\n$536870913\r\n"), "Protocol error: invalid bulk length");
    assert_eq!(refused(b"*1\r\n$\r\n"), "Protocol error: invalid bulk length");
    let long = |head: &str| [head.as_bytes(), &vec![b'1'; 70_000]].concat();
    assert_eq!(refused(&long("*")), "Protocol error: too big mbulk count string");
    assert_eq!(refused(&long("*1\r\n$")), "Protocol error: too big bulk count string");
    assert_eq!(refused(&long("")), "Protocol error: too big inline request");
}

#[test]
fn a_stranger_may_not_send_much() {
    let refused = |text: &[u8]| parse([text], &STRANGER).1.map(|error| error.to_string());
    assert_eq!(refused(b"*11\r\n").as_deref(), Some("Protocol error: unauthenticated multibulk length"));
    assert_eq!(refused(b"*1\r\n$16385\r\n").as_deref(), Some("Protocol error: unauthenticated bulk length"));
    assert_eq!(refused(b"*10\r\n$16384\r\n"), None);
}

#[test]
fn nothing_is_allocated_because_it_was_announced() {
    let (mut parser, mut buffer) = (Parser::default(), BytesMut::from(&b"*2147483647\r\n$536870912\r\nabc"[..]));
    assert_eq!(parser.next(&mut buffer, &LIMITS), Ok(None));
    assert!(buffer.capacity() < 1024, "{}", buffer.capacity());
    assert_eq!(parser.wanted(buffer.len()), (512 << 20) + 2 - 3);
}

#[test]
fn a_large_argument_is_not_copied_and_a_small_one_does_not_keep_the_buffer() {
    let large = vec![b'x'; 20_000];
    let text = [b"*2\r\n$1\r\nk\r\n$20000\r\n", &large[..], b"\r\n"].concat();
    let (mut parser, mut buffer) = (Parser::default(), BytesMut::from(&text[..]));
    let range = buffer.as_ptr_range();
    let request = parser.next(&mut buffer, &LIMITS).expect("it is well formed").expect("it is whole");
    assert!(!range.contains(&request[0].as_ptr()));
    assert!(range.contains(&request[1].as_ptr()));
}

#[test]
fn each_kind_of_reply_is_written_in_both_protocols() {
    let both = |reply: Reply| (encoded(&reply, Protocol::Resp2), encoded(&reply, Protocol::Resp3));
    let same = |text: &str| (text.to_string(), text.to_string());
    let two = |second: &str, third: &str| (second.to_string(), third.to_string());
    assert_eq!(both(Reply::OK), same("+OK\r\n"));
    assert_eq!(both(Reply::Error("ERR a\r\nb".into())), same("-ERR a  b\r\n"));
    assert_eq!(both(Reply::Integer(i64::MIN)), same(":-9223372036854775808\r\n"));
    assert_eq!(both(Reply::Integer(0)), same(":0\r\n"));
    assert_eq!(both(Reply::bulk("a\r\n")), same("$3\r\na\r\n\r\n"));
    assert_eq!(both(Reply::Null), two("$-1\r\n", "_\r\n"));
    assert_eq!(both(Reply::NullArray), two("*-1\r\n", "_\r\n"));
    assert_eq!(
        both(Reply::Array(vec![Reply::Null, Reply::Integer(1)])),
        two("*2\r\n$-1\r\n:1\r\n", "*2\r\n_\r\n:1\r\n")
    );
    let map = || Reply::Map(vec![(Reply::word("k"), Reply::Integer(1))]);
    assert_eq!(both(map()), two("*2\r\n$1\r\nk\r\n:1\r\n", "%1\r\n$1\r\nk\r\n:1\r\n"));
    assert_eq!(both(Reply::Set(vec![Reply::Integer(1)])), two("*1\r\n:1\r\n", "~1\r\n:1\r\n"));
    assert_eq!(both(Reply::Double(3.25)), two("$4\r\n3.25\r\n", ",3.25\r\n"));
    assert_eq!(both(Reply::Boolean(true)), two(":1\r\n", "#t\r\n"));
    assert_eq!(both(Reply::verbatim("hi")), two("$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"));
    assert_eq!(both(Reply::Silence), same(""));
}

#[test]
fn doubles_are_written_as_c_writes_them() {
    let cases = [
        (0.1, "0.10000000000000001"),
        (3.0, "3"),
        (-0.0, "-0"),
        (1e17, "1e+17"),
        (1e16, "10000000000000000"),
        (1e-5, "1.0000000000000001e-05"),
        (0.0001, "0.0001"),
        (123456.789, "123456.789"),
        (f64::MAX, "1.7976931348623157e+308"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ];
    cases.iter().for_each(|(value, text)| assert_eq!(format_double(*value), *text));
}

fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6)
}

fn as_bytes(request: &[Vec<u8>]) -> Vec<u8> {
    let args = request.iter().map(|arg| [format!("${}\r\n", arg.len()).as_bytes(), arg, b"\r\n"].concat());
    [format!("*{}\r\n", request.len()).into_bytes()].into_iter().chain(args).flatten().collect()
}

/// Bytes that look enough like RESP to get somewhere.
fn nearly_resp() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"*2\r\n".to_vec()),
        Just(b"$3\r\n".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"\0".to_vec()),
        Just(b"$99999999\r\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(token, 0..40).prop_map(|tokens| tokens.concat())
}

proptest! {
    #[test]
    fn requests_are_the_same_however_they_were_cut(
        all in prop::collection::vec(request(), 0..5),
        size in 1usize..50,
    ) {
        let bytes: Vec<u8> = all.iter().flat_map(|request| as_bytes(request)).collect();
        let (read, error) = parse(bytes.chunks(size), &LIMITS);
        prop_assert_eq!(error, None);
        prop_assert_eq!(read, all);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in nearly_resp()) {
        fuzz(&bytes);
    }

    #[test]
    fn random_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        fuzz(&bytes);
    }

    #[test]
    fn a_bulk_reply_is_a_request_that_is_read_back(
        args in prop::collection::vec(prop_oneof![0usize..100, 16_000usize..40_000], 1..5),
        step in 1usize..100_000,
    ) {
        let args: Vec<Bytes> = args.iter().enumerate().map(|(at, size)| vec![at as u8; *size].into()).collect();
        let mut output = Output::default();
        output.push(&Reply::Array(args.iter().cloned().map(Reply::Bulk).collect()), Protocol::Resp2);
        let length = output.len();
        let sent = drain(&mut output, step);
        prop_assert_eq!(sent.len(), length);
        prop_assert_eq!(requests(&sent), Ok(vec![args]));
    }

    #[test]
    fn a_double_is_read_back_as_it_was(value in any::<f64>().prop_filter("a number", |value| value.is_finite())) {
        prop_assert_eq!(format_double(value).parse::<f64>(), Ok(value));
    }
}

#[test]
fn a_request_of_very_many_arguments_is_parsed_in_turns() {
    let text = [&b"*10000\r\n"[..], &b"$1\r\nx\r\n".repeat(10_000)].concat();
    let (mut parser, mut buffer) = (Parser::default(), BytesMut::from(&text[..]));
    let mut pauses = 0;
    let request = loop {
        match parser.next(&mut buffer, &LIMITS).expect("it is well formed") {
            Some(request) => break request,
            None => assert!(parser.is_paused() && parser.held() > 0, "all of it is there"),
        }
        pauses += 1;
    };
    assert_eq!((request.len(), pauses, parser.is_paused()), (10_000, 2, false));
}

#[test]
fn a_request_that_was_cut_at_a_turn_waits_for_its_rest() {
    let (one, turn) = (&b"$1\r\nx\r\n"[..], 4096);
    let text = [&b"*5000\r\n"[..], &one.repeat(turn)].concat();
    let (mut parser, mut buffer) = (Parser::default(), BytesMut::from(&text[..]));
    assert_eq!(parser.next(&mut buffer, &LIMITS), Ok(None));
    assert!(!parser.is_paused() && parser.is_within_request(), "nothing is there to be parsed");
    buffer.extend_from_slice(&one.repeat(5000 - turn));
    let request = parser.next(&mut buffer, &LIMITS).expect("it is well formed").expect("all of it is there");
    assert_eq!((request.len(), parser.is_paused()), (5000, false));
}
