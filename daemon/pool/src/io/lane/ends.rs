//! The lane's ends: posting operations, taking completions, replacing broken endpoints, and what
//! waits for either.

use super::*;

impl Lane {
    /// Posts an operation, or has it wait for room or for an endpoint.
    pub(super) fn enqueue(&mut self, at: u32, now: Instant) {
        let op = self.ops[at];
        let end = &mut self.ends[usize::from(op.donor.0)];
        if !end.waiting.is_empty() || !end.usable() || !Self::post(end, &mut self.ops, at, now) {
            end.waiting.push(&mut self.ops, at);
        }
    }

    pub(super) fn post(end: &mut End, ops: &mut Pool<Pending>, at: u32, now: Instant) -> bool {
        let Some(endpoint) = &mut end.endpoint else { return false };
        let tag = ops.tag(at);
        let op = &mut ops[at];
        let kind = op.direction.kind();
        op.time = now;
        let posted =
            endpoint.post(Op { tag, kind, local: op.local, len: op.len, rkey: op.rkey, addr: op.addr }).is_ok();
        if posted {
            if end.outstanding == 0 {
                end.heard = Some(now);
            }
            end.outstanding += 1;
            end.posted = true;
            if kind == OpKind::Read {
                end.reads.push(ops, at);
            }
        }
        posted
    }

    pub(super) fn post_waiting(&mut self, at: usize, now: Instant) {
        let end = &mut self.ends[at];
        while end.usable()
            && let Some(op) = end.waiting.front()
            && Self::post(end, &mut self.ops, op, now)
        {
            end.waiting.pop(&mut self.ops);
        }
    }

    pub(super) fn poll_end(&mut self, at: usize, idle_too: bool, now: Instant) {
        let end = &mut self.ends[at];
        let Some(endpoint) = &mut end.endpoint else { return };
        if end.outstanding == 0 && !idle_too && end.next.is_none() {
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        endpoint.poll(&mut scratch);
        for completion in scratch.drain(..) {
            self.complete(at, completion, now);
        }
        self.scratch = scratch;
        let end = &mut self.ends[at];
        if end.outstanding == 0 && (end.next.is_some() || end.endpoint.as_ref().is_some_and(|e| e.is_broken())) {
            self.replace(at);
        }
    }

    pub(super) fn complete(&mut self, end_at: usize, completion: Completion, now: Instant) {
        let Some(at) = self.ops.by_tag(completion.tag) else { return };
        let end = &mut self.ends[end_at];
        end.outstanding = end.outstanding.saturating_sub(1);
        end.heard = Some(now);
        end.reads.remove(&mut self.ops, at);
        let op = self.ops[at];
        let Some(donor) = self.core.donor(op.donor) else { return };
        let over = end.endpoint.as_ref().map_or(Transport::Tcp, |e| e.transport());
        match (op.direction, completion.result) {
            (_, Ok(())) => {
                let took = now.saturating_duration_since(op.time);
                let ns = took.as_nanos() as u64;
                donor.stats.observe(ns);
                donor.traffic.done(over, op.direction.kind(), op.len, took);
                if op.direction == Direction::Read {
                    end.learn(took);
                }
            }
            (_, Err(kind)) => {
                donor.traffic.failed(over, kind);
                donor.stats.errors.fetch_add(1, Relaxed);
                end.latency_ns = end.latency_ns.saturating_mul(2).min(1_000_000_000);
            }
        }
        match (op.direction, completion.result) {
            (Direction::Read, result) => {
                donor.stats.reads.fetch_add(u64::from(result.is_ok()), Relaxed);
                self.ops.remove(at);
                if op.job == NIL {
                    // Its job went on without it. Now its piece of the arena is nobody's.
                    self.return_spare(op.buf);
                } else {
                    self.attempt_over(op.job, at);
                    match result {
                        Ok(()) => self.verify(op, now),
                        Err(kind) => self.read_failed(op, kind, now),
                    }
                }
            }
            (Direction::Write, Ok(())) => {
                donor.stats.writes.fetch_add(1, Relaxed);
                self.ops.remove(at);
                self.settle(op.part, Some(op.place));
            }
            (Direction::Write, Err(kind)) => self.write_failed(at, kind, now),
        }
        if self.ops.room() == 1 {
            self.unstall(now);
        }
    }

    /// A fresh endpoint came.
    pub(super) fn receive(&mut self, delivery: Delivery) {
        let at = usize::from(delivery.donor.0);
        if at >= self.ends.len() {
            // A donor that was added after the lane was made.
            self.ends.resize_with(at + 1, End::default);
        }
        let end = &mut self.ends[at];
        end.next = Some(delivery.endpoint);
        if end.outstanding == 0 {
            self.replace(usize::from(delivery.donor.0));
        }
    }

    /// Puts the next endpoint in the old one's place, or asks for one.
    pub(super) fn replace(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let old = end.endpoint.take();
        let traffic = self.core.donor(DonorId(at as u16)).map(|donor| &donor.traffic);
        if let (Some(old), Some(traffic)) = (&old, traffic) {
            traffic.disconnected(old.transport());
        }
        if let Some(fd) = old.as_ref().and_then(|e| e.event_fd())
            && let Err(error) = self.epoll.delete(fd)
        {
            tracing::error!("failed to stop watching an endpoint of donor{at}: {error}");
        }
        end.posted = false;
        let next = end.next.take();
        let donor = DonorId(at as u16);
        match next {
            Some(mut endpoint) => {
                if self.past_caches {
                    endpoint.write_past_caches();
                }
                if let Some(fd) = endpoint.event_fd()
                    && let Err(error) = self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))
                {
                    tracing::error!("failed to watch an endpoint of donor{at}: {error}");
                }
                // Until measured: shared memory before RDMA before TCP, and the disk last.
                end.latency_ns = match endpoint.transport() {
                    Transport::Shm => 5_000,
                    Transport::Verbs => 15_000,
                    Transport::Tcp => 50_000,
                    Transport::File => 500_000,
                };
                if let Some(traffic) = traffic {
                    traffic.connected(endpoint.transport());
                }
                end.endpoint = Some(endpoint);
                self.is_served_here = self.ends.iter().flat_map(|end| &end.endpoint).any(|e| e.is_served_here());
                if let Some(old) = old {
                    self.core.tell(News::EndpointRetired { endpoint: old });
                }
            }
            None => {
                self.core.tell(News::EndpointBroken { lane: self.id, donor, endpoint: old });
                self.redistribute(at, Instant::now());
            }
        }
    }

    /// Nothing is to be posted to it any more.
    pub(super) fn is_gone(&self, op: &Pending) -> bool {
        let replica = self.core.extents.replica(op.extent, op.place);
        !replica.state.is_there() || replica.generation != op.generation
    }

    pub(super) fn lose(&self, op: &Pending, why: &'static str) {
        if self.core.lose(op.extent, op.place, op.generation) {
            self.core.tell(News::ReplicaLost { extent: op.extent, place: op.place, generation: op.generation, why });
        }
    }

    pub(super) fn leave(&self, op: &Pending, why: &'static str) {
        if self.core.leave(op.extent, op.place, op.generation) {
            self.core.tell(News::ReplicaAway { extent: op.extent, place: op.place, generation: op.generation, why });
        }
    }

    /// Some replica changed its state: what waits for it is settled or goes elsewhere.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.seen_changes = self.core.changes();
        self.listen(now);
        for at in 0..self.ends.len() {
            self.redistribute(at, now);
        }
        for i in (0..self.deferred.len()).rev() {
            if self.is_gone(&self.ops[self.deferred[i]]) {
                let op = self.deferred.swap_remove(i);
                self.keep_or_drop(op, now);
            }
        }
        self.unstall(now);
    }

    /// What waits for an end looks again whether it should: reads go elsewhere when the end is
    /// gone, writes end when the replica is lost.
    pub(super) fn redistribute(&mut self, at: usize, now: Instant) {
        let mut queue = std::mem::take(&mut self.ends[at].waiting);
        while let Some(op) = queue.pop(&mut self.ops) {
            self.keep_or_drop(op, now);
        }
    }

    pub(super) fn keep_or_drop(&mut self, at: u32, now: Instant) {
        let op = self.ops[at];
        let gone = self.is_gone(&op);
        match op.direction {
            Direction::Write if gone => {
                self.ops.remove(at);
                self.settle(op.part, None);
            }
            Direction::Read if op.job == NIL => {
                self.ops.remove(at);
                self.return_spare(op.buf);
            }
            Direction::Read if gone || !self.ends[usize::from(op.donor.0)].usable() => {
                self.ops.remove(at);
                self.attempt_over(op.job, at);
                self.drop_spare(&op);
                self.read_on(op.job, now);
            }
            _ => self.ends[usize::from(op.donor.0)].waiting.push(&mut self.ops, at),
        }
    }

    pub(super) fn retry_deferred(&mut self, now: Instant) {
        for i in (0..self.deferred.len()).rev() {
            if self.ops[self.deferred[i]].time <= now {
                let op = self.deferred.swap_remove(i);
                self.enqueue(op, now);
            }
        }
    }

    /// Reads that found no endpoint look again.
    pub(super) fn unstall(&mut self, now: Instant) {
        for _ in 0..self.stalled.len() {
            let job = self.stalled.swap_remove(0);
            self.read_on(job, now);
        }
    }
}
