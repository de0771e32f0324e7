//! The sections of INFO that Redis does not have: what the store has in the pool, and what its
//! fabric did.

use super::store::Store;
use annex_pool::ErrorKind;
use annex_shared::api::DonorInfo;
use annex_shared::transport::Transport;
use std::fmt::Write as _;

/// INFO pool.
pub fn pool(store: &Store) -> String {
    let stats = store.stats();
    let fragmentation = if stats.used == 0 { 1.0 } else { stats.held as f64 / stats.used as f64 };
    lines(&[
        ("pool_record_bytes", stats.used.to_string()),
        ("pool_held_bytes", stats.held.to_string()),
        ("pool_fragmentation_ratio", format!("{fragmentation:.2}")),
        ("pool_log_pages_waiting", stats.waiting.to_string()),
        ("pool_writes_under_way", stats.flights.to_string()),
        ("pool_slots_reserved", stats.slot_reserve.to_string()),
        ("pool_reads", stats.reads.to_string()),
        ("pool_writes", stats.writes.to_string()),
        ("pool_records_moved", stats.moved.to_string()),
        ("pool_records_lost", stats.lost.to_string()),
        ("cache_bytes", stats.cached.to_string()),
        ("cache_hits", stats.cache_hits.to_string()),
        ("local_bytes", stats.local.to_string()),
    ])
}

/// INFO rdma: what annexd's fabric did since its start, for keys and programs together. First RDMA,
/// then the transports that stand in for it, then each donor. Nothing is ever sent or received: all
/// operations are one-sided.
pub fn rdma(donors: &[DonorInfo]) -> String {
    let mut text = String::new();
    for transport in [Transport::Verbs, Transport::Tcp, Transport::Shm, Transport::File] {
        let total = Total::of(donors, transport);
        if transport != Transport::Verbs && total.is_idle() {
            continue;
        }
        let prefix = match transport {
            Transport::Verbs => "rdma".to_owned(),
            other => other.to_string(),
        };
        total.tell(&prefix, &mut text);
    }
    for (nth, donor) in donors.iter().enumerate() {
        let over = donor.transport.map_or("none".into(), |transport| transport.to_string());
        let errors: u64 = donor.traffic.iter().map(|traffic| kinds(&traffic.errors).sum::<u64>()).sum();
        let _ = write!(
            text,
            "donor{nth}:name={},address={},state={:?},transport={over},reads={},writes={},errors={errors}\r\n",
            donor.name, donor.address, donor.state, donor.reads, donor.writes
        );
    }
    text
}

/// What all donors' connections over one transport did.
#[derive(Default)]
struct Total {
    connections: u64,
    reads: u64,
    writes: u64,
    bytes_read: u64,
    bytes_written: u64,
    errors: u64,
    retries_exceeded: u64,
}

impl Total {
    fn of(donors: &[DonorInfo], transport: Transport) -> Total {
        let mut total = Total::default();
        for traffic in donors.iter().flat_map(|donor| &donor.traffic).filter(|t| t.transport == transport) {
            total.connections += u64::from(traffic.connections);
            total.reads += traffic.reads;
            total.writes += traffic.writes;
            total.bytes_read += traffic.bytes_read;
            total.bytes_written += traffic.bytes_written;
            total.errors += kinds(&traffic.errors).sum::<u64>();
            total.retries_exceeded += traffic.errors.get(&ErrorKind::RetryExceeded.to_string()).copied().unwrap_or(0);
        }
        total
    }

    fn is_idle(&self) -> bool {
        self.connections + self.reads + self.writes + self.errors == 0
    }

    fn tell(&self, prefix: &str, text: &mut String) {
        let sent = if prefix == "rdma" { &["send", "recv"][..] } else { &[] };
        let fields = [
            ("connections", self.connections),
            ("read_operations", self.reads),
            ("read_bytes", self.bytes_read),
            ("write_operations", self.writes),
            ("write_bytes", self.bytes_written),
            ("completion_errors", self.errors),
            ("retries_exceeded", self.retries_exceeded),
        ];
        for name in sent {
            let _ = write!(text, "{prefix}_{name}_operations:0\r\n{prefix}_{name}_bytes:0\r\n");
        }
        for (name, value) in fields {
            let _ = write!(text, "{prefix}_{name}:{value}\r\n");
        }
    }
}

/// Failures by the fabric's kind of error; the device's statuses (`IBV_WC_…`) tell of the same ones
/// once more.
fn kinds(errors: &std::collections::BTreeMap<String, u64>) -> impl Iterator<Item = u64> {
    errors.iter().filter(|(name, _)| !name.starts_with("IBV_WC_")).map(|(_, count)| *count)
}

fn lines(fields: &[(&str, String)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_shared::api::{DonorState, TransportInfo};

    fn over(transport: Transport, errors: &[(&str, u64)]) -> TransportInfo {
        TransportInfo {
            transport,
            connections: 3,
            reads: 10,
            writes: 20,
            bytes_read: 40_960,
            bytes_written: 81_920,
            errors: errors.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            p50_us: 1.0,
            p99_us: 2.0,
            max_us: 3.0,
            latency_us: Vec::new(),
            operations: Vec::new(),
        }
    }

    fn donor(name: &str, traffic: Vec<TransportInfo>) -> DonorInfo {
        DonorInfo {
            name: name.into(),
            address: "10.0.0.1:7900".into(),
            state: DonorState::Up,
            transport: traffic.first().map(|t| t.transport),
            why: String::new(),
            encrypted: false,
            slabs_held: 0,
            slabs_free: 0,
            slabs_capacity: 0,
            used: 0,
            reads: 10,
            writes: 20,
            errors: 0,
            checksum_errors: 0,
            healed: 0,
            draining: false,
            read_us: 0,
            refusal: String::new(),
            rdma_failed: String::new(),
            traffic,
        }
    }

    #[test]
    fn info_rdma_adds_donors_up_and_counts_no_error_twice() {
        let errors = [("retry exceeded", 2), ("flushed", 3), ("IBV_WC_RETRY_EXC_ERR", 2)];
        let rdma_of = |name| donor(name, vec![over(Transport::Verbs, &errors)]);
        let text = rdma(&[rdma_of("a"), rdma_of("b"), donor("c", vec![over(Transport::Tcp, &[])])]);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "no {line} in {text}");
        has("rdma_connections:6");
        has("rdma_read_operations:20");
        has("rdma_write_bytes:163840");
        has("rdma_send_operations:0");
        has("rdma_completion_errors:10");
        has("rdma_retries_exceeded:4");
        has("tcp_connections:3");
        has("donor2:name=c,address=10.0.0.1:7900,state=Up,transport=tcp,reads=10,writes=20,errors=0");
        assert!(!text.contains("shm_"), "{text}");
    }

    #[test]
    fn without_rdma_its_numbers_are_zero() {
        let text = rdma(&[donor("c", vec![over(Transport::Shm, &[])])]);
        assert!(text.starts_with("rdma_send_operations:0\r\n") && text.contains("rdma_connections:0\r\n"), "{text}");
        assert!(text.contains("shm_read_operations:10\r\n"), "{text}");
    }
}
