//! The families of commands that are made up.

use super::words::*;
use proptest::prelude::*;
use proptest::sample::select;

pub fn set() -> Words {
    let option = prop_oneof![
        4 => one_of(&["NX", "XX", "GET", "KEEPTTL", "nx", "Get", "PERSIST", "EX", "bad", ""]).prop_map(|w| vec![w]),
        2 => sequence(vec![one_of(&["EX", "PX", "ex"]), lifetime()]),
        2 => sequence(vec![one_of(&["EXAT", "PXAT", "pxat"]), moment()]),
    ];
    with_options(vec![one_of(&["SET", "set"]), key(), value()], option.boxed(), 3)
}

pub fn getex() -> Words {
    let option = prop_oneof![
        one_of(&["PERSIST", "persist", "KEEPTTL", "NX", "EX"]).prop_map(|w| vec![w]),
        sequence(vec![one_of(&["EX", "PX"]), lifetime()]),
        sequence(vec![one_of(&["EXAT", "PXAT"]), moment()]),
    ];
    with_options(vec![word("GETEX"), key()], option.boxed(), 2)
}

pub fn looking() -> Words {
    sequence(vec![one_of(&["GET", "STRLEN", "TYPE", "TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME", "EXISTS"]), key()])
}

pub fn expire() -> Words {
    prop_oneof![
        sequence(vec![one_of(&["EXPIRE", "PEXPIRE"]), key(), lifetime()]),
        with_options(
            vec![one_of(&["EXPIRE", "PEXPIRE"]), key(), lifetime()],
            one_of(&["NX", "XX", "nx", "bad"]).prop_map(|w| vec![w]).boxed(),
            2
        ),
        with_options(
            vec![one_of(&["EXPIREAT", "PEXPIREAT"]), key(), moment()],
            one_of(&["NX", "XX", "GT", "LT", "gt", "bad"]).prop_map(|w| vec![w]).boxed(),
            2
        ),
        sequence(vec![word("PERSIST"), key()]),
    ]
    .boxed()
}

pub fn strings() -> Words {
    prop_oneof![
        sequence(vec![one_of(&["GETDEL", "GET"]), key()]),
        sequence(vec![one_of(&["GETSET", "SETNX", "APPEND"]), key(), value()]),
        sequence(vec![one_of(&["SETEX", "PSETEX"]), key(), lifetime(), value()]),
        sequence(vec![one_of(&["GETRANGE", "SUBSTR"]), key(), number(), number()]),
        sequence(vec![
            word("SETRANGE"),
            key(),
            one_of(&["0", "1", "7", "40", "-1", "x", "536870912", "536870913", "9223372036854775807"]),
            value()
        ]),
        with_options(vec![word("MGET")], key().prop_map(|k| vec![k]).boxed(), 4),
        with_options(
            vec![one_of(&["MSET", "MSETNX"])],
            prop_oneof![9 => sequence(vec![key(), value()]), 1 => key().prop_map(|k| vec![k])].boxed(),
            4
        ),
    ]
    .boxed()
}

pub fn numbers() -> Words {
    prop_oneof![
        sequence(vec![one_of(&["INCR", "DECR"]), key()]),
        sequence(vec![one_of(&["INCRBY", "DECRBY"]), key(), number()]),
        sequence(vec![word("INCRBYFLOAT"), key(), float()]),
        sequence(vec![word("SET"), key(), prop_oneof![float(), number(), value()].boxed()]),
        sequence(vec![word("GET"), key()]),
    ]
    .boxed()
}

/// Infinities, what is no number, and the ends of the range.
const ODD_FLOATS: &[&str] = &[
    "inf",
    "-inf",
    "Infinity",
    "nan",
    "-nan",
    "nan(1)",
    "infinit",
    "",
    "-",
    ".",
    "1e",
    "1 ",
    " 1",
    "0x",
    "1e4932",
    "-1e4932",
    "1.18973149535723176502e+4932",
    "1.18973149535723176506e+4932",
    "3.6e-4951",
    "1.8e-4951",
    "1.9e-4951",
    "1e-4940",
    "3.36210314311209350626e-4932",
    "0e99999",
    "1e99999999999999999999",
    "1e-99999999999999999999",
    "0x1p16383",
    "0x1p16384",
    "0x1p-16445",
    "0x1p-16446",
    "0x1p-16447",
];

pub fn float() -> Word {
    prop_oneof![
        2 => (-1000i64..1000, 0i32..4).prop_map(|(n, places)| (n as f64 / 10f64.powi(places)).to_string().into_bytes()),
        2 => "[-+]?[0-9]{1,22}(\\.[0-9]{0,22})?".prop_map(String::into_bytes),
        1 => "[-+]?[0-9]{0,4}(\\.[0-9]{0,4})?([eE][-+]?[0-9]{1,2})?".prop_map(String::into_bytes),
        1 => "[-+]?[0-9]{1,30}(\\.[0-9]{0,30})?e-?(0|1|49|48|4)[0-9]{1,3}".prop_map(String::into_bytes),
        1 => "-?0[xX][0-9a-fA-F]{0,20}(\\.[0-9a-f]{0,9})?(p[-+]?[0-9]{1,5})?".prop_map(String::into_bytes),
        1 => one_of(ODD_FLOATS),
    ]
    .boxed()
}

pub fn keys() -> Words {
    let copy_option = prop_oneof![
        words(&["REPLACE"]),
        sequence(vec![word("DB"), one_of(&["0", "1", "1", "15", "16", "-1", "x", "99999999999"])]),
        words(&["DB"]),
        words(&["bad"]),
    ];
    prop_oneof![
        with_options(vec![one_of(&["DEL", "UNLINK", "EXISTS", "TOUCH"])], key().prop_map(|k| vec![k]).boxed(), 4),
        sequence(vec![one_of(&["RENAME", "RENAMENX"]), key(), key()]),
        with_options(vec![word("COPY"), key(), key()], copy_option.boxed(), 2),
        sequence(vec![word("MOVE"), key(), one_of(&["0", "1", "1", "16", "-1", "x", "99999999999"])]),
        sequence(vec![word("KEYS"), one_of(&["*", "[ab]", "?", "x*"])]),
        with_options(
            vec![word("MEMORY"), word("USAGE"), word("missing")],
            prop_oneof![sequence(vec![word("SAMPLES"), number()]), words(&["bad"])].boxed(),
            2
        ),
        sequence(vec![word("OBJECT"), one_of(&["ENCODING", "REFCOUNT", "IDLETIME", "FREQ"]), word("missing")]),
    ]
    .boxed()
}

pub fn bit_offset() -> Word {
    prop_oneof![
        6 => (0u32..100).prop_map(|n| n.to_string().into_bytes()),
        1 => one_of(&["-1", "x", "", "01", "4294967296", "9223372036854775807", "#1"]),
    ]
    .boxed()
}

pub fn bits() -> Words {
    let unit = || one_of(&["BIT", "BYTE", "bit", "bad"]);
    prop_oneof![
        sequence(vec![word("SET"), key(), value()]),
        sequence(vec![word("SETBIT"), key(), bit_offset(), one_of(&["0", "1", "1", "2", "-1", "x"])]),
        sequence(vec![word("GETBIT"), key(), bit_offset()]),
        sequence(vec![word("BITCOUNT"), key()]),
        sequence(vec![word("BITCOUNT"), key(), number(), number()]),
        sequence(vec![word("BITCOUNT"), key(), number(), number(), unit()]),
        sequence(vec![word("BITCOUNT"), key(), number()]),
        sequence(vec![word("BITPOS"), key(), one_of(&["0", "1", "1", "0", "2", "x"])]),
        sequence(vec![word("BITPOS"), key(), one_of(&["0", "1"]), number()]),
        sequence(vec![word("BITPOS"), key(), one_of(&["0", "1"]), number(), number()]),
        sequence(vec![word("BITPOS"), key(), one_of(&["0", "1"]), number(), number(), unit()]),
        with_options(
            vec![word("BITOP"), one_of(&["AND", "OR", "XOR", "NOT", "xor", "bad"]), key()],
            key().prop_map(|k| vec![k]).boxed(),
            4
        ),
        sequence(vec![word("GET"), key()]),
    ]
    .boxed()
}

pub fn fields() -> Words {
    let kind = || {
        prop_oneof![
            5 => (select(vec!['i', 'u']), 1u8..65).prop_map(|(sign, bits)| format!("{sign}{bits}").into_bytes()),
            4 => one_of(&["u8", "i8", "u2", "i5", "u63", "i64"]),
            1 => one_of(&["u64", "i65", "u0", "x1", "", "i"]),
        ]
        .boxed()
    };
    let place = || {
        prop_oneof![
            6 => (0u32..90).prop_map(|n| n.to_string().into_bytes()),
            3 => (0u32..12).prop_map(|n| format!("#{n}").into_bytes()),
            1 => one_of(&["#", "#-1", "-1", "x", "", "##1", "4294967296"]),
        ]
        .boxed()
    };
    // Redis saturates a SET far below the smallest integer to the greatest (its subtraction
    // overflows); ours to the smallest, as documented.
    let moderate =
        prop_oneof![number_near_zero(), (-1i64 << 61..1 << 61).prop_map(|n| n.to_string().into_bytes())].boxed();
    let operation = || {
        prop_oneof![
            4 => sequence(vec![one_of(&["GET", "get"]), kind(), place()]),
            4 => sequence(vec![word("SET"), kind(), place(), moderate.clone()]),
            6 => sequence(vec![word("INCRBY"), kind(), place(), number()]),
            4 => sequence(vec![word("OVERFLOW"), one_of(&["WRAP", "SAT", "FAIL", "sat", "fail"])]),
            1 => prop_oneof![words(&["OVERFLOW", "bad"]), words(&["GET", "u8"]), words(&["SET", "u8", "0"])],
        ]
        .boxed()
    };
    prop_oneof![
        6 => with_options(vec![word("BITFIELD"), key()], operation(), 4),
        1 => with_options(vec![word("BITFIELD_RO"), key()], operation(), 2),
        1 => with_options(vec![word("BITFIELD_RO"), key()], sequence(vec![word("GET"), kind(), place()]), 2),
        2 => sequence(vec![word("GET"), key()]),
        1 => sequence(vec![word("SET"), key(), value()]),
    ]
    .boxed()
}

pub fn lcs() -> Words {
    let option = prop_oneof![
        4 => one_of(&["LEN", "IDX", "IDX", "WITHMATCHLEN", "withmatchlen", "bad", "MINMATCHLEN"]).prop_map(|w| vec![w]),
        3 => sequence(vec![word("MINMATCHLEN"), number()]),
    ];
    prop_oneof![
        sequence(vec![word("SET"), key(), "[ab]{0,25}".prop_map(String::into_bytes).boxed()]),
        sequence(vec![word("SET"), key(), "[abcd]{0,12}".prop_map(String::into_bytes).boxed()]),
        with_options(vec![word("LCS"), key(), key()], option.boxed(), 3),
        with_options(vec![word("LCS"), key(), key()], words(&["IDX"]), 1),
    ]
    .boxed()
}

pub fn patterns() -> Words {
    let pattern = || r"[ab*?\[\]\\^-]{0,7}".prop_map(String::into_bytes).boxed();
    let name = || r"[ab\[\]\\^-]{0,4}".prop_map(String::into_bytes).boxed();
    let high = proptest::collection::vec(prop_oneof![Just(b'['), Just(b'-'), Just(b']'), any::<u8>()], 0..7);
    let free = |c: &u8| *c != b'\n' && *c != b'\r';
    let high = high.prop_map(move |bytes| bytes.into_iter().filter(free).collect::<Vec<u8>>()).boxed();
    let byte = proptest::collection::vec(any::<u8>().prop_filter("no line break", free), 1..2).boxed();
    let option = prop_oneof![
        3 => sequence(vec![word("MATCH"), pattern()]),
        2 => sequence(vec![word("TYPE"), one_of(&["string", "STRING", "list"])]),
        1 => sequence(vec![word("COUNT"), one_of(&["0", "-1", "x", "1.5"])]),
        1 => words(&["bad"]),
        1 => words(&["MATCH"]),
    ];
    prop_oneof![
        4 => sequence(vec![word("SET"), name(), word("v")]),
        3 => sequence(vec![word("SET"), byte, word("v")]),
        4 => sequence(vec![word("KEYS"), pattern()]),
        2 => sequence(vec![word("KEYS"), high]),
        2 => with_options(vec![word("SCAN"), word("0"), word("COUNT"), word("10000")], option.boxed(), 2),
        1 => sequence(vec![word("SCAN"), one_of(&["x", "-", "1x", " 1", "18446744073709551616"])]),
    ]
    .boxed()
}
