//! Work on values that takes so long that other clients would notice: it is done on another thread.

use super::super::call::Failure;

/// Steps of work (bytes looked at, cells of a table) that nobody notices: well below a millisecond.
const UNNOTICED: u64 = 1 << 18;

/// Does the work, here or elsewhere.
pub async fn run<T: Send + 'static>(steps: u64, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    if steps <= UNNOTICED {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure(format!("ERR the command was given up: {error}").into()))
}
