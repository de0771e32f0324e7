//! The KV API as annexd runs it: one thread with an event loop, on which server and store live, and
//! those that help it send.

use super::config::{KvConfig, PasswordError};
use super::connection::{BindError, Listener, serve};
use super::sections;
use super::server::{Config, Facts, Hooks, IoThreads, Server};
use super::session;
use super::store::{LogPageTable, OpenError, Policy, Settings, Stats, Store};
use super::tls::Termination;
use annex_identity::service::ServiceError;
use annex_pool::{Pool, Terms};
use annex_shared::api::KvInfo;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// How often an address that is in use is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Threads for what would keep the clients waiting, at most.
const WORKERS: usize = 4;
/// How often others are told how it stands.
const REPORT: Duration = Duration::from_millis(250);

/// The KV API can't be started.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    #[error("failed to start the KV API's thread: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Password(#[from] PasswordError),
    #[error("bad TLS files in [kv]: {0}")]
    Tls(#[from] ServiceError),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("the KV API's thread ended as it started")]
    Ended,
}

/// A running KV API.
pub struct Kv {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<Notify>,
    report: Arc<Mutex<Report>>,
    table: Arc<LogPageTable>,
    pool: Arc<Pool>,
    endpoints: Arc<Endpoints>,
}

/// Where it listens, and where it can't, with the reason; by address or path as configured.
#[derive(Default)]
struct Endpoints(Mutex<Vec<(String, Result<String, String>)>>);

impl Endpoints {
    fn set(&self, endpoint: &str, how: Result<String, String>) {
        let mut endpoints = self.0.lock();
        match endpoints.iter_mut().find(|(known, _)| known == endpoint) {
            Some((_, known)) => *known = how,
            None => endpoints.push((endpoint.to_owned(), how)),
        }
    }

    fn listens(&self) -> Vec<String> {
        self.0.lock().iter().filter_map(|(_, how)| how.clone().ok()).collect()
    }

    fn failed(&self) -> Vec<String> {
        self.0.lock().iter().filter_map(|(_, how)| how.clone().err()).collect()
    }
}

/// How it stands, as the thread told last.
#[derive(Clone, Copy)]
struct Report {
    stats: Stats,
    settings: Settings,
    clients: Clients,
}

#[derive(Clone, Copy, Default)]
struct Clients {
    connected: u64,
    /// Bytes that they make annexd hold, and how many they may; 0: any.
    memory: u64,
    limit: u64,
    /// That were closed since they held too much.
    evicted: u64,
}

impl Kv {
    /// Starts it over a table, which is empty or another annexd's. While what is there is taken
    /// over, commands on keys are answered with LOADING.
    pub fn start(config: &KvConfig, pool: Arc<Pool>, table: Arc<LogPageTable>) -> Result<Kv, KvError> {
        let config = KvConfig { password: config.secret()?, ..config.clone() };
        let tls = config.tls()?.map(Termination::start).transpose().map_err(KvError::Thread)?;
        let terms = Terms { min: config.pool_min, max: config.pool_max };
        pool.divide(terms, table.log_pages().count() as u64);
        let stop = Arc::new(Notify::new());
        let report = Arc::new(Mutex::new(Report {
            stats: Stats::default(),
            settings: settings_at_start(&config),
            clients: Clients::default(),
        }));
        let (ready, is_ready) = mpsc::channel();
        let endpoints = Arc::new(Endpoints::default());
        let thread = {
            let (pool, table) = (pool.clone(), table.clone());
            let (stop, report, endpoints) = (stop.clone(), report.clone(), endpoints.clone());
            let run = move || run(&config, tls, (pool, table), &stop, &report, &endpoints, &ready);
            std::thread::Builder::new().name("annex-kv".into()).spawn(run).map_err(KvError::Thread)?
        };
        is_ready.recv().map_err(|_| KvError::Ended)??;
        Ok(Kv { thread: Mutex::new(Some(thread)), stop, report, table, pool, endpoints })
    }

    pub fn info(&self) -> KvInfo {
        let donors = self.pool.bytes_by_donor(self.table.log_pages().map(|(_, slot)| slot));
        KvInfo { donors, ..self.counts() }
    }

    /// Without the bytes on each donor.
    pub fn counts(&self) -> KvInfo {
        let Report { stats, settings, clients } = *self.report.lock();
        let (pool_min, pool_max) = self.pool.share_of_kv().unwrap_or_default();
        KvInfo {
            enabled: true,
            pool_min,
            pool_max,
            listens: self.endpoints.listens(),
            failed: self.endpoints.failed(),
            loaded: stats.loaded,
            keys: stats.keys,
            used: stats.used,
            held: stats.held,
            limit: settings.limit,
            policy: settings.policy.name().into(),
            local: stats.local,
            cached: stats.cached,
            hits: stats.hits,
            misses: stats.misses,
            cache_hits: stats.cache_hits,
            expired: stats.expired,
            evicted: stats.evicted,
            lost: stats.lost,
            clients: clients.connected,
            client_memory: clients.memory,
            client_memory_limit: clients.limit,
            clients_evicted: clients.evicted,
            donors: BTreeMap::new(),
        }
    }

    /// Ends all connections and the thread. What is in the pool stays there.
    pub fn stop(&self) {
        self.stop.notify_one();
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the KV API's thread panicked");
        }
    }
}

type Ready = mpsc::Sender<Result<(), KvError>>;

fn run(
    config: &KvConfig,
    tls: Option<Termination>,
    (pool, table): (Arc<Pool>, Arc<LogPageTable>),
    stop: &Notify,
    report: &Arc<Mutex<Report>>,
    endpoints: &Arc<Endpoints>,
    ready: &Ready,
) {
    let started = IoThreads::start(io_threads(config)).and_then(|io_threads| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.max_blocking_threads(WORKERS);
        Ok((runtime.enable_all().on_thread_park(io_threads.round_ends()).build()?, io_threads))
    });
    let (runtime, io_threads) = match started {
        Ok(started) => started,
        Err(error) => return drop(ready.send(Err(KvError::Thread(error)))),
    };
    let tls = tls.map(Rc::new);
    LocalSet::new().block_on(&runtime, async {
        let of_donors = pool.clone();
        let store = match open(config, pool, table) {
            Ok(store) => store,
            Err(error) => return drop(ready.send(Err(error.into()))),
        };
        let _ = ready.send(Ok(()));
        let loads = store.clone();
        tokio::task::spawn_local(async move { loads.load().await });
        let server =
            Server::new(store.clone(), session::commands(), settings_of(config), hooks(&store, of_donors), io_threads);
        follow(&server.config, &store);
        tokio::task::spawn_local(keep_reporting(Rc::downgrade(&server), report.clone()));
        serve(server, listeners(config, tls.as_ref(), endpoints), stop.notified()).await;
    });
}

fn io_threads(config: &KvConfig) -> u8 {
    config.io_threads.unwrap_or_else(IoThreads::usual)
}

fn settings_at_start(config: &KvConfig) -> Settings {
    Settings {
        limit: config.memory.0,
        policy: Policy::named(&config.policy).unwrap_or_default(),
        log_factor: 10,
        decay: 1,
        expires_actively: true,
    }
}

fn open(config: &KvConfig, pool: Arc<Pool>, table: Arc<LogPageTable>) -> Result<Store, OpenError> {
    let (store, deliveries) = Store::open(pool, table, config.cache.0, settings_at_start(config))?;
    store.start(deliveries)?;
    Ok(store)
}

/// Each of the sockets, as soon as it can be had: programs depend on annexd whether or not its KV
/// API finds its port free.
fn listeners(
    config: &KvConfig,
    tls: Option<&Rc<Termination>>,
    endpoints: &Arc<Endpoints>,
) -> Vec<Pin<Box<dyn Future<Output = Listener>>>> {
    let mut listeners: Vec<Pin<Box<dyn Future<Output = Listener>>>> = Vec::new();
    for address in config.listen.clone() {
        let bind = move || std::future::ready(Listener::tcp(address));
        listeners.push(Box::pin(tried((address.to_string(), ""), endpoints.clone(), bind)));
    }
    for (address, tls) in config.tls_listen.iter().zip(std::iter::repeat(tls).flatten()) {
        let (address, tls) = (*address, tls.clone());
        let bind = move || std::future::ready(Listener::tls(address, &tls));
        listeners.push(Box::pin(tried((address.to_string(), " (TLS)"), endpoints.clone(), bind)));
    }
    if let Some(path) = config.socket.clone() {
        // The configuration was checked.
        let mode = config.mode().unwrap_or(0o700);
        let endpoint = path.display().to_string();
        let bind = move || {
            let path = path.clone();
            async move { Listener::unix(&path, mode).await }
        };
        listeners.push(Box::pin(tried((endpoint, ""), endpoints.clone(), bind)));
    }
    listeners
}

/// `how` stands behind the address wherever it is shown.
async fn tried<F: Future<Output = Result<Listener, BindError>>>(
    (endpoint, how): (String, &str),
    endpoints: Arc<Endpoints>,
    open: impl Fn() -> F,
) -> Listener {
    let mut said = false;
    loop {
        match open().await {
            Ok(listener) => {
                // The port may have been left to the system.
                let bound = listener.address().map_or(endpoint.clone(), |address| format!("{address}{how}"));
                tracing::info!("the KV API listens on {bound}");
                endpoints.set(&endpoint, Ok(bound));
                return listener;
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|e| format!(": {e}")).unwrap_or_default();
                let why = format!("{error}{cause}; end what has it, or change [kv]; it is tried again and again");
                if !said {
                    tracing::error!("the KV API: {why}");
                }
                endpoints.set(&endpoint, Err(why));
                said = true;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The configuration under Redis' names.
fn settings_of(config: &KvConfig) -> Config {
    let settings = Config::default();
    let addresses: Vec<String> = config.listen.iter().map(|address| address.ip().to_string()).collect();
    let port_of = |listen: &[SocketAddr]| listen.first().map_or(0, SocketAddr::port).to_string();
    let socket = config.socket.as_ref().map(|path| path.display().to_string());
    for (name, value) in [
        ("bind", addresses.join(" ")),
        ("port", port_of(&config.listen)),
        ("tls-port", port_of(&config.tls_listen)),
        ("unixsocket", socket.unwrap_or_default()),
        ("requirepass", config.password.clone().unwrap_or_default()),
        ("maxclients", config.max_clients.to_string()),
        ("maxmemory-clients", config.client_memory.0.to_string()),
        // Redis counts the thread that does all else too.
        ("io-threads", (u32::from(io_threads(config)) + 1).to_string()),
        ("maxmemory", config.memory.0.to_string()),
        ("maxmemory-policy", config.policy.clone()),
        ("enable-debug-command", if config.debug { "local" } else { "no" }.into()),
    ] {
        settings.start_with(name, value);
    }
    settings
}

/// Has CONFIG SET change the store too.
fn follow(config: &Config, store: &Store) {
    let store = store.clone();
    config.ask(Box::new(move |name, value| {
        let mut settings = store.settings();
        let number = || value.parse::<u64>().map_err(|_| format!("'{value}' is not a number"));
        match name {
            "maxmemory" => settings.limit = number()?,
            "maxmemory-policy" => settings.policy = Policy::named(value).ok_or("there is no such policy")?,
            "lfu-log-factor" => settings.log_factor = number()? as u32,
            "lfu-decay-time" => settings.decay = number()? as u32,
            _ => {}
        }
        store.set(settings);
        Ok(())
    }));
}

fn hooks(store: &Store, pool: Arc<Pool>) -> Hooks {
    let (of_facts, of_pool) = (store.clone(), store.clone());
    let facts = move || {
        let stats = of_facts.stats();
        Facts {
            used_memory: stats.used,
            peak_memory: stats.peak,
            overhead: stats.local,
            expired_keys: stats.expired,
            evicted_keys: stats.evicted,
            hits: stats.hits,
            misses: stats.misses,
            changes: stats.writes,
            is_loading: of_facts.is_loading(),
            ..Facts::default()
        }
    };
    Hooks {
        facts: Box::new(facts),
        sections: vec![
            ("pool", Box::new(move || sections::pool(&of_pool))),
            ("rdma", Box::new(move || sections::rdma(&pool.donors()))),
        ],
        may_shut_down: false,
    }
}

async fn keep_reporting(server: Weak<Server>, report: Arc<Mutex<Report>>) {
    while let Some(server) = server.upgrade() {
        let clients = Clients {
            connected: server.clients.borrow().len() as u64,
            memory: server.memory.held() as u64,
            limit: server.config.live.client_memory.get() as u64,
            evicted: server.stats.evicted_clients.get(),
        };
        *report.lock() = Report { stats: server.store.stats(), settings: server.store.settings(), clients };
        drop(server);
        tokio::time::sleep(REPORT).await;
    }
}
