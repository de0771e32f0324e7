use super::{Client, NOT_AN_INTEGER, SYNTAX};

const SAME: &str = "-ERR source and destination objects are the same";

#[test]
fn del_counts_what_was_there_once() {
    Client::new().talks(&[
        ("MSET a 1 b 2 c 3", "+OK"),
        ("DEL a a missing b", ":2"),
        ("UNLINK c c", ":1"),
        ("EXISTS a b c", ":0"),
    ]);
}

#[test]
fn exists_and_touch_count_a_key_as_often_as_it_is_named() {
    Client::new().talks(&[("SET a 1", "+OK"), ("EXISTS a a missing", ":2"), ("TOUCH a a missing", ":2")]);
}

#[test]
fn the_only_type_is_string() {
    Client::new().talks(&[("SET a 1", "+OK"), ("TYPE a", "+string"), ("TYPE missing", "+none")]);
}

#[test]
fn randomkey_answers_a_key_that_is_there() {
    Client::new().talks(&[("RANDOMKEY", "nil"), ("SET a 1", "+OK"), ("RANDOMKEY", "\"a\"")]);
}

#[test]
fn rename_takes_value_and_expiry_along() {
    Client::new().talks(&[
        ("SET a 1 EX 100", "+OK"),
        ("SET b 2 EX 300", "+OK"),
        ("RENAME a b", "+OK"),
        ("EXISTS a", ":0"),
        ("GET b", "\"1\""),
        ("TTL b", ":100"),
        ("RENAME b b", "+OK"),
        ("RENAME missing b", "-ERR no such key"),
        ("RENAME missing missing", "-ERR no such key"),
    ]);
}

#[test]
fn renamenx_does_not_overwrite() {
    Client::new().talks(&[
        ("MSET a 1 b 2", "+OK"),
        ("RENAMENX a b", ":0"),
        ("RENAMENX a a", ":0"),
        ("MGET a b", "[\"1\" \"2\"]"),
        ("RENAMENX a c", ":1"),
        ("MGET a c", "[nil \"1\"]"),
        ("RENAMENX a c", "-ERR no such key"),
    ]);
}

#[test]
fn copy_takes_value_and_expiry_along() {
    Client::new().talks(&[
        ("SET a 1 EX 100", "+OK"),
        ("COPY a b", ":1"),
        ("GET b", "\"1\""),
        ("TTL b", ":100"),
        ("SET c 3", "+OK"),
        ("COPY a c", ":0"),
        ("COPY a c replace", ":1"),
        ("GET c", "\"1\""),
        ("COPY missing b", ":0"),
        ("COPY missing b REPLACE", ":0"),
        ("EXISTS b", ":1"),
    ]);
}

#[test]
fn copy_reaches_other_databases() {
    let client = Client::new();
    client.talks(&[
        ("SET a 1", "+OK"),
        ("COPY a a DB 1", ":1"),
        ("COPY a a db 1", ":0"),
        ("COPY a a DB 1 REPLACE", ":1"),
    ]);
    assert_eq!(client.run_in(1, "GET a"), "\"1\"");
    assert_eq!(client.run_in(1, "COPY a a"), SAME);
}

#[test]
fn copy_refuses_what_it_does_not_know() {
    Client::new().talks(&[
        ("COPY a a", SAME),
        ("COPY a a DB 0", SAME),
        ("COPY a b DB", SYNTAX),
        ("COPY a b bad", SYNTAX),
        ("COPY a b DB x", NOT_AN_INTEGER),
        ("COPY a b DB 16", "-ERR DB index is out of range"),
        ("COPY a b DB -1", "-ERR DB index is out of range"),
        ("COPY a b DB 3000000000", "-ERR value is out of range, value must between -2147483648 and 2147483647"),
    ]);
}

#[test]
fn move_takes_a_key_to_another_database() {
    let client = Client::new();
    client.talks(&[("SET a 1 EX 100", "+OK"), ("MOVE a 2", ":1"), ("EXISTS a", ":0"), ("MOVE a 2", ":0")]);
    assert_eq!(client.run_in(2, "GET a"), "\"1\"");
    assert_eq!(client.run_in(2, "TTL a"), ":100");
    client.talks(&[
        ("SET a 2", "+OK"),
        ("MOVE a 2", ":0"),
        ("GET a", "\"2\""),
        ("MOVE a 0", SAME),
        ("MOVE a 16", "-ERR DB index is out of range"),
        ("MOVE a x", NOT_AN_INTEGER),
    ]);
}
