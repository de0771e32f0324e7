//! The hand-over of leases, exhaustively: the real [`Book`] with every order of events that a few
//! clients, a few slabs and a few ticks of time allow.
//!
//! Around the book stand what the [`Lender`](crate::lender) does with its actions (keys, chores,
//! the saved leases) and clients that follow the protocol, in `world`. States are told apart by
//! what matters for what comes: moments relative to now, keys and incarnations by which ones are
//! equal. So histories of any length fold into finitely many states, and the search ends by itself
//! where no depth is given.
//!
//! # Covered
//! - Requests that arrive late, on a connection that the client has given up, or never; answers
//!   that never arrive; a hello that arrives after a newer one; connections whose end is seen late
//!   or not at all; clients that are silent for longer than their leases last, and then go on.
//! - Recalls with and without time, a drain and its end, memory that can't be had, free slabs
//!   trimmed, a janitor that is late.
//! - The agent is killed after any of an event's actions was carried out, before it answers, and
//!   the next one resumes from what was saved.
//!
//! # Not covered
//! - More clients, slabs and ticks than each case says. The same client id on two machines, `close`
//!   and `revoke_all`: see `histories` and the single steps.
//! - Operations that are under way when a key dies (the lender's guards), and the lease board:
//!   `agent/tests/lending`.
//! - Two kills of the agent before a client has taken up the first one's successor: that client
//!   counts its slabs as lost, which is allowed.

mod world;

use super::*;
use stateright::{Checker, DiscoveryClassification, HasDiscoveries, Model, Property};
use world::{Event, World};

/// A case: how many of each, and which events there are.
#[derive(Clone, Copy, Debug)]
struct Case {
    clients: usize,
    slabs: usize,
    /// Free slabs that keep their memory.
    keep: u32,
    /// Lost and late messages, connections that break.
    network: bool,
    /// The agent dies.
    kills: bool,
    /// Recalls, drains, want of memory.
    pressure: bool,
    depth: Option<usize>,
}

impl Model for Case {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, state: &World, events: &mut Vec<Event>) {
        state.events(self, events);
    }

    fn next_state(&self, state: &World, event: Event) -> Option<World> {
        let mut next = state.clone();
        next.happen(event).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Case>> {
        let always = [
            Property::always("every rule of `world` holds", |_: &Case, w: &World| w.broken.is_none()),
            Property::always("silence ends every lease and frees every slab", |case: &Case, w: &World| w.ends(case)),
        ];
        // The search is worth something only if it comes by these.
        let reached = [
            Property::sometimes("a slab changes hands", |_: &Case, w: &World| w.has_changed_hands()),
            Property::sometimes("a client believes in a lease that is over", |_: &Case, w: &World| w.is_deceived()),
        ];
        let with_kills =
            Property::sometimes("a lease goes on over a kill", |_: &Case, w: &World| w.has_outlived_an_agent());
        always.into_iter().chain(reached).chain(self.kills.then_some(with_kills)).collect()
    }
}

fn check(case: Case) {
    let start = std::time::Instant::now();
    let checker = case.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = match case.depth {
        Some(depth) => checker.target_max_depth(depth),
        None => checker,
    };
    let checker = checker.spawn_bfs().join();
    let (all, unique) = (checker.state_count(), checker.unique_state_count());
    println!("{case:?}: {all} steps, {unique} states, depth {}, {:.1?}", checker.max_depth(), start.elapsed());
    for (name, path) in checker.discoveries() {
        if let DiscoveryClassification::Counterexample = checker.discovery_classification(name) {
            let broken = path.last_state().broken;
            let steps: Vec<String> = path.into_actions().iter().map(|event| format!("{event:?}")).collect();
            panic!("{name}: {broken:?}, after {}", steps.join("; "));
        }
    }
    checker.assert_properties();
}

#[test]
fn one_client_and_one_slab_in_every_order_of_all_events() {
    check(Case { clients: 1, slabs: 1, keep: 1, network: true, kills: true, pressure: true, depth: None });
}

#[test]
fn two_clients_contend_for_one_slab() {
    check(Case { clients: 2, slabs: 1, keep: 1, network: true, kills: false, pressure: false, depth: None });
}

#[test]
fn two_clients_contend_for_one_slab_that_is_recalled_by_an_agent_that_dies() {
    check(Case { clients: 2, slabs: 1, keep: 0, network: true, kills: true, pressure: true, depth: Some(11) });
}

#[test]
fn one_client_with_two_slabs() {
    check(Case { clients: 1, slabs: 2, keep: 1, network: true, kills: true, pressure: true, depth: None });
}
