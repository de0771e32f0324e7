//! The floor of a request and its answer over loopback: a thread that reads what it is told to
//! read, and answers as many bytes as it is asked for.

use anyhow::Context;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

const HEADER: usize = 8;
const BUFFER: usize = 256 << 10;

struct Peer {
    stream: TcpStream,
    /// The beginning of a request that has not come whole.
    header: Vec<u8>,
    /// Bytes of the request that are still to come.
    body: usize,
    /// Bytes to be sent.
    owed: usize,
}

/// Starts the thread, which ends with the process.
pub fn start() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("raw".into()).spawn(move || {
        if let Err(error) = serve(&listener) {
            // The driver will notice that nobody answers.
            eprintln!("the bare floor: {error:#}");
        }
    })?;
    Ok(address)
}

fn serve(listener: &TcpListener) -> anyhow::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    listener.set_nonblocking(true)?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let (mut peers, mut next) = (BTreeMap::new(), 1);
    let mut events = [EpollEvent::empty(); 64];
    let (mut buffer, answer) = (vec![0; BUFFER], vec![b'v'; BUFFER]);
    loop {
        let ready = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            ready => ready.context("waiting for requests")?,
        };
        for event in &events[..ready] {
            if event.data() == 0 {
                let stream = match listener.accept() {
                    Ok((stream, _)) => stream,
                    // Gone before it was let in.
                    Err(_) => continue,
                };
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                epoll.add(
                    &stream,
                    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET, next),
                )?;
                peers.insert(next, Peer { stream, header: Vec::new(), body: 0, owed: 0 });
                next += 1;
            } else if let Some(peer) = peers.get_mut(&event.data())
                && !matches!(peer.serve(&mut buffer, &answer), Ok(true))
            {
                peers.remove(&event.data());
            }
        }
    }
}

impl Peer {
    /// Reads and answers all there is; false when the other side has closed.
    fn serve(&mut self, buffer: &mut [u8], answer: &[u8]) -> std::io::Result<bool> {
        loop {
            let count = match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            self.take(&buffer[..count]);
            if count < buffer.len() {
                break;
            }
        }
        while self.owed > 0 {
            match self.stream.write(&answer[..self.owed.min(answer.len())]) {
                Ok(count) => self.owed -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.body.min(bytes.len());
            self.body -= skipped;
            bytes = &bytes[skipped..];
            let (more, rest) = bytes.split_at(bytes.len().min(HEADER - self.header.len()));
            self.header.extend_from_slice(more);
            bytes = rest;
            if let Ok(header) = <[u8; HEADER]>::try_from(&self.header[..]) {
                let lengths = u64::from_le_bytes(header);
                self.header.clear();
                self.body = (lengths & 0xffff_ffff) as usize;
                self.owed += (lengths >> 32) as usize;
            }
        }
    }
}
