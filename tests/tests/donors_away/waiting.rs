//! Reads that wait for a donor: who overwrites such a key does not wait for them, and what a
//! connection sends behind one comes behind it all the same.

use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed, wait_for};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Some of them lie on the donor that hangs.
const KEYS: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// Until reads have given their locks back.
const NOTICED: Duration = Duration::from_millis(1000);

/// The keys, and so much beside each that no donor has all of them.
fn fill(wire: &mut Wire) {
    let filler = "x".repeat(3000);
    for key in 0..KEYS {
        let sets: Vec<Vec<String>> = [format!("key:{key}"), format!("ordered:{key}")]
            .into_iter()
            .chain((0..60).map(|nth| format!("filler:{key}:{nth}")))
            .map(|name| vec!["SET".into(), name, format!("old {filler}")])
            .collect();
        let replies = wire.ask_all(&sets).expect("answers");
        assert!(replies.iter().all(|reply| reply == b"+OK\r\n"), "{replies:?}");
    }
}

fn connect(bed: &Testbed) -> Wire {
    Wire::unix(&bed.kv_socket()).expect("the KV API listens")
}

fn is_old(reply: &[u8]) -> bool {
    reply.windows(4).any(|four| four == b"old ")
}

#[test]
fn a_write_does_not_wait_for_a_read_of_its_key_unless_its_own_connection_sent_that_before() {
    let donor = || Donor::tcp().capacity("160M").agent_args(&["--slab-size", "4M"]);
    let bed = Testbed::builder().replicas(1).donor(donor()).donor(donor()).kv("").start();
    let mut writer = connect(&bed);
    fill(&mut writer);
    let donors = bed.status().donors;
    let used = |nth: &usize| donors[*nth].used;
    let hung = &bed.agents[(0..2).max_by_key(used).expect("there are two")];
    hung.signal(Signal::SIGSTOP);

    let mut waiting: Vec<Wire> = (0..KEYS).map(|_| connect(&bed)).collect();
    let mut ordered: Vec<Wire> = (0..KEYS).map(|_| connect(&bed)).collect();
    for (key, wire) in waiting.iter_mut().enumerate() {
        wire.send(&format!("GET key:{key}\r\n"));
    }
    for (key, wire) in ordered.iter_mut().enumerate() {
        wire.send(&format!("GET ordered:{key}\r\nSET ordered:{key} new\r\nGET ordered:{key}\r\n"));
    }
    wait_for("keys to be out of reach", MINUTE, || bed.status().pool.waiting_extents > 0);
    std::thread::sleep(NOTICED);
    // Behind a read that waits already, too.
    for (key, wire) in waiting.iter_mut().enumerate() {
        wire.send(&format!("SET key:{key} newest\r\nGET key:{key}\r\n"));
    }
    for key in 0..KEYS {
        let began = Instant::now();
        let reply = writer.ask(&["SET", &format!("key:{key}"), "new"]).expect("an answer");
        assert_eq!(String::from_utf8_lossy(&reply), "+OK\r\n");
        // It would be until the donor is back.
        assert!(began.elapsed() < Duration::from_secs(10), "a write waited for a read: {:?}", began.elapsed());
    }
    hung.signal(Signal::SIGCONT);
    for (key, wire) in waiting.iter_mut().enumerate() {
        let first = wire.reply().expect("the answer to GET");
        assert!(is_old(&first) || first == b"$3\r\nnew\r\n", "key:{key} is {:.60}", String::from_utf8_lossy(&first));
        wire.expect("+OK\r\n");
        let second = wire.reply().expect("the answer to GET");
        assert!([&b"$6\r\nnewest\r\n"[..], b"$3\r\nnew\r\n"].contains(&&second[..]), "key:{key} is {second:?}");
    }
    for (key, wire) in ordered.iter_mut().enumerate() {
        let first = wire.reply().expect("the answer to GET");
        assert!(is_old(&first), "ordered:{key} is {:.60} before it was written", String::from_utf8_lossy(&first));
        wire.expect("+OK\r\n$3\r\nnew\r\n");
    }
}
