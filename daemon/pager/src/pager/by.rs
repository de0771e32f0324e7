//! Who has something attached.

/// Who has something attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Somebody who asked for it: all of it or nothing, even if it was let go of before.
    Hand,
    /// A rule: what is free of it, but for what was let go of by hand.
    Rule,
}
