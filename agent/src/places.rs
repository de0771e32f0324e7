//! Who may have a connection to the agent. Without TLS peers are not authenticated, and with it not
//! before their handshake is over: so whatever one of them opens must not keep another out.
//!
//! A connection goes through these stages:
//! - *opening*: it has not said who it is, or is at its TLS handshake. [`OPENING`] of them at most,
//!   each for as long as [`HELLO_TIMEOUT`](crate::control::HELLO_TIMEOUT). When there are too many,
//!   the oldest one of the address that has most of them is ended: who speaks at once is not in
//!   danger.
//! - *admitted*: it said hello, or proved a session. `max_connections` of them at most.
//! - Of those, clients without a lease have half at most, which leaves the other half to clients
//!   that hold one. When there are too many, the oldest one of the address that has most is ended.
//!
//! When all places are taken by clients with leases, the client that has most gives the oldest of
//! its data connections to one that has less than half as many. Else the newcomer is refused. A
//! control connection of a client with leases is never ended for others.
//!
//! A client whose connection is ended connects anew: nothing that it holds depends on it.

use annex_host::repeated;
use annex_shared::ids::ClientId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Connections that have not said who they are.
pub const OPENING: usize = 64;

/// Connections that were ended for others and whose threads have not noticed yet. Beyond that
/// nothing is accepted for a moment.
const ENDING: usize = 64;

/// All connections.
#[derive(Debug)]
pub struct Places {
    most: AtomicUsize,
    taken: Mutex<BTreeMap<u64, Taken>>,
    last: AtomicU64,
}

#[derive(Debug)]
struct Taken {
    /// The peer's address; `None` for a process on this host that came over the Unix socket.
    from: Option<IpAddr>,
    /// A duplicate, so that the number can't be reused for another socket while it stands here.
    socket: OwnedFd,
    admitted: Option<(ClientId, Role)>,
    is_ended: bool,
}

/// What an admitted connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Control,
    /// Also shm and RDMA control connections.
    Data,
}

/// A connection's place, given back when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// For so many admitted connections.
    pub fn new(most: usize) -> Places {
        Places { most: AtomicUsize::new(most), taken: Mutex::default(), last: AtomicU64::new(0) }
    }

    /// For so many from now on. Those that are open stay.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// True while nothing more is to be accepted.
    pub fn is_crowded(&self) -> bool {
        self.taken.lock().len() >= self.most.load(Ordering::Relaxed) + OPENING + ENDING
    }

    /// A place for a connection that was just accepted. `socket` is a duplicate of its own.
    pub fn enter(self: &Arc<Places>, from: Option<IpAddr>, socket: OwnedFd) -> Place {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut taken = self.taken.lock();
        taken.insert(number, Taken { from, socket, admitted: None, is_ended: false });
        let opening = living(&taken).filter(|(_, t)| t.admitted.is_none());
        let opening: Vec<_> = opening.map(|(number, t)| (number, t.from)).collect();
        if opening.len() > OPENING
            && let Some((_, _, victim)) = oldest_of_most(&opening)
        {
            let of = end(&mut taken, victim);
            repeated!(WARN, "a connection said nothing and was ended for others" of "",
                "{OPENING} connections have not said who they are: the oldest one from {of} is ended");
        }
        Place { places: self.clone(), number }
    }
}

impl Place {
    /// Admits the connection of a client. `holders` are those that hold leases; asked only if
    /// places are short. False if there is no place for it.
    pub fn admit(&self, client: ClientId, role: Role, holders: impl FnOnce() -> HashSet<ClientId>) -> bool {
        let most = self.places.most.load(Ordering::Relaxed);
        let most_guests = (most / 2).max(1);
        let mut taken = self.places.taken.lock();
        if let Some(own) = taken.get_mut(&self.number) {
            own.admitted = Some((client, role));
        }
        if admitted(&taken).count() <= most_guests {
            return true;
        }
        // Not under the lock: whoever says it has locks of its own.
        drop(taken);
        let holders = holders();
        let mut taken = self.places.taken.lock();
        let is_guest = |t: &Taken| t.admitted.is_some_and(|(client, _)| !holders.contains(&client));
        let guests: Vec<_> = living(&taken).filter(|(_, t)| is_guest(t)).map(|(n, t)| (n, t.from)).collect();
        let others: Vec<_> = guests.iter().copied().filter(|(number, _)| *number != self.number).collect();
        let is_full = admitted(&taken).count() > most;
        if (guests.len() > most_guests || is_full)
            && let Some((_, count, victim)) = oldest_of_most(&others)
        {
            let of = end(&mut taken, victim);
            repeated!(WARN, "a connection of a client without leases was ended for others" of "",
                "connections are short: the oldest one from {of}, of {count} from there by clients without leases, \
                 is ended (raise max_connections if they mean no harm)");
            return true;
        }
        if !is_full {
            return true;
        }
        let own = admitted(&taken).filter(|(_, (who, _))| *who == client).count();
        let data = admitted(&taken).filter(|(_, (_, role))| *role == Role::Data);
        let data: Vec<_> = data.map(|(number, (client, _))| (number, client)).collect();
        match oldest_of_most(&data) {
            Some((greedy, count, victim)) if count > 2 * own => {
                end(&mut taken, victim);
                repeated!(WARN, "a client had most connections and lost one to another" of "",
                    "all {most} connections are taken: client {greedy} has {count} of them and gives one to \
                     client {client} (raise max_connections if it means no harm)");
                true
            }
            _ => {
                if let Some(own) = taken.get_mut(&self.number) {
                    own.admitted = None;
                }
                repeated!(WARN, "a connection was refused since too many are open" of "",
                    "{most} connections are open, the most allowed: one of client {client} is refused");
                false
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().remove(&self.number);
    }
}

fn living(taken: &BTreeMap<u64, Taken>) -> impl Iterator<Item = (u64, &Taken)> {
    taken.iter().filter(|(_, t)| !t.is_ended).map(|(number, t)| (*number, t))
}

fn admitted(taken: &BTreeMap<u64, Taken>) -> impl Iterator<Item = (u64, (ClientId, Role))> {
    living(taken).filter_map(|(number, t)| Some((number, t.admitted?)))
}

/// Whoever has most of these (listed by age), how many, and the oldest one of it.
fn oldest_of_most<K: Copy + Eq + Hash>(candidates: &[(u64, K)]) -> Option<(K, usize, u64)> {
    let mut counts: HashMap<K, usize> = HashMap::new();
    for (_, key) in candidates {
        *counts.entry(*key).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    candidates.iter().find(|(_, key)| counts[key] == most).map(|(number, key)| (*key, most, *number))
}

/// Ends a connection; its thread notices and gives the place back. Says where it came from.
fn end(taken: &mut BTreeMap<u64, Taken>, number: u64) -> String {
    let Some(victim) = taken.get_mut(&number) else { return String::new() };
    victim.is_ended = true;
    // SAFETY: shutdown takes any descriptor number; this one is open, since we own it. A peer that
    // is gone already is fine.
    unsafe { libc::shutdown(victim.socket.as_raw_fd(), libc::SHUT_RDWR) };
    victim.from.map_or_else(|| "this host".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    const HOLDER: ClientId = ClientId(1);

    fn holders() -> HashSet<ClientId> {
        HashSet::from([HOLDER, ClientId(2), ClientId(3)])
    }

    /// A connection from 10.0.0.`host`.
    fn enter(places: &Arc<Places>, host: u8) -> (Place, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        (places.enter(Some(Ipv4Addr::new(10, 0, 0, host).into()), ours.into()), theirs)
    }

    fn is_ended((place, _): &(Place, UnixStream)) -> bool {
        place.places.taken.lock()[&place.number].is_ended
    }

    #[test]
    fn of_those_that_say_nothing_the_oldest_of_the_greediest_address_goes() {
        let places = Arc::new(Places::new(1024));
        let honest = enter(&places, 2);
        let silent: Vec<_> = (0..OPENING).map(|_| enter(&places, 1)).collect();
        assert!(!is_ended(&honest));
        assert!(is_ended(&silent[0]));
        assert!(silent[1..].iter().all(|s| !is_ended(s)));
    }

    #[test]
    fn clients_without_leases_have_half_and_the_others_the_rest() {
        let places = Arc::new(Places::new(8));
        let guests: Vec<_> = (0..6).map(|_| enter(&places, 1)).collect();
        for (nth, (place, _)) in guests.iter().enumerate() {
            assert!(place.admit(ClientId(100 + nth as u64), Role::Control, holders));
        }
        let ended: Vec<bool> = guests.iter().map(is_ended).collect();
        assert_eq!(ended, [true, true, false, false, false, false]);
        let held: Vec<_> = (0..8).map(|_| enter(&places, 2)).collect();
        assert!(held.iter().all(|(place, _)| place.admit(HOLDER, Role::Data, holders)), "guests make room");
        assert!(guests.iter().all(is_ended));
    }

    #[test]
    fn a_client_with_leases_gives_to_one_that_has_far_less() {
        let places = Arc::new(Places::new(8));
        let control = enter(&places, 2);
        assert!(control.0.admit(HOLDER, Role::Control, holders));
        let data: Vec<_> = (0..7).map(|_| enter(&places, 2)).collect();
        assert!(data.iter().all(|(place, _)| place.admit(HOLDER, Role::Data, holders)));
        let others: Vec<_> = (0..4).map(|_| enter(&places, 3)).collect();
        let got_in: Vec<bool> = others.iter().map(|(place, _)| place.admit(ClientId(2), Role::Data, holders)).collect();
        assert!(got_in[0] && got_in[1] && !got_in[3], "{got_in:?}");
        assert!(!is_ended(&control) && is_ended(&data[0]) && is_ended(&data[1]));
        let stranger = enter(&places, 4);
        assert!(stranger.0.admit(ClientId(9), Role::Control, holders), "also a newcomer that holds nothing yet");
    }

    #[test]
    fn who_leaves_makes_room() {
        let places = Arc::new(Places::new(1));
        let first = enter(&places, 1);
        assert!(first.0.admit(HOLDER, Role::Control, holders));
        let second = enter(&places, 1);
        assert!(!second.0.admit(ClientId(2), Role::Control, holders));
        drop((first, second));
        assert!(enter(&places, 1).0.admit(ClientId(2), Role::Control, holders));
    }
}
