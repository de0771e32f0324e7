//! Where the log goes: text, JSON, or systemd's journal.

use crate::program::program;
use annex_shared::ids::{ClientId, Incarnation, SessionKey};
use annex_shared::preamble::{Preamble, Proof, read_answer};
use nix::sys::stat::fstat;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The agent, told to listen on a free port and on no Unix socket.
const QUIET: [&str; 8] = ["--listen", "127.0.0.1:0", "--shm-socket", "", "--control-socket", "", "--capacity", "64M"];

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the agent where `/run` is empty, but for a journal whose sockets are in `journal`. What it
/// says on stderr, which the journal reads.
fn under_systemd(journal: Option<&Path>, args: &[&str]) -> (Running, BufReader<PipeReader>) {
    let (read, write) = std::io::pipe().unwrap();
    let file = fstat(&write).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]);
    command.arg(match journal {
        Some(_) => {
            "mount --bind \"$JOURNAL\" /mnt && mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
             mount --bind /mnt /run/systemd/journal && exec \"$@\""
        }
        None => "mount -t tmpfs none /run && exec \"$@\"",
    });
    command.arg("sh").arg(program().get_program()).args(QUIET).args(args);
    command.env("JOURNAL", journal.unwrap_or(Path::new("/"))).stdin(Stdio::null()).stderr(write);
    command.env("JOURNAL_STREAM", format!("{}:{}", file.st_dev, file.st_ino));
    (Running(command.spawn().unwrap()), BufReader::new(read))
}

/// The fields of one entry, as the journal's protocol has them.
fn fields(entry: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut rest = entry;
    while let Some(end) = rest.iter().position(|b| *b == b'\n') {
        let line = std::str::from_utf8(&rest[..end]).unwrap();
        rest = &rest[end + 1..];
        match line.split_once('=') {
            Some((name, value)) => drop(fields.insert(name.to_owned(), value.to_owned())),
            // Its length, the value, and an end of line.
            None => {
                let (len, value) = rest.split_first_chunk::<8>().unwrap();
                let len = u64::from_le_bytes(*len) as usize;
                fields.insert(line.to_owned(), String::from_utf8(value[..len].to_vec()).unwrap());
                rest = &value[len + 1..];
            }
        }
    }
    fields
}

fn line_with(part: &str, lines: impl BufRead) -> String {
    let mut seen = Vec::new();
    let found = lines.lines().map(Result::unwrap).inspect(|line| seen.push(line.clone())).find(|l| l.contains(part));
    found.unwrap_or_else(|| panic!("no line has '{part}': {seen:#?}"))
}

#[test]
fn json_is_an_object_a_line() {
    let mut child = program().args(QUIET).args(["--log-format", "json"]).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap());
    let _agent = Running(child);
    let line: serde_json::Value = serde_json::from_str(&line_with(" lends up to ", lines)).unwrap();
    assert_eq!((&line["level"], &line["target"]), (&"INFO".into(), &"annex_agent::agent".into()));
    let time = line["timestamp"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
}

#[test]
fn text_has_a_time_unless_the_journal_reads_it() {
    let mut child = program().args(QUIET).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap());
    let _agent = Running(child);
    let line = line_with(" lends up to ", lines);
    assert!(line.contains("Z  INFO "), "{line}");
    let (_agent, stderr) = under_systemd(None, &["--log-format", "text"]);
    let line = line_with(" lends up to ", stderr);
    assert!(line.starts_with(" INFO "), "{line}");
}

#[test]
fn under_systemd_lines_go_to_the_journal_with_their_priority() {
    let dir = tempfile::tempdir().unwrap();
    let journal = UnixDatagram::bind(dir.path().join("socket")).unwrap();
    journal.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (_agent, _stderr) = under_systemd(Some(dir.path()), &[]);
    let entry = loop {
        let mut entry = [0; 8192];
        let len = journal.recv(&mut entry).unwrap();
        let entry = fields(&entry[..len]);
        if entry.get("MESSAGE").is_some_and(|message| message.contains(" lends up to ")) {
            break entry;
        }
    };
    let field = |name: &str| entry.get(name).map(String::as_str);
    assert_eq!(field("PRIORITY"), Some("6"), "{entry:?}");
    assert_eq!(field("TARGET"), Some("annex_agent::agent"), "{entry:?}");
    assert_eq!(field("SYSLOG_IDENTIFIER"), Some("annex-agent"), "{entry:?}");
}

#[test]
fn a_journal_that_can_not_be_reached_costs_a_warning() {
    let (_agent, stderr) = under_systemd(None, &[]);
    let mut lines = stderr;
    let warning = line_with("the journal can't be reached", &mut lines);
    assert!(warning.starts_with(" WARN ") && warning.ends_with("the log goes to stderr"), "{warning}");
    line_with(" lends up to ", lines);
}

/// A client that was shut out filled the log: it comes again every 3 s at most.
#[test]
fn refusals_of_one_host_are_said_once_and_counted() {
    let mut child = program().args(QUIET).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let _agent = Running(child);
    let line = lines.by_ref().find(|line| line.contains(" lends up to ")).unwrap();
    let addr: SocketAddr = line.split(" on ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let proof = Proof { client: ClientId(1), incarnation: Incarnation(2), session: SessionKey(3) };
    for _ in 0..20 {
        let mut stream = TcpStream::connect(addr).unwrap();
        Preamble::Data(proof).write_to(&mut stream).unwrap();
        assert!(read_answer(&mut stream).is_err());
    }
    let mut said = 0;
    let count = lines
        .inspect(|line| said += u32::from(line.contains("a connection of 127.0.0.1")))
        .find(|l| l.contains(" more in "));
    assert!(count.unwrap().contains("127.0.0.1: a connection was refused: 19 more in the last"));
    assert_eq!(said, 1);
}
