//! A wire that is slow: what goes through arrives later, in order, as fast as it was sent.

use super::port;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const CHUNK: usize = 64 << 10;

pub struct Delay;

impl Delay {
    /// Listens where this returns, and passes every connection on to `target` and back. Its threads
    /// end with their connections, and with the test.
    ///
    /// # Panics
    /// When there is no port.
    pub fn before(target: String, by: Duration) -> SocketAddr {
        let address = port::free();
        let listener = TcpListener::bind(address).expect("the port is free");
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                // The agent may be away: then the connection ends as one to it would.
                let Ok(to) = TcpStream::connect(&target) else { continue };
                for (from, to) in [(from.try_clone(), to.try_clone()), (Ok(to), Ok(from))] {
                    let (Ok(from), Ok(to)) = (from, to) else { continue };
                    // Small messages wait for nobody but us.
                    let _ = to.set_nodelay(true);
                    pass_on(from, to, by);
                }
            }
        });
        address
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, by: Duration) {
    let (send, receive) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, bytes) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // The other side is to see that it has ended.
        let _ = to.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        while let Ok(n) = from.read(&mut chunk)
            && n > 0
            && send.send((Instant::now() + by, chunk[..n].to_vec())).is_ok()
        {}
    });
}
