use super::{Client, NOT_AN_INTEGER};

#[test]
fn a_lifetime_is_told_in_four_ways() {
    let client = Client::new();
    client.talks(&[
        ("TTL k", ":-2"),
        ("PTTL k", ":-2"),
        ("EXPIRETIME k", ":-2"),
        ("PEXPIRETIME k", ":-2"),
        ("SET k v", "+OK"),
        ("TTL k", ":-1"),
        ("PTTL k", ":-1"),
        ("EXPIRETIME k", ":-1"),
        ("PEXPIRETIME k", ":-1"),
        ("PEXPIREAT k 4000000000600", ":1"),
        ("PEXPIRETIME k", ":4000000000600"),
        ("EXPIRETIME k", ":4000000001"),
    ]);
}

#[test]
fn each_command_reads_its_own_unit() {
    Client::new().talks(&[
        ("SET k v", "+OK"),
        ("EXPIRE k 100", ":1"),
        ("TTL k", ":100"),
        ("PEXPIRE k 200000", ":1"),
        ("TTL k", ":200"),
        ("EXPIREAT k 4000000000", ":1"),
        ("EXPIRETIME k", ":4000000000"),
        ("PEXPIREAT k 4100000000000", ":1"),
        ("EXPIRETIME k", ":4100000000"),
        ("EXPIRE missing 100", ":0"),
    ]);
}

#[test]
fn a_moment_in_the_past_removes_the_key() {
    let client = Client::new();
    for line in
        ["EXPIRE k 0", "EXPIRE k -1", "PEXPIRE k -100", "EXPIREAT k 1", "PEXPIREAT k -5", "EXPIRE k -9223372036854775"]
    {
        client.talks(&[("SET k v", "+OK"), (line, ":1"), ("EXISTS k", ":0"), ("TTL k", ":-2")]);
    }
}

#[test]
fn a_key_is_gone_when_its_time_is_over() {
    let client = Client::new();
    client.talks(&[("SET k v PX 5", "+OK")]);
    std::thread::sleep(std::time::Duration::from_millis(10));
    client.talks(&[("GET k", "nil"), ("EXISTS k", ":0"), ("TTL k", ":-2"), ("DEL k", ":0"), ("SET k v XX", "nil")]);
}

#[test]
fn persist_makes_it_live_for_ever() {
    Client::new().talks(&[
        ("PERSIST k", ":0"),
        ("SET k v", "+OK"),
        ("PERSIST k", ":0"),
        ("EXPIRE k 100", ":1"),
        ("PERSIST k", ":1"),
        ("TTL k", ":-1"),
    ]);
}

#[test]
fn a_condition_that_does_not_hold_leaves_the_expiry_as_it_was() {
    let client = Client::new();
    client.talks(&[
        ("SET k v", "+OK"),
        ("EXPIRE k 100 XX", ":0"),
        ("EXPIRE k 100 GT", ":0"),
        ("TTL k", ":-1"),
        ("EXPIRE k 100 NX", ":1"),
        ("EXPIRE k 200 nx", ":0"),
        ("EXPIRE k 50 GT", ":0"),
        ("EXPIRE k 300 LT", ":0"),
        ("TTL k", ":100"),
        ("EXPIRE k 200 gt", ":1"),
        ("TTL k", ":200"),
        ("EXPIRE k 150 LT XX", ":1"),
        ("TTL k", ":150"),
        ("EXPIRE k -1 GT", ":0"),
        ("EXPIRE k -1 LT", ":1"),
        ("EXISTS k", ":0"),
        ("SET k v", "+OK"),
        ("EXPIRE k 100 LT XX", ":0"),
        ("EXPIRE k 100 LT", ":1"),
        ("EXPIREAT k 4000000000", ":1"),
        ("EXPIREAT k 4000000000 GT", ":0"),
        ("EXPIREAT k 4000000000 LT", ":0"),
    ]);
}

#[test]
fn conditions_that_exclude_each_other_are_refused() {
    let with_nx = "-ERR NX and XX, GT or LT options at the same time are not compatible";
    Client::new().talks(&[
        ("SET k v", "+OK"),
        ("EXPIRE k 100 NX XX", with_nx),
        ("EXPIRE k 100 NX GT", with_nx),
        ("EXPIRE k 100 LT NX", with_nx),
        ("EXPIRE k 100 GT LT", "-ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE k 100 AB", "-ERR Unsupported option AB"),
        ("EXPIRE k x AB", "-ERR Unsupported option AB"),
        ("TTL k", ":-1"),
    ]);
}

#[test]
fn a_moment_beyond_all_numbers_is_refused_with_the_command_s_name() {
    let client = Client::new();
    client.run("SET k v");
    for (line, name) in [
        ("EXPIRE k 9223372036854775807", "expire"),
        ("EXPIRE k 9223372036854775", "expire"),
        ("EXPIRE k -9223372036854775808", "expire"),
        ("PEXPIRE k 9223372036854775807", "pexpire"),
        ("EXPIREAT k 9223372036854776", "expireat"),
    ] {
        assert_eq!(client.run(line), format!("-ERR invalid expire time in '{name}' command"), "{line}");
    }
    client.talks(&[("EXPIRE k x", NOT_AN_INTEGER), ("PEXPIREAT k 1.5", NOT_AN_INTEGER), ("TTL k", ":-1")]);
}
