//! `[pool]` in annexd's configuration: which donors, how many replicas, how long to wait for what.

use annex_fabric::faulty::{FaultPlan, PlanError};
use annex_fabric::verbs::DeviceChoice;
use annex_identity::identity::Files;
use annex_identity::token::Address;
use annex_shared::config::{ByteSize, TimeSpan};
use annex_shared::donor::DonorSpec;
pub use annex_shared::donor::TransportChoice;
use annex_shared::page::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most replicas an extent can have.
pub const MAX_REPLICAS: usize = 4;
/// The most donors one annexd can use.
pub const MAX_DONORS: usize = 256;

/// The pool's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    #[serde(alias = "donor")]
    pub donors: Vec<DonorConfig>,
    /// Copies of every page, each on another donor: 1 to 4.
    pub replicas: u8,
    /// Bytes per slab; 0 = what the first donor that answers has. All donors must have the same.
    pub slab_size: ByteSize,
    /// The most application memory to keep in the pool; 0 = as much as the donors lend.
    pub max_bytes: ByteSize,
    /// How long a start waits for the first donors to answer. annexd starts without them too.
    pub start_wait: TimeSpan,
    /// This machine's RDMA device, port and GID; what is left out is chosen.
    pub verbs: DeviceChoice,
    /// How long a donor may be without a working connection before writes go on without it. What it
    /// misses is copied to it when it is back.
    pub away_after: TimeSpan,
    /// How long a donor may be without a working connection before its replicas count as lost and
    /// are rebuilt elsewhere.
    pub lost_after: TimeSpan,
    /// The same for replicas of extents of which no replica is live: programs wait for pages that
    /// nobody else has. No shorter than `lost_after`.
    pub last_copy_lost_after: TimeSpan,
    /// A read that takes longer than this is sent to the next replica too, whatever its donor's
    /// usual latency.
    pub read_timeout: TimeSpan,
    /// A read that takes longer than 99 of 100 lately, and at least this long, is sent to the next
    /// replica too; 0 = off.
    pub hedge_after: TimeSpan,
    /// Bytes per second that are copied to make lost replicas anew; 0 = as fast as can be.
    pub repair_rate: ByteSize,
    /// Bytes per second that are read to find decayed pages before they are needed; 0 = off.
    pub scrub_rate: ByteSize,
    /// Whether pages and values are encrypted before they leave this host. With a spill file they
    /// always are.
    pub seal: bool,
    /// Whether replicas move from full donors to empty ones, such as a donor that was added.
    pub rebalance: bool,
    /// How long one fabric operation may take before its connection counts as broken.
    pub op_timeout: TimeSpan,
    /// How long one connection attempt or control request may take.
    pub control_timeout: TimeSpan,
    /// How long an extent stays leased after its last page was released.
    pub idle_return: TimeSpan,
    /// annexd's own `takeover_wait`, which every lease should outlast: what was in the pool is lost
    /// if the leases end before the next annexd comes.
    #[serde(skip)]
    pub takeover_wait: TimeSpan,
    /// annexd's own `[tls]`: all connections to donors over TCP are TLS then.
    #[serde(skip)]
    pub tls: Option<Files>,
    /// Where its certificate is renewed, if anywhere.
    #[serde(skip)]
    pub renew: Option<Address>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            donors: Vec::new(),
            replicas: 2,
            slab_size: ByteSize(0),
            max_bytes: ByteSize(0),
            start_wait: TimeSpan(Duration::from_millis(2000)),
            verbs: DeviceChoice::default(),
            away_after: TimeSpan(Duration::from_millis(300)),
            lost_after: TimeSpan(Duration::from_millis(5000)),
            last_copy_lost_after: TimeSpan(Duration::from_secs(60)),
            read_timeout: TimeSpan(Duration::from_millis(500)),
            hedge_after: TimeSpan(Duration::from_millis(2)),
            repair_rate: ByteSize(256 << 20),
            scrub_rate: ByteSize(1 << 20),
            seal: false,
            rebalance: true,
            op_timeout: TimeSpan(Duration::from_millis(3000)),
            control_timeout: TimeSpan(Duration::from_millis(5000)),
            idle_return: TimeSpan(Duration::from_millis(10_000)),
            takeover_wait: TimeSpan(Duration::ZERO),
            tls: None,
            renew: None,
        }
    }
}

/// One donor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DonorConfig {
    /// What listings call it; the agent's own name if absent.
    pub name: Option<String>,
    /// `host:port` of its agent.
    pub address: String,
    pub transport: TransportChoice,
    /// Whether `auto` makes do with TCP where RDMA can't be had. If not, a donor without RDMA is
    /// down, and RDMA is tried again and again.
    pub tcp_fallback: bool,
    /// A fault plan for tests (`fail=1/97,corrupt=1/1009,seed=7`): this donor's fabric misbehaves
    /// on purpose.
    pub faults: Option<String>,
}

impl Default for DonorConfig {
    fn default() -> Self {
        DonorConfig {
            name: None,
            address: String::new(),
            transport: TransportChoice::Auto,
            tcp_fallback: true,
            faults: None,
        }
    }
}

impl DonorConfig {
    /// Checks what the types can't express.
    pub fn check(&self) -> Result<(), ConfigError> {
        let address = &self.address;
        let port_ok =
            address.rsplit_once(':').is_some_and(|(h, p)| !h.is_empty() && p.parse::<u16>().is_ok_and(|port| port > 0));
        if !port_ok || address.len() > MAX_ADDRESS {
            return Err(ConfigError::Address(address.clone()));
        }
        if self.transport == TransportChoice::Tcp && !self.tcp_fallback {
            return Err(ConfigError::TcpOnly(self.label().to_owned()));
        }
        if let Some(plan) = &self.faults {
            plan.parse::<FaultPlan>()
                .map_err(|source| ConfigError::Faults { donor: self.label().to_owned(), source })?;
        }
        Ok(())
    }

    /// The name to use before the agent has told its own.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.address)
    }
}

/// As `annexd --donor` and `annex donors add` take it.
impl From<DonorSpec> for DonorConfig {
    fn from(spec: DonorSpec) -> DonorConfig {
        let DonorSpec { address, name, transport, tcp_fallback, faults } = spec;
        let usual = DonorConfig::default();
        DonorConfig {
            name,
            address,
            transport: transport.unwrap_or(usual.transport),
            tcp_fallback: tcp_fallback.unwrap_or(usual.tcp_fallback),
            faults,
        }
    }
}

/// A configuration the pool can't work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("replicas = {0} in [pool]: give 1 to {MAX_REPLICAS}")]
    Replicas(u8),
    #[error("slab_size = {0} in [pool]: give a power of two between 64K and 1G, as the donors have it, or 0")]
    SlabSize(ByteSize),
    #[error("{0} donors in [pool]: {MAX_DONORS} are the most one annexd can use")]
    TooManyDonors(usize),
    #[error("donor address '{0}' is not host:port: give the host and port of its annex-agent, such as db7:7411")]
    Address(String),
    #[error(
        "donor {0}: transport = \"tcp\" with tcp_fallback = false leaves no way to it: choose \"auto\" or \"verbs\", or allow tcp"
    )]
    TcpOnly(String),
    #[error("donor {donor}: {source}")]
    Faults { donor: String, source: PlanError },
    #[error("donor {0} is listed twice: two replicas would share its fate")]
    Duplicate(String),
    #[error("away_after = {away:?} in [pool] is longer than lost_after = {lost:?}: make it shorter")]
    AwayAfterLost { away: Duration, lost: Duration },
    #[error("read_timeout = 0 in [pool]: give a time such as 500ms")]
    NoReadTimeout,
}

impl PoolConfig {
    /// Checks what the types can't express.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_REPLICAS).contains(&usize::from(self.replicas)) {
            return Err(ConfigError::Replicas(self.replicas));
        }
        if self.slab_size.0 != 0 && !is_slab_size(self.slab_size.0) {
            return Err(ConfigError::SlabSize(self.slab_size));
        }
        if self.away_after.0 > self.lost_after.0 {
            return Err(ConfigError::AwayAfterLost { away: self.away_after.0, lost: self.lost_after.0 });
        }
        if self.read_timeout.0.is_zero() {
            return Err(ConfigError::NoReadTimeout);
        }
        if self.donors.len() > MAX_DONORS {
            return Err(ConfigError::TooManyDonors(self.donors.len()));
        }
        for (i, donor) in self.donors.iter().enumerate() {
            donor.check()?;
            let address = &donor.address;
            if self.donors[..i].iter().any(|d| d.address == *address) {
                return Err(ConfigError::Duplicate(address.clone()));
            }
        }
        Ok(())
    }
}

/// The longest donor address the extent table has room for.
pub(crate) const MAX_ADDRESS: usize = 240;

/// True for sizes a slab can have: whole pages, and a power of two so that a slot number splits by
/// shifting.
pub(crate) fn is_slab_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (16 * PAGE_SIZE as u64..=1 << 30).contains(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn donor(address: &str) -> DonorConfig {
        DonorConfig { address: address.into(), ..DonorConfig::default() }
    }

    #[test]
    fn a_wrong_configuration_is_refused_by_name() {
        let with = |change: fn(&mut PoolConfig)| {
            let mut c = PoolConfig { donors: vec![donor("a:1"), donor("b:1")], ..PoolConfig::default() };
            change(&mut c);
            c.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|c| c.replicas = 5), Err(ConfigError::Replicas(5)));
        assert_eq!(with(|c| c.slab_size = ByteSize(5000)), Err(ConfigError::SlabSize(ByteSize(5000))));
        assert_eq!(with(|c| c.donors[0].address = "host".into()), Err(ConfigError::Address("host".into())));
        assert_eq!(with(|c| c.donors[0].address = "host:0".into()), Err(ConfigError::Address("host:0".into())));
        assert_eq!(
            with(|c| (c.donors[0].transport, c.donors[0].tcp_fallback) = (TransportChoice::Tcp, false)),
            Err(ConfigError::TcpOnly("a:1".into()))
        );
        assert_eq!(with(|c| c.donors[1].address = "a:1".into()), Err(ConfigError::Duplicate("a:1".into())));
    }

    #[test]
    fn sizes_and_transports_read_as_people_write_them() {
        let text = r#"{"slab_size":"64M","lost_after":"7s","verbs":{"gid_index":3},
            "donors":[{"address":"a:1","transport":"shm"},{"address":"b:1","transport":"verbs","tcp_fallback":false}]}"#;
        let config: PoolConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.slab_size, ByteSize(64 << 20));
        assert_eq!(config.lost_after.0, Duration::from_secs(7));
        assert_eq!(config.donors[0].transport, TransportChoice::Shm);
        assert_eq!((config.donors[1].transport, config.donors[1].tcp_fallback), (TransportChoice::Verbs, false));
        assert_eq!(config.verbs.gid_index, Some(3));
        assert!(serde_json::from_str::<PoolConfig>(r#"{"slabsize":1}"#).is_err());
    }
}
