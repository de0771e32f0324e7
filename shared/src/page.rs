//! The page: 4 KiB, its checksum, and whether it is all zeros.

/// Bytes in a page. annex moves memory in pages of this size on every host it supports (x86-64).
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// CRC32C of a page's bytes: what tells torn, stale or foreign bytes from the ones last written.
#[inline]
pub fn checksum(page: &[u8]) -> u32 {
    crc32c::crc32c(page)
}

/// True if every byte is zero. Most pages that are not give themselves away in the first word.
#[inline]
pub fn is_zero(page: &[u8]) -> bool {
    // SAFETY: any bytes are valid u64s; align_to gives the unaligned ends separately.
    let (head, words, tail) = unsafe { page.align_to::<u64>() };
    words.first().is_none_or(|w| *w == 0)
        && head.iter().chain(tail).all(|b| *b == 0)
        && words.chunks(8).all(|c| c.iter().fold(0, |a, w| a | w) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_set_byte_anywhere_makes_a_page_nonzero() {
        let mut page = [0u8; PAGE_SIZE];
        assert!(is_zero(&page));
        for at in 0..PAGE_SIZE {
            page[at] = 1;
            assert!(!is_zero(&page), "byte {at}");
            page[at] = 0;
        }
    }

    #[test]
    fn the_checksum_is_crc32c_as_published() {
        // RFC 3720 appendix B.4: 32 bytes of zeros.
        assert_eq!(checksum(&[0u8; 32]), 0x8a91_36aa);
    }
}
