//! The threads around the screen. Each sends what it has into one channel: annexd's answers, keys,
//! signals, and what came of changes. None of them draws, so a slow terminal holds none of them up
//! for longer than the channel is full, and an annexd that hangs does not hold up the keys.

use super::ui::{Action, Said};
use crate::client::{self, Client};
use crate::failure::Failure;
use crate::listing;
use annex_shared::api::{AppInfo, LimitRequest, Status, format_bytes};
use annex_shared::event::Event;
use hyper::Method;
use nix::sys::signal::{SigSet, Signal};
use ratatui::crossterm::event::{self, KeyEvent, KeyEventKind};
use ratatui::crossterm::terminal::disable_raw_mode;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

/// How long until an annexd that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(2);
/// How often it is told how far a detach is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How long the screen has to end after a signal before the program does without.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a thread has.
pub enum Input {
    /// When it came, counted from the start of `annex top`.
    Answer {
        status: Box<Status>,
        events: Vec<Event>,
        at: Duration,
    },
    /// Why annexd does not answer.
    Away(String),
    Key(KeyEvent),
    /// The size changed.
    Resized,
    /// No keys will come any more: the terminal is gone.
    Hangup,
    Signal(Signal),
    /// How a change goes on, and whether that was the last of it.
    Said {
        said: Said,
        is_done: bool,
    },
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop).map_err(Failure::Setup)
}

/// Asks annexd every so often, whether it is there or not.
pub fn ask(socket: &Path, every: Duration, inputs: SyncSender<Input>) -> Result<(), Failure> {
    let client = Client::new(socket)?;
    let begin = Instant::now();
    let mut last = 0;
    let look = move || loop {
        let mut pause = every;
        let input = match client.status() {
            Ok(status) => {
                let at = begin.elapsed();
                // Events are an extra: an older annexd has none.
                let events = client.events(last).unwrap_or_default();
                last = events.last().map_or(last, |event| event.seq);
                Input::Answer { status: Box::new(status), events, at }
            }
            Err(failure) => {
                pause = every.min(AGAIN);
                Input::Away(failure.sentence())
            }
        };
        if inputs.send(input).is_err() {
            return;
        }
        std::thread::sleep(pause);
    };
    spawn("annex-top-ask", look)
}

/// Reads keys and changes of the size.
pub fn keys(inputs: SyncSender<Input>) -> Result<(), Failure> {
    let read = move || loop {
        let input = match event::read() {
            Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
            Ok(event::Event::Resize(..)) => Input::Resized,
            Ok(_) => continue,
            Err(_) => Input::Hangup,
        };
        let is_last = matches!(input, Input::Hangup);
        if inputs.send(input).is_err() || is_last {
            return;
        }
    };
    spawn("annex-top-keys", read)
}

/// Signals that end the program. Call it before there are other threads.
pub fn signals(inputs: SyncSender<Input>) -> Result<(), Failure> {
    let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT]);
    ends.thread_block().map_err(|errno| Failure::Setup(errno.into()))?;
    let wait = move || {
        let Ok(signal) = ends.wait() else { return };
        let _ = inputs.try_send(Input::Signal(signal));
        std::thread::sleep(PATIENCE);
        // The screen can't be written: it is held up (Ctrl-S), or its line is gone.
        let _ = disable_raw_mode();
        std::process::exit(128 + signal as i32);
    };
    spawn("annex-top-signals", wait)
}

/// Makes the changes that are asked for, one after the other.
pub fn changes(socket: &Path, inputs: SyncSender<Input>) -> Result<Sender<Action>, Failure> {
    let client = Client::new(socket)?;
    let (actions, asked): (Sender<Action>, Receiver<Action>) = std::sync::mpsc::channel();
    let work = move || {
        for action in asked {
            let say = |text: String, is_error: bool, is_done: bool| {
                let _ = inputs.send(Input::Said { said: Said { text, is_error }, is_done });
            };
            let done = match action {
                Action::Limit { app, limit } => set_limit(&client, &app, &LimitRequest { local: limit }),
                Action::Detach { app } => detach(&client, &app, |text| say(text, false, false)),
                Action::Quit | Action::Redraw => continue,
            };
            match done {
                Ok(text) => say(text, false, true),
                Err(failure) => say(failure.sentence(), true, true),
            }
        }
    };
    spawn("annex-top-changes", work)?;
    Ok(actions)
}

fn set_limit(client: &Client, app: &str, request: &LimitRequest) -> Result<String, Failure> {
    let app: AppInfo = client.call(Method::PUT, &client::path(&["apps", app, "limit"]), Some(request))?;
    Ok(listing::allowed(&app))
}

fn detach(client: &Client, app: &str, say: impl Fn(String)) -> Result<String, Failure> {
    let (mut brought_back, mut last) = (0, None::<Instant>);
    client.detach(app, |what, done, total| {
        brought_back = done;
        if last.is_none_or(|last| last.elapsed() >= PROGRESS_EVERY) {
            last = Some(Instant::now());
            say(format!("detach {app}: {what}, {} of {}", format_bytes(done), format_bytes(total)));
        }
    })?;
    Ok(format!("detached {app} ({} brought back)", format_bytes(brought_back)))
}
