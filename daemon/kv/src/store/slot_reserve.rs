//! Slots of the pool that are ours and not used yet. Taking slots may wait for a donor, so a thread
//! of its own does it, ahead of need. Repair leaves them alone until they are taken out to be
//! written.

use annex_pool::{Pool, SlotRun};
use annex_shared::ids::SlotIdx;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Slots to have in reserve: at first, and at most. It grows whenever it was too small.
const TARGET: u64 = 256;
pub(super) const MAX_TARGET: u64 = 4096;
/// Taken from the pool at a time.
const STEP: usize = 512;
/// The same when it has few.
const SCARCE: usize = 16;
/// How long the pool may take before it counts as full: while it knows of room, while it knows of
/// none, and when it said before that there is none and nothing has changed since.
const PATIENCE: Duration = Duration::from_secs(3);
const LITTLE_PATIENCE: Duration = Duration::from_millis(250);
const SHORT_PATIENCE: Duration = Duration::from_millis(30);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// See the module's header.
pub struct SlotReserve {
    pool: Arc<Pool>,
    inner: RefCell<Inner>,
    /// Something came in, or nothing could be had.
    pub changed: Notify,
}

struct Inner {
    runs: VecDeque<SlotRun>,
    slots: u64,
    target: u64,
    asked: bool,
    /// The last answer: the pool had less than was asked for, at this time of its replicas.
    short: bool,
    seen: u64,
    questions: mpsc::Sender<usize>,
}

impl Inner {
    /// Has the pool asked, though it may have had nothing when it was asked last.
    fn ask(&mut self) {
        if !self.asked {
            self.asked = self.questions.send(STEP).is_ok();
        }
    }
}

/// What the pool gave.
pub struct Delivery {
    runs: Vec<SlotRun>,
    short: bool,
    seen: u64,
}

impl SlotReserve {
    pub fn new(pool: Arc<Pool>) -> io::Result<(SlotReserve, UnboundedReceiver<Delivery>)> {
        let (questions, asked) = mpsc::channel();
        let (deliver, deliveries) = unbounded_channel();
        let from = pool.clone();
        std::thread::Builder::new().name("annex-kv-slots".into()).spawn(move || fetch(&from, &asked, &deliver))?;
        let inner =
            Inner { runs: VecDeque::new(), slots: 0, target: TARGET, asked: false, short: false, seen: 0, questions };
        Ok((SlotReserve { pool, inner: RefCell::new(inner), changed: Notify::new() }, deliveries))
    }

    pub fn receive(&self, delivery: Delivery) {
        let mut inner = self.inner.borrow_mut();
        inner.asked = false;
        (inner.short, inner.seen) = (delivery.short, delivery.seen);
        inner.slots += delivery.runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
        inner.runs.extend(delivery.runs);
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Up to `slots`, as contiguous as can be. Those that nobody can write to now, since their
    /// donors are away, go back.
    pub fn take(&self, slots: u32, runs: &mut Vec<SlotRun>) -> u32 {
        let mut inner = self.inner.borrow_mut();
        let mut got = 0;
        while got < slots
            && let Some(run) = inner.runs.front_mut()
        {
            if !self.pool.takes_writes_to(run.first) {
                inner.slots -= u64::from(run.count);
                let run = inner.runs.pop_front();
                run.inspect(|run| self.pool.will_write(*run));
                run.iter().flat_map(|run| run.slots()).for_each(|slot| self.pool.release_of_kv(slot));
                continue;
            }
            let count = run.count.min(slots - got);
            let taken = SlotRun { first: run.first, count };
            self.pool.will_write(taken);
            runs.push(taken);
            run.first.0 += count;
            run.count -= count;
            got += count;
            if run.count == 0 {
                inner.runs.pop_front();
            }
        }
        inner.slots -= u64::from(got);
        if got < slots {
            inner.target = (inner.target * 2).min(MAX_TARGET);
        }
        // An empty pool is asked again only when somebody waits.
        if !inner.asked && inner.slots < inner.target / 2 && (!inner.short || got < slots) {
            inner.asked = true;
            // Without the thread nothing comes; whoever waits is told that there is no room.
            inner.short |= inner.questions.send((inner.target - inner.slots) as usize).is_err();
        }
        got
    }

    pub fn slots(&self) -> u64 {
        self.inner.borrow().slots
    }

    /// Slots that were taken and not written.
    pub fn put_back(&self, runs: Vec<SlotRun>) {
        let mut inner = self.inner.borrow_mut();
        for run in runs.into_iter().rev() {
            self.pool.put_aside(run);
            inner.slots += u64::from(run.count);
            inner.runs.push_front(run);
        }
    }

    /// A slot that is needed no more.
    pub fn release(&self, slot: SlotIdx) {
        self.pool.release_of_kv(slot);
    }

    /// Slots were given back: the pool may have some again, if it had none.
    pub fn ask_again(&self) {
        let mut inner = self.inner.borrow_mut();
        if inner.short && inner.slots < inner.target / 2 {
            inner.ask();
        }
    }

    /// Nothing is left, and the pool had no more when it was asked last. Then it is asked again:
    /// the answer may be another one next time, and there may be nobody else who asks. What it said
    /// before donors went or came does not count: the next answer is to be waited for.
    pub fn is_out(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let had_none = inner.short && inner.slots == 0;
        if had_none {
            inner.ask();
        }
        had_none && inner.seen == self.pool.replica_changes()
    }
}

fn fetch(pool: &Pool, asked: &mpsc::Receiver<usize>, deliver: &UnboundedSender<Delivery>) {
    // When the pool had nothing lately. It is asked for little at a time then, since it waits for
    // donors when it has less than it is asked for.
    let mut scarce_at = None;
    while let Ok(mut wanted) = asked.recv() {
        let begun = Instant::now();
        while wanted > 0 {
            let (mut runs, seen) = (Vec::new(), pool.replica_changes());
            let is_scarce = scarce_at == Some(seen);
            let step = wanted.min(if is_scarce { SCARCE } else { STEP });
            let got = pool.reserve_for_kv(step, &mut runs);
            wanted -= got;
            runs.iter().for_each(|run| pool.put_aside(*run));
            let patience = match is_scarce {
                true => SHORT_PATIENCE,
                // Donors that are just coming back have room in a moment.
                false if pool.is_dry() || pool.room_for_kv() == 0 => LITTLE_PATIENCE,
                false => PATIENCE,
            };
            let short = got == 0 && begun.elapsed() > patience;
            if (got > 0 || short) && deliver.send(Delivery { runs, short, seen }).is_err() {
                return;
            }
            if short {
                scarce_at = Some(seen);
                break;
            }
            if got < step {
                std::thread::sleep(PAUSE);
            }
        }
        if wanted == 0 {
            scarce_at = None;
        }
    }
}
