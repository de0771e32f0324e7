//! A donor in a network namespace of its own, at the end of a wire that can be cut: packets vanish,
//! and nobody is told.

use super::claim::Claim;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Laid when made, taken up when dropped.
pub struct Wire {
    namespace: String,
    ours: String,
    nth: usize,
    _number: Claim,
}

impl Wire {
    /// # Panics
    /// When the kernel or `ip` refuses: network namespaces need root.
    pub fn lay() -> Wire {
        take_up_abandoned();
        let (nth, number) = (0..256)
            .find_map(|nth| Some((nth, Claim::of(&format!("wire-{nth}"))?)))
            .expect("there are fewer than 256 wires");
        let wire = Wire {
            namespace: format!("annex-{}-{nth}", std::process::id()),
            // Interface names have 15 characters.
            ours: format!("ax{}-{nth}", std::process::id()),
            nth,
            _number: number,
        };
        ip(&["netns", "add", &wire.namespace]);
        ip(&["link", "add", &wire.ours, "type", "veth", "peer", "name", "wire", "netns", &wire.namespace]);
        ip(&["addr", "add", &format!("198.18.{nth}.1/30"), "dev", &wire.ours]);
        ip(&["link", "set", &wire.ours, "up"]);
        ip(&["-n", &wire.namespace, "addr", "add", &format!("198.18.{nth}.2/30"), "dev", "wire"]);
        ip(&["-n", &wire.namespace, "link", "set", "lo", "up"]);
        wire.join();
        wire
    }

    /// Of the far end.
    pub fn address(&self, port: u16) -> String {
        format!("198.18.{}.2:{port}", self.nth)
    }

    /// This host's address at the near end.
    pub fn here(&self) -> String {
        format!("198.18.{}.1", self.nth)
    }

    /// The command that runs `program` at the far end.
    pub fn inside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }

    /// From now on what is sent arrives nowhere.
    pub fn cut(&self) {
        ip(&["-n", &self.namespace, "link", "set", "wire", "down"]);
    }

    pub fn join(&self) {
        ip(&["-n", &self.namespace, "link", "set", "wire", "up"]);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        take_up(&self.namespace);
    }
}

/// A test program that was killed has left its wires, and they have our addresses.
fn take_up_abandoned() {
    for name in ip(&["netns", "list"]).split_whitespace() {
        let pid =
            name.strip_prefix("annex-").and_then(|rest| rest.split_once('-')).and_then(|(pid, _)| pid.parse().ok());
        if pid.is_some_and(|pid: u32| !Path::new("/proc").join(pid.to_string()).exists()) {
            take_up(name);
        }
    }
}

/// The kernel takes a namespace apart at its leisure, and whoever has our number next must not find
/// our address in use: the wire goes first. Another test may have been quicker.
fn take_up(namespace: &str) {
    if let Some(ours) = namespace.strip_prefix("annex-") {
        let _ = Command::new("ip").args(["link", "del", &format!("ax{ours}")]).output();
    }
    let _ = Command::new("ip").args(["netns", "del", namespace]).output();
}

/// What it prints.
#[track_caller]
fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().unwrap_or_else(|e| panic!("ip (of iproute2): {e}"));
    assert!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
