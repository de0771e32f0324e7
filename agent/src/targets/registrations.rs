//! Which slabs are registered with an RDMA device, for whom.
//!
//! From the moment a slab is registered its client reads and writes it without asking anybody. So
//! the end of a lease has to end its registrations: when [`Registrations::end`] returns, the device
//! refuses the client's operations, late ones too. One lock makes registering and ending one at a
//! time; a registration takes some milliseconds.

use annex_fabric::verbs::{MemoryRegion, RegisterError, Window};
use annex_shared::ids::Rkey;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Registered slabs by the key of their lease.
#[derive(Debug, Default)]
pub struct Registrations(Mutex<HashMap<Rkey, Vec<Registration>>>);

#[derive(Debug)]
struct Registration {
    /// The connection's number.
    connection: u64,
    region: MemoryRegion,
}

impl Registrations {
    /// Registers a slab for a connection. `holds` says whether its lease still does, and is asked
    /// after all [`Registrations::end`] that came before; one that comes after finds the
    /// registration. `None` if it does not. A slab that is registered already stays so.
    pub fn register(
        &self,
        rkey: Rkey,
        connection: u64,
        holds: impl FnOnce() -> bool,
        make: impl FnOnce() -> Result<MemoryRegion, RegisterError>,
    ) -> Result<Option<Window>, RegisterError> {
        let mut all = self.0.lock();
        if !holds() {
            return Ok(None);
        }
        let known = all.get(&rkey).and_then(|r| r.iter().find(|r| r.connection == connection));
        if let Some(known) = known {
            return Ok(Some(known.region.window()));
        }
        let region = make()?;
        let window = region.window();
        all.entry(rkey).or_default().push(Registration { connection, region });
        Ok(Some(window))
    }

    /// The lease is over. When this returns, no operation with its keys touches the slab any more.
    pub fn end(&self, rkey: Rkey) {
        // Deregistered under the lock: who finds nothing here must be able to rely on it.
        self.0.lock().remove(&rkey);
    }

    /// A connection is over.
    pub fn leave(&self, connection: u64) {
        self.0.lock().retain(|_, registrations| {
            registrations.retain(|r| r.connection != connection);
            !registrations.is_empty()
        });
    }
}
