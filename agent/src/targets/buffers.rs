//! Buffers of data connections: how large each may be, and what all may take together.
//!
//! A connection has a buffer of [`LEAST`] bytes in each direction while it works. It may have
//! larger ones as long as its client has no more than [`PER_CLIENT`] of them, and all clients no
//! more than [`IN_ALL`]. Without one it goes on in smaller parts, so that nobody ever waits for a
//! buffer that somebody else holds. Buffers are mappings of their own: what is given back is the
//! host's again at once.

use annex_shared::ids::ClientId;
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::ops::{Deref, DerefMut};

/// What a connection that works always has, in bytes, in each direction.
pub const LEAST: usize = 32 << 10;
/// Larger buffers grow twofold until here, then by as much at a time.
const STEP: usize = 512 << 10;
/// Larger buffers of one client.
const PER_CLIENT: usize = 16 << 20;
/// Larger buffers of all clients.
const IN_ALL: usize = 64 << 20;

/// What is given out of larger buffers. One per agent.
#[derive(Debug, Default)]
pub struct Budget {
    given: Mutex<Given>,
}

#[derive(Debug, Default)]
struct Given {
    in_all: usize,
    by_client: HashMap<ClientId, usize>,
}

impl Budget {
    /// Bytes of larger buffers that are given out.
    pub fn given(&self) -> usize {
        self.given.lock().in_all
    }

    fn take(&self, client: ClientId, bytes: usize) -> bool {
        let mut given = self.given.lock();
        let own = given.by_client.get(&client).copied().unwrap_or_default();
        let fits = given.in_all + bytes <= IN_ALL && own + bytes <= PER_CLIENT;
        if fits {
            given.in_all += bytes;
            given.by_client.insert(client, own + bytes);
        }
        fits
    }

    fn give_back(&self, client: ClientId, bytes: usize) {
        let mut given = self.given.lock();
        given.in_all -= bytes;
        if let Some(own) = given.by_client.get_mut(&client) {
            *own -= bytes;
            if *own == 0 {
                given.by_client.remove(&client);
            }
        }
    }
}

/// One buffer: bytes to read and write. None at first, and after [`Buffer::clear`].
#[derive(Debug)]
pub struct Buffer<'a> {
    budget: &'a Budget,
    client: ClientId,
    map: Option<MmapMut>,
}

impl<'a> Buffer<'a> {
    /// One of no bytes.
    pub fn none(budget: &'a Budget, client: ClientId) -> Buffer<'a> {
        Buffer { budget, client, map: None }
    }

    /// Has [`LEAST`] bytes from now on, if it had none.
    pub fn have_least(&mut self) -> io::Result<()> {
        if self.map.is_none() {
            self.map = Some(MmapMut::map_anon(LEAST)?);
        }
        Ok(())
    }

    /// Has `wanted` bytes at least from now on; those in `kept` come to lie at its start. False if
    /// the budget or the host has no room: it is as it was then.
    pub fn grow(&mut self, wanted: usize, kept: std::ops::Range<usize>) -> bool {
        let len = if wanted > STEP { wanted.next_multiple_of(STEP) } else { wanted.next_power_of_two().max(LEAST) };
        if !self.budget.take(self.client, len) {
            return false;
        }
        let Ok(map) = MmapMut::map_anon(len) else {
            self.budget.give_back(self.client, len);
            return false;
        };
        let mut larger = Buffer { budget: self.budget, client: self.client, map: Some(map) };
        larger[..kept.len()].copy_from_slice(&self[kept]);
        *self = larger;
        true
    }

    /// Gives its bytes back to the host.
    pub fn clear(&mut self) {
        *self = Buffer::none(self.budget, self.client);
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if self.len() > LEAST {
            self.budget.give_back(self.client, self.len());
        }
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_share_at_most_and_gives_it_back() {
        let budget = Budget::default();
        let buffers = |client: u64| -> Vec<Buffer<'_>> {
            let mut buffers: Vec<_> = (0..100).map(|_| Buffer::none(&budget, ClientId(client))).collect();
            buffers.iter_mut().for_each(|buffer| buffer.have_least().expect("memory"));
            buffers.iter_mut().for_each(|buffer| _ = buffer.grow(1 << 20, 0..0));
            buffers
        };
        let first = buffers(1);
        assert_eq!(budget.given(), PER_CLIENT);
        assert!(first.iter().all(|buffer| buffer.len() >= LEAST));
        let others: Vec<_> = (2..10).map(buffers).collect();
        assert_eq!(budget.given(), IN_ALL);
        drop(first);
        assert_eq!(budget.given(), IN_ALL - PER_CLIENT);
        drop(others);
        assert_eq!(budget.given(), 0);
        assert!(budget.given.lock().by_client.is_empty());
    }

    #[test]
    fn what_grows_keeps_its_bytes() {
        let budget = Budget::default();
        let mut buffer = Buffer::none(&budget, ClientId(1));
        buffer.have_least().expect("memory");
        buffer[10..13].copy_from_slice(&[1, 2, 3]);
        assert!(buffer.grow(LEAST + 1, 10..13));
        assert_eq!((buffer.len(), &buffer[..4]), (2 * LEAST, &[1, 2, 3, 0][..]));
        buffer.clear();
        assert_eq!((buffer.len(), budget.given()), (0, 0));
    }
}
