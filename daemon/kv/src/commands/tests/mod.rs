//! The commands, one by one, over a store of their own: each option, each error, and what is left
//! behind.
//!
//! A [`Client`] takes a line as one would type it and gives the reply as one would read it: `+OK`,
//! `-ERR …`, `:1`, `"text"`, `nil`, `[…]`, `{…}`.

mod bits;
mod expiry;
mod keys;
mod numbers;
mod object;
mod scan;
mod set;
mod strings;
mod table;

use super::super::call::{Call, Failure};
use super::super::reply::Reply;
use super::super::store::Db;
use super::super::store::testbed::Alone;
use bytes::Bytes;

struct Client(Alone);

impl Client {
    fn new() -> Client {
        Client(Alone::new())
    }

    /// Calls a command in database 0. Words are parted by spaces; `''` is the empty word, `\x00` a
    /// byte.
    fn run(&self, line: &str) -> String {
        self.run_in(0, line)
    }

    fn run_in(&self, db: u8, line: &str) -> String {
        let words: Vec<Bytes> = line.split(' ').map(unescape).collect();
        render(&self.call(Db(db), &words))
    }

    fn call(&self, db: Db, args: &[Bytes]) -> Reply {
        let word =
            |n: usize| args.get(n).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).unwrap_or_default();
        let named = |name: &str| super::SPECS.iter().find(|spec| spec.name == name);
        let spec = named(&format!("{}|{}", word(0), word(1))).or_else(|| named(&word(0))).expect("a known command");
        assert!(spec.takes(args.len()), "the arity of {} is {}", spec.name, spec.arity);
        let handler = spec.handler.expect("a command with a handler");
        match self.0.block_on(handler(Call { store: &self.0.store, db, args, longest: 512 << 20, ticket: None })) {
            Ok(reply) => reply,
            Err(Failure(text)) => Reply::Error(text),
        }
    }

    /// Each line gets its reply, in this order.
    fn talks(&self, lines: &[(&str, &str)]) {
        for (line, reply) in lines {
            assert_eq!(&self.run(line), reply, "{line}");
        }
    }
}

fn unescape(word: &str) -> Bytes {
    let mut parts = word.trim_matches('\'').split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("two digits"));
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    bytes.into()
}

fn render(reply: &Reply) -> String {
    let list = |items: &[Reply]| items.iter().map(render).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Simple(text) => format!("+{text}"),
        Reply::Error(text) => format!("-{text}"),
        Reply::Integer(n) => format!(":{n}"),
        Reply::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Reply::Null => "nil".to_owned(),
        Reply::Array(items) => format!("[{}]", list(items)),
        Reply::Map(items) => {
            format!(
                "{{{}}}",
                items.iter().map(|(k, v)| format!("{} {}", render(k), render(v))).collect::<Vec<_>>().join(" ")
            )
        }
        other => format!("{other:?}"),
    }
}

const SYNTAX: &str = "-ERR syntax error";
const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range";
