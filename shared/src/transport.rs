//! What carries operations to a donor.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Which provider carries an endpoint's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Shm,
    Verbs,
    File,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
            Transport::Verbs => "verbs",
            Transport::File => "file",
        })
    }
}
