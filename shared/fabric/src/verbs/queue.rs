//! Completion queues and queue pairs. A queue pair's state is its type: what is no step of RESET →
//! INIT → RTR → RTS does not compile.
//!
//! The agent's queue pairs stop at RTR: they answer, and can start nothing. The client's go on to
//! RTS.

use super::device::Device;
use super::gid::{GidEntry, GidKind};
use super::memory::{ProtectionDomain, report};
use super::protocol::Party;
use rdma_sys::*;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// How often a packet is sent anew before the operation fails; the most there is. Seven tries after
/// the first.
pub(super) const RETRIES: u8 = 7;

/// Where completions appear, with a descriptor to wait for them.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    device: Arc<Device>,
    channel: NonNull<ibv_comp_channel>,
    cq: NonNull<ibv_cq>,
}

// SAFETY: libibverbs lets any thread use a completion queue.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Of `entries` completions at least.
    pub fn new(device: &Arc<Device>, entries: u32) -> io::Result<CompletionQueue> {
        let library = device.library;
        // SAFETY: the context is open as long as the device lives.
        let channel = unsafe { (library.ibv_create_comp_channel)(device.context()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: as above, and the channel was just made of it.
        let cq = unsafe {
            (library.ibv_create_cq)(device.context(), entries as i32, std::ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = io::Error::last_os_error();
            // SAFETY: made above, and nothing uses it.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = CompletionQueue { device: device.clone(), channel, cq };
        let fd = queue.fd();
        let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFL)?;
        let flags = nix::fcntl::OFlag::from_bits_retain(flags) | nix::fcntl::OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFL(flags))?;
        Ok(queue)
    }

    /// Readable after a completion that came once the queue was armed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor are open as long as this lives.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes completions; how many there were. An error means that the device is gone.
    #[inline]
    pub fn poll(&self, into: &mut [ibv_wc]) -> io::Result<usize> {
        // SAFETY: the queue is good, and so are that many completions in `into`.
        let n = unsafe { ibv_poll_cq(self.cq.as_ptr(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EIO))
    }

    /// Has the next completion make the descriptor readable. One that is there already does not:
    /// poll afterwards.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is good.
        match unsafe { ibv_req_notify_cq(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            e => Err(io::Error::from_raw_os_error(e.abs())),
        }
    }

    /// Takes the event that made the descriptor readable; false if there is none.
    pub fn quiet(&self) -> bool {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is good, it does not block, and both are what is filled.
        let taken =
            unsafe { (self.device.library.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context) } == 0;
        if taken {
            // One that was taken and not acknowledged would keep the queue from being destroyed.
            // SAFETY: the event is of this queue, the channel's only one.
            unsafe { (self.device.library.ibv_ack_cq_events)(self.cq.as_ptr(), 1) };
        }
        taken
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs held this queue, and are gone; its events were acknowledged as they
        // were taken.
        unsafe {
            report("a completion queue", (self.device.library.ibv_destroy_cq)(self.cq.as_ptr()));
            report("a completion channel", (self.device.library.ibv_destroy_comp_channel)(self.channel.as_ptr()));
        }
    }
}

/// States of a queue pair.
#[derive(Debug)]
pub(super) struct Init;
/// It answers its peer.
#[derive(Debug)]
pub(super) struct ReadyToReceive;
/// It sends, too.
#[derive(Debug)]
pub(super) struct ReadyToSend;

/// A reliable connection's end.
#[derive(Debug)]
pub(super) struct QueuePair<State> {
    handle: Handle,
    psn: u32,
    state: PhantomData<State>,
}

/// Destroys the queue pair in whatever state it is. After that its device neither reads nor writes
/// anything for it.
#[derive(Debug)]
struct Handle {
    domain: Arc<ProtectionDomain>,
    _cq: Arc<CompletionQueue>,
    qp: NonNull<ibv_qp>,
}

// SAFETY: libibverbs lets any thread use a queue pair.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made in `QueuePair::new`, and nobody else has the pointer.
        let error = unsafe { (self.domain.device.library.ibv_destroy_qp)(self.qp.as_ptr()) };
        report("a queue pair", error);
    }
}

impl Handle {
    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair is good, and `attr` has what `mask` names.
        match unsafe { (self.domain.device.library.ibv_modify_qp)(self.qp.as_ptr(), attr, mask.0 as i32) } {
            0 => Ok(()),
            e => Err(io::Error::from_raw_os_error(e.abs())),
        }
    }
}

/// What a queue pair has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueCapacity {
    pub sends: u32,
    /// Bytes of a WRITE that the queue itself holds, so that the device need not fetch them. Less
    /// if the device has less.
    pub inline: u32,
}

impl QueuePair<Init> {
    /// A new one, its completions in `cq`; RESET → INIT. A target's peer may read and write; else
    /// it may do nothing.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        room: QueueCapacity,
        is_target: bool,
    ) -> io::Result<(QueuePair<Init>, QueueCapacity)> {
        let mut inline = room.inline;
        let (qp, granted) = loop {
            // SAFETY: all zeros is a valid value of this plain structure.
            let mut attr: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
            (attr.send_cq, attr.recv_cq) = (cq.cq.as_ptr(), cq.cq.as_ptr());
            attr.qp_type = ibv_qp_type::IBV_QPT_RC;
            attr.cap = ibv_qp_cap {
                max_send_wr: room.sends,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            // SAFETY: domain and queue are good and of one device.
            let qp = unsafe { (domain.device.library.ibv_create_qp)(domain.as_ptr(), &mut attr) };
            match NonNull::new(qp) {
                Some(qp) => {
                    break (qp, QueueCapacity { sends: room.sends, inline: attr.cap.max_inline_data.min(inline) });
                }
                // No device says how much it takes inline.
                None if inline > 0 => inline /= 2,
                None => return Err(io::Error::last_os_error()),
            }
        };
        let handle = Handle { domain: domain.clone(), _cq: cq.clone(), qp };
        let (mut attr, device) = (zeroed(), &domain.device);
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.pkey_index = 0;
        attr.port_num = device.port;
        if is_target {
            let mut access = ibv_access_flags::IBV_ACCESS_REMOTE_READ | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            if device.limits().swaps {
                access |= ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
            }
            attr.qp_access_flags = access.0;
        }
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        handle.modify(&mut attr, mask)?;
        Ok((QueuePair { handle, psn: rand::random::<u32>() & 0xff_ffff, state: PhantomData }, granted))
    }

    /// INIT → RTR, connected to `peer`, of whose READs and atomics it answers `reads` at once.
    pub fn receive_from(self, peer: &Party, reads: u8) -> io::Result<QueuePair<ReadyToReceive>> {
        let (mut attr, device) = (zeroed(), self.handle.domain.device.clone());
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = u32::from(peer.mtu).min(device.mtu);
        attr.dest_qp_num = peer.number;
        attr.rq_psn = peer.psn;
        attr.max_dest_rd_atomic = reads;
        // 0.64 ms; annex sends nothing that could find its receiver not ready.
        attr.min_rnr_timer = 12;
        attr.ah_attr.dlid = peer.lid;
        attr.ah_attr.port_num = device.port;
        if peer.kind != GidKind::InfiniBand {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = ibv_gid { raw: peer.gid.0 };
            attr.ah_attr.grh.sgid_index = device.gid.index;
            attr.ah_attr.grh.hop_limit = 64;
        }
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.handle.modify(&mut attr, mask).map_err(|e| no_way(e, &device.gid, peer))?;
        Ok(QueuePair { handle: self.handle, psn: self.psn, state: PhantomData })
    }
}

/// For RoCE the kernel looks for the peer's hardware address at this step, as for any packet from
/// the one address to the other.
fn no_way(error: io::Error, ours: &GidEntry, peer: &Party) -> io::Error {
    let is_of_network = matches!(
        error.raw_os_error(),
        Some(
            libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ETIMEDOUT
                | libc::EADDRNOTAVAIL
                | libc::ENODEV
                | libc::EINVAL
        )
    );
    if ours.kind == GidKind::InfiniBand || !is_of_network {
        return error;
    }
    let said = format!(
        "no way from GID {} (IP {}) to the peer's IP {}: {error}; set gid_index to an address in the peer's network, and look whether it answers \
         `ping -I {} {}`",
        ours.index,
        ours.gid.ip(),
        peer.gid.ip(),
        ours.gid.ip(),
        peer.gid.ip()
    );
    io::Error::new(error.kind(), said)
}

impl QueuePair<ReadyToReceive> {
    /// RTR → RTS, with `reads` READs and atomics in flight; `timeout` is the device's code for the
    /// time between two tries.
    pub fn send(self, reads: u8, timeout: u8) -> io::Result<QueuePair<ReadyToSend>> {
        let mut attr = zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = timeout;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RETRIES;
        attr.sq_psn = self.psn;
        attr.max_rd_atomic = reads;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.handle.modify(&mut attr, mask)?;
        Ok(QueuePair { handle: self.handle, psn: self.psn, state: PhantomData })
    }
}

impl QueuePair<ReadyToSend> {
    /// Rings the doorbell once for a whole chain of work requests. On an error none from the `bad`
    /// one on was taken.
    ///
    /// # Safety
    /// `first` must be a chain of valid requests whose memory is registered and stays so until they
    /// are done; what they read must not change and what they write must not be used meanwhile.
    #[inline]
    pub unsafe fn post(&mut self, first: *mut ibv_send_wr) -> Result<(), (io::Error, *mut ibv_send_wr)> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is good, the chain too (the caller's promise).
        match unsafe { ibv_post_send(self.handle.qp.as_ptr(), first, &mut bad) } {
            0 => Ok(()),
            e => Err((io::Error::from_raw_os_error(e.abs()), bad)),
        }
    }
}

impl<State> QueuePair<State> {
    /// How the peer finds it.
    pub fn party(&self, reads: u8) -> Party {
        let device = &self.handle.domain.device;
        Party {
            number: self.number(),
            psn: self.psn,
            gid: device.gid.gid,
            kind: device.gid.kind,
            lid: device.lid,
            mtu: device.mtu as u8,
            reads,
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the structure is good as long as the queue pair; its number does not change.
        unsafe { self.handle.qp.as_ref().qp_num }
    }
}

fn zeroed() -> ibv_qp_attr {
    // SAFETY: all zeros is a valid value of this plain structure.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::super::gid::Gid;
    use super::*;

    fn gid(last: u8) -> Gid {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 7, 0, last]);
        Gid(gid)
    }

    #[test]
    fn an_address_that_reaches_no_peer_is_named_with_the_peers_and_other_trouble_is_left_as_it_is() {
        let peer = Party { number: 17, psn: 1, gid: gid(2), kind: GidKind::RoceV2, lid: 0, mtu: 3, reads: 16 };
        let fail = |errno, kind| {
            let ours = GidEntry { index: 3, gid: gid(1), kind };
            no_way(io::Error::from_raw_os_error(errno), &ours, &peer).to_string()
        };
        let said = fail(libc::ENETUNREACH, GidKind::RoceV2);
        assert!(
            said.starts_with("no way from GID 3 (IP 10.7.0.1) to the peer's IP 10.7.0.2: Network is unreachable"),
            "{said}"
        );
        assert!(said.contains("set gid_index") && said.ends_with("`ping -I 10.7.0.1 10.7.0.2`"), "{said}");
        assert!(!fail(libc::ENOMEM, GidKind::RoceV2).contains("gid_index"));
        assert!(!fail(libc::EINVAL, GidKind::InfiniBand).contains("gid_index"));
    }
}
