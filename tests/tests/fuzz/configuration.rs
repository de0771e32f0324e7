//! Configuration files: the examples that are installed, changed in every way.

use super::feed::feed;
use annex_agent::pressure::HostMemory;
use annex_shared::config::parse;
use std::path::Path;

fn example(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The example with its commented keys, too.
fn all_keys(name: &str) -> Vec<u8> {
    let text = String::from_utf8(example(name)).expect("it is text");
    let is_key = |line: &str| line.starts_with("# ") && line.contains(" = ");
    text.lines().map(|line| if is_key(line) { &line[2..] } else { line }).collect::<Vec<_>>().join("\n").into_bytes()
}

#[test]
fn no_file_breaks_annexd() {
    let decode = |bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Ok(config) = parse::<annex_daemon::config::Config>(text, Path::new("annexd.toml"))
        {
            let _ = config.check().map_err(|error| error.to_string());
            let _ = config.check_completeness().map_err(|error| error.to_string());
        }
    };
    feed(&[example("annexd.toml"), all_keys("annexd.toml")], decode, |len| 2000 * len + (1 << 20));
}

#[test]
fn no_file_breaks_the_agent() {
    let decode = |bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Ok(config) = parse::<annex_agent::Config>(text, Path::new("agent.toml"))
        {
            let host = HostMemory { total: 16 << 30, available: 8 << 30, huge_total: 0, huge_free: 0 };
            let _ = config.resolve(&host, "host").map_err(|error| error.to_string());
        }
    };
    feed(&[example("agent.toml"), all_keys("agent.toml")], decode, |len| 2000 * len + (1 << 20));
}
