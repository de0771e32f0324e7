//! Running a command of the session, or a queued one of its transaction.

use super::state::{Run, Session, wrong_arity};
use crate::call::Outcome;
use crate::reply::Reply;
use crate::server::CommandId;
use bytes::Bytes;
use std::time::Instant;

impl Session {
    /// Runs a command of the session. What is before it is done.
    pub async fn run(&mut self, id: CommandId, args: &[Bytes]) -> Reply {
        let server = self.server.clone();
        let begun = Instant::now();
        let outcome: Outcome = match self.rows.get(id.index()).and_then(|row| row.run) {
            Some(Run::Now(run)) => run(self, args),
            Some(Run::Later(run)) => run(self, args).await,
            None if server.commands.get(id).spec.handler.is_some() => {
                let (db, client) = (self.db(), self.client.clone());
                return server.run(id, &client, db, args, None).await.unwrap_or_else(|failure| Reply::Error(failure.0));
            }
            None => Err(wrong_arity(server.commands.get(id).spec.name)),
        };
        server.account(id, &self.client, args, begun.elapsed(), &outcome);
        outcome.unwrap_or_else(|failure| Reply::Error(failure.0))
    }

    /// Runs a queued command; EXEC holds the locks.
    pub async fn run_within_exec(&mut self, id: CommandId, args: &[Bytes]) -> Reply {
        let (server, client) = (self.server.clone(), self.client.clone());
        let expected = server.expected(id, self.db(), args).await;
        if let Some(failure) = server.never_has_room_for(expected) {
            return Reply::Error(failure.0);
        }
        let reply = self.run(id, args).await;
        client.exec_output.set(client.exec_output.get() + reply.weight());
        server.weigh(&client);
        // What it has begun is done, but nobody reads the answer.
        if client.is_killed() { Reply::Silence } else { reply }
    }
}
