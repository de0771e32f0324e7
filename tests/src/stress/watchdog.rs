//! Ends the run with a clear message when nothing has progressed for too long: a hang must look
//! like a failure, not like patience.

use super::board::Shared;
use crate::stacks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

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
        let mut last = (board.progress.load(Relaxed), Instant::now());
        let mut has_told = false;
        while !told.load(Relaxed) {
            std::thread::park_timeout(Duration::from_millis(500));
            let progress = board.progress.load(Relaxed);
            if progress != last.0 {
                last = (progress, Instant::now());
                has_told = false;
            } else if last.1.elapsed() > stall / 2 && !has_told {
                has_told = true;
                eprintln!("annex-stress: no progress for {} s", stall.as_secs() / 2);
                eprintln!("{}", stacks::of_all());
            } else if last.1.elapsed() > stall {
                let doing = board.activities().collect::<Vec<_>>().join(", ");
                eprintln!("annex-stress: no progress for {} s: hung at {doing}", stall.as_secs());
                std::process::abort();
            }
        }
    });
    Watchdog { stop, thread }
}
