//! Man pages, completions and the packages' changelog, made of what is there already: the command
//! lines as clap has them, docs/commands.md, docs/configuration.md and CHANGELOG.md.
//!
//! - [`pages`]: one man page for each command, and one for each configuration file.
//! - [`markdown`]: a part of a document as man page text.
//! - [`changelog`]: CHANGELOG.md as Debian wants it.
//!
//! A folder gets `man/man1` to `man/man8`, `bash`, `zsh`, `fish`, and `changelog`. The Makefile and
//! the packages take them from there.

pub mod changelog;
pub mod markdown;
pub mod pages;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::path::Path;

/// The programs, each with the section of the manual that it belongs to.
#[must_use]
pub fn programs() -> [(Command, &'static str); 3] {
    [
        (annex_cli::command::Cli::command(), "1"),
        (annex_daemon::flags::Flags::command(), "8"),
        (annex_agent::flags::Flags::command(), "8"),
    ]
}

/// Writes everything below `dir`, which is emptied first.
///
/// # Errors
/// A file can't be written, or a document lacks a part that is needed.
pub fn write(dir: &Path) -> anyhow::Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).with_context(|| format!("failed to empty {}", dir.display()))?;
    }
    let commands = programs().into_iter().map(|(program, section)| pages::of_program(program, section));
    let mut pages = commands.collect::<anyhow::Result<Vec<_>>>()?.concat();
    pages.push(pages::of_file("annexd.toml", "what annexd uses, and how")?);
    pages.push(pages::of_file("agent.toml", "what annex-agent lends, and to whom")?);
    for page in pages {
        put(&dir.join(format!("man/man{}", page.section)), &page.file(), &page.text)?;
    }
    for (shell, folder) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        for (program, _) in programs() {
            complete(shell, program, &dir.join(folder))?;
        }
    }
    put(dir, "changelog", &changelog::debian(changelog::OURS)?)
}

fn complete(shell: Shell, program: Command, dir: &Path) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut pages::without_hidden(program), &name, &mut text);
    let file = match shell {
        Shell::Zsh => format!("_{name}"),
        Shell::Fish => format!("{name}.fish"),
        _ => name,
    };
    put(dir, &file, &String::from_utf8(text)?)
}

fn put(dir: &Path, file: &str, text: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("failed to make {}", dir.display()))?;
    let path = dir.join(file);
    std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
}
