//! What a work completion's status means: for the pool an [`ErrorKind`], for people a line.

use crate::ErrorKind;
use rdma_sys::ibv_wc_status;
use std::sync::atomic::{AtomicU64, Ordering};

/// A work completion's status, other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// As in `<infiniband/verbs.h>`.
    pub name: &'static str,
    pub code: u32,
    pub kind: ErrorKind,
    meaning: &'static str,
    cause: &'static str,
    remedy: &'static str,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Status { name, meaning, cause, remedy, .. } = self;
        write!(f, "{meaning} ({name}); likely cause: {cause}; remedy: {remedy}")
    }
}

/// Statuses there are, success included.
const STATUSES: usize = 24;

/// What the status of this number means; `None` = success. Numbers that no verbs.h knows count as
/// general errors.
pub fn status(code: u32) -> Option<&'static Status> {
    match code {
        ibv_wc_status::IBV_WC_SUCCESS => None,
        _ => Some(TABLE.iter().find(|s| s.code == code).unwrap_or(&GENERAL)),
    }
}

const BUG: &str = "a bug in annex or in the device's driver";
const REPORT: &str = "report it with the log of both sides";

macro_rules! statuses {
    ($($name:ident: $kind:ident, $meaning:expr, $cause:expr, $remedy:expr;)*) => {
        [$(Status {
            name: stringify!($name),
            code: ibv_wc_status::$name,
            kind: ErrorKind::$kind,
            meaning: $meaning,
            cause: $cause,
            remedy: $remedy,
        },)*]
    };
}

static TABLE: [Status; STATUSES - 1] = statuses! {
    IBV_WC_LOC_LEN_ERR: LocalProtection, "an operation is longer than the queue pair's limits allow", BUG, REPORT;
    IBV_WC_LOC_QP_OP_ERR: LocalProtection, "the device found its own queue pair or an operation in it inconsistent", BUG, REPORT;
    IBV_WC_LOC_EEC_OP_ERR: LocalProtection, "the device found an end-to-end context inconsistent (reliable datagrams, which annex does not use)", BUG, REPORT;
    IBV_WC_LOC_PROT_ERR: LocalProtection, "a transfer buffer lies outside of what is registered with the device", BUG, REPORT;
    IBV_WC_WR_FLUSH_ERR: Flushed, "an earlier operation on this connection failed, so this one was given up", "the error before it", "see the line about that one";
    IBV_WC_MW_BIND_ERR: LocalProtection, "a memory window could not be bound (annex binds none)", BUG, REPORT;
    IBV_WC_BAD_RESP_ERR: RemoteOperation, "the donor's device gave an answer that makes no sense", "a fault in a device's firmware, or packets from somebody else", "update the firmware and drivers of both devices";
    IBV_WC_LOC_ACCESS_ERR: LocalProtection, "a transfer buffer is not registered for what was to be done with it", BUG, REPORT;
    IBV_WC_REM_INV_REQ_ERR: RemoteOperation, "the donor's device found the request invalid", "it can't do atomic operations, or a request is longer than it takes", "look at what ibv_devinfo -v says there";
    IBV_WC_REM_ACCESS_ERR: RemoteAccess, "the donor's device refused access to the memory", "the lease ended: it was recalled, not renewed in time, or the agent was restarted", "none, if the donor is short of memory; else look why the lease was not renewed";
    IBV_WC_REM_OP_ERR: RemoteOperation, "the donor's device could not do the operation", "a fault of that device or of its memory", "look at the donor's kernel log";
    IBV_WC_RETRY_EXC_ERR: RetryExceeded, "the donor's device did not acknowledge, however often it was asked", "the donor is down, the wire is cut, or UDP port 4791 (RoCE v2) is blocked on the way", "look whether the donor is up and the network lets RoCE through; ping with packets as large as the MTU";
    IBV_WC_RNR_RETRY_EXC_ERR: RetryExceeded, "the donor's device said over and over that it is not ready", "its queue pair is gone or its device overloaded", "look at the agent's log";
    IBV_WC_LOC_RDD_VIOL_ERR: LocalProtection, "reliable datagram domains don't match (annex uses none)", BUG, REPORT;
    IBV_WC_REM_INV_RD_REQ_ERR: LocalProtection, "the donor's device refused a reliable datagram (annex sends none)", BUG, REPORT;
    IBV_WC_REM_ABORT_ERR: RemoteOperation, "the donor's device gave the operation up", "its queue pair was torn down meanwhile", "look at the agent's log";
    IBV_WC_INV_EECN_ERR: LocalProtection, "an end-to-end context has a wrong number (annex uses none)", BUG, REPORT;
    IBV_WC_INV_EEC_STATE_ERR: LocalProtection, "an end-to-end context is in a wrong state (annex uses none)", BUG, REPORT;
    IBV_WC_FATAL_ERR: RetryExceeded, "this machine's device failed for good", "a fault of the device, or it was removed or reset", "look at this machine's kernel log; load the driver anew";
    IBV_WC_RESP_TIMEOUT_ERR: RetryExceeded, "an answer did not come in time", "the donor is down or the wire is cut", "look whether the donor is up";
    IBV_WC_GENERAL_ERR: RetryExceeded, "this machine's device failed without saying how", "a fault of the device or of its driver", "look at this machine's kernel log";
    IBV_WC_TM_ERR: RemoteOperation, "tag matching failed (annex uses none)", BUG, REPORT;
    IBV_WC_TM_RNDV_INCOMPLETE: RemoteOperation, "a tag-matching rendezvous was left incomplete (annex uses none)", BUG, REPORT;
};

static GENERAL: Status = Status {
    name: "a status that this build does not know",
    code: u32::MAX,
    kind: ErrorKind::RetryExceeded,
    meaning: "this machine's device failed in a way of its own",
    cause: "a driver newer than this build",
    remedy: "look at this machine's kernel log",
};

/// Completions with an error, by status, over all connections to one donor.
#[derive(Debug, Default)]
pub struct Counts([AtomicU64; STATUSES]);

impl Counts {
    pub(super) fn count(&self, code: u32) {
        // A number that no verbs.h knows counts as the general error.
        let index = if (code as usize) < STATUSES { code } else { ibv_wc_status::IBV_WC_GENERAL_ERR };
        self.0[index as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that have happened: the status's name and how often.
    pub fn happened(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().enumerate().map(|(code, n)| (status(code as u32), n.load(Ordering::Relaxed)));
        counts.filter_map(|(status, n)| Some((status?.name, n)).filter(|_| n > 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_the_header_has_a_line_and_success_has_none() {
        assert!(status(ibv_wc_status::IBV_WC_SUCCESS).is_none());
        for code in 1..STATUSES as u32 {
            let found = status(code).unwrap();
            assert_eq!(found.code, code);
            let line = found.to_string();
            assert!(line.contains("likely cause: ") && line.contains("remedy: ") && line.contains("IBV_WC_"), "{line}");
        }
    }

    #[test]
    fn the_manual_says_of_each_status_what_the_log_says() {
        let manual = include_str!("../../../../docs/rdma.md");
        for Status { name, meaning, cause, remedy, .. } in &TABLE {
            let row = format!("| `{name}` | {meaning} | {cause} | {remedy} |");
            assert!(manual.contains(&row), "docs/rdma.md lacks: {row}");
        }
    }

    #[test]
    fn what_the_pool_must_tell_apart_is_told_apart() {
        let kind = |code| status(code).unwrap().kind;
        assert_eq!(kind(ibv_wc_status::IBV_WC_REM_ACCESS_ERR), ErrorKind::RemoteAccess);
        assert_eq!(kind(ibv_wc_status::IBV_WC_RETRY_EXC_ERR), ErrorKind::RetryExceeded);
        assert_eq!(kind(ibv_wc_status::IBV_WC_WR_FLUSH_ERR), ErrorKind::Flushed);
        assert_eq!(kind(4711), ErrorKind::RetryExceeded, "a status from the future");
    }
}
