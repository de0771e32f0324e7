//! Turns of the KV API's thread, so that no request keeps the others waiting for long.
//!
//! Whatever takes many steps calls [`pause`] before each: when the task that it is a part of has
//! had the thread for [`TURN`], it goes on after all others, and the sockets, have had their turn.
//! A task says by [`in_turns`] when it gets the thread; all that it has under way at a time shares
//! one turn.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Context;
use std::time::{Duration, Instant};

/// How long a task goes on before the others have their turn. A step comes on top.
const TURN: Duration = Duration::from_micros(250);

/// So many small things need not ask for a turn each.
pub const STEP: usize = 16;

thread_local! {
    /// When the present turn is over; `None` before somebody asks.
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs a task whose steps pause.
pub async fn in_turns<F: Future>(task: F) -> F::Output {
    let mut task = pin!(task);
    poll_fn(|context| {
        END.set(None);
        task.as_mut().poll(context)
    })
    .await
}

/// Whether the others should have their turn now.
pub fn is_over() -> bool {
    let now = Instant::now();
    match END.get() {
        Some(end) => now >= end,
        None => {
            END.set(Some(now + TURN));
            false
        }
    }
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
    use std::rc::Rc;
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
