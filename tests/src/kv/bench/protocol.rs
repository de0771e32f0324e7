//! What the driver says to each kind of server, and what it must hear, byte by byte. Requests of a
//! pipeline are composed once; from round to round only the keys in them change, unless reads and
//! writes are mixed. A value begins with its key, so that an answer of the wrong key is noticed
//! too.

use anyhow::ensure;
use std::io::Write as _;

/// `key:` and twelve digits, as redis-benchmark names its keys.
pub type Key = [u8; KEY];
const KEY: usize = 16;

/// What the bare floor answers to a write.
const DONE: usize = 5;

pub fn key(number: usize) -> Key {
    let mut key = *b"key:000000000000";
    let mut left = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Get,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Redis' protocol, version 2.
    Resp,
    /// memcached's text protocol. Reads in a row are one `get` of many keys, as its clients do: it
    /// sends the answer to each command by itself.
    Memcached,
    /// See [`super::raw`]: two lengths (of what follows, of what is to be answered; `u32`,
    /// little-endian), then the key and the value if any.
    Raw,
}

/// One request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub kind: Kind,
    pub key: &'a [u8],
    /// The last of those that are one command together.
    pub last: bool,
}

/// Where in a batch a request's key is, and that of its value.
struct Places {
    kind: Kind,
    key: usize,
    value: Option<usize>,
    last: bool,
}

/// The requests of one round.
pub struct Batch {
    protocol: Protocol,
    value: Vec<u8>,
    bytes: Vec<u8>,
    places: Vec<Places>,
}

impl Batch {
    /// No requests yet. Values will be of so many bytes, no fewer than a key has.
    pub fn new(protocol: Protocol, value: usize) -> Batch {
        // Letters: nothing that looks like the end of a line.
        let value = (0..value).map(|i| b'a' + (i % 26) as u8).collect();
        Batch { protocol, value, bytes: Vec::new(), places: Vec::new() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub fn request(&self, nth: usize) -> Request<'_> {
        let Places { kind, key, last, .. } = self.places[nth];
        Request { kind, key: &self.bytes[key..key + KEY], last }
    }

    /// Takes these requests instead of those of the last round.
    pub fn compose(&mut self, requests: &[(Kind, Key)]) {
        let same = self.places.iter().map(|p| p.kind).eq(requests.iter().map(|(kind, _)| *kind));
        if same {
            for (places, (_, key)) in self.places.iter().zip(requests) {
                self.bytes[places.key..places.key + KEY].copy_from_slice(key);
                if let Some(at) = places.value {
                    self.bytes[at..at + KEY].copy_from_slice(key);
                }
            }
        } else {
            self.bytes.clear();
            self.places.clear();
            for (nth, (kind, key)) in requests.iter().enumerate() {
                let next = requests.get(nth + 1).map(|(kind, _)| *kind);
                self.push(*kind, key, next);
            }
        }
    }

    fn push(&mut self, kind: Kind, key: &Key, next: Option<Kind>) {
        let joined = |kind, next| self.protocol == Protocol::Memcached && (kind, next) == (Kind::Get, Some(Kind::Get));
        let first = !self.places.last().is_some_and(|before| joined(before.kind, Some(kind)));
        let last = !joined(kind, next);
        let (out, size) = (&mut self.bytes, self.value.len());
        match (self.protocol, kind) {
            (Protocol::Resp, Kind::Get) => out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n"),
            (Protocol::Resp, Kind::Set) => out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n"),
            (Protocol::Memcached, Kind::Get) => out.extend_from_slice(if first { b"get " } else { b" " }),
            (Protocol::Memcached, Kind::Set) => out.extend_from_slice(b"set "),
            (Protocol::Raw, Kind::Get) => out.extend(lengths(KEY, size)),
            (Protocol::Raw, Kind::Set) => out.extend(lengths(KEY + size, DONE)),
        }
        let key_at = out.len();
        out.extend_from_slice(key);
        // Writing to a vector can't fail.
        let _ = match (self.protocol, kind) {
            (Protocol::Resp, Kind::Set) => write!(out, "\r\n${size}\r\n"),
            (Protocol::Memcached, Kind::Set) => write!(out, " 0 0 {size}\r\n"),
            _ => Ok(()),
        };
        let value_at = (kind == Kind::Set).then_some(out.len());
        if value_at.is_some() {
            out.extend_from_slice(key);
            out.extend_from_slice(&self.value[KEY..]);
        }
        if self.protocol != Protocol::Raw && last {
            out.extend_from_slice(b"\r\n");
        }
        self.places.push(Places { kind, key: key_at, value: value_at, last });
    }
}

fn lengths(body: usize, answer: usize) -> [u8; 8] {
    (body as u64 | (answer as u64) << 32).to_le_bytes()
}

/// What the answer to each request must look like.
pub struct Answers {
    /// How the answer to a read begins: its key is where `keys` says.
    value: Vec<u8>,
    keys: Vec<usize>,
    /// Bytes that follow this beginning.
    value_rest: usize,
    /// Bytes that follow the last value of a command.
    end: usize,
    done: &'static [u8],
    done_rest: usize,
}

/// An answer began as it must.
#[derive(Debug, PartialEq, Eq)]
pub struct Begun {
    /// Bytes of it that were looked at.
    pub seen: usize,
    /// Bytes of it that are still to come.
    pub rest: usize,
}

impl Answers {
    pub fn new(protocol: Protocol, size: usize) -> Answers {
        let blank = "\0".repeat(KEY);
        let (value, value_rest, end, done, done_rest): (_, _, _, &[u8], _) = match protocol {
            Protocol::Resp => (format!("${size}\r\n{blank}"), size - KEY + 2, 0, b"+OK\r\n", 0),
            Protocol::Memcached => {
                let value = format!("VALUE {blank} 0 {size}\r\n{blank}");
                (value, size - KEY + 2, "END\r\n".len(), b"STORED\r\n", 0)
            }
            Protocol::Raw => (String::new(), size, 0, b"", DONE),
        };
        let keys = value.match_indices(&blank).map(|(at, _)| at).collect();
        Answers { value: value.into_bytes(), keys, value_rest, end, done, done_rest }
    }

    /// Looks at the beginning of an answer; `None` if too little of it is there.
    ///
    /// # Errors
    /// It is the answer to something else, or a refusal.
    pub fn begin(&mut self, request: Request<'_>, bytes: &[u8]) -> anyhow::Result<Option<Begun>> {
        let Request { kind, key, last } = request;
        let (expected, rest) = match kind {
            Kind::Get => {
                self.keys.iter().for_each(|at| self.value[*at..at + KEY].copy_from_slice(key));
                (&self.value[..], self.value_rest + if last { self.end } else { 0 })
            }
            Kind::Set => (self.done, self.done_rest),
        };
        let seen = expected.len().min(bytes.len());
        ensure!(
            expected[..seen] == bytes[..seen],
            "the answer to {kind:?} of {} begins with {:?} instead of {:?}",
            String::from_utf8_lossy(key),
            String::from_utf8_lossy(&bytes[..bytes.len().min(100)]),
            String::from_utf8_lossy(expected),
        );
        Ok((seen == expected.len()).then_some(Begun { seen, rest }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(protocol: Protocol, requests: &[(Kind, Key)]) -> String {
        let mut batch = Batch::new(protocol, 20);
        batch.compose(requests);
        String::from_utf8_lossy(batch.bytes()).into_owned()
    }

    #[test]
    fn requests_are_what_each_server_reads() {
        let requests = [(Kind::Get, key(7)), (Kind::Set, key(123_456))];
        assert_eq!(
            said(Protocol::Resp, &requests),
            "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n\
             *3\r\n$3\r\nSET\r\n$16\r\nkey:000000123456\r\n$20\r\nkey:000000123456qrst\r\n"
        );
        assert_eq!(
            said(Protocol::Memcached, &requests),
            "get key:000000000007\r\nset key:000000123456 0 0 20\r\nkey:000000123456qrst\r\n"
        );
        assert_eq!(
            said(Protocol::Raw, &requests),
            "\x10\0\0\0\x14\0\0\0key:000000000007\x24\0\0\0\x05\0\0\0key:000000123456key:000000123456qrst"
        );
    }

    #[test]
    fn a_later_round_says_its_own_keys() {
        let mut batch = Batch::new(Protocol::Memcached, 16);
        for (kind, number) in [(Kind::Set, 1), (Kind::Set, 2), (Kind::Get, 3), (Kind::Get, 4)] {
            batch.compose(&[(kind, key(number)), (Kind::Get, key(number + 10))]);
            let first = batch.request(0);
            assert_eq!((first.kind, first.key), (kind, &key(number)[..]));
            assert!(batch.bytes().ends_with(format!("key:0000000000{}\r\n", number + 10).as_bytes()));
        }
        assert_eq!((batch.len(), batch.bytes()), (2, &b"get key:000000000004 key:000000000014\r\n"[..]));
    }

    #[test]
    fn reads_in_a_row_are_one_command_to_memcached() {
        let requests = [(Kind::Get, key(1)), (Kind::Get, key(2)), (Kind::Set, key(3)), (Kind::Get, key(4))];
        assert_eq!(
            said(Protocol::Memcached, &requests),
            "get key:000000000001 key:000000000002\r\n\
             set key:000000000003 0 0 20\r\nkey:000000000003qrst\r\n\
             get key:000000000004\r\n"
        );
        let mut batch = Batch::new(Protocol::Memcached, 20);
        batch.compose(&requests);
        let mut answers = Answers::new(Protocol::Memcached, 20);
        let answer = b"VALUE key:000000000001 0 20\r\nkey:000000000001qrst\r\nVALUE key:000000000002 0 20\r\n";
        let begun = answers.begin(batch.request(0), answer).unwrap();
        assert_eq!(begun, Some(Begun { seen: 45, rest: "qrst\r\n".len() }));
        assert_eq!([0, 1, 2, 3].map(|nth| batch.request(nth).last), [false, true, true, true]);
    }

    #[test]
    fn answers_are_those_of_the_request_and_of_the_right_length() {
        let key = key(7);
        let cases: [(Protocol, &[u8], usize); 2] = [
            (Protocol::Resp, b"$20\r\nkey:000000000007qrst\r\n", 4 + 2),
            (Protocol::Memcached, b"VALUE key:000000000007 0 20\r\nkey:000000000007qrst\r\nEND\r\n", 4 + 2 + 5),
        ];
        for (protocol, answer, rest) in cases {
            let mut answers = Answers::new(protocol, 20);
            let request = Request { kind: Kind::Get, key: &key, last: true };
            let mut begin = |bytes: &[u8]| answers.begin(request, bytes);
            assert_eq!(begin(answer).unwrap(), Some(Begun { seen: answer.len() - rest, rest }));
            assert_eq!(begin(&answer[..answer.len() - rest - 1]).unwrap(), None);
            assert_eq!(begin(b"").unwrap(), None);
            let other = String::from_utf8_lossy(answer).replace("20\r\n", "21\r\n");
            assert!(begin(other.as_bytes()).is_err());
            let other = String::from_utf8_lossy(answer).replace("07qrst", "08qrst");
            assert!(begin(other.as_bytes()).is_err());
            assert!(begin(b"$-1\r\n").is_err() && begin(b"END\r\n").is_err());
        }
    }

    #[test]
    fn a_refused_write_is_no_success() {
        let mut answers = Answers::new(Protocol::Resp, 100);
        let key = key(1);
        let request = Request { kind: Kind::Set, key: &key, last: true };
        assert_eq!(answers.begin(request, b"+OK\r\n+O").unwrap(), Some(Begun { seen: 5, rest: 0 }));
        let refusal = answers.begin(request, b"-OOM command not allowed").unwrap_err().to_string();
        assert!(refusal.contains("-OOM") && refusal.contains("key:000000000001"), "{refusal}");
    }
}
