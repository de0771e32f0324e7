//! How other threads reach a lane: a queue, a flag that is cheap to look at, and an eventfd that
//! wakes a sleeper.

use annex_fabric::Endpoint;
use annex_shared::ids::DonorId;
use crossbeam::queue::SegQueue;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// A fresh endpoint to a donor.
pub(crate) struct Delivery {
    pub donor: DonorId,
    pub endpoint: Box<dyn Endpoint>,
}

/// One lane's mailbox.
pub(crate) struct Mailbox {
    deliveries: SegQueue<Delivery>,
    flag: AtomicBool,
    event: EventFd,
}

impl Mailbox {
    pub fn new() -> Result<Self, Errno> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Mailbox { deliveries: SegQueue::new(), flag: AtomicBool::new(false), event })
    }

    pub fn deliver(&self, delivery: Delivery) {
        self.deliveries.push(delivery);
        self.wake();
    }

    /// Makes the lane look around: something changed that concerns it.
    pub fn wake(&self) {
        if !self.flag.swap(true, AcqRel) {
            // The counter can't overflow: the flag lets one writer through per look.
            let _ = self.event.write(1);
        }
    }

    #[inline]
    pub fn has_news(&self) -> bool {
        self.flag.load(Acquire)
    }

    /// Before looking at the deliveries: whatever comes from now on wakes again.
    pub fn open(&self) {
        // Drained first: a wake before the swap is seen by the look that follows, one after it
        // writes the eventfd anew.
        let _ = self.event.read();
        self.flag.swap(false, AcqRel);
    }

    pub fn take(&self) -> Option<Delivery> {
        self.deliveries.pop()
    }

    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
