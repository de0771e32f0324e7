//! The terminal while `annex top` has it, and how it is given back: at the end, by a signal, and
//! when the program panics.

use crate::failure::Failure;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Rect;
use std::io::{self, IsTerminal, Stdout};

/// What a program exits with that panicked.
const PANICKED: i32 = 101;

/// The terminal has its settings and its screen back when this is dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// What it shows.
    shown: Option<Buffer>,
}

impl Screen {
    pub fn enter() -> Result<Screen, Failure> {
        for (is_terminal, what) in
            [(io::stdin().is_terminal(), "standard input"), (io::stdout().is_terminal(), "standard output")]
        {
            if !is_terminal {
                return Err(Failure::NotTerminal(what));
            }
        }
        restore_on_panic();
        enable_raw_mode().map_err(Failure::Terminal)?;
        // From here on a failure must restore.
        let entered = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match entered {
            Ok(terminal) => Ok(Screen { terminal, shown: None }),
            Err(error) => {
                restore();
                Err(Failure::Terminal(error))
            }
        }
    }

    /// Draws what differs from what is shown. Nothing is sent if nothing does.
    pub fn show(&mut self, view: impl FnOnce(Rect) -> Buffer) -> Result<(), Failure> {
        let area = Rect::from((ratatui::layout::Position::ORIGIN, self.terminal.size().map_err(Failure::Terminal)?));
        let buffer = view(area);
        if self.shown.as_ref() == Some(&buffer) {
            return Ok(());
        }
        let mut is_drawn = false;
        let draw = self.terminal.draw(|frame| {
            // The size may have changed in between. The next look at it draws.
            if frame.area() == area {
                frame.buffer_mut().clone_from(&buffer);
                is_drawn = true;
            }
        });
        draw.map_err(Failure::Terminal)?;
        self.shown = is_drawn.then_some(buffer);
        Ok(())
    }

    /// Whatever the terminal shows, the next [`Screen::show`] draws all of it.
    pub fn forget(&mut self) -> Result<(), Failure> {
        self.shown = None;
        self.terminal.clear().map_err(Failure::Terminal)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // Whoever took the terminal away gets nothing from us.
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// A panic of any thread gives the terminal back, then says what happened, and ends the program.
fn restore_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        say(panic);
        std::process::exit(PANICKED);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;
    use nix::sys::termios::tcgetattr;
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    const CHILD: &str = "ANNEX_TEST_PANICS_ON_A_SCREEN";

    /// Not a test by itself: the next one runs it on a terminal.
    #[test]
    fn panics_on_a_screen_if_told_to() {
        if std::env::var_os(CHILD).is_some() {
            let _screen = Screen::enter().unwrap();
            std::thread::spawn(|| panic!("this is said after the screen")).join().unwrap();
        }
    }

    #[test]
    fn a_panic_of_any_thread_gives_the_terminal_back_first() {
        let pty = openpty(None, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(std::env::current_exe().unwrap());
        command.args(["--nocapture", "--exact", "top::terminal::tests::panics_on_a_screen_if_told_to"]);
        let mut child = command.env(CHILD, "1").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(PANICKED));
        assert_eq!(tcgetattr(&pty.slave).unwrap(), before);

        // What was written fits the terminal's buffer.
        drop(command);
        drop(pty.slave);
        let mut said = Vec::new();
        let _ = File::from(pty.master).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        let entered = said.find("\x1b[?1049h").expect(&said);
        let left = said.find("\x1b[?1049l").expect(&said);
        let told = said.find("this is said after the screen").expect(&said);
        assert!(entered < left && left < told, "{said:?}");
    }
}
