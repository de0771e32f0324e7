//! Serves one RDMA control connection (`annex_fabric::verbs::protocol`): connects queue pairs and
//! registers slabs, in a protection domain of the connection's own. The operations themselves go
//! past the agent.
//!
//! Queue pairs and registrations last as long as the connection and not longer: it ends when the
//! client closes it, when the client's session or claim is over ([`Connections`]), and when the
//! device vanishes. It counts as gone only after they are destroyed, so that whoever waits for its
//! end knows that nothing of it touches memory any more.

use super::{Caller, Connections, FENCE_PATIENCE, RegistrationError, SlabAccess};
use annex_fabric::ErrorKind;
use annex_fabric::verbs::protocol::{Answer, Refused, Request};
use annex_fabric::verbs::{DeviceChoice, DeviceEvent, Target, TargetError};
use annex_host::repeated;
use annex_identity::stream::Stream;
use annex_shared::ids::Rkey;
use annex_shared::preamble::{AdmitError, Proof, write_answer};
use annex_shared::wire::{FrameError, Frames, write_frame};
use std::io;
use std::time::Duration;
use tracing::{debug, warn};

/// How often it is looked whether the device is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of a request at most.
const REQUEST_LIMIT: u32 = 4096;
/// How long a client may leave an answer unread.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Why an RDMA control connection ended other than by its client closing it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("refused: {0}")]
    Refused(#[from] AdmitError),
    #[error("failed to use the RDMA control connection: {0}")]
    Io(#[from] io::Error),
    #[error("failed to use the RDMA control connection: {0}")]
    Frame(#[from] FrameError),
    #[error("the RDMA control connection was closed: its session is over")]
    Closed,
    #[error("RDMA device {0} was removed")]
    DeviceGone(String),
    #[error("RDMA device {0}: {1}")]
    DeviceFailed(String, DeviceEvent),
}

/// Answers the preamble, then serves until the connection ends. `Ok` means that the client closed
/// it. `None` for the device: RDMA is not offered.
pub fn serve(
    stream: impl Into<Stream>,
    caller: &Caller,
    access: &dyn SlabAccess,
    connections: &Connections,
    choice: Option<&DeviceChoice>,
) -> Result<(), ServeError> {
    let (mut stream, proof) = (stream.into(), &caller.proof);
    let socket = stream.socket();
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(LOOK))?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    let offered = choice.ok_or(AdmitError::NotOffered);
    let socket = socket.try_clone()?;
    // Entered first: a session that ends while it is being admitted must find the connection.
    let entered = offered.and_then(|choice| Ok((choice, connections.enter(proof, socket.into())?)));
    let (choice, guest) = match entered.and_then(|entered| access.admit(proof).map(|()| entered)) {
        Ok(admitted) => admitted,
        Err(reason) => {
            write_answer(&mut stream, Err(reason))?;
            return Err(reason.into());
        }
    };
    caller.welcome(&mut stream, guest.number())?;
    let target = Target::open(choice);
    let mut session = Session { proof, access, connections, number: guest.number(), target };
    let served = session.run(&stream);
    let is_closed = guest.is_closed();
    drop(session);
    // Only now: see the module's header.
    drop(guest);
    if is_closed { Err(ServeError::Closed) } else { served }
}

struct Session<'a> {
    proof: &'a Proof,
    access: &'a dyn SlabAccess,
    connections: &'a Connections,
    number: u64,
    target: Result<Target, TargetError>,
}

impl Session<'_> {
    fn run(&mut self, stream: &Stream) -> Result<(), ServeError> {
        let mut frames = Frames::new(stream).at_most(REQUEST_LIMIT);
        loop {
            match frames.read::<Request>() {
                Ok(Some(request)) => {
                    let answer = self.answer(request);
                    write_frame(&mut &*stream, &answer)?;
                }
                Ok(None) => self.look()?,
                Err(FrameError::Closed) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The kernel does not remove a device that somebody has open: it waits for us.
    fn look(&self) -> Result<(), ServeError> {
        let Ok(target) = &self.target else { return Ok(()) };
        let device = target.domain().device();
        if !device.is_present() {
            return Err(ServeError::DeviceGone(device.name().to_owned()));
        }
        while let Some(event) = device.next_event() {
            match event {
                DeviceEvent::Broken(_) => return Err(ServeError::DeviceFailed(device.name().to_owned(), event)),
                // The client notices, and decides what to do about it.
                DeviceEvent::PortDown(_) | DeviceEvent::Refused(_) => {
                    warn!("RDMA device {}, as {} uses it: {event}", device.name(), self.proof.client);
                }
                _ => debug!("RDMA device {}: {event}", device.name()),
            }
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Answer {
        let target = match &mut self.target {
            Ok(target) => target,
            Err(e) => return trouble(&*e),
        };
        match request {
            Request::Open(peer) => {
                let opened = target.connect(&peer);
                opened.unwrap_or_else(|e| {
                    repeated!(INFO, "a client's queue pair could not be connected" of &self.proof.client.to_string(),
                        "a queue pair of client {} could not be connected: {e}", self.proof.client);
                    trouble(&e)
                })
            }
            Request::Map { rkey } => self.map(rkey),
            Request::Fence => {
                let Proof { client, session, .. } = *self.proof;
                match self.connections.fence_sessions_before(client, session, FENCE_PATIENCE) {
                    true => Answer::Closed,
                    false => Answer::Refused {
                        kind: Refused::Trouble,
                        reason: "an earlier connection of this client is not over there yet".to_owned(),
                    },
                }
            }
            Request::Close { number } => {
                target.close(number);
                Answer::Closed
            }
        }
    }

    fn map(&self, rkey: Rkey) -> Answer {
        let domain = match &self.target {
            Ok(target) => target.domain(),
            Err(e) => return trouble(e),
        };
        match self.access.register(self.proof.client, rkey, self.number, domain) {
            Ok(window) => Answer::Mapped(window),
            Err(RegistrationError::Lease(ErrorKind::RemoteAccess)) => {
                Answer::Refused { kind: Refused::Key, reason: "the key is none of this client's leases".to_owned() }
            }
            Err(e) => {
                repeated!(INFO, "a slab could not be registered" of &self.proof.client.to_string(),
                    "a slab could not be registered for client {}: {e}", self.proof.client);
                trouble(&e)
            }
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Registrations of slabs hold the protection domain. The queue pairs go with the target.
        self.access.unregister(self.number);
    }
}

fn trouble(error: &dyn std::error::Error) -> Answer {
    Answer::Refused { kind: Refused::Trouble, reason: error.to_string() }
}
