//! Differences that are meant, each with its reason. A sequence ends at one: what follows may differ because of it.

use super::peer::Answer;
use super::step::Step;

pub struct Reason {
    pub why: &'static str,
    /// Whether it explains a difference in the answers to the last of these steps, theirs and ours.
    holds: fn(&[Step], &Answer, &Answer) -> bool,
}

pub const REASONS: &[Reason] = &[
    Reason {
        why: "BITFIELD OVERFLOW SAT with a number far from what fits: Redis 7.0's subtraction overflows and it takes the \
              wrong end of the range. Later versions have it right, and so have we.",
        holds: |steps, _, _| steps.iter().any(|step| step.has(&["bitfield"]) && step.has(&["sat"])),
    },
    Reason {
        why: "A client that wants no replies and breaks the protocol: Redis neither reads on nor closes the connection, \
              for ever. We close it.",
        holds: |steps, theirs, ours| {
            let wire = steps.last().map(|step| step.wire);
            let is_quiet = steps.iter().any(|step| Some(step.wire) == wire && step.has(&["reply"]));
            is_quiet && !theirs.is_closed && ours.is_closed && theirs.replies == ours.replies
        },
    },
    Reason {
        why: "COMMAND tells of the commands there are here, and without the hints for a cluster's proxies.",
        holds: |steps, theirs, ours| {
            let tells = |step: &Step| step.has(&["command"]) && !step.has(&["getkeys", "getkeysandflags"]);
            let is_about = |answer: &Answer| answer.replies.iter().any(|reply| reply.starts_with(b"*"));
            steps.last().is_some_and(tells) && is_about(theirs) && is_about(ours)
        },
    },
    Reason {
        why: "OBJECT REFCOUNT: Redis shares small integers between keys. Here each value is its key's own.",
        holds: |steps, theirs, ours| {
            steps.iter().any(|step| step.has(&["refcount"])) && theirs.replies.len() == ours.replies.len()
        },
    },
    Reason {
        why: "SCAN: cursors are the server's own, and a part of the keys is any part.",
        holds: |steps, theirs, ours| {
            let both = |start: &[u8]| [theirs, ours].map(|a| a.replies.iter().any(|reply| reply.starts_with(start)));
            steps.iter().any(|step| step.has(&["scan"])) && both(b"*") == [true, true]
        },
    },
    Reason {
        why: "What a browser was made to send closes the connection. Redis forgets the answers to what came before it.",
        holds: |steps, theirs, ours| {
            let is_http = |step: &Step| step.has(&["post", "host:"]);
            steps.last().is_some_and(is_http) && theirs.is_closed && ours.is_closed
        },
    },
    Reason {
        why: "LOLWUT shows what each server likes.",
        holds: |steps, _, _| steps.iter().any(|step| step.has(&["lolwut"])),
    },
];

/// Why the answers to the last of these steps may differ, if they may.
pub fn of(steps: &[Step], theirs: &Answer, ours: &Answer) -> Option<&'static Reason> {
    REASONS.iter().find(|reason| (reason.holds)(steps, theirs, ours))
}
