//! A connection's commands that are under way together, and their replies in the order of the
//! commands.
//!
//! Most are futures. A *placement* is none: a record that is in the store's log already, of which
//! the store tells what became ([`Hears`]).

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
pub trait Placement {
    fn end(self, outcome: Result<(), StoreError>) -> Reply;
}

pub struct Flights<F, P> {
    running: FuturesUnordered<Numbered<F>>,
    board: Rc<Board<P>>,
    hears: Weak<dyn WriteListener>,
}

struct Board<P> {
    replies: RefCell<VecDeque<Slot<P>>>,
    /// The number of the first of these.
    first: Cell<u64>,
    /// Placements that are not heard of.
    placed: Cell<usize>,
    /// Bytes of the arguments of whatever is under way.
    bytes: Cell<usize>,
    /// Bytes of the answers that are there or are expected.
    answers: Cell<usize>,
    /// Called when a placement is heard of, unless that is expected just now.
    wake: Box<dyn Fn()>,
    is_expected: Cell<bool>,
}

enum Slot<P> {
    Running,
    /// With the bytes of its arguments.
    Placed(P, usize),
    /// With its bytes.
    Done(Reply, usize),
}

impl<P: Placement> WriteListener for Board<P> {
    fn hear(&self, number: u64, outcome: Result<(), StoreError>) {
        let at = (number - self.first.get()) as usize;
        let slot = self.replies.borrow_mut().get_mut(at).map(|slot| std::mem::replace(slot, Slot::Running));
        if let Some(Slot::Placed(placement, bytes)) = slot {
            let reply = placement.end(outcome);
            let weight = reply.weight();
            self.answers.set(self.answers.get() + weight);
            self.replies.borrow_mut()[at] = Slot::Done(reply, weight);
            self.placed.set(self.placed.get() - 1);
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

impl<F: Future<Output = Reply> + Unpin, P: Placement + 'static> Flights<F, P> {
    /// `wake` is called when something has been heard of a placement.
    pub fn new(wake: impl Fn() + 'static) -> Flights<F, P> {
        let board = Rc::new(Board {
            replies: RefCell::default(),
            first: Cell::new(0),
            placed: Cell::new(0),
            bytes: Cell::new(0),
            answers: Cell::new(0),
            wake: Box::new(wake),
            is_expected: Cell::new(false),
        });
        let hears: Rc<dyn WriteListener> = board.clone();
        Flights { running: FuturesUnordered::new(), hears: Rc::downgrade(&hears), board }
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

    /// Placements that nothing was heard of.
    pub fn placed(&self) -> usize {
        self.board.placed.get()
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

    /// Has `place` put a record into the log; who is to hear of it, and under which number, it is
    /// told. Gives the placement back if it did not.
    pub fn place(
        &mut self,
        placement: P,
        bytes: usize,
        place: impl FnOnce(&P, &Weak<dyn WriteListener>, u64) -> bool,
    ) -> Result<(), P> {
        let number = self.board.first.get() + self.len() as u64;
        if !place(&placement, &self.hears, number) {
            return Err(placement);
        }
        self.add(Slot::Placed(placement, bytes));
        self.board.bytes.set(self.bytes() + bytes);
        self.board.placed.set(self.board.placed.get() + 1);
        Ok(())
    }

    /// Has `forward` see to it that placements are heard of, if it can, without being called back
    /// for these.
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

    struct Told;

    impl Placement for Told {
        fn end(self, outcome: Result<(), StoreError>) -> Reply {
            outcome.map_or(Reply::Null, |()| Reply::OK)
        }
    }

    #[test]
    fn what_was_placed_is_answered_in_its_turn_when_it_is_heard_of() {
        let woken = Rc::new(Cell::new(0));
        let mut flights = Flights::<LocalBoxFuture<'static, Reply>, Told>::new({
            let woken = woken.clone();
            move || woken.set(woken.get() + 1)
        });
        let mut heard = Vec::new();
        for _ in 0..2 {
            let place = |_: &Told, hears: &Weak<dyn WriteListener>, number| {
                heard.push((hears.upgrade().unwrap(), number));
                true
            };
            assert!(flights.place(Told, 5, place).is_ok());
        }
        assert!(flights.place(Told, 5, |_, _, _| false).is_err());
        flights.push_done(Reply::Integer(3));
        assert_eq!((flights.len(), flights.placed(), flights.pop()), (3, 2, None));
        heard[1].0.hear(heard[1].1, Err(StoreError::NoRoom));
        assert_eq!((flights.placed(), flights.pop(), woken.get()), (1, None, 1));
        assert_eq!(flights.bytes(), 5);
        flights.forward(|| heard[0].0.hear(heard[0].1, Ok(())));
        let replies = [flights.pop(), flights.pop(), flights.pop(), flights.pop()];
        assert_eq!(replies, [Some(Reply::OK), Some(Reply::Null), Some(Reply::Integer(3)), None]);
        assert!(flights.is_empty() && flights.placed() + flights.bytes() + flights.answers() == 0 && woken.get() == 1);
    }

    #[test]
    fn replies_come_in_the_order_of_the_commands() {
        let mut flights = Flights::<_, Told>::new(|| ());
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
