//! What a key is known by here: 96 bits of a hash under a secret of this store. Keys themselves lie
//! with their values.
//!
//! Two of 10^8 keys share all 96 bits with a probability below 10^-13, and nobody can look for such
//! keys without the secret. Should it happen all the same, the one who reads finds another key in
//! the record and says so; no value is given out for a key that it is not of.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash {
    pub high: u64,
    pub low: u32,
}

/// The store's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

impl HashKey {
    pub fn random() -> HashKey {
        HashKey(rand::random())
    }

    pub fn hash(self, key: &[u8]) -> KeyHash {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(key);
        let hash = hasher.finish128();
        KeyHash { high: hash.h1, low: hash.h2 as u32 }
    }
}
