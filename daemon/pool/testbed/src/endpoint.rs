//! The fabric to scripted agents: each operation meets the fate that the script says.

use super::agent::{Agent, Fate, State};
use annex_fabric::{Arena, Completion, ConnectError, Endpoint, ErrorKind, Op, OpKind, QueueFull, Transport};
use annex_pool::dial::{DataPath, DialError};
use annex_shared::ids::{RemoteAddr, Rkey};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Path(pub Arc<Agent>);

impl DataPath for Path {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        let mut state = self.0.0.lock();
        if !state.reachable {
            let source = std::io::ErrorKind::ConnectionRefused.into();
            return Err(ConnectError::Unreachable { peer: "scripted".to_owned(), source });
        }
        let event = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        state.endpoints.push(event.clone());
        let (agent, arena) = (self.0.clone(), arena.clone());
        Ok(Box::new(ScriptedEndpoint {
            agent,
            arena,
            epoch: state.epoch,
            event,
            posted: VecDeque::new(),
            broken: false,
        }))
    }

    fn prepare(&self, _: Rkey) -> Result<(), DialError> {
        Ok(())
    }

    fn forget(&self, _: Rkey) {}
}

struct ScriptedEndpoint {
    agent: Arc<Agent>,
    arena: Arc<Arena>,
    epoch: u64,
    event: Arc<EventFd>,
    posted: VecDeque<Op>,
    broken: bool,
}

impl Endpoint for ScriptedEndpoint {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn depth(&self) -> usize {
        8
    }

    fn post(&mut self, op: Op) -> Result<(), QueueFull> {
        if self.posted.len() == self.depth() {
            return Err(QueueFull);
        }
        self.posted.push_back(op);
        Ok(())
    }

    fn ring(&mut self) {
        self.event.write(1).unwrap();
    }

    fn read_now(&mut self, op: &Op) -> Option<Result<Duration, ErrorKind>> {
        let begun = Instant::now();
        let agent = self.agent.clone();
        let mut state = agent.0.lock();
        if !state.near || !state.reachable || state.epoch != self.epoch {
            return None;
        }
        Some(match (state.script)(op) {
            Fate::Fail(kind) => Err(kind),
            fate => self.execute(&mut state, op, fate == Fate::Corrupt).map(|()| begun.elapsed()),
        })
    }

    fn prefetch_hint(&mut self, rkey: Rkey, addr: RemoteAddr, len: u32) {
        self.agent.0.lock().hinted.push((rkey, addr, len));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let _ = self.event.read();
        let agent = self.agent.clone();
        let mut state = agent.0.lock();
        self.broken |= !state.reachable || state.epoch != self.epoch;
        let complete = |op: &Op, result| Completion { tag: op.tag, result, value: 0 };
        while !state.held
            && !self.broken
            && let Some(op) = self.posted.pop_front()
        {
            let fate = (state.script)(&op);
            let result = match fate {
                Fate::Fail(kind) => {
                    self.broken |= kind.is_fatal();
                    Err(kind)
                }
                Fate::Do => self.execute(&mut state, &op, false),
                Fate::Corrupt => self.execute(&mut state, &op, true),
                Fate::Break => {
                    self.broken = true;
                    self.execute(&mut state, &op, false).and(Err(ErrorKind::RetryExceeded))
                }
            };
            done.push(complete(&op, result));
        }
        if self.broken {
            done.extend(self.posted.drain(..).map(|op| complete(&op, Err(ErrorKind::Flushed))));
        }
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn give_up(&mut self) {
        self.broken = true;
    }

    fn is_broken(&self) -> bool {
        self.broken
    }
}

impl ScriptedEndpoint {
    fn execute(&self, state: &mut State, op: &Op, corrupt: bool) -> Result<(), ErrorKind> {
        let slab = state.slabs.values_mut().find(|(rkey, _)| *rkey == op.rkey).ok_or(ErrorKind::RemoteAccess)?;
        let (at, len) = (op.addr.0 as usize, op.len as usize);
        let remote = slab.1.get_mut(at..at + len).ok_or(ErrorKind::RemoteAccess)?;
        // SAFETY: the lane keeps the range for this operation alone until its completion, which
        // comes after this.
        let local = unsafe { self.arena.bytes_mut(op.local, len) };
        let (from, to): (&[u8], &mut [u8]) = match op.kind {
            OpKind::Read => (remote, local),
            OpKind::Write => (local, remote),
            OpKind::CompareSwap { .. } => return Err(ErrorKind::RemoteOperation),
        };
        to.copy_from_slice(from);
        if corrupt {
            to[len / 2] ^= 1;
        }
        Ok(())
    }
}
