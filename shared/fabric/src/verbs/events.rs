//! What a device says unasked: its port went down, its driver gave it up. Nobody has to wait for
//! operations to time out then.
//!
//! Events that nobody fetches pile up in the kernel, so all are, also those that mean nothing to
//! annex.

use super::device::Device;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_sys::ibv_async_event;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// One event. `Display` stands alone, after the device's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    PortUp(u8),
    PortDown(u8),
    /// The driver has given the device up, or a completion queue of ours: what is outstanding there
    /// never completes.
    Broken(&'static str),
    /// Addresses on the network changed.
    Renamed(&'static str),
    /// A peer's operation was refused.
    Refused(&'static str),
    /// Of no consequence here.
    Other(u32),
}

impl DeviceEvent {
    /// By the number that `<infiniband/verbs.h>` gives it. A newer library may have more of them.
    fn new(number: u32, port: u8) -> DeviceEvent {
        match number {
            0 => DeviceEvent::Broken("IBV_EVENT_CQ_ERR"),
            2 => DeviceEvent::Refused("IBV_EVENT_QP_REQ_ERR"),
            3 => DeviceEvent::Refused("IBV_EVENT_QP_ACCESS_ERR"),
            8 => DeviceEvent::Broken("IBV_EVENT_DEVICE_FATAL"),
            9 => DeviceEvent::PortUp(port),
            10 => DeviceEvent::PortDown(port),
            11 => DeviceEvent::Renamed("IBV_EVENT_LID_CHANGE"),
            18 => DeviceEvent::Renamed("IBV_EVENT_GID_CHANGE"),
            number => DeviceEvent::Other(number),
        }
    }

    /// True if nothing comes through this port of this device any more, or not before it is opened
    /// anew.
    pub fn ends(self, device: &Device) -> bool {
        match self {
            DeviceEvent::PortDown(port) => port == device.port,
            DeviceEvent::Broken(_) => true,
            _ => false,
        }
    }
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceEvent::PortUp(port) => write!(f, "port {port} is up"),
            DeviceEvent::PortDown(port) => {
                write!(
                    f,
                    "port {port} went down: set its network interface up (ip link set … up) and look at the cable"
                )
            }
            DeviceEvent::Broken(name) => {
                write!(
                    f,
                    "its driver reports a failure ({name}): look at this machine's kernel log; load the driver anew"
                )
            }
            DeviceEvent::Renamed(name) => write!(f, "its address on the network changed ({name})"),
            DeviceEvent::Refused(name) => write!(f, "it refused an operation of a peer ({name})"),
            DeviceEvent::Other(number) => write!(f, "event {number}"),
        }
    }
}

impl Device {
    /// Makes [`Device::next_event`] return when there is none. To be called once, before anybody
    /// asks.
    pub(super) fn hush(&self) -> io::Result<()> {
        let fd = self.async_fd();
        let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(())
    }

    /// Readable when there is an event. A descriptor of its own: the device can be dropped
    /// meanwhile.
    pub fn events(&self) -> io::Result<OwnedFd> {
        self.async_fd().try_clone_to_owned()
    }

    /// What the device said next, if it said anything. Does not wait.
    pub fn next_event(&self) -> Option<DeviceEvent> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and `event` is what is filled.
        let error = unsafe { (self.library.ibv_get_async_event)(self.context(), event.as_mut_ptr()) };
        if error != 0 {
            return None;
        }
        let at = event.as_mut_ptr();
        // SAFETY: filled by now. The type is read as the number that it is in C, since ours has no
        // value for a newer library's; the port shares its place with pointers that are not
        // followed.
        let (number, port) = unsafe { ((&raw const (*at).event_type).cast::<u32>().read(), (*at).element.port_num) };
        // SAFETY: it came from ibv_get_async_event, and is acknowledged once. What it is about
        // can't be destroyed before.
        unsafe { (self.library.ibv_ack_async_event)(at) };
        Some(DeviceEvent::new(number, u8::try_from(port).unwrap_or(0)))
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as this device lives, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.context()).async_fd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_numbers_of_the_header() {
        use rdma_sys::ibv_event_type::*;
        let of = |event: rdma_sys::ibv_event_type| DeviceEvent::new(event as u32, 2);
        assert_eq!(of(IBV_EVENT_PORT_ERR), DeviceEvent::PortDown(2));
        assert_eq!(of(IBV_EVENT_PORT_ACTIVE), DeviceEvent::PortUp(2));
        for event in [IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL] {
            assert_eq!(of(event), DeviceEvent::Broken(leaked(event)));
        }
        for event in [IBV_EVENT_LID_CHANGE, IBV_EVENT_GID_CHANGE] {
            assert_eq!(of(event), DeviceEvent::Renamed(leaked(event)));
        }
        for event in [IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR] {
            assert_eq!(of(event), DeviceEvent::Refused(leaked(event)));
        }
        assert_eq!(of(IBV_EVENT_COMM_EST), DeviceEvent::Other(4));
    }

    fn leaked(event: rdma_sys::ibv_event_type) -> &'static str {
        format!("{event:?}").leak()
    }
}
