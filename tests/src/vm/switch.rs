//! What joins the guests: a switch in this process, with a wire to each guest that can be cut and
//! mended, or lose RoCE alone.
//!
//! A wire is a Unix socket on which QEMU sends Ethernet frames, each after its length (4 bytes,
//! big-endian). Guest number `n` has a MAC address that ends in `n`, so the switch need not learn
//! who is where. A wire that is cut loses what is sent over it, and nobody is told: the carrier
//! stays. A guest that doesn't take its frames loses them once its queue is full; it holds up
//! nobody else.

use anyhow::Context;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Frames that wait for a guest: some 16 MiB of them.
const QUEUE: usize = 4096;
/// Longer than any frame of a guest.
const FRAME: usize = 1 << 16;

const WHOLE: u8 = 0;
/// As behind a firewall that knows nothing of RoCE v2.
const NO_ROCE: u8 = 1;
const CUT: u8 = 2;

pub struct Switch {
    ports: Arc<[Port]>,
}

struct Port {
    socket: PathBuf,
    /// One of the three above.
    wire: AtomicU8,
    /// To the guest that is there now.
    queue: Mutex<Option<SyncSender<Vec<u8>>>>,
}

impl Switch {
    /// A switch with that many ports, whose sockets lie in `dir`. It lives as long as the process.
    pub fn new(ports: usize, dir: &Path) -> anyhow::Result<Switch> {
        let port = |n: usize| Port {
            socket: dir.join(format!("wire{n}")),
            wire: AtomicU8::new(WHOLE),
            queue: Mutex::new(None),
        };
        let ports: Arc<[Port]> = (0..ports).map(port).collect();
        for n in 0..ports.len() {
            let listener = UnixListener::bind(&ports[n].socket).context("laying a wire")?;
            let ports = ports.clone();
            std::thread::spawn(move || {
                // One guest at a time; the next one is the same, started again.
                for stream in listener.incoming().map_while(Result::ok) {
                    // It ends with its guest.
                    let _ = attend(&ports, n, stream);
                    *ports[n].queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
            });
        }
        Ok(Switch { ports })
    }

    /// Where QEMU finds guest `n`'s wire.
    pub fn socket(&self, n: usize) -> &Path {
        &self.ports[n].socket
    }

    /// From now on, what is sent to and from guest `n` is lost.
    pub fn cut(&self, n: usize) {
        self.ports[n].wire.store(CUT, Relaxed);
    }

    /// From now on, what guest `n` sends and is sent over RoCE is lost, and nothing else.
    pub fn block_roce(&self, n: usize) {
        self.ports[n].wire.store(NO_ROCE, Relaxed);
    }

    pub fn mend(&self, n: usize) {
        self.ports[n].wire.store(WHOLE, Relaxed);
    }
}

impl Port {
    fn passes(&self, frame: &[u8]) -> bool {
        match self.wire.load(Relaxed) {
            WHOLE => true,
            NO_ROCE => !is_roce(frame),
            _ => false,
        }
    }
}

/// Whether a frame (behind its length) is UDP over IPv4 to the port of RoCE v2.
fn is_roce(frame: &[u8]) -> bool {
    let Some((ethernet, ip)) = frame.get(4..).and_then(|frame| frame.split_at_checked(14)) else { return false };
    let Some(head) = ip.first().map(|first| usize::from(first & 0xf) * 4) else { return false };
    ethernet[12..] == [0x08, 0x00]
        && ip.get(9) == Some(&17)
        && ip.get(head + 2..head + 4) == Some(&4791u16.to_be_bytes()[..])
}

/// Guest `n`'s address on the wire.
pub fn mac(n: usize) -> String {
    format!("52:54:00:00:00:{n:02x}")
}

fn attend(ports: &[Port], n: usize, mut stream: UnixStream) -> std::io::Result<()> {
    let (tx, rx) = sync_channel::<Vec<u8>>(QUEUE);
    let mut out = stream.try_clone()?;
    std::thread::spawn(move || {
        while let Ok(frame) = rx.recv() {
            if out.write_all(&frame).is_err() {
                break;
            }
        }
    });
    *ports[n].queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(tx);
    let mut buffered = std::io::BufReader::with_capacity(2 * FRAME, &mut stream);
    loop {
        let mut length = [0; 4];
        buffered.read_exact(&mut length)?;
        let frame_length = u32::from_be_bytes(length) as usize;
        let mut frame = length.to_vec();
        frame.resize(4 + frame_length, 0);
        buffered.read_exact(&mut frame[4..])?;
        if ports[n].passes(&frame) {
            forward(ports, n, frame);
        }
    }
}

fn forward(ports: &[Port], from: usize, frame: Vec<u8>) {
    let Some(destination) = frame.get(4..10) else { return };
    let to_all = destination[0] & 1 == 1;
    let others = ports.iter().enumerate().filter(|(n, port)| *n != from && port.passes(&frame));
    for (_, port) in others.filter(|(n, _)| to_all || *n == usize::from(destination[5])) {
        if let Some(queue) = &*port.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            // A full queue loses the frame, as a real switch does.
            let _ = queue.try_send(frame.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn frame(to: u8, from: u8, text: &[u8]) -> Vec<u8> {
        let mut frame = (14 + text.len() as u32).to_be_bytes().to_vec();
        for end in [to, from] {
            frame.extend(if end == 0xff { [0xff; 6] } else { [0x52, 0x54, 0, 0, 0, end] });
        }
        frame.extend([0x88, 0xb5]);
        frame.extend(text);
        frame
    }

    fn guest(switch: &Switch, n: usize) -> UnixStream {
        let stream = UnixStream::connect(switch.socket(n)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The port is in use once its thread has made a queue for it.
        while switch.ports[n].queue.lock().unwrap().is_none() {
            std::thread::yield_now();
        }
        stream
    }

    fn received(stream: &mut UnixStream, frame: &[u8]) -> bool {
        let mut got = vec![0; frame.len()];
        stream.read_exact(&mut got).unwrap();
        got == frame
    }

    #[test]
    fn frames_reach_whom_they_are_for_and_a_wire_loses_what_it_is_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let switch = Switch::new(3, dir.path()).unwrap();
        let (mut a, mut b, mut c) = (guest(&switch, 0), guest(&switch, 1), guest(&switch, 2));
        let (to_all, to_c) = (frame(0xff, 0, b"all"), frame(2, 0, b"for c alone"));
        a.write_all(&[to_all.clone(), to_c.clone()].concat()).unwrap();
        assert!(received(&mut b, &to_all) && received(&mut c, &to_all) && received(&mut c, &to_c));

        switch.cut(2);
        let (lost, after) = (frame(2, 0, b"lost"), frame(1, 0, b"after"));
        a.write_all(&[lost, after.clone()].concat()).unwrap();
        assert!(received(&mut b, &after));
        switch.mend(2);
        let mut roce = frame(2, 0, &[0; 28]);
        roce[16..18].copy_from_slice(&[0x08, 0x00]);
        (roce[18], roce[18 + 9]) = (0x45, 17);
        roce[18 + 22..18 + 24].copy_from_slice(&4791u16.to_be_bytes());
        switch.block_roce(2);
        let beside = frame(2, 0, b"beside it");
        a.write_all(&[roce.clone(), beside.clone()].concat()).unwrap();
        assert!(received(&mut c, &beside));
        switch.mend(2);
        a.write_all(&roce).unwrap();
        assert!(received(&mut c, &roce));
        let (once_more, back) = (frame(2, 1, b"once more"), frame(0, 2, b"back"));
        b.write_all(&once_more).unwrap();
        assert!(received(&mut c, &once_more));
        c.write_all(&back).unwrap();
        assert!(received(&mut a, &back));
    }
}
