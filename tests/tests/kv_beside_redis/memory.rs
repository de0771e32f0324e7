//! What a transaction meets when memory is over its limit.

use super::ours::Ours;
use super::redis::Redis;
use annex_tests::kv::wire::Wire;

/// Sends these to a server, those that begin with `!` over a second connection.
fn talk(wires: &mut [Wire; 2], commands: &[&str]) -> Vec<String> {
    let answer = |command: &&str| {
        let (wire, words) = match command.strip_prefix('!') {
            Some(words) => (&mut wires[1], words),
            None => (&mut wires[0], *command),
        };
        let words: Vec<&str> = words.split(' ').collect();
        let reply = wire.ask(&words).expect("an answer");
        format!("{command}: {}", String::from_utf8_lossy(&reply))
    };
    commands.iter().map(answer).collect()
}

#[test]
fn a_transaction_over_the_limit_is_refused_as_beside_redis() {
    let Some(redis) = Redis::start("memory", false) else { return };
    let ours = Ours::start(false);
    let commands = [
        "FLUSHALL",
        "SET there 1",
        // Refused as it is queued, and with it the transaction.
        "!CONFIG SET maxmemory 1",
        "SET k 1",
        "GET there",
        "MULTI",
        "SET k 1",
        "EXEC",
        // Whatever is queued takes memory.
        "MULTI",
        "GET there",
        "DEL there",
        "PING",
        "EXEC",
        "MULTI",
        "DISCARD",
        "MULTI",
        "EXEC",
        // Queued while there was room, and run when there is none.
        "!CONFIG SET maxmemory 0",
        "MULTI",
        "SET k 1",
        "GET k",
        "!CONFIG SET maxmemory 1",
        "EXEC",
        "GET k",
        "EXEC",
        // What needs no memory runs.
        "!CONFIG SET maxmemory 0",
        "MULTI",
        "DEL there",
        "GET there",
        "!CONFIG SET maxmemory 1",
        "EXEC",
        "!CONFIG SET maxmemory 0",
        "MULTI",
        "SET k 2",
        "EXEC",
        "GET k",
    ];
    assert_eq!(talk(&mut ours.wires(), &commands), talk(&mut redis.wires(), &commands));
}
