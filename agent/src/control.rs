//! Control connections: one thread each, requests answered in order.
//!
//! A connection that sends something malformed, says nothing for too long or stops reading is
//! dropped, and the log says so (one line per host and 10 s, and how many more there were); that
//! costs its client nothing that a new connection within the TTL does not bring back.

use crate::controls::Link;
use crate::lease::{ConnectionId, Greeting, Holder, LeaseError, Machine, Superseded};
use crate::lender::Lender;
use crate::places::{Place, Role};
use annex_host::repeated;
use annex_identity::certificate::Facts;
use annex_identity::stream::{HandshakeError, Stream};
use annex_shared::ids::ClientId;
use annex_shared::wire::{Event, FrameError, Frames, Refusal, Request, VERSION, Welcome, is_served};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A peer has this long, in all, to send its preamble and its hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a peer may leave its answers unread once its socket is full.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// The least time without a request after which a connection is given up.
const LEAST_SILENCE: Duration = Duration::from_secs(30);

/// Longest host name and boot id taken from a client; they go to the log.
const NAME_LIMIT: usize = 255;

/// Bytes of a client's requests at most, but for the slabs that one lists.
const HELLO_LIMIT: u32 = 4096;

/// Bytes that a slab's number takes in a request at most.
const SLAB_LIMIT: u32 = 5;

/// Why a control connection ended, other than by its client closing it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("it sent no hello within {} s", HELLO_TIMEOUT.as_secs())]
    NoHello,
    #[error("it was refused: this donor {0}")]
    Refused(Refusal),
    #[error("all places are taken")]
    Crowded,
    #[error("it was silent for {} s", .0.as_secs())]
    Silent(Duration),
    #[error(transparent)]
    Superseded(#[from] Superseded),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("its socket failed: {0}")]
    Io(#[from] io::Error),
    #[error("its TLS session can't be used: {0}")]
    Tls(#[from] HandshakeError),
}

/// The agent's side of one control connection.
struct Session<'a> {
    lender: &'a Lender,
    place: &'a Place,
    boot_id: &'a str,
    id: ConnectionId,
    link: Arc<Link>,
}

/// Serves a control connection whose preamble has been read, until it ends. `hello_by` bounds the
/// wait for its hello.
pub fn serve(
    stream: Stream,
    hello_by: Instant,
    place: &Place,
    lender: &Lender,
    boot_id: &str,
) -> Result<(), ControlError> {
    stream.socket().set_nodelay(true)?;
    stream.socket().set_write_timeout(Some(SEND_TIMEOUT))?;
    let Some((id, link)) = lender.controls().enter(stream) else { return Ok(()) };
    let session = Session { lender, place, boot_id, id, link };
    let outcome = session.run(session.link.stream(), hello_by);
    session.link.close();
    lender.controls().leave(id);
    match outcome {
        Err(ControlError::Frame(FrameError::Closed)) => Ok(()),
        other => other,
    }
}

impl Session<'_> {
    fn run(&self, stream: &Stream, hello_by: Instant) -> Result<(), ControlError> {
        let mut opening = Frames::new(stream.until(hello_by)).at_most(HELLO_LIMIT);
        let hello = opening.read::<Request>()?.ok_or(ControlError::NoHello)?;
        if let Request::Hello { client, .. } = hello
            && !self.place.admit(client, Role::Control, || self.lender.holders())
        {
            return Err(ControlError::Crowded);
        }
        let tls = stream.session()?;
        let name = tls.as_ref().map(|tls| tls.peer.name.host.to_string());
        let client = match self.greet(hello, tls.as_ref().map(|tls| &tls.peer)) {
            Ok((client, welcome)) => {
                // Before the client knows of its session: then its data connections come.
                if let Some(tls) = tls {
                    self.lender.connections().lane_keys().enter(client, welcome.session, tls);
                }
                let sent = self.link.send(&Event::Welcome(welcome));
                self.link.welcome();
                sent.map(|()| client).inspect_err(|_| self.lender.disconnected(client, self.id))?
            }
            Err(refusal) => {
                self.link.send(&Event::Refused(refusal.clone()))?;
                return Err(ControlError::Refused(refusal));
            }
        };
        // The announcement of the end may have passed while the welcome was on its way.
        let outcome = match self.lender.is_closing() {
            true => self.link.send(&self.closing()).map_err(ControlError::Frame),
            false => Ok(()),
        };
        // The same goes for what is wanted back.
        let outcome = outcome.and_then(|()| {
            let mut recalls = self.lender.recalls(client).into_iter();
            recalls.try_for_each(|recall| self.link.send(&recall)).map_err(ControlError::Frame)
        });
        let outcome = outcome.and_then(|()| self.answer_all(client, name.as_deref(), opening.onto(stream)));
        self.lender.disconnected(client, self.id);
        outcome
    }

    fn closing(&self) -> Event {
        Event::Closing { grace_ms: self.lender.terms().grace.as_millis() as u64 }
    }

    fn greet(&self, hello: Request, peer: Option<&Facts>) -> Result<(ClientId, Welcome), Refusal> {
        let Request::Hello { version, client, host, boot_id, slab_size } = hello else {
            return Err(Refusal::Malformed("the first message was no hello".to_owned()));
        };
        let terms = self.lender.terms();
        if !is_served(version) {
            return Err(Refusal::Version { agent: VERSION as u16, client: version });
        }
        if host.len() > NAME_LIMIT || boot_id.len() > NAME_LIMIT {
            return Err(Refusal::Malformed(format!("a host name or boot id of over {NAME_LIMIT} bytes")));
        }
        if slab_size != 0 && slab_size != terms.slab_size {
            return Err(Refusal::SlabSize { agent: terms.slab_size, client: slab_size });
        }
        // Who has pages here comes back to them, whatever has become of `[access]`.
        if let Err(refusal) = terms.share_of(peer.map(|peer| peer.name.host.as_str()))
            && !self.lender.holders().contains(&client)
        {
            return Err(refusal);
        }
        let is_same_host = boot_id == self.boot_id;
        let shm_socket = terms.shm_socket.as_ref().filter(|_| is_same_host && self.lender.offers_shm());
        let holder = peer.map(|peer| Holder { name: peer.name.to_string(), key: peer.key });
        let from = holder.as_ref().map_or_else(|| format!("{host:?}"), |holder| format!("{host:?}, {}", holder.name));
        let machine = Machine { host, boot_id, holder };
        let Greeting { session, held, resumed, .. } = self.lender.hello(client, machine, self.id)?;
        // A client's id is what it says: who says another one each time is known by its address.
        let of = match peer {
            Some(peer) => peer.name.to_string(),
            None => {
                self.link.stream().socket().peer_addr().map_or_else(|_| String::new(), |addr| addr.ip().to_string())
            }
        };
        match resumed {
            Some(earlier) => repeated!(INFO, "a client said hello and goes on" of &of,
                "client {client} on {from} said hello; its {} slabs of {earlier} go on", held.len()),
            None => repeated!(INFO, "a client said hello" of &of,
                "client {client} on {from} said hello; it holds {} slabs", held.len()),
        }
        let welcome = Welcome {
            version: VERSION as u16,
            name: terms.name.clone(),
            incarnation: self.lender.incarnation(),
            session,
            slab_size: terms.slab_size,
            capacity_slabs: terms.capacity_slabs,
            free_slabs: self.lender.free(),
            lease_ttl_ms: terms.lease_ttl.as_millis() as u64,
            labels: terms.labels.clone(),
            shm_socket: shm_socket.map(|p| p.display().to_string()),
            verbs: self.lender.verbs_offer(),
            held,
            resumed,
        };
        Ok((client, welcome))
    }

    fn answer_all(
        &self,
        client: ClientId,
        name: Option<&str>,
        mut frames: Frames<&Stream>,
    ) -> Result<(), ControlError> {
        let silence = LEAST_SILENCE.max(self.lender.terms().lease_ttl * 3);
        frames.stream().socket().set_read_timeout(Some(silence))?;
        // The longest request returns all slabs that there are.
        frames = frames.at_most(HELLO_LIMIT + SLAB_LIMIT * self.lender.slabs());
        loop {
            let request = frames.read::<Request>()?.ok_or(ControlError::Silent(silence))?;
            let answer = self.answer(client, name, request)?;
            self.link.send(&answer)?;
            if let Event::Refused(refusal @ Refusal::Malformed(_)) = answer {
                return Err(ControlError::Refused(refusal));
            }
        }
    }

    fn answer(&self, client: ClientId, name: Option<&str>, request: Request) -> Result<Event, Superseded> {
        Ok(match request {
            Request::Hello { .. } => Event::Refused(Refusal::Malformed("a second hello".to_owned())),
            Request::Lease { count } => match self.lender.lease(client, self.id, name, count) {
                Ok(slabs) => Event::Leased { slabs },
                Err(LeaseError::Refused(refusal)) => Event::Refused(refusal),
                Err(LeaseError::Superseded(e)) => return Err(e),
                Err(LeaseError::Cleaning) => {
                    Event::Refused(Refusal::Full { capacity: self.lender.terms().capacity_slabs })
                }
            },
            Request::Renew => Event::Renewed {
                held: self.lender.renew(client, self.id)?,
                free_slabs: self.lender.free(),
                capacity_slabs: self.lender.terms().capacity_slabs,
            },
            Request::Return { slabs } => {
                self.lender.give_back(client, self.id, &slabs)?;
                Event::Returned
            }
        })
    }
}
