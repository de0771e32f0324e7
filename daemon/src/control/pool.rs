//! The pool as the control plane sees it.

use super::Donors;
use annex_pool::{DonorError, Pool, PoolError};
use annex_shared::api::{
    ApiError, CertificateInfo, DonorInfo, DonorRequest, ErrorCode, PoolInfo, SlabInfo, TransportInfo,
};
use annex_shared::donor::DonorSpec;
use std::net::ToSocketAddrs;
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

    fn add_donor(&self, request: &DonorRequest) -> Result<DonorInfo, ApiError> {
        resolve(&request.address)?;
        let DonorRequest { address, name, transport, tcp_fallback, faults } = request.clone();
        self.pool.add_donor(DonorSpec { address, name, transport, tcp_fallback, faults }.into()).map_err(refused)
    }

    fn remove_donor(&self, name: &str) -> Result<DonorInfo, ApiError> {
        self.pool.remove_donor(name).map_err(refused)
    }

    fn traffic(&self) -> Vec<TransportInfo> {
        self.pool.traffic()
    }

    fn slabs(&self) -> Vec<SlabInfo> {
        self.pool.slabs()
    }

    fn info(&self) -> PoolInfo {
        self.pool.info()
    }

    fn certificate(&self) -> Option<CertificateInfo> {
        self.pool.certificate()
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

/// Refuses an address that leads nowhere: it would be tried for ever, and most often it is
/// mistyped.
fn resolve(address: &str) -> Result<(), ApiError> {
    let why = match address.to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => "its name has no address".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(ApiError {
        kind: ErrorCode::BadRequest,
        message: format!("failed to find donor {address}: {why}"),
        remedy: "give the HOST:PORT of its annex-agent, with a name that this host resolves (getent hosts NAME)".into(),
    })
}

fn refused(error: DonorError) -> ApiError {
    let (kind, remedy) = match &error {
        DonorError::Unknown(_) => (ErrorCode::NotFound, "annex donors lists them"),
        DonorError::Needed { .. } => (ErrorCode::NoDonors, "annex donors add HOST:PORT"),
        DonorError::Config(_)
        | DonorError::Known(_)
        | DonorError::NameTaken(_)
        | DonorError::Spill
        | DonorError::Ambiguous { .. } => (ErrorCode::BadRequest, ""),
    };
    ApiError { kind, message: error.to_string(), remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_leads_nowhere_is_refused() {
        assert_eq!(resolve("127.0.0.1:7411"), Ok(()));
        let error = resolve("no such host:7411").unwrap_err();
        assert_eq!(error.kind, ErrorCode::BadRequest);
        assert!(error.message.starts_with("failed to find donor no such host:7411: "), "{}", error.message);
    }
}
