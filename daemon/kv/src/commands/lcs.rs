//! LCS: what two values have in common.

use super::super::blocking;
use super::super::call::{Call, Failure, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::text::lcs::{self, Common, Run};
use super::arguments::{SYNTAX, integer, is};
use super::describe::*;
use super::together::read_all;
use bytes::Bytes;
use futures::future::LocalBoxFuture;

pub const LCS: Spec = command("lcs", -3, READ, TWO_KEYS, lcs).about(
    "string",
    "7.0.0",
    "O(N*M) where N and M are the lengths of s1 and s2, respectively",
    "Find longest common substring",
);

#[derive(Default)]
struct Options {
    length: bool,
    positions: bool,
    with_lengths: bool,
    shortest: i64,
}

impl Options {
    fn parse(arguments: &[Bytes]) -> Result<Options, Failure> {
        let mut options = Options::default();
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            if is(option, "IDX") {
                options.positions = true;
            } else if is(option, "LEN") {
                options.length = true;
            } else if is(option, "WITHMATCHLEN") {
                options.with_lengths = true;
            } else if is(option, "MINMATCHLEN") {
                options.shortest = integer(rest.next().ok_or(SYNTAX)?)?;
            } else {
                return Err(SYNTAX.into());
            }
        }
        if options.length && options.positions {
            return Err("ERR If you want both the length and indexes, please just use IDX.".into());
        }
        Ok(options)
    }

    fn answer(&self, found: Common) -> Reply {
        if !self.positions {
            return Reply::Bulk(found.bytes.into());
        }
        let runs = found.runs.iter().filter(|run| i64::from(run.bytes()) >= self.shortest);
        let matches = runs.map(|run| self.answer_run(run)).collect();
        let name = |name| Reply::Bulk(Bytes::from_static(name));
        Reply::Map(vec![
            (name(b"matches"), Reply::Array(matches)),
            (name(b"len"), Reply::Integer(found.bytes.len() as i64)),
        ])
    }

    fn answer_run(&self, run: &Run) -> Reply {
        let place =
            |(first, last)| Reply::Array(vec![Reply::Integer(i64::from(first)), Reply::Integer(i64::from(last))]);
        let mut answer = vec![place(run.a), place(run.b)];
        if self.with_lengths {
            answer.push(Reply::Integer(i64::from(run.bytes())));
        }
        Reply::Array(answer)
    }
}

fn lcs(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let options = Options::parse(&call.args[3..])?;
        let values = read_all(call.store, call.db, &call.args[1..3]).await?;
        let mut values = values.into_iter().map(|value| value.map_or(Bytes::new(), |value| value.bytes));
        let (a, b) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
        let cells = lcs::cells(a.len(), b.len())
            .filter(|cells| cells.saturating_mul(4) <= call.longest)
            .ok_or("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len")?;
        if options.length {
            let length = blocking::run(cells, move || lcs::length(&a, &b)).await?;
            return Ok(Reply::Integer(i64::from(length)));
        }
        let found = blocking::run(cells, move || lcs::common(&a, &b)).await?;
        Ok(options.answer(found))
    })
}
