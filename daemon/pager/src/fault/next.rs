//! What a fault asks for next.

use crate::fault::fetch::Fetch;

/// What a fault asks for next, once it was looked at under the lock of its space.
#[derive(Debug)]
pub enum Next {
    /// Nothing: served, or somebody else will.
    Served,
    /// Nothing for now: the app delays it until there is room, or until it has waited long enough
    /// ([`App::take_delayed`](crate::app::App::take_delayed)).
    Delayed,
    /// Bring these.
    Read(Fetch),
    /// The app is changing its mappings: read its messages, then try again.
    Again,
}
