//! What a host that is short of memory gives to the apps whose limits are found: pure.

use crate::app::auto::controller::that_keeps;

/// One app's wish. Bytes.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub resident: u64,
    /// The limit that it should have.
    pub limit: u64,
    /// What of that it may take soon: less than `limit - resident` if it has no use for more.
    pub need: u64,
}

/// The memory of a host. Bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostMemory {
    pub total: u64,
    pub available: u64,
    /// Percent of the last ten seconds in which some program waited for memory; `None` where the
    /// kernel does not tell.
    pub stall: Option<f32>,
}

/// Programs wait for memory for so many percent of the time: there is none to give away.
const IS_SHORT: f32 = 10.0;

impl HostMemory {
    /// What may be given away. A thirty-second part of all stays with the host, 64 MiB at least.
    pub fn spare(self) -> u64 {
        match self.stall {
            Some(stall) if stall >= IS_SHORT => 0,
            _ => self.available.saturating_sub((self.total / 32).max(64 << 20)),
        }
    }
}

/// The limit that each gets: what it wishes for if there is enough for all, else a share of what
/// there is, by need. Nobody gets less than it has resident, unless it wishes for less.
pub fn share_out(spare: u64, claims: &[Claim]) -> Vec<u64> {
    let needed: u64 = claims.iter().map(|claim| claim.need).sum();
    let granted = |claim: &Claim| {
        if needed <= spare {
            return claim.limit;
        }
        let share = u128::from(claim.need) * u128::from(spare) / u128::from(needed.max(1));
        claim.limit.min(that_keeps(claim.resident) + share as u64)
    };
    claims.iter().map(granted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn claim(resident: u64, limit: u64, need: u64) -> Claim {
        Claim { resident: resident * MIB, limit: limit * MIB, need: need * MIB }
    }

    #[test]
    fn everybody_gets_all_while_there_is_enough() {
        let claims = [claim(320, 640, 300), claim(64, 1 << 20, 0), claim(640, 320, 0)];
        assert_eq!(share_out(300 * MIB, &claims), [640 * MIB, MIB << 20, 320 * MIB]);
    }

    #[test]
    fn a_short_host_is_shared_by_need_and_never_starved() {
        let claims = [claim(320, 920, 600), claim(640, 840, 200), claim(64, 1 << 20, 0), claim(640, 320, 0)];
        let limits = share_out(400 * MIB, &claims);
        assert_eq!(limits, [630 * MIB, 760 * MIB, 66 * MIB, 320 * MIB]);
        assert_eq!(share_out(0, &claims), [330 * MIB, 660 * MIB, 66 * MIB, 320 * MIB]);
    }

    #[test]
    fn a_part_stays_with_the_host_and_stalls_stop_everything() {
        let host = HostMemory { total: 32 << 30, available: 3 << 30, stall: None };
        assert_eq!(host.spare(), 2 << 30);
        assert_eq!(HostMemory { available: 1 << 20, ..host }.spare(), 0);
        assert_eq!(HostMemory { total: 1 << 30, ..host }.spare(), (3 << 30) - (64 << 20));
        assert_eq!(HostMemory { stall: Some(9.9), ..host }.spare(), 2 << 30);
        assert_eq!(HostMemory { stall: Some(10.0), ..host }.spare(), 0);
    }
}
