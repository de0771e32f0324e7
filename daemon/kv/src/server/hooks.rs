//! What the rest of the program tells the server about itself.

/// Writes a section of INFO.
pub type Section = Box<dyn Fn() -> String>;

/// What the rest of the program tells the server about itself.
pub struct Hooks {
    /// What the storage engine counts.
    pub facts: Box<dyn Fn() -> Facts>,
    /// More sections of INFO, by name: lines of `field:value`, each ended by `\r\n`.
    pub sections: Vec<(&'static str, Section)>,
    /// Whether SHUTDOWN may stop the server.
    pub may_shut_down: bool,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks { facts: Box::new(Facts::default), sections: Vec::new(), may_shut_down: false }
    }
}

/// What the storage engine counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Bytes of keys and values, here and in the pool; what `maxmemory` limits.
    pub used_memory: u64,
    pub peak_memory: u64,
    /// The part of these that holds no key and no value.
    pub overhead: u64,
    pub expired_keys: u64,
    pub evicted_keys: u64,
    pub hits: u64,
    pub misses: u64,
    /// Keys whose memory is still to be given back.
    pub freeing: u64,
    pub freed: u64,
    /// Writes since the start.
    pub changes: u64,
    pub is_loading: bool,
}
