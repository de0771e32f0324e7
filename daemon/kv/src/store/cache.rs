//! Values that were read lately, in annexd's own memory, up to a budget. Known by their record's
//! address: a record never changes, and whoever removes one removes it here too.

use super::log_pages::RecordAddr;
use super::value::Value;
use quick_cache::unsync::Cache as Quick;
use quick_cache::{DefaultHashBuilder, Weighter};

/// What an entry costs beside its value.
const OVERHEAD: u64 = 96;
/// Larger values would push out too many others.
const LARGEST: u64 = 16;

#[derive(Clone)]
struct Bytes;

impl Weighter<RecordAddr, (bytes::Bytes, Value)> for Bytes {
    fn weight(&self, _: &RecordAddr, (key, value): &(bytes::Bytes, Value)) -> u64 {
        OVERHEAD + key.len() as u64 + value.bytes.len() as u64
    }
}

/// See the module's header.
pub struct Cache {
    values: Option<Quick<RecordAddr, (bytes::Bytes, Value), Bytes>>,
    budget: u64,
}

impl Cache {
    /// 0: none.
    pub fn new(budget: u64) -> Cache {
        let values = || Quick::with(1 << 16, budget, Bytes, DefaultHashBuilder::default(), Default::default());
        Cache { values: (budget > 0).then(values), budget }
    }

    /// The value at an address, if it is this key's.
    pub fn find(&self, addr: RecordAddr, key: &[u8]) -> Option<Value> {
        let (of, value) = self.values.as_ref()?.get(&addr)?;
        (of == key).then(|| value.clone())
    }

    pub fn insert(&mut self, addr: RecordAddr, key: &[u8], value: &Value) {
        if let Some(values) = &mut self.values
            && (key.len() + value.bytes.len()) as u64 <= self.budget / LARGEST
        {
            values.insert(addr, (bytes::Bytes::copy_from_slice(key), value.clone()));
        }
    }

    pub fn remove(&mut self, addr: RecordAddr) {
        self.values.as_mut().map(|values| values.remove(&addr));
    }

    /// Bytes in use, as far as they are counted.
    pub fn bytes(&self) -> u64 {
        self.values.as_ref().map_or(0, |values| values.weight())
    }
}

#[cfg(test)]
mod tests {
    use super::super::log_pages::LogPageIdx;
    use super::*;

    #[test]
    fn the_budget_is_kept_and_what_is_used_again_stays() {
        let mut cache = Cache::new(64 << 10);
        let addr = |n| RecordAddr { log_page: LogPageIdx(n), unit: 0 };
        let value = Value { bytes: bytes::Bytes::from(vec![1; 900]), expires: None, encoding: Default::default() };
        for n in 0..1000 {
            cache.insert(addr(n), b"k", &value);
            assert!(n == 0 || cache.find(addr(0), b"k").is_some(), "{n}");
        }
        assert!(cache.bytes() <= 64 << 10);
        assert!(cache.find(addr(0), b"other").is_none());
        cache.remove(addr(0));
        assert!(cache.find(addr(0), b"k").is_none());
        let large = Value { bytes: bytes::Bytes::from(vec![1; 5 << 10]), expires: None, encoding: Default::default() };
        cache.insert(addr(5000), b"k", &large);
        assert!(cache.find(addr(5000), b"k").is_none());
    }

    #[test]
    fn without_a_budget_nothing_is_kept() {
        let mut cache = Cache::new(0);
        let addr = RecordAddr { log_page: LogPageIdx(1), unit: 0 };
        cache.insert(addr, b"", &Value { bytes: bytes::Bytes::new(), expires: None, encoding: Default::default() });
        assert!(cache.find(addr, b"").is_none());
    }
}
