//! The parameters CONFIG knows, with Redis 7.0's defaults where they are in force here.

pub struct Parameter {
    pub name: &'static str,
    pub alias: Option<&'static str>,
    pub default: &'static str,
    pub kind: Kind,
    pub immutable: bool,
}

pub enum Kind {
    Bool,
    /// Least and most.
    Integer(i64, i64),
    /// The same; any number from 0 on may be given, and becomes the nearest of these.
    Clamped(i64, i64),
    /// Least and most, with a unit.
    Memory(u64, u64),
    /// The same, or a part of `maxmemory`.
    MemoryOrPercent,
    Enum(&'static [&'static str]),
    Text,
    OutputLimits,
    Percentiles,
    /// There is nothing it could be set to, and why.
    Fixed(&'static str),
}

const INT: i64 = i32::MAX as i64;
const LONG: i64 = i64::MAX;
const MEGABYTE: u64 = 1 << 20;
/// Bytes of the longest string there can be.
const LONGEST: u64 = 512 * MEGABYTE;
/// Of a number with a unit: so many digits are no number.
const MOST_DIGITS: usize = 128;
const NOT_ON_DISK: &str = "values live in the memory of other machines, nothing is written to disk";
const NO_REPLICAS: &str = "replication is the pool's, not a Redis server's";
const LISTENING: &str = "the server is listening already";
const NO_NOTIFICATIONS: &str = "there is no publish/subscribe";

const POLICIES: &[&str] = &[
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];
const WHO: &[&str] = &["no", "yes", "local"];

const fn plain(name: &'static str, default: &'static str, kind: Kind) -> Parameter {
    Parameter { name, alias: None, default, kind, immutable: false }
}

const fn immutable(name: &'static str, default: &'static str, kind: Kind) -> Parameter {
    Parameter { name, alias: None, default, kind, immutable: true }
}

pub static TABLE: &[Parameter] = &[
    // The storage engine's.
    plain("maxmemory", "0", Kind::Memory(0, u64::MAX)),
    plain("maxmemory-policy", "noeviction", Kind::Enum(POLICIES)),
    plain("maxmemory-samples", "5", Kind::Integer(1, INT)),
    plain("maxmemory-eviction-tenacity", "10", Kind::Integer(0, 100)),
    plain("active-expire-effort", "1", Kind::Integer(1, 10)),
    plain("lfu-log-factor", "10", Kind::Integer(0, INT)),
    plain("lfu-decay-time", "1", Kind::Integer(0, INT)),
    plain("lazyfree-lazy-eviction", "no", Kind::Bool),
    plain("lazyfree-lazy-expire", "no", Kind::Bool),
    plain("lazyfree-lazy-server-del", "no", Kind::Bool),
    plain("lazyfree-lazy-user-del", "no", Kind::Bool),
    plain("lazyfree-lazy-user-flush", "no", Kind::Bool),
    // The connections'.
    plain("maxclients", "10000", Kind::Integer(1, u32::MAX as i64)),
    plain("timeout", "0", Kind::Integer(0, INT)),
    plain("requirepass", "", Kind::Text),
    plain("protected-mode", "yes", Kind::Bool),
    plain("proto-max-bulk-len", "536870912", Kind::Memory(MEGABYTE, LONGEST)),
    plain("client-query-buffer-limit", "1073741824", Kind::Memory(MEGABYTE, LONG as u64)),
    plain(
        "client-output-buffer-limit",
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
        Kind::OutputLimits,
    ),
    // Redis has none. Here it is the memory that annexd has locked.
    plain("maxmemory-clients", "1073741824", Kind::MemoryOrPercent),
    plain("tcp-keepalive", "300", Kind::Integer(0, INT)),
    immutable("tcp-backlog", "511", Kind::Integer(0, INT)),
    plain("bind", "127.0.0.1", Kind::Fixed(LISTENING)),
    plain("port", "6379", Kind::Fixed(LISTENING)),
    plain("tls-port", "0", Kind::Fixed(LISTENING)),
    immutable("unixsocket", "", Kind::Text),
    immutable("unixsocketperm", "0", Kind::Text),
    // What is watched.
    plain("slowlog-log-slower-than", "10000", Kind::Integer(-1, LONG)),
    plain("slowlog-max-len", "128", Kind::Integer(0, LONG)),
    plain("latency-monitor-threshold", "0", Kind::Integer(0, LONG)),
    plain("latency-tracking", "yes", Kind::Bool),
    plain("latency-tracking-info-percentiles", "50 99 99.9", Kind::Percentiles),
    plain("loglevel", "notice", Kind::Enum(&["debug", "verbose", "notice", "warning"])),
    immutable("logfile", "", Kind::Text),
    // The server's.
    immutable("databases", "16", Kind::Integer(1, INT)),
    immutable("daemonize", "no", Kind::Bool),
    immutable("supervised", "no", Kind::Text),
    immutable("pidfile", "", Kind::Text),
    immutable("enable-debug-command", "no", Kind::Enum(WHO)),
    immutable("enable-module-command", "no", Kind::Enum(WHO)),
    immutable("enable-protected-configs", "no", Kind::Enum(WHO)),
    immutable("cluster-enabled", "no", Kind::Bool),
    immutable("io-threads", "1", Kind::Integer(1, 128)),
    immutable("aclfile", "", Kind::Text),
    plain("hz", "10", Kind::Clamped(1, 500)),
    plain("dynamic-hz", "yes", Kind::Bool),
    plain("activerehashing", "yes", Kind::Bool),
    plain("shutdown-timeout", "10", Kind::Integer(0, INT)),
    Parameter {
        name: "busy-reply-threshold",
        alias: Some("lua-time-limit"),
        default: "5000",
        kind: Kind::Integer(0, LONG),
        immutable: false,
    },
    // What is not there.
    plain("appendonly", "no", Kind::Fixed(NOT_ON_DISK)),
    plain("save", "", Kind::Fixed(NOT_ON_DISK)),
    plain("appendfsync", "everysec", Kind::Enum(&["everysec", "always", "no"])),
    plain("dir", "/", Kind::Fixed(NOT_ON_DISK)),
    plain("dbfilename", "", Kind::Fixed(NOT_ON_DISK)),
    plain("stop-writes-on-bgsave-error", "no", Kind::Bool),
    plain("rdbcompression", "no", Kind::Bool),
    immutable("rdbchecksum", "no", Kind::Bool),
    plain("notify-keyspace-events", "", Kind::Fixed(NO_NOTIFICATIONS)),
    plain("repl-backlog-size", "1048576", Kind::Memory(1, LONG as u64)),
    plain("repl-timeout", "60", Kind::Integer(1, INT)),
    plain("min-replicas-to-write", "0", Kind::Fixed(NO_REPLICAS)),
    plain("replica-read-only", "yes", Kind::Bool),
    plain("replica-serve-stale-data", "yes", Kind::Bool),
    Parameter { name: "replicaof", alias: Some("slaveof"), default: "", kind: Kind::Text, immutable: true },
];

/// A parameter's place in the table, by either of its names.
pub fn find(name: &str) -> Option<usize> {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    TABLE.iter().position(|parameter| is(parameter.name) || parameter.alias.is_some_and(is))
}

/// What Redis sees of a value that it reads as a C string: it ends at the first NUL.
pub fn c_string(text: &str) -> &str {
    text.split_once('\0').map_or(text, |(seen, _)| seen)
}

/// A number with a unit as Redis reads it: `k` is 1000, `kb` 1024, and no digits are 0. A number
/// that is too great is the greatest there is, and one with its unit what is left of it in 64 bits.
pub fn memory(text: &str) -> Option<u64> {
    let text = c_string(text);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    if digits >= MOST_DIGITS {
        return None;
    }
    let number = if number.is_empty() { 0 } else { number.parse::<u64>().unwrap_or(u64::MAX) };
    Some(number.wrapping_mul(factor))
}

/// `class hard soft seconds`, for any of the classes; the others stay as they were.
pub fn output_limits(text: &str, old: &str) -> Result<String, String> {
    const CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];
    let mut limits: Vec<String> = old.split(' ').collect::<Vec<_>>().chunks(4).map(|class| class.join(" ")).collect();
    let words: Vec<&str> = text.split_ascii_whitespace().map(c_string).collect();
    if !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    for words in words.chunks(4) {
        let [class, hard, soft, seconds] = words else { continue };
        let class = class.to_ascii_lowercase().replace("replica", "slave");
        let index = CLASSES.iter().position(|known| *known == class);
        let index = index.ok_or("Invalid client class specified in buffer limit configuration.")?;
        let numbers = (memory(hard), memory(soft), seconds.parse::<u32>());
        let (Some(hard), Some(soft), Ok(seconds)) = numbers else {
            return Err("Error in hard, soft or soft_seconds setting in buffer limit configuration.".into());
        };
        if let Some(limit) = limits.get_mut(index) {
            *limit = format!("{class} {hard} {soft} {seconds}");
        }
    }
    Ok(limits.join(" "))
}

/// Numbers from 0 to 100, shown without trailing zeros.
pub fn percentiles(text: &str) -> Result<String, String> {
    let parse = |word: &str| word.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    let numbers: Option<Vec<f64>> = text.split_ascii_whitespace().map(parse).collect();
    let numbers = numbers.ok_or("latency-tracking-info-percentiles should be numbers between 0.0 and 100.0")?;
    Ok(numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(" "))
}
