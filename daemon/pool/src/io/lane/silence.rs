//! Donors from which nothing comes any more. A lane that has waited too long for anything from an
//! end tells the coordinator, which has the donor's agent asked. If the agent is silent as well,
//! writes go on without the donor at once: what is under way there is given up, long before its own
//! time is over.

use super::end::LATE;
use super::state::LaneState;
use crate::coordinator::news::News;
use annex_shared::ids::DonorId;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Tells of ends that are silent, and gives those up whose donors are known to be.
pub(super) fn listen(lane: &mut LaneState, now: Instant) {
    for (at, end) in lane.ends.iter_mut().enumerate() {
        if end.waits(now).is_none() {
            continue;
        }
        let donor = DonorId(at as u16);
        let is_silent = lane.core.donor(donor).is_some_and(|donor| donor.silent.load(Relaxed));
        if is_silent && let Some(endpoint) = &mut end.endpoint {
            endpoint.give_up();
        } else if end.told.is_none_or(|told| now.saturating_duration_since(told) >= LATE) {
            end.told = Some(now);
            lane.core.tell(News::Late { donor });
        }
    }
}
