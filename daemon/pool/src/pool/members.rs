//! Donors that come and go while the pool runs.

use super::{Pool, listings};
use crate::config::{ConfigError, DonorConfig};
use crate::coordinator::news::News;
use crate::donor::view::Donor;
use crate::error::DonorError;
use annex_shared::api::DonorInfo;

impl Pool {
    /// Uses one more donor from now on. It is remembered by the pool's tables, whatever the
    /// configuration file says.
    pub fn add_donor(&self, config: DonorConfig) -> Result<DonorInfo, DonorError> {
        config.check()?;
        let _one_at_a_time = self.core.membership.lock();
        let address = config.address.clone();
        let full = ConfigError::TooManyDonors(crate::config::MAX_DONORS + 1);
        let known = self.core.donors().find(|d| d.address == address);
        if known.is_some_and(|d| d.config.lock().is_some()) {
            return Err(DonorError::Known(address));
        }
        if let Some(name) = &config.name
            && self.core.donors().any(|d| d.config.lock().is_some() && d.view.lock().name == *name)
        {
            return Err(DonorError::NameTaken(name.clone()));
        }
        let id = self.core.extents.donor(&address, true).ok_or(full)?;
        match self.core.donor(id) {
            Some(donor) => {
                donor.view.lock().name = config.label().to_owned();
                *donor.config.lock() = Some(config);
            }
            None => {
                self.core.add_donor(Donor::new(id, address.clone(), Some(config)));
            }
        }
        self.core.tell(News::DonorAdded { donor: id });
        self.donors().into_iter().find(|d| d.address == address).ok_or(DonorError::Unknown(address))
    }

    /// Moves what lies on a donor elsewhere, and then does without it. Returns at once; the listing
    /// shows how far it is.
    pub fn remove_donor(&self, name: &str) -> Result<DonorInfo, DonorError> {
        let _one_at_a_time = self.core.membership.lock();
        let used = || self.core.donors().filter(|d| d.config.lock().is_some());
        let is_it = |d: &&Donor| d.address == name || d.view.lock().name == name;
        // A donor can call itself as it likes: by another one's name or address, too.
        let is_configured =
            |d: &&Donor| d.config.lock().as_ref().is_some_and(|config| config.name.as_deref() == Some(name));
        let certain = used().find(|d| d.address == name).or_else(|| used().find(is_configured));
        if certain.is_none() && used().filter(is_it).count() > 1 {
            let addresses = used().filter(is_it).map(|d| d.address.clone()).collect::<Vec<_>>().join(", ");
            return Err(DonorError::Ambiguous { name: name.to_owned(), addresses });
        }
        let Some(donor) = certain.or_else(|| used().find(is_it)) else {
            // One that is removed already is as it was to be.
            let before = self.core.donors().filter(|d| self.is_real(d)).find(is_it);
            return before.map(removed).ok_or_else(|| DonorError::Unknown(name.to_owned()));
        };
        if !self.is_real(donor) {
            return Err(DonorError::Spill);
        }
        let staying = used().filter(|d| self.is_real(d) && d.id != donor.id && !d.view.lock().draining).count();
        let replicas = self.core.config.replicas;
        if staying < usize::from(replicas) {
            return Err(DonorError::Needed { donor: name.to_owned(), staying, replicas });
        }
        // Looked at before: one that is empty is gone from the listing as soon as this is told.
        let info = self.donors().into_iter().find(|d| d.address == donor.address).unwrap_or_else(|| removed(donor));
        donor.view.lock().draining = true;
        self.core.tell(News::DonorRemoved { donor: donor.id });
        Ok(DonorInfo { draining: true, ..info })
    }
}

/// One that is not used any more, and has nothing of this host's.
fn removed(donor: &Donor) -> DonorInfo {
    let why = "it is removed".to_owned();
    DonorInfo { transport: None, why, draining: true, traffic: Vec::new(), ..listings::shown(donor, 0) }
}
