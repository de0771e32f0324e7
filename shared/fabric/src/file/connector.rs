//! Opens endpoints to a disk.

use super::disk::Disk;
use super::endpoint::FileEndpoint;
use crate::{Arena, ConnectError, Connector, Endpoint, Transport};
use std::io;
use std::sync::Arc;

/// Opens endpoints to a disk.
pub struct FileConnector(pub Arc<Disk>);

impl Connector for FileConnector {
    fn transport(&self) -> Transport {
        Transport::File
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        let failed =
            |source| ConnectError::Local { transport: Transport::File, peer: self.0.name().to_owned(), source };
        let era = self.0.era();
        if self.0.is_cut_off() || self.0.is_stopping() {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        Ok(Box::new(FileEndpoint::new(self.0.clone(), arena.clone(), era).map_err(failed)?))
    }
}
