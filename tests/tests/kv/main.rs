//! The KV API from outside, as annexd serves it: bytes in, bytes out; and with the clients that
//! people use.

mod fairness;
mod memory;
mod passwords;
mod pipelines;
mod protected;
mod shares;
mod stopping;
mod streaming;
mod support;
mod tls;

use nix::sys::signal::Signal;
use redis::Commands;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};
use support::TestServer;

fn client(server: &TestServer) -> redis::Connection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port)).expect("an address");
    client.get_connection().expect("the server listens")
}

fn command(args: &[&str]) -> String {
    let args: String = args.iter().map(|arg| format!("${}\r\n{arg}\r\n", arg.len())).collect();
    format!("*{}\r\n{args}", args.matches('$').count())
}

#[test]
fn a_protocol_error_is_told_behind_what_was_answered_and_closes_the_connection() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.send("*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n*1\r\n!\r\n");
    assert_eq!(wire.rest(), "$-1\r\n+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n");
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = TestServer::start();
    let mut wire = server.connect();
    let count = 3000;
    let commands: String = (0..count).map(|n| format!("SET k{} {n}\r\nGET k{}\r\nINCR n\r\n", n % 7, n % 7)).collect();
    let answers: String =
        (0..count).map(|n| format!("+OK\r\n${}\r\n{n}\r\n:{}\r\n", n.to_string().len(), n + 1)).collect();
    let mut writer = wire.sender().expect("a handle");
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, commands.as_bytes()));
    wire.expect(&answers);
    writing.join().expect("no panic").expect("the server reads");
}

#[test]
fn a_pipeline_may_change_the_session_on_its_way() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.send("SET k zero\r\nSELECT 1\r\nSET k one\r\nGET k\r\nSELECT 0\r\nGET k\r\nDBSIZE\r\nFLUSHALL\r\nDBSIZE\r\n");
    wire.expect("+OK\r\n+OK\r\n+OK\r\n$3\r\none\r\n+OK\r\n$4\r\nzero\r\n:1\r\n+OK\r\n:0\r\n");
}

#[test]
fn increments_of_many_connections_are_all_counted() {
    let server = TestServer::start();
    let each = 500;
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut wire = server.connect();
            std::thread::spawn(move || {
                wire.send(&"INCR n\r\n".repeat(each));
                (0..each).for_each(|_| assert!(wire.line().starts_with(':')));
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("all were answered"));
    server.connect().talk("GET n", "$4\r\n4000\r\n");
}

#[test]
fn a_client_that_does_not_read_harms_nobody_and_gets_all_in_the_end() {
    let server = TestServer::start();
    let mut lazy = server.connect();
    let value = "x".repeat(100_000);
    lazy.send(&command(&["SET", "k", &value]));
    lazy.expect("+OK\r\n");
    let count = 2000;
    lazy.send(&"GET k\r\n".repeat(count));
    let mut other = server.connect();
    (0..100).for_each(|_| other.talk("PING", "+PONG\r\n"));
    let list = String::from_utf8_lossy(&other.ask(&["CLIENT", "LIST"]).expect("the list")).into_owned();
    let omem = list.split("omem=").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok()).max();
    // 256 commands under way and a megabyte of replies, of 200 MB that were asked for.
    assert!(omem.is_some_and(|omem| omem < 40 << 20), "{list}");
    let answer = format!("$100000\r\n{value}\r\n");
    (0..count).for_each(|_| lazy.expect(&answer));
}

#[test]
fn a_value_of_many_megabytes_comes_back_as_it_was() {
    let server = TestServer::start();
    let mut connection = client(&server);
    let value: Vec<u8> = (0..30_000_000u32).map(|n| (n % 251) as u8).collect();
    let () = connection.set("k", &value).expect("it is taken");
    let read: Vec<u8> = connection.get("k").expect("it is there");
    assert!(read == value);
}

#[test]
fn who_has_not_authenticated_may_do_nothing_else() {
    let server = TestServer::with(&[("requirepass", "secret")]);
    let mut wire = server.connect();
    wire.talk("GET k", "-NOAUTH Authentication required.\r\n");
    wire.talk("HELLO 3", "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time\r\n");
    wire.talk("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    wire.talk("AUTH nobody secret", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    wire.talk("AUTH secret", "+OK\r\n");
    wire.talk("GET k", "$-1\r\n");
    wire.talk("RESET", "+RESET\r\n");
    wire.talk("GET k", "-NOAUTH Authentication required.\r\n");
    let mut large = server.connect();
    large.send("*11\r\n");
    assert_eq!(large.rest(), "-ERR Protocol error: unauthenticated multibulk length\r\n");
}

#[test]
fn one_client_too_many_is_turned_away() {
    let server = TestServer::with(&[("maxclients", "1")]);
    let mut first = server.connect();
    first.talk("PING", "+PONG\r\n");
    assert_eq!(server.connect().rest(), "-ERR max number of clients reached\r\n");
    first.talk("QUIT", "+OK\r\n");
    assert_eq!(first.rest(), "");
    let mut second = server.connect();
    second.talk("PING", "+PONG\r\n");
}

#[test]
fn what_became_of_keys_is_counted_anew_after_resetstat() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.talk("SET k v", "+OK\r\n");
    wire.talk("GET k", "$1\r\nv\r\n");
    wire.talk("GET none", "$-1\r\n");
    let mut told = |count: &str| {
        let info = wire.ask(&["INFO", "stats"]).expect("an answer");
        let info = String::from_utf8_lossy(&info).into_owned();
        let value = info.lines().find_map(|line| line.strip_prefix(count)?.strip_prefix(':')).map(str::to_owned);
        value.unwrap_or_else(|| panic!("no {count} in {info}"))
    };
    assert_eq!((told("keyspace_hits"), told("keyspace_misses")), ("1".into(), "1".into()));
    server.connect().talk("CONFIG RESETSTAT", "+OK\r\n");
    for count in ["keyspace_hits", "keyspace_misses", "expired_keys", "evicted_keys"] {
        assert_eq!(told(count), "0", "{count}");
    }
}

#[test]
fn an_idle_client_is_closed() {
    let server = TestServer::with(&[("timeout", "1")]);
    let begun = Instant::now();
    assert_eq!(server.connect().rest(), "");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_request_above_the_limit_closes_the_connection() {
    let server = TestServer::with(&[("client-query-buffer-limit", "1048576")]);
    let mut wire = server.connect();
    let mut writer = wire.sender().expect("a handle");
    let request = command(&["SET", "k", &"x".repeat(4 << 20)]);
    // The server closes it before all is written.
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, request.as_bytes()));
    assert_eq!(wire.rest(), "");
    _ = writing.join();
    server.connect().talk("EXISTS k", ":0\r\n");
}

#[test]
fn output_above_the_limit_closes_the_connection() {
    let server = TestServer::with(&[("client-output-buffer-limit", "normal 1000000 0 0 slave 0 0 0 pubsub 0 0 0")]);
    let mut wire = server.connect();
    wire.send(&command(&["SET", "k", &"x".repeat(900_000)]));
    wire.expect("+OK\r\n");
    wire.send(&"GET k\r\n".repeat(200));
    std::thread::sleep(Duration::from_millis(300));
    assert!(wire.rest().len() < 200 * 900_000);
    server.connect().talk("PING", "+PONG\r\n");
}

#[test]
fn unknown_commands_are_refused_in_redis_words() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.talk("nope a 'b c'", "-ERR unknown command 'nope', with args beginning with: 'a' 'b c' \r\n");
    wire.talk("CONFIG nope", "-ERR unknown subcommand 'nope'. Try CONFIG HELP.\r\n");
    wire.talk("config|get x", "-ERR unknown command 'config|get', with args beginning with: 'x' \r\n");
    wire.talk("CONFIG", "-ERR wrong number of arguments for 'config' command\r\n");
    wire.talk("CLIENT id x", "-ERR wrong number of arguments for 'client|id' command\r\n");
    wire.talk("GET", "-ERR wrong number of arguments for 'get' command\r\n");
    let long = "y".repeat(200);
    let cut = "y".repeat(128);
    wire.talk(
        &format!("{long} {long} z"),
        &format!("-ERR unknown command '{cut}', with args beginning with: '{cut}' \r\n"),
    );
}

#[test]
fn a_transaction_runs_unless_what_it_watches_has_changed() {
    let server = TestServer::start();
    let (mut one, mut other) = (server.connect(), server.connect());
    one.talk("WATCH k", "+OK\r\n");
    one.talk("MULTI", "+OK\r\n");
    one.talk("SET k mine", "+QUEUED\r\n");
    other.talk("SET k theirs", "+OK\r\n");
    one.talk("EXEC", "*-1\r\n");
    one.talk("GET k", "$6\r\ntheirs\r\n");
    one.send("WATCH k\r\nMULTI\r\nSET k mine\r\nINCR k\r\nGET k\r\nEXEC\r\nPING\r\n");
    one.expect("+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n-ERR value is not an integer or out of range\r\n$4\r\nmine\r\n+PONG\r\n");
}

#[test]
fn a_command_that_can_not_be_queued_ends_the_transaction() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.talk("EXEC", "-ERR EXEC without MULTI\r\n");
    wire.talk("DISCARD", "-ERR DISCARD without MULTI\r\n");
    wire.talk("MULTI", "+OK\r\n");
    wire.talk("MULTI", "-ERR MULTI calls can not be nested\r\n");
    wire.talk("WATCH k", "-ERR WATCH inside MULTI is not allowed\r\n");
    wire.talk("SET k", "-ERR wrong number of arguments for 'set' command\r\n");
    wire.talk("SET k v", "+QUEUED\r\n");
    wire.talk("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n");
    wire.talk("EXISTS k", ":0\r\n");
}

#[test]
fn nothing_comes_between_the_commands_of_a_transaction() {
    let server = TestServer::start();
    let mut writer = server.connect();
    let mut reader = server.connect();
    let writing = std::thread::spawn(move || {
        for n in 0..300 {
            writer.send(&format!("MULTI\r\nSET a {n}\r\nSET b {n}\r\nSET c {n}\r\nEXEC\r\n"));
            writer.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n+OK\r\n+OK\r\n");
        }
    });
    for _ in 0..300 {
        reader.send("MGET a b c\r\n");
        assert_eq!(reader.line(), "*3");
        let values: Vec<String> =
            (0..3).map(|_| if reader.line() == "$-1" { String::new() } else { reader.line() }).collect();
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    }
    writing.join().expect("the writer got its answers");
}

#[test]
fn a_killed_client_is_closed() {
    let server = TestServer::start();
    let (mut one, mut other) = (server.connect(), server.connect());
    one.send("CLIENT ID\r\n");
    let id = one.line();
    other.talk(&format!("CLIENT KILL ID {}", id.trim_start_matches(':')), ":1\r\n");
    assert_eq!(one.rest(), "");
    other.talk("CLIENT KILL 1.2.3.4:5", "-ERR No such client\r\n");
}

#[test]
fn a_pause_holds_up_writes_until_it_is_over() {
    let server = TestServer::start();
    let (mut one, mut other) = (server.connect(), server.connect());
    one.talk("CLIENT PAUSE 60000 WRITE", "+OK\r\n");
    one.talk("GET k", "$-1\r\n");
    other.send("SET k v\r\n");
    std::thread::sleep(Duration::from_millis(100));
    one.talk("GET k", "$-1\r\n");
    one.talk("CLIENT UNPAUSE", "+OK\r\n");
    other.expect("+OK\r\n");
    let begun = Instant::now();
    one.talk("CLIENT PAUSE 200", "+OK\r\n");
    one.talk("PING", "+PONG\r\n");
    assert!(begun.elapsed() >= Duration::from_millis(200));
}

#[test]
fn replies_can_be_turned_off() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.send("CLIENT REPLY OFF\r\nSET k v\r\nnope\r\nMULTI\r\nPING\r\nEXEC\r\nCLIENT REPLY ON\r\nPING\r\n");
    wire.expect("+OK\r\n+PONG\r\n");
    wire.send("CLIENT REPLY SKIP\r\nGET k\r\nGET k\r\n");
    wire.expect("$1\r\nv\r\n");
}

#[test]
fn resp3_is_spoken_once_it_is_asked_for() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.send("HELLO 3 SETNAME me\r\n");
    assert_eq!(wire.line(), "%7");
    (0..7 * 2 - 1).for_each(|_| {
        let head = wire.line();
        if head.starts_with('$') {
            wire.line();
        }
    });
    assert_eq!(wire.line(), "*0");
    wire.talk("GET k", "_\r\n");
    wire.talk("CLIENT GETNAME", "$2\r\nme\r\n");
    wire.talk("CONFIG GET timeout", "%1\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    wire.talk("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
}

#[test]
fn a_slow_command_is_logged_without_secrets() {
    let server = TestServer::with(&[("slowlog-log-slower-than", "0")]);
    let mut connection = client(&server);
    let () = redis::cmd("CONFIG").arg(&["SET", "requirepass", "secret"]).query(&mut connection).expect("it is set");
    let log: redis::Value = redis::cmd("SLOWLOG").arg("GET").arg(-1).query(&mut connection).expect("a log");
    let log = format!("{log:?}");
    assert!(log.contains("requirepass") && log.contains("redacted") && !log.contains("secret"), "{log}");
}

#[test]
fn info_tells_what_tools_look_for() {
    let server = TestServer::start();
    let mut connection = client(&server);
    let () = connection.set("k", "v").expect("it is set");
    let info: String = redis::cmd("INFO").arg("everything").query(&mut connection).expect("a text");
    let wanted = [
        "redis_version:7.0",
        "connected_clients:1",
        "db0:keys=1,expires=0",
        "cmdstat_set:calls=1",
        "role:master",
        "rdma_connections:0",
        "shm_write_operations:",
        "donor1:name=",
    ];
    wanted.iter().for_each(|wanted| assert!(info.contains(wanted), "{wanted} is not in {info}"));
    let some: String = redis::cmd("INFO").arg("cpu").arg("keyspace").query(&mut connection).expect("a text");
    assert!(some.starts_with("# CPU\r\n") && some.contains("# Keyspace\r\n") && !some.contains("# Server"), "{some}");
}

#[test]
fn the_unix_socket_has_its_mode_and_goes_with_annexd() {
    let mut server = TestServer::start();
    let path = server.socket();
    let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let client = redis::Client::open(format!("unix://{}", path.display())).expect("an address");
    let answer: String =
        redis::cmd("PING").query(&mut client.get_connection().expect("it listens")).expect("an answer");
    assert_eq!(answer, "PONG");
    server.bed.annexd.signal(Signal::SIGTERM);
    assert!(server.bed.annexd.wait(Duration::from_secs(20)).expect("it ends").success());
    assert!(!path.exists());
}

#[test]
fn what_is_under_way_is_answered_when_annexd_stops() {
    let mut server = TestServer::start();
    let mut wire = server.connect();
    wire.send("DEBUG SLEEP 0.3\r\n");
    std::thread::sleep(Duration::from_millis(100));
    server.bed.annexd.signal(Signal::SIGTERM);
    wire.expect("+OK\r\n");
    assert_eq!(wire.rest(), "");
    assert!(server.bed.annexd.wait(Duration::from_secs(20)).expect("it ends").success());
}

#[test]
fn no_client_stops_annexd() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.talk("SHUTDOWN NOSAVE", "-ERR SHUTDOWN isn't allowed by the configuration of this server\r\n");
    wire.talk("PING", "+PONG\r\n");
}

#[test]
fn the_longest_string_is_512_mib() {
    let server = TestServer::start();
    let mut wire = server.connect();
    wire.talk("SETRANGE k 536870911 x", ":536870912\r\n");
    wire.talk("STRLEN k", ":536870912\r\n");
    wire.talk("APPEND k x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n");
    wire.talk("GETRANGE k 536870910 -1", "$2\r\n\0x\r\n");
    wire.talk("DEL k", ":1\r\n");
}

#[test]
fn redis_benchmark_works() {
    let server = TestServer::start();
    let port = server.port.to_string();
    let arguments = ["-p", &port, "-t", "set,get,incr,mset,ping", "-n", "5000", "-P", "8", "-q"];
    let output = Command::new("redis-benchmark").args(arguments).output().expect("redis-benchmark is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("GET: ") && !said.contains("Error"), "{said}");
}

#[test]
fn redis_py_works() {
    let server = TestServer::start();
    let script = "import redis, sys\n\
        r = redis.Redis(port=int(sys.argv[1]))\n\
        assert r.set('k', b'\\x00\\xff' * 3000, ex=100) and r.get('k') == b'\\x00\\xff' * 3000 and 90 < r.ttl('k') <= 100\n\
        with r.pipeline(transaction=True) as p:\n\
        \x20   assert p.incr('n').incr('n').execute() == [1, 2]\n\
        r.mset({f'key{n}': n for n in range(500)})\n\
        assert len(list(r.scan_iter('key*'))) == 500 and r.info()['db0']['keys'] == 502\n";
    let output =
        Command::new("/usr/bin/python3").args(["-c", script, &server.port.to_string()]).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn redis_cli_works() {
    let server = TestServer::start();
    let run = |args: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &server.port.to_string()]).args(args).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let answer = run(&["ping"]).expect("redis-cli is installed");
    assert_eq!(answer, "PONG");
    assert_eq!(run(&["set", "k", "v"]).ok().as_deref(), Some("OK"));
    assert_eq!(run(&["-3", "config", "get", "databases"]).ok().as_deref(), Some("databases 16"));
}
