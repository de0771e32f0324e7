use super::{Client, NOT_AN_INTEGER, SYNTAX};

const FUTURE: &str = "4000000000";
const PAST: &str = "1600000000";

#[test]
fn set_writes_and_forgets_the_expiry() {
    Client::new().talks(&[
        ("SET k v", "+OK"),
        ("GET k", "\"v\""),
        ("SET k w EX 100", "+OK"),
        ("SET k x", "+OK"),
        ("TTL k", ":-1"),
        ("GET k", "\"x\""),
    ]);
}

#[test]
fn set_nx_and_xx_write_only_on_their_condition() {
    Client::new().talks(&[
        ("SET k v XX", "nil"),
        ("EXISTS k", ":0"),
        ("SET k v NX", "+OK"),
        ("SET k w nx", "nil"),
        ("GET k", "\"v\""),
        ("SET k w xx", "+OK"),
        ("GET k", "\"w\""),
    ]);
}

#[test]
fn set_get_answers_the_old_value_whether_it_wrote_or_not() {
    Client::new().talks(&[
        ("SET k v GET", "nil"),
        ("SET k w GET", "\"v\""),
        ("SET k x NX GET", "\"w\""),
        ("GET k", "\"w\""),
        ("SET k x GET XX", "\"w\""),
        ("SET other y XX GET", "nil"),
        ("EXISTS other", ":0"),
    ]);
}

#[test]
fn set_takes_its_expiry_in_four_ways() {
    let client = Client::new();
    client.talks(&[
        ("SET a v EX 100", "+OK"),
        ("SET b v px 100000", "+OK"),
        (&format!("SET c v EXAT {FUTURE}"), "+OK"),
        ("EXPIRETIME c", &format!(":{FUTURE}")),
        (&format!("SET d v PXAT {FUTURE}123"), "+OK"),
        ("PEXPIRETIME d", &format!(":{FUTURE}123")),
        ("TTL a", ":100"),
        ("TTL b", ":100"),
    ]);
}

#[test]
fn set_keepttl_keeps_the_expiry() {
    Client::new().talks(&[
        (&format!("SET k v EXAT {FUTURE}"), "+OK"),
        ("SET k w KEEPTTL", "+OK"),
        ("EXPIRETIME k", &format!(":{FUTURE}")),
        ("GET k", "\"w\""),
        ("SET new v KEEPTTL", "+OK"),
        ("TTL new", ":-1"),
    ]);
}

#[test]
fn set_with_a_moment_in_the_past_leaves_nothing() {
    Client::new().talks(&[("SET k v", "+OK"), (&format!("SET k w EXAT {PAST}"), "+OK"), ("EXISTS k", ":0")]);
}

#[test]
fn set_options_come_in_any_order_and_case() {
    Client::new().talks(&[
        ("SET k v get ex 100 nx", "nil"),
        ("SET k w XX eX 200 GET", "\"v\""),
        ("TTL k", ":200"),
        ("SET k w EX 100 EX 300", "+OK"),
        ("TTL k", ":300"),
    ]);
}

#[test]
fn set_options_that_contradict_are_a_syntax_error() {
    let client = Client::new();
    for options in [
        "NX XX",
        "XX NX",
        "EX 1 PX 1",
        "EX 1 EXAT 1",
        "EX 1 KEEPTTL",
        "KEEPTTL EX 1",
        "EX",
        "PX",
        "EXAT",
        "PXAT",
        "PERSIST",
        "bad",
        "''",
        "NX NX XX",
    ] {
        assert_eq!(client.run(&format!("SET k v {options}")), SYNTAX, "{options}");
    }
    assert_eq!(client.run("EXISTS k"), ":0");
}

#[test]
fn an_expiry_that_is_none_is_refused_with_the_command_s_name() {
    let client = Client::new();
    for (line, name) in [
        ("SET k v EX 0", "set"),
        ("SET k v PX -5", "set"),
        ("SET k v EX 9223372036854775", "set"),
        ("SET k v PX 9223372036854775807", "set"),
        ("set k v EXAT 9223372036854776", "set"),
        ("SETEX k 0 v", "setex"),
        ("PSETEX k -1 v", "psetex"),
    ] {
        assert_eq!(client.run(line), format!("-ERR invalid expire time in '{name}' command"), "{line}");
    }
    for line in ["SET k v EX x", "SET k v PX 1.5", "SETEX k '' v", "PSETEX k 99999999999999999999 v"] {
        assert_eq!(client.run(line), NOT_AN_INTEGER, "{line}");
    }
    assert_eq!(client.run("EXISTS k"), ":0");
}

#[test]
fn setnx_setex_and_psetex_are_set_with_an_option() {
    Client::new().talks(&[
        ("SETNX k v", ":1"),
        ("SETNX k w", ":0"),
        ("GET k", "\"v\""),
        ("SETEX k 100 x", "+OK"),
        ("TTL k", ":100"),
        ("PSETEX k 200000 y", "+OK"),
        ("TTL k", ":200"),
        ("GET k", "\"y\""),
    ]);
}

#[test]
fn getex_changes_the_expiry_only_if_it_is_told_to() {
    Client::new().talks(&[
        ("GETEX k", "nil"),
        ("GETEX k EX 100", "nil"),
        ("SET k v EX 100", "+OK"),
        ("GETEX k", "\"v\""),
        ("TTL k", ":100"),
        ("GETEX k PX 200000", "\"v\""),
        ("TTL k", ":200"),
        ("GETEX k PERSIST", "\"v\""),
        ("TTL k", ":-1"),
        (&format!("GETEX k EXAT {FUTURE}"), "\"v\""),
        ("EXPIRETIME k", &format!(":{FUTURE}")),
        (&format!("GETEX k PXAT {PAST}"), "\"v\""),
        ("EXISTS k", ":0"),
    ]);
}

#[test]
fn getex_refuses_what_it_does_not_know() {
    Client::new().talks(&[
        ("SET k v", "+OK"),
        ("GETEX k KEEPTTL", SYNTAX),
        ("GETEX k NX", SYNTAX),
        ("GETEX k EX 1 PERSIST", SYNTAX),
        ("GETEX k PERSIST PX 1", SYNTAX),
        ("GETEX k EX", SYNTAX),
        ("GETEX k EX x", NOT_AN_INTEGER),
        ("GETEX k EX 0", "-ERR invalid expire time in 'getex' command"),
        ("GETEX missing EX 0", "nil"),
        ("TTL k", ":-1"),
    ]);
}
