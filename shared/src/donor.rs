//! How people name a donor on a command line: `annexd --donor` and `annex donors add` take the
//! same forms.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Which fabric provider to use to a donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportChoice {
    /// `shm` if the agent runs on this host and offers it, else `verbs` if both sides have RDMA,
    /// else `tcp`. The choice shows in
    /// `annex status`.
    #[default]
    Auto,
    /// RDMA or nothing.
    Verbs,
    Tcp,
    Shm,
}

impl FromStr for TransportChoice {
    type Err = DonorSpecError;

    fn from_str(word: &str) -> Result<TransportChoice, DonorSpecError> {
        match word {
            "auto" => Ok(TransportChoice::Auto),
            "verbs" => Ok(TransportChoice::Verbs),
            "tcp" => Ok(TransportChoice::Tcp),
            "shm" => Ok(TransportChoice::Shm),
            other => Err(DonorSpecError::Transport(other.into())),
        }
    }
}

/// `HOST:PORT[,transport=auto|verbs|tcp|shm][,tcp_fallback=false][,name=NAME][,faults=PLAN]`; a
/// plan has commas of its own and so
/// comes last. What is not said is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DonorSpec {
    pub address: String,
    pub name: Option<String>,
    pub transport: Option<TransportChoice>,
    pub tcp_fallback: Option<bool>,
    pub faults: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DonorSpecError {
    #[error("the address is missing: give HOST:PORT first")]
    NoAddress,
    #[error("'{0}' is not KEY=VALUE with transport, tcp_fallback, name or faults as the key")]
    Key(String),
    #[error("transport '{0}' is not auto, verbs, tcp or shm")]
    Transport(String),
}

impl FromStr for DonorSpec {
    type Err = DonorSpecError;

    fn from_str(text: &str) -> Result<DonorSpec, DonorSpecError> {
        let (address, mut rest) = text.split_once(',').unwrap_or((text, ""));
        if address.is_empty() || address.contains('=') {
            return Err(DonorSpecError::NoAddress);
        }
        let mut donor = DonorSpec { address: address.into(), ..DonorSpec::default() };
        while !rest.is_empty() {
            if let Some(plan) = rest.strip_prefix("faults=") {
                donor.faults = Some(plan.into());
                break;
            }
            let (option, further) = rest.split_once(',').unwrap_or((rest, ""));
            match option.split_once('=') {
                Some(("name", name)) if !name.is_empty() => donor.name = Some(name.into()),
                Some(("transport", transport)) => donor.transport = Some(transport.parse()?),
                Some(("tcp_fallback", "true")) => donor.tcp_fallback = Some(true),
                Some(("tcp_fallback", "false")) => donor.tcp_fallback = Some(false),
                _ => return Err(DonorSpecError::Key(option.into())),
            }
            rest = further;
        }
        Ok(donor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_donor_is_named_in_one_word() {
        let donor = |text: &str| text.parse::<DonorSpec>();
        let full = donor("h:1,transport=shm,name=a,faults=fail=1/97,delay=1/211:2ms,seed=7").unwrap();
        assert_eq!(full.address, "h:1");
        assert_eq!(full.transport, Some(TransportChoice::Shm));
        assert_eq!(full.name.as_deref(), Some("a"));
        assert_eq!(full.faults.as_deref(), Some("fail=1/97,delay=1/211:2ms,seed=7"));
        let strict = donor("h:1,transport=verbs,tcp_fallback=false").unwrap();
        assert_eq!((strict.transport, strict.tcp_fallback), (Some(TransportChoice::Verbs), Some(false)));
        assert_eq!(donor("[::1]:7411").unwrap(), DonorSpec { address: "[::1]:7411".into(), ..DonorSpec::default() });
        assert_eq!(donor("h:1,transport=rdma"), Err(DonorSpecError::Transport("rdma".into())));
        assert_eq!(donor("h:1,speed=9"), Err(DonorSpecError::Key("speed=9".into())));
        assert_eq!(donor("transport=tcp"), Err(DonorSpecError::NoAddress));
    }
}
