//! Reads that are answered on the spot: no task, and no lock that anybody would see held.

use super::{Client, CommandId, Server};
use crate::reply::Reply;
use crate::spec::Dispatch;
use bytes::Bytes;
use std::time::Instant;

impl Server {
    /// The answer to a command that only reads, if its keys are free and nothing has to be waited
    /// for. `None`: nothing was done.
    pub fn read_now(&self, id: CommandId, client: &Client, args: &[Bytes]) -> Option<Reply> {
        let spec = self.commands.get(id).spec;
        let Dispatch::AtOnce(at_once) = spec.dispatch else { return None };
        if !self.locks.may_read(spec.keys_of(args)) {
            return None;
        }
        let begun = Instant::now();
        let outcome = Ok(at_once(&self.store, client.db.get(), args)?);
        self.account(id, client, args, begun.elapsed(), &outcome);
        outcome.ok()
    }
}
