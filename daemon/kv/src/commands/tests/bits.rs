use super::{Client, NOT_AN_INTEGER, SYNTAX};

const BAD_OFFSET: &str = "-ERR bit offset is not an integer or out of range";
const BAD_BIT: &str = "-ERR bit is not an integer or out of range";

#[test]
fn setbit_answers_what_the_bit_was() {
    Client::new().talks(&[
        ("SETBIT k 7 1", ":0"),
        ("SETBIT k 7 1", ":1"),
        ("GET k", r#""\x01""#),
        ("EXPIRE k 100", ":1"),
        ("SETBIT k 9 1", ":0"),
        ("GET k", r#""\x01@""#),
        ("SETBIT k 7 0", ":1"),
        ("TTL k", ":100"),
        ("GETBIT k 9", ":1"),
        ("GETBIT k 7", ":0"),
        ("GETBIT k 1000", ":0"),
        ("GETBIT missing 0", ":0"),
        ("SETBIT new 15 0", ":0"),
        ("STRLEN new", ":2"),
    ]);
}

#[test]
fn offsets_and_bits_out_of_range_are_refused() {
    Client::new().talks(&[
        ("SETBIT k -1 1", BAD_OFFSET),
        ("SETBIT k x 1", BAD_OFFSET),
        ("SETBIT k 4294967296 1", BAD_OFFSET),
        ("GETBIT k 4294967296", BAD_OFFSET),
        ("GETBIT k 4294967295", ":0"),
        ("SETBIT k 0 2", BAD_BIT),
        ("SETBIT k 0 -1", BAD_BIT),
        ("SETBIT k 0 x", BAD_BIT),
        ("EXISTS k", ":0"),
    ]);
}

#[test]
fn bitcount_counts_within_a_range() {
    Client::new().talks(&[
        ("SET k foobar", "+OK"),
        ("BITCOUNT k", ":26"),
        ("BITCOUNT k 0 0", ":4"),
        ("BITCOUNT k 1 1 BYTE", ":6"),
        ("BITCOUNT k 5 30 bit", ":17"),
        ("BITCOUNT k -2 -1", ":7"),
        ("BITCOUNT k -1 -2", ":0"),
        ("BITCOUNT k 1", SYNTAX),
        ("BITCOUNT k 0 1 bad", SYNTAX),
        ("BITCOUNT k 0 1 BIT BIT", SYNTAX),
        ("BITCOUNT k x 1", NOT_AN_INTEGER),
        ("BITCOUNT missing x", ":0"),
    ]);
}

#[test]
fn bitpos_finds_zeros_behind_the_end_only_if_none_is_given() {
    Client::new().talks(&[
        (r"SET k \xff\xf0\x00", "+OK"),
        ("BITPOS k 0", ":12"),
        ("BITPOS k 1", ":0"),
        ("BITPOS k 1 2", ":-1"),
        ("BITPOS k 1 7 15 BIT", ":7"),
        ("BITPOS k 0 0 11 BIT", ":-1"),
        (r"SET k \xff\xff", "+OK"),
        ("BITPOS k 0", ":16"),
        ("BITPOS k 0 1", ":16"),
        ("BITPOS k 0 0 -1", ":-1"),
        ("BITPOS k 0 2", ":-1"),
        ("BITPOS missing 0", ":0"),
        ("BITPOS missing 1", ":-1"),
    ]);
}

#[test]
fn bitpos_refuses_what_it_does_not_know() {
    Client::new().talks(&[
        ("SET k v", "+OK"),
        ("BITPOS k 2", "-ERR The bit argument must be 1 or 0."),
        ("BITPOS k x", NOT_AN_INTEGER),
        ("BITPOS k 1 x", NOT_AN_INTEGER),
        ("BITPOS k 1 0 x", NOT_AN_INTEGER),
        ("BITPOS k 1 0 1 bad", SYNTAX),
        ("BITPOS k 1 0 1 BIT 1", SYNTAX),
    ]);
}

#[test]
fn bitop_writes_the_target_without_its_expiry() {
    Client::new().talks(&[
        (r"SET a \xff\x0f", "+OK"),
        (r"SET b \xf0", "+OK"),
        ("SET t v EX 100", "+OK"),
        ("BITOP AND t a b", ":2"),
        ("GET t", r#""\xf0\x00""#),
        ("TTL t", ":-1"),
        ("BITOP or t a b missing", ":2"),
        ("GET t", r#""\xff\x0f""#),
        ("BITOP XOR t a b", ":2"),
        ("GET t", r#""\x0f\x0f""#),
        ("BITOP NOT t a", ":2"),
        ("GET t", r#""\x00\xf0""#),
        ("BITOP NOT a a", ":2"),
        ("BITOP AND t missing", ":0"),
        ("EXISTS t", ":0"),
        ("BITOP NOT t a b", "-ERR BITOP NOT must be called with a single source key."),
        ("BITOP bad t a", SYNTAX),
    ]);
}

#[test]
fn long_strings_are_worked_on_elsewhere_with_the_same_result() {
    Client::new().talks(&[
        ("SETBIT k 7999999 1", ":0"),
        ("BITOP NOT n k", ":1000000"),
        ("BITCOUNT k", ":1"),
        ("BITCOUNT n", ":7999999"),
        ("BITPOS k 1", ":7999999"),
        ("BITPOS n 0", ":7999999"),
    ]);
}

#[test]
fn bitfield_does_its_operations_in_order() {
    Client::new().talks(&[
        ("BITFIELD k SET u8 0 255 GET u8 0 INCRBY u8 0 1", "[:0 :255 :0]"),
        ("BITFIELD k INCRBY i5 100 1 GET u4 0", "[:1 :0]"),
        ("STRLEN k", ":14"),
        ("BITFIELD k SET u8 #1 7", "[:0]"),
        ("BITFIELD k GET u8 8 GET u8 #1", "[:7 :7]"),
        ("BITFIELD k", "[]"),
    ]);
}

#[test]
fn bitfield_overflows_as_it_was_told_last() {
    Client::new().talks(&[
        ("BITFIELD k SET u2 0 3 INCRBY u2 0 1", "[:0 :0]"),
        ("BITFIELD k OVERFLOW SAT INCRBY u2 0 9 OVERFLOW FAIL INCRBY u2 0 1", "[:3 nil]"),
        ("BITFIELD k OVERFLOW sat SET i8 8 -200 GET i8 8", "[:0 :-128]"),
        ("BITFIELD k OVERFLOW FAIL SET u8 8 256", "[nil]"),
        ("BITFIELD k OVERFLOW WRAP INCRBY i64 0 -9223372036854775807", "[:4647714815446351873]"),
    ]);
}

#[test]
fn a_failed_operation_still_makes_the_string_long_enough() {
    Client::new().talks(&[("BITFIELD k OVERFLOW FAIL SET u8 8 256", "[nil]"), ("STRLEN k", ":2")]);
}

#[test]
fn bitfield_without_writes_creates_nothing() {
    Client::new().talks(&[("BITFIELD k GET u8 0", "[:0]"), ("BITFIELD_RO k GET i8 0", "[:0]"), ("EXISTS k", ":0")]);
}

#[test]
fn bitfield_keeps_the_expiry() {
    Client::new().talks(&[("SET k v EX 100", "+OK"), ("BITFIELD k SET u8 8 1", "[:0]"), ("TTL k", ":100")]);
}

#[test]
fn bitfield_refuses_before_it_does_anything() {
    let bad_kind = "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
    Client::new().talks(&[
        ("BITFIELD k SET u8 0 1 bad", SYNTAX),
        ("BITFIELD k GET u8", SYNTAX),
        ("BITFIELD k SET u8 0", SYNTAX),
        ("BITFIELD k SET u64 0 1", bad_kind),
        ("BITFIELD k GET x8 0", bad_kind),
        ("BITFIELD k GET u8 -1", BAD_OFFSET),
        ("BITFIELD k GET u8 #4611686018427387904", BAD_OFFSET),
        ("BITFIELD k SET u8 0 x", NOT_AN_INTEGER),
        ("BITFIELD k OVERFLOW bad", "-ERR Invalid OVERFLOW type specified"),
        ("BITFIELD_RO k SET u8 0 1", "-ERR BITFIELD_RO only supports the GET subcommand"),
        ("EXISTS k", ":0"),
    ]);
}

#[test]
fn lcs_answers_the_string_its_length_or_its_places() {
    Client::new().talks(&[
        ("MSET a ohmytext b mynewtext", "+OK"),
        ("LCS a b", "\"mytext\""),
        ("LCS a b LEN", ":6"),
        ("LCS a b IDX", "{\"matches\" [[[:4 :7] [:5 :8]] [[:2 :3] [:0 :1]]] \"len\" :6}"),
        ("LCS a b idx MINMATCHLEN 4 WITHMATCHLEN", "{\"matches\" [[[:4 :7] [:5 :8] :4]] \"len\" :6}"),
        ("LCS a missing", "\"\""),
        ("LCS a missing IDX", "{\"matches\" [] \"len\" :0}"),
    ]);
}

#[test]
fn lcs_refuses_what_it_does_not_know() {
    Client::new().talks(&[
        ("LCS a b LEN IDX", "-ERR If you want both the length and indexes, please just use IDX."),
        ("LCS a b MINMATCHLEN", SYNTAX),
        ("LCS a b MINMATCHLEN x", NOT_AN_INTEGER),
        ("LCS a b bad", SYNTAX),
    ]);
}

#[test]
fn lcs_of_long_strings_needs_no_long_table() {
    let client = Client::new();
    client.run(&format!("MSET a {} b {} c {}", "ab".repeat(1000), "ba".repeat(1000), "x".repeat(20_000)));
    client.talks(&[
        ("LCS a b LEN", ":1999"),
        ("LCS c c LEN", "-ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"),
    ]);
}
