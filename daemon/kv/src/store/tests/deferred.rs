//! Writes that no task waits for.

use super::*;

/// What is heard of deferred writes.
#[derive(Default)]
struct Heard(RefCell<Vec<(u64, Result<(), StoreError>)>>);

impl WriteListener for Heard {
    fn completed(&self, number: u64, outcome: Result<(), StoreError>) {
        self.0.borrow_mut().push((number, outcome));
    }
}

#[test]
fn what_is_deferred_counts_when_it_is_completed_and_for_the_next_store_too() {
    let world = World::new(50);
    world.with(async |store| {
        let heard = Rc::new(Heard::default());
        let listener: Rc<dyn WriteListener> = heard.clone();
        for (number, (key, text)) in [("a", "1"), ("b", "2"), ("a", "3")].into_iter().enumerate() {
            assert!(store.append_deferred(
                DB,
                key.as_bytes(),
                text.as_bytes(),
                &Rc::downgrade(&listener),
                number as u64
            ));
        }
        assert_eq!((heard.0.borrow().len(), store.len(DB)), (0, (0, 0)));
        store.forward();
        eventually("all to be heard of", || heard.0.borrow().len() == 3).await;
        assert_eq!(*heard.0.borrow(), [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
        assert_eq!(bytes(&store, DB, b"a").await, Some("3".into()));
        // Who deferred something may go.
        assert!(store.append_deferred(DB, b"c", b"4", &Rc::downgrade(&listener), 3));
        drop((heard, listener));
        store.forward_soon();
        eventually("the third key", || store.len(DB) == (3, 0)).await;
    });
    world.with(async |store| {
        let values = [bytes(&store, DB, b"a").await, bytes(&store, DB, b"b").await, bytes(&store, DB, b"c").await];
        assert_eq!(values, ["3", "2", "4"].map(|text| Some(text.into())));
    });
}

#[test]
fn what_would_have_to_wait_or_has_no_room_is_not_deferred() {
    World::new(50).with(async |store| {
        let listener: Rc<dyn WriteListener> = Rc::new(Heard::default());
        let defer = |value: &[u8]| store.append_deferred(DB, b"k", value, &Rc::downgrade(&listener), 0);
        assert!(!defer(&vec![0; 2 << 20]), "too large for the log");
        store.set(Settings { limit: 1, ..SETTINGS });
        assert!(!defer(b"v") && !store.has_room());
        store.set(SETTINGS);
        assert!(store.has_room() && defer(b"v"));
    });
}
