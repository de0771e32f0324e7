//! All open control connections, as the rest of the agent reaches them: to tell clients of events,
//! and to close them. What is said on one is in [`crate::control`].

use crate::lease::ConnectionId;
use annex_identity::stream::Stream;
use annex_shared::wire::{Event, FrameError, encode_frame, write_frame};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// All open control connections.
#[derive(Default)]
pub struct Controls {
    open: Mutex<Open>,
    gone: Condvar,
    last: AtomicU64,
}

#[derive(Default)]
struct Open {
    links: HashMap<ConnectionId, Arc<Link>>,
    /// No connection enters any more.
    is_ended: bool,
}

/// One control connection, as other threads reach it.
pub struct Link {
    stream: Stream,
    /// Held while a frame is written, so that frames never mix.
    writing: Mutex<()>,
    /// It has had its `Welcome`: only then does it expect events of other kinds.
    is_welcome: AtomicBool,
}

impl Link {
    /// For its one reader.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub fn send(&self, event: &Event) -> Result<(), FrameError> {
        let _writing = self.writing.lock();
        write_frame(&mut &self.stream, event)
    }

    /// From now on it is told of events.
    pub fn welcome(&self) {
        self.is_welcome.store(true, Ordering::SeqCst);
    }

    /// Sends without waiting. A peer whose socket has no room for a few bytes isn't listening: it
    /// is cut off.
    fn send_or_close(&self, frame: &[u8]) {
        let _writing = self.writing.lock();
        let is_sent = self.stream.send_now(frame).is_ok_and(|sent| sent == frame.len());
        if !is_sent || self.stream.is_pending() {
            self.close();
        }
    }

    pub fn close(&self) {
        // An error means that the peer closed it first.
        let _ = self.stream.socket().shutdown(Shutdown::Both);
    }
}

impl Controls {
    /// Tells every welcomed client.
    pub fn announce(&self, event: &Event) {
        let Ok(frame) = encode_frame(event) else { return };
        let links: Vec<_> = self.open.lock().links.values().cloned().collect();
        for link in links.iter().filter(|l| l.is_welcome.load(Ordering::SeqCst)) {
            link.send_or_close(&frame);
        }
    }

    /// Tells one client, if it has been welcomed and is still there.
    pub fn tell(&self, connection: ConnectionId, event: &Event) {
        let Ok(frame) = encode_frame(event) else { return };
        let link = self.open.lock().links.get(&connection).cloned();
        if let Some(link) = link.filter(|l| l.is_welcome.load(Ordering::SeqCst)) {
            link.send_or_close(&frame);
        }
    }

    pub fn close(&self, connection: ConnectionId) {
        if let Some(link) = self.open.lock().links.get(&connection) {
            link.close();
        }
    }

    /// Closes all at once, also those that are being answered.
    pub fn close_all(&self) {
        let mut open = self.open.lock();
        open.is_ended = true;
        open.links.values().for_each(|l| l.close());
    }

    /// Takes no more requests, lets those that are being answered have their answers, and waits for
    /// that. False if some are still there after `patience`.
    pub fn finish_all(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut open = self.open.lock();
        // What its client has sent already is still read; an error means that the client closed it
        // first.
        open.is_ended = true;
        open.links.values().for_each(|l| drop(l.stream.socket().shutdown(Shutdown::Read)));
        while !open.links.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.gone.wait_for(&mut open, left);
        }
        true
    }

    pub fn count(&self) -> usize {
        self.open.lock().links.len()
    }

    /// `None` once the agent has ended its connections.
    pub fn enter(&self, stream: Stream) -> Option<(ConnectionId, Arc<Link>)> {
        let id = ConnectionId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let link = Arc::new(Link { stream, writing: Mutex::new(()), is_welcome: AtomicBool::new(false) });
        let mut open = self.open.lock();
        if open.is_ended {
            return None;
        }
        open.links.insert(id, link.clone());
        Some((id, link))
    }

    pub fn leave(&self, connection: ConnectionId) {
        self.open.lock().links.remove(&connection);
        self.gone.notify_all();
    }
}
