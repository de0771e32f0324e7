//! `annex top`: donors, apps and the pool as they are now, what hurts most first.
//!
//! Pure, and tested without a terminal:
//! - [`model`]: what is known, made of answers.
//! - [`order`]: sorting and filtering. [`ui`]: where the user is, and what keys do.
//! - [`look`]: colours and letters. [`figures`]: numbers. [`canvas`]: text, curves and tables.
//! - [`view`]: a screen from all this; [`pages`]: the pages beside the overview.
//! - [`once`]: one frame for scripts.
//!
//! The shell:
//! - [`feeds`]: threads that ask annexd, read keys, wait for signals and make changes.
//! - [`terminal`]: takes the terminal and gives it back.
//!
//! A frame is drawn when an answer, a key or the outcome of a change has come and the screen would
//! look different. Only cells that differ are sent.

mod canvas;
mod feeds;
mod figures;
mod look;
mod model;
mod once;
mod order;
mod pages;
#[cfg(test)]
mod scripted;
mod terminal;
mod ui;
mod view;

use crate::client::Client;
use crate::failure::Failure;
use crate::output::{print, show};
use annex_cli::command::TopArgs;
use feeds::Input;
use look::Look;
use model::Model;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, sync_channel};
use std::time::{Duration, Instant};
use terminal::Screen;
use ui::{Action, Ui};

/// So many inputs wait for a terminal that is slow; then their threads do.
const WAITING: usize = 64;
/// An annexd that answers nothing for so long is said to be away.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a change that was just asked for may take to reach annexd when the user quits.
const LEAVE: Duration = Duration::from_secs(1);

pub fn top(client: &Client, args: &TopArgs, socket: &Path, json: bool) -> Result<ExitCode, Failure> {
    let every = args.interval;
    if !args.once && !json {
        return live(socket, every);
    }
    let mut model = Model::default();
    let begin = Instant::now();
    model.take(client.status()?, begin.elapsed());
    std::thread::sleep(every);
    model.take(client.status()?, begin.elapsed());
    match json {
        true => show(true, &once::json(&model), |_| String::new())?,
        false => drop(print(&once::text(&model))?),
    }
    Ok(ExitCode::SUCCESS)
}

fn live(socket: &Path, every: Duration) -> Result<ExitCode, Failure> {
    let (inputs, came) = sync_channel(WAITING);
    feeds::signals(inputs.clone())?;
    let screen = Screen::enter()?;
    feeds::ask(socket, every, inputs.clone())?;
    let changes = feeds::changes(socket, inputs.clone())?;
    feeds::keys(inputs)?;
    let mut top = Top {
        screen,
        model: Model::default(),
        ui: Ui::default(),
        changes,
        under_way: 0,
        heard: Instant::now(),
        silence: SILENCE.max(3 * every),
    };
    let look = Look::of(|name| std::env::var(name).ok());
    let code = loop {
        top.screen.show(|area| view::view(&top.model, &top.ui, look, area))?;
        if let Some(code) = top.wait(&came)? {
            break code;
        }
    };
    let left = top.leave(&came);
    // The terminal is as it was before anything is said on it.
    drop(top);
    if left {
        eprintln!("annex: annexd goes on with what was asked (annex apps shows it until it is done)");
    }
    Ok(ExitCode::from(code))
}

struct Top {
    screen: Screen,
    model: Model,
    ui: Ui,
    changes: Sender<Action>,
    /// Changes that were asked for and are not done.
    under_way: usize,
    /// When annexd, or the news that it is away, was heard last.
    heard: Instant,
    silence: Duration,
}

impl Top {
    /// Takes what has come, or waits for it. The exit code if that was the end.
    fn wait(&mut self, came: &Receiver<Input>) -> Result<Option<u8>, Failure> {
        let mut next = match came.recv_timeout(Duration::from_secs(1)) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(Some(0)),
        };
        while let Some(input) = next {
            if let Some(code) = self.take(input)? {
                return Ok(Some(code));
            }
            // All that is there goes into one frame.
            next = came.try_recv().ok();
        }
        if self.heard.elapsed() > self.silence && self.model.away.is_none() {
            self.model.lose("annexd does not answer".into());
        }
        Ok(None)
    }

    fn take(&mut self, input: Input) -> Result<Option<u8>, Failure> {
        match input {
            Input::Answer { status, events, at } => {
                self.heard = Instant::now();
                self.model.take(*status, at);
                self.model.tell(events);
            }
            Input::Away(why) => {
                self.heard = Instant::now();
                self.model.lose(why);
            }
            Input::Key(key) => match self.ui.press(key, &self.model) {
                Some(Action::Quit) => return Ok(Some(0)),
                Some(Action::Redraw) => self.screen.forget()?,
                Some(change) => {
                    self.under_way += 1;
                    // Its thread lives as long as this one.
                    let _ = self.changes.send(change);
                }
                None => {}
            },
            Input::Resized => {}
            Input::Hangup => return Ok(Some(0)),
            Input::Signal(signal) => return Ok(Some(128 + signal as u8)),
            Input::Said { said, is_done } => {
                self.under_way -= usize::from(is_done);
                self.ui.said = Some(said);
            }
        }
        Ok(None)
    }

    /// Lets a change reach annexd that was asked for just now. Whether one is not done yet.
    fn leave(&mut self, came: &Receiver<Input>) -> bool {
        let until = Instant::now() + LEAVE;
        while self.under_way > 0 {
            match came.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Input::Said { is_done, .. }) => self.under_way -= usize::from(is_done),
                Ok(_) => {}
                Err(_) => return true,
            }
        }
        false
    }
}
