//! `annex-agent status` and `drain` against a running agent.

use crate::client::{ANNA, BERT, Client, PATIENCE, agent, wait_until};
use crate::program::program;
use annex_agent::local::{Status, call};
use annex_shared::ids::SlabId;
use annex_shared::wire::{Event, Refusal, Request};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Output, Stdio};

fn run(socket: &PathBuf, args: &[&str]) -> Output {
    program().arg("--control-socket").arg(socket).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn status(socket: &PathBuf) -> Status {
    serde_json::from_slice(&run(socket, &["status", "--json"]).stdout).unwrap()
}

#[test]
fn status_shows_clients_slabs_and_leases() {
    let (agent, dir) = agent(4, |_| {});
    let socket = dir.path().join("agent-control.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let slabs: Vec<SlabId> = anna.lease(3).iter().map(|l| l.slab).collect();
    let status = status(&socket);
    assert_eq!((status.name.as_str(), status.address), ("test donor", agent.addr().to_string()));
    assert_eq!((status.slabs.lent, status.slabs.capacity, status.draining), (3, 4, false));
    assert_eq!(status.clients.len(), 1);
    let client = &status.clients[0];
    assert_eq!((client.host.as_str(), client.connected, &client.slabs), ("here", true, &slabs));
    assert!((1..=120_000).contains(&client.leases_end_in_ms), "{}", client.leases_end_in_ms);
    assert!(status.pressure.available > 0);
    let text = said(&run(&socket, &["status"]));
    assert!(text.contains("lent      3 MiB of 4 MiB (3 of 4 slabs)"), "{text}");
    agent.shutdown();
    assert!(!socket.exists());
    let text = said(&run(&socket, &["status"]));
    assert!(text.contains("failed to reach the agent at"), "{text}");
}

#[test]
fn anybody_who_speaks_http_is_answered() {
    let (agent, dir) = agent(1, |_| {});
    let ask = |request: &str| {
        let mut stream = UnixStream::connect(dir.path().join("agent-control.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("GET /v1/status HTTP/1.1\r\nHost: agent\r\nAccept: */*\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(ask("GET /v2 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 Not Found\r\n"));
    assert!(ask("POST /v1/drain HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert_eq!(agent.lent(), 0);
}

#[test]
fn a_drain_waits_until_everything_is_returned_and_lends_nothing_meanwhile() {
    let (agent, dir) = agent(4, |_| {});
    let socket = dir.path().join("agent-control.sock");
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let (mut bert, _) = Client::greet(agent.addr(), BERT);
    let slabs: Vec<SlabId> = anna.lease(2).iter().map(|l| l.slab).collect();
    let mut command = program();
    command.arg("--control-socket").arg(&socket).arg("drain").stdout(Stdio::piped());
    let mut drain = command.spawn().unwrap();
    let Ok(Event::Recall { slabs: wanted, deadline_ms }) = anna.next() else { panic!("expected a recall") };
    assert_eq!(wanted, slabs);
    assert!(deadline_ms > 500_000, "{deadline_ms}");
    // It tells what is lent when it has its answer, which may be after the first slab's return if
    // that comes at once.
    let mut told = BufReader::new(drain.stdout.take().unwrap());
    let mut text = String::new();
    told.read_line(&mut text).unwrap();
    assert_eq!(text, "test donor: 2 of 2 slabs left\n");
    assert_eq!(bert.refused(&Request::Lease { count: 1 }), Refusal::Draining);
    assert_eq!(Refusal::Draining.to_string(), "is being drained for maintenance");
    anna.give_back(vec![slabs[0]]);
    wait_until("half of it", || status(&socket).slabs.lent == 1);
    anna.give_back(vec![slabs[1]]);
    told.read_to_string(&mut text).unwrap();
    assert_eq!(drain.wait().unwrap().code(), Some(0));
    assert!(text.ends_with("test donor is empty\n"), "{text}");
    assert_eq!(bert.refused(&Request::Lease { count: 1 }), Refusal::Draining, "until it is called off");
    assert_eq!(said(&run(&socket, &["drain", "--cancel"])), "test donor lends again\n");
    assert_eq!(bert.lease(4).len(), 4);
}

#[test]
fn a_drain_that_takes_too_long_says_who_still_holds_what_and_revokes_nothing() {
    let (agent, dir) = agent(2, |_| {});
    let socket = dir.path().join("agent-control.sock");
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    anna.lease(1);
    let output = run(&socket, &["drain", "--timeout", "300ms", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\"lent\":1,\"at_first\":1,\"empty\":false}\n");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("1 slabs are still lent after 0."), "{text}");
    assert!(text.contains(" on here; draining goes on"), "{text}");
    assert!(status(&socket).draining);
    assert!(matches!(anna.next(), Ok(Event::Recall { .. })));
    assert_eq!(anna.renew().len(), 1);
    assert!(!call(&socket, "DELETE", "/v1/drain").unwrap().draining);
}

#[test]
fn draining_a_donor_that_has_lent_nothing_is_done_at_once() {
    let (_agent, dir) = agent(2, |_| {});
    let output = run(&dir.path().join("agent-control.sock"), &["drain", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    // Free slabs that have memory are emptied first.
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("{\"lent\":0,\"at_first\":0,\"empty\":true}\n"));
}
