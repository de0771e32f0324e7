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

/// Bytes of events that may wait for a peer that does not read: the longest recall, and some more.
const MOST_WAITING: usize = 512 << 10;

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
    /// Held while a frame is written, so that frames never mix: for long, by its own thread, if the
    /// peer does not read.
    writing: Mutex<()>,
    /// Frames that came from other threads while one was written.
    waiting: Mutex<Vec<u8>>,
    /// It has had its `Welcome`: only then does it expect events of other kinds.
    is_welcome: AtomicBool,
}

impl Link {
    /// For its one reader.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// For its own thread: waits for a peer that does not read.
    pub fn send(&self, event: &Event) -> Result<(), FrameError> {
        let writing = self.writing.lock();
        let sent = write_frame(&mut &self.stream, event);
        drop(writing);
        self.send_waiting();
        sent
    }

    /// From now on it is told of events.
    pub fn welcome(&self) {
        self.is_welcome.store(true, Ordering::SeqCst);
    }

    /// For other threads: sends without waiting, also if another frame is being written. A peer
    /// whose socket has no room for a few bytes isn't listening: it is cut off.
    fn send_or_close(&self, frame: &[u8]) {
        let mut waiting = self.waiting.lock();
        if waiting.len() + frame.len() > MOST_WAITING {
            return self.close();
        }
        waiting.extend_from_slice(frame);
        drop(waiting);
        self.send_waiting();
    }

    /// Sends what waits. If somebody is writing it is theirs to send, once they are done.
    fn send_waiting(&self) {
        while !self.waiting.lock().is_empty() {
            let Some(_writing) = self.writing.try_lock() else { return };
            let frames = std::mem::take(&mut *self.waiting.lock());
            let is_sent = self.stream.send_now(&frames).is_ok_and(|sent| sent == frames.len());
            if !is_sent || self.stream.is_pending() {
                self.close();
            }
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
        let link = Arc::new(Link {
            stream,
            writing: Mutex::new(()),
            waiting: Mutex::default(),
            is_welcome: AtomicBool::new(false),
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::ids::SlabId;
    use annex_shared::wire::Frames;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    const MINUTE: Duration = Duration::from_secs(60);

    /// The janitor, and the agent's end, waited for each client that did not read its answers: two
    /// seconds for one after the other. With some hundred of them no lease ended any more, and the
    /// watchdog ended the agent.
    #[test]
    fn nobody_waits_for_a_client_that_does_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let controls = Arc::new(Controls::default());
        let (id, link) = controls.enter(Stream::plain(listener.accept().unwrap().0)).unwrap();
        link.welcome();
        let held: Vec<SlabId> = (0..200_000).map(SlabId).collect();
        let answer = Event::Renewed { held, free_slabs: 0, capacity_slabs: 0 };
        let answers = {
            let link = link.clone();
            std::thread::spawn(move || (0..40).try_for_each(|_| link.send(&answer)))
        };
        // More than sockets hold: it is in the middle of one.
        let until = Instant::now() + MINUTE;
        while link.writing.try_lock_for(Duration::from_millis(500)).is_some() {
            assert!(Instant::now() < until, "all of it was sent");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (told, is_told) = mpsc::channel();
        {
            let controls = controls.clone();
            std::thread::spawn(move || {
                controls.tell(id, &Event::Recall { slabs: vec![SlabId(7)], deadline_ms: 1 });
                controls.announce(&Event::Closing { grace_ms: 2 });
                told.send(()).unwrap();
            });
        }
        is_told.recv_timeout(MINUTE / 4).expect("nobody waits");
        // Who reads after all gets everything.
        client.set_read_timeout(Some(MINUTE)).unwrap();
        let mut frames = Frames::new(client);
        let mut others = Vec::new();
        while others.len() < 2 {
            match frames.read::<Event>().unwrap().expect("in time") {
                Event::Renewed { held, .. } => assert_eq!(held.len(), 200_000),
                other => others.push(other),
            }
        }
        assert!(matches!(others[..], [Event::Recall { deadline_ms: 1, .. }, Event::Closing { grace_ms: 2 }]));
        drop(frames);
        let _ = answers.join().unwrap();
    }
}
