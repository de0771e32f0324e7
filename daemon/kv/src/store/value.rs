//! A value, and what the index knows of a key.

use super::clock::UnixMs;
use super::record::Encoding;
use bytes::Bytes;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Value {
    pub bytes: Bytes,
    pub expires: Option<UnixMs>,
    pub encoding: Encoding,
}

/// What the index knows of a key, without reading its record.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub expires: Option<UnixMs>,
    pub idle: Duration,
    /// Logarithmic access counter, as Redis' LFU has it.
    pub frequency: u8,
    /// Bytes of the value.
    pub length: u64,
    /// Bytes in the pool and in annexd for it, one replica counted.
    pub size: u64,
}
