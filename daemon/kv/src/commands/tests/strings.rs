use super::{Client, NOT_AN_INTEGER};

const TOO_LONG: &str = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";

#[test]
fn get_getset_and_getdel_answer_the_value() {
    Client::new().talks(&[
        ("GET k", "nil"),
        ("GETSET k v", "nil"),
        ("EXPIRE k 100", ":1"),
        ("GETSET k w", "\"v\""),
        ("TTL k", ":-1"),
        ("GETDEL k", "\"w\""),
        ("GETDEL k", "nil"),
        ("EXISTS k", ":0"),
    ]);
}

#[test]
fn append_keeps_the_expiry_and_answers_the_length() {
    Client::new().talks(&[
        ("APPEND k hello", ":5"),
        ("EXPIRE k 100", ":1"),
        ("APPEND k world", ":10"),
        ("APPEND k ''", ":10"),
        ("GET k", "\"helloworld\""),
        ("TTL k", ":100"),
        ("STRLEN k", ":10"),
        ("STRLEN missing", ":0"),
        ("APPEND empty ''", ":0"),
        ("EXISTS empty", ":1"),
    ]);
}

#[test]
fn setrange_fills_up_with_zeros() {
    Client::new().talks(&[
        ("SETRANGE k 2 ab", ":4"),
        ("GET k", r#""\x00\x00ab""#),
        ("SETRANGE k 0 xyz", ":4"),
        ("GET k", "\"xyzb\""),
        ("SETRANGE k 6 !", ":7"),
        ("GET k", r#""xyzb\x00\x00!""#),
    ]);
}

#[test]
fn setrange_of_nothing_changes_nothing() {
    Client::new().talks(&[
        ("SETRANGE k 100 ''", ":0"),
        ("EXISTS k", ":0"),
        ("SET k abc", "+OK"),
        ("SETRANGE k 536870912 ''", ":3"),
        ("GET k", "\"abc\""),
    ]);
}

#[test]
fn setrange_keeps_the_expiry() {
    Client::new().talks(&[("SET k abc EX 100", "+OK"), ("SETRANGE k 1 x", ":3"), ("TTL k", ":100")]);
}

#[test]
fn a_string_beyond_512_mib_is_refused() {
    Client::new().talks(&[
        ("SETRANGE k 536870912 x", TOO_LONG),
        ("SETRANGE k 9223372036854775807 x", TOO_LONG),
        ("SETRANGE k -1 x", "-ERR offset is out of range"),
        ("SETRANGE k x y", NOT_AN_INTEGER),
        ("EXISTS k", ":0"),
    ]);
}

#[test]
fn getrange_takes_ends_from_either_side() {
    Client::new().talks(&[
        ("SET k Hello", "+OK"),
        ("GETRANGE k 0 -1", "\"Hello\""),
        ("GETRANGE k -3 -1", "\"llo\""),
        ("GETRANGE k 1 100", "\"ello\""),
        ("GETRANGE k -100 1", "\"He\""),
        ("GETRANGE k 3 1", "\"\""),
        ("GETRANGE k -1 -3", "\"\""),
        ("GETRANGE k 5 6", "\"\""),
        ("SUBSTR k 1 2", "\"el\""),
        ("GETRANGE missing 0 -1", "\"\""),
        ("GETRANGE missing x -1", NOT_AN_INTEGER),
        ("GETRANGE k 0 1.5", NOT_AN_INTEGER),
    ]);
}

#[test]
fn mget_answers_in_the_order_of_the_keys() {
    Client::new().talks(&[("MSET a 1 b 2", "+OK"), ("MGET b missing a b", "[\"2\" nil \"1\" \"2\"]")]);
}

#[test]
fn of_a_key_that_mset_names_twice_the_last_value_counts() {
    Client::new().talks(&[
        ("MSET a 1 b 2 a 3", "+OK"),
        ("MGET a b", "[\"3\" \"2\"]"),
        ("MSETNX c 1 c 2", ":1"),
        ("GET c", "\"2\""),
    ]);
}

#[test]
fn mset_forgets_expiries() {
    Client::new().talks(&[("SET a 1 EX 100", "+OK"), ("MSET a 2", "+OK"), ("TTL a", ":-1")]);
}

#[test]
fn msetnx_writes_all_or_nothing() {
    Client::new().talks(&[
        ("SET b 0", "+OK"),
        ("MSETNX a 1 b 2", ":0"),
        ("EXISTS a", ":0"),
        ("MSETNX c 1 d 2", ":1"),
        ("MGET b c d", "[\"0\" \"1\" \"2\"]"),
    ]);
}

#[test]
fn a_key_without_a_value_is_a_wrong_number_of_arguments() {
    Client::new().talks(&[
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
        ("MSETNX a 1 b", "-ERR wrong number of arguments for 'msetnx' command"),
        ("EXISTS a", ":0"),
    ]);
}
