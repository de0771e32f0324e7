//! A write's way: every part to every live replica, again until it is there or the replica is lost.

use super::*;

/// A write's trouble on one replica may add up to this before the replica counts as lost.
const WRITE_TROUBLE: u8 = 32;
/// What an error adds to it: eight refusals, eight time-outs, or 32 times swept away by another operation's failure.
const TROUBLE_OWN: u8 = 4;
const TROUBLE_FLUSHED: u8 = 1;
/// A refused write is tried again after this, doubled each time.
const RETRY_AFTER: Duration = Duration::from_millis(1);

impl Lane {
    pub(super) fn write_part(&mut self, job: u32, run: SlotRun, local: usize, now: Instant) {
        let Some((extent, place)) = self.one_extent(run) else { return };
        // SAFETY: the job holds the buffer and nothing was posted on this range yet.
        let bytes = unsafe { self.arena.bytes(local, run.count as usize * PAGE_SIZE) };
        for (slot, page) in run.slots().zip(bytes.chunks_exact(PAGE_SIZE)) {
            self.core.slots.set_checksum(slot, checksum(page));
        }
        let Work::Write(work) = &mut self.jobs[job].work else { return };
        let chunks = run.count.div_ceil(MAX_OP_PAGES);
        let state = PartState {
            job,
            next: work.parts,
            extent,
            run,
            // One more, taken back below: the part must not settle while operations are still being added.
            pending: 1,
            done: [0; MAX_REPLICAS],
            chunks: chunks as u16,
            unknown: false,
        };
        let Some(part) = self.parts.insert(state) else { return };
        work.parts = part;
        if let Some(replicas) = self.core.extents.replicas(extent) {
            for (n, replica) in replicas.iter().filter(|(_, r)| r.state == ReplicaState::Live) {
                for chunk in 0..chunks {
                    let at = chunk * MAX_OP_PAGES;
                    let pending = Pending {
                        direction: Direction::Write,
                        job,
                        part,
                        extent,
                        donor: replica.donor,
                        replica: n,
                        trouble: 0,
                        len: (run.count - at).min(MAX_OP_PAGES) * PAGE_SIZE as u32,
                        local: local + at as usize * PAGE_SIZE,
                        rkey: replica.rkey,
                        addr: RemoteAddr(u64::from(place + at) * PAGE_SIZE as u64),
                        time: now,
                        next: NIL,
                    };
                    self.parts[part].pending += 1;
                    match self.ops.insert(pending) {
                        Some(op) => self.enqueue(op, now),
                        // Room was checked for the configured number of replicas; an extent from a time with more has more.
                        None => {
                            self.lose(extent, n, "it is one more than are configured");
                            self.settle(part, None);
                        }
                    }
                }
            }
        }
        self.settle(part, None);
    }

    pub(super) fn write_failed(&mut self, at: u32, kind: ErrorKind, now: Instant) {
        let op = self.ops[at];
        let trouble = match kind {
            ErrorKind::RemoteAccess => {
                self.lose(op.extent, op.replica, "its donor refuses access: the lease is gone");
                WRITE_TROUBLE
            }
            ErrorKind::LocalProtection => {
                if let Work::Write(work) = &mut self.jobs[op.job].work {
                    work.error = Some(IoError::Misuse);
                }
                WRITE_TROUBLE
            }
            ErrorKind::RemoteOperation => TROUBLE_OWN,
            ErrorKind::RetryExceeded => TROUBLE_OWN,
            ErrorKind::Flushed => TROUBLE_FLUSHED,
        };
        if kind.is_fatal() {
            self.parts[op.part].unknown = true;
        }
        let trouble = op.trouble.saturating_add(trouble);
        self.ops[at].trouble = trouble;
        if self.is_lost(&op) || trouble >= WRITE_TROUBLE {
            if kind != ErrorKind::LocalProtection {
                self.lose(op.extent, op.replica, "writes to it keep failing");
            }
            self.ops.remove(at);
            self.settle(op.part, None);
        } else if kind == ErrorKind::RemoteOperation {
            self.ops[at].time = now + RETRY_AFTER * (1 << (trouble / TROUBLE_OWN).min(8));
            self.deferred.push(at);
        } else {
            self.ends[usize::from(op.donor.0)].waiting.push(&mut self.ops, at);
        }
    }

    /// One operation of a part is over: done on a replica, or given up with it.
    pub(super) fn settle(&mut self, part: u32, done_on: Option<u8>) {
        let state = &mut self.parts[part];
        if let Some(n) = done_on {
            state.done[usize::from(n)] += 1;
        }
        state.pending -= 1;
        if state.pending > 0 {
            return;
        }
        let state = *state;
        let holds =
            |(n, r): (u8, &Replica)| r.state == ReplicaState::Live && state.done[usize::from(n)] == state.chunks;
        let held = self.core.extents.replicas(state.extent).is_some_and(|r| r.iter().any(holds));
        let Work::Write(work) = &mut self.jobs[state.job].work else { return };
        if !held {
            work.error.get_or_insert(IoError::Lost);
        }
        work.parts_left -= 1;
        if work.parts_left > 0 {
            return;
        }
        let Some(job) = self.jobs.remove(state.job) else { return };
        let Work::Write(work) = job.work else { return };
        let mut next = work.parts;
        while let Some(part) = self.parts.remove(next) {
            // A write that was swept away may still reach the donor. Its slots are kept from reuse until it can't any more.
            match part.unknown {
                true => self.core.tell(News::Quarantine(part.run)),
                false => self.core.release_run(part.run),
            }
            next = part.next;
        }
        self.finished.push(Done { token: job.token, buf: job.buf, result: work.error.map_or(Ok(()), Err) });
    }
}
