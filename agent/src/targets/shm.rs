//! Hands slabs' memory and the lease board out to a client on the same host, over one connection of
//! the agent's Unix socket.
//!
//! From then on the agent is not in the way of an operation any more; the client obeys the lease
//! board. What the agent can rely on is only that a memfd which was handed out is never lent to
//! anyone else ([`SlabAccess::memfd`]).

use super::{Connections, SlabAccess};
use annex_fabric::ErrorKind;
use annex_fabric::shm::protocol::{Region, Request, send_answer};
use annex_shared::preamble::{AdmitError, Proof, write_answer};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Why a shm connection ended other than by its client closing it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("refused: {0}")]
    Refused(#[from] AdmitError),
    #[error("failed to use the shm connection: {0}")]
    Io(#[from] io::Error),
    #[error("the shm connection was closed: its session is over")]
    Closed,
}

/// Answers the preamble, then serves until the connection ends. `Ok` means that the client closed
/// it.
pub fn serve(
    stream: UnixStream,
    proof: &Proof,
    access: &dyn SlabAccess,
    connections: &Connections,
) -> Result<(), ServeError> {
    let mut stream = stream;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(None)?;
    let offered = if access.board().is_some() { Ok(()) } else { Err(AdmitError::NotOffered) };
    let entered = offered.and(connections.enter(proof, stream.try_clone()?.into()));
    let guest = match entered.and_then(|guest| access.admit(proof).map(|()| guest)) {
        Ok(guest) => guest,
        Err(reason) => {
            write_answer(&mut stream, Err(reason))?;
            return Err(reason.into());
        }
    };
    write_answer(&mut stream, Ok(guest.number()))?;
    loop {
        let request = match Request::read_from(&mut stream) {
            _ if guest.is_closed() => return Err(ServeError::Closed),
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        match request {
            Request::Board => {
                let board = access.board().map(|fd| (Region { board_slot: 0, offset: 0, len: 0 }, fd));
                send_answer(&stream, board.ok_or(ErrorKind::RemoteAccess))?;
            }
            Request::Slab(rkey) => {
                let slab = access.memfd(proof.client, rkey);
                let answer = slab.as_ref().map(|slab| {
                    let (board_slot, offset, len) = (slab.board_slot, slab.offset, slab.len);
                    (Region { board_slot, offset, len }, slab.fd.as_fd())
                });
                send_answer(&stream, answer.map_err(|kind| *kind))?;
            }
        }
    }
}
