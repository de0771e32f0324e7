//! Who is told what became of a record that was appended.

use super::error::StoreError;
use std::rc::Weak;
use tokio::sync::oneshot;

/// Who is told what became of a record, for tasks that have many under way and want none of them to
/// cost a channel.
pub trait WriteListener {
    /// The record that was given this number is on all replicas and counts, or never will.
    fn completed(&self, number: u64, outcome: Result<(), StoreError>);
}

/// Who hears what became of a record.
pub enum Completion {
    Nobody,
    Task(oneshot::Sender<Result<(), StoreError>>),
    Listener(Weak<dyn WriteListener>, u64),
}

impl Completion {
    pub fn tell(self, outcome: Result<(), StoreError>) {
        match self {
            Completion::Nobody => {}
            // Who asked may have gone.
            Completion::Task(done) => drop(done.send(outcome)),
            Completion::Listener(listener, number) => {
                if let Some(listener) = listener.upgrade() {
                    listener.completed(number, outcome);
                }
            }
        }
    }
}
