//! A scripted agent: what it holds, and what becomes of its connections and of the operations on
//! it.

use annex_fabric::{ErrorKind, Op};
use annex_shared::ids::{Incarnation, RemoteAddr, Rkey, SlabId};
use annex_shared::page::PAGE_SIZE;
use nix::sys::eventfd::EventFd;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What becomes of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Do,
    /// Completed with an error, not done.
    Fail(ErrorKind),
    /// Done, with one bit changed on the way (either way).
    Corrupt,
    /// The connection breaks: this one and all others outstanding are flushed. The operation is
    /// done.
    Break,
}

type Script = Box<dyn FnMut(&Op) -> Fate + Send>;

/// One scripted donor.
pub struct Agent(pub Mutex<State>);

pub struct State {
    pub reachable: bool,
    pub incarnation: u64,
    /// Grows when connections break.
    pub epoch: u64,
    pub capacity: u32,
    pub next_key: u64,
    pub slabs: BTreeMap<SlabId, (Rkey, Vec<u8>)>,
    pub closing: Option<u64>,
    pub recall: Option<u64>,
    /// It wants its memory for itself, and lends no more.
    pub is_pressed: bool,
    pub resumed: Option<Incarnation>,
    /// Whether RDMA works; `None`: nobody wants it.
    pub rdma: Option<bool>,
    pub held: bool,
    /// Its memory is this host's: what is read there is read at once.
    pub near: bool,
    pub mute: bool,
    /// What a lane has said it will read.
    pub hinted: Vec<(Rkey, RemoteAddr, u32)>,
    pub script: Script,
    pub hears: Vec<Arc<EventFd>>,
    pub endpoints: Vec<Arc<EventFd>>,
    pub hellos: u32,
    /// Attempts to reach it, also while it can't be.
    pub dialed: u32,
}

impl State {
    pub fn free(&self) -> u32 {
        if self.is_pressed { 0 } else { self.capacity - self.slabs.len() as u32 }
    }
}

impl Agent {
    pub fn new(capacity: u32) -> Arc<Agent> {
        Arc::new(Agent(Mutex::new(State {
            reachable: true,
            incarnation: 1,
            epoch: 0,
            capacity,
            next_key: 1,
            slabs: BTreeMap::new(),
            closing: None,
            recall: None,
            is_pressed: false,
            resumed: None,
            rdma: None,
            held: false,
            near: false,
            mute: false,
            hinted: Vec::new(),
            script: Box::new(|_| Fate::Do),
            hears: Vec::new(),
            endpoints: Vec::new(),
            hellos: 0,
            dialed: 0,
        })))
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.lock();
        let result = f(&mut state);
        state.hears.iter().chain(&state.endpoints).for_each(|e| {
            let _ = e.write(1);
        });
        result
    }

    /// Decides over every operation from now on.
    pub fn script(&self, script: impl FnMut(&Op) -> Fate + Send + 'static) {
        self.with(|s| s.script = Box::new(script));
    }

    /// Gone: connections break, none can be made. What it holds stays.
    pub fn cut(&self) {
        self.with(|s| (s.reachable, s.epoch) = (false, s.epoch + 1));
    }

    /// Back, with what it held.
    pub fn mend(&self) {
        self.with(|s| s.reachable = true);
    }

    /// Breaks the connections; new ones can be made at once.
    pub fn hang_up(&self) {
        self.with(|s| s.epoch += 1);
    }

    /// Another incarnation: everything it held is gone.
    pub fn restart(&self) {
        self.with(|s| {
            s.incarnation += 1;
            s.epoch += 1;
            s.reachable = true;
            s.resumed = None;
            s.slabs.clear();
        });
    }

    /// Another incarnation with the same bytes, under new keys.
    pub fn restart_with_bytes(&self) {
        self.with(|s| {
            s.resumed = Some(Incarnation(s.incarnation));
            s.incarnation += 1;
            s.epoch += 1;
            s.reachable = true;
            let mut key = s.next_key;
            for (rkey, _) in s.slabs.values_mut() {
                *rkey = Rkey::of(rkey.lease(), key as u32);
                key += 1;
            }
            s.next_key = key;
        });
    }

    /// Asks for all slabs back, and lends no more.
    pub fn recall(&self, deadline_ms: u64) {
        self.with(|s| (s.recall, s.is_pressed) = (Some(deadline_ms), true));
    }

    pub fn say_goodbye(&self, grace_ms: u64) {
        self.with(|s| (s.closing, s.is_pressed) = (Some(grace_ms), true));
    }

    /// While mute, its agent answers nothing that it is asked.
    pub fn mute(&self, mute: bool) {
        self.with(|s| s.mute = mute);
    }

    /// While near, a READ can be done on the spot.
    pub fn near(&self, near: bool) {
        self.with(|s| s.near = near);
    }

    /// What it was said that would be read, since this was last asked.
    pub fn hinted(&self) -> Vec<(Rkey, RemoteAddr, u32)> {
        self.with(|s| std::mem::take(&mut s.hinted))
    }

    /// While held, no operation is done or completed.
    pub fn hold(&self, held: bool) {
        self.with(|s| s.held = held);
    }

    pub fn drop_slabs(&self) {
        self.with(|s| s.slabs.clear());
    }

    pub fn lent(&self) -> usize {
        self.with(|s| s.slabs.len())
    }

    /// From now on connections to it are a fallback until RDMA works.
    pub fn rdma(&self, works: bool) {
        self.with(|s| s.rdma = Some(works));
    }

    pub fn hellos(&self) -> u32 {
        self.with(|s| s.hellos)
    }

    /// Changes a byte of every page it holds.
    pub fn rot(&self) {
        self.with(|s| s.slabs.values_mut().for_each(|(_, b)| b.iter_mut().step_by(PAGE_SIZE).for_each(|x| *x ^= 0x40)));
    }

    /// All pages of all slabs that were ever written, slab by slab.
    pub fn with_pages(&self, mut see: impl FnMut(&mut [u8])) {
        self.with(|s| {
            let pages = s.slabs.values_mut().flat_map(|(_, bytes)| bytes.chunks_exact_mut(PAGE_SIZE));
            pages.filter(|page| page.iter().any(|byte| *byte != 0)).for_each(&mut see);
        });
    }
}
