//! docs/commands.md beside what the programs say when they are asked for help.

use annex_tests::testbed::bins;
use std::collections::BTreeSet;
use std::process::Command;

const MANUAL: &str = include_str!("../../../docs/commands.md");
/// Told once, for all commands.
const COMMON: [&str; 2] = ["--help", "--version"];

/// What a command prints about itself.
fn help(words: &[&str]) -> String {
    let output = Command::new(bins::find(words[0])).args(&words[1..]).arg("--help").output();
    let output = output.unwrap_or_else(|e| panic!("failed to run {words:?}: {e}"));
    assert!(output.status.success(), "{words:?} --help: {output:?}");
    String::from_utf8(output.stdout).expect("help is text")
}

/// The first words of the lines below `Commands:`.
fn subcommands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next()).filter(|word| *word != "help").collect()
}

/// The options that begin a line (`-h, --help` and `--json`).
fn options(help: &str) -> BTreeSet<&str> {
    let begins = help.lines().filter(|line| line.trim_start().starts_with('-'));
    begins.filter_map(|line| line.split([' ', '[']).find(|word| word.starts_with("--"))).collect()
}

/// The rows of the options of a command, below its heading.
fn told(words: &[&str]) -> BTreeSet<&'static str> {
    let heading = format!("### `{}`", words.join(" "));
    let mut lines = MANUAL.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "docs/commands.md has no heading {heading}");
    let lines = lines.take_while(|line| !line.starts_with('#')).filter_map(|line| line.strip_prefix("| `--"));
    lines.filter_map(|line| line.split([' ', '`']).next()).collect()
}

fn check(words: &[&str], inherited: &BTreeSet<String>, problems: &mut Vec<String>) {
    let help = help(words);
    let known: BTreeSet<String> =
        options(&help).into_iter().filter(|option| !COMMON.contains(option)).map(str::to_owned).collect();
    let told: BTreeSet<String> = told(words).into_iter().map(|option| format!("--{option}")).collect();
    let lacking = known.iter().filter(|option| !told.contains(*option) && !inherited.contains(*option));
    problems.extend(lacking.map(|option| format!("{} lacks {option}", words.join(" "))));
    problems.extend(told.difference(&known).map(|option| format!("{} has no {option}", words.join(" "))));
    for subcommand in subcommands(&help) {
        check(&[words, &[subcommand]].concat(), &known, problems);
    }
}

#[test]
fn every_subcommand_and_option_is_told_and_no_other() {
    let mut problems = Vec::new();
    for program in ["annex", "annexd", "annex-agent"] {
        check(&[program], &BTreeSet::new(), &mut problems);
    }
    assert_eq!(problems, [""; 0], "docs/commands.md");
}
