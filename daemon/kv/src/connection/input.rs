//! What a client sends: it is read, looked at beforehand, and taken request by request.

use super::state::Connection;
use crate::call::Failure;
use crate::reply::Reply;
use crate::resp::{Limits, Peeked, ProtocolError};
use crate::server::Statistics;
use crate::store::{Soon, TOGETHER};
use crate::turn;
use annex_host::repeated;
use bytes::Bytes;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// What a client may hold that has not authenticated.
const MAX_STRANGER: usize = 32 << 10;

impl Connection {
    #[inline]
    pub fn parse(&mut self) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        let limits = Limits {
            bulk: self.session.server.config.live.max_bulk.get(),
            authenticated: !self.session.must_authenticate(),
        };
        self.hinted = self.hinted.saturating_sub(1);
        self.inbox.next(&limits)
    }

    /// Adds hints for what the next requests will need, so that it is looked for together. False:
    /// there is nothing, or one request only, which may not wait for others. Nor is it to wait
    /// where some of these are long.
    pub fn add_prefetch_hints(&mut self, may_wait: bool) -> bool {
        let (server, db) = (&self.session.server, self.session.client.db.get());
        let peeked = self.inbox.peek().filter(|_| !self.session.must_authenticate());
        let Some(peeked) = peeked else { return false };
        let next = peeked.take(TOGETHER).map_while(wanted);
        self.hinted = next.clone().count();
        let has_company = self.hinted > 1 || (may_wait && server.clients.borrow().len() > 1 && !turn::is_lined_up());
        if self.hinted == 0 || !has_company {
            return false;
        }
        next.for_each(|(key, soon)| server.store.add_prefetch_hint(db, key, soon));
        true
    }

    /// The client does not speak the protocol: it is told so, behind what it is owed, and that is
    /// the end. If it wants no replies it gets none here either.
    pub fn refuse(&mut self, error: ProtocolError) {
        let failure = Failure(format!("ERR {error}").into());
        self.session.server.stats.count_error(&failure);
        tracing::debug!(client = self.session.client.id, "{error}");
        let is_muted = self.session.mutes();
        self.answer(if is_muted { Reply::Silence } else { Reply::Error(failure.0) });
        self.ending = true;
    }

    /// Ready with false at the end of the input.
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let (server, client) = (&self.session.server, &self.session.client);
        if client.is_quiet.take() {
            self.inbox.shrink();
            self.outbox.shrink();
            self.weigh();
        }
        let is_stranger = self.session.must_authenticate();
        let count = ready!(self.inbox.poll_read(self.outbox.stream(), is_stranger, context))?;
        if count == 0 {
            return Poll::Ready(Ok(false));
        }
        Statistics::add(&server.stats.input, count);
        Statistics::add(&server.stats.reads, 1);
        client.last_active.set(Instant::now());
        self.weigh();
        let query = self.inbox.len() + self.inbox.arguments() + client.queued_bytes.get();
        if query as u64 > server.config.live.max_query.get() {
            repeated!(
                WARN, "a client was closed: its requests are above client-query-buffer-limit" of "",
                "client {} at {} was closed: its requests are above client-query-buffer-limit", client.id, client.peer
            );
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        if is_stranger && client.memory() > MAX_STRANGER {
            repeated!(
                WARN, "a client was closed: it sent too much and no password" of "",
                "client {} at {} was closed: it sent more than {MAX_STRANGER} bytes and no password", client.id, client.peer
            );
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        Poll::Ready(Ok(true))
    }
}

/// What a request wants of a key, for those that are asked for most.
fn wanted(request: Peeked<'_>) -> Option<(&[u8], Soon)> {
    let soon = match request.name {
        name if name.eq_ignore_ascii_case(b"get") => Soon::Read,
        name if name.eq_ignore_ascii_case(b"set") => Soon::Overwrite,
        _ => return None,
    };
    Some((request.key?, soon))
}
