//! Replies that an I/O thread sends: a [`Parcel`] is on its way, and comes back to its [`Socket`].

use super::stream::Stream;
use crate::resp::{Output, PIECES};
use parking_lot::Mutex;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A client's socket, and where its parcel comes back to.
pub struct Socket {
    pub stream: Stream,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    back: Option<(Output, io::Result<()>)>,
    /// The task waits for it.
    is_awaited: bool,
}

/// Replies on their way to the socket, in whoever's hands.
pub struct Parcel {
    socket: Arc<Socket>,
    output: Output,
    task: Waker,
}

impl Socket {
    pub fn new(stream: Stream) -> Arc<Socket> {
        Arc::new(Socket { stream, desk: Mutex::default() })
    }

    /// A parcel of this connection. The task is told of its end if that `is_awaited`, or if it was
    /// not sent whole.
    #[inline]
    pub fn parcel(self: &Arc<Self>, output: Output, task: Waker, is_awaited: bool) -> Parcel {
        *self.desk.lock() = Desk { is_awaited, ..Desk::default() };
        Parcel { socket: self.clone(), output, task }
    }

    /// What was not sent of the parcel, and how it ended. `None`: it is still away; if the task
    /// `waits` for it, it is told.
    #[inline]
    pub fn take_back(&self, waits: bool) -> Option<(Output, io::Result<()>)> {
        let mut desk = self.desk.lock();
        let back = desk.back.take();
        if back.is_none() {
            desk.is_awaited |= waits;
        }
        back
    }
}

impl Parcel {
    /// Writes what the socket takes, by so many writes at most, and puts the rest back.
    pub fn deliver(self, most: usize) {
        let Parcel { socket, mut output, task } = self;
        let mut sent = Ok(());
        for _ in 0..most {
            if output.is_empty() || sent.is_err() {
                break;
            }
            match write(&mut output, |slices| Poll::Ready(socket.stream.try_write(slices))) {
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::WouldBlock => break,
                Poll::Ready(written) => sent = written,
                Poll::Pending => break,
            }
        }
        let is_sent = output.is_empty() && sent.is_ok();
        let mut desk = socket.desk.lock();
        desk.back = Some((output, sent));
        let is_awaited = desk.is_awaited || !is_sent;
        drop(desk);
        if is_awaited {
            task.wake();
        }
    }
}

/// One write of what comes first.
pub fn write(output: &mut Output, by: impl FnOnce(&[IoSlice<'_>]) -> Poll<io::Result<usize>>) -> Poll<io::Result<()>> {
    let mut slices = [IoSlice::new(&[]); PIECES];
    let count = output.slices(&mut slices);
    by(&slices[..count]).map(|written| match written? {
        0 => Err(ErrorKind::WriteZero.into()),
        written => {
            output.advance(written);
            Ok(())
        }
    })
}
