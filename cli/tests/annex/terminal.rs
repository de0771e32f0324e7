//! A program on a pseudo-terminal of 80 columns and 24 lines, with a screen that can be read.

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const COLUMNS: usize = 80;
const LINES: usize = 24;
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Terminal {
    keyboard: File,
    /// The program's end: its settings can be read when the program has ended, too.
    line: OwnedFd,
    /// All that was written to it.
    written: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    /// Runs the command with this terminal as its own, and tells the settings it found.
    pub fn run(command: &Command) -> (Terminal, Termios) {
        let size = Winsize { ws_row: LINES as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut own = Command::new("setsid");
        own.arg("--ctty").arg(command.get_program()).args(command.get_args());
        own.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
        let child = own.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keyboard = File::from(pty.master);
        let (mut reader, written) = (keyboard.try_clone().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let all = written.clone();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut part) {
                all.lock().unwrap().extend_from_slice(&part[..n]);
            }
        });
        (Terminal { keyboard, line: pty.slave, written, child }, before)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub fn settings(&self) -> Termios {
        tcgetattr(&self.line).unwrap()
    }

    /// All that was written, escape sequences included.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    pub fn wait_shows(&self, text: &str) {
        let begin = Instant::now();
        while !screen(&self.written()).contains(text) {
            assert!(begin.elapsed() < PATIENCE, "{text:?} is not on\n{}", screen(&self.written()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn wait_ends(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // What it wrote last is still on the way.
                std::thread::sleep(Duration::from_millis(100));
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end:\n{}", screen(&self.written()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a terminal shows after all this was written: text, moves of the cursor, erased screens.
fn screen(written: &str) -> String {
    let mut cells = vec![vec![' '; COLUMNS]; LINES];
    let (mut x, mut y) = (0, 0);
    let mut chars = written.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' if chars.next_if_eq(&'[').is_some() => {
                let mut numbers = String::new();
                while let Some(c) = chars.next_if(|c| !c.is_ascii_alphabetic()) {
                    numbers.push(c);
                }
                let number = |i: usize| numbers.split(';').nth(i).and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
                match chars.next() {
                    Some('H') => (y, x) = (number(0) - 1, number(1) - 1),
                    Some('J') => cells = vec![vec![' '; COLUMNS]; LINES],
                    _ => {}
                }
            }
            '\n' => y += 1,
            '\r' => x = 0,
            c => {
                if let Some(cell) = cells.get_mut(y).and_then(|line| line.get_mut(x)) {
                    *cell = c;
                }
                x += 1;
            }
        }
    }
    let lines: Vec<String> = cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect();
    lines.join("\n")
}
