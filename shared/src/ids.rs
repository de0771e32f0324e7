//! Newtypes for the numbers that cross module borders, so that one can't be passed for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A donor, as the client numbers them: the index of its entry in annexd's configuration.
    DonorId(u16), "donor{}"
);
id!(
    /// A slab on one agent: its index there. It stays the same when the agent is restarted and
    /// takes its memory over.
    SlabId(u32), "slab{}"
);
id!(
    /// An extent of the pool: R replicas of the same bytes.
    ExtentId(u32), "extent{}"
);
id!(
    /// One 4 KiB place in the pool, numbered over all extents: `extent * slots_per_extent + place`.
    /// 30 bits at most, so that a page record fits 32 (4 TiB of pool).
    SlotIdx(u32), "slot{}"
);
id!(
    /// What an agent draws at each start. Keys and addresses are valid for one incarnation only.
    Incarnation(u64), "{:016x}"
);
id!(
    /// What a client draws at its first start; an agent knows its leases by it.
    ClientId(u64), "{:016x}"
);
id!(
    /// The key that a remote operation must show. Drawn at random for each lease; its upper half is
    /// the lease's number.
    Rkey(u64), "{:016x}"
);
id!(
    /// Tells one lease of a slab from the next one: drawn with the lease's first key, and the upper
    /// half of all its keys. 0 is a lease from the time before `wire::Version::V4`, of which
    /// nothing is known.
    LeaseNumber(u32), "{:08x}"
);
id!(
    /// An address in a donor's registered memory, in the donor's numbering. For `tcp` and `shm` a
    /// slab starts at address 0 of its own rkey.
    RemoteAddr(u64), "{:#x}"
);

impl Rkey {
    /// A key of this lease, with these bits of its own.
    pub fn of(lease: LeaseNumber, own: u32) -> Rkey {
        Rkey(u64::from(lease.0) << 32 | u64::from(own))
    }

    pub fn lease(self) -> LeaseNumber {
        LeaseNumber((self.0 >> 32) as u32)
    }

    /// False if the lease under this key is another one than that under `earlier`: the slab was
    /// cleaned in between.
    pub fn goes_on_from(self, earlier: Rkey) -> bool {
        self.lease() == LeaseNumber(0) || self.lease() == earlier.lease()
    }
}

/// The secret a data connection proves, handed out over the control connection. Never printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionKey(pub u128);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}
