//! LATENCY's memory: for each kind of event the spikes above `latency-monitor-threshold`, at most
//! one a second.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// As many as Redis keeps.
const SAMPLES: usize = 160;

#[derive(Clone, Default)]
pub struct Event {
    /// (seconds since 1970, milliseconds), the oldest first.
    pub samples: VecDeque<(i64, i64)>,
    pub worst: i64,
}

#[derive(Default)]
pub struct Latency(RefCell<BTreeMap<String, Event>>);

impl Latency {
    pub fn record(&self, event: &str, took: Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let took = took.as_millis() as i64;
        let mut events = self.0.borrow_mut();
        let event = events.entry(event.to_string()).or_default();
        event.worst = event.worst.max(took);
        match event.samples.back_mut() {
            Some((second, worst)) if *second == now => *worst = (*worst).max(took),
            _ => event.samples.push_back((now, took)),
        }
        if event.samples.len() > SAMPLES {
            event.samples.pop_front();
        }
    }

    pub fn events(&self) -> Vec<(String, Event)> {
        self.0.borrow().iter().map(|(name, event)| (name.clone(), event.clone())).collect()
    }

    pub fn event(&self, name: &str) -> Option<Event> {
        self.0.borrow().get(name).cloned()
    }

    /// True if there was one.
    pub fn forget(&self, name: &str) -> bool {
        self.0.borrow_mut().remove(name).is_some()
    }
}
