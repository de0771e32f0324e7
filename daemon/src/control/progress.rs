//! The answer of a long operation: lines of [`Progress`] from the blocking thread that works to the
//! client that reads.
//!
//! The worker never waits for the client. Between them is a queue of [`QUEUE`] lines, whose last
//! place is kept for the end: a slow client misses steps, never the outcome.

use annex_shared::api::{ApiError, Progress};
use axum::body::Bytes;
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

const QUEUE: usize = 16;

pub fn channel() -> (Report, Lines) {
    let (tx, rx) = mpsc::channel(QUEUE);
    (Report { tx }, Lines { rx })
}

/// The worker's end.
pub struct Report {
    tx: mpsc::Sender<Progress>,
}

impl Report {
    pub fn step(&mut self, step: Progress) {
        // Whether it worked out is for `end` to say. This is the only sender, so a place seen free
        // stays free.
        if matches!(step, Progress::Step { .. }) && self.tx.capacity() > 1 {
            let _ = self.tx.try_send(step);
        }
    }

    pub fn end(self, result: Result<(), ApiError>) {
        let last = result.map_or_else(Progress::Failed, |()| Progress::Done);
        let _ = self.tx.try_send(last);
    }
}

/// The client's end, as a response body of one JSON document per line.
pub struct Lines {
    rx: mpsc::Receiver<Progress>,
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.rx.poll_recv(cx).map(|step| {
            let mut line = serde_json::to_vec(&step?).ok()?;
            line.push(b'\n');
            Some(Ok(Frame::data(line.into())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_read_misses_steps_but_not_the_end() {
        let (mut report, mut lines) = channel();
        for done in 0..1000 {
            report.step(Progress::Step { what: "work".into(), done, total: 1000 });
        }
        report.end(Ok(()));
        let seen: Vec<Progress> = std::iter::from_fn(|| lines.rx.try_recv().ok()).collect();
        assert_eq!(seen.len(), QUEUE);
        assert_eq!(seen.last(), Some(&Progress::Done));
    }

    #[test]
    fn only_the_result_ends_it() {
        let (mut report, mut lines) = channel();
        report.step(Progress::Done);
        report.end(Err(ApiError {
            kind: annex_shared::api::ErrorCode::NoMemory,
            message: "no room".into(),
            remedy: String::new(),
        }));
        assert!(matches!(lines.rx.try_recv(), Ok(Progress::Failed(_))));
        assert!(lines.rx.try_recv().is_err());
    }
}
