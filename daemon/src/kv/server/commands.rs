//! The table of commands: the session's own and those on keys, and what is counted of each.

use super::histogram::Histogram;
use crate::kv::call::Handler;
use crate::kv::session::{self, Run};
use crate::kv::spec::{Flags, Keys, Spec};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

/// A command's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId(u16);

pub struct Command {
    pub spec: Facts,
    pub run: Run,
    /// The command that this one is a part of.
    pub parent: Option<CommandId>,
    pub children: Vec<CommandId>,
    pub stats: Stats,
}

/// What there is to know of a command, with its name looked up once.
#[derive(Clone, Copy)]
pub struct Facts {
    pub name: &'static str,
    pub arity: i32,
    pub flags: Flags,
    pub keys: Keys,
    pub since: &'static str,
    pub group: &'static str,
    pub complexity: &'static str,
    pub summary: &'static str,
    pub blind: fn(usize) -> bool,
    pub alone: bool,
}

/// What INFO commandstats and latencystats tell.
#[derive(Default)]
pub struct Stats {
    pub calls: Cell<u64>,
    pub time: Cell<Duration>,
    /// Refused before it ran.
    pub rejected: Cell<u64>,
    /// Ran and ended in an error.
    pub failed: Cell<u64>,
    pub latency: RefCell<Option<Box<Histogram>>>,
}

pub struct Commands {
    all: Vec<Command>,
    by_name: HashMap<&'static str, CommandId, BuildHasherDefault<Fnv>>,
}

/// Longer than any command's name, `|` and sub-command included.
const MAX_NAME: usize = 48;

impl Default for Commands {
    /// Joins the tables. A sub-command whose parent is in none of them gets one that does nothing but hold it.
    fn default() -> Commands {
        let mut commands = Commands { all: Vec::new(), by_name: HashMap::default() };
        for (spec, run) in session::commands() {
            commands.add(Facts::of(spec), run);
        }
        for spec in crate::kv::commands::SPECS {
            commands.add(Facts::of(spec), spec.handler.map_or(Run::Container, Run::Keys));
        }
        for index in 0..commands.all.len() {
            let facts = commands.all[index].spec;
            if let Some((parent, _)) = facts.name.split_once('|') {
                let parent = commands.by_name.get(parent).copied().unwrap_or_else(|| {
                    let container = Facts { name: parent, arity: -2, keys: Keys::default(), ..facts };
                    commands.add(container, Run::Container)
                });
                commands.all[index].parent = Some(parent);
                commands.all[usize::from(parent.0)].children.push(CommandId(index as u16));
            }
        }
        commands
    }
}

impl Commands {
    fn add(&mut self, spec: Facts, run: Run) -> CommandId {
        if let Some(known) = self.by_name.get(spec.name) {
            return *known;
        }
        let id = CommandId(self.all.len() as u16);
        self.by_name.insert(spec.name, id);
        self.all.push(Command { spec, run, parent: None, children: Vec::new(), stats: Stats::default() });
        id
    }

    pub fn get(&self, id: CommandId) -> &Command {
        &self.all[usize::from(id.0)]
    }

    /// Commands and sub-commands.
    pub fn iter(&self) -> impl Iterator<Item = &Command> {
        self.all.iter()
    }

    /// Commands that are no part of another.
    pub fn top(&self) -> impl Iterator<Item = &Command> {
        self.all.iter().filter(|command| command.parent.is_none())
    }

    pub fn children<'a>(&'a self, command: &'a Command) -> impl Iterator<Item = &'a Command> {
        command.children.iter().map(|id| self.get(*id))
    }

    /// The command that these arguments call; `None` if there is none, be it that only the sub-command is unknown.
    pub fn find(&self, args: &[Bytes]) -> Option<CommandId> {
        let name = args.first()?;
        let mut lower = [0u8; MAX_NAME];
        let length = lower_case(name, &mut lower)?;
        if name.contains(&b'|') {
            return None;
        }
        let id = self.by_bytes(&lower[..length])?;
        let (false, Some(child)) = (self.get(id).children.is_empty(), args.get(1)) else { return Some(id) };
        lower[length] = b'|';
        let end = length + 1 + lower_case(child, &mut lower[length + 1..])?;
        self.by_bytes(&lower[..end])
    }

    /// By its full name (`config|get`), in any case.
    pub fn by_full_name(&self, name: &[u8]) -> Option<CommandId> {
        let mut lower = [0u8; MAX_NAME];
        let length = lower_case(name, &mut lower)?;
        self.by_bytes(&lower[..length])
    }

    fn by_bytes(&self, name: &[u8]) -> Option<CommandId> {
        self.by_name.get(std::str::from_utf8(name).ok()?).copied()
    }
}

/// The length, if it can be a command's name and leaves room for a `|`.
fn lower_case(name: &[u8], into: &mut [u8]) -> Option<usize> {
    let target = into.get_mut(..name.len())?;
    target.copy_from_slice(name);
    target.make_ascii_lowercase();
    (name.len() < into.len()).then_some(name.len())
}

impl Facts {
    pub fn of(spec: &Spec) -> Facts {
        Facts {
            name: spec.name,
            arity: spec.arity,
            flags: spec.flags,
            keys: spec.keys,
            since: spec.since,
            group: spec.group,
            complexity: spec.complexity,
            summary: spec.summary,
            blind: spec.blind,
            alone: spec.alone,
        }
    }

    pub fn takes(&self, args: usize) -> bool {
        let args = i32::try_from(args).unwrap_or(i32::MAX);
        if self.arity > 0 { args == self.arity } else { args >= -self.arity }
    }

    pub fn has_keys(&self) -> bool {
        self.keys.first > 0 || self.flags.movablekeys
    }

    /// Which of so many arguments are keys.
    pub fn key_positions(&self, args: usize) -> impl Iterator<Item = usize> + use<> {
        let count = args as i64;
        let last = i64::from(self.keys.last);
        let last = if last < 0 { count + last } else { last.min(count - 1) };
        let first = if self.keys.first > 0 { i64::from(self.keys.first) } else { last + 1 };
        (first..=last).step_by(self.keys.step.max(1) as usize).map(|at| at as usize)
    }
}

impl Command {
    pub fn handler(&self) -> Option<Handler> {
        match self.run {
            Run::Keys(handler) => Some(handler),
            _ => None,
        }
    }
}

impl Stats {
    pub fn is_empty(&self) -> bool {
        self.calls.get() + self.rejected.get() + self.failed.get() == 0
    }

    pub fn reset(&self) {
        self.calls.set(0);
        self.time.set(Duration::ZERO);
        self.rejected.set(0);
        self.failed.set(0);
        self.latency.replace(None);
    }
}

/// FNV-1a: names are short and come from the program, not from a client.
#[derive(Default)]
pub struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        let start = if self.0 == 0 { 0xcbf2_9ce4_8422_2325 } else { self.0 };
        self.0 = bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
