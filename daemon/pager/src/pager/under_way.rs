//! How many attaches of each ordinary user are under way: one may take 5 s and a thread of
//! annexd's.

use super::refusal::error;
use crate::control::Caller;
use annex_shared::api::{ApiError, ErrorCode};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Of one ordinary user.
const MOST: u32 = 8;

#[derive(Default)]
pub struct UnderWay(Mutex<HashMap<u32, u32>>);

/// An attach that counts, until dropped. `None` counts for nobody.
pub struct One<'a>(Option<(&'a UnderWay, u32)>);

impl UnderWay {
    pub fn begin(&self, caller: Caller) -> Result<One<'_>, ApiError> {
        if !caller.confined {
            return Ok(One(None));
        }
        let mut users = self.0.lock();
        let count = users.entry(caller.uid).or_default();
        if *count >= MOST {
            return Err(error(
                ErrorCode::Unavailable,
                format!("user {} has {MOST} attaches under way, and no more are taken at a time", caller.uid),
                "try again when one of them has ended; a process in D state (see ps) takes 5 s",
            ));
        }
        *count += 1;
        Ok(One(Some((self, caller.uid))))
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        let Some((under_way, uid)) = self.0 else { return };
        let mut users = under_way.0.lock();
        if let Some(count) = users.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                users.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_at_a_time_and_nobody_else_minds() {
        let caller = |uid, confined| Caller { pid: 1, uid, gid: 1, confined };
        let under_way = UnderWay::default();
        let held: Vec<_> = (0..MOST).map(|_| under_way.begin(caller(1000, true)).unwrap()).collect();
        let refused = under_way.begin(caller(1000, true)).map(drop).unwrap_err();
        assert_eq!(refused.kind, ErrorCode::Unavailable);
        assert!(refused.message.starts_with("user 1000 has 8 attaches under way"), "{}", refused.message);
        assert!(under_way.begin(caller(1001, true)).is_ok());
        assert!(under_way.begin(caller(1000, false)).is_ok(), "as a member of group annex");
        drop(held);
        assert!(under_way.begin(caller(1000, true)).is_ok());
        assert!(under_way.0.lock().is_empty(), "who has none is not remembered");
    }
}
