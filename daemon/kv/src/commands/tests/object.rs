use super::{Client, NOT_AN_INTEGER, SYNTAX};
use crate::store::{Policy, Settings};

#[test]
fn encoding_is_what_redis_would_choose() {
    Client::new().talks(&[
        ("SET k 123", "+OK"),
        ("OBJECT ENCODING k", "\"int\""),
        ("SET k -9223372036854775808", "+OK"),
        ("object encoding k", "\"int\""),
        ("SET k 9223372036854775808", "+OK"),
        ("OBJECT ENCODING k", "\"embstr\""),
        ("SET k 01", "+OK"),
        ("OBJECT ENCODING k", "\"embstr\""),
        (&format!("SET k {}", "x".repeat(44)), "+OK"),
        ("OBJECT ENCODING k", "\"embstr\""),
        (&format!("SET k {}", "x".repeat(45)), "+OK"),
        ("OBJECT ENCODING k", "\"raw\""),
        (&format!("SET k {}", "x".repeat(100_000)), "+OK"),
        ("OBJECT ENCODING k", "\"raw\""),
        ("OBJECT ENCODING missing", "nil"),
    ]);
}

#[test]
fn the_index_tells_the_rest() {
    Client::new().talks(&[
        ("SET k v", "+OK"),
        ("OBJECT REFCOUNT k", ":1"),
        ("OBJECT IDLETIME k", ":0"),
        // 64 bytes of pool, 32 of index.
        ("MEMORY USAGE k", ":96"),
        ("MEMORY USAGE k SAMPLES 0", ":96"),
        ("OBJECT REFCOUNT missing", "nil"),
        ("OBJECT IDLETIME missing", "nil"),
        ("OBJECT FREQ missing", "nil"),
        ("MEMORY USAGE missing", "nil"),
    ]);
}

#[test]
fn idle_time_and_frequency_are_told_where_the_policy_tracks_them() {
    let client = Client::new();
    client.talks(&[("SET k v", "+OK")]);
    assert!(client.run("OBJECT FREQ k").contains("is not selected, access frequency not tracked"));
    let store = &client.0.store;
    store.set(Settings { policy: Policy::AllKeysLfu, ..store.settings() });
    client.talks(&[
        ("SET k v", "+OK"),
        ("SET l v", "+OK"),
        ("OBJECT FREQ l", ":5"),
        ("OBJECT IDLETIME missing", "nil"),
    ]);
    assert!(client.run("OBJECT IDLETIME k").contains("is selected, idle time not tracked"));
}

#[test]
fn memory_usage_refuses_what_it_does_not_know() {
    Client::new().talks(&[
        ("MEMORY USAGE k SAMPLES", SYNTAX),
        ("MEMORY USAGE k SAMPLES -1", SYNTAX),
        ("MEMORY USAGE k SAMPLES x", NOT_AN_INTEGER),
        ("MEMORY USAGE k bad 1", SYNTAX),
    ]);
}

#[test]
fn help_begins_with_the_command() {
    assert!(Client::new().run("OBJECT HELP").starts_with("[+OBJECT <subcommand>"));
}
