//! Until when a key lives.

use super::super::call::{Call, Failure, Outcome};
use super::super::reply::Reply;
use super::super::spec::Spec;
use super::super::store::{UnixMs, now};
use super::arguments::{integer, is, lower, repeated};
use super::describe::*;
use bytes::Bytes;
use futures::future::LocalBoxFuture;

pub const EXPIRE: Spec = command("expire", -3, FAST_WRITE, ONE_KEY, expire).about(
    "generic",
    "1.0.0",
    "O(1)",
    "Set a key's time to live in seconds",
);
pub const PEXPIRE: Spec = command("pexpire", -3, FAST_WRITE, ONE_KEY, pexpire).about(
    "generic",
    "2.6.0",
    "O(1)",
    "Set a key's time to live in milliseconds",
);
pub const EXPIREAT: Spec = command("expireat", -3, FAST_WRITE, ONE_KEY, expireat).about(
    "generic",
    "1.2.0",
    "O(1)",
    "Set the expiration for a key as a UNIX timestamp",
);
pub const PEXPIREAT: Spec = command("pexpireat", -3, FAST_WRITE, ONE_KEY, pexpireat).about(
    "generic",
    "2.6.0",
    "O(1)",
    "Set the expiration for a key as a UNIX timestamp specified in milliseconds",
);
pub const TTL: Spec = command("ttl", 2, FAST_READ, ONE_KEY, ttl).about(
    "generic",
    "1.0.0",
    "O(1)",
    "Get the time to live for a key in seconds",
);
pub const PTTL: Spec = command("pttl", 2, FAST_READ, ONE_KEY, pttl).about(
    "generic",
    "2.6.0",
    "O(1)",
    "Get the time to live for a key in milliseconds",
);
pub const EXPIRETIME: Spec = command("expiretime", 2, FAST_READ, ONE_KEY, expiretime).about(
    "generic",
    "7.0.0",
    "O(1)",
    "Get the expiration Unix timestamp for a key",
);
pub const PEXPIRETIME: Spec = command("pexpiretime", 2, FAST_READ, ONE_KEY, pexpiretime).about(
    "generic",
    "7.0.0",
    "O(1)",
    "Get the expiration Unix timestamp for a key in milliseconds",
);
pub const PERSIST: Spec = command("persist", 2, FAST_WRITE, ONE_KEY, persist).about(
    "generic",
    "2.2.0",
    "O(1)",
    "Remove the expiration from a key",
);

/// On what condition the new moment replaces the present one.
#[derive(Default)]
struct Conditions {
    missing: bool,
    present: bool,
    later: bool,
    earlier: bool,
}

impl Conditions {
    fn parse(options: &[Bytes]) -> Result<Conditions, Failure> {
        let mut conditions = Conditions::default();
        for option in options {
            match option {
                o if is(o, "NX") => conditions.missing = true,
                o if is(o, "XX") => conditions.present = true,
                o if is(o, "GT") => conditions.later = true,
                o if is(o, "LT") => conditions.earlier = true,
                o => return Err(Failure(format!("ERR Unsupported option {}", repeated(o)).into())),
            }
        }
        if conditions.missing && (conditions.present || conditions.later || conditions.earlier) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if conditions.later && conditions.earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(conditions)
    }

    /// A key without an expiry counts as one that lives for ever.
    fn allow(&self, present: Option<UnixMs>, wanted: i64) -> bool {
        let present = present.map(|ms| ms as i64);
        !(self.missing && present.is_some()
            || self.present && present.is_none()
            || self.later && present.is_none_or(|present| wanted <= present)
            || self.earlier && present.is_some_and(|present| wanted >= present))
    }
}

fn expire(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    set_expiry(call, 1000, now)
}

fn pexpire(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    set_expiry(call, 1, now)
}

fn expireat(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    set_expiry(call, 1000, epoch)
}

fn pexpireat(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    set_expiry(call, 1, epoch)
}

/// `from`: what the moment is counted from.
fn set_expiry(call: Call<'_>, unit: i64, from: fn() -> UnixMs) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[1];
        let conditions = Conditions::parse(&call.args[3..])?;
        let wanted = integer(&call.args[2])?
            .checked_mul(unit)
            .and_then(|ms| ms.checked_add(from() as i64))
            .ok_or_else(|| Failure(format!("ERR invalid expire time in '{}' command", lower(&call.args[0])).into()))?;
        let Some(known) = call.store.known(call.db, key) else { return Ok(Reply::Integer(0)) };
        if !conditions.allow(known.expires, wanted) {
            return Ok(Reply::Integer(0));
        }
        if wanted <= now() as i64 {
            call.store.remove(call.db, key);
            return Ok(Reply::Integer(1));
        }
        let there = call.store.expire_at(call.db, key, Some(wanted as UnixMs)).await?;
        Ok(Reply::Integer(i64::from(there)))
    })
}

fn ttl(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    expiry(call, true, now)
}

fn pttl(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    expiry(call, false, now)
}

fn expiretime(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    expiry(call, true, epoch)
}

fn pexpiretime(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    expiry(call, false, epoch)
}

fn epoch() -> UnixMs {
    0
}

/// The expiry as a distance from `from`. -1: it has none, -2: there is no such key.
fn expiry(call: Call<'_>, seconds: bool, from: fn() -> UnixMs) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let answer = match call.store.known(call.db, &call.args[1]).map(|known| known.expires) {
            None => -2,
            Some(None) => -1,
            Some(Some(at)) => {
                let ms = at.saturating_sub(from()) as i64;
                if seconds { ms.saturating_add(500) / 1000 } else { ms }
            }
        };
        Ok(Reply::Integer(answer))
    })
}

fn persist(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[1];
        if call.store.known(call.db, key).and_then(|known| known.expires).is_none() {
            return Ok(Reply::Integer(0));
        }
        let there = call.store.expire_at(call.db, key, None).await?;
        Ok(Reply::Integer(i64::from(there)))
    })
}
