//! SIGINT while annexd works on what was asked: the command ends, annexd goes on, and the user
//! is told so. Or while the command itself looks at something: it tells what it has so far.

use crate::failure::Failure;
use annex_shared::printable::printable;
use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

/// As a shell tells that a command ended by SIGINT.
const INTERRUPTED: i32 = 130;

/// What is said when SIGINT comes. It may change as more is known.
#[derive(Clone)]
pub struct Notice(Arc<Mutex<String>>);

impl Notice {
    pub fn set(&self, text: String) {
        *self.0.lock() = text;
    }
}

/// From now on the first SIGINT is told to whoever holds the receiver, and the second one ends this
/// process. Call it before there are other threads.
pub fn hear() -> Result<Receiver<()>, Failure> {
    let interrupt = SigSet::from_iter([Signal::SIGINT]);
    interrupt.thread_block().map_err(|errno| Failure::Setup(errno.into()))?;
    let (tell, heard) = mpsc::channel();
    let wait = move || {
        let is_heard = interrupt.wait().is_ok() && tell.send(()).is_ok();
        // Nobody hears it any more once the answer is being written.
        if !is_heard || interrupt.wait().is_ok() {
            std::process::exit(INTERRUPTED);
        }
    };
    std::thread::Builder::new().name("annex-interrupt".into()).spawn(wait).map_err(Failure::Setup)?;
    Ok(heard)
}

/// From now on SIGINT ends this process with 130 after `text` was said. Call it before there are
/// other threads.
pub fn explain(text: String) -> Result<Notice, Failure> {
    let notice = Notice(Arc::new(Mutex::new(text)));
    let interrupt = SigSet::from_iter([Signal::SIGINT]);
    interrupt.thread_block().map_err(|errno| Failure::Setup(errno.into()))?;
    let said = notice.clone();
    let wait = move || {
        if interrupt.wait().is_ok() {
            let text = said.0.lock();
            // The progress bar's line ends here.
            let lead = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
            eprintln!("{lead}annex: {}", printable(&text));
            std::process::exit(INTERRUPTED);
        }
    };
    std::thread::Builder::new().name("annex-interrupt".into()).spawn(wait).map_err(Failure::Setup)?;
    Ok(notice)
}
