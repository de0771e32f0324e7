//! Fetches and maps slabs, and notices that the agent is gone.

use super::board::BoardView;
use super::endpoint::ShmEndpoint;
use super::protocol::{Request, receive_answer};
use super::slabs::{Slab, Slabs};
use crate::{Arena, ConnectError, Connector, Endpoint, ErrorKind, Transport};
use annex_shared::ids::{ClientId, Incarnation, Rkey, SessionKey};
use annex_shared::preamble::{AnswerError, Preamble, Proof, read_answer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use parking_lot::Mutex;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Operations outstanding at once, unless told otherwise.
const DEPTH: usize = 256;
/// How often mappings are looked for that no endpoint uses any more.
const SWEEP: u16 = 1000;

/// Opens endpoints to an agent on the same host, for one incarnation and session.
#[derive(Debug)]
pub struct ShmConnector {
    peer: PathBuf,
    depth: usize,
    /// Bytes of a slab, if the donor has said so.
    slab_size: Option<u64>,
    slabs: Arc<Slabs>,
    /// One request at a time.
    socket: Mutex<UnixStream>,
    watcher: Option<JoinHandle<()>>,
}

/// A slab could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("the agent at {peer} does not hand out the slab: {source}")]
    Refused { peer: String, source: ErrorKind },
    #[error("failed to fetch a slab's memory from the agent at {peer}: {source}")]
    Io { peer: String, source: io::Error },
    #[error("failed to map a slab of the agent at {peer}: {source}")]
    Map { peer: String, source: io::Error },
}

impl ShmConnector {
    /// Connects to the agent's Unix socket and fetches the lease board. `timeout` is for each
    /// answer.
    pub fn connect(
        path: &Path,
        client: ClientId,
        incarnation: Incarnation,
        session: SessionKey,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let peer = path.display().to_string();
        let unreachable = |source| ConnectError::Unreachable { peer: peer.clone(), source };
        let local = |source| ConnectError::Local { transport: Transport::Shm, peer: peer.clone(), source };
        let refused = |reason: String| ConnectError::Refused { peer: peer.clone(), reason };
        let mut socket = reach(path, timeout).map_err(unreachable)?;
        socket
            .set_read_timeout(Some(timeout))
            .and_then(|()| Preamble::Shm(Proof { client, incarnation, session }).write_to(&mut socket))
            .map_err(unreachable)?;
        read_answer(&mut socket).map_err(|e| match e {
            AnswerError::Io(e) => unreachable(e),
            e => refused(e.to_string()),
        })?;
        Request::Board.write_to(&mut socket).map_err(unreachable)?;
        let (_, board) = receive_answer(&socket)
            .map_err(unreachable)?
            .map_err(|e| refused(format!("it does not hand out its lease board ({e})")))?;
        let board = BoardView::map(&board).map_err(local)?;
        let slabs = Arc::new(Slabs::new(board, incarnation));
        let watcher = {
            let (slabs, socket) = (slabs.clone(), socket.try_clone().map_err(local)?);
            let thread = std::thread::Builder::new().name("shm-watch".into()).stack_size(64 << 10);
            thread.spawn(move || watch(&slabs, &socket)).map_err(local)?
        };
        Ok(ShmConnector {
            peer: path.to_owned(),
            depth: DEPTH,
            slab_size: None,
            slabs,
            socket: Mutex::new(socket),
            watcher: Some(watcher),
        })
    }

    /// Operations that an endpoint may have outstanding (done and not polled) at once.
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// Only slabs of so many bytes are mapped: whatever is mapped is made present, at this
    /// process's expense.
    pub fn with_slab_size(mut self, bytes: u64) -> Self {
        self.slab_size = Some(bytes);
        self
    }

    /// Maps the slab leased under `rkey` for all endpoints, those already open too. Nothing to do
    /// if it is.
    pub fn prepare(&self, rkey: Rkey) -> Result<(), PrepareError> {
        let mut socket = self.socket.lock();
        if self.slabs.mapped.contains(rkey) {
            return Ok(());
        }
        let peer = || self.peer.display().to_string();
        let answer = Request::Slab(rkey).write_to(&mut *socket).and_then(|()| receive_answer(&socket));
        let answer = answer.map_err(|source| {
            // An answer that comes late would be taken for the next one's: no more questions on
            // this connection.
            let _ = socket.shutdown(Shutdown::Both);
            PrepareError::Io { peer: peer(), source }
        })?;
        let (region, fd) = answer.map_err(|source| PrepareError::Refused { peer: peer(), source })?;
        let slab = match self.slab_size {
            Some(bytes) if region.len != bytes => {
                let what = format!("it has {} bytes, and the donor's slabs have {bytes}", region.len);
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            _ => Slab::map(&fd, region),
        };
        let slab = slab.map_err(|source| PrepareError::Map { peer: peer(), source })?;
        self.slabs.mapped.insert(rkey, Arc::new(slab));
        Ok(())
    }

    /// Drops a slab that is returned or lost: from now on operations on it are refused. It is
    /// unmapped when every endpoint has been polled once more.
    pub fn forget(&self, rkey: Rkey) {
        // The lock makes changes of the table one at a time.
        let _socket = self.socket.lock();
        self.slabs.mapped.remove(rkey);
    }

    /// False once the agent is gone: nothing will work again through this connector.
    pub fn is_alive(&self) -> bool {
        self.slabs.is_alive.load(Ordering::Acquire)
    }
}

/// Connects, and waits no longer than that for somebody who listens and does not accept.
fn reach(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(timeout))?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

impl Connector for ShmConnector {
    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        if !self.is_alive() {
            let source = io::Error::new(io::ErrorKind::NotConnected, "the agent has closed its shm connection");
            return Err(ConnectError::Unreachable { peer: self.peer.display().to_string(), source });
        }
        Ok(Box::new(ShmEndpoint::new(self.slabs.clone(), arena.clone(), self.depth)))
    }
}

impl Drop for ShmConnector {
    fn drop(&mut self) {
        let socket = self.socket.lock();
        // Wakes the watcher. If it is shut down already, so is the watcher.
        let _ = socket.shutdown(Shutdown::Both);
        drop(socket);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// Sleeps until the agent hangs up; meanwhile frees mappings that are out of use.
fn watch(slabs: &Slabs, socket: &UnixStream) {
    loop {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::from_bits_retain(libc::POLLRDHUP))];
        match poll(&mut fds, PollTimeout::from(SWEEP)) {
            Ok(0) => slabs.mapped.sweep(),
            Err(nix::errno::Errno::EINTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    slabs.is_alive.store(false, Ordering::Release);
    tracing::debug!("shm connection closed");
}
