//! *Conditions*: how annexd stands, as one list. annexd judges by its status, in one place. What
//! people and monitoring see is made of that list: `annex status`, `--check`, metrics.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing that is so now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub kind: ConditionKind,
    pub severity: Severity,
    /// A sentence that names the thing, the cause and what is done about it.
    pub message: String,
    /// What somebody should do about it; empty if nothing, and for notes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

/// How urgent a condition is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// All is as it should be, or worth knowing only.
    #[default]
    Note,
    /// Copies, donors or room are missing, or a program may stand still.
    Degraded,
    /// Pages are lost, out of reach, or down to their last copy.
    Critical,
}

impl Severity {
    /// What `annex status --check` exits with.
    pub fn exit_code(self) -> u8 {
        match self {
            Severity::Note => 0,
            Severity::Degraded => 1,
            Severity::Critical => 2,
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)+) => {
        /// What may be so.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ConditionKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)+
        }

        impl ConditionKind {
            pub const ALL: &[ConditionKind] = &[$(ConditionKind::$kind),+];

            pub fn name(self) -> &'static str {
                match self {
                    $(ConditionKind::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// Nothing of what follows is so, but for notes.
    Healthy = "healthy",
    /// Pages have no copy left.
    Lost = "lost",
    /// Pages have no copy on a donor that is up, and one that may come back.
    OutOfReach = "out_of_reach",
    /// Pages have one copy left.
    AtRisk = "at_risk",
    /// Pages lack a copy.
    Degraded = "degraded",
    /// Copies are to leave their donor and have nowhere to go.
    Stuck = "stuck",
    /// The pool takes nothing more of programs.
    Full = "full",
    /// A donor is not up.
    DonorAway = "donor_away",
    /// Fewer donors are up than pages have copies.
    TooFewDonors = "too_few_donors",
    /// This host's certificate expires soon, or is not valid.
    CertificateExpires = "certificate_expires",
    /// A donor answers, and far later than it should.
    DonorSlow = "donor_slow",
    /// The disk under the spill file gives errors, or has no room left.
    SpillFailing = "spill_failing",
    /// A worker makes no progress: programs may stand still.
    Stalled = "stalled",
    /// annexd ended a program lately, since its memory could not be vouched for.
    AppStopped = "app_stopped",
    /// The KV API can't listen somewhere.
    KvUnavailable = "kv_unavailable",
    /// Pages lie in the spill file for want of donors.
    Spilled = "spilled",
    /// A donor with RDMA is used over TCP, since RDMA does not work.
    RdmaUnused = "rdma_unused",
    /// Two copies are on one host or rack.
    Crowded = "crowded",
    /// Pages go over a network without encryption.
    Insecure = "insecure",
}

impl fmt::Display for ConditionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_travel_by_their_name() {
        for kind in ConditionKind::ALL {
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, kind.name());
            assert_eq!(serde_json::from_value::<ConditionKind>(json).unwrap(), *kind);
        }
    }
}
