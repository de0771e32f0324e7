//! What is asked of a device, clamped to what it can do. Pure.

/// What the device says it can do, as far as we ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Work requests in one queue.
    pub queue: u32,
    /// Entries in one completion queue.
    pub completions: u32,
    /// READs and atomics that one queue pair may have in flight toward its peer, and have answered
    /// for its peer.
    pub reads_out: u32,
    pub reads_in: u32,
    /// Bytes in one message.
    pub message: u32,
    /// Bytes in one memory region.
    pub region: u64,
    /// Whether COMPARE_SWAP is atomic, at least between this device's own operations.
    pub swaps: bool,
}

/// READs and atomics in flight that we ask for; more than that gains nothing.
const READS: u32 = 16;

/// What an endpoint gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Operations outstanding at once.
    pub depth: u32,
    /// READs and atomics in flight; the rest wait in the device's queue.
    pub reads: u8,
    /// What was less than asked for, for the log; empty if nothing was.
    pub notes: Vec<String>,
}

/// Clamps an endpoint of `depth` operations. `peer_reads` is what the other side answers at once.
pub fn grant(limits: &DeviceLimits, depth: u32, peer_reads: u8) -> Granted {
    let mut notes = Vec::new();
    let mut clamp = |what: &str, wanted: u32, at_most: u32| {
        let got = wanted.min(at_most).max(1);
        if got < wanted {
            notes.push(format!("{what} {got} instead of {wanted}"));
        }
        got
    };
    let depth = clamp("queue depth", depth, limits.queue.min(limits.completions));
    let reads = clamp("READs in flight", READS, limits.reads_out.min(u32::from(peer_reads)));
    Granted { depth, reads: reads as u8, notes }
}

/// READs and atomics that we answer at once for a peer.
pub fn reads_answered(limits: &DeviceLimits) -> u8 {
    limits.reads_in.clamp(1, READS) as u8
}

/// The device's code for the time after which it sends a packet anew, so that all its tries
/// together take about `patience`. The code stands for 4.096 µs times two to its power; a device
/// may take up to four times as long.
pub fn ack_timeout(patience: std::time::Duration, tries: u8) -> u8 {
    let units = patience.as_nanos() / u128::from(tries.max(1)) / 4096;
    units.max(2).ilog2().clamp(8, 21) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ROOMY: DeviceLimits = DeviceLimits {
        queue: 16384,
        completions: 32767,
        reads_out: 128,
        reads_in: 128,
        message: 1 << 30,
        region: u64::MAX,
        swaps: true,
    };

    #[test]
    fn a_roomy_device_gives_what_is_asked_and_nothing_is_said() {
        assert_eq!(grant(&ROOMY, 256, 16), Granted { depth: 256, reads: 16, notes: vec![] });
        assert_eq!(reads_answered(&ROOMY), 16);
    }

    #[test]
    fn a_small_device_clamps_and_says_so() {
        let small = DeviceLimits { queue: 100, completions: 64, reads_out: 4, reads_in: 2, ..ROOMY };
        let granted = grant(&small, 256, 16);
        assert_eq!((granted.depth, granted.reads), (64, 4));
        assert_eq!(granted.notes, ["queue depth 64 instead of 256", "READs in flight 4 instead of 16"]);
        assert_eq!(reads_answered(&small), 2);
    }

    #[test]
    fn reads_in_flight_never_exceed_what_the_peer_answers() {
        assert_eq!(grant(&ROOMY, 8, 1).reads, 1);
        assert_eq!(grant(&ROOMY, 8, 0).reads, 1, "a peer that answers none could not be read from at all");
    }

    #[test]
    fn all_tries_together_take_no_longer_than_the_patience() {
        for patience in [Duration::from_millis(500), Duration::from_secs(3), Duration::from_secs(20)] {
            let code = ack_timeout(patience, 8);
            let all = Duration::from_nanos(4096 << code) * 8;
            assert!(all <= patience && all * 2 > patience, "{patience:?}: {code}, {all:?}");
        }
    }
}
