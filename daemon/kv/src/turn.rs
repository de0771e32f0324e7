//! Turns of the KV API's thread, so that no request keeps the others waiting for long.
//!
//! Whatever takes many steps calls [`pause`] before each: when the task that it is a part of has
//! had the thread for [`TURN`], it goes on after all others, and the sockets, have had their turn.
//! A task says by [`in_turns`] when it gets the thread; all that it has under way at a time shares
//! one turn.
//!
//! Tasks whose turn was over before they were done stand in one line: one of them goes on at a
//! time, for [`NEXT_TURN`]; then all that is ready has its turn, and the sockets are looked at. So
//! a small request waits for one turn, however many long ones are under way.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How long a task goes on before the others have their turn. A step comes on top.
const TURN: Duration = Duration::from_micros(250);
/// The same for one that goes on from the line: it is long, and small requests wait for it.
const NEXT_TURN: Duration = Duration::from_micros(100);

/// So many small things need not ask for a turn each.
pub const STEP: usize = 16;

thread_local! {
    /// When the present turn is over; `None` before somebody asks.
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether the present task was told that its turn is over.
    static IS_OVER: Cell<bool> = const { Cell::new(false) };
    /// The wakers of tasks whose turn was over before they were done. The first one goes on.
    static LINE: RefCell<VecDeque<Rc<Waker>>> = const { RefCell::new(VecDeque::new()) };
}

/// A task's place in the line. When the first one leaves, the next is called.
struct InLine(Rc<Waker>);

impl InLine {
    fn join(waker: Waker) -> InLine {
        let place = InLine(Rc::new(waker));
        LINE.with_borrow_mut(|line| line.push_back(place.0.clone()));
        if place.is_first() {
            call(&place.0);
        }
        place
    }

    fn is_first(&self) -> bool {
        LINE.with_borrow(|line| line.front().is_some_and(|first| Rc::ptr_eq(first, &self.0)))
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        if !self.is_first() {
            return LINE.with_borrow_mut(|line| line.retain(|place| !Rc::ptr_eq(place, &self.0)));
        }
        let next = LINE.with_borrow_mut(|line| {
            line.pop_front();
            line.front().cloned()
        });
        if let Some(next) = next {
            call(&next);
        }
    }
}

fn call(waker: &Waker) {
    again(&mut Context::from_waker(waker));
}

/// Runs a task whose steps pause.
pub async fn in_turns<F: Future>(task: F) -> F::Output {
    let mut task = pin!(task);
    let mut place: Option<InLine> = None;
    poll_fn(|context| {
        // Whatever else it was woken for is found when it is called.
        if place.as_ref().is_some_and(|place| !place.is_first()) {
            return Poll::Pending;
        }
        END.set(place.is_some().then(|| Instant::now() + NEXT_TURN));
        IS_OVER.set(false);
        let polled = task.as_mut().poll(context);
        let goes_on = polled.is_pending() && IS_OVER.get();
        // It stands behind the others before the next one is called.
        place = goes_on.then(|| InLine::join(context.waker().clone()));
        polled
    })
    .await
}

/// Whether the others should have their turn now.
pub fn is_over() -> bool {
    let now = Instant::now();
    let end = END.get().unwrap_or(now + TURN);
    END.set(Some(end));
    let is_over = now >= end;
    IS_OVER.set(is_over || IS_OVER.get());
    is_over
}

/// Whether some tasks' turn was over before they were done.
pub fn is_lined_up() -> bool {
    LINE.with_borrow(|line| !line.is_empty())
}

/// Has the task polled again when the others had their turn.
pub fn again(context: &mut Context<'_>) {
    // Its waker is called behind the ready tasks and the look at the sockets.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Lets the others have their turn, if this one is over.
pub async fn pause() {
    while is_over() {
        let over = END.get();
        tokio::task::yield_now().await;
        // Of a task that nobody says it of, the next turn begins here.
        if END.get() == over {
            END.set(None);
        }
    }
}

/// Drops many things, in turns.
pub async fn drop_all<T>(many: Vec<T>) {
    for (nth, thing) in many.into_iter().enumerate() {
        drop(thing);
        if nth % STEP == 0 {
            pause().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::LocalSet;

    fn work() {
        let end = Instant::now() + TURN / 4;
        while Instant::now() < end {}
    }

    #[tokio::test]
    async fn all_that_a_task_has_under_way_shares_one_turn() {
        let (steps, turns) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let counted = steps.clone();
        let local = LocalSet::new();
        let worker = in_turns(async move {
            let one = async || {
                for _ in 0..20 {
                    pause().await;
                    work();
                    counted.set(counted.get() + 1);
                }
            };
            futures::future::join_all((0..20).map(|_| one())).await;
        });
        let worker = local.spawn_local(worker);
        let (seen, counting) = (steps.clone(), turns.clone());
        local.spawn_local(async move {
            let mut before = 0;
            while seen.get() < 400 {
                // Each turn has time for four steps, and one may begin before it is over.
                assert!(seen.get() - before <= 8, "{} steps in a turn", seen.get() - before);
                before = seen.get();
                counting.set(counting.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        local.run_until(worker).await.unwrap();
        assert!(turns.get() >= 50, "{} turns", turns.get());
    }

    #[tokio::test]
    async fn one_long_task_goes_on_at_a_time() {
        const LONG: usize = 8;
        let (local, turns) = (LocalSet::new(), Rc::new(Cell::new(0)));
        let long = |steps: usize| {
            let turns = turns.clone();
            in_turns(async move {
                for _ in 0..steps {
                    // One turn.
                    while !is_over() {}
                    turns.set(turns.get() + 1);
                    pause().await;
                }
            })
        };
        let tasks: Vec<_> = (0..LONG).map(|nth| local.spawn_local(long(50 + nth))).collect();
        // Ends in the line, and does not keep the others there.
        let ended = local.spawn_local(long(usize::MAX));
        let others = turns.clone();
        let short = local.spawn_local(async move {
            // Each has begun with a turn of its own.
            while others.get() <= LONG {
                tokio::task::yield_now().await;
            }
            ended.abort();
            let mut before = others.get();
            while before < LONG * 50 {
                tokio::task::yield_now().await;
                assert!(others.get() - before <= 2, "{} turns before one that is ready", others.get() - before);
                before = others.get();
            }
        });
        let all = futures::future::join_all(tasks.into_iter().chain([short]));
        local.run_until(all).await.into_iter().for_each(|ended| ended.unwrap());
    }

    #[tokio::test]
    async fn a_task_that_nobody_says_it_of_goes_on_too() {
        let mut steps = 0;
        for _ in 0..20 {
            pause().await;
            work();
            steps += 1;
        }
        assert_eq!(steps, 20);
    }
}
