//! A connection to a Redis-protocol server that shows every byte: for what client libraries hide.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// No answer takes longer, however busy the host is.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module's header.
pub struct Wire {
    reader: BufReader<Box<dyn Read + Send>>,
    writer: Box<dyn Write + Send>,
}

impl Wire {
    pub fn tcp(address: &str) -> io::Result<Wire> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let reader = Box::new(stream.try_clone()?);
        Ok(Wire { reader: BufReader::new(reader), writer: Box::new(stream) })
    }

    pub fn unix(path: &Path) -> io::Result<Wire> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let reader = Box::new(stream.try_clone()?);
        Ok(Wire { reader: BufReader::new(reader), writer: Box::new(stream) })
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.writer.write_all(bytes.as_ref())
    }

    /// Sends commands and reads the reply of each, as it came.
    pub fn ask_all<W: AsRef<[u8]>>(&mut self, commands: &[Vec<W>]) -> io::Result<Vec<Vec<u8>>> {
        let mut out = Vec::new();
        commands.iter().for_each(|words| encode(words, &mut out));
        self.send(out)?;
        commands.iter().map(|_| self.reply()).collect()
    }

    /// Sends a command and reads its reply, as it came.
    pub fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        encode(words, &mut out);
        self.send(out)?;
        self.reply()
    }

    /// One whole reply, of either protocol version.
    pub fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut left = 1u64;
        while left > 0 {
            left -= 1;
            let line = self.line()?;
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

    /// One line with its end.
    pub fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        if line.ends_with(b"\r\n") { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads exactly this.
    ///
    /// # Panics
    /// If something else comes.
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
