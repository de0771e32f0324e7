//! Random sequences: every command the KV API has, with arguments that fit and such as nobody would
//! send.

use super::step::{Sent, Step, WIRES};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// A command, and words that may follow. Capital letters alone stand for random words, see
/// [`word`]; `a|b` is one of several; a last word with `+` may be repeated.
type Form = (&'static str, &'static [&'static str]);

const EXPIRES: &[&str] = &["EX T", "PX T", "EXAT S", "PXAT M"];
const SET: &[&str] = &["NX", "XX", "GET", "KEEPTTL", "EX T", "PX T", "EXAT S", "PXAT M", "X"];
const FIELD: &[&str] =
    &["GET Y B", "SET Y B N", "INCRBY Y B I", "OVERFLOW WRAP|SAT|FAIL|x", "GET Y #N", "SET Y #N N", "INCRBY Y #N I"];

const KEYS: &[Form] = &[
    ("GET|STRLEN|TYPE|GETDEL|TTL|PTTL|EXPIRETIME|PEXPIRETIME|PERSIST|INCR|DECR K", &[]),
    ("GET K", &[]),
    ("SET K V", &[]),
    ("SET K V", SET),
    ("SETNX|GETSET|APPEND K V", &[]),
    ("SETEX|PSETEX K T V", &[]),
    ("GETEX K", EXPIRES),
    ("GETEX K", &["PERSIST", "EX T", "NX"]),
    ("SETRANGE K O V", &[]),
    ("GETRANGE|SUBSTR K N N", &[]),
    ("MGET|DEL|UNLINK|EXISTS|TOUCH K", &["K"]),
    ("MSET|MSETNX K V", &["K V", "K V", "K"]),
    ("RENAME|RENAMENX K K", &[]),
    ("COPY K K", &["DB D", "REPLACE", "X"]),
    ("MOVE K D", &[]),
    ("EXPIRE|PEXPIRE K T", &["NX", "XX", "X"]),
    ("EXPIREAT K S", &["NX", "XX", "GT", "LT", "X"]),
    ("PEXPIREAT K M", &["NX", "XX", "GT", "LT", "X"]),
    ("INCRBY|DECRBY K I", &[]),
    ("INCRBYFLOAT K F", &[]),
    ("SETBIT K B 0|1|2", &[]),
    ("GETBIT K B", &[]),
    ("BITCOUNT K", &["N N", "N N BIT|BYTE|x"]),
    ("BITPOS K 0|1|2", &["N", "N N", "N N BIT|BYTE"]),
    ("BITOP AND|OR|XOR|NOT|x K K", &["K"]),
    ("BITFIELD K", FIELD),
    ("BITFIELD_RO K", &["GET Y B", "GET Y #N", "SET Y B N"]),
    ("LCS K K", &["LEN", "IDX", "WITHMATCHLEN", "MINMATCHLEN N"]),
    ("OBJECT ENCODING K", &[]),
    ("OBJECT FREQ|IDLETIME|x K", &[]),
    ("MEMORY USAGE K", &["SAMPLES N"]),
    ("KEYS P", &[]),
    ("SCAN 0 COUNT 100000", &["MATCH P", "TYPE string|list|x", "COUNT 0|-1|x"]),
    ("SCAN C", &[]),
    ("DBSIZE", &[]),
    ("FLUSHDB|FLUSHALL", &["SYNC|ASYNC|x"]),
    ("SWAPDB D D", &[]),
];

const TRANSACTIONS: &[Form] = &[
    ("MULTI", &[]),
    ("MULTI", &[]),
    ("EXEC", &[]),
    ("EXEC", &[]),
    ("DISCARD", &[]),
    ("WATCH K", &["K"]),
    ("UNWATCH", &[]),
];

const SESSION: &[Form] = &[
    ("SELECT D", &[]),
    ("PING", &["V"]),
    ("ECHO V", &[]),
    ("HELLO", &["2|3", "2|3|4|x SETNAME V", "3 AUTH default V"]),
    ("HELLO 3", &[]),
    ("RESET", &[]),
    ("QUIT", &[]),
    ("AUTH V", &["V"]),
    ("CLIENT SETNAME V", &[]),
    ("CLIENT GETNAME", &[]),
    ("CLIENT REPLY ON|OFF|SKIP|x", &[]),
    ("CLIENT REPLY ON", &[]),
    ("CLIENT NO-EVICT ON|OFF|x", &[]),
    ("CLIENT GETREDIR|TRACKINGINFO", &[]),
    ("CLIENT UNBLOCK N", &["TIMEOUT|ERROR|x"]),
    ("COMMAND INFO get|set|nosuch|config|get|x", &[]),
    ("COMMAND GETKEYS|GETKEYSANDFLAGS BITFIELD K", FIELD),
    ("COMMAND GETKEYS|GETKEYSANDFLAGS SET K V", SET),
    ("COMMAND GETKEYS|GETKEYSANDFLAGS MSET|GET|DEL|BITOP|PING|x K", &["K"]),
    ("CONFIG GET maxmemory|MAXMEMORY|hz|HZ|Proto-Max-Bulk-Len|nosuch|proto-max-*", &["timeout|hz|H?"]),
    ("CONFIG SET hz N", &[]),
    ("CONFIG SET proto-max-bulk-len 1048576|1mb|x|-1", &[]),
    ("CONFIG SET nosuch V", &["hz 10"]),
    ("CONFIG RESETSTAT|REWRITE|x", &[]),
    ("LOLWUT VERSION x|1.5", &[]),
    ("FUNCTION FLUSH", &["SYNC|ASYNC|x"]),
    ("FUNCTION LIST", &["LIBRARYNAME V", "WITHCODE", "x"]),
    ("FUNCTION STATS", &[]),
    ("MODULE LIST", &[]),
    ("MODULE LOAD|LOADEX|UNLOAD V", &[]),
    ("TIME|LASTSAVE|ROLE", &[]),
    ("ACL WHOAMI|USERS", &[]),
    ("LATENCY LATEST|RESET|x", &[]),
    ("SLOWLOG RESET|x", &[]),
    ("NOSUCH", &["V", "V"]),
    ("CONFIG|CLIENT|OBJECT|COMMAND|MEMORY|ACL X", &[]),
];

/// Requests that are none, wholly or in part.
const GARBAGE: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*x\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n:5\r\n",
    b"*1\r\n\0\r\n",
    b"*2\r\n$3\r\nGET\r\n",
    b"$1\r\na\r\n",
    b"*99999999999\r\n",
    b"*1\r\n$600000000\r\n",
    b"*1\r\n$4\r\nPINGxx",
    b"\xd4\n",
    b"GET \"a\n",
    b"GET \"a\"b\n",
    b"SET a 'x\\'y'\n",
    b"SET \"\\x00\\xff\\n\" \"\"\r\n",
    b"PING\n",
    b"  PING  \r\n",
    b"NOSUCH \xff\x80\r\n",
    b"GET a\0b\n",
    b"POST / HTTP/1.1\r\n",
];

const ODD: &[&[u8]] = &[
    b"",
    b"\0",
    b"a\0b",
    b"\xff\xfe\x80",
    b"\xc3\xa4",
    b"\r\n",
    b"-1",
    b"0",
    b"-0",
    b"+1",
    b" 1",
    b"1 ",
    b"01",
    b"1.5",
    b"1e3",
    b"0x10",
    b"nan",
    b"inf",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"*",
    b"#",
    b"GET",
    b"set",
    b"EX",
    b"%s%n",
    b"'\"\\",
];

pub fn sequence(seed: u64) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed);
    let length = random.random_range(2..40);
    // Many sequences are about one connection, so that what it gathers is not disturbed.
    let wires = random.random_range(1..=WIRES);
    let oddity = *[0, 2, 10].choose(&mut random).expect("some");
    (0..length).map(|_| step(wires, oddity, &mut random)).collect()
}

fn step(wires: usize, oddity: u32, random: &mut StdRng) -> Step {
    let count = if random.random_ratio(1, 8) { random.random_range(2..6) } else { 1 };
    let wire = random.random_range(0..wires);
    Step { wire, sent: (0..count).map(|_| sent(oddity, random)).collect() }
}

fn sent(oddity: u32, random: &mut StdRng) -> Sent {
    if random.random_ratio(oddity, 400) {
        return Sent::Raw(GARBAGE.choose(random).expect("some").to_vec());
    }
    let forms = match random.random_range(0..20) {
        0..14 => KEYS,
        14..17 => TRANSACTIONS,
        _ => SESSION,
    };
    let (fixed, options) = forms.choose(random).expect("some");
    let mut words = Vec::new();
    fill(fixed, &mut words, random);
    if !options.is_empty() {
        for _ in 0..random.random_range(0..4) {
            fill(options.choose(random).expect("some"), &mut words, random);
        }
    }
    for _ in 0..2 {
        if random.random_ratio(oddity, 40) {
            spoil(&mut words, random);
        }
    }
    if random.random_ratio(1, 30) { inline(&words) } else { Sent::Words(words) }
}

/// The same as a line of text.
fn inline(words: &[Vec<u8>]) -> Sent {
    let mut line = Vec::new();
    for word in words {
        line.push(b'"');
        for byte in word {
            match byte {
                b'"' | b'\\' => line.extend([b'\\', *byte]),
                0..32 | 127.. => line.extend(format!("\\x{byte:02x}").bytes()),
                byte => line.push(*byte),
            }
        }
        line.extend(b"\" ");
    }
    line.extend(b"\r\n");
    Sent::Raw(line)
}

fn fill(form: &str, words: &mut Vec<Vec<u8>>, random: &mut StdRng) {
    for piece in form.split(' ') {
        let choice = piece.split('|').collect::<Vec<_>>();
        let text = *choice.choose(random).expect("some");
        words.push(match text.strip_prefix('#') {
            Some(letter) => [b"#".to_vec(), word(letter, random)].concat(),
            None => word(text, random),
        });
    }
}

/// Makes a call one that was not meant to be.
fn spoil(words: &mut Vec<Vec<u8>>, random: &mut StdRng) {
    let at = random.random_range(0..words.len());
    let odd = ODD.choose(random).expect("some").to_vec();
    match random.random_range(0..6) {
        0 => drop(words.pop()),
        1 => words.push(odd),
        2 => words.insert(at, odd),
        3 => words[at] = odd,
        4 => {
            words[at] =
                words[at].iter().map(|b| if b.is_ascii_lowercase() { b - 32 } else { b.to_ascii_lowercase() }).collect()
        }
        _ => words.push(words[at].clone()),
    }
    if words.is_empty() {
        words.push(b"GET".to_vec());
    }
}

fn word(text: &str, random: &mut StdRng) -> Vec<u8> {
    let one_of = |words: &[&str], random: &mut StdRng| words.choose(random).expect("some").as_bytes().to_vec();
    match text {
        // Keys, of which a sequence meets each several times.
        "K" => match random.random_range(0..12) {
            0 => b"\0\xff".to_vec(),
            1 => Vec::new(),
            2 => vec![b'k'; 300],
            _ => one_of(&["a", "b", "c"], random),
        },
        "V" => value(random),
        // Small numbers, mostly.
        "N" => match random.random_range(0..8) {
            0 => odd_number(random),
            _ => random.random_range(-9i64..12).to_string().into_bytes(),
        },
        "I" => match random.random_range(0..4) {
            0 => random.random::<i64>().to_string().into_bytes(),
            1 => odd_number(random),
            _ => random.random_range(-100i64..100).to_string().into_bytes(),
        },
        "F" => match random.random_range(0..3) {
            0 => ODD.choose(random).expect("some").to_vec(),
            1 => one_of(&["0.000000000000000001", "1e10", "-3.0", "5", "1e400", "0.1", "-inf", "3e-5000"], random),
            _ => (f64::from(random.random_range(-999..999)) / 8.0).to_string().into_bytes(),
        },
        // Bits, and bytes, of strings that are not too large to be written often.
        "B" => match random.random_range(0..10) {
            0 => one_of(&["-1", "4294967296", "9223372036854775807", "x", "01", "", "40000"], random),
            _ => random.random_range(0..400).to_string().into_bytes(),
        },
        "O" => {
            one_of(&["0", "0", "1", "3", "44", "50", "-1", "x", "1048576", "536870912", "9223372036854775807"], random)
        }
        // Lifetimes: over, far away, or none.
        "T" => one_of(
            &["100000", "100000", "3000000", "90000000", "0", "-1", "x", "9223372036854775807", "9223372036854000"],
            random,
        ),
        "S" => one_of(&["4000000000", "4100000000", "1000", "0", "-1", "x", "9223372036854775807"], random),
        "M" => one_of(&["4000000000000", "4100000000000", "1000", "0", "-1", "x", "9223372036854775807"], random),
        "D" => one_of(&["0", "0", "1", "1", "15", "16", "-1", "x", "99999999999"], random),
        "P" => one_of(&["*", "a*", "?", "[ab]", "[^a]", "\\a", "", "*\u{0}*", "[a-c]*"], random),
        "C" => one_of(&["0", "x", "-", "+", " 1", "\u{0}1", "18446744073709551616", ""], random),
        "Y" => one_of(&["u8", "i8", "u1", "i5", "u63", "i64", "i16", "u64", "i65", "u0", "x"], random),
        "X" => ODD.choose(random).expect("some").to_vec(),
        literal => literal.as_bytes().to_vec(),
    }
}

fn odd_number(random: &mut StdRng) -> Vec<u8> {
    let numbers: &[&[u8]] = &[
        b"9223372036854775807",
        b"-9223372036854775808",
        b"9223372036854775808",
        b"-4294967297",
        b"",
        b"x",
        b"1.5",
        b"+1",
        b" 1",
        b"-0",
        b"1\0",
    ];
    numbers.choose(random).expect("some").to_vec()
}

fn value(random: &mut StdRng) -> Vec<u8> {
    match random.random_range(0..10) {
        0..3 => random.random_range(-20i64..20).to_string().into_bytes(),
        3 => ODD.choose(random).expect("some").to_vec(),
        4 => vec![b'x'; *[44, 45, 20, 21, 1000].choose(random).expect("some")],
        5 => (0..random.random_range(0..20)).map(|_| random.random()).collect(),
        6 if random.random_ratio(1, 4) => vec![b'y'; 20_000],
        _ => (0..random.random_range(0..12)).map(|_| *b"abc".choose(random).expect("some")).collect(),
    }
}
