//! Programs and the KV API on one small pool.

use annex_tests::testbed::{Donor, Testbed, bins, directory};
use redis::Commands;
use std::process::Command;
use std::time::Duration;

fn bed(kv: &str) -> (Testbed, redis::Connection) {
    let bed =
        Testbed::builder().donor(Donor::shm().capacity("128M")).donor(Donor::shm().capacity("128M")).kv(kv).start();
    let address = bed.kv_address.as_deref().expect("there is a KV API");
    let client = redis::Client::open(format!("redis://{address}/")).expect("an address");
    let connection = client.get_connection().expect("the server listens");
    (bed, connection)
}

/// Sets keys of 64 KiB until one is refused: how many went in.
fn fill(connection: &mut redis::Connection) -> usize {
    let value = vec![b'v'; 64 << 10];
    for nth in 0..10_000 {
        let set: redis::RedisResult<()> = connection.set(format!("k{nth}"), &value);
        match set {
            Ok(()) => {}
            Err(error) if error.code() == Some("OOM") => return nth,
            Err(error) => panic!("key {nth}: {error}"),
        }
    }
    panic!("the pool took more than it has");
}

fn stress() -> Command {
    let mut command = Command::new(bins::find("annex-stress"));
    command
        .args(["--features", "rw,scan", "--size", "64M", "--seconds", "5", "--seed", "5"])
        .arg("--dir")
        .arg(directory());
    command
}

#[test]
fn a_full_kv_api_leaves_programs_their_part() {
    let (bed, mut kv) = bed(",max=50%");
    let keys = fill(&mut kv);
    // Records, and what is on its way through the log.
    assert!((700..=1024).contains(&keys), "{keys} values of 64 KiB are half of 128 MiB");
    let outcome = bed.run("program", "16M", stress()).wait(Duration::from_secs(120)).succeeded();
    outcome.was_paged(5_000, 1_000);
    let all: Vec<String> = kv.keys("*").expect("the keys");
    assert_eq!(all.len(), keys, "keys went though none may");
}

#[test]
fn programs_leave_the_kv_api_its_part() {
    let (bed, mut kv) = bed(",min=25%");
    // Bytes that are no zeros, far more than the pool takes, and hardly any of them may stay.
    let program = "import os,time\nb=bytearray(os.urandom(1<<20)*220)\nprint('ready',flush=True)\ntime.sleep(600)";
    let mut command = Command::new("python3");
    command.args(["-c", program]);
    let job = bed.run("program", "8M", command);
    let mut evicted = 0;
    let began = std::time::Instant::now();
    // Until nothing more goes out.
    while began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_secs(2));
        let now = bed.status().pool.used;
        if now == evicted && now > 60 << 20 {
            break;
        }
        evicted = now;
    }
    assert!((80 << 20..=97 << 20).contains(&evicted), "{evicted} bytes are in the pool, of 128 MiB less a quarter");
    let keys = fill(&mut kv);
    assert!((350..=512).contains(&keys), "{keys} values of 64 KiB are a quarter of 128 MiB");
    drop(job);
}
