//! The commands that work on keys and values.
//!
//! Each file holds one family: first its rows of the table, then the handlers. A handler gets a
//! [`Call`](super::call::Call) whose arity is right and whose keys are locked (for writing, if the
//! command writes), so that it may read, decide and write without anybody in between. Every read
//! and write of a value is a round trip to another machine: a handler that only needs to know
//! whether a key is there, or until when, asks the index (`known`), and one that works on several
//! keys has all their operations under way together.

mod arguments;
mod bits;
mod describe;
mod expiry;
pub mod fields;
mod keys;
mod lcs;
mod numbers;
mod object;
mod scan;
mod set;
mod strings;
#[cfg(test)]
mod tests;
mod together;

pub use set::defer_set;

use super::spec::Spec;

pub static SPECS: &[Spec] = &[
    strings::GET,
    strings::GETDEL,
    set::GETSET,
    strings::STRLEN,
    strings::APPEND,
    strings::GETRANGE,
    strings::SUBSTR,
    strings::SETRANGE,
    strings::MGET,
    strings::MSET,
    strings::MSETNX,
    set::SET,
    set::SETNX,
    set::SETEX,
    set::PSETEX,
    set::GETEX,
    keys::DEL,
    keys::UNLINK,
    keys::EXISTS,
    keys::TYPE,
    keys::TOUCH,
    keys::RANDOMKEY,
    keys::RENAME,
    keys::RENAMENX,
    keys::COPY,
    keys::MOVE,
    expiry::EXPIRE,
    expiry::PEXPIRE,
    expiry::EXPIREAT,
    expiry::PEXPIREAT,
    expiry::TTL,
    expiry::PTTL,
    expiry::EXPIRETIME,
    expiry::PEXPIRETIME,
    expiry::PERSIST,
    numbers::INCR,
    numbers::DECR,
    numbers::INCRBY,
    numbers::DECRBY,
    numbers::INCRBYFLOAT,
    bits::SETBIT,
    bits::GETBIT,
    bits::BITCOUNT,
    bits::BITPOS,
    bits::BITOP,
    fields::BITFIELD,
    fields::BITFIELD_RO,
    lcs::LCS,
    scan::KEYS,
    scan::SCAN,
    object::OBJECT,
    object::OBJECT_ENCODING,
    object::OBJECT_REFCOUNT,
    object::OBJECT_IDLETIME,
    object::OBJECT_FREQ,
    object::OBJECT_HELP,
    object::MEMORY_USAGE,
];
