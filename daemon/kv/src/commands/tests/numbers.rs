use super::{Client, NOT_AN_INTEGER};

const NOT_A_FLOAT: &str = "-ERR value is not a valid float";

#[test]
fn counters_begin_at_zero_and_keep_their_expiry() {
    Client::new().talks(&[
        ("INCR k", ":1"),
        ("EXPIRE k 100", ":1"),
        ("INCRBY k 41", ":42"),
        ("DECR k", ":41"),
        ("DECRBY k 50", ":-9"),
        ("TTL k", ":100"),
        ("GET k", "\"-9\""),
        ("INCRBYFLOAT k 0.5", "\"-8.5\""),
        ("TTL k", ":100"),
    ]);
}

#[test]
fn a_value_that_is_no_integer_is_left_as_it_is() {
    let client = Client::new();
    for value in ["''", "x", "1.0", "01", "+1", "9223372036854775808"] {
        client.run(&format!("SET k {value}"));
        assert_eq!(client.run("INCR k"), NOT_AN_INTEGER, "{value}");
        assert_eq!(client.run("GET k"), format!("\"{}\"", value.trim_matches('\'')));
    }
    assert_eq!(client.run("INCRBY k 1.5"), NOT_AN_INTEGER);
}

#[test]
fn a_counter_does_not_overflow() {
    let overflow = "-ERR increment or decrement would overflow";
    Client::new().talks(&[
        ("SET k 9223372036854775807", "+OK"),
        ("INCR k", overflow),
        ("INCRBY k 9223372036854775807", overflow),
        ("DECR k", ":9223372036854775806"),
        ("SET k -9223372036854775808", "+OK"),
        ("DECR k", overflow),
        ("DECRBY k -9223372036854775808", "-ERR decrement would overflow"),
        ("DECRBY missing -9223372036854775808", "-ERR decrement would overflow"),
        ("INCRBY missing -9223372036854775808", ":-9223372036854775808"),
    ]);
}

#[test]
fn incrbyfloat_adds_what_people_write() {
    Client::new().talks(&[
        ("INCRBYFLOAT k 1.23", "\"1.23\""),
        ("SET k 3", "+OK"),
        ("INCRBYFLOAT k 1.1", "\"4.1\""),
        ("SET k 3.0e3", "+OK"),
        ("INCRBYFLOAT k 200", "\"3200\""),
        ("INCRBYFLOAT k -3200", "\"0\""),
        ("GET k", "\"0\""),
    ]);
}

#[test]
fn incrbyfloat_refuses_what_is_no_float() {
    Client::new().talks(&[
        ("INCRBYFLOAT k abc", NOT_A_FLOAT),
        ("INCRBYFLOAT k nan", NOT_A_FLOAT),
        ("INCRBYFLOAT k 1e5000", NOT_A_FLOAT),
        ("INCRBYFLOAT k inf", "-ERR increment would produce NaN or Infinity"),
        ("EXISTS k", ":0"),
        ("SET k inf", "+OK"),
        ("INCRBYFLOAT k -inf", "-ERR increment would produce NaN or Infinity"),
        ("SET k abc", "+OK"),
        ("INCRBYFLOAT k 1", NOT_A_FLOAT),
    ]);
}
