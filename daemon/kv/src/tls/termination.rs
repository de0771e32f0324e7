//! The threads that speak TLS, and where connections come in.

use super::handshakes::{Handshakes, Place};
use super::relay;
use annex_host::repeated;
use annex_identity::identity::Reloaded;
use annex_identity::service::Service;
use annex_identity::tls::io_reason;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// When the host has no file descriptors left, accepting is tried again after this.
const BREATH: Duration = Duration::from_millis(50);
/// Connections that wait to be admitted.
const WAITING: usize = 64;
/// How often it is looked whether the files have changed.
const FILES: Duration = Duration::from_secs(5);
/// How long the last answers may take when the KV API stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
const MOST_THREADS: usize = 4;

/// A connection: its Unix socket, and the addresses of the client and of this end.
type Connection = (UnixStream, SocketAddr, SocketAddr);

/// Speaks TLS for the KV API.
pub struct Termination {
    /// `None` once it has ended.
    runtime: Option<Runtime>,
    shared: Shared,
    /// Each connection that is served has a copy.
    served: Arc<()>,
}

#[derive(Clone)]
struct Shared {
    service: Arc<Service>,
    handshakes: Handshakes,
    served: Weak<()>,
}

/// A socket whose connections come deciphered.
pub struct Terminated {
    pub address: SocketAddr,
    connections: mpsc::Receiver<Connection>,
    accepts: AbortHandle,
}

impl Termination {
    pub fn start(service: Service) -> io::Result<Termination> {
        let threads = (available_parallelism().map_or(1, usize::from) / 2).clamp(1, MOST_THREADS);
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(threads).thread_name("annex-kv-tls").enable_all().build()?;
        let service = Arc::new(service);
        runtime.spawn(keep_looking(service.clone()));
        let served = Arc::default();
        let shared = Shared { service, handshakes: Handshakes::default(), served: Arc::downgrade(&served) };
        Ok(Termination { runtime: Some(runtime), shared, served })
    }

    /// `bind` makes the socket.
    pub fn listen(&self, bind: impl FnOnce() -> io::Result<TcpListener>) -> io::Result<Terminated> {
        let Some(runtime) = &self.runtime else { return Err(io::ErrorKind::NotConnected.into()) };
        let entered = runtime.enter();
        let listener = bind()?;
        drop(entered);
        let address = listener.local_addr()?;
        let (sender, connections) = mpsc::channel(WAITING);
        let accepts = runtime.spawn(accept(listener, self.shared.clone(), sender));
        Ok(Terminated { address, connections, accepts: accepts.abort_handle() })
    }
}

/// The KV API has hung up on all connections: those end as soon as they have delivered the last
/// answers.
impl Drop for Termination {
    fn drop(&mut self) {
        let began = Instant::now();
        while Arc::strong_count(&self.served) > 1 && began.elapsed() < LAST_ANSWERS {
            thread::sleep(Duration::from_millis(2));
        }
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Terminated {
    /// The next connection whose handshake is over.
    pub async fn next(&mut self) -> io::Result<Connection> {
        self.connections.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Terminated {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

async fn accept(listener: TcpListener, shared: Shared, sender: mpsc::Sender<Connection>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (place, began) = shared.handshakes.place();
                let task = tokio::spawn(serve(stream, peer, shared.clone(), place, sender.clone()));
                began(task.abort_handle());
            }
            Err(error) => {
                repeated!(WARN, "failed to accept a connection" of "", "failed to accept a connection: {error}");
                sleep(BREATH).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, shared: Shared, place: Place, sender: mpsc::Sender<Connection>) {
    let made = async {
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        let handshake = TlsAcceptor::from(shared.service.config()).accept(stream);
        let client = timeout(HANDSHAKE, handshake).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        Ok::<_, io::Error>((client, tokio::net::UnixStream::from_std(ours)?, (theirs, peer, local)))
    };
    match made.await {
        Ok((client, ours, connection)) => {
            let _served = shared.served.upgrade();
            let is_taken = sender.send(connection).await.is_ok();
            drop((place, sender));
            if is_taken {
                relay::run(client, ours).await;
            }
        }
        Err(error) => {
            let why = io_reason(&error);
            repeated!(
                INFO, "a TLS handshake with the KV API failed" of "",
                "the TLS handshake of {peer} with the KV API failed: {why}"
            );
        }
    }
}

/// New files are in use from the next handshake on.
async fn keep_looking(service: Arc<Service>) {
    let mut said = None;
    loop {
        sleep(FILES).await;
        match service.reload() {
            Ok(Reloaded::Taken) => tracing::info!("the KV API's changed TLS files are in use from now on"),
            Ok(Reloaded::Unchanged) => {}
            Err(error) => {
                let text = error.to_string();
                if said.as_ref() != Some(&text) {
                    tracing::warn!("the KV API's TLS files can't be used, and the ones before stay in use: {text}");
                }
                said = Some(text);
                continue;
            }
        }
        said = None;
    }
}
