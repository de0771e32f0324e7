//! What ordinary users may take, all of a user's apps together (`[users]` in the configuration).
//!
//! An app counts for the user who asked for it, if that was neither root nor a member of group
//! annex. How many apps there are is checked as one is taken. What tables and pages take is looked
//! at before each batch of evictions: a user who has all that they may have has nothing more
//! evicted, and everybody else goes on.

use crate::app::App;
use crate::config::UsersConfig;
use crate::evict::Cause;
use crate::space::Registry;
use annex_pool::Pool;
use annex_shared::api::{Limit, UserInfo};
use annex_shared::page::PAGE_SIZE;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a look at the whole pool holds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a user's apps take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub tables: u64,
    pub pool: u64,
}

pub struct Quotas {
    pub config: UsersConfig,
    /// Bytes of the whole pool, and when that was looked at.
    pool: Mutex<Option<(Instant, u64)>>,
}

impl Quotas {
    pub fn new(config: UsersConfig) -> Quotas {
        Quotas { config, pool: Mutex::default() }
    }

    /// How many more pages of this app may be evicted, or what its user has all of.
    pub fn room(&self, registry: &Registry, pool: &Pool, app: &App) -> Result<u64, Cause> {
        if !app.is_of_ordinary_user() {
            return Ok(u64::MAX);
        }
        let taken = taken(registry, app.uid);
        room(taken, self.config.table_bytes.0, self.pool_bytes(pool))
    }

    /// Each ordinary user who has apps, with what they take and may take.
    pub fn users(&self, registry: &Registry, pool: &Pool, apps: &[Arc<App>]) -> Vec<UserInfo> {
        let mut users = BTreeMap::new();
        for app in apps.iter().filter(|app| app.is_of_ordinary_user()) {
            *users.entry(app.uid).or_insert(0) += 1;
        }
        let pool_max = self.pool_bytes(pool);
        let told = |(uid, apps)| {
            let Taken { tables, pool } = taken(registry, uid);
            UserInfo {
                uid,
                apps,
                apps_max: self.config.apps,
                table_bytes: tables,
                table_max: self.config.table_bytes.0,
                pool_bytes: pool,
                pool_max,
            }
        };
        users.into_iter().map(told).collect()
    }

    /// What a user may have in the pool.
    fn pool_bytes(&self, pool: &Pool) -> u64 {
        let percent = match self.config.pool_bytes {
            Limit::Bytes(bytes) => return bytes,
            Limit::Percent(percent) => percent,
        };
        let mut looked = self.pool.lock();
        let total = match *looked {
            Some((at, total)) if at.elapsed() < LOOK_EVERY => total,
            _ => looked.insert((Instant::now(), pool.total_pages() * PAGE_SIZE as u64)).1,
        };
        (u128::from(total) * u128::from(percent) / 100) as u64
    }
}

/// What all of an ordinary user's apps take, without waiting for long for any of them.
fn taken(registry: &Registry, uid: u32) -> Taken {
    let spaces = registry.all().into_iter().filter(|space| space.app.is_of_ordinary_user() && space.app.uid == uid);
    spaces.map(|space| space.taken_about()).fold(Taken::default(), |all, (tables, slots)| Taken {
        tables: all.tables + tables,
        pool: all.pool + slots * PAGE_SIZE as u64,
    })
}

fn room(taken: Taken, tables: u64, pool: u64) -> Result<u64, Cause> {
    if taken.tables >= tables {
        return Err(Cause::UsersTables(tables));
    }
    match pool.saturating_sub(taken.pool) / PAGE_SIZE as u64 {
        0 => Err(Cause::UsersPool(pool)),
        pages => Ok(pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_nothing_more_evicted_who_has_all_that_they_may_have() {
        let page = PAGE_SIZE as u64;
        let room = |tables, pages| room(Taken { tables, pool: pages * page }, 100, 10 * page);
        assert_eq!(room(99, 7), Ok(3));
        assert_eq!(room(100, 0), Err(Cause::UsersTables(100)));
        assert_eq!(room(0, 10), Err(Cause::UsersPool(10 * page)));
        assert_eq!(room(0, 11), Err(Cause::UsersPool(10 * page)));
    }
}
