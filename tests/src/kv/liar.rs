//! A server that breaks its promise now and then: a proxy before one that keeps it. What tells
//! right from wrong is tried on it.

use super::wire::Wire;
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// One request in so many of those that it could lie about is answered with a lie.
const EVERY: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// None at all.
    Honest,
    /// Says that a value is set, and does not set it.
    Forgets,
    /// Says what a key's value was when it was first read.
    Stale,
}

#[derive(Default)]
struct Memory {
    requests: u64,
    /// The first reply of each key that was a value.
    first: HashMap<Vec<u8>, Vec<u8>>,
}

/// Listens on a socket and passes what comes there on to another one, for as long as this process
/// runs.
///
/// # Errors
/// The socket can't be made.
pub fn start(listen: &Path, server: &Path, lie: Lie) -> io::Result<()> {
    let (listener, server) = (UnixListener::bind(listen)?, server.to_owned());
    let memory = Arc::new(Mutex::new(Memory::default()));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (server, memory) = (server.clone(), memory.clone());
            // It ends when either side does.
            thread::spawn(move || pass_on(client, &server, lie, &memory));
        }
    });
    Ok(())
}

fn pass_on(client: UnixStream, server: &Path, lie: Lie, memory: &Mutex<Memory>) -> io::Result<()> {
    let (mut client, mut server) = (Wire::over(client)?, Wire::unix(server)?);
    let (mut to_client, mut to_server) = (client.sender()?, server.sender()?);
    loop {
        // A request looks like a reply.
        let request = client.reply()?;
        let mut words = request.split(|byte| *byte == b'\n').skip(2).step_by(2);
        let (name, key) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if lie == Lie::Forgets && name.starts_with(b"SET") && is_time(memory) {
            to_client.write_all(b"+OK\r\n")?;
            continue;
        }
        to_server.write_all(&request)?;
        let mut reply = server.reply()?;
        if lie == Lie::Stale && name.starts_with(b"GET") && reply.starts_with(b"$") {
            let lies = is_time(memory);
            let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            let first = memory.first.entry(key.to_vec()).or_insert_with(|| reply.clone());
            if lies {
                reply.clone_from(first);
            }
        }
        to_client.write_all(&reply)?;
    }
}

fn is_time(memory: &Mutex<Memory>) -> bool {
    let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    memory.requests += 1;
    memory.requests.is_multiple_of(EVERY)
}
