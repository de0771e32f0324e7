//! What goes to and fro between a client, enciphered, and its Unix socket.
//!
//! Each side waits for the other: nothing is kept here but what is being written. A connection that
//! is quiet holds no more than the buffer that its next request comes into.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep};
use tokio_rustls::server::TlsStream;

/// What is read of a client at a time. Each connection has so much.
const REQUEST: usize = 4 << 10;
/// What is sent of answers at a time: a record of TLS.
const ANSWER: usize = 16 << 10;
/// How long a client may take for what was answered before the KV API hung up.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// How often it is looked whether that is so, while the client takes nothing.
const LOOK: Duration = Duration::from_secs(1);

/// Until either side has hung up.
pub(super) async fn run(client: TlsStream<TcpStream>, server: UnixStream) {
    let (from_client, mut to_client) = tokio::io::split(client);
    let mut answers = pin!(answers(&server, &mut to_client));
    let is_over = tokio::select! {
        _ = &mut answers => true,
        _ = requests(from_client, &server) => false,
    };
    // It has sent all that it wants; what it is owed still comes, and then the end.
    if !is_over && shutdown(server.as_raw_fd(), Shutdown::Write).is_ok() {
        _ = answers.await;
    }
}

/// Until the client has sent all that it wants.
async fn requests(mut from: ReadHalf<TlsStream<TcpStream>>, to: &UnixStream) -> io::Result<()> {
    let mut buffer = [0; REQUEST];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Until the KV API has hung up, and the client has all of it.
async fn answers(from: &UnixStream, to: &mut WriteHalf<TlsStream<TcpStream>>) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut buffer = Vec::with_capacity(ANSWER);
        loop {
            buffer.clear();
            match from.try_read_buf(&mut buffer) {
                Ok(0) => return send(from, async { to.shutdown().await }).await,
                Ok(_) => send(from, async { to.write_all(&buffer).await }).await?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        send(from, async { to.flush().await }).await?;
    }
}

/// Sends, unless the KV API hangs up meanwhile on a client that takes nothing.
async fn send(from: &UnixStream, sent: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let mut sent = pin!(sent);
    let mut hung_up: Option<Instant> = None;
    loop {
        tokio::select! {
            sent = &mut sent => return sent,
            () = sleep(LOOK) => {}
        }
        if has_hung_up(from) && hung_up.get_or_insert_with(Instant::now).elapsed() >= LAST_ANSWERS {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

fn has_hung_up(socket: &UnixStream) -> bool {
    let mut look = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    let is_up = poll(&mut look, PollTimeout::ZERO);
    is_up.is_ok() && look[0].revents().is_some_and(|said| said.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
}
