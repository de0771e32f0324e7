//! A stream that ends at a moment and after so many bytes, however its peer drips them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// An exchange takes 10 KiB. Handshakes with long chains take a few more.
pub const MOST_BYTES: usize = 64 << 10;

/// A stream whose reads and writes can be given a limit of time.
pub trait Timed: Read + Write {
    fn set_timeout(&mut self, limit: Duration) -> io::Result<()>;
}

impl Timed for TcpStream {
    fn set_timeout(&mut self, limit: Duration) -> io::Result<()> {
        (&*self).set_timeout(limit)
    }
}

impl Timed for &TcpStream {
    fn set_timeout(&mut self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }
}

impl Timed for UnixStream {
    fn set_timeout(&mut self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }
}

#[derive(Debug)]
pub struct Bounded<S> {
    stream: S,
    until: Instant,
    bytes_left: usize,
}

impl<S: Timed> Bounded<S> {
    pub fn new(stream: S, limit: Duration) -> Bounded<S> {
        Bounded { stream, until: Instant::now() + limit, bytes_left: MOST_BYTES }
    }

    fn admit(&mut self) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the exchange takes too long"));
        }
        self.stream.set_timeout(left)
    }
}

fn told(error: io::Error) -> io::Error {
    // What a socket says when its time is over.
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "the peer takes too long"),
        _ => error,
    }
}

impl<S: Timed> Read for Bounded<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.admit()?;
        if self.bytes_left == 0 {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the peer sends too much"));
        }
        let most = into.len().min(self.bytes_left);
        let read = self.stream.read(&mut into[..most]).map_err(told)?;
        self.bytes_left -= read;
        Ok(read)
    }
}

impl<S: Timed> Write for Bounded<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.admit()?;
        self.stream.write(bytes).map_err(told)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_says_nothing_is_not_waited_for_forever() {
        let (near, _far) = UnixStream::pair().unwrap();
        let mut bounded = Bounded::new(near, Duration::from_millis(50));
        assert_eq!(bounded.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(bounded.write(&[0; 8]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_peer_that_drips_gets_no_more_time_for_it() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let dripping = std::thread::spawn(move || while far.write_all(&[0]).is_ok() {});
        let mut bounded = Bounded::new(near, Duration::from_millis(50));
        bounded.bytes_left = usize::MAX;
        let error = loop {
            if let Err(error) = bounded.read(&mut [0; 1]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(bounded);
        dripping.join().unwrap();
    }

    #[test]
    fn a_peer_that_sends_without_end_is_cut_off() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let flooding = std::thread::spawn(move || while far.write_all(&[0; 4096]).is_ok() {});
        let mut bounded = Bounded::new(near, Duration::from_secs(60));
        let mut got = 0;
        let error = loop {
            match bounded.read(&mut [0; 4096]) {
                Ok(read) => got += read,
                Err(error) => break error,
            }
        };
        assert_eq!((got, error.kind()), (MOST_BYTES, io::ErrorKind::FileTooLarge));
        drop(bounded);
        flooding.join().unwrap();
    }
}
