//! A record: a key and its value as they lie in the pool. It says by itself what it is, so that the
//! index can be made anew from records alone.
//!
//! # Layout, version 1 (little-endian)
//! ```text
//!  0  u32  CRC32C of all that follows: header, key, value
//!  4  u16  magic 0x584B
//!  6  u8   layout version
//!  7  u8   database, by its number in the store
//!  8  u64  version: of two records of a key the higher one holds
//! 16  u64  expiry, in milliseconds since 1970; 0: none
//! 24  u64  key hash, upper 64 bits
//! 32  u32  key hash, lower 32 bits
//! 36  u32  length of the key
//! 40  u32  length of the value
//! 44  u8   what Redis would keep the value as, see [`Encoding`]
//! 45  u24  0
//! 48       key, value
//! ```
//! The checksum takes bytes 44 to 47 for zeros. They came later, and an annexd that does not know
//! them reads on.
//!
//! A record begins at a multiple of [`UNIT`] within a log page, and its header never crosses a log
//! page's end.

use super::clock::UnixMs;
use super::db::Db;
use super::hash::KeyHash;

/// Records begin at multiples of this, in bytes.
pub const UNIT: usize = 64;
pub const HEADER: usize = 48;
const MAGIC: u16 = 0x584B;
const LAYOUT: u8 = 1;

/// What Redis would keep a value as, where its bytes alone do not say so. Only OBJECT ENCODING
/// asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As SET leaves it: an integer if it reads as one, else a string.
    #[default]
    Plain = 0,
    /// A string, even if it reads as an integer: INCRBYFLOAT.
    Text = 1,
    /// A string that was changed in place: APPEND, SETRANGE, SETBIT, ….
    Raw = 2,
}

impl Encoding {
    /// One that is not known here makes no difference.
    fn of(byte: u8) -> Encoding {
        match byte {
            1 => Encoding::Text,
            2 => Encoding::Raw,
            _ => Encoding::Plain,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("there is no record where one should be")]
    Magic,
    #[error("the record has layout {0}, and this annexd knows {LAYOUT}")]
    Layout(u8),
    #[error("the record's bytes are not those that were written")]
    Checksum,
    #[error("the record is another key's")]
    Foreign,
}

/// What a record's first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub db: Db,
    pub version: u64,
    pub expires: Option<UnixMs>,
    pub hash: KeyHash,
    pub key_len: u32,
    pub value_len: u32,
    pub encoding: Encoding,
    crc: u32,
}

impl Header {
    pub fn new(db: Db, version: u64, expires: Option<UnixMs>, hash: KeyHash, key: &[u8], value: &[u8]) -> Header {
        let (key_len, value_len) = (key.len() as u32, value.len() as u32);
        let mut header = Header { db, version, expires, hash, key_len, value_len, encoding: Encoding::Plain, crc: 0 };
        header.crc = crc32c::crc32c_append(crc32c::crc32c_append(header.sum(), key), value);
        header
    }

    pub fn kept_as(self, encoding: Encoding) -> Header {
        Header { encoding, ..self }
    }

    /// The checksum of the header alone.
    fn sum(&self) -> u32 {
        crc32c::crc32c(&self.kept_as(Encoding::Plain).encode()[4..])
    }

    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&self.crc.to_le_bytes());
        bytes[4..6].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[6] = LAYOUT;
        bytes[7] = self.db.0;
        bytes[8..16].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.expires.unwrap_or(0).to_le_bytes());
        bytes[24..32].copy_from_slice(&self.hash.high.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.hash.low.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.key_len.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.value_len.to_le_bytes());
        bytes[44] = self.encoding as u8;
        bytes
    }

    /// Reads a header. That the whole record is as it was written only [`Header::verify`] tells.
    pub fn decode(bytes: &[u8]) -> Result<Header, RecordError> {
        let bytes: &[u8; HEADER] = bytes.first_chunk().ok_or(RecordError::Magic)?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u16::from_le_bytes([bytes[4], bytes[5]]) != MAGIC {
            return Err(RecordError::Magic);
        }
        if bytes[6] != LAYOUT {
            return Err(RecordError::Layout(bytes[6]));
        }
        Ok(Header {
            db: Db(bytes[7]),
            version: u64_at(8),
            expires: Some(u64_at(16)).filter(|at| *at != 0),
            hash: KeyHash { high: u64_at(24), low: u32_at(32) },
            key_len: u32_at(36),
            value_len: u32_at(40),
            encoding: Encoding::of(bytes[44]),
            crc: u32_at(0),
        })
    }

    /// Whether key and value are what was written under this header.
    pub fn verify(&self, body: &[u8]) -> Result<(), RecordError> {
        let crc = crc32c::crc32c_append(self.sum(), body);
        if crc == self.crc { Ok(()) } else { Err(RecordError::Checksum) }
    }

    /// Some bits that another record in its place hardly has.
    pub fn tag(&self) -> u16 {
        (self.crc ^ self.crc >> 16) as u16
    }

    /// Bytes of key and value.
    pub fn body(&self) -> usize {
        self.key_len as usize + self.value_len as usize
    }

    /// Bytes of the whole record.
    pub fn bytes(&self) -> u32 {
        (HEADER + self.body()) as u32
    }

    /// Units that the whole record takes.
    pub fn units(&self) -> u32 {
        self.bytes().div_ceil(UNIT as u32)
    }
}

/// Feeds any bytes to the decoder, for fuzzing: what it accepts it writes back the same.
pub fn fuzz(data: &[u8]) {
    if let Ok(header) = Header::decode(data) {
        // What is reserved reads as 0.
        assert_eq!(header.encode()[..44], data[..44]);
        let end = (HEADER + header.body()).min(data.len());
        let _ = header.verify(&data[HEADER..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(db in 0u8..16, version: u64, expires in 1u64.., hash: (u64, u32), key: Vec<u8>, value: Vec<u8>) {
            let hash = KeyHash { high: hash.0, low: hash.1 };
            let encoding = Encoding::of((version % 3) as u8);
            let header = Header::new(Db(db), version, Some(expires), hash, &key, &value).kept_as(encoding);
            let read = Header::decode(&header.encode()).unwrap();
            prop_assert_eq!(read, header);
            prop_assert_eq!(read.verify(&[key, value].concat()), Ok(()));
        }

        #[test]
        fn a_changed_bit_is_noticed(value in proptest::collection::vec(any::<u8>(), 1..200), at: usize) {
            let header = Header::new(Db(0), 7, None, KeyHash { high: 1, low: 2 }, b"key", &value);
            let mut record = [&header.encode()[..], b"key", &value].concat();
            let at = at % (record.len() * 8);
            record[at / 8] ^= 1 << (at % 8);
            // How the value is kept, and what is reserved, does not count.
            let read = Header::decode(&record);
            let is_good = read.is_ok_and(|h| h.body() == record.len() - HEADER && h.verify(&record[HEADER..]).is_ok());
            prop_assert!(!is_good || (44..48).contains(&(at / 8)));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(data: Vec<u8>) {
            fuzz(&data);
        }
    }
}
