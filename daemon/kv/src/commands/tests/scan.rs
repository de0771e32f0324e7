use super::{Client, NOT_AN_INTEGER, SYNTAX};
use std::collections::BTreeSet;

/// All keys that a round of SCAN tells of.
fn round(client: &Client, options: &str) -> BTreeSet<String> {
    let mut cursor = "0".to_owned();
    let mut found = BTreeSet::new();
    loop {
        let reply = client.run(&format!("SCAN {cursor}{options}"));
        let (next, keys) = reply.trim_start_matches("[\"").split_once("\" [").expect("a cursor and keys");
        found.extend(keys.trim_end_matches(']').split_whitespace().map(|key| key.trim_matches('"').to_owned()));
        cursor = next.to_owned();
        if cursor == "0" {
            return found;
        }
    }
}

fn with_keys(n: usize) -> Client {
    let client = Client::new();
    for i in 0..n {
        client.run(&format!("SET key:{i} v"));
    }
    client
}

#[test]
fn a_round_of_scan_tells_of_every_key() {
    let client = with_keys(500);
    assert_eq!(round(&client, "").len(), 500);
    assert_eq!(round(&client, " COUNT 7").len(), 500);
    assert_eq!(round(&client, " COUNT 9223372036854775807").len(), 500);
}

#[test]
fn scan_leaves_out_what_is_not_asked_for() {
    let client = with_keys(120);
    assert_eq!(round(&client, " MATCH key:1?").len(), 10);
    assert_eq!(round(&client, " match key:1? count 5 TYPE string").len(), 10);
    assert_eq!(round(&client, " TYPE String").len(), 120);
    assert_eq!(round(&client, " TYPE list").len(), 0);
}

#[test]
fn scan_looks_at_about_as_many_keys_as_count_says() {
    let client = with_keys(100);
    let reply = client.run("SCAN 0 COUNT 30");
    assert_eq!(reply.matches("key:").count(), 30);
    assert!(!reply.starts_with("[\"0\""));
}

#[test]
fn scan_refuses_what_it_does_not_know() {
    Client::new().talks(&[
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN 99999999999999999999", "-ERR invalid cursor"),
        ("SCAN 0 COUNT 0", SYNTAX),
        ("SCAN 0 COUNT x", NOT_AN_INTEGER),
        ("SCAN 0 COUNT", SYNTAX),
        ("SCAN 0 bad 1", SYNTAX),
        ("SCAN 0", "[\"0\" []]"),
    ]);
}

#[test]
fn keys_finds_each_key_once_in_more_than_one_batch() {
    let client = with_keys(2500);
    assert_eq!(client.run("KEYS *").matches("key:").count(), 2500);
    assert_eq!(client.run("KEYS key:100?").matches("key:").count(), 10);
    assert_eq!(client.run("KEYS x*"), "[]");
}

#[test]
fn a_star_alone_finds_the_empty_key() {
    let client = Client::new();
    client.run("SET '' v");
    client.talks(&[("KEYS *", "[\"\"]"), ("KEYS **", "[]"), ("SCAN 0 MATCH *", "[\"0\" [\"\"]]")]);
}
