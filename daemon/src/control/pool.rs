//! The pool as the control plane sees it.

use super::Donors;
use crate::pool::{Pool, PoolError};
use annex_shared::api::{ApiError, DonorInfo, ErrorCode, PoolInfo, SlabInfo};
use std::sync::Arc;

/// A running pool and the number of replicas it was configured for.
pub struct RunningPool {
    pub pool: Arc<Pool>,
    pub replicas: u8,
}

impl Donors for RunningPool {
    fn donors(&self) -> Vec<DonorInfo> {
        self.pool.donors()
    }

    fn slabs(&self) -> Vec<SlabInfo> {
        self.pool.slabs()
    }

    fn info(&self) -> PoolInfo {
        self.pool.info()
    }

    fn warnings(&self) -> Vec<String> {
        self.pool.warnings()
    }

    fn is_usable(&self) -> Result<(), ApiError> {
        self.pool.is_usable().map_err(|error| ApiError {
            kind: ErrorCode::NoDonors,
            remedy: match error {
                // Says what to do already.
                PoolError::NoDonors => String::new(),
                _ => "see that annex-agent runs there and can be reached; annex status shows what annexd makes of each"
                    .into(),
            },
            message: error.to_string(),
        })
    }

    fn replicas(&self) -> u8 {
        self.replicas
    }

    fn metadata_bytes(&self) -> u64 {
        self.pool.metadata_bytes()
    }
}
