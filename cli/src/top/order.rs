//! Which rows are shown, and in which order. Pure.

use super::model::{AppRow, DonorRow, Model};
use annex_shared::api::DonorState;
use std::cmp::Reverse;

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Who waits for pages comes first; donors that are down, or slow.
    #[default]
    Hurt,
    Faults,
    Pool,
    Resident,
    Name,
}

impl Order {
    pub fn next(self) -> Order {
        match self {
            Order::Hurt => Order::Faults,
            Order::Faults => Order::Pool,
            Order::Pool => Order::Resident,
            Order::Resident => Order::Name,
            Order::Name => Order::Hurt,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Order::Hurt => "what hurts",
            Order::Faults => "faults/s",
            Order::Pool => "use of the pool",
            Order::Resident => "resident",
            Order::Name => "name",
        }
    }
}

/// What the user chose to see.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub order: Order,
    pub is_reversed: bool,
    /// Part of the names, in any case. Empty: all.
    pub filter: String,
}

impl Choice {
    fn has(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    pub fn apps<'a>(&self, model: &'a Model) -> Vec<&'a AppRow> {
        let mut rows: Vec<&AppRow> = model.apps.iter().filter(|row| self.has(&row.info.name)).collect();
        rows.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        match self.order {
            Order::Hurt => rows.sort_by_key(|row| {
                // Thousandths, so that rows of the same small share do not change places.
                let stall = (row.stall_now() * 1000.0) as u64;
                Reverse((stall, !row.info.note.is_empty(), row.faults_now() as u64))
            }),
            Order::Faults => rows.sort_by_key(|row| Reverse(row.faults_now() as u64)),
            Order::Pool => rows.sort_by_key(|row| Reverse(row.info.evicted)),
            Order::Resident => rows.sort_by_key(|row| Reverse(row.info.resident)),
            Order::Name => {}
        }
        self.turned(rows)
    }

    pub fn donors<'a>(&self, model: &'a Model) -> Vec<&'a DonorRow> {
        let mut rows: Vec<&DonorRow> = model.donors.iter().filter(|row| self.has(&row.info.name)).collect();
        rows.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        match self.order {
            Order::Hurt => rows.sort_by_key(|row| {
                let errors = row.rates.as_ref().map_or(0, |rates| rates.errors.ceil() as u64);
                Reverse((trouble(row), errors, row.p99_now()))
            }),
            Order::Faults => rows.sort_by_key(|row| Reverse(row.operations_now() as u64)),
            Order::Pool | Order::Resident => rows.sort_by_key(|row| Reverse(row.info.used)),
            Order::Name => {}
        }
        self.turned(rows)
    }

    fn turned<T>(&self, mut rows: Vec<T>) -> Vec<T> {
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }
}

/// How far a donor is from being of use.
pub fn trouble(row: &DonorRow) -> u8 {
    match row.info.state {
        DonorState::Lost => 3,
        DonorState::Connecting => 2,
        DonorState::Up if row.info.draining => 1,
        DonorState::Up => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripted::two_apps;
    use super::*;

    fn apps(choice: &Choice) -> Vec<String> {
        choice.apps(&two_apps()).iter().map(|row| row.info.name.clone()).collect()
    }

    fn donors(choice: &Choice) -> Vec<String> {
        choice.donors(&two_apps()).iter().map(|row| row.info.name.clone()).collect()
    }

    #[test]
    fn what_hurts_comes_first() {
        let choice = Choice::default();
        assert_eq!(apps(&choice), ["redis", "sort"]);
        assert_eq!(donors(&choice), ["rack2-db9", "rack1-db7"]);
    }

    #[test]
    fn an_app_above_its_limit_hurts_more_than_one_that_is_quiet() {
        let mut model = two_apps();
        model.apps.iter_mut().for_each(|app| app.rates = None);
        model.apps.iter_mut().filter(|app| app.info.name == "sort").for_each(|app| app.info.note = "full".into());
        assert_eq!(Choice::default().apps(&model)[0].info.name, "sort");
    }

    #[test]
    fn rows_can_be_sorted_by_name_and_backwards() {
        let mut choice = Choice { order: Order::Name, ..Choice::default() };
        assert_eq!(donors(&choice), ["rack1-db7", "rack2-db9"]);
        choice.is_reversed = true;
        assert_eq!(apps(&choice), ["sort", "redis"]);
        assert_eq!(donors(&choice), ["rack2-db9", "rack1-db7"]);
    }

    #[test]
    fn every_order_is_reached_and_the_first_comes_again() {
        let mut order = Order::default();
        let mut names = Vec::new();
        for _ in 0..5 {
            names.push(order.name());
            order = order.next();
        }
        names.dedup();
        assert_eq!((names.len(), order), (5, Order::default()));
    }

    #[test]
    fn a_filter_is_a_part_of_the_name_in_any_case() {
        let choice = Choice { filter: "DB7".into(), ..Choice::default() };
        assert_eq!(donors(&choice), ["rack1-db7"]);
        assert_eq!(apps(&choice), [""; 0]);
    }
}
