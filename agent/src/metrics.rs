//! The agent's metrics: a pure function over its status. docs/metrics.md tells the same as
//! [`catalogue`], and a test compares them.

use crate::local::Status;
use annex_metrics::Snapshot;
use catalogue as c;

pub mod catalogue {
    //! Every metric of the agent.

    annex_metrics::catalogue! {
        BUILD = Gauge "annex_agent_build_info" ["version"] "1; the label says what runs";
        CAPACITY = Gauge "annex_agent_capacity_bytes" [] "the most memory that is lent";
        LENT = Gauge "annex_agent_lent_bytes" [] "memory that is lent";
        RECALLED = Gauge "annex_agent_recalled_bytes" [] "of this, what is wanted back";
        SLAB_SIZE = Gauge "annex_agent_slab_bytes" [] "bytes per slab";
        SLABS = Gauge "annex_agent_slabs" ["state"] "slabs that are not lent, by state";
        CLIENTS = Gauge "annex_agent_clients" ["state"] "clients that are known: connected, and away";
        CONNECTIONS = Gauge "annex_agent_connections" ["kind"] "open connections of clients";
        BUFFERS = Gauge "annex_agent_buffer_bytes" [] "memory of the larger buffers of data connections";
        AVAILABLE = Gauge "annex_agent_host_available_bytes" [] "memory that this host has available";
        HEADROOM = Gauge "annex_agent_host_headroom_bytes" [] "memory that stays available for this host";
        STALL = Gauge "annex_agent_host_stall_ratio" [] "share of the last ten seconds in which some program waited for memory";
        CERTIFICATE = Gauge "annex_agent_certificate_expiry_timestamp_seconds" ["name"] "when this host's certificate expires, in seconds since 1970; absent without [tls]";
        PRESSED = Gauge "annex_agent_pressed" [] "1 while this host is short of memory, and slabs are recalled";
        SHORTCOMING = Gauge "annex_agent_slab_failed" [] "1 if the slab that was to be made last could not be";
        DRAINING = Gauge "annex_agent_draining" [] "1 while the donor is being drained";
    }
}

/// What the status does not tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    pub control: usize,
    pub data: usize,
    /// Bytes of their larger buffers.
    pub buffers: usize,
}

pub fn snapshot(status: &Status, open: Open) -> Snapshot {
    let mut all = Snapshot::of(c::ALL);
    let slabs = &status.slabs;
    let bytes = |slabs: u32| u64::from(slabs) * status.slab_size;
    all.add(&c::BUILD, &[&status.version], 1u64);
    all.add(&c::CAPACITY, &[], bytes(slabs.capacity));
    all.add(&c::LENT, &[], bytes(slabs.lent));
    all.add(&c::RECALLED, &[], bytes(slabs.recalled));
    all.add(&c::SLAB_SIZE, &[], status.slab_size);
    for (state, n) in [("spare", slabs.spare), ("cleaning", slabs.cleaning), ("vacant", slabs.vacant)] {
        all.add(&c::SLABS, &[state], n);
    }
    let connected = status.clients.iter().filter(|client| client.connected).count();
    all.add(&c::CLIENTS, &["connected"], connected);
    all.add(&c::CLIENTS, &["away"], status.clients.len() - connected);
    all.add(&c::CONNECTIONS, &["control"], open.control);
    all.add(&c::CONNECTIONS, &["data"], open.data);
    all.add(&c::BUFFERS, &[], open.buffers);
    if let Some(certificate) = &status.certificate {
        all.add(&c::CERTIFICATE, &[&certificate.name], certificate.expires);
    }
    let pressure = &status.pressure;
    all.add(&c::AVAILABLE, &[], pressure.available);
    all.add(&c::HEADROOM, &[], pressure.headroom);
    if let Some(percent) = pressure.stall_percent {
        all.add(&c::STALL, &[], f64::from(percent) / 100.0);
    }
    all.add(&c::PRESSED, &[], pressure.pressed);
    all.add(&c::SHORTCOMING, &[], status.shortcoming.is_some());
    all.add(&c::DRAINING, &[], status.draining);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_those_of_the_status() {
        let status: Status = serde_json::from_value(json!({"version": "1", "name": "oak", "incarnation": "x",
            "address": "127.0.0.1:1", "shm_socket": null, "rdma": "", "kept_by": "", "draining": true,
            "closing": false, "slab_size": 64 << 20,
            "pressure": {"pressed": false, "available": 3u64 << 30, "headroom": 1 << 30, "stall_percent": 50.0},
            "slabs": {"capacity": 16, "lent": 2, "recalled": 1, "spare": 4, "cleaning": 0, "vacant": 10},
            "clients": [{"client": "c1", "host": "elm", "connected": false, "slabs": [0, 1], "leases_end_in_ms": 1,
                "recalled": []}]}))
        .unwrap();
        let text = snapshot(&status, Open { control: 1, data: 3, buffers: 4096 }).text();
        for line in [
            "annex_agent_build_info{version=\"1\"} 1",
            "annex_agent_capacity_bytes 1073741824",
            "annex_agent_lent_bytes 134217728",
            "annex_agent_recalled_bytes 67108864",
            "annex_agent_slabs{state=\"spare\"} 4",
            "annex_agent_clients{state=\"away\"} 1",
            "annex_agent_connections{kind=\"data\"} 3",
            "annex_agent_host_stall_ratio 0.5",
            "annex_agent_slab_failed 0",
            "annex_agent_draining 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing:\n{text}");
        }
        assert_eq!(annex_metrics::strict::check(&text), Ok(()));
        assert_eq!(text.lines().filter(|l| l.starts_with("# TYPE ")).count(), c::ALL.len());
    }
}
