//! What a donor may say of itself: nothing in its welcome is out of all bounds. Whoever goes by one
//! that is would wait for ever, or never rest.

use crate::donor::dial::DialError;
use crate::metadata::extents::MAX_EXTENTS;
use annex_shared::wire::Welcome;
use std::ops::RangeInclusive;

/// What an agent may have as `lease_ttl`, in milliseconds.
const TTL: RangeInclusive<u64> = 100..=3_600_000;
/// Slabs that one annexd can hold: as many as its pool can have extents, and what it has not given
/// back yet.
const MOST_HELD: usize = 2 * MAX_EXTENTS;
/// Bytes of a name that a donor gives itself.
const LONGEST_NAME: usize = 64;

pub(super) fn is_sound(welcome: &Welcome) -> Result<(), DialError> {
    match welcome.lease_ttl_ms {
        ttl_ms if !TTL.contains(&ttl_ms) => Err(DialError::BadTtl { ttl_ms }),
        _ => is_possible(welcome.held.len()),
    }
}

/// This annexd may hold so many slabs there.
pub(super) fn is_possible(slabs: usize) -> Result<(), DialError> {
    if slabs > MOST_HELD { Err(DialError::BadHeld { slabs }) } else { Ok(()) }
}

/// What the donor calls itself, as people can read it; its address if that is nothing.
pub(super) fn name_of(welcome: &Welcome, address: &str) -> String {
    let name = welcome.name.trim();
    match name.is_empty() {
        true => address.to_owned(),
        false => name[..name.floor_char_boundary(LONGEST_NAME)].to_owned(),
    }
}
