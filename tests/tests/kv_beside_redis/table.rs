//! What our table says of each command, beside what Redis says of it.

use super::redis::Redis;
use annex_kv::commands::SPECS;
use std::collections::BTreeSet;

/// The texts and integers of a reply in RESP2, in their order, with a bracket before and behind
/// each array.
fn flat(reply: &[u8]) -> Vec<String> {
    fn next(rest: &mut &[u8], into: &mut Vec<String>) {
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("a line");
        let (kind, line) = (rest[0], String::from_utf8_lossy(&rest[1..end]).into_owned());
        *rest = &rest[end + 2..];
        let length = line.parse::<usize>().unwrap_or(0);
        match kind {
            b'$' => {
                into.push(String::from_utf8_lossy(&rest[..length]).into_owned());
                *rest = &rest[length + 2..];
            }
            b'*' => {
                into.push("[".to_owned());
                (0..length).for_each(|_| next(rest, into));
                into.push("]".to_owned());
            }
            _ => into.push(line),
        }
    }
    let (mut rest, mut all) = (reply, Vec::new());
    next(&mut rest, &mut all);
    all
}

#[test]
fn arity_flags_and_keys_are_as_beside_redis() {
    let Some(mut redis) = Redis::start("info", false) else { return };
    for spec in SPECS {
        let told = flat(&redis.ask(&[b"COMMAND".to_vec(), b"INFO".to_vec(), spec.name.into()]));
        let [_, _, name, arity, _, rest @ ..] = told.as_slice() else { panic!("{told:?}") };
        let flags: BTreeSet<&str> = rest.iter().take_while(|word| *word != "]").map(String::as_str).collect();
        let keys: Vec<i32> = rest[flags.len() + 1..].iter().take(3).map(|n| n.parse().expect("a number")).collect();
        assert_eq!((name.as_str(), arity), (spec.name, &spec.arity.to_string()));
        assert_eq!(flags, spec.flags.names().into_iter().collect(), "flags of {}", spec.name);
        assert_eq!(keys, [spec.keys.first, spec.keys.last, spec.keys.step], "keys of {}", spec.name);
    }
}

#[test]
fn what_people_are_told_is_as_beside_redis() {
    let Some(mut redis) = Redis::start("docs", false) else { return };
    for spec in SPECS {
        let told = flat(&redis.ask(&[b"COMMAND".to_vec(), b"DOCS".to_vec(), spec.name.into()]));
        let value = |name: &str| told.iter().position(|word| word == name).map(|at| told[at + 1].as_str());
        assert_eq!(value("summary"), Some(spec.summary), "{}", spec.name);
        assert_eq!(value("since"), Some(spec.since), "{}", spec.name);
        assert_eq!(value("group"), Some(spec.group), "{}", spec.name);
        assert_eq!(value("complexity"), Some(spec.complexity), "{}", spec.name);
    }
}
