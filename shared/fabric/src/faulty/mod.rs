//! A fabric that misbehaves on purpose, for tests of everything above it.
//!
//! [`FaultyConnector`] wraps any connector; its endpoints let most operations through and spoil
//! some, by a [`FaultPlan`]:
//!
//! | fault | what the lane sees | what happened at the donor |
//! | --- | --- | --- |
//! | fail | `RemoteOperation` | every other time nothing, else the operation was done |
//! | drop | nothing until the time-out, then `RetryExceeded`, and the endpoint is broken | likewise |
//! | corrupt | success | a READ's local bytes, or a WRITE's bytes in the slab, have a few bits flipped |
//! | delay | success, later | done at once |
//!
//! A WRITE's bytes are spoilt where they arrived, by two COMPARE_SWAPs that follow it: the arena is
//! the caller's, and is never written but as a READ's destination. Which operations are hit depends
//! on the plan and on their count only, so that a failure can be repeated.

mod endpoint;
mod plan;

pub use plan::{FaultPlan, Faults, Pages, PlanError, Rate};

use super::{Arena, ConnectError, Connector, Endpoint, Transport};
use endpoint::FaultyEndpoint;
use std::sync::Arc;

/// Wraps a connector.
pub struct FaultyConnector {
    inner: Arc<dyn Connector>,
    faults: Arc<Faults>,
}

impl FaultyConnector {
    pub fn new(inner: Arc<dyn Connector>, plan: FaultPlan) -> Self {
        FaultyConnector { inner, faults: Arc::new(Faults::new(plan)) }
    }

    /// What was injected so far, by all endpoints together.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }
}

impl Connector for FaultyConnector {
    fn transport(&self) -> Transport {
        self.inner.transport()
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        let inner = self.inner.open(arena)?;
        match FaultyEndpoint::new(inner, arena.clone(), self.faults.clone()) {
            Ok(endpoint) => Ok(Box::new(endpoint)),
            Err(source) => {
                Err(ConnectError::Local { transport: self.transport(), peer: "the faulty fabric".into(), source })
            }
        }
    }
}
