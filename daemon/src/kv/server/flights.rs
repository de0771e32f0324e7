//! A connection's commands that are under way together, and their replies in the order of the commands.

use crate::kv::reply::Reply;
use futures::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pub struct Flights<F> {
    running: FuturesUnordered<Numbered<F>>,
    /// Replies from the oldest command on that is not answered; `None` while it runs.
    replies: VecDeque<Option<Reply>>,
    /// The number of the first of these.
    first: u64,
    /// Bytes of the arguments of those that run.
    bytes: usize,
}

struct Numbered<F> {
    number: u64,
    bytes: usize,
    future: F,
}

impl<F: Future<Output = Reply> + Unpin> Future for Numbered<F> {
    type Output = (u64, usize, Reply);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.future).poll(context));
        Poll::Ready((self.number, self.bytes, reply))
    }
}

impl<F: Future<Output = Reply> + Unpin> Flights<F> {
    pub fn new() -> Flights<F> {
        Flights { running: FuturesUnordered::new(), replies: VecDeque::new(), first: 0, bytes: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    pub fn len(&self) -> usize {
        self.replies.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A command that has begun.
    pub fn push(&mut self, future: F, bytes: usize) {
        let number = self.first + self.replies.len() as u64;
        self.replies.push_back(None);
        self.bytes += bytes;
        self.running.push(Numbered { number, bytes, future });
    }

    /// A command that is answered already, behind those before it.
    pub fn push_done(&mut self, reply: Reply) {
        self.replies.push_back(Some(reply));
    }

    /// Drives all of them on, as far as they go now.
    pub fn poll(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some((number, bytes, reply))) = self.running.poll_next_unpin(context) {
            self.bytes -= bytes;
            if let Some(slot) = self.replies.get_mut((number - self.first) as usize) {
                *slot = Some(reply);
            }
        }
    }

    /// The oldest command's reply, once it is there.
    pub fn pop(&mut self) -> Option<Reply> {
        let reply = self.replies.pop_front_if(|reply| reply.is_some())??;
        self.first += 1;
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::LocalBoxFuture;
    use tokio::sync::oneshot;

    fn reply_of(receiver: oneshot::Receiver<i64>) -> LocalBoxFuture<'static, Reply> {
        receiver.map(|value| Reply::Integer(value.unwrap_or(-1))).boxed_local()
    }

    #[test]
    fn replies_come_in_the_order_of_the_commands() {
        let mut flights = Flights::new();
        let (first, one) = oneshot::channel();
        let (second, two) = oneshot::channel();
        flights.push(reply_of(one), 3);
        flights.push_done(Reply::OK);
        flights.push(reply_of(two), 4);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert_eq!(second.send(2), Ok(()));
        flights.poll(&mut context);
        assert_eq!((flights.pop(), flights.bytes()), (None, 3));
        assert_eq!(first.send(1), Ok(()));
        flights.poll(&mut context);
        let replies = [flights.pop(), flights.pop(), flights.pop(), flights.pop()];
        assert_eq!(replies, [Some(Reply::Integer(1)), Some(Reply::OK), Some(Reply::Integer(2)), None]);
        assert!(flights.is_empty());
    }
}
