//! A read's way: choose a replica, verify what it brought, go on from the first page that is not good.

use super::*;

/// How often a page is read from one replica before that counts as failed.
const READ_TRIES: u8 = 4;
/// Every so many reads the second-best replica is taken, so that its latency stays known.
const PROBE_EVERY: u32 = 512;

pub(super) enum Choice {
    Replica(u8),
    /// All that are left have no endpoint now.
    Wait,
    None,
}

impl Lane {
    /// The next attempt of a read, or its end.
    pub(super) fn read_on(&mut self, job: u32, now: Instant) {
        let Work::Read(read) = self.jobs[job].work else { return };
        if read.at == read.run.count {
            return self.finish_read(job, Ok(()));
        }
        let Some((extent, place)) = self.one_extent(read.run) else {
            return self.finish_read(job, Err(IoError::Misuse));
        };
        let Some(replicas) = self.core.extents.replicas(extent) else {
            return self.finish_read(job, Err(IoError::Lost));
        };
        let open = |(n, r): &(u8, &Replica)| r.state == ReplicaState::Live && read.tries[usize::from(*n)] < READ_TRIES;
        let choice = match self.choose(&read, replicas.iter().filter(open)) {
            Choice::Replica(n) => n,
            Choice::Wait => return self.stalled.push(job),
            Choice::None if read.mismatch => return self.finish_read(job, Err(IoError::Corrupt)),
            Choice::None => return self.finish_read(job, Err(IoError::Lost)),
        };
        let Some(replica) = replicas.nth(choice) else { return };
        let pages = (read.run.count - read.at).min(MAX_OP_PAGES);
        let pending = Pending {
            direction: Direction::Read,
            job,
            part: NIL,
            extent,
            donor: replica.donor,
            replica: choice,
            trouble: 0,
            len: pages * PAGE_SIZE as u32,
            local: (self.jobs[job].buf.page + read.at) as usize * PAGE_SIZE,
            rkey: replica.rkey,
            addr: RemoteAddr(u64::from(place + read.at) * PAGE_SIZE as u64),
            time: now,
            next: NIL,
        };
        match self.ops.insert(pending) {
            Some(op) => self.enqueue(op, now),
            // The table is full of writes: this read goes on when one of them is done.
            None => self.stalled.push(job),
        }
    }

    /// The best of the replicas that are still open to this read: fewest failures, then the least expected wait.
    pub(super) fn choose<'a>(&mut self, read: &ReadWork, open: impl Iterator<Item = (u8, &'a Replica)>) -> Choice {
        self.reads = self.reads.wrapping_add(1);
        let probe = self.reads.is_multiple_of(PROBE_EVERY);
        let mut best: Option<((bool, u8, u64), u8)> = None;
        let mut second: Option<((bool, u8, u64), u8)> = None;
        let mut any = false;
        for (n, replica) in open {
            any = true;
            let Some(end) = self.ends.get(usize::from(replica.donor.0)).filter(|e| e.usable()) else { continue };
            let wait = end.latency_ns.saturating_mul(end.outstanding as u64 + 1);
            let rank = ((read.good != Some(n) && read.good.is_some()), read.tries[usize::from(n)], wait);
            if best.is_none_or(|b| rank < b.0) {
                second = best.replace((rank, n));
            } else if second.is_none_or(|s| rank < s.0) {
                second = Some((rank, n));
            }
        }
        match (best, second) {
            (Some(b), Some(s)) if probe && s.0.1 == b.0.1 => Choice::Replica(s.1),
            (Some(b), _) => Choice::Replica(b.1),
            (None, _) if any => Choice::Wait,
            (None, _) => Choice::None,
        }
    }

    /// Checks what a READ brought and goes on from the first bad page.
    pub(super) fn verify(&mut self, op: Pending, now: Instant) {
        let Work::Read(mut read) = self.jobs[op.job].work else { return };
        let pages = op.len / PAGE_SIZE as u32;
        // SAFETY: the READ into this range is complete, and the job holds the buffer, so nothing else moves it.
        let bytes = unsafe { self.arena.bytes(op.local, op.len as usize) };
        let first = read.run.first.0 + read.at;
        let wanted = |i: u32| self.core.slots.checksum(annex_shared::ids::SlotIdx(first + i));
        let good =
            (0..pages).zip(bytes.chunks_exact(PAGE_SIZE)).take_while(|(i, page)| checksum(page) == wanted(*i)).count();
        if good > 0 {
            read.at += good as u32;
            read.tries = [0; MAX_REPLICAS];
            read.mismatch = false;
            read.good = Some(op.replica);
        }
        if (good as u32) < pages {
            if let Some(donor) = self.core.donor(op.donor) {
                donor.stats.checksum_errors.fetch_add(1, Relaxed);
            }
            read.tries[usize::from(op.replica)] += 1;
            read.mismatch = true;
            read.good = None;
        }
        self.jobs[op.job].work = Work::Read(read);
        self.read_on(op.job, now);
    }

    pub(super) fn read_failed(&mut self, op: Pending, kind: ErrorKind, now: Instant) {
        let Work::Read(read) = &mut self.jobs[op.job].work else { return };
        read.good = None;
        read.tries[usize::from(op.replica)] += 1;
        match kind {
            ErrorKind::RemoteAccess => self.lose(op.extent, op.replica, "its donor refuses access: the lease is gone"),
            ErrorKind::LocalProtection => return self.finish_read(op.job, Err(IoError::Misuse)),
            ErrorKind::RemoteOperation | ErrorKind::RetryExceeded | ErrorKind::Flushed => {}
        }
        self.read_on(op.job, now);
    }

    pub(super) fn finish_read(&mut self, job: u32, result: Result<(), IoError>) {
        let Some(job) = self.jobs.remove(job) else { return };
        if let Work::Read(read) = job.work {
            self.core.release_run(read.run);
        }
        self.finished.push(Done { token: job.token, buf: job.buf, result });
    }
}
