//! Threads that send replies while the KV API's own thread is busy.
//!
//! Most of what a small request costs is the kernel's work for its reply: over loopback, all the
//! way to the client's being woken. None of that needs the store. So once several replies have
//! become due in one round of the event loop, further ones are handed over; with few, handing over
//! (a wake-up of another CPU) would cost more than it saves, and takes longer. What no I/O thread
//! has begun by the end of the round is sent by the KV API's thread after all: an I/O thread may
//! have to wait for a CPU, and no client is to wait for that.
//!
//! There is one [`Parcel`] of a connection at a time, so a client's replies keep their order: what
//! becomes due meanwhile waits in its connection's outbox. Nobody waits for a client: what
//! the socket does not take goes back.

use super::parcel::Parcel;
use crossbeam::channel::{Receiver, Sender, unbounded};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Replies of one round from which on handing over pays.
const BUSY: u32 = 4;
/// Writes of one parcel that the KV API's thread does itself: the connection's task sends the rest.
const IN_PASSING: usize = 2;
/// How long an I/O thread looks for more before it sleeps: whoever wakes it pays for that.
const LINGER: Duration = Duration::from_micros(20);

/// What became due in the present round of the event loop, and in the one before.
#[derive(Debug, Default)]
struct Rounds {
    now: AtomicU32,
    before: AtomicU32,
}

pub struct IoThreads {
    queue: Sender<Parcel>,
    parcels: Receiver<Parcel>,
    threads: Vec<JoinHandle<()>>,
    rounds: Arc<Rounds>,
}

impl IoThreads {
    /// How many there are unless it is configured: one, on machines that have a CPU for it.
    pub fn usual() -> u8 {
        u8::from(std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1))
    }

    pub fn start(count: u8) -> io::Result<IoThreads> {
        let (queue, parcels) = unbounded();
        let mut all = IoThreads { queue, parcels, threads: Vec::new(), rounds: Arc::default() };
        for n in 0..count {
            let parcels = all.parcels.clone();
            let send = move || send_all(&parcels);
            all.threads.push(std::thread::Builder::new().name(format!("annex-kv-io-{n}")).spawn(send)?);
        }
        Ok(all)
    }

    /// What the event loop is to call before it looks for events.
    pub fn round_ends(&self) -> impl Fn() + Send + Sync + 'static {
        let (rounds, parcels) = (self.rounds.clone(), self.parcels.clone());
        move || {
            parcels.try_iter().for_each(|parcel| parcel.deliver(IN_PASSING));
            rounds.before.store(rounds.now.swap(0, Relaxed), Relaxed);
        }
    }

    /// One more reply is due. True: it is better handed over.
    pub fn is_wanted(&self) -> bool {
        let Rounds { now, before } = &*self.rounds;
        let due = now.load(Relaxed) + 1;
        now.store(due, Relaxed);
        !self.threads.is_empty() && due.max(before.load(Relaxed)) >= BUSY
    }

    pub fn send(&self, parcel: Parcel) {
        // We have a receiver too.
        let _ = self.queue.send(parcel);
    }

    /// With one that never gets to anything.
    #[cfg(test)]
    pub fn without_a_cpu() -> IoThreads {
        let mut threads = IoThreads::start(0).unwrap();
        threads.threads.push(std::thread::spawn(|| {}));
        threads
    }

    pub fn is_active(&self) -> bool {
        !self.threads.is_empty() && self.rounds.before.load(Relaxed) >= BUSY
    }
}

impl Drop for IoThreads {
    /// What was handed over is still sent.
    fn drop(&mut self) {
        self.queue = unbounded().0;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an I/O thread of the KV API panicked");
            }
        }
    }
}

fn send_all(parcels: &Receiver<Parcel>) {
    while let Ok(parcel) = parcels.recv() {
        parcel.deliver(usize::MAX);
        let mut last = Instant::now();
        while last.elapsed() < LINGER {
            match parcels.try_recv() {
                Ok(parcel) => {
                    parcel.deliver(usize::MAX);
                    last = Instant::now();
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}
