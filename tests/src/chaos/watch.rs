//! Whether a program's faults are being served, looked at every few milliseconds.

use crate::testbed::api;
use annex_shared::api::AppInfo;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked: a stall shorter than this is not seen.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Seen {
    /// When faults were served.
    moves: Vec<Instant>,
    total: u64,
}

pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub fn start(socket: &Path, app: &str) -> Watch {
        let (seen, ended) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (seen, ended, socket, app) = (seen.clone(), ended.clone(), socket.to_owned(), app.to_owned());
            move || {
                let mut last = None;
                while !ended.load(Relaxed) {
                    let apps = api::fetch::<Vec<AppInfo>>(&socket, "/v1/apps").unwrap_or_default();
                    if let Some(now) = apps.iter().find(|a| a.name == app).map(|a| a.faults.major) {
                        let mut seen = seen.lock().expect("nobody panics with it");
                        // A new annexd counts from nothing.
                        seen.total += last.map_or(0, |last| if now >= last { now - last } else { now });
                        if last.is_some_and(|last| last != now) {
                            seen.moves.push(Instant::now());
                        }
                        last = Some(now);
                    }
                    std::thread::sleep(LOOK);
                }
            }
        });
        Watch { seen, ended, thread }
    }

    /// Some fault was served after `since`.
    pub fn moved_after(&self, since: Instant) -> bool {
        self.seen.lock().expect("nobody panics with it").moves.last().is_some_and(|at| *at > since)
    }

    /// The longest time since then in which no fault was served.
    pub fn longest_since(&self, since: Instant) -> Duration {
        let seen = self.seen.lock().expect("nobody panics with it");
        let after = seen.moves.iter().copied().filter(|at| *at > since);
        let times: Vec<Instant> = std::iter::once(since).chain(after).chain([Instant::now()]).collect();
        times.windows(2).map(|two| two[1] - two[0]).max().unwrap_or_default()
    }

    /// Ends the watch: all faults that were served meanwhile.
    pub fn end(self) -> u64 {
        self.ended.store(true, Relaxed);
        self.thread.join().expect("the watch does not panic");
        self.seen.lock().expect("nobody panics with it").total
    }
}
