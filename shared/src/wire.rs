//! The control protocol between annexd and annex-agent.
//!
//! One TCP connection, opened by the client. Each message is a frame: `u32` length (little-endian,
//! of what follows, at most [`MAX_FRAME`]) and the postcard encoding of a [`Request`] or an
//! [`Event`]. A client sends requests; the agent answers each in order, and may send `Closing` and
//! `Recall` at any time between answers. [`Frames`] reads them, [`write_frame`] writes them; both
//! are blocking code over any `Read` and `Write`.
//!
//! The first bytes of *every* connection to the agent's port are a
//! [`Preamble`](crate::preamble::Preamble), which says what it carries. Data connections
//! (`Role::Data`) then speak `fabric::tcp`'s frames.

use crate::ids::{ClientId, Incarnation, Rkey, SessionKey, SlabId};
use crate::printable::{received, received_map, received_option};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};

/// The largest control frame, in bytes.
pub const MAX_FRAME: u32 = 1 << 20;

/// Default TCP port of an agent (control and data).
pub const AGENT_PORT: u16 = 7411;

/// The versions of this protocol, one line of history each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u16)]
pub enum Version {
    /// First: hello, lease, renew, return; shm and tcp.
    V1 = 1,
    /// `Welcome` says what an agent that was restarted still has; `Recall`; refusal `Draining`.
    V2 = 2,
    /// RDMA: role `Verbs`; `Welcome` says whether the agent offers it.
    V3 = 3,
    /// A key's upper half is its lease's number, which stays when the agent is restarted. The
    /// messages are those of V3.
    V4 = 4,
}

/// The version this build speaks.
pub const VERSION: Version = Version::V4;

/// The oldest version that an agent of this build serves: to such a client a key's halves mean
/// nothing, as before. An older agent is refused, since its keys do not say which lease they are
/// of: agents are upgraded first.
pub const OLDEST: Version = Version::V3;

/// Whether an agent of this build serves clients of that version.
pub fn is_served(version: u16) -> bool {
    (OLDEST as u16..=VERSION as u16).contains(&version)
}

/// What a connection is for: its first 16 bytes are `MAGIC`, the version (`u16`), the role (`u16`)
/// and 4 bytes of zeros, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Role {
    Control = 1,
    /// `fabric::tcp` operations. Followed by client id (8 bytes), incarnation (8) and session key
    /// (16).
    Data = 2,
    /// On the agent's Unix socket: fetch memfds for `fabric::shm`. Followed by the same proof.
    Shm = 3,
    /// Agree on queue pairs and registered slabs for `fabric::verbs`. Followed by the same proof.
    Verbs = 4,
    /// As `Data` and `Verbs`, inside TLS. Followed by a proof that holds no secret.
    SecureData = 5,
    SecureVerbs = 6,
}

/// Starts every connection: "annex" and three zeros.
pub const MAGIC: [u8; 8] = *b"annex\0\0\0";

/// From client to agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// First on a control connection; answered by `Welcome` or `Refused`.
    Hello {
        version: u16,
        client: ClientId,
        /// The client's host name, for the agent's listings.
        #[serde(deserialize_with = "received")]
        host: String,
        /// The kernel's boot id: an agent on the same boot offers `shm`.
        boot_id: String,
        /// Bytes per slab the client expects; 0 = whatever the agent has.
        slab_size: u64,
    },
    /// Lend me up to `count` slabs; answered by `Leased` (maybe fewer) or `Refused`.
    Lease { count: u32 },
    /// I still need all my leases; answered by `Renewed`.
    Renew,
    /// I no longer need these; answered by `Returned`.
    Return { slabs: Vec<SlabId> },
}

/// From agent to client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    Welcome(Welcome),
    Leased {
        slabs: Vec<Lease>,
    },
    Renewed {
        /// Slabs held under this client id, by the agent's books: what the client doesn't find here
        /// is lost.
        held: Vec<SlabId>,
        free_slabs: u32,
        capacity_slabs: u32,
    },
    Returned,
    Refused(Refusal),
    /// The agent is going away on purpose: after `grace_ms` its memory is gone.
    Closing {
        grace_ms: u64,
    },
    /// The agent wants these slabs back: what is not returned within `deadline_ms` from now is
    /// revoked. A later one for the same slab replaces the deadline.
    Recall {
        slabs: Vec<SlabId>,
        deadline_ms: u64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u16,
    /// The agent's name (its host name unless configured).
    #[serde(deserialize_with = "received")]
    pub name: String,
    pub incarnation: Incarnation,
    /// Proves this client on data connections.
    pub session: SessionKey,
    /// Bytes per slab.
    pub slab_size: u64,
    pub capacity_slabs: u32,
    pub free_slabs: u32,
    /// A lease not renewed for this long is over, in milliseconds.
    pub lease_ttl_ms: u64,
    /// Failure-domain labels.
    #[serde(deserialize_with = "received_map")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// Path of the agent's Unix socket if client and agent run on the same boot of the same host.
    #[serde(deserialize_with = "received_option")]
    pub shm_socket: Option<String>,
    /// Whether it offers RDMA, as far as it can tell now.
    pub verbs: VerbsOffer,
    /// Slabs this client still holds from an earlier connection in this incarnation, or in the
    /// `resumed` one.
    pub held: Vec<Lease>,
    /// The agent was restarted since this client last took part, and took its memory over: every
    /// `held` slab has the bytes that it had in this earlier incarnation, the last one the client
    /// is known to have taken up, under a new key. What was held then and is not in `held` is gone,
    /// and so is what is in it under a key of another lease ([`Rkey::goes_on_from`]): the client
    /// had not heard yet that the slab was lent to it anew. Told in every welcome until the client
    /// leases again. `None`: nothing was taken over.
    pub resumed: Option<Incarnation>,
}

/// Whether an agent offers RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VerbsOffer {
    /// Over this device, port and GID, for people to read.
    Over(#[serde(deserialize_with = "received")] String),
    /// For this reason not.
    No(#[serde(deserialize_with = "received")] String),
}

impl std::fmt::Display for VerbsOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (VerbsOffer::Over(text) | VerbsOffer::No(text)) = self;
        f.write_str(text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub slab: SlabId,
    pub rkey: Rkey,
}

/// Why an agent says no. `Display` is what the user reads, after the donor's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    #[error("speaks protocol version {agent}, this annexd speaks {client}: upgrade the older one")]
    Version { agent: u16, client: u16 },
    #[error("has no slab left to lend ({capacity} slabs, all lent)")]
    Full { capacity: u32 },
    #[error("lends at most {limit} slabs to one client (per_client in its configuration)")]
    ClientLimit { limit: u32 },
    #[error("{}", host_pressure(*.available_mib, *.headroom_mib))]
    HostPressure { available_mib: u64, headroom_mib: u64 },
    #[error("uses slabs of {agent} bytes, this annexd is configured for {client}: make slab_size equal")]
    SlabSize { agent: u64, client: u64 },
    #[error("is shutting down")]
    Closing,
    #[error("{}", client_in_use(host, *.ends_in_s))]
    ClientInUse {
        #[serde(deserialize_with = "received")]
        host: String,
        ends_in_s: u64,
    },
    #[error("did not understand the request: {0}")]
    Malformed(#[serde(deserialize_with = "received")] String),
    #[error("is being drained for maintenance")]
    Draining,
    #[error("does not lend to {name}: [access] in its configuration names who may borrow")]
    NotAllowed {
        #[serde(deserialize_with = "received")]
        name: String,
    },
    #[error("has lent memory to this client under a certificate: give annexd ca, cert and key in [tls] again")]
    NeedsTls,
}

/// More than a slab could be had, and was not: what keeps the agent from it is known there.
fn host_pressure(available_mib: u64, headroom_mib: u64) -> String {
    const LARGEST_SLAB_MIB: u64 = 1024;
    if available_mib > headroom_mib + LARGEST_SLAB_MIB {
        return format!(
            "gets no memory for another slab, though its host has {available_mib} MiB available: annex-agent doctor there says \
             why"
        );
    }
    format!(
        "can spare no more memory now: {available_mib} MiB available, {headroom_mib} MiB of them kept for its own host"
    )
}

/// `host` is a machine's name or, where clients show certificates, that of the certificate.
fn client_in_use(host: &str, ends_in_s: u64) -> String {
    if host.starts_with("annex://") {
        return format!(
            "has lent memory to this client id under the name {host}, and the certificate shown now has another one: put \
             that certificate back within {ends_in_s} s, else what lies there is lost; if this is another machine, give \
             each its own id"
        );
    }
    format!(
        "knows this client id from another machine ({host}): give each machine its own id; if that machine is gone, its \
         claim ends {ends_in_s} s from now"
    )
}

/// A control frame could not be read or written. After any of these the connection is of no further
/// use.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer closed between two frames: the orderly end of a connection.
    #[error("the peer closed the connection")]
    Closed,
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    #[error("a frame of {len} bytes is over the limit of {most}")]
    TooLong { len: usize, most: u32 },
    #[error("a frame could not be decoded: {0}")]
    Malformed(postcard::Error),
    #[error("a message could not be encoded: {0}")]
    Unencodable(postcard::Error),
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
}

/// A message as the bytes of one frame.
pub fn encode_frame<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(FrameError::Unencodable)?;
    let len = frame.len() - 4;
    match u32::try_from(len) {
        Ok(n) if n <= MAX_FRAME => frame[..4].copy_from_slice(&n.to_le_bytes()),
        _ => return Err(FrameError::TooLong { len, most: MAX_FRAME }),
    }
    Ok(frame)
}

/// Writes one message, whole.
pub fn write_frame<T: Serialize>(out: &mut impl Write, message: &T) -> Result<(), FrameError> {
    let frame = encode_frame(message)?;
    out.write_all(&frame).and_then(|()| out.flush()).map_err(FrameError::Io)
}

/// Reads messages. Half a frame is kept when a read times out, so that a socket with a read
/// time-out can be asked again.
#[derive(Debug)]
pub struct Frames<R> {
    input: R,
    buffer: Vec<u8>,
    most: u32,
}

impl<R: Read> Frames<R> {
    pub fn new(input: R) -> Frames<R> {
        Frames { input, buffer: Vec::new(), most: MAX_FRAME }
    }

    /// The stream beneath.
    pub fn stream(&self) -> &R {
        &self.input
    }

    /// Goes on reading from another stream, with what has been read already.
    pub fn onto<S: Read>(self, input: S) -> Frames<S> {
        Frames { input, buffer: self.buffer, most: self.most }
    }

    /// Refuses frames of more bytes than that, or than [`MAX_FRAME`].
    pub fn at_most(self, most: u32) -> Frames<R> {
        Frames { most: most.min(MAX_FRAME), ..self }
    }

    /// The next message; `None` if the stream's read time-out passed first (or it would block). A
    /// time-out is for each read: a peer that sends byte by byte has it for each byte.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        next(&mut self.buffer, self.most, &mut self.input)
    }

    /// The same, read through what `through` makes of the stream: something with a deadline, say.
    pub fn read_through<'a, T: DeserializeOwned, S: Read>(
        &'a mut self,
        through: impl FnOnce(&'a R) -> S,
    ) -> Result<Option<T>, FrameError> {
        next(&mut self.buffer, self.most, &mut through(&self.input))
    }
}

fn next<T: DeserializeOwned>(buffer: &mut Vec<u8>, most: u32, input: &mut impl Read) -> Result<Option<T>, FrameError> {
    loop {
        if let Some(body) = whole_frame(buffer, most)? {
            let (message, rest) = postcard::take_from_bytes(&buffer[4..body]).map_err(FrameError::Malformed)?;
            if !rest.is_empty() {
                return Err(FrameError::Malformed(postcard::Error::DeserializeBadEncoding));
            }
            buffer.drain(..body);
            return Ok(Some(message));
        }
        let mut chunk = [0; 4096];
        match input.read(&mut chunk) {
            Ok(0) if buffer.is_empty() => return Err(FrameError::Closed),
            Ok(0) => return Err(FrameError::Truncated),
            Ok(n) => buffer.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
            Err(e) => return Err(FrameError::Io(e)),
        }
    }
}

/// The length of the first frame with its header, once all of it is here. A length over the limit
/// is refused before a byte of it is awaited.
fn whole_frame(buffer: &[u8], most: u32) -> Result<Option<usize>, FrameError> {
    let Some(header) = buffer.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*header);
    if len > most {
        return Err(FrameError::TooLong { len: len as usize, most });
    }
    let end = 4 + len as usize;
    Ok((buffer.len() >= end).then_some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes one read at a time, with a time-out between any two.
    struct Slow(Vec<u8>, bool);

    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 && !self.0.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let n = self.0.len().min(1);
            buf[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }

    #[test]
    fn a_frame_survives_time_outs_at_every_byte() {
        let mut bytes = encode_frame(&Request::Lease { count: 7 }).unwrap();
        bytes.extend(encode_frame(&Request::Return { slabs: vec![SlabId(3)] }).unwrap());
        let mut frames = Frames::new(Slow(bytes, false));
        let mut seen = Vec::new();
        let end = loop {
            match frames.read::<Request>() {
                Ok(Some(message)) => seen.push(message),
                Ok(None) => {}
                Err(e) => break e,
            }
        };
        assert!(matches!(end, FrameError::Closed), "{end}");
        assert!(
            matches!(&seen[..], [Request::Lease { count: 7 }, Request::Return { slabs }] if slabs[..] == [SlabId(3)])
        );
    }

    /// They went to logs and terminals as they came.
    #[test]
    fn what_others_call_themselves_is_printable_once_it_is_here() {
        let (evil, shown) = ("a\x1b[2J\nb".to_owned(), r"a\u{1b}[2J\nb");
        let hello = Request::Hello {
            version: 4,
            client: ClientId(1),
            host: evil.clone(),
            boot_id: String::new(),
            slab_size: 0,
        };
        let hello = Frames::new(&encode_frame(&hello).unwrap()[..]).read::<Request>().unwrap();
        assert!(matches!(&hello, Some(Request::Hello { host, .. }) if host == shown), "{hello:?}");
        for said in [Refusal::ClientInUse { host: evil.clone(), ends_in_s: 1 }, Refusal::Malformed(evil)] {
            let frame = encode_frame(&Event::Refused(said)).unwrap();
            let heard = Frames::new(&frame[..]).read::<Event>().unwrap();
            assert!(
                matches!(&heard, Some(Event::Refused(refusal)) if refusal.to_string().contains(shown)),
                "{heard:?}"
            );
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_from_its_header() {
        let mut frames = Frames::new(&[0xff, 0xff, 0xff, 0x7f][..]);
        assert!(matches!(frames.read::<Request>(), Err(FrameError::TooLong { len: 0x7fff_ffff, .. })));
    }

    #[test]
    fn half_a_frame_trailing_bytes_and_nonsense_are_errors() {
        let whole = encode_frame(&Request::Renew).unwrap();
        assert!(matches!(Frames::new(&whole[..4]).read::<Request>(), Err(FrameError::Truncated)));
        let padded = [2, 0, 0, 0, 2, 0];
        assert!(matches!(Frames::new(&padded[..]).read::<Request>(), Err(FrameError::Malformed(_))));
        let unknown = [1, 0, 0, 0, 99];
        assert!(matches!(Frames::new(&unknown[..]).read::<Request>(), Err(FrameError::Malformed(_))));
    }
}
