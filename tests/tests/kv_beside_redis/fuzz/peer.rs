//! One of the two servers, and the connections of a sequence to it.

use super::step::{Sent, Step, WIRES};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// No answer takes longer, however busy the host is.
const PATIENCE: Duration = Duration::from_secs(20);
/// The rest of a reply that has begun to come comes within this, unless it never will: what EXEC
/// ran may have muted it.
const REST: Duration = Duration::from_millis(300);

pub struct Peer {
    socket: PathBuf,
    /// Over this one nobody sees, the server is put in order, and asked whether it is done with all
    /// before.
    control: Wire,
    /// Answered when all that was sent to the server before is done.
    barrier: &'static [&'static str],
    wires: [Option<Wire>; WIRES],
}

struct Wire {
    stream: UnixStream,
    input: Vec<u8>,
    is_closed: bool,
    /// It may not be told from what is sent how many replies come: there was a CLIENT REPLY, or
    /// half a request.
    is_odd: bool,
}

/// What came in answer to a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub replies: Vec<Vec<u8>>,
    pub is_closed: bool,
    /// The last reply did not come whole.
    pub is_cut: bool,
}

impl Peer {
    pub fn new(socket: &Path, barrier: &'static [&'static str]) -> Peer {
        Peer { socket: socket.into(), control: Wire::open(socket), barrier, wires: Default::default() }
    }

    /// As if nothing had been before.
    pub fn begin(&mut self) {
        self.wires = Default::default();
        self.settle();
        for line in
            ["FLUSHALL", "CONFIG SET hz 10 proto-max-bulk-len 536870912 maxmemory 0 requirepass", "CONFIG RESETSTAT"]
        {
            let mut words: Vec<&str> = line.split(' ').collect();
            if line.ends_with("requirepass") {
                words.push("");
            }
            let reply = self.ask(&words);
            assert_eq!(reply.escape_ascii().to_string(), "+OK\\r\\n", "{line}");
        }
    }

    /// Asks over the connection nobody sees.
    pub fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Vec<u8> {
        let words = words.iter().map(|word| word.as_ref().to_vec()).collect();
        self.control.send(&[Sent::Words(words)]);
        self.control.take(1, PATIENCE).replies.pop().expect("the server answers")
    }

    /// All keys with their values, what these are kept as, and when they expire.
    pub fn content(&mut self) -> Vec<Vec<u8>> {
        self.settle();
        let mut content = Vec::new();
        for db in ["0", "1", "15"] {
            self.ask(&["SELECT", db]);
            let mut keys = bulks(&self.ask(&["KEYS", "*"]));
            keys.sort();
            for key in keys {
                let mut all = format!("{db}: {}\n", key.escape_ascii()).into_bytes();
                for name in [&["PEXPIRETIME"][..], &["OBJECT", "ENCODING"], &["GET"]] {
                    let name = name.iter().map(|word| word.as_bytes());
                    all.extend(self.ask(&name.chain([&key[..]]).collect::<Vec<_>>()));
                }
                content.push(all);
            }
        }
        self.ask(&["SELECT", "0"]);
        content
    }

    pub fn send(&mut self, step: &Step) {
        let socket = &self.socket;
        let wire = self.wires[step.wire].get_or_insert_with(|| Wire::open(socket));
        wire.is_odd |= step.has(&["reply"]) || step.sent.iter().any(|sent| matches!(sent, Sent::Raw(_)));
        wire.send(&step.sent);
    }

    /// The answer to a step that was sent to a server whose answers tell how many replies are due.
    pub fn answer(&mut self, step: &Step) -> Answer {
        let is_odd = self.wires[step.wire].as_ref().is_some_and(|wire| wire.is_odd);
        if is_odd {
            self.settle();
        }
        let mut answer = self.taken(step, if is_odd { 0 } else { step.sent.len() });
        let is_last = |reply: &Vec<u8>| reply.starts_with(b"-ERR Protocol error");
        if !answer.is_closed && (step.has(&["quit", "post", "host:"]) || answer.replies.last().is_some_and(is_last)) {
            // The end comes a little later than the last reply.
            let wire = self.wires[step.wire].as_mut().expect("something was sent");
            answer.is_closed = wire.read(REST) && wire.is_closed;
            if answer.is_closed {
                self.wires[step.wire] = None;
            }
        }
        answer
    }

    /// The answer to a step whose answer elsewhere was this.
    pub fn answer_like(&mut self, step: &Step, theirs: &Answer) -> Answer {
        let is_odd = self.wires[step.wire].as_ref().is_some_and(|wire| wire.is_odd);
        if is_odd {
            self.settle();
        }
        let whole = theirs.replies.len() - usize::from(theirs.is_cut);
        self.taken(step, whole + usize::from(theirs.is_closed))
    }

    fn taken(&mut self, step: &Step, expected: usize) -> Answer {
        let wire = self.wires[step.wire].as_mut().expect("something was sent");
        let answer = wire.take(expected, PATIENCE);
        if answer.is_closed {
            self.wires[step.wire] = None;
        }
        answer
    }

    /// Waits until the server has done all that it was sent.
    fn settle(&mut self) {
        // It looks at every connection at least once between two questions, and gives their replies
        // away before the third.
        for question in [&["PING"][..], self.barrier, &["PING"]] {
            self.ask(question);
        }
    }
}

impl Wire {
    fn open(socket: &Path) -> Wire {
        let stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Wire { stream, input: Vec::new(), is_closed: false, is_odd: false }
    }

    fn send(&mut self, sent: &[Sent]) {
        let mut bytes = Vec::new();
        sent.iter().for_each(|sent| sent.encode(&mut bytes));
        // A server may close the connection before it has read all.
        let _ = self.stream.write_all(&bytes);
    }

    /// Waits for so many replies, the end of the connection being one, and takes all that have
    /// come.
    fn take(&mut self, expected: usize, patience: Duration) -> Answer {
        let mut until = Instant::now() + patience;
        let mut answer = Answer::default();
        loop {
            let had_all = answer.replies.len() >= expected;
            while let Some(length) = length(&self.input) {
                answer.replies.push(self.input.drain(..length).collect());
            }
            answer.is_closed = self.is_closed;
            if !had_all && answer.replies.len() >= expected || expected == 0 {
                until = until.min(Instant::now() + REST);
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.is_closed || left.is_zero() {
                // What came of a reply that did not come whole.
                answer.is_cut = !self.input.is_empty();
                answer.replies.extend(Some(std::mem::take(&mut self.input)).filter(|rest| !rest.is_empty()));
                return answer;
            }
            let is_due = answer.replies.len() < expected || !self.input.is_empty();
            if !self.read(if is_due { left } else { Duration::ZERO }) && !is_due {
                return answer;
            }
        }
    }

    /// False: nothing came.
    fn read(&mut self, wait: Duration) -> bool {
        let mut buffer = [0; 64 << 10];
        self.stream.set_nonblocking(wait.is_zero()).expect("a socket");
        self.stream.set_read_timeout(Some(wait).filter(|wait| !wait.is_zero())).expect("a timeout");
        let read = self.stream.read(&mut buffer);
        self.stream.set_nonblocking(false).expect("a socket");
        match read {
            Ok(count) if count > 0 => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            _ => self.is_closed = true,
        }
        true
    }
}

/// Bytes of the reply that this begins with, if it is whole.
fn length(input: &[u8]) -> Option<usize> {
    let (mut at, mut left) = (0, 1usize);
    while left > 0 {
        left -= 1;
        let end = at + input.get(at..)?.iter().position(|byte| *byte == b'\n')? + 1;
        let (kind, line) = (input[at], &input[(at + 1).min(end)..end]);
        at = end;
        let number = std::str::from_utf8(line).ok().and_then(|line| line.trim_end().parse::<usize>().ok());
        match (kind, number) {
            (b'$' | b'=', Some(bytes)) => at += bytes + 2,
            (b'*' | b'~' | b'>', Some(count)) => left += count,
            (b'%', Some(count)) => left += count * 2,
            _ => {}
        }
    }
    (at <= input.len()).then_some(at)
}

/// The bulk strings of an array of these.
fn bulks(reply: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut all) =
        (&reply[reply.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1)..], Vec::new());
    while let Some(length) = length(rest) {
        let from = rest.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        all.push(rest[from..length - 2].to_vec());
        rest = &rest[length..];
    }
    all
}
