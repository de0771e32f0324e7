//! Where connections come in, and who may have one.

use super::task;
use crate::server::{Address, Client, Origin, Server, Statistics, Stream};
use crate::tls::{Terminated, Termination};
use crate::turn;
use annex_host::repeated;
use std::fs::Permissions;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const BACKLOG: u32 = 511;
/// When the host has no file descriptors left, accepting is tried again after this.
const BREATH: Duration = Duration::from_millis(50);
/// How long connections may take to finish what is under way when the server stops.
const LAST_REPLIES: Duration = Duration::from_secs(2);
/// How often idle clients and limits are looked at.
const TICK: Duration = Duration::from_secs(1);
/// A client that sent nothing for so long gives back its read buffer.
const QUIET: Duration = Duration::from_secs(2);
/// How long a client may take to authenticate.
const LOGIN: Duration = Duration::from_secs(10);

const NO_ROOM: &str = "-ERR max number of clients reached\r\n";
const DENIED: &str = "-DENIED Redis is running in protected mode because protected \
    mode is enabled and no password is set for the default user. \
    In this mode connections are only accepted from the loopback interface. \
    If you want to connect from external computers to Redis you \
    may adopt one of the following solutions: \
    1) Just disable protected mode sending the command \
    'CONFIG SET protected-mode no' from the loopback interface \
    by connecting to Redis from the same host the server is \
    running, however MAKE SURE Redis is not publicly accessible \
    from internet if you do so. Use CONFIG REWRITE to make this \
    change permanent. \
    2) Alternatively you can just disable the protected mode by \
    editing the Redis configuration file, and setting the protected \
    mode option to 'no', and then restarting the server. \
    3) If you started the server manually just for testing, restart \
    it with the '--protected-mode no' option. \
    4) Setup a an authentication password for the default user. \
    NOTE: You only need to do one of the above things in order for \
    the server to start accepting connections from the outside.\r\n";

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("failed to listen on {address}")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error("failed to listen on {}", path.display())]
    Unix { path: PathBuf, source: io::Error },
    #[error("{} is in use by another server", path.display())]
    InUse { path: PathBuf },
}

/// A socket that takes connections.
pub enum Listener {
    Tcp(TcpListener),
    /// The path is removed when the listener goes.
    Unix(UnixListener, PathBuf),
    /// What comes in is deciphered by others.
    Tls(Terminated),
}

impl Listener {
    pub fn tcp(address: SocketAddr) -> Result<Listener, BindError> {
        bind(address).map(Listener::Tcp).map_err(|source| BindError::Tcp { address, source })
    }

    pub fn tls(address: SocketAddr, termination: &Termination) -> Result<Listener, BindError> {
        let listener = termination.listen(|| bind(address));
        listener.map(Listener::Tls).map_err(|source| BindError::Tcp { address, source })
    }

    /// Replaces the socket of a server that is gone, but not one that answers.
    pub async fn unix(path: &Path, mode: u32) -> Result<Listener, BindError> {
        let failed = |source| BindError::Unix { path: path.into(), source };
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            if UnixStream::connect(path).await.is_ok() {
                return Err(BindError::InUse { path: path.into() });
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        Ok(Listener::Unix(listener, path.into()))
    }

    /// Where it listens, when the port was chosen by the system.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Tls(terminated) => Some(terminated.address),
            Listener::Unix(..) => None,
        }
    }

    async fn accept(&mut self) -> io::Result<(Stream, Address, Address)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let local = stream.local_addr()?;
                Ok((Stream::Tcp(stream), Address::Tcp(peer), Address::Tcp(local)))
            }
            Listener::Unix(listener, path) => {
                let (stream, _) = listener.accept().await?;
                let address = Address::Unix(path.display().to_string());
                Ok((Stream::Unix(stream), address.clone(), address))
            }
            Listener::Tls(terminated) => {
                let (stream, peer, local) = terminated.next().await?;
                Ok((Stream::Unix(UnixStream::from_std(stream)?), Address::Tcp(peer), Address::Tcp(local)))
            }
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Connections inherit it: one whose client's host is gone ends some day.
    socket.set_keepalive(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Someone else may have removed it; then there is nothing to do.
            _ = std::fs::remove_file(path);
        }
    }
}

/// Serves on each of the listeners from when it is there, until `until` resolves or SHUTDOWN is
/// called, then lets the
/// commands under way finish. Must run within a `LocalSet`.
pub async fn serve<L: Future<Output = Listener> + 'static>(
    server: Rc<Server>,
    listeners: Vec<L>,
    until: impl Future<Output = ()>,
) {
    let (stop, stopping) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for listener in listeners {
        tasks.spawn_local(accept(server.clone(), listener, stopping.clone()));
    }
    tasks.spawn_local(tick(server.clone(), stopping));
    tokio::select! {
        () = until => {}
        () = server.shut_down.notified() => {}
    }
    // Both ends of the channel live in this function and the tasks, so someone hears it.
    _ = stop.send(true);
    while tasks.join_next().await.is_some() {}
}

async fn accept(server: Rc<Server>, listener: impl Future<Output = Listener>, mut stopping: watch::Receiver<bool>) {
    let mut listener = tokio::select! {
        _ = stopping.changed() => return,
        listener = listener => listener,
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopping.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer, local)) => {
                    if let Some(client) = admit(&server, &stream, peer, local) {
                        let run = task::run(stream, server.clone(), client, stopping.clone());
                        connections.spawn_local(turn::in_turns(run));
                    }
                }
                Err(error) => {
                    repeated!(WARN, "failed to accept a connection" of "", "failed to accept a connection: {error}");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }
    drop(listener);
    if !finish(&mut connections).await {
        tracing::warn!("clients that did not take their replies are cut off");
        server.clients.borrow().values().for_each(|client| client.kill());
        if !finish(&mut connections).await {
            tracing::warn!("commands that did not end are given up");
        }
    }
}

/// Waits until all connections have ended; false if some did not in time.
async fn finish(connections: &mut JoinSet<()>) -> bool {
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::time::timeout(LAST_REPLIES, ended).await.is_ok()
}

fn admit(server: &Server, stream: &Stream, peer: Address, local: Address) -> Option<Rc<Client>> {
    Statistics::add(&server.stats.connections, 1);
    let live = &server.config.live;
    let is_full = || server.clients.borrow().len() as u64 >= live.max_clients.get();
    let refusal = if is_full() && !dismiss_stranger(server) {
        Some(NO_ROOM)
    } else if live.protected.get() && !server.config.needs_password() && !peer.is_local() {
        Some(DENIED)
    } else {
        None
    };
    if let Some(refusal) = refusal {
        Statistics::add(&server.stats.rejected, 1);
        // If it can be said at once.
        _ = stream.try_write(&[IoSlice::new(refusal.as_bytes())]);
        return None;
    }
    let origin = Origin::of(stream, &peer);
    let client = Rc::new(Client::new(server.next_client(), peer, local, origin));
    server.clients.borrow_mut().insert(client.id, client.clone());
    Some(client)
}

/// Closes the connection that has gone longest without authenticating. False: there is none.
fn dismiss_stranger(server: &Server) -> bool {
    if !server.config.needs_password() {
        return false;
    }
    let is_stranger = |client: &&Rc<Client>| !client.authenticated.get();
    let Some(oldest) = server.clients.borrow().values().find(is_stranger).cloned() else { return false };
    repeated!(
        WARN, "a client without a password made way for another" of "",
        "client {} at {} made way for another: there are {} (maxclients), and it has not given the password",
        oldest.id, oldest.peer, server.config.live.max_clients.get()
    );
    oldest.kill();
    // Its task ends later; its place is free now.
    server.clients.borrow_mut().remove(&oldest.id);
    true
}

/// What happens by the clock.
async fn tick(server: Rc<Server>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            _ = stopping.changed() => return,
            _ = ticks.tick() => {}
        }
        server.stats.sample();
        let live = &server.config.live;
        let (idle, soft, patience) = (live.idle_timeout.get(), live.soft_output.get(), live.soft_time.get());
        let now = Instant::now();
        server.make_room(now);
        let needs_password = server.config.needs_password();
        for client in server.clients.borrow().values() {
            let is_late = needs_password
                && !client.authenticated.get()
                && now.duration_since(client.stranger_since.get()) > LOGIN;
            if is_late {
                tracing::debug!(client = client.id, "closed: it has not authenticated");
                client.kill();
            }
            let is_idle =
                !idle.is_zero() && now.duration_since(client.last_active.get()) > idle && !client.blocked.get();
            let is_over = soft > 0 && client.output.get() as u64 > soft;
            let since = client.over_limit.get().filter(|_| is_over).or(is_over.then_some(now));
            client.over_limit.set(since);
            if is_idle || since.is_some_and(|since| now.duration_since(since) > patience) {
                client.kill();
            }
            if client.is_streamed_to.get() {
                // What is kept for it alone may be more by now.
                client.wake();
            }
            let quiet = now.duration_since(client.last_active.get()) >= QUIET;
            if quiet && client.has_idle_memory() {
                client.is_quiet.set(true);
                client.wake();
            }
        }
    }
}
