//! What somebody on the wire sees: every byte of every connection, recorded by a proxy.

use crate::bed::{ANNA, Control, Donor, Host, Lane, noise};
use annex_identity::stream::Stream;
use annex_identity::testing::Pki;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Passes connections on to a donor and keeps what goes through, one record for each direction of
/// each.
struct Proxy {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Record>>>,
}

type Record = Arc<Mutex<Vec<u8>>>;

impl Proxy {
    fn to(donor: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy { addr: listener.local_addr().unwrap(), seen: Arc::default() };
        let seen = proxy.seen.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, donor) = (client.unwrap(), TcpStream::connect(donor).unwrap());
                for (from, to) in [(&client, &donor), (&donor, &client)] {
                    let (from, to, record) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Record::default());
                    seen.lock().unwrap().push(Arc::clone(&record));
                    std::thread::spawn(move || pass(from, to, &record));
                }
            }
        });
        proxy
    }

    /// How often these bytes went by, and how many bytes in all.
    fn search(&self, wanted: &[u8]) -> (usize, usize) {
        let (mut found, mut all) = (0, 0);
        for record in self.seen.lock().unwrap().iter() {
            let record = record.lock().unwrap();
            found += record.windows(wanted.len()).filter(|window| *window == wanted).count();
            all += record.len();
        }
        (found, all)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, record: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        record.lock().unwrap().extend_from_slice(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// How often the wire shows: a page's bytes, the session key, the lease's rkey, the client's name.
struct Shown {
    page: usize,
    session: usize,
    rkey: usize,
    host: usize,
    bytes: usize,
}

fn shown(donor: &Donor, host: Option<&Host>) -> Shown {
    let proxy = Proxy::to(donor.addr);
    let stream = match host {
        Some(host) => host.connect(proxy.addr).unwrap(),
        None => Stream::plain(TcpStream::connect(proxy.addr).unwrap()),
    };
    let mut control = Control::new(stream);
    let (welcome, lease) = control.settle(ANNA);
    let tls = host.map(|host| host.tls(&control));
    let mut lane = Lane::open(proxy.addr, ANNA, &welcome, tls).unwrap();
    let pages = noise(16 * 4096);
    lane.round_trip(lease.rkey, &pages, 4096).unwrap();
    // Any 16 bytes of a page would do; the first ones of each are looked for.
    let page = pages.chunks(4096).map(|page| proxy.search(&page[..16]).0).sum();
    let (rkey, bytes) = proxy.search(&lease.rkey.0.to_le_bytes());
    let session = proxy.search(&welcome.session.0.to_le_bytes()).0;
    Shown { page, session, rkey, host: proxy.search(b"\x04here").0, bytes }
}

#[test]
fn without_tls_the_wire_shows_everything() {
    let shown = shown(&Donor::plain(), None);
    assert_eq!(shown.page, 2 * 16, "each page goes by twice");
    assert_eq!(shown.rkey, 2 * 16, "with each operation");
    assert_eq!((shown.session, shown.host), (1, 1), "in the preamble, and in the hello");
}

#[test]
fn with_tls_it_shows_nothing() {
    let pki = Pki::new("c");
    let shown = shown(&Donor::secure(&pki), Some(&Host::honest(&pki)));
    assert!(shown.bytes > 2 * 16 * 4096, "all of it went by: {}", shown.bytes);
    assert_eq!((shown.page, shown.session, shown.rkey, shown.host), (0, 0, 0, 0));
}
