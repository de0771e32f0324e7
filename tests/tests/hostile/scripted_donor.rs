//! A donor that is a script: it lends memory as an honest one does, but for what it is told to say
//! in place of it.

use annex_fabric::tcp::frame::{ANSWER_LEN, Answer, REQUEST_LEN, Request as Operation, Status, Verb};
use annex_shared::ids::{Incarnation, Rkey, SessionKey, SlabId};
use annex_shared::preamble::{Preamble, write_answer};
use annex_shared::wire::{Event, Frames, Lease, Request, VERSION, VerbsOffer, Welcome, encode_frame};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub const SLAB: u64 = 256 << 10;

/// What is said in place of an answer.
#[derive(Clone, Debug)]
pub enum Say {
    /// The answer of an honest donor.
    Honestly,
    /// These bytes.
    Instead(Vec<u8>),
    /// These bytes, and then the answer.
    Before(Vec<u8>),
    /// The answer, and then these bytes.
    After(Vec<u8>),
    /// The answer, after a while.
    Late(Duration),
    /// These bytes, and then it hangs up.
    Last(Vec<u8>),
}

/// What a donor says to a question, and the answer of an honest one.
pub trait Script: Send + Sync + 'static {
    fn control(&self, _asked: &Request, _honest: &Event) -> Say {
        Say::Honestly
    }

    /// The answer's bytes are those of its header and, of a READ, of what lies there.
    fn data(&self, _asked: &Operation, _honest: &[u8]) -> Say {
        Say::Honestly
    }

    /// Said after the welcome, unasked.
    fn unasked(&self, _to: &mut TcpStream) -> io::Result<()> {
        Ok(())
    }
}

/// It runs until it is dropped.
pub struct Donor {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    name: String,
    script: Arc<dyn Script>,
    lent: Mutex<Lent>,
    last: AtomicU64,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

#[derive(Default)]
struct Lent {
    slabs: BTreeMap<u64, (SlabId, Vec<u8>)>,
    drawn: u64,
}

impl Donor {
    pub fn start(addr: SocketAddr, name: &str, script: Arc<dyn Script>) -> Donor {
        let listener = TcpListener::bind(addr).expect("the port is ours");
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            script,
            lent: Mutex::default(),
            last: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let thread = {
            let shared = shared.clone();
            std::thread::spawn(move || shared.listen(&listener))
        };
        Donor { addr, shared, listener: Some(thread) }
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes who listens.
        let _ = TcpStream::connect(self.addr);
        if let Some(thread) = self.listener.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn listen(self: &Arc<Shared>, listener: &TcpListener) {
        let mut threads = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            if self.is_over.load(Ordering::SeqCst) {
                break;
            }
            let Ok(copy) = stream.try_clone() else { continue };
            lock(&self.open).push(copy);
            let shared = self.clone();
            // That a peer hangs up, or resets, is its right.
            threads.push(std::thread::spawn(move || drop(shared.serve(stream))));
        }
        lock(&self.open).iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let served = match Preamble::read_from(&mut stream).map_err(io::Error::other)? {
            Preamble::Control => self.control(&mut stream),
            Preamble::Data(_) => {
                write_answer(&mut stream, Ok(self.last.fetch_add(1, Ordering::Relaxed) + 1))?;
                self.data(&mut stream)
            }
            other => panic!("nothing else is offered: {other:?}"),
        };
        let _ = stream.shutdown(Shutdown::Both);
        served
    }

    fn control(&self, stream: &mut TcpStream) -> io::Result<()> {
        let mut frames = Frames::new(stream.try_clone()?);
        loop {
            let request: Request = frames.read().map_err(io::Error::other)?.ok_or(io::ErrorKind::TimedOut)?;
            let answer = self.answer(&request);
            let honest = encode_frame(&answer).map_err(io::Error::other)?;
            self.say(stream, self.script.control(&request, &answer), &honest)?;
            if let Request::Hello { .. } = request {
                self.script.unasked(stream)?;
            }
        }
    }

    fn say(&self, stream: &mut TcpStream, say: Say, honest: &[u8]) -> io::Result<()> {
        match say {
            Say::Honestly => stream.write_all(honest),
            Say::Instead(bytes) => stream.write_all(&bytes),
            Say::Before(bytes) => stream.write_all(&[&bytes, honest].concat()),
            Say::After(bytes) => stream.write_all(&[honest, &bytes].concat()),
            Say::Late(by) => {
                std::thread::sleep(by);
                stream.write_all(honest)
            }
            Say::Last(bytes) => {
                stream.write_all(&bytes)?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
        }
    }

    fn answer(&self, request: &Request) -> Event {
        let mut lent = lock(&self.lent);
        let leases = lent.slabs.iter().map(|(rkey, (slab, _))| Lease { slab: *slab, rkey: Rkey(*rkey) });
        let mut held: Vec<Lease> = leases.collect();
        match request {
            Request::Hello { .. } => {
                // It gives back what it does not know: so that it has something to return.
                held.push(Lease { slab: SlabId(9999), rkey: Rkey(9999) });
                Event::Welcome(Welcome {
                    version: VERSION as u16,
                    name: self.name.clone(),
                    incarnation: Incarnation(7),
                    session: SessionKey(7),
                    slab_size: SLAB,
                    capacity_slabs: 1000,
                    free_slabs: 1000,
                    lease_ttl_ms: 300,
                    labels: BTreeMap::new(),
                    shm_socket: None,
                    verbs: VerbsOffer::No("it is a script".into()),
                    held,
                    resumed: None,
                })
            }
            Request::Lease { .. } => {
                lent.drawn += 1;
                let (slab, rkey) = (SlabId(lent.drawn as u32), Rkey(lent.drawn << 32 | 1));
                lent.slabs.insert(rkey.0, (slab, vec![0; SLAB as usize]));
                Event::Leased { slabs: vec![Lease { slab, rkey }] }
            }
            Request::Renew => {
                let held = held.iter().map(|lease| lease.slab).collect();
                Event::Renewed { held, free_slabs: 1000, capacity_slabs: 1000 }
            }
            Request::Return { slabs } => {
                lent.slabs.retain(|_, (slab, _)| !slabs.contains(slab));
                Event::Returned
            }
        }
    }

    fn data(&self, stream: &mut TcpStream) -> io::Result<()> {
        loop {
            let mut head = [0; REQUEST_LEN];
            stream.read_exact(&mut head)?;
            let asked = Operation::parse(&head).map_err(io::Error::other)?;
            let mut payload = vec![0; if asked.verb == Verb::Write { asked.len as usize } else { 0 }];
            stream.read_exact(&mut payload)?;
            let honest = self.operate(&asked, &payload);
            self.say(stream, self.script.data(&asked, &honest), &honest)?;
        }
    }

    fn operate(&self, asked: &Operation, payload: &[u8]) -> Vec<u8> {
        let mut lent = lock(&self.lent);
        let at = asked.addr.0 as usize;
        let slab = lent.slabs.get_mut(&asked.rkey.0).and_then(|(_, bytes)| bytes.get_mut(at..at + asked.len as usize));
        let (mut status, mut found) = (Status::Done, Vec::new());
        match (asked.verb, slab) {
            (Verb::Read, Some(bytes)) => found = bytes.to_vec(),
            (Verb::Write, Some(bytes)) => bytes.copy_from_slice(payload),
            (Verb::Fence, _) => {}
            (Verb::CompareSwap, Some(_)) => panic!("annexd swaps nothing"),
            (_, None) => status = Status::RemoteAccess,
        }
        let answer = Answer { status, verb: asked.verb, len: found.len() as u32, seq: asked.seq, value: 0 };
        let mut head = [0; ANSWER_LEN];
        answer.encode(&mut head);
        [&head[..], &found].concat()
    }
}
