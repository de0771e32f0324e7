//! Ends the run with a clear message when nothing has progressed for too long: a hang must look
//! like a failure, not like patience.

use super::board::Shared;
use crate::stacks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(500);

pub struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Watchdog {
    pub fn stop(self) {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        // The thread can't fail: it either saw the flag or has ended the process.
        let _ = self.thread.join();
    }
}

pub fn start(board: Shared, stall: Duration) -> Watchdog {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let thread = std::thread::spawn(move || {
        let mut last = board.progress.load(Relaxed);
        let mut idle = Duration::ZERO;
        let mut has_told = false;
        while !told.load(Relaxed) {
            let looked = Instant::now();
            std::thread::park_timeout(INTERVAL);
            let progress = board.progress.load(Relaxed);
            if progress != last {
                (last, idle, has_told) = (progress, Duration::ZERO, false);
                continue;
            }
            // Time in which the process was stopped is not time in which it did nothing.
            idle += looked.elapsed().min(2 * INTERVAL);
            if idle > stall / 2 && !has_told {
                has_told = true;
                eprintln!("annex-stress: no progress for {} s", stall.as_secs() / 2);
                eprintln!("{}", stacks::of_all());
            } else if idle > stall {
                let doing = board.activities().collect::<Vec<_>>().join(", ");
                eprintln!("annex-stress: no progress for {} s: hung at {doing}", stall.as_secs());
                std::process::abort();
            }
        }
    });
    Watchdog { stop, thread }
}
