//! What a client is still to be sent, and who sends it: the connection's own task, or an I/O
//! thread.
//!
//! Whatever is due goes either way as a whole. While a [`Parcel`](crate::server::Parcel) is with an
//! I/O thread, replies are gathered for the next one. It comes back when it is sent, or when the
//! socket takes no more: the rest is sent by the task then, which can wait for the client. Nobody
//! is told of a parcel that was sent, unless there is something that waits for it.

use crate::reply::{Protocol, Reply};
use crate::resp::Output;
use crate::server::{IoThreads, Socket, Stream, write};
use crate::turn;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A larger parcel's memory is counted until it is told that it was sent.
const LARGE: usize = 64 << 10;

pub struct Outbox {
    socket: Arc<Socket>,
    output: Output,
    /// Bytes of the parcel that has not come back.
    away: usize,
    /// A buffer that came back empty.
    spare: Output,
    /// The client does not take what it is sent: that is waited for here.
    is_stuck: bool,
}

impl Outbox {
    pub fn new(stream: Stream) -> Outbox {
        Outbox {
            socket: Socket::new(stream),
            output: Output::default(),
            away: 0,
            spare: Output::default(),
            is_stuck: false,
        }
    }

    pub fn stream(&self) -> &Stream {
        &self.socket.stream
    }

    pub fn push(&mut self, reply: &Reply, protocol: Protocol) {
        self.output.push(reply, protocol);
    }

    /// The head of a value that is to follow in pieces.
    pub fn push_head(&mut self, bytes: usize) {
        self.output.push_head(bytes);
    }

    pub fn push_piece(&mut self, piece: Bytes) {
        self.output.push_piece(piece);
    }

    /// What stands behind the last piece.
    pub fn push_end(&mut self) {
        self.output.push_end();
    }

    /// The same with one that may be an array of very many.
    pub async fn push_in_turns(&mut self, reply: Reply, protocol: Protocol) {
        let Reply::Array(items) = reply else { return self.push(&reply, protocol) };
        self.output.push_array(items.len());
        let mut open = vec![items.into_iter()];
        let mut pushed = 0;
        while let Some(items) = open.last_mut() {
            match items.next() {
                Some(Reply::Array(items)) => {
                    self.output.push_array(items.len());
                    open.push(items.into_iter());
                }
                Some(reply) => self.output.push(&reply, protocol),
                None => drop(open.pop()),
            }
            pushed += 1;
            if pushed % turn::STEP == 0 {
                turn::pause().await;
            }
        }
    }

    /// Bytes that nobody has begun to send.
    pub fn gathered(&self) -> usize {
        self.output.len()
    }

    /// Bytes that are not sent, as far as is known.
    pub fn unsent(&self) -> usize {
        self.output.len() + self.away
    }

    /// Bytes of memory for these.
    pub fn memory(&self) -> usize {
        self.output.memory() + self.away
    }

    /// All has been sent, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.output.is_empty() && self.away == 0
    }

    /// Large values that wait to be sent.
    pub fn pieces(&self) -> usize {
        self.output.pieces()
    }

    /// Gives back what an idle connection needs no memory for.
    pub fn shrink(&mut self) {
        self.spare = Output::default();
        self.output.shrink();
    }

    /// Takes back what was handed over, if that is over: with how many bytes of it were not sent.
    /// `None`: it is not; the task is told when it is, if it waits for that.
    pub fn settle(&mut self, waits: bool) -> io::Result<Option<usize>> {
        if self.away == 0 {
            return Ok(Some(0));
        }
        let Some((rest, sent)) = self.socket.take_back(waits || !self.output.is_empty()) else {
            return Ok(None);
        };
        self.away = 0;
        sent?;
        let unsent = rest.len();
        if unsent == 0 {
            self.spare = rest;
        } else {
            self.is_stuck = true;
            self.output.put_first(rest);
        }
        Ok(Some(unsent))
    }

    /// Sends what is gathered, or has it sent. After [`Outbox::settle`].
    pub fn poll_send(&mut self, threads: &IoThreads, context: &mut Context<'_>) -> io::Result<Sent> {
        if threads.is_wanted() && !self.is_stuck {
            let output = std::mem::replace(&mut self.output, std::mem::take(&mut self.spare));
            self.away = output.len();
            // Nobody is to wait for room that there is.
            threads.send(self.socket.parcel(output, context.waker().clone(), self.away > LARGE));
            return Ok(Sent::HandedOver);
        }
        let mut writes = 0;
        while !self.output.is_empty() {
            let stream = &self.socket.stream;
            match write(&mut self.output, |slices| stream.poll_write(slices, context)) {
                Poll::Ready(written) => written?,
                Poll::Pending => break,
            }
            writes += 1;
            if !self.output.is_empty() && turn::is_over() {
                turn::again(context);
                break;
            }
        }
        self.is_stuck = !self.output.is_empty();
        Ok(Sent::Here { writes })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// By so many writes, as far as the client takes it.
    Here {
        writes: usize,
    },
    HandedOver,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[tokio::test]
    async fn what_no_io_thread_has_begun_is_sent_at_the_end_of_the_round() {
        let (mut client, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut outbox = Outbox::new(Stream::Unix(tokio::net::UnixStream::from_std(ours).unwrap()));
        let threads = IoThreads::without_a_cpu();
        let round_ends = threads.round_ends();
        let mut sent = Vec::new();
        for nth in 0..6 {
            std::future::poll_fn(|context| outbox.stream().poll_writable(context)).await.unwrap();
            outbox.push(&Reply::Bulk(Bytes::from(format!("{nth}"))), Protocol::Resp2);
            assert_eq!(outbox.settle(false).unwrap(), Some(0));
            let here = std::future::poll_fn(|context| Poll::Ready(outbox.poll_send(&threads, context))).await.unwrap();
            sent.push(here == Sent::HandedOver);
            if here == Sent::HandedOver {
                assert!(outbox.settle(false).unwrap().is_none() && !outbox.is_empty());
                round_ends();
            }
            let mut text = [0; 7];
            client.read_exact(&mut text).unwrap();
            assert_eq!(text, format!("$1\r\n{nth}\r\n").as_bytes());
        }
        // Few replies in a round are nobody's business; many are, and so are those of the round
        // after it.
        assert_eq!(sent, [false, false, false, true, true, false]);
    }
}
