//! Agents that are stopped and killed at every bad moment: nobody gets foreign bytes, loses their
//! own, or works under a dead key.

use crate::client::{ANNA, BERT, Client, Data, SLAB, wait_until};
use crate::player::{Gone, Player, Registry};
use crate::program::{Running, program};
use crate::takeover::{KeptIn, flags, kept};
use annex_fabric::ErrorKind;
use annex_shared::wire::{Event, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::thread;
use std::time::Duration;

#[test]
fn a_donor_that_slept_past_a_lease_serves_no_stale_byte_and_takes_no_late_write() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Running::of(program().args(flags(dir.path(), 2)).args(["--lease-ttl", "1s"]));
    let (mut anna, welcome) = Client::greet(agent.addr, ANNA);
    let leased = anna.lease(2);
    let (far, near) = (leased[0], leased[1]);
    let mut tcp = Data::tcp(agent.addr, ANNA, &welcome);
    let mut reader = Data::tcp(agent.addr, ANNA, &welcome);
    let (mut shm, _connector) = Data::shm(ANNA, &welcome, near.rkey);
    tcp.write(far.rkey, 0x11).unwrap();
    shm.write(near.rkey, 0x22).unwrap();

    agent.stop();
    thread::scope(|scope| {
        // These lie in the agent's sockets while it sleeps, and it finds them when it wakes.
        let late_write = scope.spawn(|| tcp.write(far.rkey, 0xee));
        let late_read = scope.spawn(|| reader.read(far.rkey).map(drop));
        thread::sleep(Duration::from_millis(1500));
        // No agent is needed for this one to be refused.
        assert_eq!(shm.write(near.rkey, 0xee), Err(ErrorKind::RemoteAccess));
        agent.go_on();
        assert_eq!(late_write.join().unwrap(), Err(ErrorKind::RemoteAccess));
        assert_eq!(late_read.join().unwrap(), Err(ErrorKind::RemoteAccess));
    });
    assert_eq!(anna.renew(), []);

    let (mut bert, welcome) = Client::greet(agent.addr, BERT);
    let mut slabs = bert.lease(2);
    wait_until("both slabs to be free", || {
        if slabs.len() < 2
            && let Event::Leased { slabs: more } = bert.ask(&Request::Lease { count: 1 })
        {
            slabs.extend(more);
        }
        slabs.len() == 2
    });
    let mut data = Data::tcp(agent.addr, BERT, &welcome);
    for lease in &slabs {
        assert!(data.read(lease.rkey).unwrap() == vec![0; SLAB as usize], "{} is not zero", lease.slab);
        data.write(lease.rkey, 0x33).unwrap();
    }
    for old in &leased {
        assert_eq!(tcp.write(old.rkey, 0xee), Err(ErrorKind::RemoteAccess));
        assert_eq!(reader.read(old.rkey).map(drop), Err(ErrorKind::RemoteAccess));
    }
    assert_eq!(shm.write(near.rkey, 0xee), Err(ErrorKind::RemoteAccess));
    for lease in &slabs {
        assert!(data.read(lease.rkey).unwrap() == vec![0x33; SLAB as usize], "{} was written to", lease.slab);
    }
}

/// Everything that has an order in it, once, by a near and a far client in turn.
fn play_through(near: &mut Player, far: &mut Player, agent: &Running) -> Result<(), Gone> {
    near.connect(agent.addr)?;
    far.connect(agent.addr)?;
    for _ in 0..2 {
        for player in [&mut *near, &mut *far] {
            player.lease()?;
            let slabs = player.slabs();
            slabs.iter().try_for_each(|slab| player.write(*slab))?;
            player.lease()?;
            player.give_back(vec![slabs[0]])?;
            player.slabs().into_iter().try_for_each(|slab| player.check_bytes(slab))?;
        }
    }
    Ok(())
}

/// The agent dies at a place, is started again and dies there again, and a third one is looked at.
/// True if it did die there.
fn dies_and_goes_on(dir: &Path, place: &str, pass: u32) -> bool {
    let registry = Registry::default();
    let mut near = Player::new(ANNA, true, 1, &registry);
    let mut far = Player::new(BERT, false, 2, &registry);
    let mut has_died = false;
    for _ in 0..2 {
        let mut command = kept(dir, 6);
        command.env("ANNEX_FAILPOINTS", format!("{place}=die:{pass}"));
        // It may be dead before it says that it lends.
        let Some(mut agent) = Running::try_of(&mut command) else {
            has_died = true;
            continue;
        };
        let outcome = play_through(&mut near, &mut far, &agent);
        if outcome.is_err() {
            let status = agent.child.wait().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
            has_died = true;
        } else {
            // What runs behind our backs (cleaning) may still get there.
            thread::sleep(Duration::from_millis(20));
            has_died |= agent.child.try_wait().unwrap().is_some();
            agent.kill();
        }
    }
    let agent = Running::of(&mut kept(dir, 6));
    for player in [&mut near, &mut far] {
        player.connect(agent.addr).unwrap();
        player.lease().unwrap();
    }
    for player in [&mut near, &mut far] {
        player.finish().unwrap();
    }
    has_died
}

/// All places between two steps whose order matters when the agent is restarted.
const PLACES: [&str; 12] = [
    "claim-saved",
    "slab-made",
    "slab-kept",
    "lease-saved",
    "lease-opened",
    "key-dead",
    "lease-ended",
    "slab-emptied",
    "slab-forgotten",
    "copy-kept",
    "copy-saved",
    "incarnation-seen",
];

#[test]
fn wherever_it_dies_the_next_one_goes_on_without_a_wrong_byte() {
    for place in PLACES {
        let mut deaths = 0;
        for pass in 1..=4 {
            let dir = tempfile::tempdir().unwrap();
            let _keeper = KeptIn(dir.path());
            deaths += u32::from(dies_and_goes_on(dir.path(), place, pass));
        }
        assert!(deaths > 0, "{place} was never reached");
    }
}

#[test]
fn a_hundred_kills_at_random_moments_lose_no_byte() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let _keeper = KeptIn(dir.path());
    let registry = Registry::default();
    let mut players = [Player::new(ANNA, true, seed ^ 1, &registry), Player::new(BERT, false, seed ^ 2, &registry)];
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rounds = 0;
    // On a busy machine a player does little in one life of the agent.
    let is_enough = |player: &Player| player.operations > 100 && player.resumed > 25;
    while rounds < 100 || !players.iter().all(is_enough) {
        rounds += 1;
        assert!(rounds < 3000, "too little happens in so many lives");
        let agent = Running::of(&mut kept(dir.path(), 8));
        let addr = agent.addr;
        let life = Duration::from_micros(rng.random_range(1_000..60_000));
        thread::scope(|scope| {
            for player in &mut players {
                scope.spawn(move || {
                    let mut going = player.connect(addr);
                    while going.is_ok() {
                        going = player.step();
                    }
                });
            }
            thread::sleep(life);
            agent.kill();
        });
    }
    let agent = Running::of(&mut kept(dir.path(), 8));
    for player in &mut players {
        player.connect(agent.addr).unwrap();
        player.finish().unwrap();
        println!("{rounds} kills, {} operations, {} restarts with leases", player.operations, player.resumed);
    }
}
