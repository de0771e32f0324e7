//! Differences that are meant, each with its reason. A sequence ends at one: what follows may
//! differ because of it.

use super::peer::Answer;
use super::step::{Sent, Step};

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
        why: "BITFIELD with an offset that is beyond 64 bits once it is multiplied: Redis' multiplication overflows, and \
              some of these offsets come out as another one. Here they are out of range.",
        holds: |steps, _, _| {
            let is_far = |word: &Vec<u8>| word.len() > 16 && word.starts_with(b"#");
            let has_far = |step: &Step| step.sent.iter().any(|sent| sent.words().iter().any(is_far));
            steps.iter().any(|step| step.has(&["bitfield", "bitfield_ro"]) && has_far(step))
        },
    },
    Reason {
        why: "CONFIG GET with a pattern finds the parameters there are here.",
        holds: |steps, _, _| {
            let has_star = |sent: &Sent| sent.words().iter().any(|word| word.contains(&b'*') || word.contains(&b'?'));
            let is_get = |sent: &Sent| sent.has(&["config"]) && sent.has(&["get"]) && has_star(sent);
            is_about(steps, &["config"]) && steps.iter().any(|step| step.sent.iter().any(is_get))
        },
    },
    Reason {
        why: "CONFIG SET proto-max-bulk-len: a string has 512 MiB at most here, whatever is set.",
        holds: |steps, _, ours| {
            let is_range =
                |a: &Answer| a.replies.iter().any(|r| r.escape_ascii().to_string().contains("must be between"));
            is_about(steps, &["proto-max-bulk-len"]) && is_range(ours)
        },
    },
    Reason {
        why: "CLIENT REPLY within a transaction: Redis sends the head of EXEC's answer, or some of its parts, and no client \
              knows what comes next. Here the answer is sent or not.",
        holds: |steps, _, _| steps.last().is_some_and(|step| step.has(&["exec"])) && is_about(steps, &["reply"]),
    },
    Reason {
        why: "Redis sets a key whose time is over already, and until it comes across it DBSIZE counts it and MEMORY USAGE \
              measures it. Here it is gone.",
        holds: |steps, _, _| {
            is_about(steps, &["dbsize", "usage"]) && steps.iter().any(|step| step.has(&["exat", "pxat"]))
        },
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
            let is_nobody = |sent: &Sent| sent.words() == [&b"command"[..], b"info", b"nosuch"];
            let asks_for_keys = |sent: &Sent| sent.has(&["getkeys", "getkeysandflags"]);
            let tells = |sent: &Sent| sent.has(&["command"]) && !asks_for_keys(sent) && !is_nobody(sent);
            let told = |step: &Step| step.sent.iter().any(tells);
            let is_exec = steps.last().is_some_and(|step| step.has(&["exec"])) && steps.iter().any(told);
            let is_about = |answer: &Answer| answer.replies.iter().any(|reply| reply.starts_with(b"*"));
            (steps.last().is_some_and(told) || is_exec) && is_about(theirs) && is_about(ours)
        },
    },
    Reason {
        why: "OBJECT REFCOUNT: Redis shares small integers between keys. Here each value is its key's own.",
        holds: |steps, theirs, ours| is_about(steps, &["refcount"]) && theirs.replies.len() == ours.replies.len(),
    },
    Reason {
        why: "SCAN: cursors are the server's own, and a part of the keys is any part.",
        holds: |steps, theirs, ours| {
            let both = |start: &[u8]| [theirs, ours].map(|a| a.replies.iter().any(|reply| reply.starts_with(start)));
            is_about(steps, &["scan"]) && both(b"*") == [true, true]
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
        why: "TIME and MEMORY USAGE tell of the moment and of the server, within a transaction too.",
        holds: |steps, theirs, ours| {
            let is_exec = steps.last().is_some_and(|step| step.has(&["exec"]));
            let tells = steps.iter().any(|step| step.has(&["time", "usage"]));
            is_exec && tells && theirs.replies.len() == ours.replies.len()
        },
    },
    Reason {
        why: "LOLWUT shows what each server likes.",
        holds: |steps, theirs, ours| {
            let is_art = |a: &Answer| a.replies.iter().any(|r| r.escape_ascii().to_string().contains("Redis ver"));
            is_about(steps, &["lolwut"]) && is_art(theirs) && is_art(ours)
        },
    },
];

/// Whether the last step is about one of these words, or runs a transaction with one that may be.
fn is_about(steps: &[Step], words: &[&str]) -> bool {
    let Some((last, before)) = steps.split_last() else { return false };
    last.has(words) || (last.has(&["exec"]) && before.iter().any(|step| step.has(words)))
}

/// Why the answers to the last of these steps may differ, if they may.
pub fn of(steps: &[Step], theirs: &Answer, ours: &Answer) -> Option<&'static Reason> {
    REASONS.iter().find(|reason| (reason.holds)(steps, theirs, ours))
}
