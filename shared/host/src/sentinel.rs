//! A thread that panics takes annexd with it.
//!
//! Programs would wait for ever on a dead fault worker or for the repair that a dead pool thread
//! does not do, and a half-applied change can't be vouched for. So annexd aborts: the next one
//! takes the programs over, and if none comes the keeper ends them and says so.

/// Held by a thread for its life.
pub struct Sentinel(pub &'static str);

impl Drop for Sentinel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("{} panicked: annexd can't vouch for its programs' memory any more and ends", self.0);
            std::process::abort();
        }
    }
}
