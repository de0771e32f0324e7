//! Databases, by their number.

pub const DATABASES: u8 = 16;

/// A database's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Db(pub u8);
