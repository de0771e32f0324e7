//! What clients of the KV API send, and records as they lie in the pool.

use super::feed::feed;
use annex_kv::resp;
use annex_kv::store::hash::KeyHash;
use annex_kv::store::{Db, record};

#[test]
fn no_bytes_break_the_request_parser() {
    let corpus: Vec<Vec<u8>> = [
        &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n"[..],
        b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
        b"*0\r\n*-1\r\n\r\nPING\r\n",
        b"SET \"a b\\x00\\n\" 'it''s'\r\nGET k\n",
        b"*2\r\n$20000\r\n",
        b"*1000000\r\n$1\r\nx\r\n",
        b"$5\r\nhello\r\n",
    ]
    .into_iter()
    .map(<[u8]>::to_vec)
    .chain([[&b"*2\r\n$4\r\nECHO\r\n$40000\r\n"[..], &[b'x'; 40_000], b"\r\n"].concat()])
    .collect();
    // It parses twice, keeps the requests of both, and an argument has a header of its own.
    feed(&corpus, resp::fuzz, |len| 200 * len + (256 << 10));
}

#[test]
fn no_bytes_break_the_record_decoder() {
    let valid = |key: &[u8], value: &[u8]| {
        let hash = KeyHash { high: 7, low: 9 };
        let header = record::Header::new(Db(3), 42, Some(77), hash, key, value);
        [&header.encode()[..], key, value].concat()
    };
    let corpus = vec![valid(b"key", b"value"), valid(b"", b""), valid(&[1; 300], &[2; 5000]), vec![0; 64]];
    feed(&corpus, record::fuzz, |_| 4096);
}
