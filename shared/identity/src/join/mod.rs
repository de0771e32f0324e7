//! How a host gets its first certificate with a token, and each later one with the one before.
//!
//! ```text
//! joiner                                        agent beside the CA
//!   TLS handshake, protocol annex-join/1  <->    shows its certificate and the CA's
//!   the CA is the one of the token?
//!   Request: secret and CSR (or: CSR)      ->    secret or client certificate good?
//!                                          <-    Answer: certificate and CA, or why not
//!   the certificate is of that CA, for my key?
//! ```
//!
//! The joiner says its secret only to who has shown, under the CA of the token, that it is a donor.
//! Its key never leaves it. To renew, a host shows its certificate in the handshake and needs no
//! secret; the key stays the same.
//!
//! Each exchange has a limit of time and of bytes over all of it, the handshake included
//! ([`bounded`]). What a peer sends is decoded strictly.
//!
//! - [`protocol`]: the messages.
//! - [`ask`]: the side of the host that joins or renews.
//! - [`answer`]: the side of the CA.
//! - [`signer`]: the agent beside the CA.

pub mod answer;
pub mod ask;
pub mod bounded;
pub mod protocol;
pub mod signer;

#[cfg(test)]
mod tests;
