//! Reads that take long. What is known of a key may be out of reach for as long as the donors are
//! away that have it, and whoever overwrites the key then is not to wait for who reads it.
//!
//! So a read that takes long gives its locks back. When it is over, and its keys are what they were
//! when it did, its answer is what it would have been before any write since. If not, it asks for
//! its locks once more and begins anew: what was written meanwhile is within reach.
//!
//! A connection's own commands on a key run in the order they were sent, though. So only a read
//! does so that is the only command of its connection under way, and none begins before it is over.

use super::{Client, CommandId, Server};
use crate::call::{Call, Handler, Outcome};
use crate::locks::Ticket;
use crate::store::{Db, Spot};
use bytes::Bytes;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What takes longer may take for ever. Also how often it is seen whether a key has changed.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often it begins anew without its locks held to the end: if keys change all the time, it is
/// not what is away that takes long.
const TRIES: usize = 2;

/// One command of a connection, as long as it is under way.
pub struct Running(Rc<Client>);

impl Running {
    pub fn new(client: &Rc<Client>) -> Running {
        client.running.set(client.running.get() + 1);
        Running(client.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
        self.0.lags.set(false);
        self.0.served.set(Instant::now());
    }
}

impl Server {
    /// Runs a read, whose locks the ticket holds.
    pub(super) async fn read(
        &self,
        (id, handler): (CommandId, Handler),
        client: &Client,
        db: Db,
        args: &[Bytes],
        ticket: &Ticket,
    ) -> Outcome {
        let mut next: Option<Ticket> = None;
        for _ in 0..TRIES {
            let ticket = next.as_ref().unwrap_or(ticket);
            let call = Call { ticket: Some(ticket), ..self.call(db, args) };
            if let Some(outcome) = self.read_once((id, handler), client, call).await {
                return outcome;
            }
            let again = self.lock(id, args);
            again.granted().await;
            next = Some(again);
        }
        handler(self.call(db, args)).await
    }

    /// `None`: its keys have changed since it gave its locks back.
    async fn read_once(&self, (id, handler): (CommandId, Handler), client: &Client, call: Call<'_>) -> Option<Outcome> {
        let (db, args) = (call.db, call.args);
        let spots = || self.spots(id, db, args);
        let mut before: Option<Vec<Option<Spot>>> = None;
        let ticket = call.ticket;
        let mut run = handler(call);
        loop {
            let over = tokio::time::timeout(PATIENCE, run.as_mut()).await;
            match (over, &before) {
                (Ok(outcome), None) => return Some(outcome),
                (Err(_), None) if client.running.get() == 1 => {
                    before = Some(spots());
                    client.lags.set(true);
                    ticket.into_iter().for_each(Ticket::let_go);
                }
                (Err(_), None) => {}
                (over, Some(before)) if *before == spots() => {
                    if let Ok(outcome) = over {
                        return Some(outcome);
                    }
                }
                _ => return None,
            }
        }
    }

    fn spots(&self, id: CommandId, db: Db, args: &[Bytes]) -> Vec<Option<Spot>> {
        let keys = self.commands.get(id).spec.keys_of(args);
        keys.map(|key| self.store.spot(db, key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Address, Origin};
    use std::time::Instant;

    #[test]
    fn who_waits_for_an_answer_is_not_stuck() {
        let address = || Address::Unix("here".into());
        let client = Rc::new(Client::new(1, address(), address(), Origin::User(0)));
        let long = Duration::from_secs(60);
        let later = Instant::now() + long;
        assert!(client.stuck_for(later) > long / 2, "it is idle");
        let running = Running::new(&client);
        assert_eq!(client.stuck_for(later), Duration::ZERO);
        drop(running);
        assert_eq!(client.stuck_for(client.served.get()), Duration::ZERO, "its answer is just there");
        assert!(client.stuck_for(later) > long / 2);
        // What it does not read is its own affair.
        client.stuck_since.set(Some(Instant::now()));
        let _running = Running::new(&client);
        assert!(client.stuck_for(later) > long / 2);
    }
}
