//! What goes into the lease book and comes out of it.

use annex_identity::certificate::KeyId;
use annex_shared::ids::{ClientId, Incarnation, LeaseNumber, Rkey, SessionKey, SlabId};
use annex_shared::wire::{Lease, Refusal};
use std::time::Duration;

/// A point of `CLOCK_MONOTONIC`, in nanoseconds: the clock the lease board uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    pub fn after(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    pub fn until(self, later: Moment) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

/// A control connection, numbered by the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

/// The machine a client runs on, for one boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub host: String,
    pub boot_id: String,
    /// Whose certificate it showed; `None` without TLS.
    pub holder: Option<Holder>,
}

/// Who holds leases, by a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `annex://CLUSTER/client/NAME`.
    pub name: String,
    /// It is let in with this key also once its certificate has expired.
    pub key: KeyId,
}

impl Machine {
    /// Whether both showed a certificate of the same name.
    pub fn is_same_holder(&self, other: &Machine) -> bool {
        let name = |machine: &Machine| machine.holder.as_ref().map(|holder| holder.name.clone());
        self.holder.is_some() && name(self) == name(other)
    }

    /// Why the other one is not this client; `None`: it is. Names are compared if both have one:
    /// TLS may have come or gone with a restart.
    pub fn other_than(&self, other: &Machine) -> Option<&str> {
        if let (Some(ours), Some(theirs)) = (&self.holder, &other.holder)
            && ours.name != theirs.name
        {
            return Some(&ours.name);
        }
        ((&self.host, &self.boot_id) != (&other.host, &other.boot_id)).then_some(&self.host)
    }
}

/// The book's limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub capacity: u32,
    pub per_client: u32,
    pub ttl: Duration,
    /// Free slabs that keep their memory.
    pub keep: u32,
}

/// What the book's owner has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let operations with this key through until then.
    Open { slab: SlabId, client: ClientId, rkey: Rkey, until: Moment },
    /// The open key is good until then.
    Extend { slab: SlabId, until: Moment },
    /// The key is dead from now on. Then clean the slab (zero it if `keep`, else give its memory
    /// back) and report [`Book::cleaned`](super::Book::cleaned).
    Close { slab: SlabId, rkey: Rkey, keep: bool },
    /// Give back this free slab's memory and report [`Book::cleaned`](super::Book::cleaned).
    Trim { slab: SlabId },
    /// Tell the client on this connection that these are wanted back by then.
    Recall { connection: ConnectionId, slabs: Vec<SlabId>, until: Moment },
    /// The client did not return these in time: for the log.
    Revoke { client: ClientId, slabs: u32 },
    /// The client's leases end then.
    Until { client: ClientId, until: Moment },
    /// The client takes part in this incarnation.
    Seen { client: ClientId },
    /// The client did not renew its leases: for the log.
    Lapse { client: ClientId, slabs: u32 },
    /// The client's claim is over: close its data connections.
    Forget { client: ClientId },
    /// A newer control connection took this one's place: close it.
    Supersede { connection: ConnectionId },
}

/// What an agent before this one left: who held what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    pub claims: Vec<SavedClaim>,
    pub leases: Vec<SavedLease>,
}

/// One client's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedClaim {
    pub client: ClientId,
    pub machine: Machine,
    /// The last incarnation it took part in.
    pub seen: Incarnation,
    /// When its leases would have ended.
    pub until: Moment,
}

/// One slab that was lent, and has all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedLease {
    pub slab: SlabId,
    pub client: ClientId,
    pub number: LeaseNumber,
}

/// The answer to a hello.
#[derive(Debug)]
pub struct Greeting {
    pub session: SessionKey,
    pub held: Vec<Lease>,
    /// The earlier incarnation whose bytes `held` still has, if the client has not taken part in
    /// this one yet.
    pub resumed: Option<Incarnation>,
    /// The last incarnation it took part in, this one for a new client; and when its leases end.
    pub seen: Incarnation,
    pub until: Moment,
}

/// The answer to a lease request: what is lent at once, and what needs memory first
/// ([`Book::filled`](super::Book::filled) for each).
#[derive(Debug, Default)]
pub struct Grant {
    pub leased: Vec<Lease>,
    pub to_fill: Vec<SlabId>,
}

/// A request came on a control connection that is not the client's newest, or whose claim is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another control connection of this client took over")]
pub struct Superseded;

/// Why nothing was lent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error(transparent)]
    Superseded(#[from] Superseded),
    #[error("{0}")]
    Refused(Refusal),
    /// All slabs are lent, but some are being cleaned: worth a short wait.
    #[error("all free slabs are being cleaned")]
    Cleaning,
}
