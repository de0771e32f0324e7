//! A connection to a Redis-protocol server that shows every byte: for what client libraries hide.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// No answer takes longer, however busy the host is.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module's header.
pub struct Wire {
    reader: BufReader<Arc<File>>,
    /// The same: a connection has one descriptor.
    writer: Arc<File>,
}

/// Whole replies, and errors as values.
impl Wire {
    pub fn tcp(address: &str) -> io::Result<Wire> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Wire::over(stream)
    }

    pub fn unix(path: &Path) -> io::Result<Wire> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Wire::over(stream)
    }

    /// Over a connection that there is.
    pub fn over(stream: impl Into<OwnedFd>) -> io::Result<Wire> {
        let writer = Arc::new(File::from(stream.into()));
        Ok(Wire { reader: BufReader::new(writer.clone()), writer })
    }

    /// The sending side once more, for a thread that sends while another one reads.
    pub fn sender(&self) -> io::Result<impl Write + Send + use<>> {
        self.writer.try_clone()
    }

    /// Ends the connection, for a thread other than the one that has it.
    pub fn closer(&self) -> impl FnOnce() + Send + use<> {
        let socket = self.writer.clone();
        move || {
            // It may have ended already.
            let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        }
    }

    /// Ends what is sent; what comes can still be read.
    ///
    /// # Errors
    /// It is not connected any more.
    pub fn sends_no_more(&self) -> io::Result<()> {
        Ok(nix::sys::socket::shutdown(self.writer.as_raw_fd(), nix::sys::socket::Shutdown::Write)?)
    }

    /// So many bytes, as they come.
    ///
    /// # Errors
    /// Fewer came.
    pub fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(bytes)
    }

    /// Sends commands and reads the reply of each, as it came.
    pub fn ask_all<W: AsRef<[u8]>>(&mut self, commands: &[Vec<W>]) -> io::Result<Vec<Vec<u8>>> {
        let mut out = Vec::new();
        commands.iter().for_each(|words| encode(words, &mut out));
        self.writer.write_all(&out)?;
        commands.iter().map(|_| self.reply()).collect()
    }

    /// Sends a command and reads its reply, as it came.
    pub fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        encode(words, &mut out);
        self.writer.write_all(&out)?;
        self.reply()
    }

    /// One whole reply, of either protocol version.
    pub fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut left = 1u64;
        while left > 0 {
            left -= 1;
            let line = self.raw_line()?;
            let number = || std::str::from_utf8(&line[1..]).ok()?.trim_end().parse::<i64>().ok();
            let count = number().map_or(0, |n| n.max(0) as u64);
            let first = line.first().copied();
            all.extend_from_slice(&line);
            match first {
                Some(b'$' | b'=') if number() != Some(-1) => {
                    let at = all.len();
                    all.resize(at + count as usize + 2, 0);
                    self.reader.read_exact(&mut all[at..])?;
                }
                Some(b'*' | b'~' | b'>') => left += count,
                Some(b'%') => left += count * 2,
                _ => {}
            }
        }
        Ok(all)
    }

    fn raw_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        if line.ends_with(b"\r\n") { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Byte by byte, as one types it. What fails, or comes otherwise than expected, panics.
impl Wire {
    pub fn send(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).expect("the server reads");
    }

    /// Sends a command in a line and expects this answer.
    pub fn talk(&mut self, command: &str, answer: &str) {
        self.send(&format!("{command}\r\n"));
        self.expect(answer);
    }

    /// One line, without its end.
    pub fn line(&mut self) -> String {
        let line = self.raw_line().expect("an answer");
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }

    /// Reads exactly this.
    pub fn expect(&mut self, text: &str) {
        let mut read = vec![0; text.len()];
        let mut length = 0;
        while length < read.len() {
            match self.reader.read(&mut read[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) => panic!("{error}, after {:?}", String::from_utf8_lossy(&read[..length])),
            }
        }
        assert_eq!(String::from_utf8_lossy(&read[..length]), text);
    }

    /// All until the server closes the connection.
    pub fn rest(&mut self) -> String {
        let mut all = Vec::new();
        // A connection that was reset is closed too.
        let _ = self.reader.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}

fn encode<W: AsRef<[u8]>>(words: &[W], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        out.extend(format!("${}\r\n", word.as_ref().len()).bytes());
        out.extend_from_slice(word.as_ref());
        out.extend(b"\r\n");
    }
}

/// The text of a bulk reply; `None` for null.
///
/// # Errors
/// Anything else, in words.
pub fn text(reply: &[u8]) -> Result<Option<Vec<u8>>, String> {
    match reply.first() {
        Some(b'$') if reply.starts_with(b"$-1") => Ok(None),
        Some(b'_') => Ok(None),
        Some(b'$') => {
            let head = reply.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
            Ok(Some(reply[head..reply.len() - 2].to_vec()))
        }
        _ => Err(String::from_utf8_lossy(reply).into_owned()),
    }
}
