//! RESP, the protocol of Redis: requests in, replies out.
//!
//! - [`Parser`]: a client's requests from whatever pieces of them have arrived, as multibulk or as
//!   an inline line.
//! - [`mod@peek`]: a look at the requests that are next.
//! - `inline`: how an inline line is split into arguments, with its quoting rules.
//! - `encode`: a [`Reply`](crate::reply::Reply) as bytes, in RESP2 or RESP3.
//! - [`mod@fuzz`]: what must hold for any bytes a client sends.
//!
//! Both directions follow Redis 7.0 to the byte, its error texts included: clients match on them.

mod encode;
mod fuzz;
mod inline;
mod parser;
mod peek;
#[cfg(test)]
mod tests;

pub use encode::{Output, PIECES, format_double};
pub use fuzz::fuzz;
pub use parser::{Limits, Parser, ProtocolError};
pub use peek::{Peeked, peek};
