//! The table of commands: the session's own and those on keys, and what is counted of each.

use super::histogram::Histogram;
use crate::call::Handler;
use crate::spec::Spec;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

/// A command's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId(u16);

impl CommandId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

pub struct Command {
    pub spec: &'static Spec,
    /// The command that this one is a part of.
    pub parent: Option<CommandId>,
    pub children: Vec<CommandId>,
    /// It brings whole values here.
    pub brings_values: bool,
    pub stats: Stats,
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

impl Commands {
    /// A table of these, numbered as they come.
    pub fn new(specs: impl IntoIterator<Item = &'static Spec>) -> Commands {
        let mut commands = Commands { all: Vec::new(), by_name: HashMap::default() };
        specs.into_iter().for_each(|spec| commands.add(spec));
        for index in 0..commands.all.len() {
            let parent = commands.all[index].spec.parent().and_then(|name| commands.by_name.get(name).copied());
            if let Some(parent) = parent {
                commands.all[index].parent = Some(parent);
                commands.all[usize::from(parent.0)].children.push(CommandId(index as u16));
            }
        }
        commands
    }

    fn add(&mut self, spec: &'static Spec) {
        self.by_name.insert(spec.name, CommandId(self.all.len() as u16));
        self.all.push(Command {
            spec,
            parent: None,
            children: Vec::new(),
            brings_values: brings_values(spec.name),
            stats: Stats::default(),
        });
    }

    #[inline]
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

    /// The command that these arguments call; `None` if there is none, be it that only the
    /// sub-command is unknown.
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

impl Command {
    pub fn handler(&self) -> Option<Handler> {
        self.spec.handler
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

/// Commands that bring whole values here.
fn brings_values(name: &str) -> bool {
    const NAMES: [&str; 32] = [
        "get",
        "getdel",
        "getset",
        "getex",
        "getrange",
        "substr",
        "mget",
        "lcs",
        "append",
        "setrange",
        "set",
        "rename",
        "renamenx",
        "copy",
        "move",
        "expire",
        "pexpire",
        "expireat",
        "pexpireat",
        "persist",
        "incr",
        "decr",
        "incrby",
        "decrby",
        "incrbyfloat",
        "setbit",
        "bitcount",
        "bitpos",
        "bitop",
        "bitfield",
        "bitfield_ro",
        "dump",
    ];
    NAMES.contains(&name)
}
