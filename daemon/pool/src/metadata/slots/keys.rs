//! The keys of a pool's life: one with which pages are vouched for, one with which they are sealed.
//!
//! # Vouching
//! A tag is the first 64 bits of AES-256-GMAC over what lies on the donors. Tags stay in annexd: a
//! donor sees none, so it can only guess at other bytes with the same tag, and is right less often
//! than once in 2^55 times (a page is 257 blocks to GHASH). Since a tag is looked up by slot, a
//! page of another slot or of another day is as wrong as a forged one. That no tag is ever shown is
//! also what makes it safe that all unsealed pages are vouched for under one nonce.
//!
//! # Sealing
//! AES-256 in counter mode, from a block that begins with the write's version. A version is drawn
//! for each write of each page, never again in the pool's life, and is the nonce of the page's tag
//! too: encrypted, then vouched for.

use super::layout::{IS_CRC, KEY};
use annex_shared::page::PAGE_SIZE;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;

/// See the module's header.
pub(super) struct PageKeys {
    vouching: LessSafeKey,
    sealing: EncryptingKey,
}

impl PageKeys {
    pub fn new(vouching: &[u8; KEY], sealing: &[u8; KEY]) -> PageKeys {
        let vouching = UnboundKey::new(&AES_256_GCM, vouching).expect("a key of 32 bytes is one of AES-256");
        let sealing = UnboundCipherKey::new(&AES_256, sealing).and_then(EncryptingKey::ctr);
        PageKeys {
            vouching: LessSafeKey::new(vouching),
            sealing: sealing.expect("a key of 32 bytes is one of AES-256"),
        }
    }

    /// The tag of some bytes as they lie on donors. `version` is 0 for a page that is not sealed.
    /// No tag looks like a CRC32C of an older table.
    pub fn tag(&self, version: u64, bytes: &[u8]) -> u64 {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&version.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.vouching.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []);
        let tag = tag.expect("AES-GCM takes up to 2^61 bytes");
        let tag = u64::from_le_bytes(*tag.as_ref().first_chunk().expect("a tag of AES-GCM has 16 bytes"));
        if tag & IS_CRC == IS_CRC { tag ^ 1 << 63 } else { tag }
    }

    /// Seals a page, or opens a sealed one.
    pub fn turn(&self, version: u64, page: &mut [u8]) {
        debug_assert!(page.len() == PAGE_SIZE);
        // The rest counts the blocks of the page.
        let mut first = [0; 16];
        first[..8].copy_from_slice(&version.to_be_bytes());
        let first = EncryptionContext::Iv128(FixedLength::from(&first));
        self.sealing.less_safe_encrypt(page, first).expect("counter mode takes any bytes");
    }
}
