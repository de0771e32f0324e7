//! A connection's socket. Shared: while the KV API's thread reads, an I/O thread may send.

use bytes::{BufMut, BytesMut};
use std::io::{self, ErrorKind, IoSlice};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// Bytes of one read: copying more takes long.
const AT_ONCE: usize = 256 << 10;

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(context),
            Stream::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    /// Reads into the room that there is, [`AT_ONCE`] at a time. A read that does not fill that has
    /// emptied the socket: the next one waits for the kernel's word, without asking for nothing
    /// first.
    pub fn poll_read(&self, into: &mut BytesMut, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_readable(context))?;
            let room = (into.capacity() - into.len()).min(AT_ONCE);
            let mut into = into.limit(AT_ONCE);
            let read = match self {
                Stream::Tcp(stream) => stream.try_read_buf(&mut into),
                Stream::Unix(stream) => stream.try_read_buf(&mut into),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => {
                    if read.as_ref().is_ok_and(|count| (1..room).contains(count)) {
                        self.drained();
                    }
                    return Poll::Ready(read);
                }
            }
        }
    }

    /// Whatever is there to be read from now on has yet to be told of.
    fn drained(&self) {
        let nothing = || Err::<(), _>(ErrorKind::WouldBlock.into());
        _ = match self {
            Stream::Tcp(stream) => stream.try_io(Interest::READABLE, nothing),
            Stream::Unix(stream) => stream.try_io(Interest::READABLE, nothing),
        };
    }

    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_write_ready(context),
            Stream::Unix(stream) => stream.poll_write_ready(context),
        }
    }

    pub fn poll_write(&self, slices: &[IoSlice<'_>], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_writable(context))?;
            match self.try_write(slices) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// Writes what the socket takes at once.
    pub fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, slices) {
            // The kernel has less to do for one.
            (Stream::Tcp(stream), [slice]) => stream.try_write(slice),
            (Stream::Tcp(stream), _) => stream.try_write_vectored(slices),
            (Stream::Unix(stream), _) => stream.try_write_vectored(slices),
        }
    }
}
