//! An app: the processes that are managed as one, their shared local limit, and what is counted
//! about them.

use crate::app::auto::controller::Doing;
use crate::evict::EvictionBlocked;
use crate::fault::Fault;
use crate::kernel::process::Stat;
use crate::kernel::{Pagemap, process};
use crate::space::{Identity, SpaceId};
use annex_host::event;
use annex_host::fd_keeper::{FdKeeper, Kept};
use annex_host::latency::Latency;
use annex_shared::api::{AppInfo, AppState, AutoInfo, Faults, Limit, StallTarget, Target, format_bytes};
use annex_shared::page::PAGE_SIZE;
use parking_lot::Mutex;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One process of an app.
pub struct Member {
    pub pid: i32,
    /// With the PID it names the process for good.
    pub started: u64,
    pub pidfd: OwnedFd,
    /// Its address space, once it has a stub.
    pub space: Option<Arc<Identity>>,
    /// As what it is kept for the annexd that comes after.
    kept: Option<Kept>,
    /// Not before this is another attempt to give it a stub of any use.
    pub retry_at: Option<Instant>,
    /// How many attempts have failed in a row, and the reason that was told last.
    failures: (u32, String),
    pub resident: u64,
}

/// After a failed attempt to give a process a stub; twice as long after each that follows, up to 16
/// times that.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_DOUBLED: u32 = 4;

impl Member {
    pub fn new(pid: i32, started: u64, pidfd: OwnedFd) -> Member {
        Member {
            pid,
            started,
            pidfd,
            space: None,
            kept: None,
            retry_at: None,
            failures: (0, String::new()),
            resident: 0,
        }
    }

    /// An attempt to give it a stub has failed: there is another later. Whether anybody is to be
    /// told: not at first, since short-lived processes end in the middle of it, and of a reason
    /// once.
    pub fn failed(&mut self, why: &str, now: Instant) -> bool {
        let (times, told) = &mut self.failures;
        self.retry_at = Some(now + RETRY * (1 << (*times).min(LONGEST_DOUBLED)));
        *times += 1;
        let is_news = *times > 1 && told != why;
        if is_news {
            why.clone_into(told);
        }
        is_news
    }

    /// It has one.
    pub fn succeeded(&mut self) {
        (self.retry_at, self.failures) = (None, (0, String::new()));
    }

    /// Whether its last thread has ended.
    pub fn has_ended(&self) -> bool {
        process::has_ended(self.pidfd.as_fd())
    }

    /// Has the next annexd find it, as what it is now.
    pub fn keep(&mut self, keeper: &FdKeeper) {
        let now = if self.space.is_some() { Kept::Process(self.pid) } else { Kept::Member(self.pid) };
        if self.kept != Some(now) {
            keeper.keep(now, self.pidfd.as_fd());
            self.kept.replace(now).into_iter().for_each(|before| keeper.let_go(before));
        }
    }

    /// It is no member any more.
    pub fn let_go(&mut self, keeper: &FdKeeper) {
        self.kept.take().into_iter().for_each(|kept| keeper.let_go(kept));
    }
}

#[derive(Default)]
pub struct Counters {
    pub major: AtomicU64,
    pub zero: AtomicU64,
    pub evicted: AtomicU64,
    pub clean: AtomicU64,
    pub zero_pages: AtomicU64,
    pub brought_in: AtomicU64,
    /// Of those, the ones that no fault had asked for; and what samples say of how many were of use
    /// (see `prefetch`).
    pub prefetched: AtomicU64,
    pub prefetch_samples: AtomicU64,
    pub prefetch_hits: AtomicU64,
}

/// Shared memory below this, in bytes, is not worth a word.
const WORTH_A_WORD: u64 = 16 << 20;

/// The longest a fault waits for room. Past it the app exceeds its limit rather than stand still.
pub const LONGEST_DELAY: Duration = Duration::from_millis(20);

/// How full an app is against its limit, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    pub limit: u64,
    /// Eviction starts above it.
    pub high: u64,
    /// And goes on down to it.
    pub low: u64,
}

impl Watermarks {
    /// For an app that has `resident` and `evicted` pages. Both marks lie below the limit, so that
    /// the limit holds while eviction works: a 64th and a 32nd, but at least 1 and 2 MiB.
    pub fn of(limit: Limit, resident: u64, evicted: u64) -> Watermarks {
        let limit = match limit {
            Limit::Bytes(b) => b / PAGE_SIZE as u64,
            Limit::Percent(p) => (resident + evicted) * p as u64 / 100,
        };
        let mib = (1 << 20) / PAGE_SIZE as u64;
        let gap = (limit / 64).max(mib);
        Watermarks { limit, high: limit.saturating_sub(gap), low: limit.saturating_sub(2 * gap) }
    }
}

/// That annexd finds an app's limit, and how that stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auto {
    pub target: StallTarget,
    /// The stall share between the last two looks.
    pub stall: f64,
    pub doing: Doing,
}

impl Auto {
    pub fn new(target: StallTarget) -> Auto {
        Auto { target, stall: 0.0, doing: Doing::Begins }
    }

    fn info(self) -> AutoInfo {
        AutoInfo { target: self.target.share(), stall: self.stall, doing: self.doing.describe(self.target) }
    }
}

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const DETACHING: u8 = 2;

pub struct App {
    pub id: u64,
    pub name: String,
    pub uid: u32,
    /// Asked for by a user who is neither root nor of group annex: see `quota`.
    of_ordinary_user: bool,
    pub target: Target,
    pub members: Mutex<Vec<Member>>,
    /// Held while it is attached, given stubs, buried, detached or dropped, so that none of these
    /// meet. Whoever has it may wait for a program (5 s for one that can't be stopped): nobody
    /// waits for it but who was asked for something of this app.
    pub changing: Mutex<()>,
    limit: Mutex<(Limit, Option<Auto>)>,
    state: AtomicU8,
    note: Mutex<String>,
    pub eviction_blocked: EvictionBlocked,
    pub counters: Counters,
    pub latency: Latency,
    /// Pages resident at the last measurement, corrected by installs and evictions since.
    estimate: AtomicI64,
    high: AtomicI64,
    limit_pages: AtomicI64,
    /// The last batches brought room: it is worth waiting for the next.
    yields: AtomicBool,
    /// Faults that wait because the app is above its limit, until the evictor has made room.
    delayed: Mutex<Vec<(SpaceId, Fault)>>,
    /// An eviction pass over everything found nothing more: not before this again.
    idle_until: Mutex<Option<Instant>>,
    stopped: AtomicBool,
    /// When copy-on-write sharing was last accounted for, and the share that remained of the plain
    /// sum (in 1/1024).
    sharing: Mutex<Option<(Instant, Duration, u64)>>,
    /// When the pages of a region were last counted, and how long that took.
    counted: Mutex<Option<(Instant, Duration)>>,
}

impl App {
    pub fn new(id: u64, name: String, uid: u32, target: Target, limit: Limit) -> App {
        App {
            id,
            name,
            uid,
            of_ordinary_user: false,
            target,
            members: Mutex::default(),
            changing: Mutex::new(()),
            limit: Mutex::new((limit, None)),
            state: AtomicU8::new(WAITING),
            note: Mutex::default(),
            eviction_blocked: EvictionBlocked::default(),
            counters: Counters::default(),
            latency: Latency::default(),
            estimate: AtomicI64::new(0),
            high: AtomicI64::new(i64::MAX),
            limit_pages: AtomicI64::new(i64::MAX),
            yields: AtomicBool::new(true),
            delayed: Mutex::default(),
            idle_until: Mutex::new(None),
            stopped: AtomicBool::new(false),
            sharing: Mutex::new(None),
            counted: Mutex::new(None),
        }
    }

    /// Whether it is one that an ordinary user has asked for.
    #[must_use]
    pub fn of_ordinary_user(self, of_ordinary_user: bool) -> App {
        App { of_ordinary_user, ..self }
    }

    pub fn is_of_ordinary_user(&self) -> bool {
        self.of_ordinary_user
    }

    /// Whether a process may be a part of it: of a user's app only what has no rights but that
    /// user's.
    pub fn may_have(&self, pid: i32) -> bool {
        self.uid == 0 || process::identity(pid).is_ok_and(|identity| identity.owner() == Some(self.uid))
    }

    /// The addresses of the region that it is, if it is no whole process.
    pub fn region(&self) -> Option<(u64, u64)> {
        match self.target {
            Target::Region { address, length, .. } => Some((address, address + length)),
            _ => None,
        }
    }

    /// Whether annexd is to find its limit.
    #[must_use]
    pub fn with_auto(self, target: Option<StallTarget>) -> App {
        let limit = self.limit();
        App { limit: Mutex::new((limit, target.map(Auto::new))), ..self }
    }

    pub fn limit(&self) -> Limit {
        self.limit.lock().0
    }

    pub fn auto(&self) -> Option<Auto> {
        self.limit.lock().1
    }

    /// Somebody asked for it. With a target annexd finds another from there on.
    pub fn set_limit(&self, limit: Limit, target: Option<StallTarget>) {
        *self.limit.lock() = (limit, target.map(Auto::new));
        *self.idle_until.lock() = None;
    }

    /// annexd found it, unless somebody has asked for another since. Whether the limit is a new
    /// one.
    pub fn steer(&self, bytes: u64, auto: Auto) -> bool {
        let mut limit = self.limit.lock();
        let (before, Some(asked)) = *limit else { return false };
        if asked.target != auto.target {
            return false;
        }
        *limit = (Limit::Bytes(bytes), Some(auto));
        drop(limit);
        let is_new = before != Limit::Bytes(bytes);
        if is_new {
            *self.idle_until.lock() = None;
        }
        is_new
    }

    pub fn state(&self) -> AppState {
        match self.state.load(Relaxed) {
            WAITING => AppState::Waiting,
            RUNNING => AppState::Running,
            _ => AppState::Detaching,
        }
    }

    pub fn running(&self) {
        let _ = self.state.compare_exchange(WAITING, RUNNING, Relaxed, Relaxed);
    }

    pub fn set_detaching(&self, detaching: bool) {
        self.state.store(if detaching { DETACHING } else { RUNNING }, Relaxed);
    }

    pub fn note(&self, text: impl Into<String>) {
        *self.note.lock() = text.into();
    }

    pub fn current_note(&self) -> String {
        self.note.lock().clone()
    }

    /// Asks /proc what is resident, in pages; the sum over all members.
    pub fn measure(&self, evicted: u64) -> u64 {
        let region = self.region().map(|range| self.count_region(range));
        let mut members = self.members.lock();
        let mut total = 0;
        for member in members.iter_mut() {
            member.resident = region.unwrap_or_else(|| process::resident_pages(member.pid).unwrap_or(0));
            total += member.resident;
        }
        let pids: Vec<i32> = members.iter().filter(|m| m.resident > 256).map(|m| m.pid).collect();
        drop(members);
        let marks = Watermarks::of(self.limit(), total, evicted);
        if pids.len() > 1 && total > marks.high {
            total = total * self.sharing(&pids, total) / 1024;
        }
        let marks = Watermarks::of(self.limit(), total, evicted);
        self.estimate.store(total as i64, Relaxed);
        self.high.store(marks.high as i64, Relaxed);
        self.limit_pages.store(marks.limit as i64, Relaxed);
        total
    }

    /// What of a region is resident. Looking at every page takes 3 ms per GiB, so that in between
    /// the count of what came and went must do: only pages that are touched for the first time,
    /// before anything was evicted, come without annexd.
    fn count_region(&self, (start, end): (u64, u64)) -> u64 {
        let estimate = self.estimate.load(Relaxed).max(0) as u64;
        let mut counted = self.counted.lock();
        let seldom = if self.counters.evicted.load(Relaxed) > 0 { 200 } else { 10 };
        if counted.is_some_and(|(at, cost)| at.elapsed() < (cost * seldom).max(Duration::from_millis(15))) {
            return estimate;
        }
        let began = Instant::now();
        let pid = self.members.lock().first().map(|member| member.pid);
        let mut runs = Vec::new();
        let seen = pid.and_then(|pid| {
            let mut pagemap = Pagemap::open(pid).ok()?;
            let mut at = start;
            while at < end {
                at = pagemap.resident(at, end, 0, &mut runs).ok().filter(|next| *next > at)?;
            }
            Some(runs.iter().map(|run| run.pages).sum())
        });
        *counted = Some((Instant::now(), began.elapsed()));
        // It has ended.
        seen.unwrap_or(0)
    }

    /// How much of the plain sum remains when pages shared by forked processes are counted once, in
    /// 1/1024. Dear to find out, so it takes at most a fiftieth of the time.
    fn sharing(&self, pids: &[i32], total: u64) -> u64 {
        let mut cached = self.sharing.lock();
        if let Some((at, cost, ratio)) = *cached
            && at.elapsed() < (cost * 50).max(Duration::from_millis(200))
        {
            return ratio;
        }
        let start = Instant::now();
        let proportional: u64 = pids.iter().filter_map(|pid| process::proportional_pages(*pid)).sum();
        let ratio = (proportional * 1024 / total.max(1)).clamp(1, 1024);
        *cached = Some((Instant::now(), start.elapsed(), ratio));
        ratio
    }

    /// Counts pages that came (or, negative, went); true if the app is above its high watermark
    /// now.
    pub fn add_resident(&self, pages: i64) -> bool {
        self.estimate.fetch_add(pages, Relaxed) + pages > self.high.load(Relaxed)
    }

    pub fn is_above_watermark(&self) -> bool {
        self.estimate.load(Relaxed) > self.high.load(Relaxed)
    }

    /// Pages that may come before the app is above its limit.
    pub fn room(&self) -> u32 {
        let room = self.limit_pages.load(Relaxed).saturating_sub(self.estimate.load(Relaxed));
        room.clamp(0, u32::MAX.into()) as u32
    }

    /// Pages believed to be resident.
    pub fn estimate(&self) -> i64 {
        self.estimate.load(Relaxed)
    }

    /// Within an eighth of its high watermark, or above.
    pub fn is_near(&self) -> bool {
        self.estimate.load(Relaxed) > self.high.load(Relaxed) / 8 * 7
    }

    /// Makes a fault wait while the app is above its limit and eviction can do something about it;
    /// not for long, whatever happens. The evictor must be woken afterwards: it hands out again
    /// what is delayed. If it does not, whoever made it wait does, after [`LONGEST_DELAY`].
    pub fn delay(&self, space: SpaceId, fault: Fault) -> bool {
        let full = self.estimate.load(Relaxed) > self.limit_pages.load(Relaxed);
        let wait = full
            && fault.since.elapsed() < LONGEST_DELAY
            && self.state.load(Relaxed) == RUNNING
            && self.yields.load(Relaxed)
            && !self.is_resting();
        if wait {
            self.delayed.lock().push((space, fault));
        }
        wait
    }

    /// What a batch brought, in pages.
    pub fn yielded(&self, pages: u64) {
        const WORTH_WAITING: u64 = 32;
        self.yields.store(pages >= WORTH_WAITING, Relaxed);
    }

    pub fn take_delayed(&self) -> Vec<(SpaceId, Fault)> {
        std::mem::take(&mut self.delayed.lock())
    }

    pub fn rest(&self, pause: Duration) {
        *self.idle_until.lock() = Some(Instant::now() + pause);
    }

    pub fn is_resting(&self) -> bool {
        self.idle_until.lock().is_some_and(|t| Instant::now() < t)
    }

    /// Fails closed: nothing of the app may run on with memory that can't be vouched for.
    pub fn stop(&self, why: &str) {
        if self.stopped.swap(true, Relaxed) {
            return;
        }
        event!(ERROR, AppStopped of &self.name, uid self.uid, "stopping the app {}: {why}", self.name);
        self.note(format!("stopped by annexd: {why}"));
        self.kill_all(&[]);
    }

    /// Whether it was stopped. Whoever is found to belong to it afterwards must not run on either:
    /// see [`App::kill_all`].
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Kills its members, and whoever lives in their memory or in one of these other spaces of its.
    pub fn kill_all(&self, others: &[Arc<Identity>]) {
        let members = self.members.lock();
        let mut spaces = others.to_vec();
        for member in members.iter() {
            let _ = process::pidfd_kill(member.pidfd.as_fd(), libc::SIGKILL);
            spaces.extend(member.space.clone());
        }
        drop(members);
        // Whoever shares their memory without being a member has the same pages.
        for (mark, stub) in spaces.iter().filter_map(|space| Some((space.mark()?, space.stub_pid()))) {
            for (pid, _) in mark.processes(stub) {
                // Asked again once the PID can't become somebody else's.
                let Ok(pidfd) = process::pidfd_open(pid) else { continue };
                if mark.task_of(pid).is_some() {
                    let _ = process::pidfd_kill(pidfd.as_fd(), libc::SIGKILL);
                }
            }
        }
    }

    pub fn has_member(&self, pid: i32, stat: &Stat) -> bool {
        self.members.lock().iter().any(|m| m.pid == pid && m.started == stat.started)
    }

    /// True if none of its processes runs any more.
    pub fn has_ended(&self) -> bool {
        self.members.lock().iter().all(Member::has_ended)
    }

    /// `evicted` in pages; `lack` says why the pool has no room.
    pub fn info(&self, evicted: u64, lack: impl FnOnce() -> String) -> AppInfo {
        let page = PAGE_SIZE as u64;
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let resident = self.measure(evicted) * page;
        let pids: Vec<i32> = self.members.lock().iter().map(|m| m.pid).collect();
        // Shared among them, as a rule.
        let shared = || pids.iter().map(|pid| process::shared_pages(*pid)).max().unwrap_or(0) * page;
        let note = self.eviction_blocked.describe(lack).unwrap_or_else(|| self.current_note());
        let note = match note.is_empty() && self.region().is_none() {
            true => note_of_shared(shared(), resident + evicted * page).unwrap_or_default(),
            false => note,
        };
        AppInfo {
            id: self.id,
            name: self.name.clone(),
            pids,
            uid: self.uid,
            local: self.limit(),
            auto: self.auto().map(Auto::info),
            resident,
            evicted: evicted * page,
            state: self.state(),
            note,
            faults: Faults {
                major: load(&self.counters.major),
                zero: load(&self.counters.zero),
                p50_us: self.latency.quantile(0.5),
                p99_us: self.latency.quantile(0.99),
                max_us: self.latency.max(),
                latency_us: self.latency.by_doublings(),
                latency_sum_us: self.latency.sum_us(),
            },
            pages_evicted: load(&self.counters.evicted),
            pages_clean: load(&self.counters.clean),
            pages_zero: load(&self.counters.zero_pages),
            pages_in: load(&self.counters.brought_in),
            pages_prefetched: load(&self.counters.prefetched),
            prefetch_samples: load(&self.counters.prefetch_samples),
            prefetch_hits: load(&self.counters.prefetch_hits),
        }
    }
}

/// Most of the app's memory is shared, so that annex does little for it: heaps of some Java
/// collectors, databases' buffers. In bytes.
fn note_of_shared(shared: u64, private: u64) -> Option<String> {
    (shared >= WORTH_A_WORD && shared > private).then(|| {
        format!(
            "{} of its memory is shared and stays resident: only private anonymous memory is paged",
            format_bytes(shared)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_watermarks_lie_below_the_limit() {
        let marks = Watermarks::of(Limit::Bytes(512 << 20), 0, 0);
        assert_eq!(marks, Watermarks { limit: 131_072, high: 131_072 - 2048, low: 131_072 - 4096 });
        let share = Watermarks::of(Limit::Percent(25), 100_000, 300_000);
        assert!(share.low < share.high && share.high < 100_000);
    }

    #[test]
    fn a_process_that_gets_no_stub_is_tried_ever_more_seldom_and_told_of_once() {
        let pid = std::process::id() as i32;
        let mut member = Member::new(pid, 0, process::pidfd_open(pid).unwrap());
        let now = Instant::now();
        let mut fail = |why: &str| (member.failed(why, now), (member.retry_at.unwrap() - now).as_secs());
        assert_eq!(fail("traced"), (false, 1), "it may just have ended");
        let later: Vec<(bool, u64)> = (0..5).map(|_| fail("traced")).collect();
        assert_eq!(later, [(true, 2), (false, 4), (false, 8), (false, 16), (false, 16)]);
        assert_eq!(fail("32-bit"), (true, 16));
        member.succeeded();
        assert_eq!(member.retry_at, None);
        assert!(!member.failed("traced", now));
    }

    #[test]
    fn a_limit_that_is_found_never_overrules_one_that_is_asked_for() {
        let target: StallTarget = "1%".parse().unwrap();
        let app = App::new(1, "a".into(), 0, Target::Pid(1), Limit::Bytes(64 << 20)).with_auto(Some(target));
        assert!(app.steer(32 << 20, Auto::new(target)));
        assert!(!app.steer(32 << 20, Auto::new(target)), "the same once more");
        assert_eq!(app.limit(), Limit::Bytes(32 << 20));
        app.set_limit(Limit::Bytes(8 << 20), None);
        assert!(!app.steer(16 << 20, Auto::new(target)));
        assert_eq!((app.limit(), app.auto()), (Limit::Bytes(8 << 20), None));
        app.set_limit(app.limit(), Some("2%".parse().unwrap()));
        assert!(!app.steer(16 << 20, Auto::new(target)), "it was for another target");
        assert_eq!(app.limit(), Limit::Bytes(8 << 20));
    }

    #[test]
    fn installs_since_the_last_measurement_count_against_the_limit() {
        let app = App::new(1, "a".into(), 0, Target::Pid(1), Limit::Bytes(8 << 20));
        app.measure(0);
        assert!(!app.add_resident(1791));
        assert!(app.add_resident(2));
        assert!(!app.add_resident(-2));
        assert_eq!(app.room(), 257, "the high watermark lies a MiB below the limit");
        app.add_resident(1000);
        assert_eq!(app.room(), 0);
    }

    #[test]
    fn an_app_that_is_mostly_shared_memory_is_told_of() {
        let note = note_of_shared(64 << 20, 1 << 20).unwrap();
        assert!(note.starts_with("64 MiB of its memory is shared"), "{note}");
        assert_eq!(note_of_shared(64 << 20, 100 << 20), None, "most of it is paged");
        assert_eq!(note_of_shared(8 << 20, 1 << 20), None, "too little");
    }
}
