//! SET by all its names: a value, on conditions, with or without an expiry. GETEX takes the same
//! expiry options.

use super::super::call::{Call, Failure, Outcome};
use super::super::reply::Reply;
use super::super::spec::{Dispatch, Spec};
use super::super::store::{Db, Encoding, Store, UnixMs, Value, WriteListener, now};
use super::arguments::{SYNTAX, integer, is, lower};
use super::describe::*;
use super::strings::answer;
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::rc::Weak;

pub const SET: Spec = command("set", -3, GROWING_WRITE, ONE_KEY, set)
    .dispatched(Dispatch::Deferred(|words| words == 3))
    .about("string", "1.0.0", "O(1)", "Set the string value of a key");
pub const SETNX: Spec = command("setnx", 3, FAST_GROWING_WRITE, ONE_KEY, setnx).about(
    "string",
    "1.0.0",
    "O(1)",
    "Set the value of a key, only if the key does not exist",
);
pub const SETEX: Spec = command("setex", 4, GROWING_WRITE, ONE_KEY, setex).about(
    "string",
    "2.0.0",
    "O(1)",
    "Set the value and expiration of a key",
);
pub const PSETEX: Spec = command("psetex", 4, GROWING_WRITE, ONE_KEY, psetex).about(
    "string",
    "2.6.0",
    "O(1)",
    "Set the value and expiration in milliseconds of a key",
);
pub const GETSET: Spec = command("getset", 3, FAST_GROWING_WRITE, ONE_KEY, getset).about(
    "string",
    "1.0.0",
    "O(1)",
    "Set the string value of a key and return its old value",
);
pub const GETEX: Spec = command("getex", -2, FAST_WRITE, ONE_KEY, getex).about(
    "string",
    "6.2.0",
    "O(1)",
    "Get the value of a key and optionally set its expiration",
);

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    Missing,
    Present,
}

/// How the moment is written after EX, PX, EXAT and PXAT.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Clock {
    seconds: bool,
    relative: bool,
}

impl Clock {
    fn named(option: &[u8]) -> Option<Clock> {
        let clock = |seconds, relative| Some(Clock { seconds, relative });
        match option {
            o if is(o, "EX") => clock(true, true),
            o if is(o, "PX") => clock(false, true),
            o if is(o, "EXAT") => clock(true, false),
            o if is(o, "PXAT") => clock(false, false),
            _ => None,
        }
    }

    /// The moment that the argument means, for the command of this name.
    fn moment(self, argument: &[u8], command: &Bytes) -> Result<UnixMs, Failure> {
        let number = integer(argument)?;
        let invalid = || Failure(format!("ERR invalid expire time in '{}' command", lower(command)).into());
        if number <= 0 {
            return Err(invalid());
        }
        let ms = if self.seconds { number.checked_mul(1000) } else { Some(number) };
        let base = if self.relative { now() as i64 } else { 0 };
        ms.and_then(|ms| ms.checked_add(base)).map(|ms| ms as UnixMs).ok_or_else(invalid)
    }
}

#[derive(Clone, Copy)]
enum Lifetime<'a> {
    /// SET: for ever. GETEX: as it was.
    Unsaid,
    Keep,
    Persist,
    Until(Clock, &'a Bytes),
}

struct Options<'a> {
    when: When,
    lifetime: Lifetime<'a>,
    answer_old: bool,
}

impl Options<'_> {
    const NONE: Self = Options { when: When::Always, lifetime: Lifetime::Unsaid, answer_old: false };
}

/// The options of SET (`setting`) or of GETEX, which knows fewer of them.
///
/// The same one may be given again (the last moment counts), but two that contradict each other may
/// not.
fn options(arguments: &[Bytes], setting: bool) -> Result<Options<'_>, Failure> {
    let mut options = Options::NONE;
    let mut rest = arguments.iter();
    while let Some(option) = rest.next() {
        if setting && is(option, "NX") && options.when != When::Present {
            options.when = When::Missing;
        } else if setting && is(option, "XX") && options.when != When::Missing {
            options.when = When::Present;
        } else if setting && is(option, "GET") {
            options.answer_old = true;
        } else if setting && is(option, "KEEPTTL") && matches!(options.lifetime, Lifetime::Unsaid | Lifetime::Keep) {
            options.lifetime = Lifetime::Keep;
        } else if !setting && is(option, "PERSIST") && matches!(options.lifetime, Lifetime::Unsaid | Lifetime::Persist)
        {
            options.lifetime = Lifetime::Persist;
        } else if let Some(clock) = Clock::named(option) {
            let moment = rest.next().ok_or(SYNTAX)?;
            match options.lifetime {
                Lifetime::Unsaid => {}
                Lifetime::Until(earlier, _) if earlier == clock => {}
                _ => return Err(SYNTAX.into()),
            }
            options.lifetime = Lifetime::Until(clock, moment);
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(options)
}

/// A SET by any of its names: what is to be written where, on what condition.
struct Setting<'a> {
    key: &'a Bytes,
    value: &'a Bytes,
    options: Options<'a>,
}

/// What has become of it.
struct Applied {
    is_set: bool,
    /// The value before, if it was asked for.
    old: Option<Value>,
}

impl<'a> Setting<'a> {
    /// Without options.
    fn plain(key: &'a Bytes, value: &'a Bytes) -> Setting<'a> {
        Setting { key, value, options: Options::NONE }
    }

    async fn apply(self, call: &Call<'_>) -> Result<Applied, Failure> {
        let Setting { key, value, options } = self;
        let until = match options.lifetime {
            Lifetime::Until(clock, argument) => Some(clock.moment(argument, &call.args[0])?),
            _ => None,
        };
        let old = if options.answer_old { call.store.read(call.db, key).await? } else { None };
        let looks = options.when != When::Always || matches!(options.lifetime, Lifetime::Keep);
        let known = if looks { call.store.known(call.db, key) } else { None };
        let wanted = match options.when {
            When::Always => true,
            When::Missing => known.is_none(),
            When::Present => known.is_some(),
        };
        if !wanted {
            return Ok(Applied { is_set: false, old });
        }
        let expires = match options.lifetime {
            Lifetime::Keep => known.and_then(|known| known.expires),
            _ => until,
        };
        let value = Value { bytes: value.clone(), expires, encoding: Encoding::Plain };
        call.store.write_and_tell(call.db, key, value, || call.appended()).await?;
        Ok(Applied { is_set: true, old })
    }

    /// As [`Setting::apply`], of one without options, if nothing has to be waited for before it is
    /// in the log. `listener` is told under `number` when it counts; the answer is OK then. False:
    /// nothing was done.
    fn defer(&self, store: &Store, db: Db, listener: &Weak<dyn WriteListener>, number: u64) -> bool {
        store.append_deferred(db, self.key, self.value, listener, number)
    }
}

fn set(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let options = options(&call.args[3..], true)?;
        let answer_old = options.answer_old;
        let setting = Setting { options, ..Setting::plain(&call.args[1], &call.args[2]) };
        let Applied { is_set, old } = setting.apply(&call).await?;
        Ok(match answer_old {
            true => answer(old),
            false if is_set => Reply::OK,
            false => Reply::Null,
        })
    })
}

/// Begins a SET without options and without a task; see [`Dispatch::Deferred`].
#[inline]
pub fn defer_set(store: &Store, db: Db, args: &[Bytes], listener: &Weak<dyn WriteListener>, number: u64) -> bool {
    let [_, key, value] = args else { return false };
    Setting::plain(key, value).defer(store, db, listener, number)
}

fn setnx(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let options = Options { when: When::Missing, ..Options::NONE };
        let setting = Setting { options, ..Setting::plain(&call.args[1], &call.args[2]) };
        Ok(Reply::Integer(setting.apply(&call).await?.is_set.into()))
    })
}

fn setex(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    set_for(call, Clock { seconds: true, relative: true })
}

fn psetex(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    set_for(call, Clock { seconds: false, relative: true })
}

fn set_for(call: Call<'_>, clock: Clock) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let options = Options { lifetime: Lifetime::Until(clock, &call.args[2]), ..Options::NONE };
        let setting = Setting { options, ..Setting::plain(&call.args[1], &call.args[3]) };
        setting.apply(&call).await?;
        Ok(Reply::OK)
    })
}

fn getset(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let options = Options { answer_old: true, ..Options::NONE };
        let setting = Setting { options, ..Setting::plain(&call.args[1], &call.args[2]) };
        Ok(answer(setting.apply(&call).await?.old))
    })
}

fn getex(call: Call<'_>) -> LocalBoxFuture<'_, Outcome> {
    Box::pin(async move {
        let key = &call.args[1];
        let options = options(&call.args[2..], false)?;
        let Some(value) = call.store.read(call.db, key).await? else { return Ok(Reply::Null) };
        match options.lifetime {
            Lifetime::Unsaid | Lifetime::Keep => {}
            Lifetime::Persist if value.expires.is_none() => {}
            Lifetime::Persist => {
                call.store.expire_at(call.db, key, None).await?;
            }
            Lifetime::Until(clock, argument) => {
                let until = clock.moment(argument, &call.args[0])?;
                if until <= now() {
                    call.store.remove(call.db, key);
                } else {
                    call.store.expire_at(call.db, key, Some(until)).await?;
                }
            }
        }
        Ok(Reply::Bulk(value.bytes))
    })
}
