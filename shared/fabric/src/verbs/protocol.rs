//! What client and agent say to each other about RDMA, over a TCP connection of its own
//! (`Role::Verbs`). The data go past it.
//!
//! After preamble and answer the client asks and the agent answers, one at a time, in the frames of
//! [`annex_shared::wire`]. The agent keeps a protection domain for the connection: queue pairs and
//! registered slabs live in it, and with the connection they end.

use super::gid::{Gid, GidKind};
use crate::ErrorKind;
use annex_shared::ids::Rkey;
use annex_shared::printable::received;
use serde::{Deserialize, Serialize};

/// Bytes that prove that a READ brings what is there, and not something else.
pub type Nonce = [u8; 32];

/// From client to agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Connect a queue pair to mine; answered by `Opened`.
    Open(Party),
    /// Register the slab leased under this key; answered by `Mapped`.
    Map { rkey: Rkey },
    /// End all connections, of any provider, that I opened in another session; answered by `Closed`
    /// when nothing is executed for them any more. Slabs are registered before that, so that the
    /// client is without a connection for a moment only.
    Fence,
    /// Destroy that queue pair of yours; answered by `Closed` when nothing that came through it
    /// will touch memory any more. One that is unknown is closed already.
    Close { number: u32 },
}

/// From agent to client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The agent's end; and where the client reads `nonce`, to know that data flows.
    Opened {
        party: Party,
        proof: Window,
        nonce: Nonce,
    },
    Mapped(Window),
    Closed,
    /// Not this time, for this reason.
    Refused {
        kind: Refused,
        #[serde(deserialize_with = "received")]
        reason: String,
    },
}

/// What a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// The key is none of this client's leases.
    Key,
    /// The agent's own trouble.
    Trouble,
}

impl Refused {
    pub fn kind(self) -> ErrorKind {
        match self {
            Refused::Key => ErrorKind::RemoteAccess,
            Refused::Trouble => ErrorKind::RemoteOperation,
        }
    }
}

/// One end of a connection, as the other must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// The queue pair's number.
    pub number: u32,
    /// Where its packets start to be numbered, 24 bits.
    pub psn: u32,
    pub gid: Gid,
    pub kind: GidKind,
    /// Address in an InfiniBand subnet; 0 with RoCE.
    pub lid: u16,
    /// Largest packet, as verbs number them: 1 = 256 bytes, each next one twice that.
    pub mtu: u8,
    /// READs and atomics that it answers at once.
    pub reads: u8,
}

/// Registered memory, as a peer reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The device's own key for it.
    pub key: u32,
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes in it.
    pub len: u64,
}

impl Window {
    /// Where `addr..addr + len` of the slab lies for the device; `None` if it does not lie in the
    /// slab.
    #[inline]
    pub(super) fn at(&self, addr: u64, len: u32) -> Option<u64> {
        let end = addr.checked_add(u64::from(len))?;
        if end > self.len {
            return None;
        }
        self.addr.checked_add(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranges_inside_the_slab_have_an_address() {
        let window = Window { key: 1, addr: 0x7000, len: 8192 };
        assert_eq!(window.at(4096, 4096), Some(0x8000));
        assert_eq!(window.at(8192, 0), Some(0x9000));
        assert_eq!(window.at(4097, 4096), None);
        assert_eq!(window.at(u64::MAX, 2), None);
        assert_eq!(window.at(u64::MAX - 1, 1), None);
    }
}
