//! Points at which annexd can be told to die, for the tests of what its successor makes of it, or to linger, for those of races.
//!
//! `ANNEXD_DIE_AT=NAME` or `NAME:N` in annexd's environment kills it, as SIGKILL from outside would, when it comes by the point NAME for
//! the Nth time. `ANNEXD_LINGER_AT=NAME:MICROSECONDS` makes it stay there for so long each time. Without the variables a point costs one load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

enum Fate {
    /// At the so manyth time.
    Die(AtomicU64),
    Linger(Duration),
}

struct Place {
    point: String,
    fate: Fate,
}

static PLACES: OnceLock<Vec<Place>> = OnceLock::new();

/// Reads the environment; before this, points do nothing.
pub fn arm() {
    let wanted = |variable: &str, fate: fn(u64) -> Fate| {
        let wanted = std::env::var(variable).ok().filter(|wanted| !wanted.is_empty())?;
        let (point, number) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        Some(Place { point: point.to_owned(), fate: fate(number.parse().unwrap_or(1)) })
    };
    let dies = wanted("ANNEXD_DIE_AT", |number| Fate::Die(AtomicU64::new(number)));
    let lingers = wanted("ANNEXD_LINGER_AT", |number| Fate::Linger(Duration::from_micros(number)));
    PLACES.get_or_init(|| dies.into_iter().chain(lingers).collect());
}

/// Dies or lingers here if that is what was asked for.
#[inline]
pub fn point(name: &'static str) {
    PLACES.get().into_iter().flatten().for_each(|place| come_by(place, name));
}

#[cold]
fn come_by(place: &Place, name: &str) {
    match &place.fate {
        _ if place.point != name => {}
        Fate::Linger(time) => std::thread::sleep(*time),
        Fate::Die(left) if left.fetch_sub(1, Relaxed) == 1 => {
            // SAFETY: takes numbers only.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            // The signal is on its way: nothing more may happen here.
            loop {
                std::thread::park();
            }
        }
        Fate::Die(_) => {}
    }
}
