//! Work on large values that takes so long that other clients would notice: it is done on another
//! thread, and so are the making and the giving back of their memory.

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;

/// Steps of work (bytes looked at, cells of a table) that nobody notices: well below a
/// millisecond.
const UNNOTICED: u64 = 1 << 18;

/// It takes so long to give so many bytes back that others would notice.
const LARGE: usize = 1 << 20;

/// The thread did not come to the end of the work: the server is stopping.
#[derive(Debug, thiserror::Error)]
#[error("the command was given up: {0}")]
pub struct GivenUp(#[from] tokio::task::JoinError);

/// Does the work, here or elsewhere.
pub async fn run<T: Send + 'static>(steps: u64, work: impl FnOnce() -> T + Send + 'static) -> Result<T, GivenUp> {
    if steps <= UNNOTICED {
        return Ok(work());
    }
    Ok(tokio::task::spawn_blocking(work).await?)
}

/// Bytes that are not changed any more. The memory of many goes back to the system elsewhere.
pub fn shared<T: AsRef<[u8]> + Into<Bytes> + Default + Send + 'static>(bytes: T) -> Bytes {
    if bytes.as_ref().len() as u64 <= UNNOTICED { bytes.into() } else { Bytes::from_owner(Large(bytes)) }
}

/// Drops what takes so many bytes. The memory of many goes back to the system elsewhere.
pub fn let_go<T: Send + 'static>(bytes: usize, what: T) {
    if bytes >= LARGE
        && let Ok(event_loop) = Handle::try_current()
    {
        event_loop.spawn_blocking(move || drop(what));
    }
}

struct Large<T: Default + Send + 'static>(T);

impl<T: AsRef<[u8]> + Default + Send + 'static> AsRef<[u8]> for Large<T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl<T: Default + Send + 'static> Drop for Large<T> {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        // A thread without an event loop keeps nobody waiting.
        if let Ok(event_loop) = Handle::try_current() {
            event_loop.spawn_blocking(move || drop(bytes));
        }
    }
}

/// Has `change` work on a copy of the bytes, which is made at least `len` bytes long.
pub async fn changed<T: Send + 'static>(
    bytes: Bytes,
    len: usize,
    change: impl FnOnce(&mut [u8]) -> T + Send + 'static,
) -> Result<(Bytes, T), GivenUp> {
    let len = len.max(bytes.len());
    run(len as u64, move || {
        let mut whole = match bytes.try_into_mut() {
            Ok(mut whole) => {
                whole.resize(len, 0);
                whole
            }
            Err(bytes) => {
                // Memory that the system has zeroed is not touched for it.
                let mut whole = BytesMut::zeroed(len);
                whole[..bytes.len()].copy_from_slice(&bytes);
                whole
            }
        };
        let answer = change(&mut whole);
        (shared(whole), answer)
    })
    .await
}
