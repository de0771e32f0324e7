//! What annexd itself counts while a program runs: looked at every tenth of a second, together with
//! what its threads, and the stub in the program, have used of the CPU. Differences between two
//! looks belong together, so that each figure is that of a stretch of the run: its filling, or what
//! was measured.

use crate::access::{Measured, ticks};
use crate::testbed::census::stubs_of;
use crate::testbed::{Donor, Testbed, api};
use annex_shared::api::{AppInfo, Status};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(100);
/// Who evicts: annexd's thread of that name, and the stub that moves the pages out of the program.
const EVICTOR: &str = "annex-evict";
const STUB: &str = "annex-stub";

/// Two donors with room for what is measured.
pub fn testbed(donor: fn() -> Donor) -> Testbed {
    Testbed::builder().donor(donor().capacity("3G")).donor(donor().capacity("3G")).start()
}

/// A look: CPU time in nanoseconds by thread's name.
#[derive(Clone, Debug)]
struct Look {
    at_ns: u64,
    app: AppInfo,
    cpu: BTreeMap<String, u64>,
    overhead_per_page: Option<f64>,
}

/// Looks at one app until it is told to stop.
pub struct Watch {
    looks: Arc<Mutex<Vec<Look>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn of(bed: &Testbed, name: &str) -> Watch {
        let (looks, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (looks, ended) = (looks.clone(), ended.clone());
            let (socket, name) = (bed.socket.clone(), name.to_owned());
            let mut processes: Vec<(String, i32)> = vec![("annexd".into(), bed.annexd.pid())];
            processes.extend(bed.agents.iter().map(|agent| ("agents".into(), agent.pid())));
            move || {
                while !ended.load(Relaxed) {
                    if let Some(look) = Look::take(&socket, &name, &processes)
                        && let Ok(mut looks) = looks.lock()
                    {
                        looks.push(look);
                    }
                    std::thread::sleep(LOOK);
                }
            }
        });
        Watch { looks, ended, thread: Some(thread) }
    }

    /// What was counted while the run was filled and while it was measured.
    pub fn end(mut self, run: &Measured) -> Counts {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the watcher does not panic");
        }
        let looks = std::mem::take(&mut *self.looks.lock().expect("the watcher does not panic"));
        let between = |from: u64, to: u64| {
            let within: Vec<&Look> = looks.iter().filter(|look| (from..=to).contains(&look.at_ns)).collect();
            Counted::between(within.first()?, within.last()?)
        };
        Counts {
            evicted: looks.last().map_or(0, |look| look.app.pages_evicted),
            filling: between(0, run.filled_ns),
            measured: between(run.began_ns, run.ended_ns),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

impl Look {
    /// `None` while the app is not there.
    fn take(socket: &Path, name: &str, processes: &[(String, i32)]) -> Option<Look> {
        let status: Status = api::fetch(socket, "/v1/status").ok()?;
        let app = status.apps.into_iter().find(|app| app.name == name)?;
        let mut cpu = BTreeMap::new();
        for (group, pid) in processes {
            for (thread, ns) in threads(*pid) {
                *cpu.entry(group.clone()).or_default() += ns;
                // `annex-fault-0` and `annex-fault-1` are one.
                let kind = thread.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit()).to_owned();
                if group == "annexd" {
                    *cpu.entry(kind).or_default() += ns;
                }
            }
        }
        let stubs = app.pids.iter().flat_map(|pid| stubs_of(*pid)).flat_map(threads).filter(|(name, _)| name == STUB);
        cpu.insert(STUB.into(), stubs.map(|(_, ns)| ns).sum());
        Some(Look { at_ns: ticks::now(), app, cpu, overhead_per_page: status.overhead_per_page })
    }
}

/// The threads of a process, and what each has run, in nanoseconds. Those that end meanwhile are
/// left out.
fn threads(pid: i32) -> Vec<(String, u64)> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    tasks(pid)
        .filter_map(|task| {
            let ran = read(task.join("schedstat"))?.split_whitespace().next()?.parse().ok()?;
            Some((read(task.join("comm"))?.trim().to_owned(), ran))
        })
        .collect()
}

fn tasks(pid: i32) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// What annexd counted in two stretches of a run; `None` if too few looks fell into one.
#[derive(Clone, Debug, Serialize)]
pub struct Counts {
    /// Pages, in all.
    pub evicted: u64,
    pub filling: Option<Counted>,
    pub measured: Option<Counted>,
}

/// What annexd counted in a stretch of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counted {
    pub seconds: f64,
    pub evicted: u64,
    /// Of those, the ones that needed no write.
    pub clean: u64,
    pub zero: u64,
    pub pages_in: u64,
    /// Of those, the ones that no fault had asked for; what of them can be judged; what of that was
    /// right.
    pub prefetched: u64,
    pub prefetch_samples: u64,
    pub prefetch_hits: u64,
    pub faults: u64,
    /// CPU seconds by annexd's threads; all of them together (`annexd`), the donors' (`agents`),
    /// the stub's.
    pub cpu_s: BTreeMap<String, f64>,
    /// Bytes of annexd's own memory.
    pub overhead_per_page: Option<f64>,
}

impl Counted {
    fn between(first: &Look, last: &Look) -> Option<Counted> {
        let grown = |count: fn(&AppInfo) -> u64| count(&last.app).saturating_sub(count(&first.app));
        let cpu_s = last.cpu.iter().map(|(name, ns)| {
            let before = first.cpu.get(name).copied().unwrap_or(0);
            (name.clone(), ns.saturating_sub(before) as f64 / 1e9)
        });
        (last.at_ns > first.at_ns).then(|| Counted {
            seconds: (last.at_ns - first.at_ns) as f64 / 1e9,
            evicted: grown(|app| app.pages_evicted),
            clean: grown(|app| app.pages_clean),
            zero: grown(|app| app.pages_zero),
            pages_in: grown(|app| app.pages_in),
            prefetched: grown(|app| app.pages_prefetched),
            prefetch_samples: grown(|app| app.prefetch_samples),
            prefetch_hits: grown(|app| app.prefetch_hits),
            faults: grown(|app| app.faults.major),
            cpu_s: cpu_s.collect(),
            overhead_per_page: last.overhead_per_page,
        })
    }

    /// What taking a page away costs: annexd's evicting thread and the stub, in microseconds of
    /// CPU.
    pub fn eviction_us(&self) -> Option<f64> {
        let spent: f64 = [EVICTOR, STUB].iter().filter_map(|name| self.cpu_s.get(*name)).sum();
        (self.evicted >= ENOUGH).then(|| spent * 1e6 / self.evicted as f64)
    }

    /// All that annexd and the stub spend, by page that moved either way.
    pub fn moving_us(&self) -> Option<f64> {
        let spent: f64 = ["annexd", STUB].iter().filter_map(|name| self.cpu_s.get(*name)).sum();
        let moved = self.evicted + self.pages_in;
        (moved >= ENOUGH).then(|| spent * 1e6 / moved as f64)
    }

    /// Part of the evicted pages that needed no write.
    pub fn clean_share(&self) -> f64 {
        self.clean as f64 / self.evicted.max(1) as f64
    }

    /// What part of the pages that came back was of no use, as annexd's samples tell; without
    /// samples, whatever nobody had asked for.
    pub fn useless(&self) -> Option<f64> {
        let wrong = self.prefetch_samples.saturating_sub(self.prefetch_hits) as f64;
        let share = if self.prefetch_samples == 0 { 1.0 } else { wrong / self.prefetch_samples as f64 };
        (self.pages_in >= ENOUGH).then(|| self.prefetched as f64 * share / self.pages_in as f64)
    }
}

/// Fewer pages say nothing.
const ENOUGH: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_brought_unasked_is_of_as_little_use_as_its_samples() {
        let counted = Counted { pages_in: 10_000, prefetched: 8_000, ..Counted::default() };
        let sampled = Counted { prefetch_samples: 4_000, prefetch_hits: 3_000, ..counted.clone() };
        assert_eq!(sampled.useless(), Some(0.2));
        assert_eq!(counted.useless(), Some(0.8), "nothing is known to have been right");
        assert_eq!(Counted::default().useless(), None);
    }

    #[test]
    fn eviction_is_the_evictors_and_the_stubs_time() {
        let cpu_s = [("annexd", 9.0), (EVICTOR, 0.01), (STUB, 0.005)].map(|(name, s)| (name.to_owned(), s));
        let counted = Counted { evicted: 10_000, cpu_s: cpu_s.into(), ..Counted::default() };
        assert!((counted.eviction_us().unwrap() - 1.5).abs() < 1e-9);
    }

    #[test]
    fn own_threads_are_found_by_name() {
        let thread =
            std::thread::Builder::new().name("some-thread".into()).spawn(|| threads(std::process::id() as i32));
        let found = thread.unwrap().join().unwrap();
        assert!(found.iter().any(|(name, _)| name == "some-thread"), "{found:?}");
    }
}
