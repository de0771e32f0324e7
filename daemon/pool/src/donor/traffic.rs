//! What went over each transport to a donor: counted by lanes, shown by listings.

use annex_fabric::verbs::Counts;
use annex_fabric::{ErrorKind, OpKind, Transport};
use annex_host::latency::Latency;
use annex_shared::api::TransportInfo;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const TRANSPORTS: [Transport; 3] = [Transport::Verbs, Transport::Tcp, Transport::Shm];
const KINDS: [ErrorKind; 5] = [
    ErrorKind::RemoteAccess,
    ErrorKind::LocalProtection,
    ErrorKind::RetryExceeded,
    ErrorKind::RemoteOperation,
    ErrorKind::Flushed,
];

/// One donor's traffic, since annexd started.
#[derive(Default)]
pub(crate) struct Traffic {
    by: [Over; TRANSPORTS.len()],
    /// Completions with an error, by the device's status.
    pub statuses: Arc<Counts>,
}

/// What went over one transport.
#[derive(Default)]
struct Over {
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: [AtomicU64; KINDS.len()],
    connections: AtomicU32,
    /// Of operations that succeeded, from posting to completion.
    latency: Latency,
}

impl Traffic {
    pub fn done(&self, over: Transport, kind: OpKind, bytes: u32, took: Duration) {
        let over = &self.by[index(over)];
        let (count, total) = match kind {
            OpKind::Read => (&over.reads, &over.bytes_read),
            OpKind::Write | OpKind::CompareSwap { .. } => (&over.writes, &over.bytes_written),
        };
        count.fetch_add(1, Relaxed);
        total.fetch_add(u64::from(bytes), Relaxed);
        over.latency.add(took);
    }

    pub fn connected(&self, over: Transport) {
        self.by[index(over)].connections.fetch_add(1, Relaxed);
    }

    pub fn disconnected(&self, over: Transport) {
        self.by[index(over)].connections.fetch_sub(1, Relaxed);
    }

    pub fn failed(&self, over: Transport, error: ErrorKind) {
        let kind = KINDS.iter().position(|k| *k == error).unwrap_or(0);
        self.by[index(over)].errors[kind].fetch_add(1, Relaxed);
    }

    /// Transports that are connected, or that anything went over.
    pub fn info(&self) -> Vec<TransportInfo> {
        let all = TRANSPORTS.iter().zip(&self.by).map(|(transport, over)| {
            let errors = KINDS.iter().zip(&over.errors).map(|(kind, n)| (kind.to_string(), n.load(Relaxed)));
            let mut errors: BTreeMap<String, u64> = errors.filter(|(_, n)| *n > 0).collect();
            if *transport == Transport::Verbs {
                errors.extend(self.statuses.happened().into_iter().map(|(name, n)| (name.to_owned(), n)));
            }
            TransportInfo {
                transport: *transport,
                connections: over.connections.load(Relaxed),
                reads: over.reads.load(Relaxed),
                writes: over.writes.load(Relaxed),
                bytes_read: over.bytes_read.load(Relaxed),
                bytes_written: over.bytes_written.load(Relaxed),
                errors,
                p50_us: over.latency.quantile(0.5),
                p99_us: over.latency.quantile(0.99),
                max_us: over.latency.max(),
                latency_us: over.latency.by_doublings(),
            }
        });
        all.filter(|i| i.connections > 0 || i.reads + i.writes > 0 || !i.errors.is_empty()).collect()
    }
}

fn index(transport: Transport) -> usize {
    TRANSPORTS.iter().position(|t| *t == transport).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_has_its_own_numbers_and_silent_ones_are_left_out() {
        let traffic = Traffic::default();
        traffic.done(Transport::Tcp, OpKind::Read, 4096, Duration::from_micros(50));
        traffic.done(Transport::Verbs, OpKind::Read, 4096, Duration::from_micros(3));
        traffic.done(Transport::Verbs, OpKind::Write, 65536, Duration::from_micros(9));
        traffic.failed(Transport::Verbs, ErrorKind::RetryExceeded);
        traffic.connected(Transport::Verbs);
        traffic.connected(Transport::Tcp);
        traffic.disconnected(Transport::Tcp);
        let info = traffic.info();
        assert_eq!(info.len(), 2);
        let verbs = &info[0];
        assert_eq!((verbs.transport, verbs.reads, verbs.writes), (Transport::Verbs, 1, 1));
        assert_eq!((verbs.connections, info[1].connections), (1, 0));
        assert_eq!((verbs.bytes_read, verbs.bytes_written), (4096, 65536));
        assert_eq!(verbs.errors, BTreeMap::from([("retry exceeded".to_owned(), 1)]));
        assert_eq!(verbs.latency_us, [(4, 1), (16, 1)]);
    }
}
