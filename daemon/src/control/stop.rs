//! The orderly stop.
//!
//! annexd holds memory that programs live in, so a signal is a request: everything is brought back
//! first, and if local memory can't take it, annexd says what is missing and goes on as before. No
//! number of signals makes it drop pages. Under systemd a refused stop stays wanted: systemd asks
//! once and then waits, so annexd tries again every [`RETRY`], and ends as soon as the apps have
//! ended or there is room.

use super::server::Control;
use annex_shared::api::{ApiError, ErrorCode, Progress, format_bytes};
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, UnboundedSender, unbounded_channel};

/// How often a refused stop is tried again if the service manager waits for it.
pub const RETRY: Duration = Duration::from_secs(10);
/// How often progress is reported.
const REPORT: Duration = Duration::from_secs(1);

/// Tells the service manager, if there is one.
pub fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "failed to notify the service manager");
    }
}

/// Returns once a stop was asked for and every app's memory is back. `signals` brings one signal's
/// name each; `retry` is set if a refused stop is to be tried again without being asked.
pub async fn stopped(control: Arc<Control>, mut signals: Receiver<&'static str>, retry: Option<Duration>) {
    let mut wanted = false;
    loop {
        let signal = match retry.filter(|_| wanted) {
            Some(pause) => tokio::time::timeout(pause, signals.recv()).await.unwrap_or(Some("the service manager")),
            None => signals.recv().await,
        };
        // Nobody is left who could ask.
        let Some(signal) = signal else { return std::future::pending().await };
        if !wanted || retry.is_none() {
            tracing::info!("asked to stop by {signal}: bringing the memory of all apps back");
        }
        wanted = true;
        control.set_stopping(true);
        notify(&[NotifyState::Status("stopping: bringing the memory of all apps back")]);
        match bring_back(&control, &mut signals).await {
            Ok(()) => return,
            Err(error) => {
                control.set_stopping(retry.is_some());
                let next = if retry.is_some() { "annexd tries again by itself" } else { "annexd goes on" };
                tracing::error!("{error}; nothing is lost, {next}. Remedy: {}", error.remedy);
                notify(&[NotifyState::Status(&format!("not stopped: {error}; {next}"))]);
            }
        }
    }
}

async fn bring_back(control: &Arc<Control>, signals: &mut Receiver<&'static str>) -> Result<(), ApiError> {
    let (tx, mut steps) = unbounded_channel();
    let apps = control.apps.clone();
    let mut work = tokio::task::spawn_blocking(move || {
        let mut report = Paced { tx, last: None };
        apps.detach_all(&mut |step| report.step(step))
    });
    loop {
        tokio::select! {
            Some(Progress::Step { what, done, total }) = steps.recv() => {
                let line = format!("{what}: {} of {}", format_bytes(done), format_bytes(total));
                tracing::info!("{line}");
                notify(&[NotifyState::Status(&format!("stopping: {line}"))]);
            }
            Some(signal) = signals.recv() => {
                tracing::warn!("asked again by {signal}: annexd ends when all memory is back, not before");
            }
            result = &mut work => return result.unwrap_or_else(|_| {
                Err(ApiError {
                    kind: ErrorCode::Internal,
                    message: "bringing the memory back failed half way".into(),
                    remedy: "the log says where: please report it".into(),
                })
            }),
        }
    }
}

/// Lets one step through per [`REPORT`].
struct Paced {
    tx: UnboundedSender<Progress>,
    last: Option<Instant>,
}

impl Paced {
    fn step(&mut self, step: Progress) {
        if self.last.is_none_or(|t| t.elapsed() >= REPORT) {
            self.last = Some(Instant::now());
            let _ = self.tx.send(step);
        }
    }
}
