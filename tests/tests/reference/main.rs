//! The reference in docs/ is held against the programs: every key of the configuration with its
//! default, every subcommand and option.
//!
//! - [`fields`]: which keys the code has.
//! - [`manual`]: which keys docs/configuration.md and the example files have.
//! - [`metrics`]: the same for docs/metrics.md and the metrics that daemons show.
//! - [`commands`]: the same for docs/commands.md and what `--help` says.

mod commands;
mod fields;
mod manual;
mod metrics;

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;

const MANUAL: &str = include_str!("../../../docs/configuration.md");
const METRICS: &str = include_str!("../../../docs/metrics.md");
const ANNEXD: &str = include_str!("../../../systemd/annexd.toml");
const AGENT: &str = include_str!("../../../systemd/agent.toml");
/// A table that may stand any number of times.
const DONOR: &str = "pool.donor.";

/// The code's keys. `donors` is another spelling of `donor` in `[pool]`.
fn known<T: DeserializeOwned>() -> BTreeSet<String> {
    let keys = fields::keys::<T>();
    assert!(keys.len() > 20, "the walk over the configuration found {keys:?}");
    keys.into_iter().filter(|key| !key.starts_with("pool.donors.")).collect()
}

/// What one has and the other lacks, in words.
fn differences(told: &BTreeSet<String>, known: &BTreeSet<String>) -> Vec<String> {
    let lacking = known.difference(told).map(|key| format!("lacks {key}"));
    lacking.chain(told.difference(known).map(|key| format!("has {key}, which the code does not know"))).collect()
}

fn check_keys<T: DeserializeOwned>(file: &str, example: &str) {
    let known = known::<T>();
    let rows = manual::rows(MANUAL, file);
    let told: BTreeSet<String> = rows.iter().map(|row| row.key.clone()).collect();
    assert_eq!(rows.len(), told.len(), "docs/configuration.md tells of a key of {file} twice");
    assert_eq!(differences(&told, &known), [""; 0], "docs/configuration.md, {file}");
    assert_eq!(differences(&manual::example(example), &known), [""; 0], "systemd/{file}");
}

/// Whether the code has no value for a key unless one is given.
fn is_absent<T: Serialize + Default>(key: &str) -> bool {
    let mut value = &serde_json::to_value(T::default()).expect("a configuration is data");
    for part in key.split('.') {
        value = &value[part];
    }
    value.is_null()
}

fn check_defaults<T: Serialize + DeserializeOwned + Default + Debug + PartialEq>(file: &str) {
    let parse = |text: &str| annex_shared::config::parse::<T>(text, Path::new(file)).unwrap_or_else(|e| panic!("{e}"));
    for row in manual::rows(MANUAL, file) {
        let key = &row.key;
        match row.as_file() {
            Some(text) if key.starts_with(DONOR) => {
                let donor = "[[pool.donor]]\naddress = \"a:1\"\n";
                assert_eq!(parse(&text.replace("[pool.donor]\n", donor)), parse(donor), "{key} of {file}");
            }
            Some(text) => assert!(parse(&text) == T::default(), "{key} of {file} has another default: {text}"),
            None if key.starts_with(DONOR) => {}
            None => assert!(is_absent::<T>(key), "{key} of {file} has a default, which is told in words"),
        }
    }
}

#[test]
fn every_key_of_annexd_is_told_and_no_other() {
    check_keys::<annex_daemon::config::Config>("annexd.toml", ANNEXD);
}

#[test]
fn every_key_of_the_agent_is_told_and_no_other() {
    check_keys::<annex_agent::Config>("agent.toml", AGENT);
}

#[test]
fn the_defaults_that_are_told_are_those_of_the_code() {
    check_defaults::<annex_daemon::config::Config>("annexd.toml");
    check_defaults::<annex_agent::Config>("agent.toml");
}

#[test]
fn every_metric_is_told_and_no_other() {
    let all = annex_daemon::metrics::catalogue::ALL.iter().chain(annex_agent::metrics::catalogue::ALL);
    let mut known: Vec<metrics::Told> = all.map(|metric| metrics::Told::of(metric)).collect();
    let mut told = metrics::rows(METRICS);
    known.sort();
    told.sort();
    let lacking: Vec<&metrics::Told> = known.iter().filter(|metric| !told.contains(metric)).collect();
    let wrong: Vec<&metrics::Told> = told.iter().filter(|metric| !known.contains(metric)).collect();
    assert!(lacking.is_empty() && wrong.is_empty(), "docs/metrics.md lacks {lacking:#?}, and has {wrong:#?}");
    assert_eq!(told.len(), known.len(), "docs/metrics.md tells of a metric twice");
}
