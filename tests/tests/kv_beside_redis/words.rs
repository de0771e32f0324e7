//! Arguments, likely and unlikely, and how commands are put together from them.

use super::Step;
use proptest::prelude::*;
use proptest::sample::select;

pub type Word = BoxedStrategy<Vec<u8>>;

pub fn word(text: &str) -> Word {
    Just(text.as_bytes().to_vec()).boxed()
}

pub fn one_of(words: &'static [&'static str]) -> Word {
    select(words).prop_map(|word| word.as_bytes().to_vec()).boxed()
}

pub fn key() -> Word {
    one_of(&["a", "b", "c", "d"])
}

pub fn value() -> Word {
    prop_oneof![
        2 => one_of(&["", "0", "1", "-1", "10", "hello", "foobar", "01", " 1"]),
        1 => one_of(&["9223372036854775807", "-9223372036854775808", "3.0e3", "1.5"]),
        1 => proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..12),
        1 => "[a-c]{0,20}".prop_map(String::into_bytes),
    ]
    .boxed()
}

pub fn number_near_zero() -> Word {
    (-12i64..12).prop_map(|n| n.to_string().into_bytes()).boxed()
}

pub fn number() -> Word {
    prop_oneof![
        4 => number_near_zero(),
        1 => any::<i64>().prop_map(|n| n.to_string().into_bytes()),
        1 => one_of(&["", "x", "1.5", "+1", " 1", "01", "-0", "9223372036854775807", "-9223372036854775808",
            "9223372036854775808", "-9223372036854775809", "4294967296", "-4294967297"]),
    ]
    .boxed()
}

/// Lifetimes that are over, or will not be while the test runs, or are none.
pub fn lifetime() -> Word {
    one_of(&[
        "0",
        "-1",
        "-100000",
        "100000",
        "3000000",
        "90000000",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775",
        "9223372036854776",
        "9223372036854000",
        "9223370000000000000",
        "x",
        "",
        "1.5",
    ])
}

/// Moments, in seconds and in milliseconds, gone and to come.
pub fn moment() -> Word {
    one_of(&[
        "0",
        "-1",
        "1000",
        "1600000000",
        "4000000000",
        "4100000000",
        "4000000000000",
        "4100000000000",
        "4200000000000000",
        "9223372036854775807",
        "9223372036854775",
        "9223372036854776",
        "x",
    ])
}

pub type Words = BoxedStrategy<Vec<Vec<u8>>>;

pub fn sequence(parts: Vec<Word>) -> Words {
    parts.boxed()
}

/// A command out of words that are always there, and then up to so many of the others.
pub fn with_options(fixed: Vec<Word>, option: BoxedStrategy<Vec<Vec<u8>>>, most: usize) -> Words {
    (sequence(fixed), proptest::collection::vec(option, 0..=most))
        .prop_map(|(mut words, options)| {
            words.extend(options.into_iter().flatten());
            words
        })
        .boxed()
}

pub fn words(words: &'static [&'static str]) -> Words {
    Just(words.iter().map(|word| word.as_bytes().to_vec()).collect()).boxed()
}

pub fn on_first(command: impl Strategy<Value = Vec<Vec<u8>>> + 'static) -> BoxedStrategy<Step> {
    command.prop_map(|step| (0, step)).boxed()
}

pub fn on_two(command: impl Strategy<Value = Vec<Vec<u8>>> + 'static) -> BoxedStrategy<Step> {
    (prop_oneof![4 => Just(0u8), 1 => Just(1u8)], command).boxed()
}
