//! The client that all contenders get: one thread, some connections, and on each of them one
//! pipeline of requests after the other. Every answer is checked to be that of its request and of
//! the right length.

use super::load::{Load, Requests};
use super::protocol::{Answers, Batch, Protocol};
use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// No server is silent longer, in milliseconds.
const PATIENCE: u16 = 30_000;
const BUFFER: usize = 256 << 10;

/// When no further rounds begin.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Time(Duration),
    Requests(usize),
}

/// What a run came to.
pub struct Tally {
    pub requests: usize,
    pub took: Duration,
    /// Nanoseconds from the sending of a pipeline to the last of its answers.
    pub latency: Histogram<u64>,
}

pub struct Driver {
    epoll: Epoll,
    peers: Vec<Peer>,
    answers: Answers,
    buffer: Vec<u8>,
    pipeline: usize,
}

impl Driver {
    /// Connects as often as the load says.
    pub fn connect(address: SocketAddr, protocol: Protocol, load: Load) -> anyhow::Result<Driver> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut peers = Vec::new();
        for nth in 0..load.connections {
            let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
            epoll.add(&stream, EpollEvent::new(flags, nth as u64))?;
            peers.push(Peer::new(stream, Batch::new(protocol, load.bytes)));
        }
        let answers = Answers::new(protocol, load.bytes);
        Ok(Driver { epoll, peers, answers, buffer: vec![0; BUFFER], pipeline: load.pipeline })
    }

    /// Sends requests, and comes back when all are answered.
    ///
    /// # Errors
    /// A server that ends, is silent, or answers anything but what it must.
    pub fn run(&mut self, requests: &mut Requests, until: Until) -> anyhow::Result<Tally> {
        let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        let began = Instant::now();
        let (mut sent, mut drawn) = (0, Vec::with_capacity(self.pipeline));
        let mut events = [EpollEvent::empty(); 64];
        let mut busy = self.peers.len();
        let mut next = |peer: &mut Peer, now: Instant| {
            let goes_on = match until {
                Until::Time(duration) => now - began < duration,
                Until::Requests(count) => sent < count,
            };
            if goes_on {
                drawn.clear();
                drawn.extend((0..self.pipeline).map(|_| requests.draw()));
                sent += drawn.len();
                peer.batch.compose(&drawn);
                peer.begin()?;
            }
            anyhow::Ok(goes_on)
        };
        for peer in &mut self.peers {
            busy -= usize::from(!next(peer, Instant::now())?);
        }
        while busy > 0 {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::from(PATIENCE)) {
                Err(Errno::EINTR) => continue,
                ready => ready.context("waiting for answers")?,
            };
            ensure!(ready > 0, "no answer for {} s", PATIENCE / 1000);
            for event in &events[..ready] {
                let peer = &mut self.peers[event.data() as usize];
                peer.write()?;
                if peer.read(&mut self.buffer, &mut self.answers)? {
                    let now = Instant::now();
                    latency.saturating_record((now - peer.began).as_nanos() as u64);
                    busy -= usize::from(!next(peer, now)?);
                }
            }
        }
        Ok(Tally { requests: sent, took: began.elapsed(), latency })
    }
}

struct Peer {
    stream: TcpStream,
    batch: Batch,
    began: Instant,
    /// Bytes of the batch.
    written: usize,
    /// Requests of the batch.
    answered: usize,
    /// Bytes of an answer that began well and that are still to come.
    rest: usize,
    /// The beginning of an answer that is too short to be judged.
    stub: Vec<u8>,
}

impl Peer {
    fn new(stream: TcpStream, batch: Batch) -> Peer {
        Peer { stream, batch, began: Instant::now(), written: 0, answered: 0, rest: 0, stub: Vec::new() }
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        (self.written, self.answered) = (0, 0);
        self.began = Instant::now();
        self.write()
    }

    /// As much as the socket takes.
    fn write(&mut self) -> anyhow::Result<()> {
        while self.written < self.batch.bytes().len() {
            match self.stream.write(&self.batch.bytes()[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("sending requests"),
            }
        }
        Ok(())
    }

    /// Reads what has come; true when that was the last answer of the round.
    fn read(&mut self, buffer: &mut [u8], answers: &mut Answers) -> anyhow::Result<bool> {
        loop {
            let kept = self.stub.len();
            buffer[..kept].copy_from_slice(&self.stub);
            let count = match self.stream.read(&mut buffer[kept..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context("reading answers"),
            };
            self.stub.clear();
            if self.take(&buffer[..kept + count], answers)? {
                return Ok(true);
            }
            // Less than there was room for: there is no more, and an event will come when there is.
            if kept + count < buffer.len() {
                return Ok(false);
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8], answers: &mut Answers) -> anyhow::Result<bool> {
        loop {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            if self.rest > 0 {
                return Ok(false);
            }
            if self.answered == self.batch.len() {
                ensure!(bytes.is_empty(), "{} bytes more than was asked for", bytes.len());
                return Ok(true);
            }
            match answers.begin(self.batch.request(self.answered), bytes)? {
                Some(begun) => {
                    bytes = &bytes[begun.seen..];
                    self.rest = begun.rest;
                    self.answered += 1;
                }
                None => {
                    self.stub.extend_from_slice(bytes);
                    return Ok(false);
                }
            }
        }
    }
}
