//! A connection's commands that are under way together, and their replies in the order of the
//! commands.
//!
//! Most are futures. A *deferred write* is none: its record is in the store's log already, and the
//! store tells what became of it ([`WriteListener`]).

use crate::reply::Reply;
use crate::store::{StoreError, WriteListener};
use futures::stream::{FuturesUnordered, StreamExt};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

/// What is to be done, and answered, when a record is on all replicas or never will be.
pub trait DeferredWrite {
    fn end(self, outcome: Result<(), StoreError>) -> Reply;
}

pub struct Flights<F, P> {
    running: FuturesUnordered<Numbered<F>>,
    board: Rc<Board<P>>,
    listener: Weak<dyn WriteListener>,
}

struct Board<P> {
    replies: RefCell<VecDeque<Slot<P>>>,
    /// The number of the first of these.
    first: Cell<u64>,
    /// Deferred writes that are not completed.
    deferred: Cell<usize>,
    /// Bytes of the arguments of whatever is under way.
    bytes: Cell<usize>,
    /// Bytes of the answers that are there or are expected.
    answers: Cell<usize>,
    /// Called when a deferred write is completed, unless that is expected just now.
    wake: Box<dyn Fn()>,
    is_expected: Cell<bool>,
}

enum Slot<P> {
    Running,
    /// With the bytes of its arguments.
    Deferred(P, usize),
    /// With its bytes.
    Done(Reply, usize),
}

impl<P: DeferredWrite> WriteListener for Board<P> {
    fn completed(&self, number: u64, outcome: Result<(), StoreError>) {
        let at = (number - self.first.get()) as usize;
        let slot = self.replies.borrow_mut().get_mut(at).map(|slot| std::mem::replace(slot, Slot::Running));
        if let Some(Slot::Deferred(write, bytes)) = slot {
            let reply = write.end(outcome);
            let weight = reply.weight();
            self.answers.set(self.answers.get() + weight);
            self.replies.borrow_mut()[at] = Slot::Done(reply, weight);
            self.deferred.set(self.deferred.get() - 1);
            self.bytes.set(self.bytes.get() - bytes);
            if !self.is_expected.get() {
                (self.wake)();
            }
        }
    }
}

struct Numbered<F> {
    number: u64,
    bytes: usize,
    /// Bytes of the answer, or of the values that are looked at for it, as far as is known before.
    expected: usize,
    future: F,
}

impl<F: Future<Output = Reply> + Unpin> Future for Numbered<F> {
    type Output = (u64, usize, usize, Reply);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.future).poll(context));
        Poll::Ready((self.number, self.bytes, self.expected, reply))
    }
}

impl<F: Future<Output = Reply> + Unpin, P: DeferredWrite + 'static> Flights<F, P> {
    /// `wake` is called when a deferred write is completed.
    pub fn new(wake: impl Fn() + 'static) -> Flights<F, P> {
        let board = Rc::new(Board {
            replies: RefCell::default(),
            first: Cell::new(0),
            deferred: Cell::new(0),
            bytes: Cell::new(0),
            answers: Cell::new(0),
            wake: Box::new(wake),
            is_expected: Cell::new(false),
        });
        let listener: Rc<dyn WriteListener> = board.clone();
        Flights { running: FuturesUnordered::new(), listener: Rc::downgrade(&listener), board }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.board.replies.borrow().len()
    }

    pub fn bytes(&self) -> usize {
        self.board.bytes.get()
    }

    /// Bytes of the answers whose turn has not come, and of those that are expected.
    pub fn answers(&self) -> usize {
        self.board.answers.get()
    }

    /// Deferred writes that are not completed.
    pub fn deferred(&self) -> usize {
        self.board.deferred.get()
    }

    fn add(&self, slot: Slot<P>) -> u64 {
        let mut replies = self.board.replies.borrow_mut();
        replies.push_back(slot);
        self.board.first.get() + replies.len() as u64 - 1
    }

    /// A command that has begun.
    pub fn push(&mut self, future: F, bytes: usize, expected: usize) {
        let number = self.add(Slot::Running);
        self.board.bytes.set(self.bytes() + bytes);
        self.board.answers.set(self.answers() + expected);
        self.running.push(Numbered { number, bytes, expected, future });
    }

    /// A command that is answered already, behind those before it.
    pub fn push_done(&mut self, reply: Reply) {
        let weight = reply.weight();
        self.board.answers.set(self.answers() + weight);
        self.add(Slot::Done(reply, weight));
    }

    /// Has `begin` put a record into the log; it is given the listener, and the number under which
    /// this is told what became of it. Gives the write back if it did not.
    pub fn defer(
        &mut self,
        write: P,
        bytes: usize,
        begin: impl FnOnce(&P, &Weak<dyn WriteListener>, u64) -> bool,
    ) -> Result<(), P> {
        let number = self.board.first.get() + self.len() as u64;
        if !begin(&write, &self.listener, number) {
            return Err(write);
        }
        self.add(Slot::Deferred(write, bytes));
        self.board.bytes.set(self.bytes() + bytes);
        self.board.deferred.set(self.board.deferred.get() + 1);
        Ok(())
    }

    /// Has `forward` complete deferred writes, if it can, without being called back for these.
    pub fn forward(&mut self, forward: impl FnOnce()) {
        self.board.is_expected.set(true);
        forward();
        self.board.is_expected.set(false);
    }

    /// Drives all of them on, as far as they go now.
    pub fn poll(&mut self, context: &mut Context<'_>) {
        while !self.running.is_empty()
            && let Poll::Ready(Some((number, bytes, expected, reply))) = self.running.poll_next_unpin(context)
        {
            let weight = reply.weight();
            self.board.bytes.set(self.bytes() - bytes);
            self.board.answers.set(self.answers() - expected + weight);
            if let Some(slot) = self.board.replies.borrow_mut().get_mut((number - self.board.first.get()) as usize) {
                *slot = Slot::Done(reply, weight);
            }
        }
    }

    /// The oldest command's reply, once it is there.
    pub fn pop(&mut self) -> Option<Reply> {
        let is_done = |slot: &mut Slot<P>| matches!(slot, Slot::Done(..));
        match self.board.replies.borrow_mut().pop_front_if(is_done) {
            Some(Slot::Done(reply, weight)) => {
                self.board.answers.set(self.answers() - weight);
                self.board.first.set(self.board.first.get() + 1);
                Some(reply)
            }
            _ => None,
        }
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

    struct Answered;

    impl DeferredWrite for Answered {
        fn end(self, outcome: Result<(), StoreError>) -> Reply {
            outcome.map_or(Reply::Null, |()| Reply::OK)
        }
    }

    #[test]
    fn a_deferred_write_is_answered_in_its_turn_when_it_is_completed() {
        let woken = Rc::new(Cell::new(0));
        let mut flights = Flights::<LocalBoxFuture<'static, Reply>, Answered>::new({
            let woken = woken.clone();
            move || woken.set(woken.get() + 1)
        });
        let mut told = Vec::new();
        for _ in 0..2 {
            let begin = |_: &Answered, listener: &Weak<dyn WriteListener>, number| {
                told.push((listener.upgrade().unwrap(), number));
                true
            };
            assert!(flights.defer(Answered, 5, begin).is_ok());
        }
        assert!(flights.defer(Answered, 5, |_, _, _| false).is_err());
        flights.push_done(Reply::Integer(3));
        assert_eq!((flights.len(), flights.deferred(), flights.pop()), (3, 2, None));
        told[1].0.completed(told[1].1, Err(StoreError::NoRoom));
        assert_eq!((flights.deferred(), flights.pop(), woken.get()), (1, None, 1));
        assert_eq!(flights.bytes(), 5);
        flights.forward(|| told[0].0.completed(told[0].1, Ok(())));
        let replies = [flights.pop(), flights.pop(), flights.pop(), flights.pop()];
        assert_eq!(replies, [Some(Reply::OK), Some(Reply::Null), Some(Reply::Integer(3)), None]);
        assert!(
            flights.is_empty() && flights.deferred() + flights.bytes() + flights.answers() == 0 && woken.get() == 1
        );
    }

    #[test]
    fn replies_come_in_the_order_of_the_commands() {
        let mut flights = Flights::<_, Answered>::new(|| ());
        let (first, one) = oneshot::channel();
        let (second, two) = oneshot::channel();
        flights.push(reply_of(one), 3, 100);
        flights.push_done(Reply::OK);
        flights.push(reply_of(two), 4, 100);
        let of_each = Reply::OK.weight();
        assert_eq!(flights.answers(), 200 + of_each);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert_eq!(second.send(2), Ok(()));
        flights.poll(&mut context);
        assert_eq!((flights.pop(), flights.bytes(), flights.answers()), (None, 3, 100 + 2 * of_each));
        assert_eq!(first.send(1), Ok(()));
        flights.poll(&mut context);
        let replies = [flights.pop(), flights.pop(), flights.pop(), flights.pop()];
        assert_eq!(replies, [Some(Reply::Integer(1)), Some(Reply::OK), Some(Reply::Integer(2)), None]);
        assert!(flights.is_empty() && flights.answers() == 0);
    }
}
