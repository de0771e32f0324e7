//! The search, and how far it goes.

use super::*;
use stateright::{Checker, DiscoveryClassification, HasDiscoveries, Model, Property};

impl Model for Case {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, state: &World, steps: &mut Vec<Step>) {
        state.steps(self, steps);
    }

    fn next_state(&self, state: &World, step: Step) -> Option<World> {
        let mut next = state.clone();
        next.step(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Case>> {
        vec![
            Property::always("every rule holds", |_: &Case, w: &World| w.broken.is_none()),
            Property::always("repair ends", |_: &Case, w: &World| w.ends()),
            Property::sometimes("a write is reported done", |_: &Case, w: &World| {
                w.acknowledged.iter().any(|c| *c != 0)
            }),
            Property::sometimes("the third donor takes over", |_: &Case, w: &World| w.is_good(2)),
        ]
    }
}

fn check(case: Case) {
    let start = std::time::Instant::now();
    let checker = case.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.target_max_depth(case.depth).spawn_bfs().join();
    let (all, unique) = (checker.state_count(), checker.unique_state_count());
    println!("{case:?}: {all} steps, {unique} states, depth {}, {:.1?}", checker.max_depth(), start.elapsed());
    for (name, path) in checker.discoveries() {
        if let DiscoveryClassification::Counterexample = checker.discovery_classification(name) {
            let broken = path.last_state().broken;
            let steps: Vec<String> = path.into_actions().iter().map(|step| format!("{step:?}")).collect();
            panic!("{name}: {broken:?}, after {}", steps.join("; "));
        }
    }
    checker.assert_properties();
}

#[test]
fn two_writes_and_a_fault() {
    check(Case { writes: 2, writes_per_slot: 1, faults: 1, depth: 13, ..Case::default() });
}

#[test]
fn a_second_fault_while_the_first_is_repaired() {
    check(Case { writes: 1, writes_per_slot: 1, faults: 2, depth: 13, ..Case::default() });
}

#[test]
fn slots_that_are_used_again() {
    check(Case { writes: 1, writes_per_slot: 2, faults: 1, depth: 14, ..Case::default() });
}

#[test]
fn a_backup_that_follows_and_is_written_in_turns() {
    check(Case { writes: 2, writes_per_slot: 1, faults: 1, backup: Some(1), depth: 12 });
}
