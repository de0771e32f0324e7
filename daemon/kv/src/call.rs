//! One call of a command, and what comes of it.

use super::blocking::GivenUp;
use super::locks::Ticket;
use super::reply::Reply;
use super::store::{Db, Store, StoreError};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::borrow::Cow;

/// A call of a command that works on keys. The dispatcher has checked the arity and holds the locks
/// of the command's keys.
pub struct Call<'a> {
    pub store: &'a Store,
    pub db: Db,
    /// The command's name first.
    pub args: &'a [Bytes],
    /// Bytes of the longest string: `proto-max-bulk-len`.
    pub longest: u64,
    /// The locks that are held for it, if they are not held for a transaction.
    pub ticket: Option<&'a Ticket>,
}

impl Call<'_> {
    /// What it writes is in the log: a later write that looks at nothing may come in.
    pub fn appended(&self) {
        self.ticket.into_iter().for_each(Ticket::appended);
    }
}

/// An error reply: its code and its text, without the leading `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub Cow<'static, str>);

pub type Outcome = Result<Reply, Failure>;

/// `fn name(call: Call<'_>) -> LocalBoxFuture<'_, Outcome>`.
pub type Handler = for<'a> fn(Call<'a>) -> LocalBoxFuture<'a, Outcome>;

/// Answers a call at once, if that takes no waiting. `None`: nothing was done, and the handler is
/// to be asked.
pub type AtOnce = fn(&Store, Db, &[Bytes]) -> Option<Reply>;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure(error.to_string().into())
    }
}

impl From<GivenUp> for Failure {
    fn from(error: GivenUp) -> Failure {
        Failure(format!("ERR {error}").into())
    }
}

impl From<&'static str> for Failure {
    fn from(text: &'static str) -> Failure {
        Failure(text.into())
    }
}
