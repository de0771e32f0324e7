//! A connection between two hosts, plain TCP or TLS 1.3, for blocking sockets and for such that are
//! not.
//!
//! Plain, it is the socket. With TLS the bytes go through rustls in the thread that reads or
//! writes: no thread is added. One thread may read while another one writes.
//!
//! What holds with TLS:
//! - No byte comes out that TLS has not authenticated. An error is the end: callers drop it.
//! - A read looks at the socket once at most. If what came is no whole record it ends with
//!   [`io::ErrorKind::Interrupted`], so that a caller with a deadline looks at its clock.
//! - A read that gives fewer bytes than there was room for has left nothing behind but part of a
//!   record: a caller may wait for the socket.
//! - An end of the connection without a word (`close_notify`) is an end. Whoever can cut a
//!   connection can do that at any byte: the protocols above know by their frames what is whole.
//! - A write that fails has perhaps sent half a record: the connection is of no use any more.

use crate::certificate::{CertificateError, Facts};
use crate::exporter::{Binding, LaneKey};
use crate::tls::{SESSION, any_server, check_protocol, peer, reason};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, sendmsg};
use parking_lot::{Mutex, MutexGuard};
use rustls::{ClientConfig, ClientConnection, Connection, Error, ServerConnection};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest record of TLS 1.3 with its header, in bytes.
const RECORD: usize = 5 + (16 << 10) + 256;
/// How long, and how many bytes, a peer that was refused gets to read why.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: usize = 64 << 10;

/// There is no TLS with the peer. `Display` follows "the TLS handshake failed: ".
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the peer did not go on with it in time")]
    TimedOut,
    #[error("the peer ended the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{}", reason(.0))]
    Tls(#[from] Error),
    #[error(transparent)]
    Peer(#[from] CertificateError),
}

/// TLS ended the connection. It stands inside an [`io::Error`], for people to read.
#[derive(Debug, thiserror::Error)]
#[error("{}", reason(.0))]
pub struct TlsError(pub Error);

/// See the module's header.
pub struct Stream {
    socket: TcpStream,
    tls: Option<Box<Tls>>,
}

struct Tls {
    session: Mutex<Connection>,
    /// Locked by whoever reads, before `session`.
    incoming: Mutex<Incoming>,
}

/// `bytes[start..end]` were received and not given to TLS yet.
struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// What a control session tells of itself once its handshake is over.
pub struct Session {
    /// Data connections show that they belong to it by this key.
    pub key: LaneKey,
    pub peer: Facts,
}

impl Stream {
    /// Without TLS.
    pub fn plain(socket: TcpStream) -> Stream {
        Stream { socket, tls: None }
    }

    /// An agent's side of a handshake, which ends until then: see [`crate::hello`].
    ///
    /// # Errors
    /// The peer was told why, as far as TLS has words for it.
    pub(crate) fn accept(socket: TcpStream, session: ServerConnection, by: Instant) -> Result<Stream, HandshakeError> {
        Stream::shake_hands(&socket, Connection::Server(session), by)
            .inspect_err(|_| bid_farewell(&socket))
            .map(|tls| Stream { socket, tls: Some(Box::new(tls)) })
    }

    /// A client's side. That it succeeds does not mean that the agent accepts this host's
    /// certificate: an agent that does not answers nothing but an alert.
    pub fn connect(socket: TcpStream, config: &Arc<ClientConfig>, by: Instant) -> Result<Stream, HandshakeError> {
        let session = Connection::Client(ClientConnection::new(config.clone(), any_server())?);
        let tls = Stream::shake_hands(&socket, session, by)?;
        Ok(Stream { socket, tls: Some(Box::new(tls)) })
    }

    fn shake_hands(socket: &TcpStream, mut session: Connection, by: Instant) -> Result<Tls, HandshakeError> {
        loop {
            while session.wants_write() {
                socket.set_write_timeout(Some(left(by)?))?;
                session.write_tls(&mut &*socket).map_err(of_time)?;
            }
            if !session.is_handshaking() {
                break;
            }
            socket.set_read_timeout(Some(left(by)?))?;
            match session.read_tls(&mut &*socket) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(of_time(e)),
            }
            if let Err(error) = session.process_new_packets() {
                // The peer may be gone: then there is nobody to tell.
                let _ = session.write_tls(&mut &*socket);
                return Err(error.into());
            }
        }
        check_protocol(&session, SESSION)?;
        let incoming = Incoming { bytes: vec![0; RECORD].into_boxed_slice(), start: 0, end: 0 };
        Ok(Tls { session: Mutex::new(session), incoming: Mutex::new(incoming) })
    }

    /// The socket beneath, for its time limits, to wait for it and to shut it down. With TLS nobody
    /// else reads or writes it.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads until a deadline, however slowly the bytes trickle in.
    pub fn until(&self, by: Instant) -> Until<'_> {
        Until { stream: self, by }
    }

    /// What a control session gives its data connections; `None` without TLS.
    pub fn session(&self) -> Result<Option<Session>, HandshakeError> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let session = tls.session.lock();
        let key = match &*session {
            Connection::Client(client) => LaneKey::of(client),
            Connection::Server(server) => LaneKey::of(server),
        };
        Ok(Some(Session { key: key?, peer: peer(&session)? }))
    }

    /// What tells this TLS session from every other; `None` without TLS.
    pub fn binding(&self) -> Result<Option<Binding>, Error> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let binding = match &*tls.session.lock() {
            Connection::Client(client) => Binding::of(client),
            Connection::Server(server) => Binding::of(server),
        };
        binding.map(Some)
    }

    /// Takes what can be taken without waiting, also from a blocking socket; how many bytes.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send_pieces_now(&[IoSlice::new(&bytes[sent..])])? {
                0 => break,
                n => sent += n,
            }
            if self.is_pending() {
                break;
            }
        }
        Ok(sent)
    }

    /// The same for several pieces, which go as one. It may take less than it could: 0 means that
    /// it can take nothing now.
    pub fn send_pieces_now(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return nothing_if_full(Now(&self.socket).write_vectored(pieces)) };
        let mut session = tls.session.lock();
        push_now(&mut session, &self.socket)?;
        if session.wants_write() {
            return Ok(0);
        }
        let taken = session.writer().write_vectored(pieces)?;
        push_now(&mut session, &self.socket)?;
        Ok(taken)
    }

    /// True while bytes that were taken wait in TLS for room in the socket. `flush` waits for it,
    /// and [`Stream::send_pieces_now`] goes on with them, also if it is given none.
    pub fn is_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.lock().wants_write())
    }
}

/// See [`Stream::until`].
pub struct Until<'a> {
    stream: &'a Stream,
    by: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.socket.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(buffer)
    }
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Stream {
        Stream::plain(socket)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?}, {})", self.socket, if self.is_tls() { "TLS" } else { "plain" })
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return (&self.socket).read(buffer) };
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut incoming = tls.incoming.lock();
        let (n, is_over) = tls.take(&mut incoming, buffer, &self.socket)?;
        if n > 0 || is_over {
            return Ok(n);
        }
        // Others may write meanwhile. If nothing comes there is nothing.
        (incoming.start, incoming.end) = (0, 0);
        incoming.end = (&self.socket).read(&mut incoming.bytes)?;
        if incoming.end == 0 {
            return Ok(0);
        }
        match tls.take(&mut incoming, buffer, &self.socket)? {
            (0, false) => Err(ErrorKind::Interrupted.into()),
            (n, _) => Ok(n),
        }
    }
}

impl Write for &Stream {
    /// For blocking sockets: all that is taken is sent.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return (&self.socket).write(bytes) };
        let mut session = tls.session.lock();
        push(&mut session, &self.socket)?;
        let taken = session.writer().write(bytes)?;
        push(&mut session, &self.socket)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| push(&mut tls.session.lock(), &self.socket))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl Tls {
    /// Fills the buffer from what was received, as far as that goes: how many bytes, and whether
    /// the peer has said that none will follow.
    fn take(&self, incoming: &mut Incoming, buffer: &mut [u8], socket: &TcpStream) -> io::Result<(usize, bool)> {
        let mut session: MutexGuard<'_, Connection> = self.session.lock();
        let mut taken = 0;
        loop {
            match session.reader().read(&mut buffer[taken..]) {
                Ok(0) => return Ok((taken, true)),
                Ok(n) => taken += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if taken == buffer.len() || incoming.start == incoming.end {
                return Ok((taken, false));
            }
            let mut rest = &incoming.bytes[incoming.start..incoming.end];
            incoming.start += session.read_tls(&mut rest)?;
            let processed = session.process_new_packets();
            // Alerts, and answers to a peer that changes its keys. What does not go now goes with
            // the next write.
            let pushed = push_now(&mut session, socket);
            processed.map_err(|e| io::Error::new(ErrorKind::InvalidData, TlsError(e)))?;
            pushed?;
        }
    }
}

/// Sends all that TLS has to send.
fn push(session: &mut Connection, mut socket: &TcpStream) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(&mut socket) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sends what goes without waiting.
fn push_now(session: &mut Connection, socket: &TcpStream) -> io::Result<()> {
    while session.wants_write() {
        if nothing_if_full(session.write_tls(&mut Now(socket)))? == 0 {
            return Ok(());
        }
    }
    Ok(())
}

fn nothing_if_full(sent: io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

/// A socket that is never waited for.
struct Now<'a>(&'a TcpStream);

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            match sendmsg::<()>(self.0.as_raw_fd(), pieces, &[], flags, None) {
                Err(Errno::EINTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn left(by: Instant) -> Result<Duration, HandshakeError> {
    let left = by.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(HandshakeError::TimedOut) } else { Ok(left) }
}

pub(crate) fn of_time(error: io::Error) -> HandshakeError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => HandshakeError::TimedOut,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => HandshakeError::Closed,
        _ => HandshakeError::Io(error),
    }
}

/// Lets a peer that was refused read why. A socket that is closed while bytes of the peer lie in it
/// resets the connection, and the alert is lost with it.
pub(crate) fn bid_farewell(mut socket: &TcpStream) {
    let until = Instant::now() + FAREWELL;
    let (mut dropped, mut buffer) = (0, [0; 4096]);
    let _ = socket.shutdown(Shutdown::Write);
    while let Ok(left) = left(until)
        && dropped < FAREWELL_BYTES
        && socket.set_read_timeout(Some(left)).is_ok()
    {
        match socket.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(n) => dropped += n,
        }
    }
}

#[cfg(test)]
mod tests;
