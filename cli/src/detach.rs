//! `annex detach`: brings an app's memory back, step by step.

use crate::client::Client;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::show;
use annex_shared::api::format_bytes;
use annex_shared::printable::printable;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// What `--json` prints.
#[derive(Serialize)]
struct Detached<'a> {
    detached: &'a str,
    /// Bytes that had been in the pool.
    brought_back: u64,
}

pub fn detach(client: &Client, app: &str, json: bool) -> Result<(), Failure> {
    interrupt::explain(format!(
        "interrupted: annexd goes on to bring the memory of {app} back (annex apps shows it until it is done)"
    ))?;
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut brought_back = 0;
    let result = client.detach(app, |what, done, total| {
        brought_back = done;
        bar.set_message(printable(what).into_owned());
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    result?;
    show(json, &Detached { detached: app, brought_back }, |d| {
        format!("detached {} ({} brought back)\n", printable(d.detached), format_bytes(d.brought_back))
    })
}
