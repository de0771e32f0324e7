//! Donors from which nothing comes any more. A lane that has waited too long for anything from an
//! end tells the coordinator, which has the donor's agent asked. If the agent is silent as well,
//! writes go on without the donor at once: what is under way there is given up, long before its own
//! time is over.

use super::*;

/// Nothing came from an end for so long, though something is under way there: far beyond what an
/// operation takes.
pub(crate) const LATE: Duration = Duration::from_millis(50);

impl End {
    /// Since when something is awaited from it and nothing came.
    fn waits(&self, now: Instant) -> Option<Duration> {
        let heard = self.heard.filter(|_| self.outstanding > 0)?;
        Some(now.saturating_duration_since(heard)).filter(|waits| *waits >= LATE)
    }
}

impl Lane {
    /// Tells of ends that are silent, and gives those up whose donors are known to be.
    pub(super) fn listen(&mut self, now: Instant) {
        for (at, end) in self.ends.iter_mut().enumerate() {
            if end.waits(now).is_none() {
                continue;
            }
            let donor = DonorId(at as u16);
            let is_silent = self.core.donor(donor).is_some_and(|donor| donor.silent.load(Relaxed));
            if is_silent && let Some(endpoint) = &mut end.endpoint {
                endpoint.give_up();
            } else if end.told.is_none_or(|told| now.saturating_duration_since(told) >= LATE) {
                end.told = Some(now);
                self.core.tell(News::Late { donor });
            }
        }
    }
}
