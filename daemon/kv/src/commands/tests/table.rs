use super::super::SPECS;
use std::collections::HashSet;

#[test]
fn every_command_is_listed_once_in_lower_case() {
    let names: HashSet<&str> = SPECS.iter().map(|spec| spec.name).collect();
    assert_eq!(names.len(), SPECS.len());
    assert!(names.iter().all(|name| name.to_ascii_lowercase() == *name));
}

#[test]
fn every_command_tells_what_it_is() {
    for spec in SPECS {
        let told = [spec.since, spec.group, spec.complexity, spec.summary];
        assert!(told.iter().all(|text| !text.is_empty()), "{}", spec.name);
        assert!(!(spec.flags.write && spec.flags.readonly), "{}", spec.name);
        assert!(spec.handler.is_some() || SPECS.iter().any(|s| s.name.starts_with(&format!("{}|", spec.name))));
    }
}

#[test]
fn every_key_that_is_always_there_lies_within_the_arity() {
    for spec in SPECS.iter().filter(|spec| spec.keys.first > 0) {
        assert!(spec.keys.first < spec.arity.abs() && spec.keys.last < spec.arity.abs(), "{}", spec.name);
        assert!(spec.keys.step > 0, "{}", spec.name);
    }
}
