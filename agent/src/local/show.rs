//! What `annex-agent status` and `annex-agent drain` print.

use super::{CallError, Status, call};
use annex_shared::api::{CertificateInfo, format_bytes};
use annex_shared::printable::printable;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How often a drain is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// A drain did not end well.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(
        "{left} slabs are still lent after {:.1} s, to {clients}; draining goes on: wait with `annex-agent drain`, or call it off with --cancel",
        .after.as_secs_f32()
    )]
    Timeout { left: u32, clients: String, after: Duration },
    #[error("the drain was called off by somebody else; {left} slabs are lent")]
    CalledOff { left: u32 },
}

/// Prints an agent's status for a human.
pub fn print_status(status: &Status) {
    // A reader that has seen enough and left is no failure.
    let _ = std::io::stdout().write_all(render(status).as_bytes());
}

fn render(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<10}{}", printable(&value));
    };
    let state = match (status.closing, status.draining, status.pressure.pressed) {
        (true, ..) => "stopping",
        (_, true, _) if status.slabs.lent == 0 => "drained: nothing is lent",
        (_, true, _) => "being drained",
        (.., true) => "short of memory: recalling slabs",
        _ => "lending",
    };
    line("donor", format!("{} on {}, {state}", status.name, status.address));
    line("restart", format!("{} keeps its memory", status.kept_by));
    if let Some(CertificateInfo { summary, warning, .. }) = &status.certificate {
        line("TLS", if warning.is_empty() { summary.clone() } else { format!("{summary}: {warning}") });
    }
    line("RDMA", status.rdma.clone());
    let s = &status.slabs;
    let of = |slabs: u32| format_bytes(u64::from(slabs) * status.slab_size);
    line("lent", format!("{} of {} ({} of {} slabs)", of(s.lent), of(s.capacity), s.lent, s.capacity));
    if s.recalled > 0 {
        line("recalled", format!("{} ({} slabs)", of(s.recalled), s.recalled));
    }
    line("free", format!("{} with memory, {} without, {} being emptied", s.spare, s.vacant, s.cleaning));
    let p = &status.pressure;
    let stall = p.stall_percent.map_or("not told by this kernel".to_owned(), |s| format!("{s:.1} %"));
    let (available, headroom) = (format_bytes(p.available), format_bytes(p.headroom));
    line("host", format!("{available} available, {headroom} stay here; stalls for memory: {stall}"));
    if let Some(shortcoming) = &status.shortcoming {
        line("warning", format!("a slab gets no memory: {shortcoming}"));
    }
    for c in &status.clients {
        let ends = c.leases_end_in_ms as f64 / 1000.0;
        let mut about = format!("{} on {}: {} slabs", c.client, c.host, c.slabs.len());
        if !c.slabs.is_empty() {
            let _ = write!(about, ", renewed or over in {ends:.1} s");
        }
        if let Some(first) = c.recalled.iter().map(|r| r.revoked_in_ms).min() {
            let _ = write!(about, ", {} wanted back within {:.1} s", c.recalled.len(), first as f64 / 1000.0);
        }
        if !c.connected {
            about.push_str(", not connected");
        }
        line("client", about);
    }
    text
}

/// Drains an agent and waits until nothing is lent, for `timeout` at most.
pub fn drain(socket: &Path, timeout: Option<Duration>, json: bool) -> Result<(), DrainError> {
    let started = Instant::now();
    let mut status = call(socket, "PUT", "/v1/drain")?;
    let first = status.slabs.lent;
    let mut shown = None;
    loop {
        let is_empty = status.slabs.lent == 0 && status.slabs.cleaning == 0;
        let key = (status.slabs.lent, is_empty);
        if shown != Some(key) {
            shown = Some(key);
            report(&status, first, is_empty, json);
        }
        if is_empty {
            return Ok(());
        }
        if !status.draining {
            return Err(DrainError::CalledOff { left: status.slabs.lent });
        }
        if timeout.is_some_and(|t| started.elapsed() >= t) {
            let holders = status.clients.iter().filter(|c| !c.slabs.is_empty());
            let clients: Vec<String> = holders.map(|c| format!("{} on {}", c.client, c.host)).collect();
            let (left, clients) = (status.slabs.lent, clients.join(", "));
            return Err(DrainError::Timeout { left, clients, after: started.elapsed() });
        }
        thread::sleep(LOOK);
        status = call(socket, "GET", "/v1/status")?;
    }
}

fn report(status: &Status, first: u32, is_empty: bool, json: bool) {
    let lent = status.slabs.lent;
    let mut out = std::io::stdout();
    let text = if json {
        format!("{{\"lent\":{lent},\"at_first\":{first},\"empty\":{is_empty}}}\n")
    } else {
        let name = printable(&status.name);
        let line = match is_empty {
            true => format!("{name} is empty"),
            false => format!("{name}: {lent} of {first} slabs left"),
        };
        // On a terminal one line that changes, elsewhere a line for each step.
        match (out.is_terminal(), is_empty) {
            (true, false) => format!("\r\x1b[K{line}"),
            (true, true) => format!("\r\x1b[K{line}\n"),
            (false, _) => format!("{line}\n"),
        }
    };
    // A reader that has left is no reason to stop waiting.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::super::{Client, Pressure, Recalled, Slabs};
    use super::*;
    use annex_shared::ids::SlabId;

    #[test]
    fn a_status_fits_a_terminal() {
        let sample = Status::sample();
        let status = Status {
            draining: true,
            pressure: Pressure { stall_percent: Some(0.5), ..sample.pressure },
            slabs: Slabs { recalled: 1, ..sample.slabs },
            clients: vec![Client {
                client: "c1".into(),
                host: "elm".into(),
                connected: false,
                slabs: vec![SlabId(0), SlabId(1)],
                leases_end_in_ms: 8500,
                recalled: vec![Recalled { slab: SlabId(1), revoked_in_ms: 29_000 }],
            }],
            certificate: Some(CertificateInfo {
                name: "annex://corp/donor/oak".into(),
                expires: 1_772_150_400,
                summary: "annex://corp/donor/oak until 2026-02-27".into(),
                warning: "the certificate expires in 13 days".into(),
                is_invalid: false,
            }),
            ..sample
        };
        assert_eq!(
            render(&status),
            "donor     oak on 10.0.0.5:7411, being drained\n\
             restart   systemd's descriptor store keeps its memory\n\
             TLS       annex://corp/donor/oak until 2026-02-27: the certificate expires in 13 days\n\
             RDMA      no RDMA device here\n\
             lent      128 MiB of 1 GiB (2 of 16 slabs)\n\
             recalled  64 MiB (1 slabs)\n\
             free      1 with memory, 13 without, 0 being emptied\n\
             host      3 GiB available, 1 GiB stay here; stalls for memory: 0.5 %\n\
             client    c1 on elm: 2 slabs, renewed or over in 8.5 s, 1 wanted back within 29.0 s, not connected\n"
        );
    }
}
