//! When something ends in the middle: take-over from an annexd that is gone, rollback of evictions
//! that were cut short, and bringing an app back.

pub mod ledger;
pub mod restore;
pub mod rollback;
pub mod room;
pub mod staged;
pub mod takeover;
