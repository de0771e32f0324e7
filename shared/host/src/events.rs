//! What happened, for `annex events`: a ring of the last [`ENTRIES`] events in memory that outlives
//! the daemon.
//!
//! [`event!`](crate::event) logs a line, with `event` and `subject` as fields, and notes it here.
//! What happens to the same thing again within [`SAME_WITHIN`] is counted, so that one incident
//! does not push everything else out. Until [`keep_in`] says where, events are logged only: in the
//! agent, and in unit tests.
//!
//! docs/formats.md has the layout. An entry that is being written has the number 0, so a kill at
//! any point leaves whole entries only.

use crate::mapped::{MapError, Mapped};
use annex_shared::event::Event;
use parking_lot::Mutex;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use annex_shared::event::EventKind;

/// How many events are kept.
pub const ENTRIES: usize = 1000;
/// The same event about the same thing is counted for so long.
pub const SAME_WITHIN: Duration = Duration::from_secs(60);
/// How many of the last events may be the same one.
const LOOK_BACK: u64 = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"annexevt");
const VERSION: u32 = 1;
const HEADER: usize = 64;
const ENTRY: usize = 512;
const TEXT: usize = 40;
const LONGEST_SUBJECT: usize = 128;
const LONGEST_TEXT: usize = ENTRY - TEXT;
const NOBODY: u32 = u32::MAX;

/// What events about the pool as a whole are about.
pub const POOL: &str = "pool";
/// And those about the daemon itself.
pub const DAEMON: &str = "annexd";

static KEPT: Mutex<Option<Ring>> = Mutex::new(None);

/// From now on events are kept there.
pub fn keep_in(ring: Ring) {
    *KEPT.lock() = Some(ring);
}

/// Notes an event. The macro is what to use.
pub fn record(kind: EventKind, subject: &str, uid: Option<u32>, cause: &str) {
    if let Some(ring) = &mut *KEPT.lock() {
        ring.add(kind, subject, uid, cause, now_ms());
    }
}

/// The events after that number, the oldest first.
pub fn after(seq: u64) -> Vec<Event> {
    KEPT.lock().as_ref().map_or_else(Vec::new, |ring| ring.after(seq))
}

/// Those of a kind since the daemon's memory began, by kind; see [`Ring::counts`].
pub fn counts() -> Vec<(EventKind, u64)> {
    KEPT.lock().as_ref().map_or_else(Vec::new, Ring::counts)
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// `event!(WARN, DonorAway of &name, "{name} does not answer")` logs the line and notes the event.
/// `event!(…, AppStopped of &app.name, uid app.uid, …)` is for what only some may see.
#[macro_export]
macro_rules! event {
    ($level:ident, $kind:ident of $subject:expr, uid $uid:expr, $($line:tt)+) => {
        $crate::event!(@ $level, $kind, $subject, Some($uid), $($line)+)
    };
    ($level:ident, $kind:ident of $subject:expr, $($line:tt)+) => {
        $crate::event!(@ $level, $kind, $subject, None, $($line)+)
    };
    (@ $level:ident, $kind:ident, $subject:expr, $uid:expr, $($line:tt)+) => {{
        let kind = $crate::events::EventKind::$kind;
        let subject: &str = $subject;
        let cause = ::std::format!($($line)+);
        ::tracing::event!(::tracing::Level::$level, event = kind.name(), subject, "{cause}");
        $crate::events::record(kind, subject, $uid, &cause);
    }};
}

/// What was kept can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("the events of the annexd before are of another version")]
    Version,
}

/// The ring itself.
#[derive(Debug)]
pub struct Ring {
    table: Mapped,
    /// Of the next event.
    next: u64,
    /// By the place of their kind in [`EventKind::ALL`].
    counts: Vec<u64>,
}

impl Ring {
    pub fn create() -> Result<Ring, MapError> {
        let table = Mapped::create("events", HEADER + ENTRIES * ENTRY)?;
        table.u64(0).store(MAGIC, Relaxed);
        table.u32(8).store(VERSION, Relaxed);
        table.u32(12).store(ENTRIES as u32, Relaxed);
        Ok(Ring { table, next: 1, counts: vec![0; EventKind::ALL.len()] })
    }

    /// What an annexd before has left.
    pub fn open(fd: OwnedFd) -> Result<Ring, RingError> {
        let table = Mapped::open("events", fd)?;
        let is_ours = table.size() == HEADER + ENTRIES * ENTRY
            && table.u64(0).load(Relaxed) == MAGIC
            && table.u32(8).load(Relaxed) == VERSION
            && table.u32(12).load(Relaxed) == ENTRIES as u32;
        if !is_ours {
            return Err(RingError::Version);
        }
        let last = (0..ENTRIES as u64).map(|at| table.u64(place(at)).load(Acquire)).max().unwrap_or(0);
        Ok(Ring { table, next: last + 1, counts: vec![0; EventKind::ALL.len()] })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.table.fd()
    }

    fn add(&mut self, kind: EventKind, subject: &str, uid: Option<u32>, cause: &str, now: u64) {
        let nth = EventKind::ALL.iter().position(|k| *k == kind).unwrap_or(0);
        self.counts[nth] += 1;
        let subject = cut(subject, LONGEST_SUBJECT);
        if let Some(at) = self.same(kind, subject, now) {
            self.table.u64(at + 16).store(now, Relaxed);
            self.table.u32(at + 24).fetch_add(1, Relaxed);
            return;
        }
        let cause = cut(cause, LONGEST_TEXT - subject.len());
        let at = place(self.next);
        self.table.u64(at).store(0, Release);
        self.table.u64(at + 8).store(now, Relaxed);
        self.table.u64(at + 16).store(now, Relaxed);
        self.table.u32(at + 24).store(1, Relaxed);
        self.table.u16(at + 28).store(kind.code(), Relaxed);
        self.table.u16(at + 30).store(subject.len() as u16, Relaxed);
        self.table.u16(at + 32).store(cause.len() as u16, Relaxed);
        self.table.u32(at + 36).store(uid.unwrap_or(NOBODY), Relaxed);
        for (i, byte) in subject.bytes().chain(cause.bytes()).enumerate() {
            self.table.u8(at + TEXT + i).store(byte, Relaxed);
        }
        self.table.u64(at).store(self.next, Release);
        self.next += 1;
    }

    /// Where the same event was noted a moment ago.
    fn same(&self, kind: EventKind, subject: &str, now: u64) -> Option<usize> {
        let from = self.next.saturating_sub(LOOK_BACK).max(1);
        (from..self.next).rev().map(place).find(|at| {
            self.table.u16(at + 28).load(Relaxed) == kind.code()
                && now.abs_diff(self.table.u64(at + 8).load(Relaxed)) < SAME_WITHIN.as_millis() as u64
                && self.event(*at).is_some_and(|event| event.subject == subject)
        })
    }

    fn after(&self, seq: u64) -> Vec<Event> {
        let later = (0..ENTRIES as u64).map(place).filter(|at| self.table.u64(*at).load(Acquire) > seq);
        let mut events: Vec<Event> = later.filter_map(|at| self.event(at)).collect();
        events.sort_by_key(|event| event.seq);
        events
    }

    /// None: there is none, or it is of a kind that only a later annexd knows.
    fn event(&self, at: usize) -> Option<Event> {
        let seq = Some(self.table.u64(at).load(Acquire)).filter(|seq| *seq > 0)?;
        let kind = EventKind::of_code(self.table.u16(at + 28).load(Relaxed))?;
        let length = |at| usize::from(self.table.u16(at).load(Relaxed));
        let (subject, cause) = (length(at + 30), length(at + 32));
        let bytes = |from: usize, length: usize| -> Option<String> {
            let end = Some(from + length).filter(|end| *end <= LONGEST_TEXT)?;
            let bytes: Vec<u8> = (from..end).map(|i| self.table.u8(at + TEXT + i).load(Relaxed)).collect();
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        Some(Event {
            seq,
            kind,
            subject: bytes(0, subject)?,
            cause: bytes(subject, cause)?,
            time_ms: self.table.u64(at + 8).load(Relaxed),
            last_ms: self.table.u64(at + 16).load(Relaxed),
            count: self.table.u32(at + 24).load(Relaxed),
            uid: Some(self.table.u32(at + 36).load(Relaxed)).filter(|uid| *uid != NOBODY),
        })
    }

    /// How many of each kind there were since this process began.
    fn counts(&self) -> Vec<(EventKind, u64)> {
        EventKind::ALL.iter().copied().zip(self.counts.iter().copied()).collect()
    }
}

fn place(seq: u64) -> usize {
    HEADER + (seq % ENTRIES as u64) as usize * ENTRY
}

/// At most so many bytes, whole characters.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    fn add(ring: &mut Ring, subject: &str, now: u64) {
        ring.add(EventKind::DonorAway, subject, None, "it does not answer", now);
    }

    #[test]
    fn events_come_back_in_their_order_and_through_a_take_over() {
        let mut ring = Ring::create().unwrap();
        ring.add(EventKind::AppStopped, "redis", Some(1000), "its stub was killed", 5 * SECOND);
        add(&mut ring, "oak", 6 * SECOND);
        let before = ring.after(0);
        assert_eq!((before[0].kind, before[0].uid, before[0].seq), (EventKind::AppStopped, Some(1000), 1));
        assert_eq!((before[0].subject.as_str(), before[0].cause.as_str()), ("redis", "its stub was killed"));
        let fd = ring.fd().try_clone_to_owned().unwrap();
        drop(ring);
        let mut next = Ring::open(fd).unwrap();
        assert_eq!(next.after(0), before);
        add(&mut next, "elm", 7 * SECOND);
        let seqs: Vec<u64> = next.after(1).iter().map(|event| event.seq).collect();
        assert_eq!(seqs, [2, 3]);
    }

    #[test]
    fn the_last_thousand_are_kept() {
        let mut ring = Ring::create().unwrap();
        (0..2500).for_each(|i| add(&mut ring, &format!("d{i}"), i * SECOND));
        let events = ring.after(0);
        assert_eq!(events.len(), ENTRIES);
        assert_eq!((events[0].seq, events[0].subject.as_str()), (1501, "d1500"));
        assert_eq!(events[ENTRIES - 1].subject, "d2499");
    }

    #[test]
    fn what_happens_again_at_once_is_counted_and_later_is_another_event() {
        let mut ring = Ring::create().unwrap();
        [0, 1, 59].iter().for_each(|s| add(&mut ring, "oak", s * SECOND));
        add(&mut ring, "elm", 59 * SECOND);
        add(&mut ring, "oak", 60 * SECOND);
        let events = ring.after(0);
        assert_eq!(events.len(), 3);
        assert_eq!((events[0].count, events[0].time_ms, events[0].last_ms), (3, 0, 59 * SECOND));
        assert_eq!((events[2].subject.as_str(), events[2].count), ("oak", 1));
        let away = ring.counts().into_iter().find(|(kind, _)| *kind == EventKind::DonorAway);
        assert_eq!(away, Some((EventKind::DonorAway, 5)));
    }

    /// A kill left it: its bytes are of two events.
    #[test]
    fn an_entry_that_was_being_written_is_left_out_and_its_place_is_used_again() {
        let mut ring = Ring::create().unwrap();
        (0..3).for_each(|i| add(&mut ring, &format!("d{i}"), i * SECOND));
        ring.table.u64(place(3)).store(0, Relaxed);
        let mut next = Ring::open(ring.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(next.after(0).len(), 2);
        add(&mut next, "fresh", 9 * SECOND);
        assert_eq!(next.after(2)[0].subject, "fresh");
    }

    #[test]
    fn long_texts_are_cut_between_characters_and_rubbish_is_refused() {
        let mut ring = Ring::create().unwrap();
        ring.add(EventKind::PageLost, &"ä".repeat(100), None, &"ö".repeat(500), 1);
        let event = &ring.after(0)[0];
        assert_eq!((event.subject.chars().count(), event.cause.chars().count()), (64, 172));
        ring.table.u32(8).store(VERSION + 1, Relaxed);
        assert!(matches!(Ring::open(ring.fd().try_clone_to_owned().unwrap()), Err(RingError::Version)));
        let small = Mapped::create("events", 4096).unwrap();
        assert!(matches!(Ring::open(small.fd().try_clone_to_owned().unwrap()), Err(RingError::Version)));
    }

    #[test]
    fn hostile_lengths_in_what_was_kept_are_no_harm() {
        let mut ring = Ring::create().unwrap();
        add(&mut ring, "oak", 1);
        ring.table.u16(place(1) + 32).store(u16::MAX, Relaxed);
        assert_eq!(ring.after(0), []);
    }
}
