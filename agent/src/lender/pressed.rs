//! What the lender does for its own host: room for new slabs, and memory given back.

use super::{Books, Candidate, Event, Lender, Moment, Room, Verdict, monotonic_ns, recall};
use crate::hugepages::Hugepages;
use crate::slab::Pages;
use annex_host::repeated;
use annex_shared::ids::{ClientId, SlabId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tracing::info;

impl Lender {
    /// New slabs that this host has memory for now.
    pub(super) fn room(&self) -> Room {
        let terms = self.terms();
        let none = Room { slabs: 0, available_mib: 0, headroom_mib: terms.headroom >> 20 };
        match terms.host.memory() {
            Ok(host) => {
                let room = host.room(terms.slab_size, terms.headroom, terms.hugepages);
                if self.books.lock().watch.is_pressed() { Room { slabs: 0, ..room } } else { room }
            }
            Err(e) => {
                repeated!(ERROR, "failed to see how much memory is free" of "",
                    "failed to see how much memory is free, so no new slab is lent: {e}");
                none
            }
        }
    }

    /// True if there is memory that could be given back, or pressure that may be over.
    pub(super) fn must_look(&self, books: &Books) -> bool {
        // Prefaulted memory and huge pages are set aside for lending: giving them back would help
        // nobody.
        let terms = self.terms();
        let is_set_aside = terms.prefault || terms.hugepages == Hugepages::TwoMib;
        !is_set_aside && (books.book.with_memory() > 0 || books.watch.is_pressed())
    }

    pub(super) fn relieve_pressure(&self) {
        let terms = self.terms();
        let Ok(sample) = terms.host.sample() else { return };
        let now = Moment(monotonic_ns());
        let mut books = self.books.lock();
        let coming = books.book.coming();
        let was_pressed = books.watch.is_pressed();
        let Verdict { trim, recall } = books.watch.look(sample, coming, now);
        let is_pressed = books.watch.is_pressed();
        drop(books);
        if is_pressed != was_pressed {
            let available = sample.available >> 20;
            match is_pressed {
                true => info!("this host is short of memory ({available} MiB available): giving slabs back to it"),
                false => info!("this host has memory to spare again ({available} MiB available)"),
            }
        }
        if trim {
            self.with_book(|book, _| book.trim(0));
        }
        if recall > 0 {
            let mut wanted = recall::order(self.candidates(), now);
            wanted.truncate(recall as usize);
            if !wanted.is_empty() {
                let within = terms.recall_deadline;
                info!("{} slabs are recalled, to be returned within {} ms", wanted.len(), within.as_millis());
                self.with_book(|book, now| book.recall(&wanted, within, now));
            }
        }
    }

    /// What is lent, not recalled yet, and of memory whose return helps.
    fn candidates(&self) -> Vec<Candidate> {
        let lent: Vec<(SlabId, ClientId)> = {
            let books = self.books.lock();
            let lent = books.book.lent_slabs().into_iter();
            lent.filter(|(slab, _)| books.book.recalled(*slab).is_none()).collect()
        };
        let of = |(slab, client)| {
            let slot = self.slot(slab);
            let memory = slot.memory.read();
            let memory = memory.as_ref().filter(|m| m.slab.pages() == Pages::Small)?;
            let is_seen = !memory.is_shared.load(Ordering::Relaxed);
            let used = is_seen.then(|| Moment(slot.used.load(Ordering::Relaxed)));
            Some(Candidate { slab, client, leased: Moment(slot.leased.load(Ordering::Relaxed)), used })
        };
        lent.into_iter().filter_map(of).collect()
    }

    /// What is wanted back from a client that has just connected.
    pub fn recalls(&self, client: ClientId) -> Vec<Event> {
        let now = Moment(monotonic_ns());
        let mut by_deadline: BTreeMap<Moment, Vec<SlabId>> = BTreeMap::new();
        for (slab, until) in self.books.lock().book.recalled_from(client) {
            by_deadline.entry(until).or_default().push(slab);
        }
        let event = |(until, slabs)| Event::Recall { slabs, deadline_ms: now.until(until).as_millis() as u64 };
        by_deadline.into_iter().map(event).collect()
    }
}
