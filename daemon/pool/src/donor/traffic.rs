//! What went over each transport to a donor: counted by lanes, shown by listings.

use annex_fabric::verbs::Counts;
use annex_fabric::{ErrorKind, OpKind, Transport};
use annex_host::latency::Latency;
use annex_shared::api::{OperationInfo, TransportInfo};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const TRANSPORTS: [Transport; 4] = [Transport::Verbs, Transport::Tcp, Transport::Shm, Transport::File];
/// In the order in which they are counted.
const OPERATIONS: [&str; 3] = ["read", "write", "compare_swap"];
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
    /// By operation.
    done: [Done; OPERATIONS.len()],
    errors: [AtomicU64; KINDS.len()],
    connections: AtomicU32,
}

/// Operations that succeeded.
#[derive(Default)]
struct Done {
    count: AtomicU64,
    bytes: AtomicU64,
    /// From posting to completion.
    latency: Latency,
}

impl Traffic {
    pub fn done(&self, over: Transport, kind: OpKind, bytes: u32, took: Duration) {
        let operation = match kind {
            OpKind::Read => 0,
            OpKind::Write => 1,
            OpKind::CompareSwap { .. } => 2,
        };
        let done = &self.by[index(over)].done[operation];
        done.count.fetch_add(1, Relaxed);
        done.bytes.fetch_add(u64::from(bytes), Relaxed);
        done.latency.add(took);
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
        Traffic::together(&[self])
    }

    /// The same of several donors together.
    pub fn together(all: &[&Traffic]) -> Vec<TransportInfo> {
        let each = TRANSPORTS.iter().enumerate().map(|(at, transport)| {
            let over: Vec<&Over> = all.iter().map(|traffic| &traffic.by[at]).collect();
            let errors = KINDS
                .iter()
                .enumerate()
                .map(|(kind, name)| (name.to_string(), over.iter().map(|over| over.errors[kind].load(Relaxed)).sum()));
            let mut errors: BTreeMap<String, u64> = errors.filter(|(_, n)| *n > 0).collect();
            if *transport == Transport::Verbs {
                for (name, n) in all.iter().flat_map(|traffic| traffic.statuses.happened()) {
                    *errors.entry(name.to_owned()).or_default() += n;
                }
            }
            let sum = |of: usize, count: fn(&Done) -> &AtomicU64| {
                over.iter().map(|over| count(&over.done[of]).load(Relaxed)).sum::<u64>()
            };
            let (reads, read) = (sum(0, |d| &d.count), sum(0, |d| &d.bytes));
            let (writes, written) = (sum(1, |d| &d.count), sum(1, |d| &d.bytes));
            let (swaps, swapped) = (sum(2, |d| &d.count), sum(2, |d| &d.bytes));
            let latency = Latency::together(over.iter().flat_map(|over| over.done.iter().map(|done| &done.latency)));
            TransportInfo {
                transport: *transport,
                connections: over.iter().map(|over| over.connections.load(Relaxed)).sum(),
                reads,
                writes: writes + swaps,
                bytes_read: read,
                bytes_written: written + swapped,
                errors,
                p50_us: latency.quantile(0.5),
                p99_us: latency.quantile(0.99),
                max_us: latency.max(),
                latency_us: latency.by_doublings(),
                operations: operations(&over),
            }
        });
        each.filter(|i| i.connections > 0 || i.reads + i.writes > 0 || !i.errors.is_empty()).collect()
    }
}

fn operations(over: &[&Over]) -> Vec<OperationInfo> {
    let each = OPERATIONS.iter().enumerate().map(|(at, operation)| {
        let done = || over.iter().map(|over| &over.done[at]);
        let latency = Latency::together(done().map(|done| &done.latency));
        OperationInfo {
            operation: (*operation).to_owned(),
            count: done().map(|done| done.count.load(Relaxed)).sum(),
            bytes: done().map(|done| done.bytes.load(Relaxed)).sum(),
            latency_us: latency.by_doublings(),
            latency_sum_us: latency.sum_us(),
        }
    });
    each.filter(|operation| operation.count > 0).collect()
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
        let operations: Vec<(&str, u64, u64)> =
            verbs.operations.iter().map(|o| (o.operation.as_str(), o.count, o.bytes)).collect();
        assert_eq!(operations, [("read", 1, 4096), ("write", 1, 65536)]);
        assert_eq!(verbs.operations[1].latency_us, [(16, 1)]);
    }

    #[test]
    fn donors_together_have_the_sum_of_what_each_has() {
        let (one, two) = (Traffic::default(), Traffic::default());
        one.done(Transport::Tcp, OpKind::Read, 4096, Duration::from_micros(50));
        two.done(Transport::Tcp, OpKind::Read, 4096, Duration::from_micros(3));
        two.failed(Transport::Tcp, ErrorKind::Flushed);
        one.connected(Transport::Tcp);
        two.connected(Transport::Tcp);
        let all = Traffic::together(&[&one, &two]);
        assert_eq!((all.len(), all[0].reads, all[0].connections), (1, 2, 2));
        assert_eq!(all[0].latency_us, [(4, 1), (64, 1)]);
        assert_eq!(all[0].errors.values().sum::<u64>(), 1);
        assert_eq!((all[0].operations.len(), all[0].operations[0].bytes), (1, 8192));
    }
}
