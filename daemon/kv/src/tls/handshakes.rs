//! Connections whose handshake is under way. Anybody may begin one: if there are too many, the
//! oldest makes way.

use annex_host::repeated;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::AbortHandle;

/// So many at a time.
const MOST: usize = 256;

#[derive(Clone, Default)]
pub(super) struct Handshakes(Arc<Mutex<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    last: u64,
    /// The oldest first; without its task as long as that is not known.
    all: VecDeque<(u64, Option<AbortHandle>)>,
}

/// A handshake's place, free again when this is dropped.
pub(super) struct Place {
    handshakes: Handshakes,
    number: u64,
}

impl Handshakes {
    /// A place for a connection, and how its task is told of.
    pub fn place(&self) -> (Place, impl FnOnce(AbortHandle) + use<>) {
        let mut under_way = self.0.lock();
        under_way.last += 1;
        let number = under_way.last;
        under_way.all.push_back((number, None));
        let handshakes = self.clone();
        let began = move |task| handshakes.began(number, task);
        (Place { handshakes: self.clone(), number }, began)
    }

    fn began(&self, number: u64, task: AbortHandle) {
        let mut under_way = self.0.lock();
        // It may be over already.
        under_way.all.iter_mut().filter(|(known, _)| *known == number).for_each(|(_, of)| *of = Some(task.clone()));
        if under_way.all.len() <= MOST {
            return;
        }
        let oldest = under_way.all.pop_front();
        drop(under_way);
        repeated!(
            WARN, "a TLS handshake made way for another" of "",
            "{MOST} connections to the KV API are in their TLS handshake: the oldest made way for another"
        );
        oldest.into_iter().filter_map(|(_, task)| task).for_each(|task| task.abort());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handshakes.0.lock().all.retain(|(number, _)| *number != self.number);
    }
}
