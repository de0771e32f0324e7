//! One man page for each command, and one for each configuration file.
//!
//! Of a command, clap tells its usage and options. What else docs/commands.md says of it, such as
//! exit codes, follows. A page for a configuration file is its part of docs/configuration.md.

use super::markdown;
use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use std::fmt::Write;

const COMMANDS: &str = include_str!("../../../docs/commands.md");
const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");
/// Every page names the others of these.
const SEE: [(&str, &str); 5] =
    [("annex", "1"), ("annexd", "8"), ("annex-agent", "8"), ("annexd.toml", "5"), ("agent.toml", "5")];
/// Tables of docs/commands.md that man pages have a section of their own for. Options are clap's.
const SECTIONS: &[(&str, Option<&str>)] =
    &[("option", None), ("exit code", Some("EXIT STATUS")), ("signal", Some("SIGNALS"))];

#[derive(Clone, Debug)]
pub struct Page {
    /// `annex-donors-add`.
    pub name: String,
    pub section: &'static str,
    pub text: String,
}

impl Page {
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }
}

/// The pages of a program and of all its subcommands.
///
/// # Errors
/// docs/commands.md says nothing of one of them.
pub fn of_program(program: Command, section: &'static str) -> anyhow::Result<Vec<Page>> {
    // What it says at the end of `--help` is told by docs/commands.md at more length.
    let mut program = without_hidden(program).after_help(None::<&str>).disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    let mut left = vec![(program.get_name().to_owned(), program)];
    while let Some((words, command)) = left.pop() {
        pages.push(of_command(&words, command.clone(), section)?);
        let subcommands = command.get_subcommands();
        left.extend(subcommands.map(|sub| (format!("{words} {}", sub.get_name()), sub.clone())));
    }
    Ok(pages)
}

/// The same command line without subcommands that `--help` does not show. Completions would offer
/// them.
#[must_use]
pub fn without_hidden(command: Command) -> Command {
    if !command.get_subcommands().any(Command::is_hide_set) {
        return command;
    }
    // Clap wants names that last for ever, and these do as long as this program.
    let lasting = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    Command::new(lasting(command.get_name()))
        .about(command.get_about().cloned().unwrap_or_default())
        .version(lasting(command.get_version().unwrap_or_default()))
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().cloned())
        .subcommands(shown)
}

fn of_command(words: &str, command: Command, section: &'static str) -> anyhow::Result<Page> {
    let name = words.replace(' ', "-");
    let mut text = Vec::new();
    let man = Man::new(command).section(section).manual("annex").source(concat!("annex ", env!("CARGO_PKG_VERSION")));
    man.render(&mut text).with_context(|| format!("failed to make the page of {words}"))?;
    let mut text = String::from_utf8(text)?;
    let told = markdown::below(COMMANDS, &format!("### `{words}`"))
        .with_context(|| format!("docs/commands.md has no heading for {words}"))?;
    let of_all = (!words.contains(' ')).then(|| markdown::below(COMMANDS, &format!("## {words}"))).flatten();
    text.push_str(".SH NOTES\n");
    for part in [told].into_iter().chain(of_all) {
        text.push_str(&markdown::roff(markdown::before_headings(part), SECTIONS));
    }
    text.push_str(&see_also(&name));
    Ok(Page { name, section, text })
}

/// The page of a configuration file, which has a part of docs/configuration.md.
///
/// # Errors
/// It has none.
pub fn of_file(name: &str, what: &str) -> anyhow::Result<Page> {
    let part = markdown::below(CONFIGURATION, &format!("## `{name}`"))
        .with_context(|| format!("docs/configuration.md has no heading for {name}"))?;
    let rules = CONFIGURATION.find("Rules for both files:").context("docs/configuration.md has no rules")?;
    let mut text = format!(
        ".TH {} 5 \"\" \"annex {}\" annex\n.SH NAME\n{name} \\- {what}\n.SH DESCRIPTION\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    let intro = markdown::before_headings(part);
    text.push_str(&markdown::roff(intro, &[]));
    text.push_str(&markdown::roff(markdown::before_headings(&CONFIGURATION[rules..]), &[("type", Some("TYPES"))]));
    text.push_str(&markdown::roff(&part[intro.len()..], &[]));
    text.push_str(&see_also(name));
    Ok(Page { name: name.to_owned(), section: "5", text })
}

fn see_also(name: &str) -> String {
    let others = SEE.iter().filter(|(other, _)| *other != name);
    let named = others.map(|(other, section)| format!("\\fB{}\\fR({section})", other.replace('-', "\\-")));
    let mut text = String::new();
    let _ = writeln!(text, ".SH \"SEE ALSO\"\n{}", named.collect::<Vec<_>>().join(", "));
    text
}
